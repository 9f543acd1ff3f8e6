/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target on the files and directories given: what libFuzzer's main
 * does without fuzzing, for compilers that have no libFuzzer.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned replayed;

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t len = 0;
    size_t n;

    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    do {
        uint8_t *bigger = realloc(data, len + 65536);

        if (!bigger)
            abort();
        data = bigger;
        n = fread(data + len, 1, 65536, file);
        len += n;
    } while (n);
    fclose(file);
    printf("%s: %zu bytes\n", path, len);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, len);
    free(data);
    replayed++;
    return 0;
}

static int replay(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    char child[4096];
    int rc = 0;

    if (!dir)
        return replay_file(path);
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(child, sizeof(child), "%s/%s", path, entry->d_name);
        rc |= replay(child);
    }
    closedir(dir);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = 0;

    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        rc |= replay(argv[i]);
    printf("%u inputs\n", replayed);
    return rc;
}
