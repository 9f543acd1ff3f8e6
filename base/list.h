/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusive doubly linked list: a node is embedded in its element and is on at
 * most one list at a time.
 *
 * Threads:   caller locks.
 * Ownership: none.
 */
#ifndef DCTF_BASE_LIST_H
#define DCTF_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct dctf_list {
    struct dctf_list *next, *prev;
};

#define dctf_list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void dctf_list_init(struct dctf_list *list)
{
    list->next = list->prev = list;
}

static inline bool dctf_list_empty(const struct dctf_list *list)
{
    return list->next == list;
}

static inline void dctf_list_push_back(struct dctf_list *list, struct dctf_list *node)
{
    node->prev = list->prev;
    node->next = list;
    list->prev->next = node;
    list->prev = node;
}

static inline void dctf_list_push_front(struct dctf_list *list, struct dctf_list *node)
{
    dctf_list_push_back(list->next, node);
}

/* Take a node off its list; a node that is on none (initialised) stays so. */
static inline void dctf_list_remove(struct dctf_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    dctf_list_init(node);
}

/* The first node taken off, NULL when empty. */
static inline struct dctf_list *dctf_list_pop(struct dctf_list *list)
{
    struct dctf_list *node = list->next;

    if (node == list)
        return NULL;
    dctf_list_remove(node);
    return node;
}

#endif
