/* SPDX-License-Identifier: Apache-2.0 */
/* Error record and log. May touch: libc. Not here: error policy of any room. */
#include "base/err.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Cuts text at n bytes without leaving a torn UTF-8 sequence, and turns line breaks into spaces: a record is one line. */
static void tidy(char *text, size_t cap)
{
    size_t n = strlen(text);
    if (n + 1 >= cap) {
        size_t i = n;
        while (i > 0 && ((unsigned char)text[i - 1] & 0xC0) == 0x80) i--;
        if (i > 0) {
            unsigned char lead = (unsigned char)text[i - 1];
            size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
            if (n - (i - 1) < need) n = i - 1;
        }
        text[n] = '\0';
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n' || text[i] == '\r') text[i] = ' ';
    }
}

int m5_error_setv(m5_error *err, int code, const char *fmt, va_list ap)
{
    if (err) {
        err->code = code;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        tidy(err->text, sizeof err->text);
    }
    return code;
}

int m5_error_set(m5_error *err, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    m5_error_setv(err, code, fmt, ap);
    va_end(ap);
    return code;
}

int m5_error_prefix(m5_error *err, const char *fmt, ...)
{
    if (!err) return M5_ERR_INTERNAL;
    char old[M5_ERROR_TEXT_BYTES];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    if ((size_t)n < sizeof err->text) snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", old);
    tidy(err->text, sizeof err->text);
    return err->code;
}

const char *m5_err_name(int code)
{
    static const char *const names[] = {
        "M5_OK",           "M5_ERR_NOMEM",   "M5_ERR_IO",        "M5_ERR_FORMAT",   "M5_ERR_UNSUPPORTED",
        "M5_ERR_ARG",      "M5_ERR_LIMIT",   "M5_ERR_CANCELLED", "M5_ERR_NOTFOUND", "M5_ERR_BUSY",
        "M5_ERR_TEMPLATE", "M5_ERR_CONTEXT", "M5_ERR_INTERNAL",
    };
    int i = -code;
    if (i < 0 || i >= (int)(sizeof names / sizeof names[0])) return "M5_ERR_UNKNOWN";
    return names[i];
}

static atomic_int log_level = M5_LOG_INFO;

void m5_log_set_level(m5_log_level level)
{
    atomic_store(&log_level, (int)level);
}

m5_log_level m5_log_get_level(void)
{
    return (m5_log_level)atomic_load(&log_level);
}

void m5_log(m5_log_level level, const char *fmt, ...)
{
    static const char *const tags[] = {"error: ", "warning: ", "", "debug: "};
    if ((int)level > atomic_load(&log_level)) return;
    char line[2048];
    int head = snprintf(line, sizeof line, "%s", tags[level]);
    va_list ap;
    va_start(ap, fmt);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, fmt, ap);
    va_end(ap);
    if (body < 0) return;
    line[sizeof line - 2] = '\0';
    tidy(line, sizeof line - 1);
    size_t n = strlen(line);
    line[n++] = '\n';
    /* One write per line: concurrent lines must not interleave. A closed stderr is nobody's error. */
    ssize_t put = write(STDERR_FILENO, line, n);
    (void)put;
}

void m5_assert_fail(const char *expr, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expr);
    abort();
}
