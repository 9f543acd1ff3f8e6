/* SPDX-License-Identifier: Apache-2.0
 *
 * dctf-s3-server: options, start and end. s3_server.h describes it.
 */
#include "lib/s3_front.h"
#include "lib/s3_server.h"
#include "lib/s3_text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MANY 64

struct options {
    const char *dir;
    const char *region;
    const char *cert_file, *key_file;
    const char *domains[MANY + 1], *buckets[MANY + 1], *imports[MANY + 1], *keys[MANY + 1];
    struct s3_front_config front;
    bool stdin_may_close;
};

static bool add(const char **list, const char *value)
{
    size_t i = 0;

    while (list[i])
        i++;
    if (i < MANY)
        list[i] = value;
    return i < MANY;
}

static bool parse_port(const char *text, uint16_t *port)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    *port = (uint16_t)value;
    return *text && !*end && value <= 65535;
}

static const struct option longs[] = {
    {"dir", required_argument, NULL, 'd'},
    {"address", required_argument, NULL, 'a'},
    {"port", required_argument, NULL, 'p'},
    {"tls-port", required_argument, NULL, 'P'},
    {"tls-cert", required_argument, NULL, 'c'},
    {"tls-key", required_argument, NULL, 'k'},
    {"domain", required_argument, NULL, 'n'},
    {"region", required_argument, NULL, 'r'},
    {"bucket", required_argument, NULL, 'b'},
    {"import", required_argument, NULL, 'i'},
    {"key", required_argument, NULL, 'K'},
    {"idle-timeout", required_argument, NULL, 't'},
    {"stdin-may-close", no_argument, NULL, 's'},
    {NULL, 0, NULL, 0},
};

static bool take_option(int c, struct options *options)
{
    switch (c) {
    case 'd':
        options->dir = optarg;
        return true;
    case 'a':
        return inet_pton(AF_INET, optarg, &options->front.address) == 1;
    case 'p':
        return parse_port(optarg, &options->front.port);
    case 'P':
        return parse_port(optarg, &options->front.tls_port);
    case 'c':
        options->cert_file = optarg;
        return true;
    case 'k':
        options->key_file = optarg;
        return true;
    case 'n':
        return add(options->domains, optarg);
    case 'r':
        options->region = optarg;
        return true;
    case 'b':
        return add(options->buckets, optarg);
    case 'i':
        return add(options->imports, optarg);
    case 'K':
        return add(options->keys, optarg);
    case 't':
        options->front.idle_timeout = (unsigned)strtoul(optarg, NULL, 10);
        return true;
    case 's':
        options->stdin_may_close = true;
        return true;
    default:
        return false;
    }
}

static bool parse_options(int argc, char **argv, struct options *options)
{
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        ok = take_option(c, options);
    return ok && optind == argc && !options->cert_file == !options->key_file;
}

static char *read_file(const char *path)
{
    struct s3_text text = {0};
    char block[4096];
    ssize_t got;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && (got = read(fd, block, sizeof(block))) > 0)
        s3_text_add_n(&text, block, (size_t)got);
    if (fd >= 0)
        close(fd);
    if (!text.data)
        fprintf(stderr, "dctf-s3-server: %s cannot be read\n", path);
    return text.data;
}

static bool add_bucket(struct s3_server *server, const struct options *options, const char *name)
{
    struct s3_bucket_info info = {.created_ns = s3_settings_now(server->settings)};

    if (strlen(name) < sizeof(info.name) && s3_store_bucket(server->store, name, &info))
        return true;
    snprintf(info.name, sizeof(info.name), "%s", name);
    snprintf(info.region, sizeof(info.region), "%s", options->region);
    const char *wrong = s3_store_set_bucket(server->store, &info);

    if (wrong)
        fprintf(stderr, "dctf-s3-server: bucket %s: %s\n", name, wrong);
    return !wrong;
}

/* Cut "A<sep>B" in two; *right is NULL when there is no separator. The left half is to free(). */
static char *split(const char *text, char sep, const char **right)
{
    const char *at = strchr(text, sep);

    *right = at ? at + 1 : NULL;
    return at ? s3_copy_n(text, (size_t)(at - text)) : s3_copy(text);
}

static bool fill(struct s3_server *server, const struct options *options)
{
    bool ok = true;

    for (size_t i = 0; ok && options->keys[i]; i++) {
        struct s3_key key = {0};
        const char *secret;
        char *access = split(options->keys[i], ':', &secret);

        ok = secret && snprintf(key.access, sizeof(key.access), "%s", access) < (int)sizeof(key.access) &&
             snprintf(key.secret, sizeof(key.secret), "%s", secret) < (int)sizeof(key.secret);
        free(access);
        s3_keys_add(server->keys, &key);
    }
    for (size_t i = 0; ok && options->buckets[i]; i++)
        ok = add_bucket(server, options, options->buckets[i]);
    for (size_t i = 0; ok && options->imports[i]; i++) {
        const char *dir;
        char *bucket = split(options->imports[i], '=', &dir);
        size_t count;

        ok = dir && add_bucket(server, options, bucket) &&
             s3_store_import(server->store, bucket, dir, "", &count) == S3_FOUND;
        if (!ok)
            fprintf(stderr, "dctf-s3-server: --import %s failed\n", options->imports[i]);
        free(bucket);
    }
    return ok;
}

/* Until a signal comes or, if that counts, stdin is closed. */
static void wait_for_end(int signals, bool stdin_may_close)
{
    struct pollfd fds[2] = {
        {.fd = signals, .events = POLLIN}, {.fd = stdin_may_close ? -1 : 0, .events = POLLIN}};
    char block[256];

    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return;
        if (fds[0].revents)
            return;
        if (fds[1].revents && read(0, block, sizeof(block)) <= 0)
            return;
    }
}

static int serve(struct s3_server *server, const struct options *options, int signals)
{
    struct s3_front *front = fill(server, options) ? s3_front_start(server, &options->front) : NULL;

    if (!front)
        return 1;
    if (s3_front_tls_port(front))
        printf("{\"port\": %u, \"tls_port\": %u, \"pid\": %d}\n", s3_front_port(front),
            s3_front_tls_port(front), (int)getpid());
    else
        printf("{\"port\": %u, \"tls_port\": null, \"pid\": %d}\n", s3_front_port(front), (int)getpid());
    fflush(stdout);
    wait_for_end(signals, options->stdin_may_close);
    /* A thread that does not end must not keep the program: SIGALRM kills it. */
    alarm(20);
    s3_front_stop(front);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = {
        .region = "us-east-1", .front = {.address.s_addr = htonl(INADDR_LOOPBACK), .idle_timeout = 60}};
    struct s3_server server = {.domains = options.domains};
    char *cert = NULL, *key = NULL;
    sigset_t ends;

    if (!parse_options(argc, argv, &options)) {
        fputs("dctf-s3-server: bad options; tests/lib/s3_server.h describes them\n", stderr);
        return 2;
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &ends, SFD_CLOEXEC);

    if (options.cert_file) {
        options.front.tls_cert = cert = read_file(options.cert_file);
        options.front.tls_key = key = read_file(options.key_file);
    }
    server.store = signals >= 0 && !options.cert_file == !(cert && key) ? s3_store_open(options.dir) : NULL;
    if (!server.store) {
        free(cert);
        free(key);
        return 1;
    }
    server.keys = s3_keys_new();
    server.faults = s3_faults_new();
    server.stats = s3_stats_new();
    server.settings = s3_settings_new();
    int status = serve(&server, &options, signals);

    s3_settings_free(server.settings);
    s3_stats_free(server.stats);
    s3_faults_free(server.faults);
    s3_keys_free(server.keys);
    s3_store_close(server.store);
    free(cert);
    free(key);
    return status;
}
