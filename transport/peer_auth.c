/* SPDX-License-Identifier: Apache-2.0
 *
 * The replay cache holds what was proved and taken, in the order of arrival, for as long as its TIME could
 * be taken once more: a ring, with a hash table over its slots. Only who has the secret gets anything into
 * it. Half of a nonce stands for it: of numbers drawn at random, two that are alike in 64 bits do not meet.
 */
#include "transport/peer_auth.h"

#include "base/log.h"
#include "base/str.h"
#include "transport/digest.h"
#include "transport/uri.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#define SKEW_MS 120000u
#define KEEP_MS (2u * SKEW_MS)
#define NONCE_BYTES 16u
#define NONCE_DIGITS (2u * NONCE_BYTES)
#define MAC_DIGITS (2u * DCTF_DIGEST_BYTES)
#define TIME_DIGITS_MAX 15u
/* Of one request; there are no more of ours than a dozen. */
#define BOUND_MAX 32u
#define PREFIX "Dctf-"

/* --- what is signed --- */

static bool is_bound(const char *name)
{
    return !strncasecmp(name, PREFIX, strlen(PREFIX)) && strcasecmp(name, "Dctf-Auth") != 0;
}

/* Pointers to those that count, by name. False: more than there may be, one of them twice, or a line break.
 */
static bool sort_bound(
    const struct dctf_peer_auth_input *input, const struct dctf_peer_header *out[BOUND_MAX], size_t *count)
{
    *count = 0;
    for (size_t i = 0; i < input->bound_count; i++) {
        const struct dctf_peer_header *header = &input->bound[i];
        size_t at;

        if (!is_bound(header->name))
            continue;
        if (*count == BOUND_MAX || strpbrk(header->name, "\r\n:") || strpbrk(header->value, "\r\n"))
            return false;
        for (at = *count; at > 0 && strcasecmp(out[at - 1]->name, header->name) > 0; at--)
            out[at] = out[at - 1];
        if (at > 0 && !strcasecmp(out[at - 1]->name, header->name))
            return false;
        out[at] = header;
        ++*count;
    }
    return true;
}

static void add_lower(struct dctf_str *out, const char *name)
{
    for (; *name; name++) {
        char letter = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;

        dctf_str_add(out, &letter, 1);
    }
}

/* DCTF_ERR_BAD_REQUEST: texts that could be read in two ways. */
static enum dctf_err compose(
    struct dctf_str *out, const struct dctf_peer_auth_input *input, uint64_t time_ms, const char *nonce)
{
    const struct dctf_peer_header *bound[BOUND_MAX];
    size_t count;

    if (strpbrk(input->method, "\r\n") || strpbrk(input->target, "\r\n") || strpbrk(input->node, "\r\n") ||
        !sort_bound(input, bound, &count))
        return DCTF_ERR_BAD_REQUEST;
    dctf_str_printf(out, "dctf1\n%s\n", input->method);
    dctf_str_puts(out, input->target);
    dctf_str_printf(out, "\n%s\n%" PRIu64 "\n%.*s\n", input->node, time_ms, (int)NONCE_DIGITS, nonce);
    for (size_t i = 0; i < count; i++) {
        add_lower(out, bound[i]->name);
        dctf_str_puts(out, ":");
        dctf_str_puts(out, bound[i]->value);
        dctf_str_puts(out, "\n");
    }
    return out->err;
}

static enum dctf_err compute_mac(const char *secret, const struct dctf_peer_auth_input *input,
    uint64_t time_ms, const char *nonce, char out[DCTF_DIGEST_HEX_BYTES])
{
    unsigned char mac[DCTF_DIGEST_BYTES];
    struct dctf_hmac *hmac = NULL;
    struct dctf_str text;
    enum dctf_err err;

    out[0] = '\0';
    dctf_str_init(&text);
    err = compose(&text, input, time_ms, nonce);
    if (!err)
        err = dctf_hmac_new(&hmac);
    if (!err)
        err = dctf_hmac_run(hmac, secret, strlen(secret), text.data, text.len, mac);
    if (!err)
        dctf_digest_hex(mac, out);
    dctf_hmac_free(hmac);
    dctf_str_fini(&text);
    return err;
}

static enum dctf_err draw_nonce(char out[NONCE_DIGITS + 1])
{
    uint64_t parts[NONCE_BYTES / sizeof(uint64_t)];
    ssize_t got;

    do
        got = getrandom(parts, sizeof(parts), 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(parts)) {
        dctf_log(DCTF_LOG_ERROR, "peer", "op=nonce err=%d errno=%d", (int)DCTF_ERR_SYSTEM, errno);
        return DCTF_ERR_SYSTEM;
    }
    snprintf(out, NONCE_DIGITS + 1, "%016" PRIx64 "%016" PRIx64, parts[0], parts[1]);
    return DCTF_OK;
}

enum dctf_err dctf_peer_auth_sign(const char *secret, const struct dctf_peer_auth_input *input,
    const struct dctf_clock *clock, char out[DCTF_PEER_AUTH_BYTES])
{
    uint64_t time_ms = dctf_clock_wall_ms(clock);
    char nonce[NONCE_DIGITS + 1];
    char mac[DCTF_DIGEST_HEX_BYTES];
    enum dctf_err err;

    out[0] = '\0';
    err = draw_nonce(nonce);
    if (!err)
        err = compute_mac(secret, input, time_ms, nonce, mac);
    if (err)
        return err == DCTF_ERR_BAD_REQUEST ? DCTF_ERR_INTERNAL : err;
    snprintf(out, DCTF_PEER_AUTH_BYTES, "%" PRIu64 " %s %s", time_ms, nonce, mac);
    return DCTF_OK;
}

/* --- the replay cache --- */

/* Slots are numbered from 1, so that memory which was never written says that there is none. */

struct seen {
    uint64_t nonce; /* its first half */
    uint32_t at_ms; /* monotonic, since the verifier was made; wraps after more than a month */
    uint32_t next;  /* number of a slot in the same bucket */
};

struct dctf_peer_verifier {
    char *secret;
    struct dctf_clock clock;
    uint64_t began_ms; /* monotonic */
    uint32_t slots;    /* constant */
    uint32_t buckets;  /* constant; a power of two */

    pthread_mutex_t lock; /* a leaf */
    /* guarded by lock */
    struct seen *ring;
    uint32_t *heads; /* of buckets: numbers of slots */
    uint32_t oldest; /* index in the ring */
    uint32_t used;
};

static uint32_t *head_of_locked(struct dctf_peer_verifier *verifier, uint64_t nonce)
{
    return &verifier->heads[nonce & (verifier->buckets - 1)];
}

/* A bucket has a slot or two. */
static void forget_oldest_locked(struct dctf_peer_verifier *verifier)
{
    uint32_t slot = verifier->oldest;
    uint32_t *at = head_of_locked(verifier, verifier->ring[slot].nonce);

    while (*at != slot + 1)
        at = &verifier->ring[*at - 1].next;
    *at = verifier->ring[slot].next;
    verifier->oldest = slot + 1 == verifier->slots ? 0 : slot + 1;
    verifier->used--;
}

static enum dctf_err remember(struct dctf_peer_verifier *verifier, uint64_t nonce)
{
    enum dctf_err err = DCTF_OK;
    uint32_t now_ms;
    uint32_t *head;

    pthread_mutex_lock(&verifier->lock);
    /* Read under the lock, so that times in the ring never go back: an age below zero would look old. */
    now_ms = (uint32_t)(dctf_clock_mono_ms(&verifier->clock) - verifier->began_ms);
    while (verifier->used && now_ms - verifier->ring[verifier->oldest].at_ms > KEEP_MS)
        forget_oldest_locked(verifier);
    head = head_of_locked(verifier, nonce);
    for (uint32_t number = *head; number && !err; number = verifier->ring[number - 1].next) {
        if (verifier->ring[number - 1].nonce == nonce)
            err = DCTF_ERR_PEER_AUTH;
    }
    if (!err && verifier->used == verifier->slots)
        err = DCTF_ERR_PEER_BUSY;
    if (!err) {
        uint32_t slot = (uint32_t)(((uint64_t)verifier->oldest + verifier->used) % verifier->slots);

        verifier->ring[slot] = (struct seen){.nonce = nonce, .at_ms = now_ms, .next = *head};
        *head = slot + 1;
        verifier->used++;
    }
    pthread_mutex_unlock(&verifier->lock);
    return err;
}

/* --- verifying --- */

enum dctf_err dctf_peer_verifier_new(
    const char *secret, size_t nonces_max, const struct dctf_clock *clock, struct dctf_peer_verifier **out)
{
    struct dctf_peer_verifier *verifier;

    *out = NULL;
    if (!*secret || !nonces_max || nonces_max > UINT32_MAX / 2)
        return DCTF_ERR_INTERNAL;
    verifier = calloc(1, sizeof(*verifier));
    if (!verifier)
        return DCTF_ERR_NO_MEMORY;
    if (clock)
        verifier->clock = *clock;
    verifier->began_ms = dctf_clock_mono_ms(clock);
    verifier->slots = (uint32_t)nonces_max;
    verifier->buckets = 1;
    while (verifier->buckets < verifier->slots)
        verifier->buckets *= 2;
    pthread_mutex_init(&verifier->lock, NULL);
    verifier->secret = strdup(secret);
    verifier->ring = calloc(verifier->slots, sizeof(*verifier->ring));
    verifier->heads = calloc(verifier->buckets, sizeof(*verifier->heads));
    if (!verifier->secret || !verifier->ring || !verifier->heads) {
        dctf_peer_verifier_free(verifier);
        return DCTF_ERR_NO_MEMORY;
    }
    *out = verifier;
    return DCTF_OK;
}

void dctf_peer_verifier_free(struct dctf_peer_verifier *verifier)
{
    if (!verifier)
        return;
    pthread_mutex_destroy(&verifier->lock);
    if (verifier->secret)
        explicit_bzero(verifier->secret, strlen(verifier->secret));
    free(verifier->secret);
    free(verifier->ring);
    free(verifier->heads);
    free(verifier);
}

/* `count` lower-case hex digits. */
static bool is_hex(const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (dctf_hex_value(text[i]) < 0 || (text[i] >= 'A' && text[i] <= 'F'))
            return false;
    }
    return true;
}

struct proof {
    uint64_t time_ms;
    const char *nonce, *mac; /* in the header's value */
};

static bool parse_proof(const char *auth, struct proof *out)
{
    size_t digits = strspn(auth, "0123456789");

    /* The lengths first, then nothing below reads past the end. */
    if (digits < 1 || digits > TIME_DIGITS_MAX || (digits > 1 && auth[0] == '0') ||
        strnlen(auth, DCTF_PEER_AUTH_BYTES) != digits + 1 + NONCE_DIGITS + 1 + MAC_DIGITS)
        return false;
    out->time_ms = strtoull(auth, NULL, 10);
    out->nonce = auth + digits + 1;
    out->mac = out->nonce + NONCE_DIGITS + 1;
    return out->nonce[-1] == ' ' && out->mac[-1] == ' ' && is_hex(out->nonce, NONCE_DIGITS) &&
           is_hex(out->mac, MAC_DIGITS);
}

static uint64_t first_half(const char *nonce)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < NONCE_DIGITS / 2; i++)
        value = value << 4 | (uint64_t)dctf_hex_value(nonce[i]);
    return value;
}

/* NULL: good. Else what is wrong, for the log; *err says whose fault it is. */
static const char *examine(struct dctf_peer_verifier *verifier, const struct dctf_peer_auth_input *input,
    const char *auth, enum dctf_err *err)
{
    uint64_t now_ms = dctf_clock_wall_ms(&verifier->clock);
    char mac[DCTF_DIGEST_HEX_BYTES];
    struct proof proof;

    *err = DCTF_ERR_PEER_AUTH;
    if (!auth || !*auth)
        return "absent";
    if (!parse_proof(auth, &proof))
        return "malformed";
    if ((proof.time_ms > now_ms ? proof.time_ms - now_ms : now_ms - proof.time_ms) > SKEW_MS)
        return "clock";
    *err = compute_mac(verifier->secret, input, proof.time_ms, proof.nonce, mac);
    if (*err == DCTF_ERR_BAD_REQUEST) {
        *err = DCTF_ERR_PEER_AUTH;
        return "malformed request";
    }
    if (*err)
        return "not computed";
    *err = DCTF_ERR_PEER_AUTH;
    if (!dctf_secret_equal(mac, proof.mac, MAC_DIGITS))
        return "wrong";
    *err = remember(verifier, first_half(proof.nonce));
    return *err == DCTF_ERR_PEER_BUSY ? "too many to remember" : *err ? "seen before" : NULL;
}

enum dctf_err dctf_peer_verify(
    struct dctf_peer_verifier *verifier, const struct dctf_peer_auth_input *input, const char *auth)
{
    char node[2 * DCTF_PEER_NODE_MAX];
    enum dctf_err err;
    const char *why = examine(verifier, input, auth, &err);

    if (!why)
        return DCTF_OK;
    dctf_log(DCTF_LOG_WARN, "peer", "op=verify err=%d why=\"%s\" node=%s", (int)err, why,
        dctf_str_quote(input->node, node, sizeof(node)));
    return err;
}
