/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_keys.h"

#include "lib/s3_text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MAX_KEYS 4096

struct s3_keys {
    pthread_mutex_t lock;
    struct s3_key *keys; /* guarded by lock, as all below; in the order they were added */
    size_t count;
};

struct s3_keys *s3_keys_new(void)
{
    struct s3_keys *keys = s3_alloc(sizeof(*keys));

    pthread_mutex_init(&keys->lock, NULL);
    return keys;
}

void s3_keys_free(struct s3_keys *keys)
{
    pthread_mutex_destroy(&keys->lock);
    free(keys->keys);
    free(keys);
}

static struct s3_key *find_locked(struct s3_keys *keys, const char *access)
{
    for (size_t i = keys->count; i-- > 0;) {
        if (!strcmp(keys->keys[i].access, access))
            return &keys->keys[i];
    }
    return NULL;
}

static void remove_locked(struct s3_keys *keys, size_t i)
{
    memmove(&keys->keys[i], &keys->keys[i + 1], (keys->count - i - 1) * sizeof(struct s3_key));
    keys->count--;
}

void s3_keys_add(struct s3_keys *keys, const struct s3_key *key)
{
    pthread_mutex_lock(&keys->lock);
    struct s3_key *known = find_locked(keys, key->access);

    if (known) {
        *known = *key;
    } else {
        if (keys->count == MAX_KEYS)
            remove_locked(keys, 0);
        keys->keys = s3_realloc(keys->keys, (keys->count + 1) * sizeof(struct s3_key));
        keys->keys[keys->count++] = *key;
    }
    pthread_mutex_unlock(&keys->lock);
}

bool s3_keys_find(struct s3_keys *keys, const char *access, struct s3_key *out)
{
    pthread_mutex_lock(&keys->lock);
    struct s3_key *known = find_locked(keys, access);

    if (known)
        *out = *known;
    pthread_mutex_unlock(&keys->lock);
    return known != NULL;
}

bool s3_keys_remove(struct s3_keys *keys, const char *access)
{
    pthread_mutex_lock(&keys->lock);
    struct s3_key *known = find_locked(keys, access);

    if (known)
        remove_locked(keys, (size_t)(known - keys->keys));
    pthread_mutex_unlock(&keys->lock);
    return known != NULL;
}

void s3_random_text(char *out, size_t len)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    unsigned char bytes[256] = {0};

    for (size_t i = 0; i < len; i++) {
        /* Up to 256 bytes are never cut short. */
        if (i % sizeof(bytes) == 0 && getrandom(bytes, sizeof(bytes), 0) < 0)
            abort();
        out[i] = letters[bytes[i % sizeof(bytes)] % 32];
    }
    out[len] = '\0';
}

void s3_keys_issue(struct s3_keys *keys, int64_t expires_ns, struct s3_key *out)
{
    *out = (struct s3_key){.expires_ns = expires_ns};
    memcpy(out->access, "ASIA", 4);
    s3_random_text(out->access + 4, 16);
    s3_random_text(out->secret, 40);
    s3_random_text(out->token, 300);
    /* Real tokens are base64: what needs care in URLs and forms is to be met. */
    memcpy(out->token + 100, "/+A=", 4);
    memcpy(out->token + 298, "==", 2);
    s3_keys_add(keys, out);
}

void s3_keys_expire(struct s3_keys *keys, int64_t now_ns)
{
    pthread_mutex_lock(&keys->lock);
    for (size_t i = 0; i < keys->count; i++) {
        if (keys->keys[i].token[0])
            keys->keys[i].expires_ns = now_ns;
    }
    pthread_mutex_unlock(&keys->lock);
}
