/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB behind a small interface.
 *
 * Every call passes a door, and values and iterators stay inside until they are
 * given back: dctf_kv_recover() closes it to swap the database.
 */
#include "cache/kv.h"

#include "base/log.h"
#include "base/str.h"
#include "cache/disk.h"
#include "cache/kv_options.h"
#include "cache/kv_private.h"

#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_MS 2000u
#define OPEN_BYTES (512u * 1024u)
#define WRITE_SLACK 256u

const char *const dctf_kv_cf_names[DCTF_KV_CF_COUNT] = {
    [DCTF_KV_META] = "default", /* RocksDB insists on this one */
    [DCTF_KV_SHARD] = "shard",
    [DCTF_KV_EXTENT] = "extent",
    [DCTF_KV_SMALL] = "small",
    [DCTF_KV_LISTING] = "listing",
    [DCTF_KV_HEAT] = "heat",
};

struct dctf_kv_batch {
    rocksdb_writebatch_t *batch;
    bool incomplete; /* something could not be added: it must not be written */
};

struct dctf_kv_iter {
    struct dctf_kv *kv;
    unsigned lane;
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *iter;
    size_t prefix_len;
    size_t bound_len;
    char prefix_and_bound[]; /* prefix, then the first key past it */
};

/* ---- errors ---- */

static bool says(const char *text, const char *words)
{
    return strstr(text, words) != NULL;
}

enum dctf_err dctf_kv_take_error(char *text, const char *what, bool opening, char *detail)
{
    char quoted[512];
    enum dctf_err err = opening ? DCTF_ERR_CACHE_CORRUPT : DCTF_ERR_CACHE_IO;

    if (says(text, "No space") || says(text, "NoSpace") || says(text, "quota exceeded"))
        err = DCTF_ERR_CACHE_NO_SPACE;
    else if (says(text, "Corruption"))
        err = DCTF_ERR_CACHE_CORRUPT;
    else if (says(text, "Permission denied") || says(text, "Input/output error") ||
             says(text, "Read-only file system") || says(text, "Too many open files") || says(text, "lock"))
        err = DCTF_ERR_CACHE_IO;
    if (detail)
        snprintf(detail, DCTF_KV_DETAIL_BYTES, "%s", text);
    dctf_log(opening ? DCTF_LOG_ERROR : DCTF_LOG_WARN, "kv", "err=%d op=%s detail=%s", (int)err, what,
        dctf_str_quote(text, quoted, sizeof(quoted)));
    rocksdb_free(text);
    return err;
}

/* ---- open and close ---- */

static enum dctf_err open_db(struct dctf_kv *kv, char *detail)
{
    char *text = NULL;
    /* RocksDB must not be opened on a full disk: cache/kv_options.c. */
    enum dctf_err err = dctf_disk_check_room(kv->dir, OPEN_BYTES);

    if (err) {
        if (detail)
            snprintf(detail, DCTF_KV_DETAIL_BYTES, "cannot write to %s", kv->dir);
        dctf_log(DCTF_LOG_WARN, "kv", "err=%d op=open detail=\"cannot write\"", (int)err);
        return err;
    }
    kv->db = rocksdb_open_column_families(kv->db_options, kv->dir, DCTF_KV_CF_COUNT, dctf_kv_cf_names,
        (const rocksdb_options_t *const *)kv->cf_options, kv->cfs, &text);
    if (!text)
        return DCTF_OK;
    kv->db = NULL;
    return dctf_kv_take_error(text, "open", true, detail);
}

static void close_db(struct dctf_kv *kv)
{
    if (!kv->db)
        return;
    for (int i = 0; i < DCTF_KV_CF_COUNT; i++)
        rocksdb_column_family_handle_destroy(kv->cfs[i]);
    rocksdb_close(kv->db);
    kv->db = NULL;
}

static void free_kv(struct dctf_kv *kv)
{
    close_db(kv);
    for (int i = 0; i < DCTF_KV_CF_COUNT; i++)
        rocksdb_options_destroy(kv->cf_options[i]);
    if (kv->db_options)
        rocksdb_options_destroy(kv->db_options);
    if (kv->filter)
        rocksdb_compactionfilter_destroy(kv->filter);
    rocksdb_cache_destroy(kv->cache);
    rocksdb_readoptions_destroy(kv->read_checked);
    rocksdb_readoptions_destroy(kv->read_raw);
    rocksdb_writeoptions_destroy(kv->write_logged);
    rocksdb_writeoptions_destroy(kv->write_unlogged);
    dctf_door_fini(&kv->door);
    pthread_mutex_destroy(&kv->recover_lock);
    free(kv->dir);
    free(kv);
}

enum dctf_err dctf_kv_make(const struct dctf_kv_config *config, struct dctf_kv **out)
{
    struct dctf_kv *kv = aligned_alloc(_Alignof(struct dctf_kv), sizeof(*kv));

    *out = NULL;
    if (!kv)
        return DCTF_ERR_NO_MEMORY;
    memset(kv, 0, sizeof(*kv));
    kv->config = *config;
    kv->dir = strdup(config->dir);
    if (!kv->dir) {
        free(kv);
        return DCTF_ERR_NO_MEMORY;
    }
    dctf_door_init(&kv->door);
    pthread_mutex_init(&kv->recover_lock, NULL);
    kv->cache = rocksdb_cache_create_lru(config->block_cache_bytes);
    kv->filter = dctf_kv_options_filter(&kv->config);
    for (int i = 0; i < DCTF_KV_CF_COUNT; i++)
        kv->cf_options[i] = dctf_kv_options_cf(&kv->config, (enum dctf_kv_cf)i, kv->cache, kv->filter);
    kv->db_options = dctf_kv_options_db(&kv->config);
    kv->read_checked = rocksdb_readoptions_create();
    kv->read_raw = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(kv->read_raw, 0);
    kv->write_logged = rocksdb_writeoptions_create();
    kv->write_unlogged = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(kv->write_unlogged, 1);
    if (!kv->db_options) {
        free_kv(kv);
        return DCTF_ERR_INTERNAL;
    }
    *out = kv;
    return DCTF_OK;
}

enum dctf_err dctf_kv_open(const struct dctf_kv_config *config, struct dctf_kv **out)
{
    enum dctf_err err = dctf_kv_make(config, out);

    if (err)
        return err;
    err = open_db(*out, config->detail);
    if (err) {
        free_kv(*out);
        *out = NULL;
        return err;
    }
    dctf_kv_measure(*out);
    return DCTF_OK;
}

void dctf_kv_close(struct dctf_kv *kv)
{
    if (!kv)
        return;
    if (kv->db) {
        for (int i = 0; i < DCTF_KV_CF_COUNT; i++)
            dctf_kv_flush_inside(kv, (enum dctf_kv_cf)i);
    }
    free_kv(kv);
}

/* ---- reading ---- */

enum dctf_err dctf_kv_get(
    struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key, size_t key_len, struct dctf_kv_value *value)
{
    unsigned lane = dctf_door_enter(&kv->door);
    rocksdb_pinnableslice_t *slice = NULL;
    char *text = NULL;

    *value = (struct dctf_kv_value){0};
    if (!kv->db) {
        dctf_door_leave(&kv->door, lane);
        return DCTF_ERR_CACHE_IO;
    }
    slice = rocksdb_get_pinned_cf(
        kv->db, cf == DCTF_KV_SMALL ? kv->read_raw : kv->read_checked, kv->cfs[cf], key, key_len, &text);
    if (!slice) {
        dctf_door_leave(&kv->door, lane);
        return text ? dctf_kv_take_error(text, "get", false, NULL) : DCTF_ERR_MISS;
    }
    value->data = rocksdb_pinnableslice_value(slice, &value->len);
    value->pin = slice;
    value->kv = kv;
    value->lane = lane;
    return DCTF_OK;
}

void dctf_kv_value_put(struct dctf_kv_value *value)
{
    if (!value->pin)
        return;
    rocksdb_pinnableslice_destroy(value->pin);
    dctf_door_leave(&value->kv->door, value->lane);
    *value = (struct dctf_kv_value){0};
}

/* A seek to the key that ends before it: blocks are read, values are not. */
enum dctf_err dctf_kv_touch(struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key, size_t key_len)
{
    unsigned lane = dctf_door_enter(&kv->door);
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *iter;
    char *text = NULL;

    if (!kv->db) {
        dctf_door_leave(&kv->door, lane);
        return DCTF_ERR_CACHE_IO;
    }
    options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_iterate_upper_bound(options, key, key_len);
    iter = rocksdb_create_iterator_cf(kv->db, options, kv->cfs[cf]);
    rocksdb_iter_seek(iter, key, key_len);
    rocksdb_iter_get_error(iter, &text);
    rocksdb_iter_destroy(iter);
    rocksdb_readoptions_destroy(options);
    dctf_door_leave(&kv->door, lane);
    return text ? dctf_kv_take_error(text, "touch", false, NULL) : DCTF_OK;
}

/* The first key past all that start with `prefix`; 0 when there is none. */
static size_t past_prefix(const char *prefix, size_t len, char *out)
{
    memcpy(out, prefix, len);
    while (len > 0 && (unsigned char)out[len - 1] == 0xff)
        len--;
    if (len > 0)
        out[len - 1] = (char)((unsigned char)out[len - 1] + 1);
    return len;
}

enum dctf_err dctf_kv_iter_new(
    struct dctf_kv *kv, enum dctf_kv_cf cf, const void *prefix, size_t prefix_len, struct dctf_kv_iter **out)
{
    struct dctf_kv_iter *iter = calloc(1, sizeof(*iter) + 2 * prefix_len);
    char *bound;

    *out = NULL;
    if (!iter)
        return DCTF_ERR_NO_MEMORY;
    iter->kv = kv;
    iter->lane = dctf_door_enter(&kv->door);
    if (!kv->db) {
        dctf_door_leave(&kv->door, iter->lane);
        free(iter);
        return DCTF_ERR_CACHE_IO;
    }
    iter->options = rocksdb_readoptions_create();
    if (prefix_len) {
        iter->prefix_len = prefix_len;
        memcpy(iter->prefix_and_bound, prefix, prefix_len);
        bound = iter->prefix_and_bound + prefix_len;
        iter->bound_len = past_prefix(iter->prefix_and_bound, prefix_len, bound);
        if (iter->bound_len)
            rocksdb_readoptions_set_iterate_upper_bound(iter->options, bound, iter->bound_len);
    }
    iter->iter = rocksdb_create_iterator_cf(kv->db, iter->options, kv->cfs[cf]);
    rocksdb_iter_seek(iter->iter, iter->prefix_and_bound, iter->prefix_len);
    *out = iter;
    return DCTF_OK;
}

void dctf_kv_iter_free(struct dctf_kv_iter *iter)
{
    char *text = NULL;

    if (!iter)
        return;
    rocksdb_iter_get_error(iter->iter, &text);
    if (text)
        (void)dctf_kv_take_error(text, "iterate", false, NULL);
    rocksdb_iter_destroy(iter->iter);
    rocksdb_readoptions_destroy(iter->options);
    dctf_door_leave(&iter->kv->door, iter->lane);
    free(iter);
}

void dctf_kv_iter_seek(struct dctf_kv_iter *iter, const void *key, size_t key_len)
{
    size_t common = key_len < iter->prefix_len ? key_len : iter->prefix_len;
    int order = common ? memcmp(key, iter->prefix_and_bound, common) : 0;

    if (order < 0 || (order == 0 && key_len < iter->prefix_len))
        rocksdb_iter_seek(iter->iter, iter->prefix_and_bound, iter->prefix_len);
    else
        rocksdb_iter_seek(iter->iter, key, key_len);
}

bool dctf_kv_iter_valid(const struct dctf_kv_iter *iter)
{
    const char *key;
    size_t len;

    if (!rocksdb_iter_valid(iter->iter))
        return false;
    key = rocksdb_iter_key(iter->iter, &len);
    return len >= iter->prefix_len &&
           (!iter->prefix_len || !memcmp(key, iter->prefix_and_bound, iter->prefix_len));
}

void dctf_kv_iter_next(struct dctf_kv_iter *iter)
{
    rocksdb_iter_next(iter->iter);
}

enum dctf_err dctf_kv_iter_err(const struct dctf_kv_iter *iter)
{
    char *text = NULL;

    rocksdb_iter_get_error(iter->iter, &text);
    return text ? dctf_kv_take_error(text, "iterate", false, NULL) : DCTF_OK;
}

const char *dctf_kv_iter_key(const struct dctf_kv_iter *iter, size_t *len)
{
    return rocksdb_iter_key(iter->iter, len);
}

const char *dctf_kv_iter_value(const struct dctf_kv_iter *iter, size_t *len)
{
    return rocksdb_iter_value(iter->iter, len);
}

/* ---- writing ---- */

enum dctf_err dctf_kv_batch_new(struct dctf_kv_batch **out)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return DCTF_ERR_NO_MEMORY;
    (*out)->batch = rocksdb_writebatch_create();
    return DCTF_OK;
}

void dctf_kv_batch_free(struct dctf_kv_batch *batch)
{
    if (!batch)
        return;
    rocksdb_writebatch_destroy(batch->batch);
    free(batch);
}

/* A batch refers to column families by number, so it outlives a reopening. */
#define BATCH_ADD(batch_, kv_, call)                                                                         \
    do {                                                                                                     \
        unsigned lane_ = dctf_door_enter(&(kv_)->door);                                                      \
        if ((kv_)->db)                                                                                       \
            call;                                                                                            \
        else                                                                                                 \
            (batch_)->incomplete = true;                                                                     \
        dctf_door_leave(&(kv_)->door, lane_);                                                                \
    } while (0)

void dctf_kv_batch_put(struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key,
    size_t key_len, const void *value, size_t len)
{
    BATCH_ADD(batch, kv, rocksdb_writebatch_put_cf(batch->batch, kv->cfs[cf], key, key_len, value, len));
}

void dctf_kv_batch_delete(
    struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key, size_t key_len)
{
    BATCH_ADD(batch, kv, rocksdb_writebatch_delete_cf(batch->batch, kv->cfs[cf], key, key_len));
}

void dctf_kv_batch_delete_range(struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf,
    const void *from, size_t from_len, const void *to, size_t to_len)
{
    BATCH_ADD(
        batch, kv, rocksdb_writebatch_delete_range_cf(batch->batch, kv->cfs[cf], from, from_len, to, to_len));
}

void dctf_kv_batch_merge(struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key,
    size_t key_len, const void *operand, size_t len)
{
    BATCH_ADD(batch, kv, rocksdb_writebatch_merge_cf(batch->batch, kv->cfs[cf], key, key_len, operand, len));
}

void dctf_kv_batch_clear(struct dctf_kv_batch *batch)
{
    rocksdb_writebatch_clear(batch->batch);
    batch->incomplete = false;
}

static enum dctf_err write_inside(
    struct dctf_kv *kv, rocksdb_writebatch_t *batch, enum dctf_kv_durability durability)
{
    char *text = NULL;
    uint64_t cost;
    size_t len;

    if (!kv->db)
        return DCTF_ERR_CACHE_IO;
    (void)rocksdb_writebatch_data(batch, &len);
    cost = len + len / DCTF_KV_ROUNDING_SHARE + WRITE_SLACK;
    atomic_fetch_add(&kv->written, durability == DCTF_KV_LOGGED ? 2 * cost : cost);
    rocksdb_write(kv->db, durability == DCTF_KV_LOGGED ? kv->write_logged : kv->write_unlogged, batch, &text);
    return text ? dctf_kv_take_error(text, "write", false, NULL) : DCTF_OK;
}

enum dctf_err dctf_kv_write(
    struct dctf_kv *kv, struct dctf_kv_batch *batch, enum dctf_kv_durability durability)
{
    enum dctf_err err;
    unsigned lane;

    if (batch->incomplete)
        return DCTF_ERR_CACHE_IO;
    lane = dctf_door_enter(&kv->door);
    err = write_inside(kv, batch->batch, durability);
    dctf_door_leave(&kv->door, lane);
    return err;
}

/* ---- recovery ---- */

/* RocksDB stays read-only after a failed background write; a small logged write
 * tells whether it does. */
static enum dctf_err probe(struct dctf_kv *kv)
{
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    enum dctf_err err = DCTF_ERR_CACHE_IO;
    unsigned lane = dctf_door_enter(&kv->door);

    if (kv->db) {
        rocksdb_writebatch_put_cf(batch, kv->cfs[DCTF_KV_META], "probe", 5, "", 0);
        err = write_inside(kv, batch, DCTF_KV_LOGGED);
    }
    dctf_door_leave(&kv->door, lane);
    rocksdb_writebatch_destroy(batch);
    return err;
}

enum dctf_err dctf_kv_recover(struct dctf_kv *kv)
{
    enum dctf_err err;

    pthread_mutex_lock(&kv->recover_lock);
    err = probe(kv);
    if (err && dctf_door_close(&kv->door, DRAIN_MS)) {
        close_db(kv);
        err = open_db(kv, NULL);
        dctf_door_open(&kv->door);
        if (!err)
            err = probe(kv);
        dctf_log(DCTF_LOG_WARN, "kv", "err=%d op=reopen", (int)err);
    }
    pthread_mutex_unlock(&kv->recover_lock);
    dctf_kv_measure(kv);
    return err;
}
