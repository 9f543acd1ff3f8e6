/* SPDX-License-Identifier: Apache-2.0
 *
 * Text that grows, and the encodings of S3: percent, hex, XML, times.
 *
 * Memory that is not to be had ends the program: it serves tests only.
 *
 * Threads:   one thread per object.
 * Ownership: the caller's; s3_text_fini() frees.
 */
#ifndef DCTF_TESTS_S3_TEXT_H
#define DCTF_TESTS_S3_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is an empty text. data ends with a NUL that len does not count; NULL while empty. */
struct s3_text {
    char *data;
    size_t len;
    size_t cap;
};

/* Zeroed memory, to free(). */
void *s3_alloc(size_t size);
void *s3_realloc(void *old, size_t size);
char *s3_copy(const char *text);
char *s3_copy_n(const char *text, size_t len);

void s3_text_fini(struct s3_text *text);
void s3_text_add_n(struct s3_text *text, const void *data, size_t len);
void s3_text_add(struct s3_text *text, const char *string);
__attribute__((format(printf, 2, 3))) void s3_text_printf(struct s3_text *text, const char *format, ...);

/* Escaped for XML. Control characters become references, valid in XML 1.0 or not, as S3 does it. */
void s3_text_xml(struct s3_text *text, const char *string);
/* <name>escaped value</name> */
void s3_text_element(struct s3_text *text, const char *name, const char *value);
/* Percent-encoded; what is in `keep`, and letters, digits and -._~, stays. */
void s3_text_uri(struct s3_text *text, const char *string, const char *keep);
void s3_text_hex(struct s3_text *text, const void *data, size_t len);

/* Decode percent escapes in place, and '+' to space if told. False when an escape is broken or stands for
 * NUL. */
bool s3_uri_decode(char *string, bool plus);

/* Bytes of lower- or upper-case hex; false when it is something else or not exactly size bytes. */
bool s3_unhex(const char *hex, void *out, size_t size);

bool s3_is_utf8(const char *string);

/* Times in nanoseconds since 1970. out holds at least 32 bytes. */
void s3_time_http(int64_t ns, char *out); /* Sun, 06 Nov 1994 08:49:37 GMT */
void s3_time_iso(int64_t ns, char *out);  /* 1994-11-06T08:49:37.000Z: whole seconds, as S3 */
void s3_time_z(int64_t ns, char *out);    /* 1994-11-06T08:49:37Z */

#endif
