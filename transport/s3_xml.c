/* SPDX-License-Identifier: Apache-2.0
 *
 * What a leaf's text means follows from its name, its parent's, and its depth.
 *
 * The strings of a listing lie in one block, as offsets until the block is complete
 * (it moves while it grows), then as pointers.
 */
#include "transport/s3_xml.h"

#include "base/str.h"
#include "transport/origin.h"
#include "transport/xml_reader.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Listing */

enum list_field {
    FIELD_KEY = 1,
    FIELD_SIZE = 2,
    FIELD_ETAG = 4,
    FIELD_MTIME = 8,
    FIELD_ALL = 15,
};

struct list_entry {
    size_t key; /* offset in `strings` */
    size_t etag;
    uint64_t size;
    int64_t mtime_ns;
    bool is_prefix;
};

struct list_parse {
    enum { IN_NOTHING, IN_CONTENTS, IN_COMMON_PREFIXES } in;
    unsigned seen; /* fields of the open entry */
    struct list_entry entry;
    struct list_entry *entries;
    size_t count;
    size_t cap;
    struct dctf_str strings;
    bool url_encoded;
    bool has_truncated;
    bool truncated;
    bool has_token;
    size_t token;
};

/* A copy of the gathered text with its NUL; its offset. */
static size_t keep_text(struct dctf_xml_reader *reader)
{
    struct list_parse *list = reader->ctx;
    size_t at = list->strings.len;

    dctf_str_add(&list->strings, dctf_str_c(&reader->text), reader->text.len + 1);
    if (list->strings.err)
        dctf_xml_stop(reader, list->strings.err);
    return at;
}

static void open_in_list(struct dctf_xml_reader *reader, const char *name)
{
    struct list_parse *list = reader->ctx;

    if (reader->depth == 1) {
        if (strcmp(name, "ListBucketResult") != 0)
            dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
    } else if (reader->depth == 2) {
        list->in = IN_NOTHING;
        if (!strcmp(name, "Contents"))
            list->in = IN_CONTENTS;
        else if (!strcmp(name, "CommonPrefixes"))
            list->in = IN_COMMON_PREFIXES;
        list->seen = 0;
        list->entry = (struct list_entry){.is_prefix = list->in == IN_COMMON_PREFIXES};
        reader->gather = list->in == IN_NOTHING;
    } else {
        reader->gather = reader->depth == 3 && list->in != IN_NOTHING;
    }
}

static bool parse_size(const char *text, uint64_t *out)
{
    uint64_t size = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(size, 10u, &size) ||
            __builtin_add_overflow(size, (uint64_t)(*text - '0'), &size))
            return false;
    }
    *out = size;
    return size <= INT64_MAX;
}

/* Between its quotes, if it has both. */
static size_t keep_etag(struct dctf_xml_reader *reader)
{
    struct dctf_str *text = &reader->text;

    if (text->len >= 2 && text->data[0] == '"' && text->data[text->len - 1] == '"') {
        text->len -= 2;
        memmove(text->data, text->data + 1, text->len);
        text->data[text->len] = '\0';
    }
    if (!text->len)
        dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
    return keep_text(reader);
}

static void set_entry_field(struct dctf_xml_reader *reader, const char *name)
{
    struct list_parse *list = reader->ctx;
    bool is_prefix = list->in == IN_COMMON_PREFIXES;
    const char *text = dctf_str_c(&reader->text);
    unsigned field = 0;
    bool ok = true;

    if (!strcmp(name, is_prefix ? "Prefix" : "Key")) {
        field = FIELD_KEY;
        ok = *text != '\0';
        list->entry.key = keep_text(reader);
    } else if (is_prefix) {
        return;
    } else if (!strcmp(name, "Size")) {
        field = FIELD_SIZE;
        ok = parse_size(text, &list->entry.size);
    } else if (!strcmp(name, "ETag")) {
        field = FIELD_ETAG;
        list->entry.etag = keep_etag(reader);
    } else if (!strcmp(name, "LastModified")) {
        field = FIELD_MTIME;
        ok = dctf_iso8601_parse(text, &list->entry.mtime_ns);
    }
    if (!ok || (list->seen & field))
        dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
    list->seen |= field;
}

static void add_entry(struct dctf_xml_reader *reader)
{
    struct list_parse *list = reader->ctx;

    if (list->seen != (list->entry.is_prefix ? FIELD_KEY : FIELD_ALL)) {
        dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
        return;
    }
    if (list->count == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 256;
        struct list_entry *entries = realloc(list->entries, cap * sizeof(*entries));

        if (!entries) {
            dctf_xml_stop(reader, DCTF_ERR_NO_MEMORY);
            return;
        }
        list->entries = entries;
        list->cap = cap;
    }
    list->entries[list->count++] = list->entry;
}

static void set_list_field(struct dctf_xml_reader *reader, const char *name)
{
    struct list_parse *list = reader->ctx;
    const char *text = dctf_str_c(&reader->text);

    if (!strcmp(name, "IsTruncated")) {
        list->truncated = !strcmp(text, "true");
        if (list->has_truncated || (!list->truncated && strcmp(text, "false") != 0))
            dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
        list->has_truncated = true;
    } else if (!strcmp(name, "NextContinuationToken")) {
        if (list->has_token)
            dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
        list->has_token = *text != '\0';
        list->token = keep_text(reader);
    } else if (!strcmp(name, "EncodingType")) {
        list->url_encoded = !strcmp(text, "url");
        if (*text && !list->url_encoded)
            dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
    }
}

static void close_in_list(struct dctf_xml_reader *reader, const char *name)
{
    struct list_parse *list = reader->ctx;

    if (reader->depth == 3 && list->in != IN_NOTHING)
        set_entry_field(reader, name);
    else if (reader->depth == 2 && list->in != IN_NOTHING)
        add_entry(reader);
    else if (reader->depth == 2)
        set_list_field(reader, name);
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

/* In place. A NUL is no part of a name here: *has_nul. */
static bool url_decode(char *text, bool *has_nul)
{
    char *to = text;

    *has_nul = false;
    for (; *text; text++) {
        char byte = *text == '+' ? ' ' : *text;

        if (byte == '%') {
            if (hex_value(text[1]) < 0 || hex_value(text[2]) < 0)
                return false;
            byte = (char)(hex_value(text[1]) << 4 | hex_value(text[2]));
            *has_nul = *has_nul || !byte;
            text += 2;
        }
        *to++ = byte;
    }
    *to = '\0';
    return true;
}

/* Offsets become pointers; what cannot be a name is counted and left out. */
static enum dctf_err resolve(struct list_parse *list, struct dctf_s3_list *out)
{
    char *strings = list->strings.data;

    if (!list->has_truncated || (list->truncated && !list->has_token))
        return DCTF_ERR_BAD_RESPONSE;
    out->objects = calloc(list->count ? list->count : 1, sizeof(*out->objects));
    if (!out->objects)
        return DCTF_ERR_NO_MEMORY;
    for (size_t i = 0; i < list->count; i++) {
        const struct list_entry *entry = &list->entries[i];
        bool has_nul = false;

        if (list->url_encoded && !url_decode(strings + entry->key, &has_nul))
            return DCTF_ERR_BAD_RESPONSE;
        if (has_nul) {
            out->unusable++;
            continue;
        }
        out->objects[out->count++] = (struct dctf_s3_object){
            .key = strings + entry->key,
            .is_prefix = entry->is_prefix,
            .size = entry->size,
            .mtime_ns = entry->mtime_ns,
            .etag = entry->is_prefix ? "" : strings + entry->etag,
        };
    }
    out->truncated = list->truncated;
    out->next_token = list->truncated ? strings + list->token : NULL;
    out->memory = strings; /* taken over */
    list->strings = (struct dctf_str){0};
    return DCTF_OK;
}

enum dctf_err dctf_s3_list_parse(const char *xml, size_t len, struct dctf_s3_list *out)
{
    struct list_parse list = {0};
    struct dctf_xml_reader reader = {.open = open_in_list, .close = close_in_list, .ctx = &list};
    enum dctf_err err;

    *out = (struct dctf_s3_list){0};
    err = dctf_xml_read(&reader, xml, len);
    if (!err)
        err = resolve(&list, out);
    if (err)
        dctf_s3_list_fini(out);
    dctf_xml_reader_fini(&reader);
    dctf_str_fini(&list.strings);
    free(list.entries);
    return err;
}

void dctf_s3_list_fini(struct dctf_s3_list *list)
{
    free(list->objects);
    free(list->memory);
    *list = (struct dctf_s3_list){0};
}

bool dctf_s3_is_etag(const char *text)
{
    const char *at = text;

    while ((unsigned char)*at >= 0x20 && *at != 0x7f)
        at++;
    return at > text && !*at;
}

bool dctf_s3_list_entry(
    struct dctf_s3_list *list, size_t at, const char *prefix, struct dctf_origin_entry *entry)
{
    const struct dctf_s3_object *object = &list->objects[at];
    size_t skip = strlen(prefix);
    char *name, *slash;

    if (strncmp(object->key, prefix, skip) != 0)
        return false;
    name = (char *)list->memory + (object->key - (const char *)list->memory) + skip;
    slash = strchr(name, '/');
    if (object->is_prefix) {
        if (!slash || slash[1])
            return false;
        *slash = '\0';
        *entry = (struct dctf_origin_entry){.name = name, .is_dir = true, .etag = ""};
        return true;
    }
    /* Without an ETag a version could not be told from the next. */
    if (slash || !dctf_s3_is_etag(object->etag))
        return false;
    *entry = (struct dctf_origin_entry){
        .name = name, .size = object->size, .mtime_ns = object->mtime_ns, .etag = object->etag};
    return true;
}

/* Error documents: <Error> of S3, <ErrorResponse><Error> of STS */

struct error_parse {
    struct dctf_s3_error *out;
    unsigned level; /* depth of <Error>; 0: not seen */
    bool is_error;
};

static void open_in_error(struct dctf_xml_reader *reader, const char *name)
{
    struct error_parse *error = reader->ctx;

    if (reader->depth == 1)
        error->is_error = !strcmp(name, "Error") || !strcmp(name, "ErrorResponse");
    if (!error->is_error)
        dctf_xml_stop(reader, DCTF_ERR_BAD_RESPONSE);
    if (!error->level && !strcmp(name, "Error"))
        error->level = reader->depth;
    reader->gather = reader->depth > 1;
}

/* Printable: this ends up in log lines. Cut between characters. */
static void copy_text(char *out, size_t cap, const struct dctf_str *text)
{
    const char *from = dctf_str_c(text);
    size_t len = text->len;

    if (len >= cap) {
        len = cap - 1;
        while (len && (from[len] & 0xc0) == 0x80)
            len--;
    }
    for (size_t i = 0; i < len; i++)
        out[i] = (unsigned char)from[i] < 0x20 || from[i] == 0x7f ? ' ' : from[i];
    out[len] = '\0';
}

static void close_in_error(struct dctf_xml_reader *reader, const char *name)
{
    struct error_parse *error = reader->ctx;
    struct dctf_s3_error *out = error->out;
    const struct {
        const char *name;
        char *field;
        size_t cap;
    } fields[] = {
        {"Code", out->code, sizeof(out->code)},
        {"Message", out->message, sizeof(out->message)},
        {"Region", out->region, sizeof(out->region)},
        {"Endpoint", out->endpoint, sizeof(out->endpoint)},
        {"ServerTime", out->server_time, sizeof(out->server_time)},
    };

    if (!reader->gather)
        return;
    if (!strcmp(name, "RequestId") && reader->depth <= 3)
        copy_text(out->request_id, sizeof(out->request_id), &reader->text);
    if (!error->level || reader->depth != error->level + 1)
        return;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!strcmp(name, fields[i].name))
            copy_text(fields[i].field, fields[i].cap, &reader->text);
    }
}

void dctf_s3_error_parse(const char *xml, size_t len, struct dctf_s3_error *out)
{
    struct error_parse error = {.out = out};
    struct dctf_xml_reader reader = {.open = open_in_error, .close = close_in_error, .ctx = &error};

    *out = (struct dctf_s3_error){0};
    /* What came whole of a cut document is better than nothing. */
    (void)!dctf_xml_read(&reader, xml, len);
    dctf_xml_reader_fini(&reader);
}

/* One element's text */

struct text_parse {
    const char *element;
    char *found;
};

static void open_for_text(struct dctf_xml_reader *reader, const char *name)
{
    const struct text_parse *text = reader->ctx;

    reader->gather = !text->found && !strcmp(name, text->element);
}

static void close_for_text(struct dctf_xml_reader *reader, const char *name)
{
    struct text_parse *text = reader->ctx;

    (void)name;
    if (!reader->gather)
        return;
    text->found = strndup(dctf_str_c(&reader->text), reader->text.len);
    if (!text->found)
        dctf_xml_stop(reader, DCTF_ERR_NO_MEMORY);
}

char *dctf_xml_text(const char *xml, size_t len, const char *element)
{
    struct text_parse text = {.element = element};
    struct dctf_xml_reader reader = {.open = open_for_text, .close = close_for_text, .ctx = &text};

    if (dctf_xml_read(&reader, xml, len) && text.found) {
        explicit_bzero(text.found, strlen(text.found));
        free(text.found);
        text.found = NULL;
    }
    dctf_xml_reader_fini(&reader);
    return text.found;
}

/* Time */

/* `count` digits at *text, which moves past them. */
static bool take_digits(const char **text, unsigned count, int *out)
{
    *out = 0;
    for (; count; count--, (*text)++) {
        if (**text < '0' || **text > '9')
            return false;
        *out = *out * 10 + (**text - '0');
    }
    return true;
}

static bool take_byte(const char **text, char byte)
{
    if (**text != byte)
        return false;
    (*text)++;
    return true;
}

/* ".123" → 123000000 */
static int64_t take_fraction(const char **text)
{
    int64_t ns = 0;
    int64_t scale = 100000000;

    for (; **text >= '0' && **text <= '9'; (*text)++, scale /= 10)
        ns += (**text - '0') * scale;
    return ns;
}

bool dctf_iso8601_parse(const char *text, int64_t *out_ns)
{
    struct tm tm = {0};
    struct tm given;
    int64_t ns = 0;
    int64_t total;

    *out_ns = 0;
    if (!take_digits(&text, 4, &tm.tm_year) || !take_byte(&text, '-') || !take_digits(&text, 2, &tm.tm_mon) ||
        !take_byte(&text, '-') || !take_digits(&text, 2, &tm.tm_mday) || !take_byte(&text, 'T') ||
        !take_digits(&text, 2, &tm.tm_hour) || !take_byte(&text, ':') || !take_digits(&text, 2, &tm.tm_min) ||
        !take_byte(&text, ':') || !take_digits(&text, 2, &tm.tm_sec))
        return false;
    if (take_byte(&text, '.')) {
        if (*text < '0' || *text > '9')
            return false;
        ns = take_fraction(&text);
    }
    if (strcmp(text, "Z") != 0 || tm.tm_sec > 59 || tm.tm_min > 59 || tm.tm_hour > 23)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    given = tm;
    total = timegm(&tm);
    /* The 31st of a month that has none became another day. */
    if (given.tm_mday != tm.tm_mday || given.tm_mon != tm.tm_mon)
        return false;
    if (__builtin_mul_overflow(total, (int64_t)1000000000, &total) ||
        __builtin_add_overflow(total, ns, &total))
        return false;
    *out_ns = total;
    return true;
}
