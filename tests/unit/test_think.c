/* SPDX-License-Identifier: Apache-2.0 */
/* text/think.c and text/loop.c: where thoughts begin and end, for every way of cutting the text; budgets, room and re-entry counted; loops and what
 * only looks like one. Tokens are scripted: "{" and "}" stand for the tag tokens. */
#include "base/mem.h"
#include "t.h"
#include "text/loop.h"
#include "text/think.h"

#include <stdint.h>

enum { OPEN_ID = 1000, CLOSE_ID = 1001 };

typedef struct sink {
    m5_buf out; /* reasoning between { and }, answer bare */
    int last;   /* part of the last piece, -1 = none */
} sink;

static void take(void *ctx, m5_part part, m5_slice text)
{
    sink *s = ctx;
    T_CHECK(text.n > 0);
    if (s->last != (int)part && (part == M5_PART_REASONING || s->last == M5_PART_REASONING))
        m5_buf_putc(&s->out, part == M5_PART_REASONING ? '{' : '}');
    m5_buf_slice(&s->out, text);
    s->last = (int)part;
}

static m5_think_options options(const char *open, const char *close, bool tokens, bool inside)
{
    return (m5_think_options){open, close, tokens ? OPEN_ID : -1, tokens ? CLOSE_ID : -1, inside, -1, 0, true};
}

/* Script: text where \1 is the opening and \2 the closing token; cut after every byte whose bit is set. */
static void run(const m5_think_options *o, const char *script, uint64_t cuts, m5_buf *out)
{
    sink s = {.last = -1};
    m5_think *t = NULL;
    T_CHECK(m5_think_new(&t, o, take, &s) == 0);
    const char *marker = strncmp(o->open, "<|channel>", 10) == 0 ? "<|channel>" : o->open;
    for (size_t i = 0, n = strlen(script); i < n;) {
        if (script[i] <= 2) {
            m5_think_push(t, script[i] == 1 ? OPEN_ID : CLOSE_ID, m5_slice_of(script[i] == 1 ? marker : o->close), false);
            i++;
            continue;
        }
        size_t k = i + 1;
        while (k < n && script[k] > 2 && !(cuts >> ((k - 1) % 64) & 1)) k++;
        m5_think_push(t, (int32_t)(unsigned char)script[i], (m5_slice){script + i, k - i}, false);
        i = k;
    }
    T_EQ_INT(m5_think_flush(t), 0);
    m5_think_free(t);
    *out = s.out;
}

/* Every one and two cuts, all cuts, and a few hundred random ones. */
static void check(m5_think_options o, const char *script, const char *want)
{
    size_t n = strlen(script);
    uint64_t rng = 1;
    for (size_t i = 0; i < n + 300; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        for (size_t k = 0; k <= (i < n && n < 64 ? i : 0); k++) {
            uint64_t cuts = i < n ? (uint64_t)1 << (i % 64) | (uint64_t)1 << (k % 64) : i == n ? ~(uint64_t)0 : i == n + 1 ? 0 : rng & rng >> 7;
            m5_buf got = {0};
            run(&o, script, cuts, &got);
            bool ok = strcmp(got.p ? got.p : "", want) == 0;
            T_CHECK(ok, "%s: got '%s', want '%s'", script, got.p ? got.p : "", want);
            m5_buf_free(&got);
            if (!ok) return;
        }
    }
}

static void test_tokens(void)
{
    m5_think_options o = options("<think>", "</think>", true, false), in = options("<think>", "</think>", true, true);
    check(o, "plain answer\n", "plain answer\n");
    check(o, "\1\nwhy\n\nso\n\2\n\nyes", "{why\n\nso}yes");
    check(o, "\1\2yes", "yes");
    check(o, "\1\n\n\2\n\nyes\n", "yes\n");
    check(in, "\nwhy\n\2\n\nyes", "{why}yes");
    check(in, "why <\2yes", "{why <}yes");
    check(in, "\1\nwhy\2yes", "{why}yes"); /* opened twice */
    check(in, "why, never closed  \n", "{why, never closed");
    check(in, "\2yes", "yes");
    check(o, "\2yes", "yes"); /* closed without an opening */
    check(o, "first\n\2\nyes", "first\nyes");
    check(o, "a\n\1b\2\nc\n\1d\2e", "a\n{b}c\n{d}e"); /* several blocks */
    check(in, "a\2b\n\1c\n\2\n\nd", "{a}b\n{c}d");
    /* In the middle of a line and in code, tags are text. */
    check(o, "use \1 and \2.\nthen", "use <think> and </think>.\nthen");
    check(o, "```\n\1\nx\n\2\n```\n\1y\2z", "```\n<think>\nx\n</think>\n```\n{y}z");
    check(o, "a ``` b\n\1y\2z", "a ``` b\n{y}z");
    check(o, "<think>\nno token\n</think>", "<think>\nno token\n</think>");
    check(in, "letters\n</think>\nclose too", "{letters}close too");
    check(in, "x < y </thin </think", "{x < y </thin </think");
    check(in, "half \2\n\n  code", "{half}  code");
}

static void test_spelled(void)
{
    m5_think_options o = options("<think>", "</think>", false, false), in = options("<think>", "</think>", false, true);
    check(o, "<think>\nwhy\n</think>\n\nyes", "{why}yes");
    check(o, "\n\n<think>why</think>yes", "{why}yes");
    check(o, "a <think> b\n<think>c</think>\nd\n</think>\ne", "a <think> b\n{c}d\ne");
    check(o, "<thin\n<think\n<<think>", "<thin\n<think\n<<think>");
    check(o, "```\n<think>\n```\n", "```\n<think>\n```\n");
    check(in, "why</think></think>\n<think>again</think>yes", "{whyagain}yes");
    check(o, "</thi", "</thi");
    check(in, "a\n\n\n", "{a");
    check(options("[THINK]", "[/THINK]", false, false), "[THINK]x[y][/z[/THINK]a[THINK]", "{x[y][/z}a[THINK]");
}

static void test_channel(void)
{
    m5_think_options o = options("<|channel>thought", "<channel|>", true, false);
    check(o, "\1thought\nwhy\n\2yes", "{why}yes");
    check(o, "\1thought\n\2yes", "yes");
    check(o, "\1final\nyes", "<|channel>final\nyes");
    check(o, "\1th\2yes", "<|channel>th<channel|>yes");
    check(o, "\1though", "<|channel>though");
    check(o, "\1\1thought\nx", "<|channel><|channel>thought\nx");
    check(options("<|channel>thought", "<channel|>", true, true), "why\2yes", "{why}yes");
}

static void test_none(void)
{
    sink s = {.last = -1};
    m5_think *t = NULL;
    m5_think_options o = {.open_id = -1, .close_id = -1, .inside = true, .budget = 0};
    T_CHECK(m5_think_new(&t, &o, take, &s) == 0);
    T_CHECK(!m5_think_push(t, 5, m5_slice_of("\n<think>\n"), false) && !m5_think_push(t, 6, m5_slice_of(""), false));
    T_CHECK(m5_think_due(t, 0) == M5_THINK_OPEN && m5_think_forbidden(t) == -1 && !m5_think_inside(t));
    T_EQ_INT(m5_think_flush(t), 0);
    T_EQ_STR(s.out.p, "\n<think>\n");
    m5_think_free(t);
    m5_think_free(NULL);
    m5_buf_free(&s.out);
    T_CHECK(m5_think_end_name(M5_THINK_OPEN) == NULL);
    T_EQ_STR(m5_think_end_name(M5_THINK_STOP), "stop");
}

/* Draws tokens of a script until one is due to close, closes, goes on; returns the thinking tokens counted. */
static int spend(m5_think_options o, const char *script, int *n_uncounted, m5_think_stats *st)
{
    sink s = {.last = -1};
    m5_think *t = NULL;
    T_CHECK(m5_think_new(&t, &o, take, &s) == 0);
    *n_uncounted = 0;
    int n_room = 100;
    for (const char *c = script; *c; n_room--) {
        m5_think_end why = m5_think_due(t, n_room);
        bool forced = why != M5_THINK_OPEN;
        char tok = *c;
        if (forced) {
            m5_think_close(t, why);
            tok = 2;
        } else {
            c++;
            if (tok == 1 && m5_think_forbidden(t) == OPEN_ID) continue;
        }
        m5_slice text = tok == 1 ? m5_slice_of(o.open) : tok == 2 ? m5_slice_of(o.close) : (m5_slice){&tok, 1};
        *n_uncounted += m5_think_push(t, tok == 1 ? OPEN_ID : tok == 2 ? CLOSE_ID : tok, text, forced);
    }
    m5_think_flush(t);
    m5_think_get_stats(t, st);
    m5_think_free(t);
    m5_buf_free(&s.out);
    return st->n_tok;
}

static void test_budget(void)
{
    m5_think_options o = options("<think>", "</think>", true, true);
    m5_think_stats st;
    int u;
    static const struct {
        int budget, n_tok, n_uncounted;
        m5_think_end end;
    } cases[] = {{0, 0, 1, M5_THINK_BUDGET}, {1, 1, 2, M5_THINK_BUDGET},      {4, 4, 5, M5_THINK_BUDGET}, {5, 5, 6, M5_THINK_BUDGET},
                 {6, 5, 6, M5_THINK_MODEL},  {1 << 30, 5, 6, M5_THINK_MODEL}, {-1, 5, 6, M5_THINK_MODEL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.budget = cases[i].budget;
        /* With exactly as many tokens as the thought needs, the block is closed before the model's own tag, which then is a stray one. */
        T_EQ_INT(spend(o, "think\2yes", &u, &st), cases[i].n_tok);
        T_CHECK(st.end == cases[i].end && st.n_block == 1, "budget %d: %d", o.budget, (int)st.end);
        T_EQ_INT(u, cases[i].n_uncounted);
    }
    /* A second block shares the budget; the third may not begin. */
    o.budget = 8;
    T_EQ_INT(spend(o, "one\2a\n\1two3\2b\n\1c\2d", &u, &st), 7);
    T_CHECK(st.end == M5_THINK_BUDGET && st.n_block == 3, "%d %d", (int)st.end, st.n_block);
    /* Opened and closed for ever: tags of later blocks use the budget, and then count as answer. */
    o.budget = 3;
    char script[61] = {0};
    for (int i = 0; i < 60; i++) script[i] = i % 2 ? 1 : 2;
    spend(o, script, &u, &st);
    T_CHECK(u == 5 && st.n_tok == 0, "%d", u);
    /* Opened over and over inside of itself. */
    spend(o, "\1\1\1\1\1\1\1\1\1", &u, &st);
    T_CHECK(u == 4 && st.end == M5_THINK_BUDGET, "%d", u);
    o = options("<think>", "</think>", true, false);
    o.budget = 0; /* the model opens a thought although it may not */
    T_EQ_INT(spend(o, "\1ab\2c\n\1d", &u, &st), 0);
    T_CHECK(st.n_block == 1 && st.end == M5_THINK_BUDGET, "%d %d", st.n_block, (int)st.end);
    o = options("<think>", "</think>", true, true);
    o.n_reserve = 97;
    T_EQ_INT(spend(o, "think\2yes", &u, &st), 3);
    T_CHECK(st.end == M5_THINK_ROOM);
}

static void test_places(void)
{
    sink s = {.last = -1};
    m5_think *t = NULL;
    m5_think_options o = options("<think>", "</think>", true, true);
    T_CHECK(m5_think_new(&t, &o, take, &s) == 0);
    T_CHECK(!m5_think_at_line_start(t));
    m5_think_push(t, 'a', m5_slice_of("a"), false);
    T_CHECK(!m5_think_at_line_start(t));
    m5_think_push(t, 'b', m5_slice_of("b\n"), false);
    T_CHECK(m5_think_at_line_start(t) && m5_think_inside(t) && !m5_think_answer_empty(t));
    T_CHECK(m5_think_push(t, CLOSE_ID, m5_slice_of("</think>"), true));
    T_CHECK(!m5_think_inside(t) && m5_think_answer_empty(t));
    for (int i = 0; i < 8; i++) T_CHECK(m5_think_push(t, '\n', m5_slice_of("\n"), false) == (i < 4)); /* a frame, not an endless one */
    T_CHECK(m5_think_answer_empty(t));
    T_CHECK(!m5_think_push(t, 'c', m5_slice_of("\nc"), false) && !m5_think_answer_empty(t));
    m5_think_free(t);
    /* After a thought was closed by force none may open, also with budget left. */
    T_CHECK(m5_think_new(&t, &o, take, &s) == 0);
    m5_think_close(t, M5_THINK_STOP);
    T_CHECK(m5_think_forbidden(t) == -1);
    m5_think_push(t, CLOSE_ID, m5_slice_of("</think>"), true);
    T_CHECK(m5_think_forbidden(t) == OPEN_ID);
    m5_think_push(t, 'c', m5_slice_of("c\n"), false);
    T_CHECK(m5_think_forbidden(t) == -1); /* in the answer the tag may be text; as a tag it is closed at once */
    m5_think_push(t, OPEN_ID, m5_slice_of("<think>"), false);
    T_CHECK(m5_think_due(t, 1000) == M5_THINK_BUDGET);
    m5_think_free(t);
    m5_buf_free(&s.out);
}

/* ---- loops ---- */

/* Feeds words, each a token with its number as id; returns after how many tokens a loop is seen (0: never) and its period. */
static int find(const char *(*word)(int i, char buf[32]), int n, int *period)
{
    static char seen[4096][32];
    int n_seen = 0, at = 0;
    m5_loop *l = NULL;
    T_CHECK(m5_loop_new(&l) == 0);
    for (int i = 0; i < n && !at; i++) {
        char buf[32];
        const char *w = word(i, buf);
        int id = 0;
        while (id < n_seen && strcmp(seen[id], w) != 0) id++;
        if (id == n_seen && n_seen < 4095) snprintf(seen[n_seen++], sizeof *seen, "%s", w);
        *period = m5_loop_push(l, id, m5_slice_of(w));
        if (*period) at = i + 1;
    }
    m5_loop_free(l);
    return at;
}

static int loop_period, counter_every;
static const char *periodic(int i, char buf[32])
{
    snprintf(buf, 32, " word%d", i % loop_period);
    return buf;
}
/* A long prologue, then the loop. */
static const char *late(int i, char buf[32])
{
    snprintf(buf, 32, " word%d", i < 500 ? i : 500 + (i - 500) % loop_period);
    return buf;
}
/* One number in the block counts up. */
static const char *counting(int i, char buf[32])
{
    if (i % loop_period == counter_every)
        snprintf(buf, 32, " %d", i / loop_period);
    else
        snprintf(buf, 32, " word%d", i % loop_period);
    return buf;
}
static const char *zeros(int i, char buf[32])
{
    return (void)buf, i % 2 ? " 0" : ",";
}
static const char *grid(int i, char buf[32])
{
    return (void)buf, i % 21 == 20 ? "\n" : i % 2 ? " " : i % 21 == 4 ? "5" : "0";
}
/* Ten equal rows of a table with words, then another text. */
static const char *table(int i, char buf[32])
{
    static const char *const row[] = {"|", " yes", " |", " no", " |", " perhaps", " |\n"};
    if (i < 70) return row[i % 7];
    snprintf(buf, 32, " word%d", i);
    return buf;
}
/* Sixty equal lines of code between fences. */
static const char *code(int i, char buf[32])
{
    static const char *const line[] = {"print", "(", "hello", ",", "world", ")", "\n"};
    if (i == 0) return "```";
    if (i == 421) return "``";
    if (i == 422) return "`\n";
    if (i < 421) return line[(i - 1) % 7];
    snprintf(buf, 32, " word%d", i);
    return buf;
}
/* A paragraph quoted again later, twice, with new text between. */
static const char *quote(int i, char buf[32])
{
    snprintf(buf, 32, " word%d", i % 300 < 150 ? i % 300 : i);
    return buf;
}
/* The same sentence over and over with one of two words in one place. */
static const char *dithering(int i, char buf[32])
{
    int odd = 0; /* the Thue-Morse sequence: nothing comes three times in a row */
    for (int n = i / 12; n; n &= n - 1) odd ^= 1;
    if (i % 12 == 5)
        snprintf(buf, 32, odd ? " left" : " right");
    else
        snprintf(buf, 32, " word%d", i % 12);
    return buf;
}

static void test_loops(void)
{
    int p;
    static const int periods[] = {3, 6, 7, 30, 200, 1000, 4000};
    for (size_t i = 0; i < sizeof periods / sizeof *periods; i++) {
        loop_period = periods[i];
        int at = find(periodic, 20000, &p), want = 3 * loop_period > 48 + loop_period ? 3 * loop_period : 48 + loop_period;
        T_CHECK(at >= want && at <= want + 4 && p == loop_period, "period %d: after %d, %d", loop_period, at, p);
        if (loop_period > 1000) continue; /* the tool of this test names 4095 words */
        at = find(late, 20000, &p);
        T_CHECK(at == 500 + want && p == loop_period, "late, period %d: after %d, %d", loop_period, at, p);
        counter_every = loop_period / 2;
        T_EQ_INT(find(counting, 3 * 4000, &p), 0);
    }
    loop_period = 2; /* two words only: not prose, so it takes longer */
    T_EQ_INT(find(periodic, 20000, &p), 512 + 2);
    loop_period = 1;
    T_EQ_INT(find(periodic, 20000, &p), 512 + 1);
    T_EQ_INT(find(zeros, 500, &p), 0);
    T_EQ_INT(find(grid, 21 * 23, &p), 0); /* 23 equal rows of a puzzle */
    T_EQ_INT(find(table, 1000, &p), 0);
    T_EQ_INT(find(code, 900, &p), 0);
    T_EQ_INT(find(quote, 900, &p), 0);
    T_EQ_INT(find(dithering, 12 * 300, &p), 0);
}

static void test_loop_in_thought(void)
{
    sink s = {.last = -1};
    m5_think *t = NULL;
    m5_think_options o = options("<think>", "</think>", true, true);
    for (int loops = 0; loops < 2; loops++) {
        m5_think_stats st;
        o.loops = loops;
        T_CHECK(m5_think_new(&t, &o, take, &s) == 0);
        int n = 0;
        static const char *const words[] = {"Wait", ",", " let", " me", " check", ".\n"};
        while (n < 600 && m5_think_due(t, 1000) == M5_THINK_OPEN) m5_think_push(t, n % 6, m5_slice_of(words[n % 6]), false), n++;
        T_EQ_INT(n, loops ? 54 : 600);
        T_CHECK(m5_think_due(t, 1000) == (loops ? M5_THINK_LOOP : M5_THINK_OPEN));
        m5_think_get_stats(t, &st);
        T_EQ_INT(st.loop_period, loops ? 6 : 0);
        m5_think_free(t);
    }
    m5_buf_free(&s.out);
}

static void test_failing_memory(void)
{
    for (uint64_t n = 1; n < 6; n++) {
        sink s = {.last = -1};
        m5_think *t = NULL;
        m5_think_options o = options("<think>", "</think>", false, false);
        m5_mem_fail_at(n);
        int rc = m5_think_new(&t, &o, take, &s);
        if (rc == 0) {
            m5_think_push(t, 1, m5_slice_of("<thi"), false);
            m5_think_push(t, 2, m5_slice_of("nk>why\n"), false);
            m5_think_push(t, 3, m5_slice_of("</think>"), false);
            m5_think_push(t, 4, m5_slice_of("yes"), false);
            rc = m5_think_flush(t);
        }
        m5_mem_fail_at(0);
        T_CHECK(rc == M5_ERR_NOMEM || s.out.failed || (s.out.p && strcmp(s.out.p, "{why}yes") == 0), "allocation %d: %s", (int)n,
                s.out.p ? s.out.p : "");
        m5_think_free(t);
        m5_buf_free(&s.out);
    }
}

int main(void)
{
    test_tokens();
    test_spelled();
    test_channel();
    test_none();
    test_budget();
    test_places();
    test_loops();
    test_loop_in_thought();
    test_failing_memory();
    return t_done();
}
