/* SPDX-License-Identifier: Apache-2.0 */
/* The only caller of malloc. Each block carries a 64-byte header with its size and kind, which keeps the payload aligned to a cache line and makes
 * accounting exact. May touch: libc. */
#define _GNU_SOURCE
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; older kernels answer EINVAL */
#endif
#endif

enum { HEADER_BYTES = 64, ARENA_BLOCK_BYTES = 64 * 1024 };

typedef struct block_header {
    size_t bytes;
    m5_mem_kind kind;
} block_header;

_Static_assert(sizeof(block_header) <= HEADER_BYTES, "header must keep the alignment of the payload");

static atomic_size_t live[M5_MEM_KIND_COUNT], peak[M5_MEM_KIND_COUNT];
static atomic_ullong n_alloc;
static atomic_ullong fail_countdown;

static block_header *header_of(void *p)
{
    return (block_header *)(void *)((char *)p - HEADER_BYTES);
}

static bool injected_failure(void)
{
    unsigned long long left = atomic_load(&fail_countdown);
    while (left > 0) {
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
    }
    return false;
}

static void account_add(m5_mem_kind kind, size_t bytes)
{
    size_t now = atomic_fetch_add(&live[kind], bytes) + bytes;
    size_t seen = atomic_load(&peak[kind]);
    while (now > seen && !atomic_compare_exchange_weak(&peak[kind], &seen, now)) {}
}

void *m5_alloc(m5_mem_kind kind, size_t bytes)
{
    atomic_fetch_add(&n_alloc, 1);
    if (injected_failure()) return NULL;
    /* aligned_alloc wants a multiple of the alignment; the bound also keeps absurd sizes from wrapping. */
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t total = (HEADER_BYTES + (bytes ? bytes : 1) + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
    char *raw = aligned_alloc(HEADER_BYTES, total);
    if (!raw) return NULL;
    block_header *h = (block_header *)(void *)raw;
    h->bytes = bytes;
    h->kind = kind;
    account_add(kind, bytes);
    return raw + HEADER_BYTES;
}

void *m5_calloc(m5_mem_kind kind, size_t n, size_t size)
{
    size_t bytes;
    if (!m5_mul_size(n, size, &bytes)) return NULL;
    void *p = m5_alloc(kind, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void *m5_realloc(m5_mem_kind kind, void *p, size_t bytes)
{
    if (!p) return m5_alloc(kind, bytes);
    block_header *h = header_of(p);
    void *q = m5_alloc(h->kind, bytes);
    if (!q) return NULL;
    memcpy(q, p, h->bytes < bytes ? h->bytes : bytes);
    m5_free(p);
    return q;
}

void m5_free(void *p)
{
    if (!p) return;
    block_header *h = header_of(p);
    atomic_fetch_sub(&live[h->kind], h->bytes);
    free(h);
}

char *m5_strndup(m5_mem_kind kind, const char *s, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *p = m5_alloc(kind, n + 1);
    if (!p) return NULL;
    if (n) memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

char *m5_strdup(m5_mem_kind kind, const char *s)
{
    return m5_strndup(kind, s, strlen(s));
}

bool m5_mem_huge(void *p, size_t n)
{
#ifdef __linux__
    const uintptr_t begin = ((uintptr_t)p + M5_MEM_HUGE_BYTES - 1) / M5_MEM_HUGE_BYTES * M5_MEM_HUGE_BYTES;
    const uintptr_t end = ((uintptr_t)p + n) / M5_MEM_HUGE_BYTES * M5_MEM_HUGE_BYTES;
    /* No memory for a huge page just now is no reason to give up on the next one. */
    return begin >= end || madvise((void *)begin, end - begin, MADV_COLLAPSE) == 0 || errno != EINVAL;
#else
    (void)p;
    (void)n;
    return false;
#endif
}

void m5_mem_huge_hint(void *p, size_t n)
{
#ifdef __linux__
    const uintptr_t begin = ((uintptr_t)p + M5_MEM_HUGE_BYTES - 1) / M5_MEM_HUGE_BYTES * M5_MEM_HUGE_BYTES;
    const uintptr_t end = ((uintptr_t)p + n) / M5_MEM_HUGE_BYTES * M5_MEM_HUGE_BYTES;
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)p;
    (void)n;
#endif
}

void m5_mem_populate(void *p, size_t n)
{
#if defined(__linux__) && defined(MADV_POPULATE_WRITE)
    enum { PAGE = 4096 };
    const uintptr_t begin = ((uintptr_t)p + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)p + n) / PAGE * PAGE;
    if (begin < end) madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
#else
    (void)p;
    (void)n;
#endif
}

size_t m5_mem_bytes(m5_mem_kind kind)
{
    return atomic_load(&live[kind]);
}

size_t m5_mem_peak(m5_mem_kind kind)
{
    return atomic_load(&peak[kind]);
}

const char *m5_mem_kind_name(m5_mem_kind kind)
{
    static const char *const names[M5_MEM_KIND_COUNT] = {"misc", "weights", "state", "scratch", "text", "request"};
    return (unsigned)kind < M5_MEM_KIND_COUNT ? names[kind] : "unknown";
}

uint64_t m5_mem_count(void)
{
    return atomic_load(&n_alloc);
}

void m5_mem_fail_at(uint64_t n)
{
    atomic_store(&fail_countdown, n);
}

bool m5_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b) return false;
    *out = a * b;
    return true;
}

bool m5_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b) return false;
    *out = a + b;
    return true;
}

typedef struct m5_arena_block {
    struct m5_arena_block *next;
    size_t used, cap;
} m5_arena_block;

enum { ARENA_BLOCK_HEADER = (sizeof(m5_arena_block) + 15) / 16 * 16 };

void m5_arena_init(m5_arena *a, m5_mem_kind kind, size_t limit_bytes)
{
    *a = (m5_arena){.kind = kind, .limit_bytes = limit_bytes};
}

void *m5_arena_alloc(m5_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 15) / 16 * 16;
    if (bytes == 0) bytes = 16;
    if (a->limit_bytes && (bytes > a->limit_bytes || a->used_bytes > a->limit_bytes - bytes)) return NULL;
    m5_arena_block *b = a->head;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = bytes > ARENA_BLOCK_BYTES ? bytes : ARENA_BLOCK_BYTES;
        b = m5_alloc(a->kind, ARENA_BLOCK_HEADER + cap);
        if (!b) return NULL;
        *b = (m5_arena_block){.next = a->head, .cap = cap};
        /* A block made for one large object is full at once; keep the roomier one in front so that small ones still fill it. */
        if (a->head && bytes > ARENA_BLOCK_BYTES) {
            b->next = a->head->next;
            a->head->next = b;
        } else {
            a->head = b;
        }
    }
    void *p = (char *)b + ARENA_BLOCK_HEADER + b->used;
    b->used += bytes;
    a->used_bytes += bytes;
    memset(p, 0, bytes);
    return p;
}

char *m5_arena_strndup(m5_arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *p = m5_arena_alloc(a, n + 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

void m5_arena_deinit(m5_arena *a)
{
    m5_arena_block *b = a->head;
    while (b) {
        m5_arena_block *next = b->next;
        m5_free(b);
        b = next;
    }
    *a = (m5_arena){.kind = a->kind, .limit_bytes = a->limit_bytes};
}
