/* SPDX-License-Identifier: Apache-2.0
 *
 * What a loader does, without the loader:
 *
 *   bench_reader files DIRECTORY LIST THREADS [drop]
 *       open, fstat, read whole and close each file named in LIST (one a line), in its
 *       order; threads take turns. `drop` takes the file out of the page cache again.
 *   bench_reader handles DIRECTORY LIST THREADS READS BLOCK
 *       open all files of LIST at once, then READS reads of BLOCK bytes at random places of
 *       random handles, from THREADS threads.
 *
 * Prints one line: seconds, bytes, files. Opening the handles does not count.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 256u

struct job {
    int dir_fd;
    char **names;
    size_t count;
    bool drop;
    int *fds;       /* handles */
    off_t *sizes;   /* handles */
    uint64_t reads; /* handles */
    size_t block;   /* handles */
    atomic_size_t next;
    atomic_uint seed;
    _Atomic uint64_t bytes;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);

    if (*end || end == text) {
        errno = EINVAL;
        die(text);
    }
    return value;
}

static void read_list(struct job *job, const char *path)
{
    FILE *file = fopen(path, "re");
    size_t slots = 0, cap = 0;
    char *line = NULL;

    if (!file)
        die(path);
    while (getline(&line, &cap, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (job->count == slots) {
            slots = slots ? slots * 2 : 1024;
            job->names = realloc(job->names, slots * sizeof(*job->names));
            if (!job->names)
                die(path);
        }
        job->names[job->count] = strdup(line);
        if (!job->names[job->count++])
            die(path);
    }
    free(line);
    fclose(file);
}

static size_t read_whole(const struct job *job, const char *name, char **buffer, size_t *cap)
{
    int fd = openat(job->dir_fd, name, O_RDONLY | O_CLOEXEC);
    size_t done = 0, size;
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        die(name);
    size = (size_t)st.st_size;
    if (size > *cap) {
        free(*buffer);
        *buffer = malloc(size);
        *cap = size;
        if (!*buffer)
            die(name);
    }
    while (done < size) {
        ssize_t n = read(fd, *buffer + done, size - done);

        if (n <= 0)
            die(name);
        done += (size_t)n;
    }
    if (job->drop)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return size;
}

static void *files_thread(void *arg)
{
    struct job *job = arg;
    char *buffer = NULL;
    size_t cap = 0;
    size_t i;

    while ((i = atomic_fetch_add(&job->next, 1)) < job->count)
        atomic_fetch_add(&job->bytes, read_whole(job, job->names[i], &buffer, &cap));
    free(buffer);
    return NULL;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *handles_thread(void *arg)
{
    struct job *job = arg;
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15) * (atomic_fetch_add(&job->seed, 1) + 1u);
    char *buffer = malloc(job->block);

    if (!buffer)
        die("buffer");
    while (atomic_fetch_add(&job->next, 1) < job->reads) {
        size_t i = (size_t)(next_random(&state) % job->count);
        uint64_t blocks = (uint64_t)job->sizes[i] / job->block;
        uint64_t at = blocks ? next_random(&state) % blocks * job->block : 0;
        ssize_t n = pread(job->fds[i], buffer, job->block, (off_t)at);

        if (n < 0 || (blocks && (size_t)n != job->block))
            die(job->names[i]);
        atomic_fetch_add(&job->bytes, (uint64_t)n);
    }
    free(buffer);
    return NULL;
}

static void open_handles(struct job *job)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    job->fds = calloc(job->count, sizeof(*job->fds));
    job->sizes = calloc(job->count, sizeof(*job->sizes));
    if (!job->fds || !job->sizes)
        die("handles");
    for (size_t i = 0; i < job->count; i++) {
        struct stat st;

        job->fds[i] = openat(job->dir_fd, job->names[i], O_RDONLY | O_CLOEXEC);
        if (job->fds[i] < 0 || fstat(job->fds[i], &st))
            die(job->names[i]);
        job->sizes[i] = st.st_size;
    }
}

int main(int argc, char **argv)
{
    bool files = argc >= 5 && !strcmp(argv[1], "files");
    bool handles = argc == 7 && !strcmp(argv[1], "handles");
    struct job job = {.dir_fd = -1};
    pthread_t threads[THREADS_MAX];
    unsigned count;
    double start;

    if (!files && !handles) {
        fprintf(stderr, "usage: bench_reader files DIRECTORY LIST THREADS [drop]\n"
                        "       bench_reader handles DIRECTORY LIST THREADS READS BLOCK\n");
        return 2;
    }
    job.dir_fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (job.dir_fd < 0)
        die(argv[2]);
    read_list(&job, argv[3]);
    count = (unsigned)number(argv[4]);
    if (count == 0 || count > THREADS_MAX || job.count == 0) {
        errno = EINVAL;
        die("threads or list");
    }
    job.drop = files && argc == 6 && !strcmp(argv[5], "drop");
    if (handles) {
        job.reads = number(argv[5]);
        job.block = (size_t)number(argv[6]);
        open_handles(&job);
    }
    start = now_s();
    for (unsigned i = 0; i < count; i++) {
        errno = pthread_create(&threads[i], NULL, files ? files_thread : handles_thread, &job);
        if (errno)
            die("thread");
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    printf("%.6f %llu %zu\n", now_s() - start, (unsigned long long)job.bytes, job.count);
    return 0;
}
