/* SPDX-License-Identifier: Apache-2.0
 *
 * dctf: look at and steer a running dctffs, through its control socket.
 */
#include "mount-tools/dctf_tool.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: dctf COMMAND [OPTION]… [MOUNT|PATH]…\n"
    "\n"
    "Look at and steer a mounted dctffs. MOUNT may be left out when exactly one is mounted;\n"
    "any path on a mount stands for it.\n"
    "\n"
    "  status   what is mounted, what the cache holds, where reads were served from\n"
    "  heat     features by heat\n"
    "  peers    members of the cluster, and how they answer\n"
    "  warm     fetch shards into the cache\n"
    "  evict    drop cached shards\n"
    "  sync     forget directory listings, so that changes of the source are seen\n"
    "  doctor   check a mount and what it needs; works while the daemon hangs or is dead\n"
    "  version  release of this tool, and of the daemon of a MOUNT\n"
    "\n"
    "Options of every command:\n"
    "  -j, --json       print JSON, one object per line\n"
    "      --timeout T  longest wait for the daemon (default 5s)\n"
    "  -h, --help       help of the command\n"
    "\n"
    "Exit status: 0 done, 1 failed (one line on stderr says why), 2 bad command line.\n";

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"status", dctf_cmd_status},
    {"heat", dctf_cmd_heat},
    {"peers", dctf_cmd_peers},
    {"warm", dctf_cmd_warm},
    {"evict", dctf_cmd_evict},
    {"sync", dctf_cmd_sync},
    {"doctor", dctf_cmd_doctor},
    {"version", dctf_cmd_version},
};

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    signal(SIGPIPE, SIG_DFL);
    if (!strcmp(name, "-h") || !strcmp(name, "--help") || !strcmp(name, "help")) {
        fputs(help, stdout);
        return DCTF_TOOL_DONE;
    }
    if (!strcmp(name, "-V") || !strcmp(name, "--version"))
        name = "version";
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (!strcmp(name, commands[i].name)) {
            argv[1] = (char *)commands[i].name;
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    if (!*name) {
        fputs(help, stderr);
        return DCTF_TOOL_USAGE;
    }
    return dctf_tool_usage(NULL, "unknown command \"%s\"", name);
}
