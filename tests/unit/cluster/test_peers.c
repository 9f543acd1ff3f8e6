/* SPDX-License-Identifier: Apache-2.0
 *
 * What a node holds of members that do not answer its pings.
 */
#include "core_fixture.h"

/* The members as the node has them from now on; returns those it had. */
static struct dctf_view *set_view(struct dctf_cluster *cluster, struct dctf_view *view)
{
    struct dctf_view *old;

    pthread_mutex_lock(&cluster->lock);
    old = cluster->view;
    cluster->view = view;
    pthread_mutex_unlock(&cluster->lock);
    return old;
}

static struct dctf_view *view_of_itself(const struct dctf_view *view)
{
    struct dctf_node self = *dctf_view_node(view, dctf_view_self(view));
    struct dctf_view *alone;

    assert_int_equal(dctf_view_build(&self, 1, self.id, &alone), DCTF_OK);
    return alone;
}

/* Who is not reached, if anybody is; for how long. */
static bool unreached(struct dctf_cluster *cluster, uint64_t *ms)
{
    struct dctf_unreached found[NODES];
    size_t count;

    pthread_mutex_lock(&cluster->lock);
    count = dctf_peers_unreached_locked(cluster, found, NODES);
    pthread_mutex_unlock(&cluster->lock);
    assert_true(count <= 1);
    *ms = count ? found[0].ms : 0;
    return count;
}

static void test_unreached_from_when_it_is_back(void **state)
{
    struct core *core = core_open("npn", "topology_timeout_ms=300ms");
    struct dctf_cluster *cluster = core->nodes[0].cluster;
    struct dctf_view *members;
    uint64_t ms, left_ms;

    (void)state;
    assert_false(unreached(cluster, &ms));
    relay_freeze(&core->places[1], true);
    wait_until(unreached(cluster, &ms) && ms > 100);
    members = dctf_cluster_view(cluster);
    dctf_view_unref(set_view(cluster, view_of_itself(members)));
    left_ms = dctf_clock_mono_ms(NULL);
    assert_false(unreached(cluster, &ms));
    dctf_view_unref(set_view(cluster, members));
    wait_until(unreached(cluster, &ms)); /* it is pinged on */
    assert_true(ms <= dctf_clock_mono_ms(NULL) - left_ms);
    core_close(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unreached_from_when_it_is_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
