/* SPDX-License-Identifier: Apache-2.0 */
/* Test helper: counts checks, prints each failure with its place, closes with one line. A program whose checks never ran exits 77 (skipped). */
#ifndef M5_TESTS_T_H
#define M5_TESTS_T_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int t_n_pass, t_n_fail;

#define T_CHECK(cond, ...) \
    do { \
        if (cond) { \
            t_n_pass++; \
        } else { \
            t_n_fail++; \
            fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, " " __VA_ARGS__); \
            fputc('\n', stderr); \
        } \
    } while (0)
#define T_EQ_INT(a, b) \
    do { \
        long long t_a = (long long)(a), t_b = (long long)(b); \
        T_CHECK(t_a == t_b, "%lld != %lld", t_a, t_b); \
    } while (0)
#define T_EQ_STR(a, b) \
    do { \
        const char *t_a = (a), *t_b = (b); \
        T_CHECK(t_a && t_b && strcmp(t_a, t_b) == 0, "\"%s\" != \"%s\"", t_a ? t_a : "(null)", t_b ? t_b : "(null)"); \
    } while (0)

static inline int t_done(void)
{
    printf("%d passed, %d failed\n", t_n_pass, t_n_fail);
    if (t_n_fail) return 1;
    return t_n_pass ? 0 : 77;
}

#endif
