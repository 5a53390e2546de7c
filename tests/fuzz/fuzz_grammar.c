/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar*: any bytes as a schema, as GBNF and as a regular expression (the first byte chooses); a short walk through the masks of what
 * compiles. */
#include "base/json.h"
#include "base/mem.h"
#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

enum { N_PIECES = 256 + 16, N_BITS = (N_PIECES + 63) / 64 };

static m5_grammar_vocab *make_vocab(void)
{
    static const char *const words[] = {"{\"", "\":", "\",\"",    "\"}",      "}}", "]",    "true",  "null",
                                        "12",  "abc", "\xC3\xA9", "\xE4\xB8", ", ", "\n  ", "\\u00", "end"};
    static char bytes[256];
    m5_slice pieces[N_PIECES];
    m5_grammar_vocab *v = NULL;
    int32_t end = N_PIECES - 1;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[i] = (m5_slice){&bytes[i], 1};
    }
    for (int i = 0; i < 16; i++) pieces[256 + i] = m5_slice_of(words[i]);
    if (m5_grammar_vocab_of(&v, pieces, N_PIECES, &end, 1, NULL) != 0) abort();
    return v;
}

static void walk(m5_grammar *g, uint32_t seed)
{
    m5_grammar_vocab *v = make_vocab();
    m5_matcher *m = NULL;
    m5_error err = {0};
    if (m5_matcher_new(&m, g, v, &err) != 0 && err.code != M5_ERR_LIMIT) abort();
    for (int i = 0; m && i < 24 && !m5_matcher_ended(m); i++) {
        uint64_t bits[N_BITS];
        int32_t ids[N_PIECES], n = 0;
        int rc = m5_matcher_mask(m, bits, N_BITS, &err);
        if (rc == M5_ERR_LIMIT) break;
        if (rc != 0) abort(); /* single bytes are all there, so something can always follow */
        for (int32_t id = 0; id < N_PIECES; id++) {
            if (bits[id >> 6] >> (id & 63) & 1) ids[n++] = id;
        }
        seed = seed * 1664525 + 1013904223;
        if (!n) abort();
        rc = m5_matcher_accept(m, ids[(seed >> 8) % (uint32_t)n], &err);
        if (rc == M5_ERR_LIMIT) break;
        if (rc != 0) abort();
    }
    m5_matcher_free(m);
    m5_grammar_vocab_free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    m5_grammar *g = NULL;
    m5_error err = {0};
    m5_json *schema = NULL;
    m5_json_limits lim = {.any_root = true, .big_ints = true};
    if (!n) return 0;
    const char *text = (const char *)data + 1;
    int rc = 0;
    if (data[0] == 'g') {
        rc = m5_grammar_from_gbnf(&g, text, n - 1, &err);
    } else if (data[0] == 'r') {
        rc = m5_grammar_from_regex(&g, text, n - 1, &err);
    } else if (m5_json_parse(&schema, text, n - 1, &lim, NULL) == 0) {
        rc = m5_grammar_from_schema(&g, schema, &err);
    }
    if (rc != 0 && rc != M5_ERR_FORMAT && rc != M5_ERR_UNSUPPORTED && rc != M5_ERR_LIMIT) abort();
    if (g) walk(g, (uint32_t)n);
    m5_grammar_unref(g);
    m5_json_unref(schema);
    return 0;
}
