/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of one HTTP client against the server of http_fixture.h: both, and the commonest ways to ask and
 * answer.
 *
 * Threads:   as http_fixture.h.
 * Ownership: the client and the server are the program's; teardown() ends them.
 */
#ifndef DCTF_TESTS_HTTP_CLIENT_FIXTURE_H
#define DCTF_TESTS_HTTP_CLIENT_FIXTURE_H

#include "http_fixture.h"

static struct dctf_http *http;
static struct server server;

static inline void client_init(const struct dctf_http_config *config)
{
    server_init(&server);
    assert_int_equal(dctf_http_new(config, &http), DCTF_OK);
}

static inline int setup(void **state)
{
    (void)state;
    client_init(&(struct dctf_http_config){.loops = 1, .no_proxy = true});
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    dctf_http_free(http);
    server_fini(&server);
    return 0;
}

/* Start, and read the request's head on the server's side. */
static inline int begin(struct fetch *fetch)
{
    fetch_start(fetch, http);
    return server_take(&server);
}

/* A GET that is answered so, then the connection is closed. */
static inline enum dctf_err answered(struct fetch *fetch, const char *answer)
{
    int fd = begin(fetch);

    server_send(fd, answer);
    close(fd);
    return fetch_wait(fetch);
}

#endif
