/* SPDX-License-Identifier: Apache-2.0
 *
 * The way of one sub:
 *
 *   IDLE → FILL                          this node is the home, or nobody may be asked; when it is this node
 *     │                                  that does not get at the source, the others are asked (ASK)
 *     ├──→ the nearest node of this zone that should have a copy, when the home is in another (get_try.c)
 *     └──→ ASK ── ok, or final error ──→ DONE
 *           ├─ busy ──→ PAUSE ──→ (again)
 *           ├─ busy, and names others ──→ these, for what they have ──→ (again)
 *           ├─ slower than usual ──→ the second home as well, into a buffer of its own (hedge)
 *           └─ gone ──→ the next home that can be asked ── gone ──→ FILL
 *
 * It moves on when none of its two requests is out, so nobody writes to its buffer any more.
 */
#include "cluster/get_internal.h"

#include "base/budget.h"
#include "base/config.h"
#include "base/metric.h"

#include <assert.h>
#include <string.h>

#define HEDGE_FLOOR_US 50000u
#define HEDGE_DOUBTED_MS 10u /* it may be gone; what pings find out takes longer than what readers accept */
#define BUSY_MIN_MS 2u
#define BUSY_MAX_MS 2000u
#define START_ROUND_MS 50u

/* Give the second request's buffer and its place in the budget back; none is under way. */
static void end_hedge(struct dctf_sub *sub)
{
    struct dctf_cluster *cluster = sub->task->cluster;
    void *buf = sub->slots[1].own_buf;

    if (!buf)
        return;
    sub->slots[1].own_buf = NULL;
    dctf_budget_buf_put(cluster->config.budget, buf, sub->bytes);
    pthread_mutex_lock(&cluster->lock);
    dctf_hedge_end(&cluster->hedge);
    pthread_mutex_unlock(&cluster->lock);
}

/* Nothing of the sub is under way. Consumes the sub's reference. */
static void sub_done(struct dctf_sub *sub, enum dctf_err err)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;
    bool last;

    end_hedge(sub);
    pthread_mutex_lock(&cluster->lock);
    assert(sub->state != DCTF_SUB_DONE);
    sub->state = DCTF_SUB_DONE;
    if (err && !task->err)
        task->err = err;
    if (!err)
        dctf_hedge_earn(&cluster->hedge);
    task->running--;
    last = --task->left == 0;
    pthread_mutex_unlock(&cluster->lock);
    if (last)
        dctf_get_finish(task);
    else
        dctf_get_advance(task);
    dctf_get_unref(task);
}

void dctf_sub_stop(struct dctf_sub *sub)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;
    enum dctf_sub_state state;
    bool stop[DCTF_SUB_SLOTS];
    enum dctf_err err;

    pthread_mutex_lock(&cluster->lock);
    state = sub->state;
    err = task->err; /* from now on dctf_sub_go() begins nothing */
    for (unsigned i = 0; i < DCTF_SUB_SLOTS; i++)
        stop[i] = err || sub->decided || sub->slots[i].left;
    pthread_mutex_unlock(&cluster->lock);
    if (state == DCTF_SUB_ASK) {
        for (unsigned i = 0; i < DCTF_SUB_SLOTS; i++) {
            if (stop[i])
                dctf_peer_get_cancel(cluster->client, &sub->slots[i].get);
        }
    } else if (state == DCTF_SUB_FILL && err) {
        dctf_fill_cancel(&sub->fill, err);
    } else if (state == DCTF_SUB_PAUSE && err && dctf_timer_cancel(cluster->config.timers, &sub->timer)) {
        dctf_sub_go(sub);
        dctf_get_unref(task);
    }
}

static void hold(struct dctf_get_task *task)
{
    pthread_mutex_lock(&task->cluster->lock);
    task->refs++;
    pthread_mutex_unlock(&task->cluster->lock);
}

static void disarm(struct dctf_sub *sub)
{
    if (dctf_timer_cancel(sub->task->cluster->config.timers, &sub->timer))
        dctf_get_unref(sub->task);
}

/* --- this node fetches it itself --- */

static void fill_done(struct dctf_fill *fill, enum dctf_err err)
{
    struct dctf_sub *sub = fill->ctx;
    struct dctf_cluster *cluster = sub->task->cluster;
    bool others = dctf_cluster_is_of_one_node(err);

    if (others) {
        pthread_mutex_lock(&cluster->lock);
        sub->own_err = err;
        pthread_mutex_unlock(&cluster->lock);
        dctf_sub_go(sub);
    } else {
        sub_done(sub, err);
    }
}

static void sub_fill(struct dctf_sub *sub)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;
    bool gone;

    pthread_mutex_lock(&cluster->lock);
    sub->fill = (struct dctf_fill){
        .cluster = cluster,
        .version = task->version,
        .first = sub->first,
        .count = sub->count,
        .want_first = sub->want_first,
        .want_count = sub->want_count,
        .class = task->class,
        .buf = sub->buf,
        .done = fill_done,
        .ctx = sub,
    };
    sub->state = DCTF_SUB_FILL;
    gone = sub->slots[0].peer != NULL; /* those that were asked */
    cluster->counts.fills_local += gone;
    task->refs++;
    pthread_mutex_unlock(&cluster->lock);
    dctf_metric_add(cluster->config.metrics, DCTF_METRIC_CLUSTER_FILLS, gone);
    dctf_fill_start(&sub->fill);
    dctf_sub_stop(sub);
    dctf_get_unref(task);
}

/* --- asking peers --- */

static uint64_t time_left_ms(const struct dctf_get_task *task)
{
    uint64_t spent = dctf_cluster_now_ms(task->cluster) - task->begun_ms;

    return spent < task->cluster->read_deadline_ms ? task->cluster->read_deadline_ms - spent : 0;
}

/* The first of the homes that can be asked and was not yet. NULL: none, or this node itself comes
 * before, unless it was in vain that it tried. */
static struct dctf_peer *candidate_locked(struct dctf_sub *sub)
{
    struct dctf_cluster *cluster = sub->task->cluster;
    uint32_t ranks[DCTF_RANKS];
    size_t count = dctf_view_rank(cluster->view, sub->extent_key, ranks, DCTF_RANKS);

    for (size_t i = 0; i < count; i++) {
        struct dctf_peer *peer;

        if (ranks[i] == dctf_view_self(cluster->view)) {
            if (!sub->own_err)
                return NULL;
            continue;
        }
        peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, ranks[i]));
        if (peer && dctf_peer_usable_locked(peer) && !dctf_sub_was_asked_locked(sub, peer))
            return peer;
    }
    return NULL;
}

static uint64_t hedge_after_ms_locked(const struct dctf_cluster *cluster, struct dctf_peer *peer)
{
    uint64_t after_us = dctf_hedge_after_us(dctf_quantile_ns(&peer->first_byte, 500) / 1000,
        dctf_quantile_ns(&peer->first_byte, 990) / 1000, HEDGE_FLOOR_US);

    return dctf_peer_doubted_locked(cluster, peer) ? HEDGE_DOUBTED_MS : after_us / 1000;
}

static void pause_sub(struct dctf_sub *sub, uint64_t ms);
static void timer_fired(void *ctx);

/* Arm the sub's timer, with a reference. */
static bool arm(struct dctf_sub *sub, uint64_t ms)
{
    struct dctf_get_task *task = sub->task;

    hold(task);
    if (!dctf_timer_arm(task->cluster->config.timers, &sub->timer, ms, timer_fired, sub))
        return true;
    dctf_get_unref(task);
    return false;
}

static void slot_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer);

/* Fill in a slot for `peer`, asked for all (hop 1) or for what it has (0); it is out from now on. */
static void take_slot_locked(
    struct dctf_sub *sub, struct dctf_slot *slot, struct dctf_peer *peer, unsigned hop)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;

    slot->sub = sub;
    slot->peer = peer;
    slot->out = true;
    slot->sent_ms = dctf_cluster_now_ms(cluster);
    slot->left = false;
    memcpy(slot->addr, peer->addr, sizeof(slot->addr));
    slot->get = (struct dctf_peer_get){
        .addr = slot->addr,
        .ask = {.op = DCTF_PEER_BLOCKS,
            .dataset = cluster->config.dataset,
            .size = task->version->size,
            .first = sub->first,
            .count = sub->count,
            .want_first = sub->want_first,
            .want_count = sub->want_count},
        .buf = slot->own_buf ? slot->own_buf : sub->buf,
        .class = task->class,
        .hop = hop,
        .tried = sub->tried,
        .view = dctf_view_hash(cluster->view),
        .silence_ms = cluster->config.options->stall_timeout_max_ms,
        .done = slot_done,
        .ctx = slot,
    };
    strcpy(slot->get.ask.key, task->version->key);
    strcpy(slot->get.ask.etag, task->version->etag);
    if (task->class == DCTF_FETCH_DEMAND)
        dctf_gate_demand_begin(&peer->gate);
}

static void send_slot(struct dctf_slot *slot)
{
    static const struct dctf_peer_answer none = {0};
    struct dctf_sub *sub = slot->sub;
    struct dctf_get_task *task = sub->task;
    enum dctf_err err;

    hold(task);
    slot->get.deadline_ms = time_left_ms(task);
    err = slot->get.deadline_ms ? dctf_peer_get_start(task->cluster->client, &slot->get) : DCTF_ERR_DEADLINE;
    if (err)
        slot_done(&slot->get, err, &none);
    else
        dctf_sub_stop(sub);
    dctf_get_unref(task);
}

/* The home has not answered since this node began, and may be starting just as well: to take it for dead
 * would have the second home fetch what it will fetch itself. */
static bool is_starting_locked(struct dctf_sub *sub)
{
    struct dctf_cluster *cluster = sub->task->cluster;
    struct dctf_peer *peer;
    uint32_t home;

    if (!dctf_cluster_is_young(cluster) || !dctf_view_rank(cluster->view, sub->extent_key, &home, 1) ||
        home == dctf_view_self(cluster->view))
        return false;
    peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, home));
    return peer && !peer->heard;
}

void dctf_sub_go(struct dctf_sub *sub)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;
    struct dctf_slot *slot = NULL;
    struct dctf_peer *peer = NULL;
    uint64_t hedge_ms = 0;
    bool named = false;
    enum dctf_err err, own_err;
    bool wait;

    pthread_mutex_lock(&cluster->lock);
    err = task->err ? task->err : cluster->closing ? DCTF_ERR_SHUTTING_DOWN : DCTF_OK;
    wait = !err && is_starting_locked(sub);
    if (!err && !wait) {
        dctf_sub_take_copy_locked(sub);
        peer = dctf_sub_named_locked(sub);
        named = peer;
        peer = peer ? peer : candidate_locked(sub);
        if (!peer && !sub->own_err && dctf_cluster_source_is_off_locked(cluster)) {
            sub->own_err = cluster->source_err;
            sub->assumed = true;
            peer = candidate_locked(sub);
        }
    }
    for (unsigned i = 0; peer && i < DCTF_SUB_SLOTS && !slot; i++) {
        if (!sub->slots[i].peer)
            slot = &sub->slots[i];
    }
    if (slot) {
        sub->state = DCTF_SUB_ASK;
        take_slot_locked(sub, slot, peer, named ? 0 : 1);
        if (slot != &sub->slots[0]) {
            cluster->counts.failovers++;
            dctf_metric_add(cluster->config.metrics, DCTF_METRIC_CLUSTER_FAILOVERS, 1);
        }
        if (task->class == DCTF_FETCH_DEMAND && cluster->config.options->hedge)
            hedge_ms = hedge_after_ms_locked(cluster, peer);
    } else if (sub->assumed) {
        sub->assumed = false;
        sub->own_err = DCTF_OK;
    }
    own_err = sub->own_err;
    pthread_mutex_unlock(&cluster->lock);
    if (err)
        sub_done(sub, err);
    else if (wait)
        pause_sub(sub, START_ROUND_MS);
    else if (!slot && own_err)
        sub_done(sub, own_err);
    else if (!slot)
        sub_fill(sub);
    else {
        if (hedge_ms)
            (void)arm(sub, hedge_ms); /* without memory there is no hedge */
        send_slot(slot);
    }
}

/* --- answers --- */

/* No other node would say otherwise; or the source failed the home as it would fail us, and the scheduler
 * above us tries again. What is the trouble of one node is not final. */
static bool is_final(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
    case DCTF_ERR_NOT_FOUND:
    case DCTF_ERR_VERSION_MISMATCH:
    case DCTF_ERR_ORIGIN_ACCESS:
    case DCTF_ERR_ORIGIN_IO:
    case DCTF_ERR_ORIGIN_THROTTLED:
    case DCTF_ERR_ORIGIN_REGION:
    case DCTF_ERR_BUCKET_NOT_FOUND:
        return true;
    default:
        return false;
    }
}

/* All may be asked again, and there may be another hedge; nothing is out. */
static void begin_anew(struct dctf_sub *sub)
{
    struct dctf_cluster *cluster = sub->task->cluster;

    end_hedge(sub);
    pthread_mutex_lock(&cluster->lock);
    for (unsigned i = 0; i < DCTF_SUB_SLOTS; i++)
        sub->slots[i].peer = NULL;
    pthread_mutex_unlock(&cluster->lock);
}

static void pause_sub(struct dctf_sub *sub, uint64_t ms)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;

    begin_anew(sub);
    ms = ms < BUSY_MIN_MS ? BUSY_MIN_MS : ms > BUSY_MAX_MS ? BUSY_MAX_MS : ms;
    pthread_mutex_lock(&cluster->lock);
    ms = ms / 2 + dctf_rng_below(&cluster->rng, ms); /* not all of them at the same time */
    sub->state = DCTF_SUB_PAUSE;
    task->refs++;
    pthread_mutex_unlock(&cluster->lock);
    if (time_left_ms(task) <= ms)
        sub_done(sub, DCTF_ERR_DEADLINE);
    else if (!arm(sub, ms))
        sub_done(sub, DCTF_ERR_NO_MEMORY);
    else
        dctf_sub_stop(sub);
    dctf_get_unref(task);
}

static void account_locked(struct dctf_slot *slot, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct dctf_get_task *task = slot->sub->task;
    struct dctf_cluster *cluster = task->cluster;

    dctf_peer_account_locked(cluster, slot->peer, task->class, err, answer);
    if (task->class == DCTF_FETCH_DEMAND)
        dctf_gate_demand_end(
            &slot->peer->gate, err ? 0 : answer->first_byte_us, dctf_cluster_now_ms(cluster));
    if (err)
        return;
    if (answer->decode_ns) /* what is sent to the peer is taken to be decoded as fast there */
        dctf_encoder_decoded(&slot->peer->encoder, slot->sub->bytes, answer->decode_ns);
    if (answer->spare == DCTF_PEER_SPARE_KEEP)
        dctf_spare_adopt(
            &cluster->spare, slot->sub->extent_key, dctf_spare_pieces(slot->sub->first, slot->sub->count));
    if (answer->view && answer->view != dctf_view_hash(cluster->view))
        cluster->view_differs = true;
}

/* Every request of the sub is over. */
static void move_on(struct dctf_sub *sub, enum dctf_err last, uint64_t retry_ms)
{
    disarm(sub);
    if (sub->decided && !sub->verdict && sub->winner->own_buf)
        memcpy(sub->buf, sub->winner->own_buf, sub->bytes);
    if (sub->decided) {
        sub_done(sub, sub->verdict);
    } else if (last == DCTF_ERR_PEER_BUSY) {
        pause_sub(sub, retry_ms);
    } else {
        if (last == DCTF_ERR_PEER_ABSENT)
            begin_anew(sub);
        dctf_sub_go(sub);
    }
}

static void slot_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct dctf_slot *slot = (struct dctf_slot *)get;
    struct dctf_sub *sub = slot->sub;
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;
    struct dctf_slot *other = &sub->slots[slot == &sub->slots[0]];
    bool other_out, decided_now, refresh;

    pthread_mutex_lock(&cluster->lock);
    slot->out = false;
    account_locked(slot, err, answer);
    decided_now = !sub->decided && is_final(err);
    if (decided_now) {
        sub->decided = true;
        sub->verdict = err;
        sub->winner = slot;
        cluster->counts.hedges_won += !err && slot->own_buf;
    }
    if (slot->own_buf)
        dctf_metric_add(cluster->config.metrics,
            decided_now && !err ? DCTF_METRIC_CLUSTER_HEDGES_WON : DCTF_METRIC_CLUSTER_HEDGES_LOST, 1);
    if (!sub->decided && err == DCTF_ERR_PEER_BUSY && slot->get.hop && !sub->tried && *answer->try)
        dctf_sub_take_names_locked(sub, answer->try);
    if (!slot->get.hop)
        dctf_metric_add(
            cluster->config.metrics, err ? DCTF_METRIC_CLUSTER_TRIES_MISS : DCTF_METRIC_CLUSTER_TRIES_HIT, 1);
    /* Who was named and has nothing, and who named others, is no reason to wait. */
    if (!sub->decided && (!slot->get.hop || dctf_sub_has_named_locked(sub)))
        err = DCTF_ERR_PEER_ABSENT;
    other_out = other->out;
    refresh = cluster->view_differs;
    cluster->view_differs = false;
    task->refs++;
    pthread_mutex_unlock(&cluster->lock);
    if (refresh)
        dctf_members_refresh(cluster->members);
    if (!other_out)
        move_on(sub, err, answer->retry_ms);
    else if (decided_now)
        dctf_sub_stop(sub); /* the other's end comes here as well */
    dctf_get_unref(task);
}

/* --- timers --- */

/* The first home is slower than it usually is. */
static void hedge(struct dctf_sub *sub)
{
    struct dctf_get_task *task = sub->task;
    struct dctf_cluster *cluster = task->cluster;
    struct dctf_slot *first = &sub->slots[0], *second = &sub->slots[1];
    struct dctf_peer *slow = NULL, *peer;
    void *buf = dctf_budget_buf_get(cluster->config.budget, sub->bytes);
    bool go = false;

    pthread_mutex_lock(&cluster->lock);
    if (first->out && !second->peer && !sub->decided && !task->err && !cluster->closing) {
        slow = first->peer;
        peer = buf ? candidate_locked(sub) : NULL;
        go = peer && dctf_hedge_take(&cluster->hedge);
        if (go) {
            second->own_buf = buf;
            take_slot_locked(sub, second, peer, 1);
            cluster->counts.hedges++;
        }
    }
    pthread_mutex_unlock(&cluster->lock);
    if (go)
        send_slot(second);
    else if (buf)
        dctf_budget_buf_put(cluster->config.budget, buf, sub->bytes);
    if (slow)
        dctf_peer_suspect(cluster, slow);
}

static void timer_fired(void *ctx)
{
    struct dctf_sub *sub = ctx;
    struct dctf_get_task *task = sub->task;
    enum dctf_sub_state state;

    pthread_mutex_lock(&task->cluster->lock);
    state = sub->state;
    pthread_mutex_unlock(&task->cluster->lock);
    if (state == DCTF_SUB_ASK)
        hedge(sub);
    else if (state == DCTF_SUB_PAUSE)
        dctf_sub_go(sub);
    dctf_get_unref(task);
}
