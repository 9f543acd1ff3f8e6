/* SPDX-License-Identifier: Apache-2.0
 *
 * The local directory as an origin: the blocking calls of file_tree.h on the threads of
 * origin_blocking.h, which is made for sources that hang (NFS).
 */
#include "transport/origin.h"

#include "transport/file_tree.h"
#include "transport/origin_blocking.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(DCTF_FILE_ETAG_BYTES <= DCTF_BLOCKING_ETAG_BYTES, "a head has room for the ETag");

static enum dctf_err file_list(void *tree, struct dctf_origin_list *list, const atomic_bool *cancelled)
{
    return dctf_file_tree_list(tree, list, cancelled);
}

static enum dctf_err file_head(
    void *tree, const char *key, struct dctf_origin_entry *entry, char *etag, const atomic_bool *cancelled)
{
    (void)cancelled; /* one call into the kernel */
    return dctf_file_tree_head(tree, key, entry, etag);
}

static enum dctf_err file_get(
    void *tree, const struct dctf_origin_get *get, const atomic_bool *cancelled, size_t *got)
{
    return dctf_file_tree_get(tree, get, cancelled, got);
}

static enum dctf_err file_probe(void *tree, unsigned what, char *detail)
{
    (void)what; /* there is only the check */
    return dctf_file_tree_check(tree, detail);
}

static void file_free(void *tree)
{
    dctf_file_tree_free(tree);
}

static const struct dctf_blocking_ops file_ops = {
    .scheme = "file",
    .thread_name = "dctf-origin",
    .list = file_list,
    .head = file_head,
    .get = file_get,
    .probe = file_probe,
    .free = file_free,
    .silent = "the directory did not answer",
};

/* "file:///dir/" → "/dir", caller frees; NULL when out of memory. */
static char *root_of(const char *source)
{
    const char *path = source + strlen("file://");
    size_t len = strlen(path);

    while (len > 1 && path[len - 1] == '/')
        len--;
    return strndup(path, len);
}

enum dctf_err dctf_origin_file_open(const struct dctf_origin_config *config, struct dctf_origin **out)
{
    unsigned listers = config->concurrency / 4 > 2 ? config->concurrency / 4 : 2;
    struct dctf_file_tree *tree;
    char *root;
    enum dctf_err err;

    *out = NULL;
    assert(config->concurrency > 0);
    /* Room for a key below it: paths are handed to the kernel whole. */
    if (strncmp(config->source, "file:///", 8) != 0 || strlen(config->source) > PATH_MAX / 2)
        return DCTF_ERR_SOURCE_UNSUPPORTED;
    root = root_of(config->source);
    if (!root)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_file_tree_new(root, false, &tree);
    free(root);
    if (err)
        return err;
    err = dctf_blocking_new(&file_ops, tree, config->concurrency, listers, out);
    if (err)
        dctf_file_tree_free(tree);
    return err;
}
