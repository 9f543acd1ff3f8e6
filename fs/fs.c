/* SPDX-License-Identifier: Apache-2.0
 *
 * Building the filesystem up, mounting it, and taking it down in the order in which
 * the parts depend on each other.
 */
#include "fs/fs_private.h"

#include "base/budget.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/thread.h"
#include "base/timer.h"
#include "cache/store.h"
#include "cluster/cluster.h"
#include "fs/ahead.h"
#include "fs/deferred.h"
#include "fs/early.h"
#include "fs/loop.h"
#include "fs/mountpoint.h"
#include "fs/network.h"
#include "fs/notify.h"
#include "fs/runtime.h"
#include "transport/fetch.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1024u * 1024u)
#define WRITERS 2u
#define WRITE_QUEUE 4096u
#define SESSION_THREADS 16u
#define NOTIFY_QUEUE 65536u
#define ORIGIN_CLOSE_WAIT_MS 2000u
#define CLUSTER_CONCURRENCY 64u /* requests to peers at once; those to the source are bounded below */
#define CHECK_MAX_MS 10000u
#define WAKE_SIGNAL SIGUSR2 /* breaks off a read of /dev/fuse */

/* Parts ------------------------------------------------------------------------------- */

/* Make every directory of `path`. */
static void make_parents(const char *path)
{
    char *copy = strdup(path);

    for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(copy, 0755);
        *slash = '/';
    }
    free(copy);
}

static enum dctf_err open_origin(struct dctf_fs *fs, const struct dctf_fs_config *config, char *detail)
{
    struct dctf_origin_config origin = {
        .source = fs->source,
        .concurrency = (unsigned)fs->config->origin_concurrency,
        .options = fs->config,
        .metrics = fs->metrics,
        .detail = detail,
    };
    uint64_t wait_ms =
        fs->config->read_deadline_ms < CHECK_MAX_MS ? fs->config->read_deadline_ms : CHECK_MAX_MS;
    enum dctf_err err = dctf_origin_open(config->schemes, &origin, &fs->origin);

    if (err) {
        if (!*detail)
            snprintf(detail, 256, "source %.200s", fs->source);
        return err;
    }
    return fs->origin->ops->check(fs->origin, wait_ms, detail);
}

static struct dctf_store_config store_config(const struct dctf_fs *fs)
{
    const struct dctf_config *options = fs->config;

    return (struct dctf_store_config){
        .dir = fs->cache_dir,
        .size_bytes = options->cache_size,
        .reserve_bytes = options->cache_reserve,
        .reserve_inodes_pct = (unsigned)options->cache_reserve_inodes_pct,
        .memory_bytes = fs->memory_bytes / 4,
        .dataset = fs->dataset,
        .heat_half_life_ms = options->heat_half_life,
        .heat_ttl_ms = options->heat_ttl,
        .scrub = options->scrub,
        .metrics = fs->metrics,
    };
}

static enum dctf_err open_store(struct dctf_fs *fs, char *detail)
{
    struct dctf_store_config store = store_config(fs);
    char owner[512];

    store.owner = owner;
    snprintf(owner, sizeof(owner), "pid %d on %.400s", (int)getpid(), fs->mountpoint);
    make_parents(fs->cache_dir);
    return dctf_store_open(&store, detail, &fs->store);
}

static enum dctf_err build_base(struct dctf_fs *fs)
{
    enum dctf_err err = dctf_metrics_new(&fs->metrics);

    if (!err)
        err = dctf_timers_new(&fs->timers);
    if (!err)
        err = dctf_budget_new(fs->memory_bytes / 2, &fs->budget);
    if (!err)
        err = dctf_pool_new(&(struct dctf_pool_config){"dctf-write", WRITERS, WRITE_QUEUE}, &fs->writers);
    if (!err)
        err = dctf_pool_new(&(struct dctf_pool_config){"dctf-ahead", 1, 64}, &fs->ahead_pool);
    if (!err)
        err = dctf_deferred_new(&fs->deferred);
    return err;
}

/* Put the cluster, if there is one, between the engine and the source. */
static enum dctf_err join_cluster(struct dctf_fs *fs, char *detail)
{
    struct dctf_cluster_config cluster = {
        .options = fs->config,
        .dataset = fs->dataset,
        .feature_by = fs->feature_by,
        .upstream = fs->origin,
        .store = fs->store,
        .budget = fs->budget,
        .pool = fs->writers,
        .timers = fs->timers,
        .metrics = fs->metrics,
    };
    enum dctf_err err;

    if (!dctf_cluster_is_wanted(fs->config))
        return DCTF_OK;
    err = dctf_network_new(NULL, NULL, &fs->network);
    if (!err)
        err = dctf_cluster_new(&cluster, detail, &fs->cluster);
    if (err)
        return err;
    fs->upstream = fs->origin;
    fs->origin = dctf_cluster_origin(fs->cluster);
    return DCTF_OK;
}

static void version_gone(void *ctx, struct dctf_version *version)
{
    dctf_dir_version_gone(ctx, version);
}

static enum dctf_err build_read_path(struct dctf_fs *fs)
{
    const struct dctf_config *options = fs->config;
    struct dctf_fetch_config fetch = {
        .origin = fs->origin,
        .timers = fs->timers,
        .metrics = fs->metrics,
        .counted_below = fs->cluster != NULL,
        .concurrency = fs->cluster ? CLUSTER_CONCURRENCY : (unsigned)options->origin_concurrency,
        /* The cluster's own scheduler has tried the source again before it says no. */
        .retries = fs->cluster ? 1 : (unsigned)options->origin_retries,
        .retry_budget = (unsigned)options->origin_retry_budget,
        .seed = dctf_rng_seed(),
    };
    enum dctf_err err = dctf_fetch_new(&fetch, &fs->fetch);
    struct dctf_ns_config ns = {
        .fetch = fs->fetch,
        .listings = dctf_store_listings(fs->store),
        .timers = fs->timers,
        .metrics = fs->metrics,
        .cluster = fs->cluster,
        .ttl_ms = options->metadata_ttl,
        .silence_ms = options->list_deadline_ms,
    };
    struct dctf_engine_config engine = {
        .store = fs->store,
        .fetch = fs->fetch,
        .budget = fs->budget,
        .timers = fs->timers,
        .pool = fs->writers,
        .metrics = fs->metrics,
        .read_deadline_ms = options->read_deadline_ms,
        .fetch_max = options->fetch_max,
        .readahead = options->readahead,
        .version_gone = version_gone,
        .ctx = fs,
    };

    if (!err)
        err = dctf_inodes_new(fs->dataset, fs->metrics, &fs->inodes);
    if (!err)
        err = dctf_ns_new(&ns, &fs->ns);
    if (!err)
        err = dctf_engine_new(&engine, &fs->engine);
    if (!err) {
        struct dctf_ahead_config ahead = {
            .engine = fs->engine,
            .listings = ns.listings,
            .pool = fs->ahead_pool,
            .dataset = fs->dataset,
            .feature_by = fs->feature_by,
            .shards_max = (uint32_t)options->readahead_shards,
            .bytes_max = options->readahead,
        };

        err = dctf_ahead_new(&ahead, &fs->ahead);
    }
    if (!err)
        err = dctf_early_new(&fs->early);
    return err;
}

static enum dctf_err list_directory(void *ctx, const char *dir)
{
    struct dctf_fs *fs = ctx;
    struct dctf_listing_state state;

    return dctf_ns_resolve_now(fs->ns, dir, &state);
}

static enum dctf_err start_copies(struct dctf_fs *fs)
{
    return fs->cluster ? dctf_cluster_start_copies(fs->cluster, list_directory, fs) : DCTF_OK;
}

/* Session ------------------------------------------------------------------------------ */

static int send_inval_entry(void *ctx, uint64_t parent, const char *name, size_t len)
{
    struct dctf_fs *fs = ctx;

    return fuse_lowlevel_notify_inval_entry(fs->session, parent, name, len);
}

/* A source's name as a mount option: commas and backslashes are escaped. */
static void add_fsname(struct dctf_str *out, const char *source)
{
    dctf_str_puts(out, "fsname=");
    for (const char *c = source; *c; c++) {
        if (*c == ',' || *c == '\\')
            dctf_str_puts(out, "\\");
        dctf_str_add(out, c, 1);
    }
}

static int receive_request(void *ctx, struct fuse_buf *buf)
{
    struct dctf_fs *fs = ctx;

    return fuse_session_receive_buf(fs->session, buf);
}

static void process_request(void *ctx, const struct fuse_buf *buf)
{
    struct dctf_fs *fs = ctx;

    fuse_session_process_buf(fs->session, buf);
}

/* As many as can run, and one that stands by while they do. */
static unsigned receivers_max(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return processors > 0 && processors < SESSION_THREADS ? (unsigned)processors + 1 : SESSION_THREADS;
}

static enum dctf_err build_session(struct dctf_fs *fs)
{
    struct dctf_notify_ops notify = {send_inval_entry, fs};
    struct dctf_loop_config loop = {
        .threads_max = SESSION_THREADS,
        .receivers_max = receivers_max(),
        .wake_signal = WAKE_SIGNAL,
        .receive = receive_request,
        .process = process_request,
        .ctx = fs,
    };
    struct dctf_str options;
    char *argv[] = {(char *)"dctffs", (char *)"-o", NULL, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    enum dctf_err err;

    dctf_str_init(&options);
    add_fsname(&options, fs->source);
    dctf_str_printf(
        &options, ",subtype=dctffs,ro,nosuid,nodev,default_permissions,max_read=%u", DCTF_READ_MAX);
    if (fs->config->allow_other)
        dctf_str_puts(&options, ",allow_other");
    err = options.err;
    if (!err) {
        argv[2] = options.data;
        fs->session = fuse_session_new(&args, &dctf_fs_ops, sizeof(dctf_fs_ops), fs);
        fuse_opt_free_args(&args);
        if (!fs->session)
            err = DCTF_ERR_MOUNT_FAILED;
    }
    dctf_str_fini(&options);
    if (!err)
        err = dctf_passthrough_new(fs->config->passthrough == 0, &fs->passthrough);
    if (!err)
        err = dctf_notify_new(&notify, NOTIFY_QUEUE, fs->metrics, &fs->notify);
    if (!err)
        err = dctf_loop_new(&loop, &fs->loop);
    return err;
}

static struct dctf_fs *fs_alloc(void)
{
    struct dctf_fs *fs = calloc(1, sizeof(*fs));

    if (!fs)
        return NULL;
    pthread_mutex_init(&fs->files_lock, NULL);
    pthread_mutex_init(&fs->stale_lock, NULL);
    pthread_mutex_init(&fs->stop_lock, NULL);
    if (dctf_thread_cond_init(&fs->stop_cond)) {
        free(fs);
        return NULL;
    }
    dctf_list_init(&fs->file_handles);
    dctf_list_init(&fs->dir_handles);
    dctf_list_init(&fs->contents);
    return fs;
}

enum dctf_err dctf_fs_check_cache(const struct dctf_fs_config *config, char *detail)
{
    struct dctf_fs *fs = fs_alloc();
    enum dctf_err err = fs ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    *detail = '\0';
    if (!err)
        err = dctf_fs_identify(fs, config);
    if (!err) {
        struct dctf_store_config store = store_config(fs);

        err = dctf_store_check(&store, detail);
    }
    dctf_fs_free(fs);
    return err;
}

enum dctf_err dctf_fs_new(const struct dctf_fs_config *config, char *detail, struct dctf_fs **out)
{
    struct dctf_fs *fs = fs_alloc();
    enum dctf_err err = fs ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    *out = NULL;
    *detail = '\0';
    if (!err)
        err = dctf_fs_identify(fs, config);
    if (!err)
        err = build_base(fs);
    if (!err)
        err = open_origin(fs, config, detail);
    if (!err)
        err = open_store(fs, detail);
    if (!err)
        err = join_cluster(fs, detail);
    if (!err)
        err = build_read_path(fs);
    if (!err)
        err = build_session(fs);
    if (!err)
        err = dctf_share_listings(fs);
    if (!err)
        err = start_copies(fs);
    if (err) {
        dctf_fs_free(fs);
        return err;
    }
    *out = fs;
    return DCTF_OK;
}

/* The device of the mount, its read-ahead, and word of where the daemon can be found. */
static void settle_mount(struct dctf_fs *fs, char *socket)
{
    struct dctf_mount_info info;
    struct dctf_runtime runtime = {
        .mountpoint = fs->mountpoint,
        .source = fs->source,
        .cache_dir = fs->cache_dir,
        .socket = socket,
        .version = (char *)DCTF_VERSION,
        .options = dctf_runtime_options(fs->config),
        .pid = getpid(),
        .started_ms = fs->started_ms,
    };
    unsigned kb = (unsigned)fs->config->read_ahead_kb;
    enum dctf_err err = dctf_mount_find(fs->mountpoint, &info);

    if (!err) {
        fs->dev_major = runtime.major = info.major;
        fs->dev_minor = runtime.minor = info.minor;
        if (kb && dctf_mount_set_read_ahead(&info, kb))
            dctf_log(DCTF_LOG_INFO, "mount", "read_ahead_kb not set: needs root");
        fs->read_ahead_kb = dctf_mount_read_ahead(&info);
        dctf_mount_info_fini(&info);
    }
    err = dctf_runtime_write(&runtime);
    free(runtime.options);
    if (err)
        dctf_log(DCTF_LOG_WARN, "mount", "cannot leave word for the tools err=%d", err);
}

enum dctf_err dctf_fs_mount(struct dctf_fs *fs, char *detail)
{
    char *socket = NULL;
    enum dctf_err err;

    *detail = '\0';
    if (fuse_session_mount(fs->session, fs->mountpoint)) {
        snprintf(detail, 256, "mount on %.200s failed (see the line above)", fs->mountpoint);
        return DCTF_ERR_MOUNT_FAILED;
    }
    fs->mounted = true;
    err = dctf_passthrough_attach(fs->passthrough, fs->session);
    if (err) {
        snprintf(detail, 256, "the kernel did not take the session");
        return err;
    }
    /* Without a socket the mount works; only the tools do not. */
    if (!dctf_runtime_socket_path(fs->mountpoint, 1, &socket)) {
        err = dctf_control_start(fs, socket, &fs->control);
        settle_mount(fs, socket);
    } else {
        dctf_log(DCTF_LOG_WARN, "mount", "no place for the control socket: `dctf` will not reach this mount");
    }
    free(socket);
    dctf_log(DCTF_LOG_INFO, "mount",
        "mounted source=%s cache_dir=%s memory_mib=%" PRIu64 " passthrough=\"%s\"", fs->source, fs->cache_dir,
        fs->memory_bytes / MIB, dctf_passthrough_reason(fs->passthrough));
    return DCTF_OK;
}

static void wake_handler(int signal)
{
    (void)signal;
}

enum dctf_err dctf_fs_serve(struct dctf_fs *fs)
{
    struct sigaction action = {.sa_handler = wake_handler};
    int result;

    sigemptyset(&action.sa_mask);
    sigaction(WAKE_SIGNAL, &action, NULL);
    result = dctf_loop_run(fs->loop);
    pthread_mutex_lock(&fs->stop_lock);
    fs->ended = true;
    pthread_cond_broadcast(&fs->stop_cond);
    pthread_mutex_unlock(&fs->stop_lock);
    return result < 0 && !fuse_session_exited(fs->session) ? DCTF_ERR_MOUNT_FAILED : DCTF_OK;
}

static void forget_runtime(struct dctf_fs *fs)
{
    struct dctf_runtime runtime;

    if (dctf_runtime_read(fs->mountpoint, &runtime))
        return;
    if (runtime.pid == getpid())
        dctf_runtime_remove(&runtime);
    dctf_runtime_fini(&runtime);
}

static void leave_cluster(struct dctf_fs *fs)
{
    if (!fs->cluster)
        return;
    fs->origin->ops->close(fs->origin, ORIGIN_CLOSE_WAIT_MS);
    fs->cluster = NULL;
    fs->origin = fs->upstream;
    fs->upstream = NULL;
}

/* Nothing comes from the kernel any more; end what waits, then what works, then what
 * stores. */
static void end_work(struct dctf_fs *fs)
{
    if (fs->engine)
        dctf_engine_stop(fs->engine);
    if (fs->ns)
        dctf_ns_stop(fs->ns);
    if (fs->mounted)
        dctf_fs_abort(fs); /* else a notification that waits in the kernel waits for an answer of ours */
    dctf_control_stop(fs->control);
    dctf_pool_free(fs->ahead_pool);
    dctf_fetch_free(fs->fetch);
    leave_cluster(fs); /* it writes to the tiers as well */
    dctf_pool_free(fs->writers);
    dctf_deferred_free(fs->deferred);
    dctf_notify_free(fs->notify);
    if (fs->inodes) {
        dctf_files_close_all(fs);
        dctf_dirs_close_all(fs);
        dctf_virtual_close_all(fs);
    }
    dctf_ahead_free(fs->ahead);
    dctf_early_free(fs->early);
    dctf_ns_free(fs->ns);
    if (fs->origin)
        fs->origin->ops->close(fs->origin, ORIGIN_CLOSE_WAIT_MS);
    if (dctf_engine_free(fs->engine))
        dctf_budget_free(fs->budget);
}

void dctf_fs_free(struct dctf_fs *fs)
{
    bool join;

    if (!fs)
        return;
    pthread_mutex_lock(&fs->stop_lock);
    fs->ended = true;
    join = fs->stop_started;
    pthread_cond_broadcast(&fs->stop_cond);
    pthread_mutex_unlock(&fs->stop_lock);
    if (join)
        pthread_join(fs->stop_thread, NULL);
    end_work(fs);
    if (fs->mounted) {
        forget_runtime(fs);
        fuse_session_unmount(fs->session);
    }
    dctf_passthrough_free(fs->passthrough);
    dctf_loop_free(fs->loop);
    if (fs->session)
        fuse_session_destroy(fs->session);
    dctf_inodes_free(fs->inodes);
    if (fs->store)
        dctf_store_close(fs->store);
    dctf_timers_free(fs->timers);
    dctf_metrics_free(fs->metrics);
    dctf_network_free(fs->network);
    free(fs->cache_dir);
    free(fs->mountpoint);
    free(fs->source);
    pthread_cond_destroy(&fs->stop_cond);
    pthread_mutex_destroy(&fs->stop_lock);
    pthread_mutex_destroy(&fs->stale_lock);
    pthread_mutex_destroy(&fs->files_lock);
    free(fs);
}
