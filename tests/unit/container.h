/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of the container readers: little-endian writing, damaging bytes from a fixed seed, and running a reader over every cut and over
 * thousands of damaged copies, each in an exactly sized allocation so that the sanitizers see a read beyond the end. */
#ifndef M5_TESTS_CONTAINER_H
#define M5_TESTS_CONTAINER_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include "t.h"

#include <stdint.h>

static inline void put(m5_buf *b, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) m5_buf_putc(b, (char)(v >> 8 * i & 255));
}

static inline void put_str(m5_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    m5_buf_puts(b, s);
}

static inline void pad_to(m5_buf *b, size_t alignment)
{
    while (b->n % alignment) m5_buf_putc(b, 0);
}

static volatile uint64_t c_sink; /* what was read goes here, so that reading is not optimised away */
static uint64_t c_rng = 88172645463325252u;

static inline uint64_t c_next(void)
{
    c_rng ^= c_rng << 13;
    c_rng ^= c_rng >> 7;
    c_rng ^= c_rng << 17;
    return c_rng;
}

/* Opens p[0..n) with the reader under test, walks everything it hands out, closes. Returns its code. */
typedef int (*c_run_fn)(const uint8_t *p, size_t n, m5_error *err);

static inline int run_exact(c_run_fn run, const uint8_t *p, size_t n, m5_error *err)
{
    uint8_t *copy = malloc(n + 1);
    int rc = M5_ERR_NOMEM;
    memset(err, 0, sizeof *err);
    if (!copy) return rc;
    memcpy(copy + 1, p, n); /* also unaligned */
    rc = run(copy + 1, n, err);
    free(copy);
    return rc;
}

/* Every prefix of a valid file must be refused with a text; returns how many were not. */
static inline size_t accepted_cuts(c_run_fn run, const uint8_t *p, size_t n)
{
    m5_error err;
    size_t n_ok = 0;
    for (size_t cut = 0; cut < n; cut++) n_ok += run_exact(run, p, cut, &err) == 0 || !err.text[0];
    return n_ok;
}

/* Damaged copies: success or an error with a text, nothing else. Returns the number of wrong answers; *n_ok counts successes. */
static inline size_t damage(c_run_fn run, const uint8_t *p, size_t n, size_t n_header, size_t n_try, size_t *n_ok)
{
    static const uint64_t edges[] = {0, 1, 0x7f, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0x8000000000000000u, 0xffffffffffffffffu};
    size_t n_bad = 0;
    m5_error err;
    uint8_t *copy = malloc(n + 8);
    *n_ok = 0;
    for (size_t k = 0; copy && k < n_try; k++) {
        memcpy(copy, p, n);
        for (uint64_t m = 1 + c_next() % 3; m > 0; m--) {
            size_t at = (size_t)(c_next() % n_header);
            if (c_next() % 3 == 0) {
                memcpy(copy + at, &edges[c_next() % 8], 1 + c_next() % 8);
            } else {
                copy[at] = (uint8_t)(c_next() % 2 ? copy[at] ^ (1u << c_next() % 8) : c_next());
            }
        }
        int rc = run_exact(run, copy, n, &err);
        *n_ok += rc == 0;
        if (rc > 0 || (rc < 0 && !err.text[0])) n_bad++;
    }
    free(copy);
    return n_bad;
}

/* Each allocation of one run made to fail in turn: an error with a text every time, nothing leaked. only_nomem: no other code than M5_ERR_NOMEM (a
 * JSON parser may report a failed allocation as a syntax error). */
static inline void starve(c_run_fn run, const uint8_t *p, size_t n, bool only_nomem)
{
    m5_error err;
    size_t before[M5_MEM_KIND_COUNT], n_fail = 0;
    for (int k = 0; k < M5_MEM_KIND_COUNT; k++) before[k] = m5_mem_bytes((m5_mem_kind)k);
    for (uint64_t at = 1; at < 500; at++) {
        m5_mem_fail_at(at);
        int rc = run_exact(run, p, n, &err);
        m5_mem_fail_at(0);
        if (rc == 0) break;
        n_fail++;
        T_CHECK(rc < 0 && err.text[0] && (rc == M5_ERR_NOMEM || !only_nomem), "allocation %d: %d %s", (int)at, rc, err.text);
    }
    T_CHECK(n_fail > 3, "%zu failures", n_fail);
    for (int k = 0; k < M5_MEM_KIND_COUNT; k++) T_EQ_INT(m5_mem_bytes((m5_mem_kind)k), before[k]);
}

#endif
