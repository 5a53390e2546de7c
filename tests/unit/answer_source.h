/* SPDX-License-Identifier: Apache-2.0 */
/* A scripted source of tokens in the engine's place, for tests of server/answer.c: a tokenizer of single bytes and a few tags, a template, one tool,
 * and the loop that asks the control what may come. SOURCE_CHECK(condition) is the includer's. */
#ifndef M5_TESTS_ANSWER_SOURCE_H
#define M5_TESTS_ANSWER_SOURCE_H

#include "server/answer.h"

#include <stdlib.h>
#include <string.h>

enum { THINK = 256, UNTHINK, CALL, UNCALL, END, N_VOCAB };
static const char *specials[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"};
static m5_tokenizer *tok;
static m5_chat *chat;
static m5_wire *wire;
static m5_json *tools;

static const char template_text[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + "
    "'\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}{{ "
    "c.function.arguments|tojson }}"
    "{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}{% if tools %}{{ tools|tojson }}{% endif %}";

/* Byte-level BPE without merges: token b is byte b. */
static void open_source(const char *source)
{
    m5_buf j = {0};
    m5_error err = {0};
    m5_buf_puts(&j, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < 5; i++) {
        m5_buf_printf(&j,
                      "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                      i ? "," : "", THINK + i, specials[i], i == 4 ? "true" : "false");
    }
    m5_buf_puts(
        &j, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":true},"
            "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":true},"
            "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_"
            "unk\":false,"
            "\"byte_fallback\":false,\"ignore_merges\":false,\"merges\":[],\"vocab\":{");
    for (int b = 0, extra = 0; b < 256; b++) {
        bool shown = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
        m5_buf c = {0};
        m5_buf_codepoint(&c, shown ? (uint32_t)b : 256u + (uint32_t)extra++);
        if (b) m5_buf_putc(&j, ',');
        m5_json_write_str(&j, c.p, c.n);
        m5_buf_printf(&j, ":%d", b);
        m5_buf_free(&c);
    }
    m5_buf_puts(&j, "}}}");
    SOURCE_CHECK(m5_tokenizer_from_json(&tok, j.p, j.n, NULL, &err) == 0);
    m5_buf_free(&j);
    SOURCE_CHECK(m5_chat_new(&chat, source, NULL, NULL, "<|im_end|>", &err) == 0);
    SOURCE_CHECK(m5_wire_new(&wire, tok, chat, &err) == 0);
    SOURCE_CHECK(wire->open_id == THINK && wire->close_id == UNTHINK);
    static const char list[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]";
    SOURCE_CHECK(m5_json_parse(&tools, list, sizeof list - 1, NULL, NULL) == 0);
}

static inline void close_source(void)
{
    m5_json_unref(tools);
    m5_wire_free(wire);
    m5_chat_free(chat);
    m5_tokenizer_free(tok);
}

static m5_grammar *grammar_of(const char *schema)
{
    m5_json *s = NULL;
    m5_grammar *g = NULL;
    m5_error err = {0};
    SOURCE_CHECK(m5_json_parse(&s, schema, strlen(schema), NULL, NULL) == 0 && m5_grammar_from_schema(&g, s, &err) == 0);
    m5_json_unref(s);
    return g;
}

/* The engine's part, as sched.c does it: forced tokens, masks, end tokens that go on, limits. A masked draw takes the script's token when it may,
 * else the first one from '!' on that may come. Script: bytes, \1 = <think>, \2 = </think>, \3 = <tool_call>, \4 = </tool_call>, \5 = the end token;
 * after it end tokens for ever. */
typedef struct run {
    int max_tokens, n_ctx;
    int n_gen, n_counted, n_forced;
    char ids[4096]; /* drawn and forced, as script letters */
} run;

static int32_t letter(char c)
{
    return c >= 1 && c <= 5 ? THINK + c - 1 : (unsigned char)c;
}

static m5_finish drive(m5_answer *a, run *r, const char *script)
{
    static uint64_t mask[(N_VOCAB + 63) / 64];
    m5_control c = m5_answer_control(a);
    m5_answer_event(a, &(m5_event){.kind = M5_EVENT_START});
    for (int n_ids = 10;;) {
        int32_t id = -1;
        memset(mask, 0, sizeof mask);
        m5_control_say say = c.next(c.ctx, r->n_ctx - n_ids, mask, &id);
        if (say == M5_CONTROL_END) return id < 0 ? M5_FINISH_LOOP : M5_FINISH_STOP;
        if (say == M5_CONTROL_FORCE) {
            SOURCE_CHECK(id >= 0 && id < N_VOCAB);
            r->n_forced++;
        } else {
            id = *script ? letter(*script) : END;
            if (say == M5_CONTROL_MASK && !(mask[id / 64] >> (id % 64) & 1)) {
                int i = 0;
                for (id = '!'; i < N_VOCAB && !(mask[id / 64] >> (id % 64) & 1); i++) id = (id + 1) % N_VOCAB;
                SOURCE_CHECK(i < N_VOCAB); /* a mask is never empty */
                if (i == N_VOCAB) return M5_FINISH_ERROR;
            } else if (*script) {
                script++;
            }
        }
        bool end = id == END;
        unsigned how = c.accept(c.ctx, id, end);
        if (r->n_gen < (int)sizeof r->ids - 1) r->ids[r->n_gen] = (char)(id >= THINK ? id - THINK + 1 : id);
        r->n_gen++;
        if (!(how & M5_ACCEPT_UNCOUNTED)) r->n_counted++;
        if (end && !(how & M5_ACCEPT_GO_ON)) return M5_FINISH_STOP;
        if (!end) {
            n_ids++;
            m5_answer_event(a, &(m5_event){.kind = M5_EVENT_TOKEN, .id = id});
        }
        if (r->n_counted >= r->max_tokens || n_ids >= r->n_ctx) return M5_FINISH_LENGTH;
    }
}

static m5_answer_plan plan_of(bool inside, int budget)
{
    m5_answer_plan p = {.wire = wire, .n_vocab = N_VOCAB, .limit = -1, .parallel_calls = true, .think_known = true};
    p.think = (m5_think_options){"<think>", "</think>", THINK, UNTHINK, inside, budget, 20, true};
    return p;
}

#endif
