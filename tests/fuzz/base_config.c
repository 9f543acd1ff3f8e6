/* SPDX-License-Identifier: Apache-2.0
 *
 * Any text as a configuration file and as mount options. A failure says one line;
 * a success is written out, and if that reads back, it means the same.
 */
#include "base/config.h"
#include "base/str.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void write_all(const struct dctf_config *config, struct dctf_str *out)
{
    dctf_str_puts(out, "[global]\n");
    dctf_config_write(config, out);
    require(!out->err);
}

static void check_reads_back(const struct dctf_config *config)
{
    struct dctf_config copy;
    struct dctf_config_error error;
    struct dctf_str first;
    struct dctf_str second;

    dctf_str_init(&first);
    dctf_str_init(&second);
    write_all(config, &first);
    require(!dctf_config_init(&copy));
    /* A line may have become too long by its spaces and quotes: then it is refused. */
    if (!dctf_config_load_text(&copy, "written", dctf_str_c(&first), NULL, &error)) {
        write_all(&copy, &second);
        require(!strcmp(dctf_str_c(&first), dctf_str_c(&second)));
    }
    dctf_config_fini(&copy);
    dctf_str_fini(&first);
    dctf_str_fini(&second);
}

static void check_result(
    const struct dctf_config *config, enum dctf_err err, const struct dctf_config_error *error)
{
    if (err)
        require(*error->text && memchr(error->text, '\0', sizeof(error->text)) &&
                !strpbrk(error->text, "\n\r\x1b"));
    else
        check_reads_back(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dctf_config config;
    struct dctf_config_error error;
    char *text = malloc(size + 1);

    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';

    memset(&error, 0, sizeof(error));
    require(!dctf_config_init(&config));
    check_result(&config, dctf_config_load_text(&config, "fuzz", text, "d", &error), &error);
    dctf_config_fini(&config);

    memset(&error, 0, sizeof(error));
    require(!dctf_config_init(&config));
    check_result(&config, dctf_config_load_options(&config, text, &error), &error);
    dctf_config_fini(&config);
    free(text);
    return 0;
}
