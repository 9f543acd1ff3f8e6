/* SPDX-License-Identifier: Apache-2.0
 *
 * For core_fixture.h: what node 0 answers another member that asks it for blocks, or whether it has them.
 *
 * Threads:   the test's thread but where a callback is marked.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_TESTS_CORE_ASK_FIXTURE_H
#define DCTF_TESTS_CORE_ASK_FIXTURE_H

#include "core_fixture.h"
#include "transport/peer_client.h"

struct question {
    struct dctf_peer_get get; /* first */
    atomic_uint answers;
    enum dctf_err err;
    enum dctf_peer_spare spare;
    char names[DCTF_PEER_TRY_BYTES];
};

/* On any thread. */
static inline void question_done(
    struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct question *question = (struct question *)get;

    question->err = err;
    question->spare = answer->spare;
    memcpy(question->names, answer->try, sizeof(question->names));
    atomic_fetch_add(&question->answers, 1);
}

/* As the member at `place`, ask node 0 for the shard, or whether it has it. */
static inline struct question ask_as(struct core *core, unsigned place, const struct shard *shard,
    enum dctf_peer_op op, bool tried, enum dctf_err expected)
{
    struct dctf_peer_client_config config = {.node = core->places[place].addr, .secret = SECRET};
    struct question question = {
        .get = {.addr = core->places[0].addr,
            .ask = {.op = op, .dataset = DATASET, .size = shard->size, .count = dctf_blocks_of(shard->size)},
            .buf = malloc(shard->size),
            .hop = 1,
            .tried = tried,
            .deadline_ms = FOREVER_MS,
            .done = question_done}};
    struct dctf_peer_client *client;

    assert_non_null(question.get.buf);
    strcpy(question.get.ask.key, shard->key);
    strcpy(question.get.ask.etag, shard->etag);
    assert_int_equal(dctf_peer_client_new(&config, &client), DCTF_OK);
    assert_int_equal(dctf_peer_get_start(client, &question.get), DCTF_OK);
    wait_until(atomic_load(&question.answers));
    assert_int_equal(question.err, expected);
    dctf_peer_client_free(client);
    free(question.get.buf);
    question.get.buf = NULL;
    return question;
}

/* As a reader; what it is told about keeping the shard. */
static inline enum dctf_peer_spare read_as(struct core *core, unsigned place, const struct shard *shard)
{
    return ask_as(core, place, shard, DCTF_PEER_BLOCKS, false, DCTF_OK).spare;
}

#endif
