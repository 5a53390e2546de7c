/* SPDX-License-Identifier: Apache-2.0 */
/* Loop detection; the rule stands in loop.h. Each token's last six are looked up in a table of where such a sequence stood last (a hit is compared,
 * so a collision costs a chance and nothing else); that gives a distance, and from then on every token is compared with the one that far back. */
#include "text/loop.h"

#include "base/mem.h"

enum {
    N_GRAM = 6,
    N_HISTORY = 8192, /* a power of two; periods up to half of it are seen */
    MIN_COPIES = 3,
    MIN_PROSE = 48,
    MIN_OTHER = 512,
    MIN_WORDS = 3,
    IS_WORD = 1, /* flags of a token */
    IS_BAR = 2,
};

struct m5_loop {
    int64_t n; /* tokens taken */
    int32_t ids[N_HISTORY];
    uint8_t flags[N_HISTORY];
    int64_t last[N_HISTORY]; /* by hash: 1 + where such a sequence ended last; 0 = none */
    int distance, run;       /* the last `run` tokens equal those `distance` before */
    int judged;              /* distance for which `prose` holds in this run */
    bool prose;
    int n_tick;  /* backquotes that end the text so far */
    bool fenced; /* in a code block */
};

int m5_loop_new(m5_loop **out)
{
    *out = m5_calloc(M5_MEM_REQUEST, 1, sizeof **out);
    return *out ? 0 : M5_ERR_NOMEM;
}

void m5_loop_free(m5_loop *l)
{
    m5_free(l);
}

static int32_t id_at(const m5_loop *l, int64_t i)
{
    return l->ids[i & (N_HISTORY - 1)];
}

/* A word has two letters in a row; bytes of other scripts count as letters. */
static uint8_t flags_of(m5_slice text)
{
    int n_letter = 0;
    uint8_t flags = 0;
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.p[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        n_letter = letter ? n_letter + 1 : 0;
        if (n_letter == 2 || c >= 0x80) flags |= IS_WORD;
        if (c == '|') flags |= IS_BAR;
    }
    return flags;
}

static void follow_fences(m5_loop *l, m5_slice text)
{
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] != '`') {
            l->n_tick = 0;
        } else if (++l->n_tick == 3) {
            l->fenced = !l->fenced;
        }
    }
}

/* Whether the last period reads like prose: three different words at least, and no line of a table. */
static bool is_prose(const m5_loop *l)
{
    int32_t words[MIN_WORDS];
    int n_word = 0, n_bar = 0;
    for (int64_t i = l->n - l->distance; i < l->n; i++) {
        uint8_t flags = l->flags[i & (N_HISTORY - 1)];
        n_bar += (flags & IS_BAR) != 0;
        bool seen = !(flags & IS_WORD);
        for (int k = 0; k < n_word && !seen; k++) seen = words[k] == id_at(l, i);
        if (!seen && n_word < MIN_WORDS) words[n_word++] = id_at(l, i);
    }
    return n_word == MIN_WORDS && n_bar < 2;
}

static void look_up(m5_loop *l)
{
    if (l->n < N_GRAM) return;
    uint64_t h = 0;
    for (int k = 1; k <= N_GRAM; k++) h = (h ^ (uint32_t)id_at(l, l->n - k)) * 0x9E3779B97F4A7C15u;
    int64_t *slot = &l->last[h >> 51], before = *slot; /* 64 - 13 bits: N_HISTORY slots */
    *slot = l->n;
    if (l->run > 0 || before == 0 || l->n - before > N_HISTORY / 2 - N_GRAM) return;
    for (int k = 1; k <= N_GRAM; k++)
        if (id_at(l, l->n - k) != id_at(l, before - k)) return;
    l->distance = (int)(l->n - before);
    l->run = N_GRAM;
    l->judged = 0;
}

int m5_loop_push(m5_loop *l, int32_t id, m5_slice text)
{
    if (l->run > 0) l->run = id_at(l, l->n - l->distance) == id ? l->run + 1 : 0;
    l->ids[l->n & (N_HISTORY - 1)] = id;
    l->flags[l->n & (N_HISTORY - 1)] = flags_of(text);
    l->n++;
    follow_fences(l, text);
    look_up(l);
    if (l->run < (MIN_COPIES - 1) * l->distance || l->run < MIN_PROSE) return 0;
    if (l->run >= MIN_OTHER) return l->distance;
    if (l->judged != l->distance) {
        l->prose = is_prose(l);
        l->judged = l->distance;
    }
    return l->prose && !l->fenced ? l->distance : 0;
}
