/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories and paths resolved while the caller waits; for the control socket and the copies of the
 * cluster.
 */
#include "fs/inode.h"
#include "fs/ns_private.h"

#include <string.h>

#define LOOKUP_ATTEMPTS 8u

struct blocking_wait {
    struct dctf_ns_wait wait;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool answered; /* guarded by lock */
    enum dctf_err err;
    struct dctf_listing_state state;
};

static void wake(struct dctf_ns_wait *wait, enum dctf_err err, const struct dctf_listing_state *state)
{
    struct blocking_wait *blocking = (struct blocking_wait *)wait;

    pthread_mutex_lock(&blocking->lock);
    blocking->answered = true;
    blocking->err = err;
    if (!err)
        blocking->state = *state;
    pthread_cond_signal(&blocking->cond);
    pthread_mutex_unlock(&blocking->lock);
}

enum dctf_err dctf_ns_resolve_now(struct dctf_ns *ns, const char *dir, struct dctf_listing_state *state)
{
    struct blocking_wait blocking = {
        .wait.done = wake,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .cond = PTHREAD_COND_INITIALIZER,
    };
    enum dctf_err err = dctf_ns_resolve(ns, dir, &blocking.wait);

    memset(state, 0, sizeof(*state));
    if (!err) {
        /* Bounded: a listing that falls silent ends at its deadline. */
        pthread_mutex_lock(&blocking.lock);
        while (!blocking.answered)
            pthread_cond_wait(&blocking.cond, &blocking.lock);
        pthread_mutex_unlock(&blocking.lock);
        err = blocking.err;
        *state = blocking.state;
    }
    pthread_mutex_destroy(&blocking.lock);
    pthread_cond_destroy(&blocking.cond);
    return err;
}

enum dctf_err dctf_ns_stat_now(struct dctf_ns *ns, const char *path, char *buf, struct dctf_entry *out)
{
    char dir[DCTF_KEY_MAX + 1] = "";
    char name[DCTF_NAME_MAX + 1];

    *out = (struct dctf_entry){.name = "", .is_dir = true, .etag = ""};
    while (*path) {
        size_t len = strcspn(path, "/");
        struct dctf_listing_state state;
        enum dctf_err err = DCTF_OK;

        if (!out->is_dir)
            return DCTF_ERR_NOT_A_DIRECTORY;
        if (len == 0 || len > DCTF_NAME_MAX)
            return DCTF_ERR_NOT_FOUND;
        if (*out->name) {
            err = dctf_path_join(dir, out->name, dir);
            if (err)
                return err;
        }
        memcpy(name, path, len);
        name[len] = '\0';
        for (unsigned attempt = 0; attempt < LOOKUP_ATTEMPTS; attempt++) {
            err = dctf_ns_resolve_now(ns, dir, &state);
            if (!err)
                err = dctf_listing_lookup(ns->config.listings, dir, state.generation, name, buf, out);
            if (err != DCTF_ERR_MISS) /* dropped since it was resolved */
                break;
        }
        if (err)
            return err;
        path += len;
        if (*path == '/' && !*++path)
            return DCTF_ERR_NOT_FOUND; /* an empty last component */
    }
    return DCTF_OK;
}
