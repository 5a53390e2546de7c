/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer: a tokenizer.json, a zero byte, a text. Or 'G', then lines: model and pre, tokens (a digit of type first), after an empty line
 * merges; then the zero byte and the text. Whatever opens must tokenize and decode within its limits; untrusted text never makes a control token, and
 * the stream gives what the whole decode gives. */
#include "base/mem.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LINES 512

static m5_slice line(const char **p, const char *end)
{
    const char *nl = *p < end ? memchr(*p, '\n', (size_t)(end - *p)) : NULL;
    m5_slice s = {*p, (size_t)((nl ? nl : end) - *p)};
    *p = nl ? nl + 1 : end;
    return s;
}

static int open_gguf(m5_tokenizer **out, const char *p, size_t n)
{
    static m5_slice tokens[MAX_LINES], merges[MAX_LINES];
    static int32_t types[MAX_LINES];
    static float scores[MAX_LINES];
    const char *end = p + n;
    m5_gguf_vocab v = {.tokens = tokens,
                       .types = types,
                       .scores = scores,
                       .merges = merges,
                       .bos = 0,
                       .eos = -1,
                       .eot = -1,
                       .eom = -1,
                       .unk = -1,
                       .pad = -1,
                       .add_bos = -1,
                       .add_eos = -1,
                       .add_space_prefix = -1};
    v.model = line(&p, end);
    v.pre = line(&p, end);
    while (p < end && v.n_tokens < MAX_LINES) {
        m5_slice s = line(&p, end);
        if (!s.n) break;
        types[v.n_tokens] = s.p[0] - '0';
        scores[v.n_tokens] = -(float)v.n_tokens;
        tokens[v.n_tokens++] = (m5_slice){s.p + 1, s.n - 1};
    }
    while (p < end && v.n_merges < MAX_LINES) merges[v.n_merges++] = line(&p, end);
    return m5_tokenizer_from_gguf(out, &v, NULL);
}

static void check_decode(const m5_tokenizer *t, const m5_ids *ids)
{
    m5_decoder *d = NULL;
    m5_buf whole = {0}, stream = {0};
    if (m5_detokenize(t, &whole, ids->p, ids->n, true, NULL) || m5_decoder_new(&d, t, true, NULL)) abort();
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = stream.n;
        if (m5_decoder_push(d, ids->p[i], &stream) || !m5_utf8_valid(stream.p ? stream.p + before : "", stream.n - before)) abort();
    }
    if (m5_decoder_flush(d, &stream) || !m5_slice_eq(m5_buf_view(&whole), m5_buf_view(&stream))) abort();
    m5_decoder_free(d);
    m5_buf_free(&whole);
    m5_buf_free(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = n ? memchr(data, 0, n) : NULL;
    size_t n_file = text ? (size_t)(text - (const char *)data) : n, n_text = n - n_file;
    if (!text) text = (const char *)data; /* the file itself is a text as good as any */
    if (!n_text) n_text = n;
    m5_tokenizer *t = NULL;
    int rc =
        n && data[0] == 'G' ? open_gguf(&t, (const char *)data + 1, n_file - 1) : m5_tokenizer_from_json(&t, (const char *)data, n_file, NULL, NULL);
    if (rc) {
        if (t) abort();
        return 0;
    }
    m5_ids ids = {0}, all = {0};
    m5_text_span span[2] = {{0, n_text / 2, false}, {n_text / 2, n_text, true}};
    if (m5_tokenize(t, &all, text, n_text, M5_SPECIAL_PARSE, true, NULL) == 0) check_decode(t, &all);
    if (m5_tokenize_spans(t, &ids, text, n_text, span, 1, false, NULL) == 0) {
        check_decode(t, &ids);
        for (size_t i = 0; i < ids.n; i++) {
            m5_slice s = m5_tokenizer_piece(t, ids.p[i]);
            bool unk = s.n >= 3 && (memcmp(s.p, "UNK", 3) == 0 ||
                                    (s.n >= 5 && (memcmp(s.p + 1, "unk", 3) == 0 || memcmp(s.p + 1, "UNK", 3) == 0 || s.p[1] == '|')));
            if (m5_tokenizer_is_control(t, ids.p[i]) && !unk) abort();
        }
    }
    ids.n = 0;
    if (m5_tokenize_spans(t, &ids, text, n_text, span, 2, true, NULL) == 0) check_decode(t, &ids);
    all.n = 0;
    for (int32_t id = -1; id <= m5_tokenizer_n_vocab(t) && id < 300; id++) {
        if (m5_ids_push(&all, id)) break;
    }
    check_decode(t, &all);
    m5_ids_free(&ids);
    m5_ids_free(&all);
    m5_tokenizer_free(t);
    return 0;
}
