/* SPDX-License-Identifier: Apache-2.0
 *
 * The only file that sees libxml2.
 */
#include "transport/xml_reader.h"

#include "base/log.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

#include <libxml/parser.h>
#include <libxml/parserInternals.h> /* xmlCreateMemoryParserCtxt() */

void dctf_xml_stop(struct dctf_xml_reader *reader, enum dctf_err err)
{
    if (!reader->err)
        reader->err = err;
    xmlStopParser(reader->parser);
}

/* libxml2's reason as one of our codes. Without this it prints to stderr. */
static void on_error(void *ctx, xmlErrorPtr error)
{
    struct dctf_xml_reader *reader = ctx;

    if (reader->err || error->level < XML_ERR_ERROR)
        return;
    dctf_log(DCTF_LOG_DEBUG, "xml", "code=%d line=%d", error->code, error->line);
    reader->err = error->code == XML_ERR_NO_MEMORY ? DCTF_ERR_NO_MEMORY : DCTF_ERR_BAD_RESPONSE;
}

static void on_doctype(void *ctx, const xmlChar *name, const xmlChar *external, const xmlChar *system)
{
    (void)name;
    (void)external;
    (void)system;
    dctf_xml_stop(ctx, DCTF_ERR_BAD_RESPONSE);
}

static void on_start(void *ctx, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri,
    int namespaces, const xmlChar **namespace_list, int attributes, int defaulted,
    const xmlChar **attribute_list)
{
    struct dctf_xml_reader *reader = ctx;

    (void)prefix;
    (void)uri;
    (void)namespaces;
    (void)namespace_list;
    (void)attributes;
    (void)defaulted;
    (void)attribute_list;
    if (reader->err)
        return;
    reader->depth++;
    reader->gather = false;
    dctf_str_clear(&reader->text);
    reader->open(reader, (const char *)name);
}

static void on_end(void *ctx, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri)
{
    struct dctf_xml_reader *reader = ctx;

    (void)prefix;
    (void)uri;
    if (reader->text.err)
        dctf_xml_stop(reader, reader->text.err);
    if (reader->err)
        return;
    reader->close(reader, (const char *)name);
    reader->gather = false;
    dctf_str_clear(&reader->text);
    reader->depth--;
}

static void on_text(void *ctx, const xmlChar *text, int len)
{
    struct dctf_xml_reader *reader = ctx;

    if (reader->gather)
        dctf_str_add(&reader->text, text, (size_t)len);
}

static void init_library(void)
{
    xmlInitParser(); /* not safe from several threads at once in every release */
}

enum dctf_err dctf_xml_read(struct dctf_xml_reader *reader, const char *xml, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const xmlSAXHandler sax = {
        .initialized = XML_SAX2_MAGIC,
        .internalSubset = on_doctype,
        .startElementNs = on_start,
        .endElementNs = on_end,
        .characters = on_text,
        .ignorableWhitespace = on_text,
        .cdataBlock = on_text,
        .serror = on_error,
    };
    xmlParserCtxtPtr parser;

    if (!len || len > INT_MAX)
        return DCTF_ERR_BAD_RESPONSE;
    pthread_once(&once, init_library);
    parser = xmlCreateMemoryParserCtxt(xml, (int)len);
    if (!parser)
        return DCTF_ERR_NO_MEMORY;
    *parser->sax = sax;
    parser->userData = reader;
    reader->parser = parser;
    xmlCtxtUseOptions(parser, XML_PARSE_NONET);
    if ((xmlParseDocument(parser) || !parser->wellFormed) && !reader->err)
        reader->err = DCTF_ERR_BAD_RESPONSE;
    xmlFreeParserCtxt(parser);
    reader->parser = NULL;
    return reader->err;
}

void dctf_xml_reader_fini(struct dctf_xml_reader *reader)
{
    if (reader->text.data)
        explicit_bzero(reader->text.data, reader->text.cap);
    dctf_str_fini(&reader->text);
}
