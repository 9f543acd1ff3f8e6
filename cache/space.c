/* SPDX-License-Identifier: Apache-2.0
 *
 * The cap on bytes on disk, the reserves of the filesystem, and whether a write may
 * be kept.
 *
 * What counts against the cap is what lies on disk: blocks of shard files, directories,
 * and all of the database with its garbage. What may come on top of it before anybody
 * looks again is kept free: the output of a compaction of the index, and of collecting the
 * garbage of small shards. Evicting one of those gives nothing back until its blob file
 * is rewritten, and the old one goes after the new one is there.
 */
#include "base/log.h"
#include "base/metric.h"
#include "cache/admission.h"
#include "cache/kv.h"
#include "cache/state.h"

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)
#define KIB ((uint64_t)1 << 10)
#define HEADROOM_MIN (320 * KIB)
#define HEADROOM_MAX (64 * MIB)
#define SWING_MIN (320 * KIB)
#define COLLECT_SHARE 128u    /* of the bytes of small shards: room to collect garbage in */
#define EXTENT_MAP_SHARE 512u /* of the bytes of files: what the filesystem adds to map them */
#define SHARE_DEAD 16u        /* part of the cap that may be garbage of copies which made way for the share */
#define SHARE_DEAD_LEAST 256u /* part that is collected when the share has no other room */
#define COPIES_FIRST 4u       /* part of the cap for small copies while the share grows */
#define COPIES_LEAVE 8u       /* part of the cap that they leave */
#define COPIES_REFUSED_MIN ((uint64_t)64)
#define SPARE_FULL_MS 10000u /* what found no room is offered elsewhere for so long */
#define LOOK_MS 1000u
#define SMALL_OVERHEAD 128u /* of one shard's record in the database, beside its bytes */
#define BACKOFF_MS 1000u
#define ROUNDS_MAX 256u
#define FRUITLESS_MAX 8u
#define REFRESH_BYTES (64 * MIB)

void dctf_space_init(struct dctf_store *store)
{
    pthread_mutex_init(&store->space.lock, NULL);
    store->space.rng.state = dctf_rng_seed();
    store->space.limit = store->config.size_bytes;
}

void dctf_space_fini(struct dctf_store *store)
{
    pthread_mutex_destroy(&store->space.lock);
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t used_locked(const struct dctf_space *space, const struct dctf_kv_usage *db)
{
    return space->file_bytes + space->file_bytes / EXTENT_MAP_SHARE + space->dir_bytes + db->disk_bytes;
}

/* For what is small and not added up: the database's record of its files, its copy of its
 * options, the ends of its files, the input of a compaction that an iterator holds for a moment. */
static uint64_t headroom(uint64_t limit)
{
    return max(HEADROOM_MIN, limit / 256 < HEADROOM_MAX ? limit / 256 : HEADROOM_MAX);
}

/* The index is compacted when it wants; garbage is collected when there is any, a blob file at a
 * time if need be. */
static uint64_t spare_locked(const struct dctf_space *space, const struct dctf_kv_usage *db)
{
    return max(db->index_spare, db->small_spare + max(db->blob_file_max, space->small_bytes / COLLECT_SHARE));
}

/* Log, memtables and tables of the index come and go while nothing is kept or dropped. New shards
 * leave room for that: else each flood would cost some old ones. */
static uint64_t swing(uint64_t limit)
{
    return max(SWING_MIN, limit / 512 < HEADROOM_MAX ? limit / 512 : HEADROOM_MAX);
}

/* Bytes missing for `want` more; 0: it fits. */
static uint64_t deficit_locked(const struct dctf_space *space, const struct dctf_kv_usage *db, uint64_t want)
{
    uint64_t total = used_locked(space, db) + space->reserved + spare_locked(space, db) +
                     headroom(space->limit) + swing(space->limit) + want;

    return minus(total, space->limit);
}

static uint64_t reserve_of(const struct dctf_store *store, const struct dctf_layout_space *fs)
{
    if (store->config.reserve_bytes != UINT64_MAX)
        return store->config.reserve_bytes;
    return fs->total_bytes / 20 < GIB ? fs->total_bytes / 20 : GIB;
}

/* New files meanwhile are booked on top, so that none is missed. */
static void look_at_directories(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    uint64_t before, now;

    pthread_mutex_lock(&space->lock);
    before = space->dir_bytes;
    pthread_mutex_unlock(&space->lock);
    now = dctf_layout_dir_bytes(&store->layout);
    pthread_mutex_lock(&space->lock);
    space->dir_bytes = minus(space->dir_bytes + now, before);
    pthread_mutex_unlock(&space->lock);
}

static void look(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    uint64_t now = dctf_clock_mono_ms(NULL); /* the disk does not wait for a test's clock */
    uint64_t small_disk;
    bool due;

    pthread_mutex_lock(&space->lock);
    due = !space->looked_ms || now - space->looked_ms >= LOOK_MS;
    if (due)
        space->looked_ms = now;
    pthread_mutex_unlock(&space->lock);
    if (!due)
        return;
    dctf_kv_measure(store->kv);
    small_disk = dctf_kv_cf_bytes(store->kv, DCTF_KV_SMALL);
    look_at_directories(store);
    pthread_mutex_lock(&space->lock);
    space->small_dead = minus(small_disk, space->small_bytes + space->shards * SMALL_OVERHEAD);
    pthread_mutex_unlock(&space->lock);
}

void dctf_space_refresh(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    struct dctf_layout_space fs;
    bool known = !dctf_layout_space(&store->layout, &fs);
    struct dctf_kv_usage db;
    uint64_t room;

    look(store);
    pthread_mutex_lock(&space->lock);
    dctf_kv_usage(store->kv, &db);
    space->limit = store->config.size_bytes;
    if (known) {
        room = minus(used_locked(space, &db) + fs.free_bytes, reserve_of(store, &fs));
        if (room < space->limit)
            space->limit = room;
        space->inodes_low =
            fs.total_inodes && fs.free_inodes < fs.total_inodes / 100 * store->config.reserve_inodes_pct;
    }
    space->written = 0;
    dctf_metric_set(store->config.metrics, DCTF_METRIC_CACHE_BYTES_FILES, (int64_t)space->file_bytes);
    dctf_metric_set(
        store->config.metrics, DCTF_METRIC_CACHE_BYTES_INDEX, (int64_t)(db.disk_bytes + space->dir_bytes));
    dctf_metric_set(store->config.metrics, DCTF_METRIC_CACHE_LIMIT_BYTES, (int64_t)space->limit);
    pthread_mutex_unlock(&space->lock);
}

static uint64_t moved(uint64_t value, int64_t by)
{
    return by < 0 ? minus(value, (uint64_t)-by) : value + (uint64_t)by;
}

void dctf_space_book(struct dctf_store *store, int64_t file_bytes, int64_t small_bytes, int64_t shards)
{
    struct dctf_space *space = &store->space;

    pthread_mutex_lock(&space->lock);
    space->file_bytes = moved(space->file_bytes, file_bytes);
    space->small_bytes = moved(space->small_bytes, small_bytes);
    space->shards = moved(space->shards, shards);
    if (small_bytes < 0) {
        space->small_dead += (uint64_t)-small_bytes;
        space->small_evicted += (uint64_t)-small_bytes;
    }
    space->changed = true;
    pthread_mutex_unlock(&space->lock);
}

void dctf_space_book_new_file(struct dctf_store *store)
{
    pthread_mutex_lock(&store->space.lock);
    store->space.dir_bytes += DCTF_LAYOUT_DIR_GROWTH;
    pthread_mutex_unlock(&store->space.lock);
}

uint64_t dctf_space_index_bytes(struct dctf_store *store)
{
    struct dctf_kv_usage db;
    uint64_t bytes;

    pthread_mutex_lock(&store->space.lock);
    dctf_kv_usage(store->kv, &db);
    bytes = db.disk_bytes + store->space.dir_bytes;
    pthread_mutex_unlock(&store->space.lock);
    return bytes;
}

uint64_t dctf_space_dead(struct dctf_store *store)
{
    uint64_t dead;

    pthread_mutex_lock(&store->space.lock);
    dead = store->space.small_dead;
    pthread_mutex_unlock(&store->space.lock);
    return dead;
}

uint64_t dctf_space_dead_max(const struct dctf_store *store)
{
    uint64_t share = store->config.size_bytes / 64;

    return share < MIB ? MIB : share > GIB ? GIB : share;
}

uint64_t dctf_space_headroom(struct dctf_store *store)
{
    uint64_t bytes;

    pthread_mutex_lock(&store->space.lock);
    bytes = headroom(store->space.limit);
    pthread_mutex_unlock(&store->space.lock);
    return bytes;
}

uint64_t dctf_space_excess(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    struct dctf_kv_usage db;
    uint64_t excess;

    pthread_mutex_lock(&space->lock);
    dctf_kv_usage(store->kv, &db);
    excess = minus(deficit_locked(space, &db, 0), swing(space->limit));
    pthread_mutex_unlock(&space->lock);
    return excess;
}

uint64_t dctf_space_collect_room(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    struct dctf_kv_usage db;
    uint64_t room;

    pthread_mutex_lock(&space->lock);
    dctf_kv_usage(store->kv, &db);
    room = minus(space->limit, used_locked(space, &db) + space->reserved + db.small_spare);
    pthread_mutex_unlock(&space->lock);
    return minus(room, headroom(store->config.size_bytes));
}

/* ---- admission ---- */

enum answer {
    RESERVED,
    FULL,    /* somebody would have to go */
    REFUSED, /* nothing is kept at present */
};

/* With `want` 0 nothing is reserved: would one block fit? Room that is promised is for who was `admitted`. */
static enum answer try_reserve(
    struct dctf_store *store, struct dctf_shard *shard, uint64_t want, bool admitted, uint64_t *deficit)
{
    struct dctf_space *space = &store->space;
    bool new_file = shard->kind == DCTF_RECORD_FILE && !atomic_load(&shard->present_blocks);
    struct dctf_kv_usage db;
    enum answer answer;

    pthread_mutex_lock(&space->lock);
    dctf_kv_usage(store->kv, &db);
    *deficit = deficit_locked(space, &db,
        (want ? want : DCTF_BLOCK_BYTES) + (new_file ? DCTF_LAYOUT_DIR_GROWTH : 0) +
            (admitted ? 0 : space->promised));
    if (space->backoff_until_ms && dctf_clock_mono_ms(&store->clock) < space->backoff_until_ms) {
        answer = REFUSED;
    } else if (atomic_load(&store->counting_now)) {
        answer = REFUSED; /* a kill left the figures behind what is on disk */
    } else if ((new_file && space->inodes_low) || want > space->limit) {
        answer = REFUSED;
    } else if (*deficit) {
        answer = FULL;
    } else {
        answer = RESERVED;
        space->reserved += want;
    }
    pthread_mutex_unlock(&space->lock);
    return answer;
}

static enum dctf_shard_verdict verdict_of(struct dctf_shard *shard, enum dctf_claim claim)
{
    return (enum dctf_shard_verdict)atomic_load(&shard->verdict[claim]);
}

static void decide(struct dctf_shard *shard, enum dctf_claim claim, enum dctf_shard_verdict verdict)
{
    enum dctf_shard_verdict before =
        (enum dctf_shard_verdict)atomic_exchange(&shard->verdict[claim], (int)verdict);
    struct dctf_metrics *metrics = shard->store->config.metrics;

    if (verdict == DCTF_SHARD_BYPASSED && before != DCTF_SHARD_BYPASSED)
        dctf_metric_add(metrics, DCTF_METRIC_CACHE_BYPASSED, 1);
    else if (verdict != DCTF_SHARD_BYPASSED && before == DCTF_SHARD_UNDECIDED)
        dctf_metric_add(metrics, DCTF_METRIC_CACHE_ADMITTED, 1);
}

/* Where this node has a share and the write is part of it, or spare: copies make way without a question. */
static bool is_share(struct dctf_store *store, enum dctf_claim claim)
{
    return claim != DCTF_CLAIM_COPY && atomic_load(&store->share.is_set);
}

/* Garbage that may wait to be collected. For the share it may be more: while copies make way for it, each
 * pass should have much to collect. */
static uint64_t dead_max(struct dctf_store *store, enum dctf_claim claim)
{
    return is_share(store, claim) ? max(dctf_space_dead_max(store), store->config.size_bytes / SHARE_DEAD)
                                  : dctf_space_dead_max(store);
}

/* There is garbage enough: evicting more would help nobody before it is collected. */
static bool garbage_waits(struct dctf_store *store, enum dctf_claim claim)
{
    bool waits = dctf_space_dead(store) >= dead_max(store, claim);

    if (waits)
        atomic_store(&store->compact_due, true);
    return waits;
}

/* Nothing else is left to make way for the share, but a little garbage. */
static void collect_the_rest(struct dctf_store *store)
{
    if (dctf_space_dead(store) > store->config.size_bytes / SHARE_DEAD_LEAST)
        atomic_store(&store->compact_due, true);
}

static void promise(struct dctf_store *store, enum dctf_claim claim, uint64_t bytes)
{
    struct dctf_space *space = &store->space;
    uint64_t most = dead_max(store, claim);

    pthread_mutex_lock(&space->lock);
    if (space->promised < most)
        space->promised = space->promised + bytes < most ? space->promised + bytes : most;
    pthread_mutex_unlock(&space->lock);
}

/* Room was reserved that may have been promised; with `give_back` it is not to be used after all. */
static void settle_promise(struct dctf_store *store, uint64_t want, bool share, bool give_back)
{
    struct dctf_space *space = &store->space;

    pthread_mutex_lock(&space->lock);
    if (give_back)
        space->reserved = minus(space->reserved, want);
    else
        space->promised = minus(space->promised, want);
    if (share)
        space->copies_refused = 0;
    pthread_mutex_unlock(&space->lock);
}

/* Somebody made way before, and nobody has taken the room: it is this shard's if admission says so. */
static bool take_promised(
    struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t want)
{
    bool admitted = verdict_of(shard, claim) == DCTF_SHARD_ADMITTED;
    uint64_t need;

    if (shard->kind != DCTF_RECORD_SMALL || try_reserve(store, shard, want, true, &need) != RESERVED)
        return false;
    admitted = admitted || dctf_evict_would_admit(store, shard, claim);
    decide(shard, claim, admitted ? DCTF_SHARD_ADMITTED : DCTF_SHARD_BYPASSED);
    settle_promise(store, want, false, !admitted);
    return admitted;
}

/* Victims of small shards were evicted, and their bytes come back when garbage is collected, for the next
 * open, or the next write of the share. */
static void wait_for_garbage(
    struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t dead)
{
    promise(store, claim, dead);
    if (!is_share(store, claim))
        decide(shard, claim, DCTF_SHARD_BYPASSED);
    (void)garbage_waits(store, claim);
}

/* The cache is full: evict for this shard if admission says so. */
static bool make_way(
    struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t want, uint64_t need)
{
    uint64_t dead = 0;
    unsigned fruitless = 0;

    for (unsigned round = 0; round < ROUNDS_MAX && fruitless < FRUITLESS_MAX && dead < want; round++) {
        enum dctf_shard_verdict verdict = verdict_of(shard, claim);
        const struct dctf_evict_wish wish = {.newcomer = shard,
            .claim = claim,
            .admitted = verdict == DCTF_SHARD_ADMITTED,
            .lesser_only = verdict == DCTF_SHARD_BYPASSED,
            .need = need};
        struct dctf_evict_freed freed = dctf_evict_one(store, &wish);

        if (freed.bypass) {
            decide(shard, claim, DCTF_SHARD_BYPASSED);
            if (!is_share(store, claim))
                return false;
            collect_the_rest(store);
            break;
        }
        if (!freed.bytes && !freed.dead) {
            fruitless++;
            continue;
        }
        if (claim == DCTF_CLAIM_COPY || !freed.lesser)
            decide(shard, claim, DCTF_SHARD_ADMITTED);
        dead += freed.dead;
        if (try_reserve(store, shard, want, true, &need) == RESERVED)
            return true;
    }
    if (dead)
        wait_for_garbage(store, shard, claim, dead);
    return false;
}

static bool admit_full(
    struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t want, uint64_t need)
{
    if (is_share(store, claim)) /* whatever admission said: there may be copies */
        return !garbage_waits(store, claim) && make_way(store, shard, claim, want, need);
    if (verdict_of(shard, claim) == DCTF_SHARD_BYPASSED)
        return false;
    if (take_promised(store, shard, claim, want))
        return true;
    return verdict_of(shard, claim) != DCTF_SHARD_BYPASSED && !garbage_waits(store, claim) &&
           make_way(store, shard, claim, want, need);
}

/* A small shard that makes way gives nothing back before garbage is collected. So while the share grows,
 * readers' copies of small shards are kept in the first part of the cache only: their bytes lie in the oldest
 * files then, which are collected first and have little else. The share has stopped growing when more copies
 * were offered since than shards lie here; and then too some room is left for it, and for what is spare. */
static bool may_copy(struct dctf_store *store, struct dctf_shard *shard, uint64_t want)
{
    struct dctf_space *space = &store->space;
    struct dctf_kv_usage db;
    uint64_t used;
    bool may, settled;

    if (shard->kind != DCTF_RECORD_SMALL || atomic_load(&shard->expected))
        return true;
    pthread_mutex_lock(&space->lock);
    dctf_kv_usage(store->kv, &db);
    used = used_locked(space, &db) + space->reserved + want;
    settled = space->copies_refused > max(COPIES_REFUSED_MIN, space->shards);
    if (settled)
        space->copies_refused = UINT64_MAX; /* it stays so until the share grows */
    may = used <= space->limit / COPIES_FIRST ||
          (settled && used <= space->limit - space->limit / COPIES_LEAVE);
    if (!may && !settled)
        space->copies_refused++;
    pthread_mutex_unlock(&space->lock);
    return may;
}

static bool admit(struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t want)
{
    bool promised = is_share(store, claim); /* what made way for one of the share is for all of it */
    uint64_t need;

    if (claim == DCTF_CLAIM_COPY && !may_copy(store, shard, want))
        return false;
    switch (try_reserve(store, shard, want, promised, &need)) {
    case RESERVED:
        if (promised)
            settle_promise(store, want, true, false);
        if (verdict_of(shard, claim) != DCTF_SHARD_ADMITTED)
            decide(shard, claim, DCTF_SHARD_FITS);
        return true;
    case FULL:
        return admit_full(store, shard, claim, want, need);
    case REFUSED:
        break;
    }
    return false;
}

bool dctf_space_admit(
    struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t want)
{
    bool admitted = admit(store, shard, claim, want);

    if (claim == DCTF_CLAIM_SPARE)
        atomic_store(&store->spare_refused_ms, admitted ? 0 : dctf_clock_mono_ms(&store->clock));
    return admitted;
}

bool dctf_store_spare_is_full(struct dctf_store *store)
{
    uint64_t refused_ms = atomic_load(&store->spare_refused_ms);

    return refused_ms && dctf_clock_mono_ms(&store->clock) - refused_ms < SPARE_FULL_MS;
}

bool dctf_space_wants(struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim)
{
    enum dctf_shard_verdict verdict = verdict_of(shard, claim);
    uint64_t need;

    switch (try_reserve(store, shard, 0, is_share(store, claim), &need)) {
    case RESERVED:
        return true;
    case FULL:
        break;
    case REFUSED:
        return false;
    }
    if (is_share(store, claim)) /* copies make way without a verdict */
        return dctf_evict_would_admit(store, shard, claim);
    if (verdict != DCTF_SHARD_ADMITTED && verdict != DCTF_SHARD_BYPASSED) {
        verdict = dctf_evict_would_admit(store, shard, claim) ? DCTF_SHARD_ADMITTED : DCTF_SHARD_BYPASSED;
        decide(shard, claim, verdict);
    }
    return verdict == DCTF_SHARD_ADMITTED;
}

bool dctf_shard_wants(struct dctf_shard *shard)
{
    struct dctf_store *store = shard->store;
    uint32_t first = 0;

    while (first + 1 < shard->blocks && dctf_shard_is_present(shard, first))
        first++;
    return dctf_space_wants(store, shard, dctf_share_of(store, shard->version, shard->dataset, first, 1));
}

void dctf_space_settle(struct dctf_store *store, uint64_t reserved, uint64_t written)
{
    struct dctf_space *space = &store->space;
    bool refresh;

    pthread_mutex_lock(&space->lock);
    space->reserved = minus(space->reserved, reserved);
    space->written += written;
    refresh = space->written >= REFRESH_BYTES;
    if (refresh)
        space->written = 0;
    pthread_mutex_unlock(&space->lock);
    if (refresh)
        dctf_space_refresh(store);
}

/* ---- failures ---- */

bool dctf_space_make_room(struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim,
    uint64_t want, enum dctf_err err)
{
    uint64_t freed = 0;

    if (err != DCTF_ERR_CACHE_NO_SPACE)
        return false;
    for (unsigned round = 0; round < FRUITLESS_MAX && freed < want; round++)
        freed += dctf_evict_one(store,
            &(struct dctf_evict_wish){
                .newcomer = shard, .claim = claim, .admitted = true, .need = want - freed})
                     .bytes;
    if (atomic_load(&store->db_failed) && !dctf_kv_recover(store->kv))
        atomic_store(&store->db_failed, false);
    dctf_space_refresh(store);
    return freed > 0 && !atomic_load(&store->db_failed);
}

void dctf_space_give_up(struct dctf_store *store, enum dctf_err err)
{
    pthread_mutex_lock(&store->space.lock);
    store->space.backoff_until_ms = dctf_clock_mono_ms(&store->clock) + BACKOFF_MS;
    pthread_mutex_unlock(&store->space.lock);
    if (err == DCTF_ERR_CACHE_NO_SPACE)
        dctf_metric_add(store->config.metrics, DCTF_METRIC_CACHE_NO_SPACE, 1);
    dctf_metric_error(store->config.metrics, err);
    dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=not_kept pause_ms=%u", (int)err, BACKOFF_MS);
}
