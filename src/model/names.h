/* SPDX-License-Identifier: Apache-2.0 */
/* Name table of the container readers: borrowed NUL-terminated names to their index, constant time. Room: model/names.c.
 * May touch: base. Filled once, then read by any thread. */
#ifndef M5_MODEL_NAMES_H
#define M5_MODEL_NAMES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct m5_names {
    struct m5_names_slot *slots;
    size_t cap; /* power of two, at least twice the names */
} m5_names;

/* Room for n names. Errors: M5_ERR_NOMEM. */
int m5_names_init(m5_names *t, size_t n);
void m5_names_deinit(m5_names *t);
/* Adds a name, which stays owned by the caller; false when it is already there. */
bool m5_names_add(m5_names *t, const char *name, size_t index);
size_t m5_names_find(const m5_names *t, const char *name); /* SIZE_MAX when absent */

#endif
