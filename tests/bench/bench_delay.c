/* SPDX-License-Identifier: Apache-2.0
 *
 * A delay line: two network namespaces joined by a pair of TAP interfaces, whose packets come out so much
 * later on the other side. (Not every kernel has netem.)
 *
 *   bench_delay NETNS NETNS INTERFACE MICROSECONDS
 *
 * Makes an interface of that name in each namespace (files, as in /proc/PID/ns/net), prints "ready" and goes
 * on until it is killed or its input ends. A number on a line of its input is the delay, in microseconds and
 * each direction, of packets from then on; they stay in order. A packet too many is dropped.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PACKETS_MAX 32768u /* in one direction: 200 ms of 1 Gbit/s are 16,500 */
#define PACKET_BYTES 2048u
#define BURST 64u

static _Atomic uint64_t delay_ns;

struct packet {
    uint64_t due_ns;
    size_t len;
    char data[PACKET_BYTES];
};

struct direction {
    int in, out;
    struct packet *ring;
    unsigned head, tail; /* of what is in it; counters that go on */
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int make_tap(const char *netns, const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    int ns = open(netns, O_RDONLY | O_CLOEXEC), fd;

    if (ns < 0 || setns(ns, CLONE_NEWNET))
        die(netns);
    close(ns);
    fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request))
        die("/dev/net/tun");
    return fd;
}

static void hand_over(struct direction *way, uint64_t now)
{
    for (; way->head != way->tail; way->head++) {
        const struct packet *packet = &way->ring[way->head % PACKETS_MAX];

        if (packet->due_ns > now)
            return;
        /* An interface that takes no more drops it, as a real one would. */
        if (write(way->out, packet->data, packet->len) < 0 && errno == EBADF)
            die("write");
    }
}

static void take_in(struct direction *way)
{
    char dropped[PACKET_BYTES];

    for (unsigned i = 0; i < BURST; i++) {
        bool full = way->tail - way->head == PACKETS_MAX;
        struct packet *packet = &way->ring[way->tail % PACKETS_MAX];
        ssize_t len = read(way->in, full ? dropped : packet->data, PACKET_BYTES);

        if (len <= 0)
            return;
        if (full)
            continue;
        packet->len = (size_t)len;
        packet->due_ns = now_ns() + atomic_load(&delay_ns);
        way->tail++;
    }
}

static void *run(void *ctx)
{
    struct direction *way = ctx;

    for (;;) {
        struct pollfd in = {.fd = way->in, .events = POLLIN};
        uint64_t now = now_ns();
        struct timespec wait = {0}, *until = NULL;

        hand_over(way, now);
        if (way->head != way->tail) {
            uint64_t due = way->ring[way->head % PACKETS_MAX].due_ns;

            now = now_ns();
            if (due > now)
                wait =
                    (struct timespec){(time_t)((due - now) / 1000000000u), (long)((due - now) % 1000000000u)};
            until = &wait;
        }
        if (ppoll(&in, 1, until, NULL) > 0)
            take_in(way);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct direction there = {0}, back = {0};
    char line[64];
    pthread_t thread;

    if (argc != 5) {
        fprintf(stderr, "Usage: bench_delay NETNS NETNS INTERFACE MICROSECONDS\n");
        return 2;
    }
    atomic_store(&delay_ns, strtoull(argv[4], NULL, 10) * 1000);
    there.in = back.out = make_tap(argv[1], argv[3]);
    there.out = back.in = make_tap(argv[2], argv[3]);
    there.ring = calloc(PACKETS_MAX, sizeof(*there.ring));
    back.ring = calloc(PACKETS_MAX, sizeof(*back.ring));
    if (!there.ring || !back.ring || pthread_create(&thread, NULL, run, &there) ||
        pthread_create(&thread, NULL, run, &back))
        die("threads");
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin))
        atomic_store(&delay_ns, strtoull(line, NULL, 10) * 1000);
    return 0;
}
