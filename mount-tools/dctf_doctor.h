/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of `dctf doctor`. None touches a mounted dctffs; whatever may hang (source,
 * cache disk) is looked at by a child process that is left behind at its time-out.
 *
 * Threads:   one thread.
 * Ownership: struct dctf_doctor is embedded; dctf_doctor_fini() frees it.
 */
#ifndef DCTF_TOOLS_DCTF_DOCTOR_H
#define DCTF_TOOLS_DCTF_DOCTOR_H

#include "fs/mountpoint.h"
#include "fs/runtime.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum dctf_doctor_result {
    DCTF_DOCTOR_OK,
    DCTF_DOCTOR_WARN,
    DCTF_DOCTOR_FAIL,
};

struct dctf_doctor {
    bool json;
    uint64_t timeout_ms;
    const char *mount; /* the checks are about it; NULL: about the system. Borrowed */
    json_t *checks;
    unsigned counts[3]; /* by result */
};

/* Record one check, and print it unless JSON was asked for. `remedy` may be NULL. */
void dctf_doctor_add(struct dctf_doctor *doctor, enum dctf_doctor_result result, const char *check,
    const char *remedy, const char *format, ...) DCTF_PRINTF(5, 6);
void dctf_doctor_fini(struct dctf_doctor *doctor);

void dctf_doctor_system(struct dctf_doctor *doctor);
/* The daemon process of a mount. Returns false when there is none to talk to. */
bool dctf_doctor_process(struct dctf_doctor *doctor, const struct dctf_runtime *runtime);
void dctf_doctor_memory(struct dctf_doctor *doctor, pid_t pid);
/* What the kernel knows of the mount: waiting requests, read-ahead. */
void dctf_doctor_kernel_side(struct dctf_doctor *doctor, const struct dctf_mount_info *mount, bool answers);
/* Source and cache directory, from outside. */
void dctf_doctor_storage(struct dctf_doctor *doctor, const struct dctf_runtime *runtime);
/* A source, step by step, as a child of this process sees it; `options` is `-o` text, NULL
 * for none. doctor->mount tells whether it is that of a mount. */
void dctf_doctor_source(struct dctf_doctor *doctor, const char *source, const char *options);
/* The same as the daemon of a mount sees it; false when it does not tell. */
bool dctf_doctor_source_of_daemon(struct dctf_doctor *doctor, const char *mountpoint);
/* What the daemon says of itself; true when it answers. */
bool dctf_doctor_daemon(struct dctf_doctor *doctor, const char *mountpoint);

/* The members of its cluster, as the daemon reaches them; says nothing where there is none. */
void dctf_doctor_peers(struct dctf_doctor *doctor, const char *mountpoint);

/* First line of a small file of /proc, /sys or /etc, without the newline; false when it
 * cannot be read. */
bool dctf_doctor_read(const char *path, char *buf, size_t cap);

#endif
