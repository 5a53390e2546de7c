/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of thoughts; what it promises stands in think.h. Not here: which tags a family has (chat.c), which tokens close a thought (the
 * caller puts them), what a thought's end leads to. */
#include "text/think.h"

#include "base/mem.h"
#include "text/loop.h"

#include <string.h>

/* White space at the end of a thought is held back up to this; a frame is a line break or two. */
enum { MAX_HELD_BLANK = 4096, MAX_FRAME_TOK = 4 };

struct m5_think {
    m5_think_options o;
    m5_slice open, close;
    m5_part_fn fn;
    void *ctx;
    m5_loop *loop;
    m5_buf hold; /* text that may become a tag or a frame */
    bool inside;
    bool opening;    /* open_id came, the rest of the tag is due */
    bool trim;       /* line breaks that come now are a frame */
    bool fresh;      /* no text of this part yet */
    bool line_start; /* of the answer, or of the thought */
    int n_tick;      /* backquotes at the start of this answer line; -1 = something else came */
    bool fenced;     /* the answer is in a code block */
    bool failed, spent, looped;
    int n_frame_tok; /* since the last thought */
    int n_again;     /* tags of thoughts after the first: they use the budget too, or there would be no end of them */
    m5_think_stats stats;
};

const char *m5_think_end_name(m5_think_end e)
{
    static const char *const names[] = {NULL, "model", "budget", "loop", "room", "stop"};
    return names[e];
}

int m5_think_new(m5_think **out, const m5_think_options *o, m5_part_fn fn, void *ctx)
{
    m5_think *t = m5_calloc(M5_MEM_REQUEST, 1, sizeof *t);
    *out = t;
    if (!t) return M5_ERR_NOMEM;
    t->o = *o;
    t->open = m5_slice_of(o->open);
    t->close = m5_slice_of(o->close);
    t->fn = fn;
    t->ctx = ctx;
    t->inside = o->inside && t->close.n > 0;
    t->trim = t->close.n > 0;
    t->fresh = t->line_start = true;
    t->stats.n_block = t->inside;
    t->spent = o->budget == 0;
    if (!o->loops || t->close.n == 0 || m5_loop_new(&t->loop) == 0) return 0;
    m5_free(t);
    *out = NULL;
    return M5_ERR_NOMEM;
}

void m5_think_free(m5_think *t)
{
    if (!t) return;
    m5_loop_free(t->loop);
    m5_buf_free(&t->hold);
    m5_free(t);
}

static void follow_answer(m5_think *t, m5_slice s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        t->line_start = c == '\n';
        if (c == '\n')
            t->n_tick = 0;
        else if (c != '`' && c != ' ')
            t->n_tick = -1;
        else if (c == '`' && t->n_tick >= 0 && ++t->n_tick == 3)
            t->fenced = !t->fenced;
    }
}

static void emit(m5_think *t, m5_slice s)
{
    while (t->trim && s.n && (*s.p == '\n' || *s.p == '\r')) s.p++, s.n--;
    if (s.n == 0) return;
    t->trim = t->fresh = false;
    if (t->inside)
        t->line_start = s.p[s.n - 1] == '\n';
    else
        follow_answer(t, s);
    t->fn(t->ctx, t->inside ? M5_PART_REASONING : M5_PART_ANSWER, s);
}

static void release(m5_think *t)
{
    emit(t, m5_buf_view(&t->hold));
    m5_buf_clear(&t->hold);
}

static void enter(m5_think *t)
{
    t->inside = t->trim = t->fresh = true;
    t->line_start = false;
    t->opening = false;
    if (t->stats.n_block++ > 0) t->n_again++;
}

static void leave(m5_think *t)
{
    t->inside = t->looped = false;
    t->trim = t->fresh = t->line_start = true;
    t->n_tick = t->n_frame_tok = 0;
    t->fenced = false;
    if (t->stats.n_block > 1) t->n_again++;
    if (t->stats.end == M5_THINK_OPEN) t->stats.end = M5_THINK_MODEL;
}

static bool is_blank(char c)
{
    return c == '\n' || c == ' ' || c == '\t' || c == '\r';
}

/* Bytes at the end of s that are white space, within the bound. */
static size_t blank_tail(m5_slice s)
{
    size_t n = 0;
    while (n < s.n && n < MAX_HELD_BLANK && is_blank(s.p[s.n - 1 - n])) n++;
    return n;
}

/* The longest end of s that begins the tag. */
static size_t tag_tail(m5_slice s, m5_slice tag)
{
    size_t n = s.n < tag.n - 1 ? s.n : tag.n - 1;
    while (n > 0 && memcmp(s.p + s.n - n, tag.p, n) != 0) n--;
    return n;
}

static void feed(m5_think *t, m5_slice s);

/* Text of a thought: goes out but for a tail that may be the closing tag or the line break before it. */
static void feed_thought(m5_think *t, m5_slice s)
{
    m5_buf_slice(&t->hold, s);
    m5_slice all = m5_buf_view(&t->hold);
    size_t at = m5_slice_find(all, t->close, 0);
    if (at == SIZE_MAX) {
        size_t tail = tag_tail(all, t->close);
        tail += blank_tail((m5_slice){all.p, all.n - tail});
        emit(t, (m5_slice){all.p, all.n - tail});
        m5_buf_erase_front(&t->hold, all.n - tail);
        return;
    }
    m5_slice thought = {all.p, at}, rest = {all.p + at + t->close.n, all.n - at - t->close.n};
    emit(t, (m5_slice){thought.p, thought.n - blank_tail(thought)});
    leave(t);
    m5_buf left = t->hold;
    t->hold = (m5_buf){0};
    feed(t, rest);
    m5_buf_free(&left);
}

static bool begins(m5_slice tag, const m5_buf *held, char c)
{
    return held->n < tag.n && memcmp(tag.p, held->p ? held->p : "", held->n) == 0 && tag.p[held->n] == c;
}

/* Whether a tag that comes now stands where a message could begin. */
static bool at_message(const m5_think *t)
{
    return t->fresh || (t->line_start && !t->fenced);
}

/* Emits the rest of the line that s begins with; returns its length. */
static size_t feed_line(m5_think *t, m5_slice s)
{
    const char *end = memchr(s.p, '\n', s.n);
    size_t n = end ? (size_t)(end - s.p) + 1 : s.n;
    emit(t, (m5_slice){s.p, n});
    return n;
}

/* Text of the answer when tags are spelled in ordinary tokens: at the start of a line they are held back until they are whole or something else. */
static void feed_spelled(m5_think *t, m5_slice s)
{
    for (size_t i = 0; i < s.n;) {
        m5_slice rest = {s.p + i, s.n - i};
        bool here = t->hold.n > 0 || at_message(t);
        bool opens = here && t->o.open_id < 0 && begins(t->open, &t->hold, *rest.p);
        bool closes = here && t->o.close_id < 0 && begins(t->close, &t->hold, *rest.p);
        if (!opens && !closes) {
            if (t->hold.n)
                release(t);
            else
                i += feed_line(t, rest);
            continue;
        }
        m5_buf_putc(&t->hold, *rest.p);
        i++;
        bool opened = opens && t->hold.n == t->open.n, closed = closes && t->hold.n == t->close.n;
        if (t->hold.failed) return;
        if (!opened && !closed) continue;
        m5_buf_clear(&t->hold);
        if (closed) {
            t->trim = true; /* dropped, with the line breaks behind it */
            continue;
        }
        enter(t);
        feed_thought(t, (m5_slice){rest.p + 1, rest.n - 1});
        return;
    }
}

/* The rest of an opening tag whose first token came. */
static void feed_opening(m5_think *t, m5_slice s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (!begins(t->open, &t->hold, s.p[i])) { /* it was another kind of block: text after all */
            t->opening = false;
            release(t);
            feed(t, (m5_slice){s.p + i, s.n - i});
            return;
        }
        m5_buf_putc(&t->hold, s.p[i]);
        if (t->hold.n < t->open.n) continue;
        m5_buf_clear(&t->hold);
        enter(t);
        feed(t, (m5_slice){s.p + i + 1, s.n - i - 1});
        return;
    }
}

static void feed(m5_think *t, m5_slice s)
{
    if (s.n == 0) return;
    if (t->inside)
        feed_thought(t, s);
    else if (t->opening)
        feed_opening(t, s);
    else if (t->close.n && (t->o.open_id < 0 || t->o.close_id < 0))
        feed_spelled(t, s);
    else
        emit(t, s);
}

/* A token that is, or begins, a tag. False: here it is text. */
static bool take_tag(m5_think *t, int32_t id, m5_slice text)
{
    if (t->inside) {
        if (id == t->o.close_id) {
            m5_slice held = m5_buf_view(&t->hold);
            emit(t, (m5_slice){held.p, held.n - blank_tail(held)});
            m5_buf_clear(&t->hold);
            leave(t);
            return true;
        }
        bool twice = t->fresh && m5_slice_eq(text, t->open);
        t->n_again += twice;
        return twice;
    }
    if (t->hold.n) { /* an unfinished tag of letters */
        t->opening = false;
        release(t);
    }
    if (!at_message(t)) return false;
    if (id == t->o.close_id) {
        t->trim = true;
        return true;
    }
    if (text.n > t->open.n || memcmp(text.p, t->open.p, text.n) != 0) return false;
    if (text.n == t->open.n) {
        enter(t);
    } else {
        t->opening = true;
        m5_buf_slice(&t->hold, text);
    }
    return true;
}

bool m5_think_push(m5_think *t, int32_t id, m5_slice text, bool forced)
{
    bool was_inside = t->inside, tag = false;
    if (t->close.n && id >= 0 && text.n > 0 && (id == t->o.open_id || id == t->o.close_id)) tag = take_tag(t, id, text);
    bool opening = t->opening;
    if (!tag) feed(t, text);
    if (was_inside && !tag && !forced) {
        t->stats.n_tok++;
        if (t->loop && !t->looped) t->stats.loop_period = m5_loop_push(t->loop, id, text);
        t->looped = t->stats.loop_period > 0;
    }
    if (t->o.budget >= 0 && t->stats.n_tok + t->n_again >= t->o.budget && !t->inside && t->stats.n_block > 0) t->spent = true;
    t->failed |= t->hold.failed;
    if (was_inside) return true;
    if (tag && !t->inside && !t->opening) return false; /* a stray closing tag */
    if (tag || opening) return !t->spent || t->stats.n_block + t->opening <= 1;
    /* Framing line breaks between a thought and its answer. */
    return t->trim && t->stats.n_block > 0 && t->n_frame_tok++ < MAX_FRAME_TOK;
}

int m5_think_flush(m5_think *t)
{
    if (t->inside) {
        m5_slice held = m5_buf_view(&t->hold);
        emit(t, (m5_slice){held.p, held.n - blank_tail(held)});
        m5_buf_clear(&t->hold);
    } else {
        release(t);
    }
    return t->failed || t->hold.failed ? M5_ERR_NOMEM : 0;
}

m5_think_end m5_think_due(const m5_think *t, int n_room)
{
    if (!t->inside) return M5_THINK_OPEN;
    if (t->looped) return M5_THINK_LOOP;
    if (t->spent || (t->o.budget >= 0 && t->stats.n_tok + t->n_again >= t->o.budget)) return M5_THINK_BUDGET;
    return n_room <= t->o.n_reserve ? M5_THINK_ROOM : M5_THINK_OPEN;
}

void m5_think_close(m5_think *t, m5_think_end why)
{
    if (t->stats.end <= M5_THINK_MODEL) t->stats.end = why;
    t->spent = true;
}

int32_t m5_think_forbidden(const m5_think *t)
{
    return t->spent && !t->inside && t->fresh && t->close.n ? t->o.open_id : -1;
}

bool m5_think_inside(const m5_think *t)
{
    return t->inside;
}
bool m5_think_at_line_start(const m5_think *t)
{
    m5_slice held = m5_buf_view(&t->hold);
    return t->inside && (held.n ? held.p[held.n - 1] == '\n' : t->line_start && !t->fresh);
}
bool m5_think_answer_empty(const m5_think *t)
{
    return !t->inside && t->fresh;
}
void m5_think_get_stats(const m5_think *t, m5_think_stats *out)
{
    *out = t->stats;
}
