/* SPDX-License-Identifier: Apache-2.0
 *
 * Ask from outside whether a mount answers. A process of its own does it, forked before
 * the FUSE device is open: a thread of the daemon that waits for the daemon's own mount
 * cannot be killed, and would keep the device open, and so the mount, for ever.
 *
 * Threads:   dctffs_probe_start() before any other thread exists; the rest one thread.
 * Ownership: an embedded object, ended by dctffs_probe_end().
 */
#ifndef DCTFFS_PROBE_H
#define DCTFFS_PROBE_H

#include "base/err.h"

#include <sys/types.h>

struct dctffs_probe {
    pid_t pid;
    int fd; /* a byte goes out, an errno comes back */
};

#define DCTFFS_PROBE_NONE                                                                                    \
    {                                                                                                        \
        .pid = -1, .fd = -1                                                                                  \
    }

/* Start the process; it waits to be asked. It keeps no other descriptor than its own. */
DCTF_MUST_CHECK
enum dctf_err dctffs_probe_start(struct dctffs_probe *probe, const char *path);
/* Look now: 0 when the root of the mount answered, else an errno; ECHILD when the process
 * ended. Waits as long as the mount does. */
int dctffs_probe_ask(struct dctffs_probe *probe);
/* End the process, which must not be waiting for a mount that is still there. */
void dctffs_probe_end(struct dctffs_probe *probe);

#endif
