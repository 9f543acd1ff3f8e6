/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a listing, an error document, an STS answer and a time.
 */
#include "transport/s3_xml.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_list(const char *xml, size_t len)
{
    struct dctf_s3_list list;

    if (dctf_s3_list_parse(xml, len, &list)) {
        require(!list.objects && !list.memory && !list.next_token && !list.count);
        return;
    }
    require(list.truncated == (list.next_token != NULL));
    require(!list.truncated || *list.next_token);
    for (size_t i = 0; i < list.count; i++) {
        const struct dctf_s3_object *object = &list.objects[i];

        require(strlen(object->key) <= len && *object->key);
        require(object->size <= INT64_MAX);
        require((*object->etag == '\0') == object->is_prefix);
    }
    dctf_s3_list_fini(&list);
}

static void check_printable(const char *text, size_t cap)
{
    require(memchr(text, '\0', cap) != NULL);
    for (; *text; text++)
        require((unsigned char)*text >= ' ' && *text != 0x7f);
}

static void check_error(const char *xml, size_t len)
{
    struct dctf_s3_error error;

    dctf_s3_error_parse(xml, len, &error);
    check_printable(error.code, sizeof(error.code));
    check_printable(error.message, sizeof(error.message));
    check_printable(error.region, sizeof(error.region));
    check_printable(error.endpoint, sizeof(error.endpoint));
    check_printable(error.server_time, sizeof(error.server_time));
    check_printable(error.request_id, sizeof(error.request_id));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    int64_t ns;

    require(text != NULL);
    memcpy(text, data, size);
    check_list(text, size);
    check_error(text, size);
    free(dctf_xml_text(text, size, "SessionToken"));
    text[size] = '\0';
    if (!dctf_iso8601_parse(text, &ns))
        require(!ns);
    free(text);
    return 0;
}
