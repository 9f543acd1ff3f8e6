/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements and texts of one XML document in memory, by libxml2's SAX interface: no
 * tree, no network, no entities but XML's five (a document type ends the parse), nothing
 * on stderr.
 *
 * Threads:   one thread per reader.
 * Ownership: a reader is embedded; dctf_xml_reader_fini() after dctf_xml_read().
 */
#ifndef DCTF_TRANSPORT_XML_READER_H
#define DCTF_TRANSPORT_XML_READER_H

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

struct dctf_xml_reader {
    /* By local name, whatever the namespace. open() sets `gather` when the element's text is
     * wanted; close() finds it in `text`, which is empty for an element that has children. */
    void (*open)(struct dctf_xml_reader *reader, const char *name);
    void (*close)(struct dctf_xml_reader *reader, const char *name);
    void *ctx;

    unsigned depth; /* of the element that is opened or closed: 1 is the root */
    bool gather;
    struct dctf_str text;
    enum dctf_err err;
    void *parser;
};

/* Run the callbacks over `xml`. DCTF_ERR_BAD_RESPONSE when it is not one whole, well-formed
 * document (what came before was called all the same), _NO_MEMORY, or what
 * dctf_xml_stop() was given. */
DCTF_MUST_CHECK
enum dctf_err dctf_xml_read(struct dctf_xml_reader *reader, const char *xml, size_t len);
/* From a callback: no more callbacks. The first reason stays. */
void dctf_xml_stop(struct dctf_xml_reader *reader, enum dctf_err err);
/* Wipes the text: it may have been a secret. */
void dctf_xml_reader_fini(struct dctf_xml_reader *reader);

#endif
