/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of tool calls: what random walks through the masks write in each wire format is read back by the parser of that format as calls of the
 * declared functions, ended by themselves, with arguments that have the declared members. */
#include "base/json.h"
#include "base/mem.h"
#include "grammar_words.h"
#include "t.h"
#include "text/grammar.h"
#include "text/toolcall.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
    "\"string\"},"
    "\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"metric\":{\"type\":\"boolean\"}},\"required\":[\"city\",\"days\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\","
    "\"enum\":[\"a b\","
    "\"red\"]},\"list\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3}},\"required\":[\"kind\"]}}},"
    "{\"name\":\"now\",\"input_schema\":{\"type\":\"object\",\"properties\":{}}}]";

typedef struct heard {
    m5_buf args, name, text;
    int n_call, n_bad;
    bool known, complete;
} heard;

static void judge(heard *h)
{
    m5_json *v = NULL;
    if (m5_json_parse(&v, h->args.p ? h->args.p : "", h->args.n, NULL, NULL) != 0) {
        h->n_bad++;
        return;
    }
    m5_slice name = m5_buf_view(&h->name);
    const m5_json *days = m5_json_get(v, "days"), *kind = m5_json_get(v, "kind"), *list = m5_json_get(v, "list");
    bool ok = h->known && h->complete;
    if (m5_slice_is(name, "get_weather")) {
        ok = ok && m5_json_typeof(m5_json_get(v, "city")) == M5_JSON_STRING && m5_json_typeof(days) == M5_JSON_INT && m5_json_int(days) >= 1 &&
             m5_json_int(days) <= 14;
    } else if (m5_slice_is(name, "get")) {
        ok = ok && (m5_slice_is(m5_json_str(kind), "a b") || m5_slice_is(m5_json_str(kind), "red")) &&
             (!list || m5_json_typeof(list) == M5_JSON_ARRAY);
    } else {
        ok = ok && m5_slice_is(name, "now") && m5_json_len(v) == 0;
    }
    h->n_bad += !ok;
    m5_json_unref(v);
}

static void hear(void *arg, const m5_toolcall_event *ev)
{
    heard *h = arg;
    if (ev->kind == M5_TOOLCALL_TEXT) m5_buf_slice(&h->text, ev->text);
    if (ev->kind == M5_TOOLCALL_ARGS) m5_buf_slice(&h->args, ev->text);
    if (ev->kind == M5_TOOLCALL_BEGIN) {
        m5_buf_clear(&h->args);
        m5_buf_clear(&h->name);
        m5_buf_slice(&h->name, ev->text);
        h->known = ev->known;
        h->n_call++;
    }
    if (ev->kind == M5_TOOLCALL_END) {
        h->complete = ev->complete;
        judge(h);
    }
}

static void check_text(const m5_toolcall_format *f, const m5_json *tools, bool parallel, const m5_buf *text, const char *what)
{
    heard h = {0};
    m5_toolcall *p = NULL;
    m5_toolcall_args a = {.format = f, .tools = tools, .parallel = true, .fn = hear, .arg = &h};
    T_EQ_INT(m5_toolcall_new(&p, &a, NULL), 0);
    m5_toolcall_push(p, text->p ? text->p : "", text->n);
    m5_toolcall_finish(p);
    bool count = parallel ? h.n_call >= 1 : h.n_call == 1;
    T_CHECK(count && !h.n_bad && !h.text.n, "%s: %d calls, %d bad, text \"%.100s\": %s", what, h.n_call, h.n_bad, h.text.n ? h.text.p : "", text->p);
    m5_toolcall_free(p);
    m5_buf_free(&h.args);
    m5_buf_free(&h.name);
    m5_buf_free(&h.text);
}

/* One answer by random tokens; strings are closed early, since noise rarely spells their end. */
static bool answer(m5_grammar *g, m5_buf *text)
{
    m5_matcher *m = NULL;
    if (m5_matcher_new(&m, g, vocab, NULL) != 0) return false;
    for (int i = 0; i < 600 && !m5_matcher_ended(m); i++) {
        uint64_t bits[N_BITS];
        int32_t ids[N_PIECES], n = 0;
        m5_buf forced = {0};
        if (m5_matcher_forced_bytes(m, &forced, NULL) == 0 && forced.n) {
            T_EQ_INT(m5_matcher_accept_bytes(m, forced.p, forced.n, NULL), 0);
            m5_buf_append(text, forced.p, forced.n);
            m5_buf_free(&forced);
            continue;
        }
        m5_buf_free(&forced);
        if (m5_matcher_mask(m, bits, N_BITS, NULL) != 0) break;
        for (int32_t id = 0; id < N_PIECES; id++) {
            if (bits[id >> 6] >> (id & 63) & 1) ids[n++] = id;
        }
        int32_t id = ids[rng() % (uint64_t)n];
        static const char *const ends[] = {"\"", "\n</parameter>", "</parameter>", "</arg_value>", "<|\"|>"};
        for (size_t k = 0; k < 5 && m5_matcher_can_end(m) == false; k++) {
            size_t len = strlen(ends[k]);
            if (rng() % 4 || m5_matcher_peek(m, ends[k], len) != len) continue;
            m5_matcher_accept_bytes(m, ends[k], len, NULL);
            m5_buf_append(text, ends[k], len);
            id = -1;
            break;
        }
        if (m5_matcher_can_end(m) && rng() % 3) id = END;
        if (id < 0) continue;
        /* The parser reads marks of calls in text as marks; here only plain words are wanted. */
        if (id != END && (memchr(pieces[id].p, '<', pieces[id].n) || memchr(pieces[id].p, '[', pieces[id].n)) && n > 60) continue;
        if (m5_matcher_accept(m, id, NULL) != 0) break;
        if (id != END) m5_buf_slice(text, pieces[id]);
    }
    bool ended = m5_matcher_ended(m);
    m5_matcher_free(m);
    return ended;
}

static void test_format(const char *name, const m5_json *tools)
{
    m5_toolcall_format *f = NULL;
    T_EQ_INT(m5_toolcall_format_named(&f, name, NULL), 0);
    for (int k = 0; k < 4; k++) {
        m5_grammar *g = NULL;
        m5_error err = {0};
        m5_grammar_tool_args a = {.format = f, .tools = tools, .name = k & 1 ? "get_weather" : NULL, .parallel = k & 2};
        T_CHECK(m5_grammar_from_tool_calls(&g, &a, &err) == 0, "%s: %s", name, err.text);
        int n_end = 0;
        for (int i = 0; g && i < 40; i++) {
            m5_buf text = {0};
            if (answer(g, &text)) {
                n_end++;
                check_text(f, tools, a.parallel, &text, name);
            }
            m5_buf_free(&text);
        }
        T_CHECK(n_end > 20, "%s: only %d of 40 answers ended", name, n_end);
        m5_grammar_unref(g);
    }
    m5_grammar *g = NULL;
    m5_grammar_tool_args a = {.format = f, .tools = tools, .name = "none"};
    T_EQ_INT(m5_grammar_from_tool_calls(&g, &a, NULL), M5_ERR_NOTFOUND);
    a = (m5_grammar_tool_args){.format = f, .tools = NULL};
    T_EQ_INT(m5_grammar_from_tool_calls(&g, &a, NULL), M5_ERR_FORMAT);
    m5_toolcall_format_free(f);
}

int main(void)
{
    static const char *const names[] = {"hermes", "qwen_xml", "llama3", "mistral", "gemma4", "deepseek", "pythonic", "glm", "invoke"};
    m5_json *tools = NULL;
    m5_json_limits lim = {0};
    make_vocab();
    T_EQ_INT(m5_json_parse(&tools, tools_text, sizeof tools_text - 1, &lim, NULL), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) test_format(names[i], tools);
    m5_json_unref(tools);
    m5_grammar_vocab_free(vocab);
    return t_done();
}
