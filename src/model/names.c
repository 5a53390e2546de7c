/* SPDX-License-Identifier: Apache-2.0 */
/* Name table: open addressing with linear probing over 64-bit FNV-1a. Half of the slots stay free, so a probe always ends. */
#include "model/names.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdint.h>
#include <string.h>

struct m5_names_slot {
    const char *name; /* NULL = free */
    size_t index;
};

static uint64_t hash_of(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h ^ (h >> 29);
}

int m5_names_init(m5_names *t, size_t n)
{
    size_t cap = 8;
    t->slots = NULL;
    t->cap = 0;
    while (cap / 2 < n) {
        if (!m5_mul_size(cap, 2, &cap)) return M5_ERR_NOMEM;
    }
    t->slots = m5_calloc(M5_MEM_WEIGHTS, cap, sizeof *t->slots);
    if (!t->slots) return M5_ERR_NOMEM;
    t->cap = cap;
    return M5_OK;
}

void m5_names_deinit(m5_names *t)
{
    m5_free(t->slots);
    t->slots = NULL;
    t->cap = 0;
}

static struct m5_names_slot *slot_of(const m5_names *t, const char *name)
{
    size_t i = (size_t)hash_of(name) & (t->cap - 1);
    while (t->slots[i].name && strcmp(t->slots[i].name, name) != 0) i = (i + 1) & (t->cap - 1);
    return &t->slots[i];
}

bool m5_names_add(m5_names *t, const char *name, size_t index)
{
    struct m5_names_slot *s = slot_of(t, name);
    if (s->name) return false;
    s->name = name;
    s->index = index;
    return true;
}

size_t m5_names_find(const m5_names *t, const char *name)
{
    if (!t->cap) return SIZE_MAX;
    const struct m5_names_slot *s = slot_of(t, name);
    return s->name ? s->index : SIZE_MAX;
}
