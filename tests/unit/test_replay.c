/* SPDX-License-Identifier: Apache-2.0 */
/* engine/replay: an answer that was sampled with other tokens than its text gives when cut again is found by its text. */
#include "engine/replay.h"

#include "t.h"

/* Bytes a b c d, merges "a b" and "c d"; 6 = <m>, 7 = </m>. */
static const char vocab[] =
    "{\"added_tokens\":[{\"id\":6,\"content\":\"<m>\",\"special\":true},{\"id\":7,\"content\":\"</m>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"ab\":4,\"cd\":5},\"merges\":[\"a b\",\"c d\"]}}";
enum { A, B, C, D, AB, CD, M, E };

static m5_model *model;
static m5_tokenizer *tok;
static m5_prefix *tree;

static void keep(const int32_t *ids, int n)
{
    m5_seq *s = NULL;
    m5_error err = {0};
    T_CHECK(m5_seq_new(&s, model, &err) == 0, "%s", err.text);
    m5_run run = {.seq = s, .ids = ids, .n_tok = n};
    T_CHECK(m5_model_forward(model, &run, 1, NULL, &err) == 0, "%s", err.text);
    m5_prefix_save(tree, s, ids, true);
    m5_seq_free(s);
}

static void check(const int32_t *in, int n, int cap, const int32_t *want, int n_want, int n_replayed)
{
    int32_t ids[64], scratch[64];
    memcpy(ids, in, (size_t)n * sizeof *ids);
    int got = m5_replay(tree, tok, ids, &n, cap, scratch, 64);
    T_EQ_INT(got, n_replayed);
    T_CHECK(n == n_want && memcmp(ids, want, (size_t)n * sizeof *ids) == 0, "%d tokens, %d wanted", n, n_want);
}

int main(void)
{
    char path[512];
    m5_error err = {0};
    m5_model_options o = {.cpu = {.n_threads = 1, .cpu_mask = 0xffffffffu}, .kv_type = M5_KV_F16, .page_tok = 4};
    snprintf(path, sizeof path, "%s/models/qwen3_5", M5_TEST_DATA);
    T_CHECK(m5_model_open(&model, path, &o, &err) == 0, "%s", err.text);
    T_CHECK(m5_tokenizer_from_json(&tok, vocab, sizeof vocab - 1, NULL, &err) == 0, "%s", err.text);
    T_CHECK(m5_prefix_open(&tree, model, 64 << 20, &err) == 0, "%s", err.text);
#define LIST(...) (const int32_t[]){__VA_ARGS__}, (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
    /* Turn one: the model wrote "abcd" as a b c d; its end token was drawn, not computed. */
    keep(LIST(M, AB, E, M, A, B, C, D));
    /* Turn two, cut from text: the answer takes its own tokens. */
    check(LIST(M, AB, E, M, AB, CD, E, M, C), 64, LIST(M, AB, E, M, A, B, C, D, E, M, C), 4);
    /* The same tokens: nothing to do. Another text, a part of it, more of it, no end mark: left alone. */
    check(LIST(M, AB, E, M, A, B, C, D, E, M), 64, LIST(M, AB, E, M, A, B, C, D, E, M), 0);
    check(LIST(M, AB, E, M, AB, D, E), 64, LIST(M, AB, E, M, AB, D, E), 0);
    check(LIST(M, AB, E, M, AB, E), 64, LIST(M, AB, E, M, AB, E), 0);
    check(LIST(M, AB, E, M, AB, CD, A, E), 64, LIST(M, AB, E, M, AB, CD, A, E), 0);
    check(LIST(M, AB, E, M, AB, CD), 64, LIST(M, AB, E, M, AB, CD), 0);
    /* No room. */
    check(LIST(M, AB, E, M, AB, CD, E, M), 9, LIST(M, AB, E, M, AB, CD, E, M), 0);
    check(LIST(M, AB, E, M, AB, CD, E, M), 10, LIST(M, AB, E, M, A, B, C, D, E, M), 4);
    /* A second turn, in another way, beside another branch. */
    keep(LIST(M, AB, E, M, A, B, C, D, E, M, C, D, E, M, AB, C, D));
    keep(LIST(M, AB, E, M, A, B, C, D, E, M, C, D, E, M, B, B));
    check(LIST(M, AB, E, M, AB, CD, E, M, C, D, E, M, AB, CD, E, M), 64, LIST(M, AB, E, M, A, B, C, D, E, M, C, D, E, M, AB, C, D, E, M), 6);
    check(LIST(M, AB, E), 64, LIST(M, AB, E), 0);
    check(LIST(B, AB, E), 64, LIST(B, AB, E), 0);
    m5_prefix_close(tree);
    m5_tokenizer_free(tok);
    m5_model_close(model);
    return t_done();
}
