/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings that the nodes of a cluster share: who is asked, what is told, how it ends.
 */
#include "listings_fixture.h"

#include "cluster/listings_page.h"

/* --- asking --- */

struct asking {
    struct dctf_cluster_list list; /* first */
    pthread_mutex_t lock;
    pthread_cond_t over;
    unsigned entries, ended; /* guarded by lock, as what follows */
    enum dctf_err err;
    uint64_t age_ms;
    char dir[32];
    char last[32];
};

static enum dctf_err asking_add(struct dctf_cluster_list *list, const struct dctf_entry *entry)
{
    struct asking *asking = (struct asking *)list;

    pthread_mutex_lock(&asking->lock);
    assert_true(strcmp(asking->last, entry->name) < 0);
    snprintf(asking->last, sizeof(asking->last), "%s", entry->name);
    assert_true(!entry->is_dir && entry->size == ENTRY_BYTES && entry->mtime_ns == 5);
    assert_string_equal(entry->etag, "e");
    asking->entries++;
    pthread_mutex_unlock(&asking->lock);
    return DCTF_OK;
}

static void asking_done(struct dctf_cluster_list *list, enum dctf_err err, uint64_t age_ms)
{
    struct asking *asking = (struct asking *)list;

    pthread_mutex_lock(&asking->lock);
    asking->ended++;
    asking->err = err;
    asking->age_ms = age_ms;
    pthread_cond_broadcast(&asking->over);
    pthread_mutex_unlock(&asking->lock);
}

static struct asking *ask_begin(
    struct core *core, unsigned node, const char *dir, struct dctf_cluster_list list)
{
    struct asking *asking = calloc(1, sizeof(*asking));
    enum dctf_err err;

    assert_non_null(asking);
    pthread_mutex_init(&asking->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&asking->over), DCTF_OK);
    snprintf(asking->dir, sizeof(asking->dir), "%s", dir);
    asking->list = list;
    asking->list.dir = asking->dir;
    asking->list.add = asking_add;
    asking->list.done = asking_done;
    err = dctf_cluster_list(core->nodes[node].cluster, &asking->list);
    if (err)
        asking_done(&asking->list, err, 0);
    return asking;
}

static struct asking *ask_start(struct core *core, unsigned node, const char *dir, uint64_t max_age_ms)
{
    return ask_begin(core, node, dir, (struct dctf_cluster_list){.max_age_ms = max_age_ms});
}

/* The source failed this node. */
static struct asking *ask_others_start(
    struct core *core, unsigned node, const char *dir, uint64_t deadline_ms)
{
    return ask_begin(core, node, dir,
        (struct dctf_cluster_list){.max_age_ms = 60000, .others = true, .deadline_ms = deadline_ms});
}

static bool asking_has_ended(struct asking *asking)
{
    bool ended;

    pthread_mutex_lock(&asking->lock);
    ended = asking->ended != 0;
    pthread_mutex_unlock(&asking->lock);
    return ended;
}

/* Ends the asking. */
static enum dctf_err ask_wait(struct asking *asking, unsigned *entries, uint64_t *age_ms)
{
    struct timespec due = in_ms(FOREVER_MS);
    enum dctf_err err;
    int rc = 0;

    pthread_mutex_lock(&asking->lock);
    while (!asking->ended && !rc)
        rc = pthread_cond_timedwait(&asking->over, &asking->lock, &due);
    assert_int_equal(asking->ended, 1);
    err = asking->err;
    if (entries)
        *entries = asking->entries;
    if (age_ms)
        *age_ms = asking->age_ms;
    pthread_mutex_unlock(&asking->lock);
    pthread_cond_destroy(&asking->over);
    pthread_mutex_destroy(&asking->lock);
    free(asking);
    return err;
}

static enum dctf_err ask(struct core *core, unsigned node, const char *dir, uint64_t max_age_ms)
{
    return ask_wait(ask_start(core, node, dir, max_age_ms), NULL, NULL);
}

/* --- homes that hold who asks --- */

/* Node 0 asks node 1 for a directory that is to be read now, and is held there. */
static struct asking *ask_and_be_held(struct core *core, char *dir)
{
    struct asking *asking;

    name_dir(core, 1, ANY, dir);
    set_host(1, hold, true);
    asking = ask_start(core, 0, dir, 0);
    wait_until(is_held(&hosts[1]));
    return asking;
}

/* The same with a peer at its place, whose answers the test decides. */
static unsigned held_at(struct place *place)
{
    unsigned count;

    pthread_mutex_lock(&place->lock);
    count = place->held_count;
    pthread_mutex_unlock(&place->lock);
    return count;
}

static struct asking *ask_a_peer(struct core *core, char *dir)
{
    struct asking *asking;

    name_dir(core, 1, 2, dir);
    peer_hold(&core->places[1], true);
    asking = ask_start(core, 0, dir, 60000);
    wait_until(held_at(&core->places[1]));
    return asking;
}

static void reply_with(struct place *place, const void *data, size_t len)
{
    const struct dctf_peer_origin origin = {.from = DCTF_PEER_FROM_CACHE};
    uint64_t sum = dctf_hash64(data, len);
    struct dctf_peer_request *request = NULL;
    void *copy = malloc(len);

    pthread_mutex_lock(&place->lock);
    if (place->held_count)
        request = place->held[--place->held_count].request;
    pthread_mutex_unlock(&place->lock);
    assert_true(request && copy);
    memcpy(copy, data, len);
    dctf_peer_reply_memory(request, copy, len, false, &sum, &origin, free, copy);
}

/* Answer with a page that is not the last, of one file. */
static void reply_page(struct place *place, const char *name, uint64_t generation, uint64_t entries)
{
    uint8_t page[DCTF_LISTINGS_PAGE_HEAD + DCTF_LISTINGS_PAGE_ENTRY_MAX];
    const struct dctf_listings_page_head head = {.generation = generation, .entries = entries};
    const struct dctf_entry entry = {.name = name, .size = ENTRY_BYTES, .mtime_ns = 5, .etag = "e"};
    struct dctf_listings_page_writer writer;

    dctf_listings_page_begin(&writer, page, sizeof(page));
    assert_true(dctf_listings_page_add(&writer, &entry));
    reply_with(place, page, dctf_listings_page_end(&writer, &head));
}

/* --- tests --- */

static void test_home_lists_once_for_all(void **state)
{
    struct core *core = open_all("nnn", 10);
    unsigned entries;
    char dir[32];

    (void)state;
    name_dir(core, 1, ANY, dir);
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < NODES; i += 2) {
            assert_int_equal(ask_wait(ask_start(core, i, dir, 60000), &entries, NULL), DCTF_OK);
            assert_int_equal(entries, 10);
        }
    }
    assert_int_equal(count_of(&hosts[1], &hosts[1].listed), 1);
    assert_int_equal(ask(core, 1, dir, 60000), DCTF_ERR_PEER_ABSENT); /* it asks the source itself */
    assert_int_equal(count_of(&hosts[0], &hosts[0].listed) + count_of(&hosts[2], &hosts[2].listed), 0);
    close_all(core);
}

static void test_large_and_empty_directories(void **state)
{
    struct core *core = open_all("nnn", 8000); /* several pages */
    unsigned entries;
    char dir[32];

    (void)state;
    name_dir(core, 1, ANY, dir);
    assert_int_equal(ask_wait(ask_start(core, 0, dir, 60000), &entries, NULL), DCTF_OK);
    assert_int_equal(entries, 8000);
    set_host(2, entries, 0);
    name_dir(core, 2, ANY, dir);
    assert_int_equal(ask_wait(ask_start(core, 0, dir, 60000), &entries, NULL), DCTF_OK);
    assert_int_equal(entries, 0);
    close_all(core);
}

/* Who lists for all but does not get at the source asks another, which does; but not one that was of no help.
 */
static void test_home_that_asks_others(void **state)
{
    struct core *core = open_all("nnn", 10);
    struct asking *asking;
    unsigned entries;
    char dir[32];

    (void)state;
    name_dir(core, 0, 1, dir);
    assert_int_equal(ask(core, 0, dir, 60000), DCTF_ERR_PEER_ABSENT);
    set_host(1, hold, true);
    asking = ask_others_start(core, 0, dir, 0);
    wait_until(is_held(&hosts[1]));
    host_release(&hosts[1], DCTF_ERR_ORIGIN_UNREACHABLE);
    assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_ERR_ORIGIN_UNREACHABLE);
    assert_int_equal(ask_wait(ask_others_start(core, 0, dir, 0), &entries, NULL), DCTF_OK);
    assert_int_equal(entries, 10);
    assert_int_equal(count_of(&hosts[2], &hosts[2].listed), 1);
    close_all(core);
}

/* A peer that goes on saying that it reads is not waited for longer than that. */
static void test_ask_others_within_a_time(void **state)
{
    struct core *core = open_all("nnn", 10);
    char dir[32];

    (void)state;
    name_dir(core, 0, 1, dir);
    set_host(1, hold, true);
    assert_int_equal(ask_wait(ask_others_start(core, 0, dir, 1000), NULL, NULL), DCTF_ERR_DEADLINE);
    host_release(&hosts[1], DCTF_OK);
    close_all(core);
}

static void test_times_to_live_do_not_add_up(void **state)
{
    struct core *core = open_all("nnn", 3);
    uint64_t age_ms;
    char dir[32];

    (void)state;
    name_dir(core, 1, ANY, dir);
    set_host(1, age_ms, 5000);
    assert_int_equal(ask_wait(ask_start(core, 0, dir, 600000), NULL, &age_ms), DCTF_OK);
    assert_true(age_ms >= 5000 && age_ms < 5000 + FOREVER_MS);
    /* Too old for who wants a newer one; it is not for who has more patience. */
    set_host(1, age_ms, 0);
    assert_int_equal(ask_wait(ask_start(core, 2, dir, 4000), NULL, &age_ms), DCTF_OK);
    assert_true(age_ms < 4000 + FOREVER_MS);
    assert_int_equal(count_of(&hosts[1], &hosts[1].listed), 2);
    assert_int_equal(ask(core, 0, dir, UINT64_MAX), DCTF_OK);
    assert_int_equal(count_of(&hosts[1], &hosts[1].listed), 2);
    /* Whoever tells of an older one than was asked for is not believed. */
    set_host(1, age_ms, 60000);
    assert_int_equal(dctf_listing_drop(dctf_store_listings(core->nodes[1].store), dir), DCTF_OK);
    assert_int_equal(ask(core, 0, dir, 4000), DCTF_ERR_BAD_RESPONSE);
    close_all(core);
}

static void test_wait_while_the_home_reads(void **state)
{
    struct core *core = open_all("nnn", 5);
    struct asking *first, *second;
    unsigned listed;
    char dir[32];

    (void)state;
    first = ask_and_be_held(core, dir);
    host_release(&hosts[1], DCTF_OK);
    listed = count_of(&hosts[1], &hosts[1].listed); /* more than once, if this took long */
    second = ask_start(core, 2, dir, 60000);
    assert_int_equal(ask_wait(first, NULL, NULL), DCTF_OK);
    assert_int_equal(ask_wait(second, NULL, NULL), DCTF_OK);
    assert_int_equal(count_of(&hosts[1], &hosts[1].listed), listed);
    close_all(core);
}

static void test_source_that_is_silent_at_the_home(void **state)
{
    struct core *core = open_all("nnn", 5);
    char dir[32];

    (void)state;
    name_dir(core, 1, ANY, dir);
    set_host(1, hold, true);
    set_host(1, course, DCTF_LISTING_SILENT);
    assert_int_equal(ask(core, 0, dir, 60000), DCTF_ERR_DEADLINE);
    host_release(&hosts[1], DCTF_ERR_DEADLINE);
    close_all(core);
}

/* The listing ends just when the asker has been held for long enough: it comes again, and finds it. */
static void test_listing_that_ends_as_it_is_told_to_come_again(void **state)
{
    struct core *core = open_all("nnn", 5);
    struct asking *asking;
    char dir[32];

    (void)state;
    set_host(1, course, DCTF_LISTING_IDLE);
    asking = ask_and_be_held(core, dir);
    set_host(1, hold, false); /* whoever comes again is answered */
    assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_OK);
    host_release(&hosts[1], DCTF_OK);
    close_all(core);
}

static void test_source_that_fails_at_the_home(void **state)
{
    struct core *core = open_all("nnn", 5);
    char dir[32];
    struct asking *asking = ask_and_be_held(core, dir);

    (void)state;
    host_release(&hosts[1], DCTF_ERR_ORIGIN_ACCESS);
    assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_ERR_ORIGIN_ACCESS);
    close_all(core);
}

static void test_home_that_is_silent(void **state)
{
    struct core *core = open_all("npn", 5);
    char dir[32];

    (void)state;
    name_dir(core, 1, 2, dir);
    relay_freeze(&core->places[1], true);
    assert_int_not_equal(ask(core, 0, dir, 60000), DCTF_OK);
    /* Then the next in rank is asked. */
    assert_int_equal(ask(core, 0, dir, 60000), DCTF_OK);
    assert_int_equal(count_of(&hosts[2], &hosts[2].listed), 1);
    assert_int_not_equal(ask(core, 2, dir, 60000), DCTF_OK); /* it comes next itself */
    relay_freeze(&core->places[1], false);
    close_all(core);
}

/* Pages of another generation, out of order, or of nonsense: the source is asked, and the peer left alone. */
static void test_answers_that_are_malformed(void **state)
{
    static const char nonsense[] = "this is no page, but its sum is right";
    enum { AT_ONCE, OUT_OF_ORDER, OF_ANOTHER, AFTER_A_PAGE, KINDS };

    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct core *core = open_all("npn", 5);
        struct place *peer = &core->places[1];
        char dir[32];
        struct asking *asking = ask_a_peer(core, dir);

        if (kind != AT_ONCE) {
            reply_page(peer, "b", 7, 2);
            wait_until(held_at(peer));
        }
        if (kind == OUT_OF_ORDER)
            reply_page(peer, "a", 7, 2);
        else if (kind == OF_ANOTHER)
            reply_page(peer, "c", 8, 2);
        else
            reply_with(peer, nonsense, sizeof(nonsense));
        assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_ERR_BAD_RESPONSE);
        assert_int_equal(ask(core, 0, dir, 60000), DCTF_OK); /* of the next in rank */
        close_all(core);
    }
}

/* More entries than were told are not taken: a peer cannot fill the disk. */
static void test_more_entries_than_told(void **state)
{
    struct core *core = open_all("npn", 5);
    char dir[32];
    struct asking *asking = ask_a_peer(core, dir);

    (void)state;
    reply_page(&core->places[1], "b", 7, UINT64_MAX);
    assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_ERR_BAD_RESPONSE);
    close_all(core);
}

static void test_generation_that_is_gone(void **state)
{
    struct core *core = open_all("npn", 5);
    char dir[32];
    struct asking *asking = ask_a_peer(core, dir);

    (void)state;
    reply_page(&core->places[1], "b", 7, 2);
    wait_until(held_at(&core->places[1]));
    assert_int_equal(core->places[1].held[0].ask.generation, 7);
    assert_string_equal(core->places[1].held[0].ask.after, "b");
    peer_answer(&core->places[1], DCTF_ERR_PEER_ABSENT);
    assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_ERR_PEER_ABSENT);
    close_all(core);
}

static void test_home_that_is_busy(void **state)
{
    struct core *core = open_all("npn", 5);
    struct asking *asking;
    char dir[32];

    (void)state;
    name_dir(core, 1, ANY, dir);
    peer_busy(&core->places[1], 2, 1);
    peer_hold(&core->places[1], false);
    asking = ask_start(core, 0, dir, 60000);
    wait_until(peer_asked(&core->places[1]) >= 3); /* it comes again */
    assert_int_not_equal(ask_wait(asking, NULL, NULL), DCTF_OK);
    close_all(core);
}

static void test_cancel_wherever_it_is(void **state)
{
    struct core *core = open_all("nnn", 2000);
    char dir[32];

    (void)state;
    name_dir(core, 1, ANY, dir);
    for (unsigned i = 0; i < 50; i++) {
        struct asking *asking = ask_start(core, 0, dir, i % 3 ? 60000 : 0);

        if (i % 2)
            (void)poll(NULL, 0, (int)(i % 5));
        dctf_cluster_list_cancel(core->nodes[0].cluster, &asking->list);
        (void)ask_wait(asking, NULL, NULL); /* ends, once */
    }
    close_all(core);
}

static void test_cancel_while_it_is_held(void **state)
{
    struct core *core = open_all("nnn", 5);
    char dir[32];
    struct asking *asking = ask_and_be_held(core, dir);

    (void)state;
    dctf_cluster_list_cancel(core->nodes[0].cluster, &asking->list);
    assert_int_equal(ask_wait(asking, NULL, NULL), DCTF_ERR_CANCELLED);
    host_release(&hosts[1], DCTF_OK);
    close_all(core);
}

static void test_end_while_it_is_asked(void **state)
{
    struct core *core = open_all("nnn", 5);
    char dir[32];
    struct asking *asking = ask_and_be_held(core, dir);

    (void)state;
    cluster_close(&core->nodes[0]);
    assert_true(asking_has_ended(asking));
    assert_int_not_equal(ask_wait(asking, NULL, NULL), DCTF_OK);
    host_release(&hosts[1], DCTF_OK); /* nobody waits for it any more */
    close_all(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_home_lists_once_for_all),
        cmocka_unit_test(test_large_and_empty_directories),
        cmocka_unit_test(test_home_that_asks_others),
        cmocka_unit_test(test_ask_others_within_a_time),
        cmocka_unit_test(test_times_to_live_do_not_add_up),
        cmocka_unit_test(test_wait_while_the_home_reads),
        cmocka_unit_test(test_source_that_is_silent_at_the_home),
        cmocka_unit_test(test_listing_that_ends_as_it_is_told_to_come_again),
        cmocka_unit_test(test_source_that_fails_at_the_home),
        cmocka_unit_test(test_home_that_is_silent),
        cmocka_unit_test(test_answers_that_are_malformed),
        cmocka_unit_test(test_more_entries_than_told),
        cmocka_unit_test(test_generation_that_is_gone),
        cmocka_unit_test(test_home_that_is_busy),
        cmocka_unit_test(test_cancel_wherever_it_is),
        cmocka_unit_test(test_cancel_while_it_is_held),
        cmocka_unit_test(test_end_while_it_is_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
