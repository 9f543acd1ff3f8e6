/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/exclusion.h"

#include "base/version.h"

#include <stdlib.h>
#include <string.h>

/* One's word alone is none. */
#define VOICES_MIN 2u

struct candidate {
    uint64_t id;
    uint32_t voices; /* of members that are not left out */
    bool serves, out;
};

/* The members by their ids, and who complains of whom. */
struct ballot {
    struct candidate *candidates;
    size_t count, serving, out;
};

uint64_t dctf_exclusion_id(const char *node)
{
    return dctf_hash64(node, strlen(node));
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;

    return left->id < right->id ? -1 : left->id > right->id;
}

bool dctf_exclusion_has(const uint64_t *ids, size_t count, uint64_t id)
{
    return count && bsearch(&id, ids, count, sizeof(*ids), compare_ids);
}

static struct candidate *find(const struct ballot *ballot, uint64_t id)
{
    struct candidate key = {.id = id};

    return bsearch(&key, ballot->candidates, ballot->count, sizeof(key), compare_candidates);
}

/* Add `by` to the voices against those that the report tells of. */
static void count_voice(
    struct ballot *ballot, const struct dctf_unreached_report *report, uint64_t after_ms, int by)
{
    for (size_t i = 0; i < report->count; i++) {
        struct candidate *against = find(ballot, report->entries[i].node);

        if (against && against->id != report->node && report->entries[i].ms >= after_ms)
            against->voices += (uint32_t)by;
    }
}

/* The one that most others miss, if those are more than half of all that have a say. */
static struct candidate *worst(const struct ballot *ballot)
{
    size_t others = ballot->count - ballot->out - 1;
    struct candidate *found = NULL;

    for (size_t i = 0; i < ballot->count; i++) {
        struct candidate *one = &ballot->candidates[i];

        if (one->serves && !one->out && one->voices >= VOICES_MIN && 2 * (size_t)one->voices > others &&
            (!found || one->voices > found->voices))
            found = one;
    }
    return found;
}

static void leave_out(struct ballot *ballot, struct candidate *one,
    const struct dctf_unreached_report *reports, size_t report_count, uint64_t after_ms)
{
    one->out = true;
    ballot->out++;
    for (size_t i = 0; i < report_count; i++) {
        if (reports[i].node == one->id)
            count_voice(ballot, &reports[i], after_ms, -1);
    }
}

/* From the beginning; whether those that are left out are a minority. */
static bool vote(struct ballot *ballot, const struct dctf_unreached_report *reports, size_t report_count,
    uint64_t after_ms)
{
    struct candidate *one;

    ballot->out = 0;
    for (size_t i = 0; i < ballot->count; i++) {
        ballot->candidates[i].voices = 0;
        ballot->candidates[i].out = false;
    }
    for (size_t i = 0; i < report_count; i++) {
        if (find(ballot, reports[i].node))
            count_voice(ballot, &reports[i], after_ms, 1);
    }
    while (ballot->count && (one = worst(ballot)))
        leave_out(ballot, one, reports, report_count, after_ms);
    return 2 * ballot->out < ballot->serving;
}

enum dctf_err dctf_exclusion_judge(const struct dctf_node *members, size_t count,
    const struct dctf_unreached_report *reports, size_t report_count, struct dctf_exclusion_times *times,
    uint64_t **out, size_t *out_count)
{
    struct ballot ballot = {.candidates = calloc(count + 1, sizeof(*ballot.candidates)), .count = count};
    bool few;

    *out_count = 0;
    *out = calloc(count + 1, sizeof(**out));
    if (!ballot.candidates || !*out) {
        free(ballot.candidates);
        free(*out);
        *out = NULL;
        return DCTF_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        bool serves = members[i].weight != 0;

        ballot.candidates[i] = (struct candidate){.id = dctf_exclusion_id(members[i].id), .serves = serves};
        ballot.serving += serves;
    }
    qsort(ballot.candidates, count, sizeof(*ballot.candidates), compare_candidates);
    /* Those that are missed since a moment ago count as well when it is about how many there are: of a half
     * that is cut off some would be left out first otherwise, and taken back when the others follow. */
    few = vote(&ballot, reports, report_count, 0) && vote(&ballot, reports, report_count, times->after_ms);
    if (!few)
        times->calm_ms = times->now_ms + times->after_ms;
    for (size_t i = 0; times->now_ms >= times->calm_ms && i < count; i++) {
        if (ballot.candidates[i].out)
            (*out)[(*out_count)++] = ballot.candidates[i].id;
    }
    free(ballot.candidates);
    return DCTF_OK;
}

void dctf_exclusion_apply(struct dctf_node *members, size_t count, const uint64_t *ids, size_t id_count)
{
    size_t serving = 0, out = 0;

    for (size_t i = 0; i < count; i++) {
        members[i].excluded =
            members[i].weight && dctf_exclusion_has(ids, id_count, dctf_exclusion_id(members[i].id));
        serving += members[i].weight != 0;
        out += members[i].excluded;
    }
    for (size_t i = 0; i < count; i++) {
        members[i].excluded &= 2 * out < serving;
        if (members[i].excluded)
            members[i].weight = 0;
    }
}
