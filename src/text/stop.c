/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings; the contract is in stop.h. One Knuth-Morris-Pratt automaton per string, stepped byte by byte: its state is the length of the longest
 * tail of the text that begins that string, so the largest state is exactly what must be held back. */
#include "text/stop.h"

#include "base/mem.h"

#include <string.h>

typedef struct pattern {
    char *text;
    size_t n;
    uint16_t *back; /* [n] length of the longest proper border of text[0..i] */
    size_t state;
} pattern;

struct m5_stop {
    pattern *patterns;
    int n;
    char held[M5_MAX_STOP_BYTES];
    size_t n_held;
    int matched; /* -1 = not yet */
};

static int pattern_init(pattern *p, const char *text)
{
    p->n = strlen(text);
    p->text = m5_strndup(M5_MEM_REQUEST, text, p->n);
    p->back = m5_calloc(M5_MEM_REQUEST, p->n, sizeof(*p->back));
    if (!p->text || !p->back) return M5_ERR_NOMEM;
    size_t k = 0;
    for (size_t i = 1; i < p->n; i++) {
        while (k > 0 && text[i] != text[k]) k = p->back[k - 1];
        if (text[i] == text[k]) k++;
        p->back[i] = (uint16_t)k;
    }
    return 0;
}

int m5_stop_new(m5_stop **out, const char *const *strings, int n, m5_error *err)
{
    *out = NULL;
    if (n < 0 || n > M5_MAX_STOP_STRINGS) return m5_error_set(err, M5_ERR_ARG, "%d stop strings; at most %d are allowed", n, M5_MAX_STOP_STRINGS);
    for (int i = 0; i < n; i++) {
        size_t len = strings[i] ? strlen(strings[i]) : 0;
        if (len == 0) return m5_error_set(err, M5_ERR_ARG, "stop string %d is empty", i);
        if (len >= M5_MAX_STOP_BYTES) return m5_error_set(err, M5_ERR_ARG, "stop string %d has %zu bytes; below %d are allowed", i, len, M5_MAX_STOP_BYTES);
        if (!m5_utf8_valid(strings[i], len)) return m5_error_set(err, M5_ERR_ARG, "stop string %d is not UTF-8", i);
    }
    m5_stop *s = m5_calloc(M5_MEM_REQUEST, 1, sizeof(*s));
    if (!s) goto nomem;
    s->matched = -1;
    s->patterns = m5_calloc(M5_MEM_REQUEST, (size_t)n, sizeof(*s->patterns));
    if (!s->patterns) goto nomem;
    s->n = n;
    for (int i = 0; i < n; i++)
        if (pattern_init(&s->patterns[i], strings[i])) goto nomem;
    *out = s;
    return 0;
nomem:
    m5_stop_free(s);
    return m5_error_set(err, M5_ERR_NOMEM, "out of memory for stop strings");
}

void m5_stop_free(m5_stop *s)
{
    if (!s) return;
    for (int i = 0; i < s->n; i++) {
        m5_free(s->patterns[i].text);
        m5_free(s->patterns[i].back);
    }
    m5_free(s->patterns);
    m5_free(s);
}

/* Steps every automaton by one byte. Returns the longest string that ends here, or -1; *hold = the longest beginning that ends here. */
static int step(m5_stop *s, char c, size_t *hold)
{
    int hit = -1;
    *hold = 0;
    for (int i = 0; i < s->n; i++) {
        pattern *p = &s->patterns[i];
        while (p->state > 0 && p->text[p->state] != c) p->state = p->back[p->state - 1];
        if (p->text[p->state] == c) p->state++;
        if (p->state > *hold) *hold = p->state;
        if (p->state == p->n && (hit < 0 || p->n > s->patterns[hit].n)) hit = i;
    }
    return hit;
}

/* held + text[0..n) without its last `keep` bytes goes out; the last `keep` bytes become the held text. */
static void release(m5_stop *s, const char *p, size_t n, size_t keep, m5_buf *out)
{
    size_t certain = s->n_held + n - keep;
    size_t from_held = certain < s->n_held ? certain : s->n_held;
    m5_buf_append(out, s->held, from_held);
    m5_buf_append(out, p, certain - from_held);
    memmove(s->held, s->held + from_held, s->n_held - from_held);
    s->n_held -= from_held;
    memcpy(s->held + s->n_held, p + (certain - from_held), n - (certain - from_held));
    s->n_held += n - (certain - from_held);
}

int m5_stop_push(m5_stop *s, const char *p, size_t n, m5_buf *out)
{
    if (s->matched >= 0) return s->matched;
    if (n == 0) return -1;
    size_t hold = 0;
    for (size_t i = 0; i < n; i++) {
        int hit = step(s, p[i], &hold);
        if (hit < 0) continue;
        s->matched = hit;
        release(s, p, i + 1, s->patterns[hit].n, out);
        s->n_held = 0;
        return hit;
    }
    release(s, p, n, hold, out);
    return -1;
}

void m5_stop_flush(m5_stop *s, m5_buf *out)
{
    if (s->matched >= 0) return;
    m5_buf_append(out, s->held, s->n_held);
    s->n_held = 0;
    for (int i = 0; i < s->n; i++) s->patterns[i].state = 0;
}

const char *m5_stop_string(const m5_stop *s, int index) { return index >= 0 && index < s->n ? s->patterns[index].text : NULL; }
