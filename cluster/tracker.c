/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/tracker.h"

#include <string.h>

void dctf_tracker_fetched(struct dctf_tracker *tracker, uint64_t extent_key, struct dctf_peer *peer)
{
    struct dctf_tracked *tracked = &tracker->extents[extent_key % DCTF_TRACKER_EXTENTS];
    size_t place = 0;

    if (tracked->extent_key != extent_key)
        *tracked = (struct dctf_tracked){.extent_key = extent_key};
    while (place < DCTF_TRACKER_NODES - 1 && tracked->nodes[place] && tracked->nodes[place] != peer)
        place++;
    memmove(tracked->nodes + 1, tracked->nodes, place * sizeof(tracked->nodes[0]));
    tracked->nodes[0] = peer;
}

size_t dctf_tracker_nodes(
    const struct dctf_tracker *tracker, uint64_t extent_key, struct dctf_peer **out, size_t max)
{
    const struct dctf_tracked *tracked = &tracker->extents[extent_key % DCTF_TRACKER_EXTENTS];
    size_t count = 0;

    if (tracked->extent_key != extent_key)
        return 0;
    while (count < max && count < DCTF_TRACKER_NODES && tracked->nodes[count]) {
        out[count] = tracked->nodes[count];
        count++;
    }
    return count;
}
