/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: the only callers of malloc. Byte accounting by kind, arenas, failure injection for tests.
 * Four lifetimes, one owner each: model (until close), sequence (engine's pool), request (arena), step (scratch). */
#ifndef M5_BASE_MEM_H
#define M5_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum m5_mem_kind { M5_MEM_MISC, M5_MEM_WEIGHTS, M5_MEM_STATE, M5_MEM_SCRATCH, M5_MEM_TEXT, M5_MEM_REQUEST, M5_MEM_KIND_COUNT } m5_mem_kind;

/* Owner: caller, released with m5_free. Errors: NULL. Memory from m5_alloc is 64-byte aligned and uninitialised;
 * m5_calloc checks n * size for overflow and zeroes; m5_realloc keeps kind and alignment. Size 0 gives a valid pointer. */
void *m5_alloc(m5_mem_kind kind, size_t bytes);
void *m5_calloc(m5_mem_kind kind, size_t n, size_t size);
void *m5_realloc(m5_mem_kind kind, void *p, size_t bytes);
void m5_free(void *p);
char *m5_strdup(m5_mem_kind kind, const char *s);
char *m5_strndup(m5_mem_kind kind, const char *s, size_t n); /* copies n bytes and adds NUL */

/* Moves the memory of [p, p + n), already written, onto huge pages, whole ones inside the range; false where the system cannot. Slow, and safe while
 * other threads read: for a background thread. Streaming reads gain up to half again in a virtual machine. */
enum { M5_MEM_HUGE_BYTES = 2 << 20 };
bool m5_mem_huge(void *p, size_t n);
/* The same wish for memory not yet written, at no cost: the system gives huge pages as it is touched, where it has them. */
void m5_mem_huge_hint(void *p, size_t n);
/* Lets the system hand out the pages of [p, p + n), soon written, in one call instead of one exception each. Only whole pages inside; no promise. */
void m5_mem_populate(void *p, size_t n);

size_t m5_mem_bytes(m5_mem_kind kind); /* live bytes; Thread: any */
size_t m5_mem_peak(m5_mem_kind kind);
const char *m5_mem_kind_name(m5_mem_kind kind);
uint64_t m5_mem_count(void); /* allocations since start; tests compare two readings to prove that a step allocates nothing */

/* Failure injection: the n-th allocation from now (1 = next) fails, once; 0 turns it off. Tests only. */
void m5_mem_fail_at(uint64_t n);

/* Checked arithmetic for sizes that come from input: false on overflow, then *out is unchanged. */
bool m5_mul_size(size_t a, size_t b, size_t *out);
bool m5_add_size(size_t a, size_t b, size_t *out);

/* Arena: allocations of one request, freed in one call. Not thread-safe. limit_bytes 0 = no limit. */
typedef struct m5_arena {
    struct m5_arena_block *head;
    size_t used_bytes, limit_bytes;
    m5_mem_kind kind;
} m5_arena;
void m5_arena_init(m5_arena *a, m5_mem_kind kind, size_t limit_bytes);
void *m5_arena_alloc(m5_arena *a, size_t bytes); /* 16-byte aligned, zeroed; NULL on failure or at the limit */
char *m5_arena_strndup(m5_arena *a, const char *s, size_t n);
void m5_arena_deinit(m5_arena *a);

#endif
