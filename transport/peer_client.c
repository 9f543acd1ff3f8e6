/* SPDX-License-Identifier: Apache-2.0
 *
 * An errand is one request on its way: made by start, found by the address of its dctf_peer_get until it
 * ends, freed before done(). What an answer says and what its body holds is judged in
 * peer_client_answer.c.
 *
 * The lock is held while the HTTP client takes a request or a cancel, since that calls nothing back: so an
 * errand that is found is not freed, and no pool is freed that takes one.
 */
#include "base/log.h"
#include "transport/peer_auth.h"
#include "transport/peer_client_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_TIMEOUT_DEFAULT_MS 500u
#define DEMAND_DEFAULT 256u
#define BACKGROUND_DEFAULT 16u
#define WINDOW_DEFAULT_BYTES (256u * 1024)
#define CONTROL_CONNECTIONS 64u
#define ADDR_MAX 255u

static struct dctf_list *bucket_of(struct dctf_peer_client *client, const struct dctf_peer_get *get)
{
    /* The low bits are zeros of alignment. */
    return &client->held[((uintptr_t)get >> 6) % DCTF_PEER_CLIENT_BUCKETS];
}

static struct dctf_peer_errand *find_locked(struct dctf_peer_client *client, const struct dctf_peer_get *get)
{
    struct dctf_list *bucket = bucket_of(client, get);

    for (struct dctf_list *node = bucket->next; node != bucket; node = node->next) {
        struct dctf_peer_errand *errand = dctf_list_entry(node, struct dctf_peer_errand, link);

        if (errand->get == get)
            return errand;
    }
    return NULL;
}

/* --- composing --- */

/* "host:port" of a URL and nothing else: an address may come from another machine. */
static bool addr_ok(const char *addr)
{
    size_t len = strnlen(addr, ADDR_MAX + 1);
    const char *colon = strrchr(addr, ':');

    if (!len || len > ADDR_MAX || !colon || colon == addr || !colon[1] ||
        colon[1 + strspn(colon + 1, "0123456789")] || strlen(colon + 1) > 5)
        return false;
    return strspn(addr, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:[]") == len;
}

static void add_header(void *ctx, const char *name, const char *value)
{
    struct dctf_peer_errand *errand = ctx;
    char *line = errand->lines[errand->line_count];

    assert(errand->line_count < DCTF_PEER_ERRAND_LINES); /* as many as peer_wire.c writes, and our own */
    snprintf(line, sizeof(errand->lines[0]), "%s: %s", name, value);
    errand->bound[errand->line_count] =
        (struct dctf_peer_header){.name = name, .value = line + strlen(name) + 2};
    errand->headers[errand->line_count++] = line;
}

static void add_line(struct dctf_peer_errand *errand, const char *line)
{
    assert(errand->line_count < DCTF_PEER_ERRAND_LINES);
    errand->headers[errand->line_count++] = line;
}

static enum dctf_err sign(struct dctf_peer_errand *errand, const char *target)
{
    struct dctf_peer_client *client = errand->client;
    struct dctf_peer_auth_input input = {
        .method = "GET",
        .target = target,
        .node = client->node,
        .bound = errand->bound,
        .bound_count = errand->line_count,
    };
    char auth[DCTF_PEER_AUTH_BYTES];
    enum dctf_err err = dctf_peer_auth_sign(client->secret, &input, &client->clock, auth);

    if (!err)
        add_header(errand, "Dctf-Auth", auth);
    return err;
}

static enum dctf_err compose(struct dctf_peer_errand *errand)
{
    const struct dctf_peer_client *client = errand->client;
    const struct dctf_peer_get *get = errand->get;
    struct dctf_peer_call told = {
        .view = get->view,
        .class = get->class,
        .hop = get->hop,
        .deadline_ms = get->deadline_ms,
        .max_rate = get->max_rate,
        .tried = get->tried,
        .accepts_lz4 = client->accept_lz4 && get->ask.op == DCTF_PEER_BLOCKS,
    };
    size_t target_at;
    enum dctf_err err;

    memcpy(told.node, client->node, sizeof(told.node));
    dctf_str_printf(&errand->url, "%s://%s", client->tls ? "https" : "http", get->addr);
    target_at = errand->url.len;
    dctf_peer_target_write(&errand->url, &get->ask);
    if (errand->url.err)
        return errand->url.err;
    dctf_peer_call_write(&told, add_header, errand);
    err = client->secret ? sign(errand, errand->url.data + target_at) : DCTF_OK;
    add_line(errand, "Accept:"); /* neither is of use to a peer */
    add_line(errand, "User-Agent:");
    return err;
}

/* --- the end --- */

static void errand_free(struct dctf_peer_errand *errand)
{
    free(errand->frames);
    dctf_str_fini(&errand->url);
    free(errand);
}

static void errand_done(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct dctf_peer_errand *errand = request->ctx;
    struct dctf_peer_client *client = errand->client;
    struct dctf_peer_get *get = errand->get;
    struct dctf_peer_answer answer;

    err = dctf_peer_errand_judge(errand, err, response, &answer);
    pthread_mutex_lock(&client->lock);
    dctf_list_remove(&errand->link); /* the caller may start or cancel it anew from done() */
    pthread_mutex_unlock(&client->lock);
    errand_free(errand);
    get->done(get, err, &answer);
}

/* --- start and cancel --- */

static struct dctf_http *pool_for(struct dctf_peer_client *client, const struct dctf_peer_get *get)
{
    if (get->ask.op != DCTF_PEER_BLOCKS && get->ask.op != DCTF_PEER_LIST)
        return client->pools[DCTF_PEER_POOL_CONTROL];
    if (get->class == DCTF_FETCH_DEMAND)
        return client->pools[DCTF_PEER_POOL_DEMAND];
    if (get->window_bytes > client->window_bytes)
        return client->pools[DCTF_PEER_POOL_WIDE];
    if (get->window_bytes && get->window_bytes <= DCTF_PEER_WINDOW_NARROW)
        return client->pools[DCTF_PEER_POOL_NARROW];
    return client->pools[DCTF_PEER_POOL_BACKGROUND];
}

static enum dctf_err errand_new(
    struct dctf_peer_client *client, struct dctf_peer_get *get, struct dctf_peer_errand **out)
{
    struct dctf_peer_errand *errand = calloc(1, sizeof(*errand));
    bool blocks = get->ask.op == DCTF_PEER_BLOCKS, body = blocks || dctf_peer_is_meta(get->ask.op);
    enum dctf_err err;

    *out = NULL;
    if (!errand)
        return DCTF_ERR_NO_MEMORY;
    errand->client = client;
    errand->get = get;
    errand->http = pool_for(client, get);
    errand->bytes = blocks ? (size_t)dctf_peer_ask_bytes(&get->ask) : body ? get->buf_len : 0;
    dctf_list_init(&errand->link);
    dctf_str_init(&errand->url);
    err = compose(errand);
    if (err) {
        errand_free(errand);
        return err;
    }
    errand->request = (struct dctf_http_request){
        .method = "GET",
        .quiet = true,
        .url = errand->url.data,
        .headers = errand->headers,
        .header_count = errand->line_count,
        .buf = body ? get->buf : NULL,
        .buf_len = errand->bytes,
        .collect_max = DCTF_PEER_BODY_MAX,
        .silence_ms = get->silence_ms ? get->silence_ms : get->deadline_ms,
        .total_ms = get->deadline_ms,
        .on_head = dctf_peer_errand_head,
        .done = errand_done,
        .ctx = errand,
    };
    *out = errand;
    return DCTF_OK;
}

static bool get_ok(const struct dctf_peer_get *get)
{
    if (!get->done || !get->deadline_ms || (unsigned)get->class >= DCTF_FETCH_CLASS_COUNT)
        return false;
    if (dctf_peer_is_meta(get->ask.op))
        return get->buf || !get->buf_len;
    return get->ask.op != DCTF_PEER_BLOCKS ||
           (get->buf && get->ask.count >= 1 && get->ask.count <= DCTF_PEER_BLOCKS_MAX);
}

enum dctf_err dctf_peer_get_start(struct dctf_peer_client *client, struct dctf_peer_get *get)
{
    struct dctf_peer_errand *errand;
    enum dctf_err err;

    if (!get_ok(get))
        return DCTF_ERR_INTERNAL;
    if (!addr_ok(get->addr)) {
        char addr[ADDR_MAX];

        dctf_log(DCTF_LOG_WARN, "peer", "addr=%s err=%d no address",
            dctf_str_quote(get->addr, addr, sizeof(addr)), (int)DCTF_ERR_PEER_GONE);
        return DCTF_ERR_PEER_GONE;
    }
    err = errand_new(client, get, &errand);
    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    assert(!find_locked(client, get)); /* the caller started it twice */
    err = client->closing ? DCTF_ERR_SHUTTING_DOWN : dctf_http_start(errand->http, &errand->request);
    if (!err)
        dctf_list_push_back(bucket_of(client, get), &errand->link);
    pthread_mutex_unlock(&client->lock);
    if (err)
        errand_free(errand);
    return err;
}

void dctf_peer_get_cancel(struct dctf_peer_client *client, struct dctf_peer_get *get)
{
    struct dctf_peer_errand *errand;

    pthread_mutex_lock(&client->lock);
    errand = find_locked(client, get);
    if (errand)
        dctf_http_cancel(errand->http, &errand->request);
    pthread_mutex_unlock(&client->lock);
}

/* --- making and freeing --- */

static char *copy_of(const char *text)
{
    return text && *text ? strdup(text) : NULL;
}

static unsigned or_default(unsigned value, unsigned fallback)
{
    return value ? value : fallback;
}

static enum dctf_err pools_new(struct dctf_peer_client *client, const struct dctf_peer_client_config *config)
{
    struct dctf_http_config http = {
        .connect_timeout_ms =
            config->connect_timeout_ms ? config->connect_timeout_ms : CONNECT_TIMEOUT_DEFAULT_MS,
        .ca_file = config->ca_file,
        .cert_file = config->cert_file,
        .key_file = config->key_file,
        .no_proxy = true,
    };
    enum dctf_err err;

    http.loops = 2;
    http.connections = or_default(config->demand_connections, DEMAND_DEFAULT);
    err = dctf_http_new(&http, &client->pools[DCTF_PEER_POOL_DEMAND]);
    http.loops = 1;
    http.connections = CONTROL_CONNECTIONS;
    if (!err)
        err = dctf_http_new(&http, &client->pools[DCTF_PEER_POOL_CONTROL]);
    http.connections = or_default(config->background_connections, BACKGROUND_DEFAULT);
    http.receive_buffer_bytes = client->window_bytes;
    if (!err)
        err = dctf_http_new(&http, &client->pools[DCTF_PEER_POOL_BACKGROUND]);
    http.receive_buffer_bytes = DCTF_PEER_WINDOW_NARROW;
    if (!err)
        err = dctf_http_new(&http, &client->pools[DCTF_PEER_POOL_NARROW]);
    http.receive_buffer_bytes = DCTF_PEER_WINDOW_WIDE;
    if (!err)
        err = dctf_http_new(&http, &client->pools[DCTF_PEER_POOL_WIDE]);
    return err;
}

enum dctf_err dctf_peer_client_new(
    const struct dctf_peer_client_config *config, struct dctf_peer_client **out)
{
    bool wants_secret = config->secret && *config->secret;
    struct dctf_peer_client *client;
    enum dctf_err err = DCTF_OK;

    *out = NULL;
    if (!config->node || !dctf_peer_node_ok(config->node, strnlen(config->node, sizeof(client->node))))
        return DCTF_ERR_INTERNAL;
    client = calloc(1, sizeof(*client));
    if (!client)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&client->lock, NULL);
    for (unsigned i = 0; i < DCTF_PEER_CLIENT_BUCKETS; i++)
        dctf_list_init(&client->held[i]);
    snprintf(client->node, sizeof(client->node), "%s", config->node);
    client->tls = config->cert_file && *config->cert_file;
    client->accept_lz4 = config->accept_lz4;
    client->window_bytes = or_default(config->background_window_bytes, WINDOW_DEFAULT_BYTES);
    client->metrics = config->metrics;
    if (config->clock)
        client->clock = *config->clock;
    client->secret = copy_of(config->secret);
    if (wants_secret && !client->secret)
        err = DCTF_ERR_NO_MEMORY;
    if (!err)
        err = pools_new(client, config);
    if (err) {
        dctf_peer_client_free(client);
        return err;
    }
    *out = client;
    return DCTF_OK;
}

void dctf_peer_client_free(struct dctf_peer_client *client)
{
    if (!client)
        return;
    /* First, so that no callback of one pool starts on another that is gone. */
    pthread_mutex_lock(&client->lock);
    client->closing = true;
    pthread_mutex_unlock(&client->lock);
    for (unsigned i = 0; i < DCTF_PEER_POOLS; i++)
        dctf_http_free(client->pools[i]);
    pthread_mutex_destroy(&client->lock);
    if (client->secret)
        explicit_bzero(client->secret, strlen(client->secret));
    free(client->secret);
    free(client);
}
