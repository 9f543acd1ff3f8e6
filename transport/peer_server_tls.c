/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutual TLS of the peer server: a client without a certificate of the CA does not get through its
 * handshake, so that no byte of it reaches the HTTP parser.
 */
#include "transport/peer_server_internal.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 256u
#define PEM_MAX (1024u * 1024u)

static enum dctf_err read_pem(const char *path, char **out, char *detail)
{
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(PEM_MAX + 1) : NULL;
    size_t len;

    *out = NULL;
    if (!file || !text) {
        snprintf(detail, DETAIL_BYTES, "%.200s: %s", path, strerror(errno));
        if (file)
            fclose(file);
        return DCTF_ERR_OPTION_VALUE;
    }
    len = fread(text, 1, PEM_MAX, file);
    text[len] = '\0';
    *out = text;
    if (ferror(file) || len == 0 || len == PEM_MAX) {
        fclose(file);
        snprintf(detail, DETAIL_BYTES, "%.200s: cannot be read, or is no PEM file", path);
        return DCTF_ERR_OPTION_VALUE;
    }
    fclose(file);
    return DCTF_OK;
}

static gnutls_datum_t datum(char *text)
{
    return (gnutls_datum_t){.data = (unsigned char *)text, .size = (unsigned)strlen(text)};
}

/* MHD only says that it does not start. */
static enum dctf_err check(struct dctf_peer_tls *tls, char *detail)
{
    gnutls_datum_t cert = datum(tls->cert), key = datum(tls->key), ca = datum(tls->ca);
    gnutls_certificate_credentials_t credentials;
    int result = gnutls_certificate_allocate_credentials(&credentials);
    const char *what = "the peer certificates";

    if (result < 0)
        return DCTF_ERR_NO_MEMORY;
    result = gnutls_certificate_set_x509_key_mem(credentials, &cert, &key, GNUTLS_X509_FMT_PEM);
    if (result >= 0) {
        what = "the certificate of the peers' authority";
        result = gnutls_certificate_set_x509_trust_mem(credentials, &ca, GNUTLS_X509_FMT_PEM);
    }
    gnutls_certificate_free_credentials(credentials);
    if (result > 0) /* certificates that were found; the first function says 0 or less */
        return DCTF_OK;
    if (result == 0)
        result = GNUTLS_E_NO_CERTIFICATE_FOUND;
    snprintf(detail, DETAIL_BYTES, "%s: %s", what, gnutls_strerror(result));
    return DCTF_ERR_OPTION_VALUE;
}

enum dctf_err dctf_peer_tls_load(
    struct dctf_peer_tls *tls, const struct dctf_peer_server_config *config, char *detail)
{
    int given = !!config->cert_file + !!config->key_file + !!config->ca_file;
    enum dctf_err err;

    *tls = (struct dctf_peer_tls){0};
    if (given == 0)
        return DCTF_OK;
    if (given != 3) {
        snprintf(detail, DETAIL_BYTES, "mutual TLS takes a certificate, its key and an authority");
        return DCTF_ERR_OPTION_VALUE;
    }
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        snprintf(detail, DETAIL_BYTES, "libmicrohttpd was built without TLS");
        return DCTF_ERR_SYSTEM;
    }
    err = read_pem(config->cert_file, &tls->cert, detail);
    if (!err)
        err = read_pem(config->key_file, &tls->key, detail);
    if (!err)
        err = read_pem(config->ca_file, &tls->ca, detail);
    if (!err)
        err = check(tls, detail);
    if (err)
        dctf_peer_tls_fini(tls);
    return err;
}

void dctf_peer_tls_fini(struct dctf_peer_tls *tls)
{
    if (tls->key)
        explicit_bzero(tls->key, strlen(tls->key));
    free(tls->cert);
    free(tls->key);
    free(tls->ca);
    *tls = (struct dctf_peer_tls){0};
}

static gnutls_session_t session_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    return info ? (gnutls_session_t)info->tls_session : NULL;
}

void dctf_peer_tls_demand(struct MHD_Connection *mhd)
{
    gnutls_session_t session = session_of(mhd);

    if (!session)
        return; /* nothing will be taken from it: see below */
    gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
    gnutls_session_set_verify_cert(session, NULL, 0);
}

bool dctf_peer_tls_proven(struct MHD_Connection *mhd)
{
    gnutls_session_t session = session_of(mhd);
    unsigned status, count = 0;

    return session && gnutls_certificate_get_peers(session, &count) && count > 0 &&
           gnutls_certificate_verify_peers2(session, &status) == 0 && status == 0;
}
