/* SPDX-License-Identifier: Apache-2.0
 *
 * Where requests go and by which clock they are dated: what the configuration says, then
 * what the service taught us.
 */
#include "transport/s3_internal.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum dctf_err dctf_s3_place_new(
    const struct dctf_s3 *s3, const char *region, char *detail, struct dctf_s3_place **out)
{
    struct dctf_s3_place *place = calloc(1, sizeof(*place));
    enum dctf_err err;

    *out = NULL;
    if (!place)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_s3_address_init(&place->address, s3->source, s3->endpoint, region, s3->style, detail);
    if (err) {
        free(place);
        return err;
    }
    place->refs = 1;
    *out = place;
    return DCTF_OK;
}

void dctf_s3_place_unref(struct dctf_s3_place *place)
{
    if (!place || __atomic_sub_fetch(&place->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    dctf_s3_address_fini(&place->address);
    free(place);
}

struct dctf_s3_place *dctf_s3_place_get(struct dctf_s3 *s3)
{
    struct dctf_s3_place *place;

    pthread_mutex_lock(&s3->lock);
    place = s3->place;
    __atomic_add_fetch(&place->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&s3->lock);
    return place;
}

bool dctf_s3_is_region(const char *text)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");

    return len > 0 && len < 64 && text[len] == '\0' && text[0] != '-' && text[len - 1] != '-';
}

bool dctf_s3_place_learn(struct dctf_s3 *s3, const struct dctf_s3_place *place, const char *region)
{
    struct dctf_s3_place *made = NULL;
    struct dctf_s3_place *old = NULL;
    bool changed;

    if (dctf_s3_is_region(region) && strcmp(region, place->address.region) != 0 &&
        dctf_s3_place_new(s3, region, NULL, &made))
        made = NULL;
    pthread_mutex_lock(&s3->lock);
    changed = s3->place != place; /* a request beside this one was faster */
    if (!changed && made) {
        old = s3->place;
        s3->place = made;
        made = NULL;
        changed = true;
    }
    pthread_mutex_unlock(&s3->lock);
    if (old)
        dctf_log(DCTF_LOG_INFO, "s3", "bucket=%s is in region=%s, not %s: requests go there from now on",
            old->address.bucket, region, old->address.region);
    dctf_s3_place_unref(old);
    dctf_s3_place_unref(made);
    return changed;
}

/* --- the clock --- */

uint64_t dctf_s3_now_ms(struct dctf_s3 *s3)
{
    uint64_t now_ms = dctf_clock_wall_ms(&s3->clock);

    pthread_mutex_lock(&s3->lock);
    now_ms += (uint64_t)s3->clock_offset_ms;
    pthread_mutex_unlock(&s3->lock);
    return now_ms;
}

bool dctf_s3_date_parse(const char *text, int64_t *out_s)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    struct tm tm = {0};
    char month[4], zone[4];
    const char *found;

    if (sscanf(text, "%*3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d %3[A-Z]", &tm.tm_mday, month, &tm.tm_year,
            &tm.tm_hour, &tm.tm_min, &tm.tm_sec, zone) != 7 ||
        strcmp(zone, "GMT") != 0 || strlen(month) != 3)
        return false;
    found = strstr(months, month);
    if (!found || (found - months) % 3 != 0)
        return false;
    tm.tm_mon = (int)(found - months) / 3;
    tm.tm_year -= 1900;
    *out_s = timegm(&tm);
    return true;
}

/* Less than this off what is used already is no news: the answer was under way. */
#define CLOCK_NEWS_MS 60000

bool dctf_s3_clock_learn(struct dctf_s3 *s3, const char *date, const char *server_time)
{
    int64_t theirs_ns = 0;
    int64_t theirs_s = 0;
    int64_t offset_ms;
    bool news;

    if (*server_time && dctf_iso8601_parse(server_time, &theirs_ns))
        theirs_s = theirs_ns / 1000000000;
    else if (!date || !dctf_s3_date_parse(date, &theirs_s))
        return false;
    offset_ms = theirs_s * 1000 - (int64_t)dctf_clock_wall_ms(&s3->clock);
    pthread_mutex_lock(&s3->lock);
    news = llabs((long long)(offset_ms - s3->clock_offset_ms)) > CLOCK_NEWS_MS;
    if (news)
        s3->clock_offset_ms = offset_ms;
    pthread_mutex_unlock(&s3->lock);
    if (news)
        dctf_log(DCTF_LOG_WARN, "s3",
            "this machine's clock is %" PRId64 " s off the service's: requests are dated by its clock "
            "from now on; synchronise the clock err=%d",
            -offset_ms / 1000, (int)DCTF_ERR_CLOCK_SKEW);
    return news;
}
