/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/peer_auth.h"

#include "lib/fail_alloc.h"
#include "transport/digest.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define SECRET "a secret of the cluster"
#define WALL_MS 1700000000000ull
#define TARGET "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&count=1"

struct fake_time {
    uint64_t mono_ms, wall_ms;
};

static uint64_t fake_mono_ns(void *ctx)
{
    return ((struct fake_time *)ctx)->mono_ms * 1000000u;
}

static uint64_t fake_wall_ms(void *ctx)
{
    return ((struct fake_time *)ctx)->wall_ms;
}

struct world {
    struct fake_time here, there; /* of the verifier, of the sender */
    struct dctf_clock here_clock, there_clock;
    struct dctf_peer_verifier *verifier;
};

static void world_init(struct world *world, size_t nonces_max)
{
    world->here = world->there = (struct fake_time){.mono_ms = 5000, .wall_ms = WALL_MS};
    world->here_clock = (struct dctf_clock){fake_mono_ns, fake_wall_ms, &world->here};
    world->there_clock = (struct dctf_clock){fake_mono_ns, fake_wall_ms, &world->there};
    assert_int_equal(
        dctf_peer_verifier_new(SECRET, nonces_max, &world->here_clock, &world->verifier), DCTF_OK);
}

static void advance(struct world *world, uint64_t ms)
{
    world->here.mono_ms += ms;
    world->here.wall_ms += ms;
    world->there.mono_ms += ms;
    world->there.wall_ms += ms;
}

static const struct dctf_peer_header sample_headers[] = {
    {"Dctf-Node", "n1"},
    {"Dctf-Class", "demand"},
    {"Dctf-Deadline", "1000"},
};

static struct dctf_peer_auth_input sample_input(void)
{
    return (struct dctf_peer_auth_input){
        .method = "GET",
        .target = TARGET,
        .node = "n1",
        .bound = sample_headers,
        .bound_count = COUNT_OF(sample_headers),
    };
}

static void sign(struct world *world, const struct dctf_peer_auth_input *input, char *auth)
{
    assert_int_equal(dctf_peer_auth_sign(SECRET, input, &world->there_clock, auth), DCTF_OK);
}

static enum dctf_err send_one(struct world *world)
{
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES];

    sign(world, &input, auth);
    return dctf_peer_verify(world->verifier, &input, auth);
}

static void test_sign_form(void **state)
{
    static const char text[] = "dctf1\nGET\n" TARGET "\nn1\n1700000000000\n%.32s\n"
                               "dctf-class:demand\ndctf-deadline:1000\ndctf-node:n1\n";
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES], again[DCTF_PEER_AUTH_BYTES], message[512];
    unsigned char mac[DCTF_DIGEST_BYTES];
    char hex[DCTF_DIGEST_HEX_BYTES];
    struct dctf_hmac *hmac;
    struct world world;

    (void)state;
    world_init(&world, 4);
    sign(&world, &input, auth);
    assert_memory_equal(auth, "1700000000000 ", 14);
    assert_int_equal(strlen(auth), 14 + 32 + 1 + 64);
    snprintf(message, sizeof(message), text, auth + 14);
    assert_int_equal(dctf_hmac_new(&hmac), DCTF_OK);
    assert_int_equal(dctf_hmac_run(hmac, SECRET, strlen(SECRET), message, strlen(message), mac), DCTF_OK);
    dctf_digest_hex(mac, hex);
    assert_string_equal(auth + 14 + 33, hex);
    dctf_hmac_free(hmac);
    /* A nonce of its own each time. */
    sign(&world, &input, again);
    assert_memory_not_equal(auth + 14, again + 14, 32);
    dctf_peer_verifier_free(world.verifier);
}

static void test_verify_any_order_and_case(void **state)
{
    static const struct dctf_peer_header received[] = {{"Host", "h"}, {"dctf-deadline", "1000"},
        {"DCTF-NODE", "n1"}, {"Dctf-Auth", "whatever"}, {"Accept", "*/*"}, {"Dctf-Class", "demand"}};
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES];
    struct world world;

    (void)state;
    world_init(&world, 4);
    sign(&world, &input, auth);
    input.bound = received;
    input.bound_count = COUNT_OF(received);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_OK);
    dctf_peer_verifier_free(world.verifier);
}

static void test_verify_refuses_replay(void **state)
{
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES];
    struct world world;

    (void)state;
    world_init(&world, 16);
    world.there.wall_ms += 120000; /* so it stays fresh for as long as can be */
    sign(&world, &input, auth);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_OK);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH);
    for (unsigned i = 0; i < 8; i++) {
        advance(&world, 30000);
        assert_int_equal(send_one(&world), DCTF_OK);
        assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH);
    }
    advance(&world, 1);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH); /* too old now */
    dctf_peer_verifier_free(world.verifier);
}

static void check_skew(int64_t skew_ms, enum dctf_err expected)
{
    struct world world;

    world_init(&world, 4);
    world.there.wall_ms += (uint64_t)skew_ms;
    assert_int_equal(send_one(&world), expected);
    dctf_peer_verifier_free(world.verifier);
}

static void test_verify_skew(void **state)
{
    (void)state;
    check_skew(120000, DCTF_OK);
    check_skew(120001, DCTF_ERR_PEER_AUTH);
    check_skew(-120000, DCTF_OK);
    check_skew(-120001, DCTF_ERR_PEER_AUTH);
}

/* One that was signed, then changed by `change`. */
static void check_changed(
    void (*change)(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers))
{
    struct dctf_peer_auth_input input = sample_input();
    struct dctf_peer_header headers[COUNT_OF(sample_headers) + 1];
    char auth[DCTF_PEER_AUTH_BYTES];
    struct world world;

    world_init(&world, 4);
    memcpy(headers, sample_headers, sizeof(sample_headers));
    input.bound = headers;
    sign(&world, &input, auth);
    change(&input, headers);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH);
    /* A forgery does not use the nonce up. */
    input = sample_input();
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_OK);
    dctf_peer_verifier_free(world.verifier);
}

static void change_method(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)headers;
    input->method = "HEAD";
}

static void change_target(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)headers;
    input->target = TARGET "&want=0-1";
}

static void change_node(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)headers;
    input->node = "n2";
}

static void change_class(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)input;
    headers[1].value = "prefetch";
}

static void change_deadline(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)input;
    headers[2].value = "1001";
}

static void add_bound(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    headers[input->bound_count++] = (struct dctf_peer_header){"Dctf-Hop", "1"};
}

static void repeat_bound(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    headers[input->bound_count++] = headers[1];
}

static void drop_bound(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)headers;
    input->bound_count--;
}

static void merge_bound(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    headers[1].value = "demand\ndctf-deadline:1000";
    headers[2] = headers[0];
    input->bound_count = 2;
}

static void break_node(struct dctf_peer_auth_input *input, struct dctf_peer_header *headers)
{
    (void)headers;
    input->target = "/v1/blocks/k";
    input->node = "?ds\nn1";
}

static void test_verify_refuses_changed(void **state)
{
    (void)state;
    check_changed(change_method);
    check_changed(change_target);
    check_changed(change_node);
    check_changed(change_class);
    check_changed(change_deadline);
    check_changed(add_bound);
    check_changed(repeat_bound);
    check_changed(drop_bound);
    check_changed(merge_bound);
    check_changed(break_node);
}

static void test_verify_refuses_wrong_secret(void **state)
{
    static const char *const secrets[] = {
        "another", "a secret of the cluste", "a secret of the cluster ", "A"};
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES];
    struct world world;

    (void)state;
    world_init(&world, 4);
    for (size_t i = 0; i < COUNT_OF(secrets); i++) {
        assert_int_equal(dctf_peer_auth_sign(secrets[i], &input, &world.there_clock, auth), DCTF_OK);
        assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH);
    }
    dctf_peer_verifier_free(world.verifier);
}

/* Every prefix, and every byte changed in its lowest bits. */
static void test_verify_refuses_damaged(void **state)
{
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES], bad[DCTF_PEER_AUTH_BYTES + 8];
    struct world world;
    size_t len;

    (void)state;
    world_init(&world, 4);
    sign(&world, &input, auth);
    len = strlen(auth);
    for (size_t i = 0; i < len; i++) {
        snprintf(bad, sizeof(bad), "%.*s", (int)i, auth);
        assert_int_equal(dctf_peer_verify(world.verifier, &input, bad), DCTF_ERR_PEER_AUTH);
        for (unsigned flip = 1; flip < 16; flip++) {
            snprintf(bad, sizeof(bad), "%s", auth);
            bad[i] = (char)(bad[i] ^ (int)flip);
            assert_int_equal(dctf_peer_verify(world.verifier, &input, bad), DCTF_ERR_PEER_AUTH);
        }
    }
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_OK);
    dctf_peer_verifier_free(world.verifier);
}

static void test_verify_refuses_junk(void **state)
{
    static const char *const junk[] = {"", " ", "  ", "0", "Basic dXNlcjpwYXNz", "1700000000000",
        "1700000000000  ", "-1 2 3", "99999999999999999999999 0 0"};
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES], other[3 * DCTF_PEER_AUTH_BYTES];
    struct world world;

    (void)state;
    world_init(&world, 4);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, NULL), DCTF_ERR_PEER_AUTH);
    for (size_t i = 0; i < COUNT_OF(junk); i++)
        assert_int_equal(dctf_peer_verify(world.verifier, &input, junk[i]), DCTF_ERR_PEER_AUTH);
    sign(&world, &input, auth);
    snprintf(other, sizeof(other), "%s ", auth);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, other), DCTF_ERR_PEER_AUTH);
    snprintf(other, sizeof(other), " %s", auth);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, other), DCTF_ERR_PEER_AUTH);
    snprintf(other, sizeof(other), "0%s", auth);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, other), DCTF_ERR_PEER_AUTH);
    snprintf(other, sizeof(other), "%s%s", auth, auth);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, other), DCTF_ERR_PEER_AUTH);
    for (char *at = auth; *at; at++)
        *at = *at >= 'a' && *at <= 'f' ? (char)(*at - 32) : *at;
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH);
    dctf_peer_verifier_free(world.verifier);
}

static void test_full_cache_refuses_and_empties(void **state)
{
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES];
    struct world world;

    (void)state;
    world_init(&world, 3);
    sign(&world, &input, auth);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_OK);
    assert_int_equal(send_one(&world), DCTF_OK);
    advance(&world, 1000);
    assert_int_equal(send_one(&world), DCTF_OK);
    assert_int_equal(send_one(&world), DCTF_ERR_PEER_BUSY);
    assert_int_equal(dctf_peer_verify(world.verifier, &input, auth), DCTF_ERR_PEER_AUTH);
    advance(&world, 239000);
    assert_int_equal(send_one(&world), DCTF_ERR_PEER_BUSY);
    advance(&world, 1); /* the first two are forgotten */
    assert_int_equal(send_one(&world), DCTF_OK);
    assert_int_equal(send_one(&world), DCTF_OK);
    assert_int_equal(send_one(&world), DCTF_ERR_PEER_BUSY);
    dctf_peer_verifier_free(world.verifier);
}

/* Many times around the ring, with chains in the table's buckets. */
static void test_cache_goes_round(void **state)
{
    char auths[40][DCTF_PEER_AUTH_BYTES];
    struct dctf_peer_auth_input input = sample_input();
    struct world world;

    (void)state;
    world_init(&world, 41);
    for (unsigned i = 0; i < 1000; i++) {
        unsigned at = i % COUNT_OF(auths);

        sign(&world, &input, auths[at]);
        assert_int_equal(dctf_peer_verify(world.verifier, &input, auths[at]), DCTF_OK);
        for (unsigned k = 0; k < COUNT_OF(auths) && k <= i; k++)
            assert_int_equal(dctf_peer_verify(world.verifier, &input, auths[k]), DCTF_ERR_PEER_AUTH);
        advance(&world, 6000);
    }
    dctf_peer_verifier_free(world.verifier);
}

static void test_sign_refuses_line_breaks(void **state)
{
    static const struct dctf_peer_header bad[][2] = {
        {{"Dctf-Class", "a\nb"}, {"Dctf-Hop", "1"}},
        {{"Dctf-Cl\nass", "a"}, {"Dctf-Hop", "1"}},
        {{"Dctf-Hop", "1"}, {"dctf-hop", "1"}},
    };
    struct dctf_peer_header many[64];
    struct dctf_peer_auth_input input = sample_input();
    char auth[DCTF_PEER_AUTH_BYTES];
    char names[64][16];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        input.bound = bad[i];
        input.bound_count = 2;
        assert_int_equal(dctf_peer_auth_sign(SECRET, &input, NULL, auth), DCTF_ERR_INTERNAL);
        assert_string_equal(auth, "");
    }
    for (unsigned i = 0; i < COUNT_OF(many); i++) {
        snprintf(names[i], sizeof(names[i]), "Dctf-%u", i);
        many[i] = (struct dctf_peer_header){names[i], "v"};
    }
    input.bound = many;
    input.bound_count = COUNT_OF(many);
    assert_int_equal(dctf_peer_auth_sign(SECRET, &input, NULL, auth), DCTF_ERR_INTERNAL);
    input.bound_count = 0;
    input.target = "/\r\n";
    assert_int_equal(dctf_peer_auth_sign(SECRET, &input, NULL, auth), DCTF_ERR_INTERNAL);
}

static void test_verifier_arguments(void **state)
{
    struct dctf_peer_verifier *verifier = (void *)&verifier;

    (void)state;
    assert_int_equal(dctf_peer_verifier_new("", 1, NULL, &verifier), DCTF_ERR_INTERNAL);
    assert_null(verifier);
    assert_int_equal(dctf_peer_verifier_new("s", 0, NULL, &verifier), DCTF_ERR_INTERNAL);
    assert_int_equal(dctf_peer_verifier_new("s", SIZE_MAX, NULL, &verifier), DCTF_ERR_INTERNAL);
    dctf_peer_verifier_free(NULL);
}

static enum dctf_err try_new(void *ctx)
{
    return dctf_peer_verifier_new(SECRET, 4, NULL, ctx);
}

static void drop_new(void *ctx)
{
    struct dctf_peer_verifier **verifier = ctx;

    dctf_peer_verifier_free(*verifier);
    *verifier = NULL;
}

static void test_no_memory(void **state)
{
    struct dctf_peer_verifier *verifier;

    (void)state;
    assert_true(fail_alloc_sweep(try_new, drop_new, &verifier, NULL) >= 4);
}

/* Of one request sent to several threads one is taken. */
#define RACERS 4
#define RACES 50

struct race {
    struct dctf_peer_verifier *verifier;
    char auths[RACES][DCTF_PEER_AUTH_BYTES];
    pthread_barrier_t start;
    atomic_uint taken;
};

static void *race_run(void *ctx)
{
    struct race *race = ctx;
    struct dctf_peer_auth_input input = sample_input();

    pthread_barrier_wait(&race->start);
    for (unsigned i = 0; i < RACES; i++) {
        if (!dctf_peer_verify(race->verifier, &input, race->auths[i]))
            atomic_fetch_add(&race->taken, 1);
    }
    return NULL;
}

static void test_verify_concurrent_replays(void **state)
{
    struct dctf_peer_auth_input input = sample_input();
    pthread_t threads[RACERS];
    struct race race;

    (void)state;
    atomic_init(&race.taken, 0);
    assert_int_equal(dctf_peer_verifier_new(SECRET, 1000, NULL, &race.verifier), DCTF_OK);
    for (unsigned i = 0; i < RACES; i++)
        assert_int_equal(dctf_peer_auth_sign(SECRET, &input, NULL, race.auths[i]), DCTF_OK);
    pthread_barrier_init(&race.start, NULL, RACERS);
    for (unsigned i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_run, &race), 0);
    for (unsigned i = 0; i < RACERS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&race.start);
    assert_int_equal(atomic_load(&race.taken), RACES);
    dctf_peer_verifier_free(race.verifier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sign_form),
        cmocka_unit_test(test_verify_any_order_and_case),
        cmocka_unit_test(test_verify_refuses_replay),
        cmocka_unit_test(test_verify_skew),
        cmocka_unit_test(test_verify_refuses_changed),
        cmocka_unit_test(test_verify_refuses_wrong_secret),
        cmocka_unit_test(test_verify_refuses_damaged),
        cmocka_unit_test(test_verify_refuses_junk),
        cmocka_unit_test(test_full_cache_refuses_and_empties),
        cmocka_unit_test(test_cache_goes_round),
        cmocka_unit_test(test_sign_refuses_line_breaks),
        cmocka_unit_test(test_verifier_arguments),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_verify_concurrent_replays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
