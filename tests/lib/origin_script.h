/* SPDX-License-Identifier: Apache-2.0
 *
 * An origin that misbehaves as a control file says, in front of another one; for
 * tests only. The source is
 *
 *   script:///absolute/control.json?file:///absolute/dir
 *
 * The control file is read again whenever it changed, before the next request and
 * every few milliseconds; put a new one in place by rename(2), so that half of one is
 * never read. Without a file nothing misbehaves. A file that cannot be understood
 * changes nothing and is logged as an error.
 *
 *   {
 *     "seed": 1,                  start the dice anew (only when it changes)
 *     "serial": 7,                copied into the statistics
 *     "stats": "/tmp/stats.json", where to write them; they are written each time the
 *                                 control file was read, and at the end, by rename
 *     "rules": [                  the first that matches decides
 *       {
 *         "op": "get",            get, list, head, check or * (default)
 *         "key": "dir/" + "*",    glob on key or directory; * also matches '/' (default *)
 *         "p": 0.1,               with this probability only (default 1)
 *         "n": 3,                 for so many requests only (default: all)
 *
 *         "delay_ms": 50,         wait first; then as told by at most one of:
 *         "stall": true,          never answer, until cancelled or no rule stalls it any more
 *         "hard": true,           with stall: deaf to cancel, as stuck in the kernel
 *         "error": "ORIGIN_IO",   fail with this code of err.def
 *         "short": 100,           deliver only so many bytes, or entries of a list, then SHORT_BODY
 *         "wrong_version": true   get: VERSION_MISMATCH
 *       }
 *     ]
 *   }
 *
 * Statistics: {"serial", "get", "list", "head", "bytes" (delivered), "pending" (not yet
 * answered), "stalled", "keys": {KEY: {"gets", "bytes", "ranges": [[offset, len]…]}}}.
 * Requests count when they come in. Keys that are not UTF-8 appear as dctf_str_quote()
 * writes them.
 *
 * Threads:   as transport/origin.h. One thread of its own answers what waits.
 * Ownership: as transport/origin.h.
 */
#ifndef DCTF_TESTS_ORIGIN_SCRIPT_H
#define DCTF_TESTS_ORIGIN_SCRIPT_H

#include "transport/origin.h"

/* For a table of schemes: {"script", dctf_origin_script_open}. */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_script_open(const struct dctf_origin_config *config, struct dctf_origin **out);

#endif
