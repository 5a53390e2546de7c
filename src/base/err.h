/* SPDX-License-Identifier: Apache-2.0 */
/* Error codes, the error record and the log. Room: base/err.c. The only file that prints below cli/.
 *
 * A function that can fail returns 0 or a negative M5_ERR_*. Where a folder boundary is crossed the last parameter is
 * `m5_error *err` (NULL allowed), filled once, where the cause is known, with the offending value in the text. */
#ifndef M5_BASE_ERR_H
#define M5_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum m5_err {
    M5_OK = 0,
    M5_ERR_NOMEM = -1,       /* allocation failed or a budget is exhausted */
    M5_ERR_IO = -2,          /* the operating system refused a read, write, map or open */
    M5_ERR_FORMAT = -3,      /* a file or text is inconsistent with its own format */
    M5_ERR_UNSUPPORTED = -4, /* well formed, but not something this build can run */
    M5_ERR_ARG = -5,         /* a caller's or client's value is out of range */
    M5_ERR_LIMIT = -6,       /* a size, depth, step or time limit was reached */
    M5_ERR_CANCELLED = -7,   /* the requester went away or asked to stop */
    M5_ERR_NOTFOUND = -8,    /* a named thing does not exist */
    M5_ERR_BUSY = -9,        /* queue full; try again later */
    M5_ERR_TEMPLATE = -10,   /* a chat template failed or called raise_exception */
    M5_ERR_CONTEXT = -11,    /* the prompt does not fit the context */
    M5_ERR_INTERNAL = -12    /* our own bug, reported instead of aborting */
} m5_err;

#define M5_ERROR_TEXT_BYTES 512

typedef struct m5_error {
    int code;                       /* 0 or a negative m5_err */
    char text[M5_ERROR_TEXT_BYTES]; /* one sentence, no newline, NUL-terminated, valid UTF-8 when cut */
} m5_error;

/* Fills err (if not NULL) and returns code, so that `return m5_error_set(err, M5_ERR_IO, "...")` reads well. */
int m5_error_set(m5_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int m5_error_setv(m5_error *err, int code, const char *fmt, va_list ap);

/* Puts "<prefix>: " in front of an error already set; keeps its code, which it returns. */
int m5_error_prefix(m5_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Short name such as "M5_ERR_IO"; never NULL. */
const char *m5_err_name(int code);

typedef enum m5_log_level { M5_LOG_ERROR, M5_LOG_WARN, M5_LOG_INFO, M5_LOG_DEBUG } m5_log_level;

/* Thread: any. One line per call on stderr, written with a single write so that lines of threads do not mix. */
void m5_log(m5_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void m5_log_set_level(m5_log_level level);
m5_log_level m5_log_get_level(void);

/* For our own bugs only, never for input: reports the place and aborts. Compiled out with NDEBUG. */
void m5_assert_fail(const char *expr, const char *file, int line) __attribute__((noreturn));
#ifdef NDEBUG
#define M5_ASSERT(x) ((void)0)
#else
#define M5_ASSERT(x) ((x) ? (void)0 : m5_assert_fail(#x, __FILE__, __LINE__))
#endif

#endif
