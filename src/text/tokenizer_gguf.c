/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the vocabulary of a GGUF file: `gpt2` (byte-level BPE), `llama` (SentencePiece scores), `gemma4` (BPE over characters). The file names its
 * pre-tokenizer instead of carrying it; the names and their patterns are listed here. */
#include "text/tokenizer_internal.h"

#include <string.h>

#define BAR         "\xE2\x96\x81"
#define MAX_SPLITS  6
#define CONTRACT    "'s|'t|'re|'ve|'m|'ll|'d"
#define TAIL        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2        CONTRACT "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3      "(?i:" CONTRACT ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define QWEN2       "(?i:" CONTRACT ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define QWEN35      "(?i:" CONTRACT ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(tail) "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" tail
#define TEKKEN      CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define O200K       CASED("(?i:" CONTRACT ")?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define CJK         "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+" /* U+4E00-9FA5, kana */
#define ASCII_MARK  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK3   ASCII_MARK "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL

typedef struct pre_rule {
    const char *names;             /* separated by spaces */
    const char *split[MAX_SPLITS]; /* one after the other, each isolating its matches */
    bool ignore_merges, add_bos, nfc;
} pre_rule;

/* NFC for the Qwen family: a GGUF file says nothing of it, but the models' own tokenizers normalise and were trained that way. */
static const pre_rule rules[] = {
    {"gpt-2 default phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt olmo jais", {GPT2}, 0, 0, 0},
    {"llama-bpe llama3 llama-v3 pixtral falcon3 falcon-h1 midm-2.0 lfm2", {LLAMA3}, true, true, 0},
    {"dbrx smaug-bpe chatglm-bpe glm4", {LLAMA3}, 0, 0, 0},
    {"qwen2", {QWEN2}, 0, 0, true},
    {"deepseek-r1-qwen stablelm2 megrez hunyuan", {QWEN2}, 0, 0, 0},
    {"qwen35", {QWEN35}, 0, 0, true},
    {"tekken", {TEKKEN}, true, true, 0},
    {"gpt-4o llama4", {O200K}, 0, 0, 0},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", {"\\p{N}", GPT2}, 0, 0, 0},
    {"deepseek-v3 hunyuan-dense", {"\\p{N}{1,3}", CJK, DEEPSEEK3}, 0, 0, 0},
};

static bool in_words(const char *words, m5_slice w)
{
    while (*words) {
        size_t n = strcspn(words, " ");
        if (m5_slice_eq(w, (m5_slice){words, n})) return true;
        words += n + (words[n] == ' ');
    }
    return false;
}

static const pre_rule *find_rule(m5_slice pre)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (in_words(rules[i].names, pre)) return &rules[i];
    }
    m5_log(M5_LOG_WARN, "GGUF pre-tokenizer \"%.*s\" is not known; GPT-2's is used, so token borders may differ from the model's own",
           (int)(pre.n > 60 ? 60 : pre.n), pre.p);
    return &rules[0];
}

static int no_memory(m5_error *err)
{
    return m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading a GGUF vocabulary");
}

static char *dup(const char *s, size_t *n)
{
    *n = strlen(s);
    return m5_strndup(M5_MEM_TEXT, s, *n);
}

/* ---- steps ---- */

static int add_splits(m5_tokenizer *t, const char *const *split, m5_error *err)
{
    size_t n = 0;
    while (n < MAX_SPLITS && split[n]) n++;
    t->pre = m5_calloc(M5_MEM_TEXT, n, sizeof *t->pre);
    if (!t->pre) return no_memory(err);
    t->n_pre = n;
    for (size_t i = 0; i < n; i++) {
        int rc = m5_tok_regex_compile(&t->pre[i].pattern.regex, split[i], strlen(split[i]), err);
        if (rc) return rc;
    }
    return 0;
}

/* Spaces become U+2581, with one more in front if the model was trained so. */
static int add_space_norm(m5_tokenizer *t, bool prefix, m5_error *err)
{
    t->norm = m5_calloc(M5_MEM_TEXT, 2, sizeof *t->norm);
    if (!t->norm) return no_memory(err);
    if (prefix) {
        tok_norm *f = &t->norm[t->n_norm++];
        f->kind = TOK_NORM_PREPEND;
        f->text = dup(BAR, &f->n_text);
        if (!f->text) return no_memory(err);
    }
    tok_norm *f = &t->norm[t->n_norm++];
    f->kind = TOK_NORM_REPLACE;
    f->pattern.literal = dup(" ", &f->pattern.n_literal);
    f->text = dup(BAR, &f->n_text);
    return f->pattern.literal && f->text ? 0 : no_memory(err);
}

static int add_space_decoder(m5_tokenizer *t, bool strip, m5_error *err)
{
    static const tok_dec_kind kinds[] = {TOK_DEC_REPLACE, TOK_DEC_BYTE_FALLBACK, TOK_DEC_FUSE, TOK_DEC_STRIP};
    t->dec = m5_calloc(M5_MEM_TEXT, 4, sizeof *t->dec);
    if (!t->dec) return no_memory(err);
    t->has_decoder = true;
    t->n_dec = strip ? 4 : 3;
    for (size_t i = 0; i < t->n_dec; i++) {
        tok_dec *d = &t->dec[i];
        d->kind = kinds[i];
        d->start = 1;
        d->from = dup(d->kind == TOK_DEC_REPLACE ? BAR : " ", &d->n_from);
        d->to = dup(" ", &d->n_to);
        if (!d->from || !d->to) return no_memory(err);
    }
    return 0;
}

static int setup_bpe(m5_tokenizer *t, const m5_gguf_vocab *v, bool *default_bos, m5_error *err)
{
    const pre_rule *r = find_rule(v->pre);
    t->byte_mode = true;
    t->ignore_merges = r->ignore_merges;
    *default_bos = r->add_bos;
    int rc = add_splits(t, r->split, err);
    if (rc) return rc;
    if (r->nfc) {
        t->norm = m5_calloc(M5_MEM_TEXT, 1, sizeof *t->norm);
        if (!t->norm) return no_memory(err);
        t->norm[t->n_norm++] = (tok_norm){.kind = TOK_NORM_FORM, .compose = true};
    }
    t->dec = m5_calloc(M5_MEM_TEXT, 1, sizeof *t->dec);
    if (!t->dec) return no_memory(err);
    t->dec[t->n_dec++].kind = TOK_DEC_BYTE_LEVEL;
    t->has_decoder = true;
    return 0;
}

static int setup_gemma4(m5_tokenizer *t, m5_error *err)
{
    static const char *const split[MAX_SPLITS] = {"\\n+"};
    t->byte_fallback = t->fuse_unk = true;
    int rc = add_space_norm(t, false, err);
    if (!rc) rc = add_splits(t, split, err);
    if (!rc) rc = add_space_decoder(t, false, err);
    return rc;
}

/* Floats in an order of unsigned numbers, highest score first; TOK_NONE stays free, NaN comes last. */
static uint32_t priority(float score)
{
    uint32_t u;
    if (score != score) return TOK_NONE - 1;
    memcpy(&u, &score, 4);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~u < TOK_NONE ? ~u : TOK_NONE - 1;
}

static int setup_scores(m5_tokenizer *t, const m5_gguf_vocab *v, m5_error *err)
{
    bool prefix = v->add_space_prefix != 0;
    if (!v->scores) return m5_error_set(err, M5_ERR_FORMAT, "GGUF: tokenizer model llama without tokenizer.ggml.scores");
    t->by_score = t->byte_fallback = true;
    t->prio = m5_alloc(M5_MEM_TEXT, (size_t)v->n_tokens * sizeof *t->prio);
    if (!t->prio) return no_memory(err);
    for (int64_t i = 0; i < v->n_tokens; i++) t->prio[i] = priority(v->scores[i]);
    int rc = add_space_norm(t, prefix, err);
    if (!rc) rc = add_space_decoder(t, prefix, err);
    return rc;
}

/* ---- tables ---- */

/* Tokens that end or structure a turn but that some converters typed as normal or user-defined. */
static bool is_turn_token(m5_slice s)
{
    static const char *const names[] = {"<|im_start|>",        "<|im_end|>",        "<|eot_id|>",      "<|eom_id|>",
                                        "<|start_header_id|>", "<|end_header_id|>", "<|end|>",         "<|endoftext|>",
                                        "<|end_of_text|>",     "<|begin_of_text|>", "<start_of_turn>", "<end_of_turn>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (m5_slice_is(s, names[i])) return true;
    }
    return false;
}

/* Converters write the spaces of a user-defined token as spaces, the model's own vocabulary has U+2581, which is kept. Where merges come with the
 * file they build the runs of spaces; where only scores do (those of such tokens are placeholders) both spellings are matched. */
static m5_slice respell(m5_buf *buf, m5_slice s)
{
    m5_buf_clear(buf);
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == ' ')
            m5_buf_puts(buf, BAR);
        else
            m5_buf_putc(buf, s.p[i]);
    }
    return m5_buf_view(buf);
}

static int read_tokens(m5_tokenizer *t, const m5_gguf_vocab *v, m5_error *err)
{
    m5_buf buf = {0};
    int rc = 0;
    for (int64_t i = 0; i < v->n_tokens && !rc; i++) {
        int32_t type = v->types ? v->types[i] : 1;
        m5_slice s = v->tokens[i];
        bool special = type == 2 || type == 3 || i == v->unk || i == v->bos || i == v->eos || is_turn_token(s);
        bool added = special || type == 4;
        uint8_t flags = (uint8_t)((type == 1 || type == 4) && !special ? TOK_MODEL : 0);
        if (!m5_utf8_valid(s.p, s.n)) rc = m5_error_set(err, M5_ERR_FORMAT, "GGUF: token %lld is not UTF-8", (long long)i);
        tok_added how = {.spaced = type == 4 && t->by_score};
        if (type == 4 && !t->byte_mode) s = respell(&buf, s);
        if (!rc && buf.failed) rc = no_memory(err);
        if (!rc) rc = m5_tok_vocab_set(t, (int32_t)i, s, flags | (added && t->byte_mode ? TOK_VERBATIM : 0), err);
        if (!rc && added) rc = m5_tok_added_put(t, s, how, special, (int32_t)i, err);
    }
    m5_buf_free(&buf);
    return rc;
}

static int read_merges(m5_tokenizer *t, const m5_gguf_vocab *v, m5_error *err)
{
    m5_buf scratch = {0};
    int rc = m5_tok_merges_reserve(t, (size_t)v->n_merges, err);
    for (int64_t i = 0; i < v->n_merges && !rc; i++) {
        m5_slice s = v->merges[i];
        size_t at = m5_slice_find(s, M5_SLICE(" "), 1); /* a side may itself be a space */
        if (at == SIZE_MAX) {
            rc = m5_error_set(err, M5_ERR_FORMAT, "GGUF: merge %lld is not two texts with a space between", (long long)i);
            break;
        }
        rc = m5_tok_merge_add(t, (m5_slice){s.p, at}, (m5_slice){s.p + at + 1, s.n - at - 1}, (uint32_t)i, &scratch, err);
    }
    m5_buf_free(&scratch);
    return rc;
}

static int check_id(const m5_gguf_vocab *v, int32_t id, const char *what, m5_error *err)
{
    if (id < -1 || id >= v->n_tokens)
        return m5_error_set(err, M5_ERR_FORMAT, "GGUF: the %s token id %d is not one of %lld tokens", what, id, (long long)v->n_tokens);
    return 0;
}

static int read_specials(m5_tokenizer *t, const m5_gguf_vocab *v, bool add_bos, m5_error *err)
{
    t->bos = v->bos;
    if (t->bos < 0 && t->by_score) t->bos = m5_tok_vocab_find(t, "<s>", 3);
    int32_t ends[] = {v->eos, v->eot, v->eom};
    for (int i = 0; i < 3; i++) {
        if (ends[i] >= 0) t->eos[t->n_eos++] = ends[i];
    }
    t->adds_bos = add_bos && t->bos >= 0;
    if (!t->adds_bos) return 0;
    t->prefix = m5_alloc(M5_MEM_TEXT, sizeof *t->prefix);
    if (!t->prefix) return no_memory(err);
    t->prefix[t->n_prefix++] = t->bos;
    return 0;
}

int m5_tokenizer_from_gguf(m5_tokenizer **out, const m5_gguf_vocab *v, m5_error *err)
{
    bool gpt2 = m5_slice_is(v->model, "gpt2"), gemma4 = m5_slice_is(v->model, "gemma4") || m5_slice_is(v->pre, "gemma4"), add_bos = true;
    if (!gpt2 && !gemma4 && !m5_slice_is(v->model, "llama")) {
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "GGUF: tokenizer model \"%.*s\" is not supported (known: gpt2, llama, gemma4)",
                            (int)(v->model.n > 60 ? 60 : v->model.n), v->model.p);
    }
    if (v->n_tokens < 1 || v->n_tokens > INT32_MAX) {
        return m5_error_set(err, M5_ERR_FORMAT, "GGUF: a vocabulary of %lld tokens", (long long)v->n_tokens);
    }
    if (v->n_merges < 0 || v->n_merges > INT32_MAX) return m5_error_set(err, M5_ERR_FORMAT, "GGUF: %lld merges", (long long)v->n_merges);
    int rc = check_id(v, v->bos, "bos", err);
    if (!rc) rc = check_id(v, v->eos, "eos", err);
    if (!rc) rc = check_id(v, v->eot, "eot", err);
    if (!rc) rc = check_id(v, v->eom, "eom", err);
    if (!rc) rc = check_id(v, v->unk, "unknown", err);
    if (rc) return rc;
    m5_tokenizer *t = m5_calloc(M5_MEM_TEXT, 1, sizeof *t);
    if (!t) return no_memory(err);
    t->bos = -1;
    t->unk = v->unk;
    rc = m5_tok_vocab_reserve(t, v->n_tokens, err);
    if (rc) goto out;
    if (gemma4)
        rc = setup_gemma4(t, err);
    else if (gpt2)
        rc = setup_bpe(t, v, &add_bos, err);
    else
        rc = setup_scores(t, v, err);
    if (!rc) rc = read_tokens(t, v, err);
    if (!rc && !t->by_score) rc = read_merges(t, v, err);
    if (!rc && t->unk < 0 && !t->byte_mode) t->unk = m5_tok_vocab_find(t, "<unk>", 5);
    if (!rc) rc = read_specials(t, v, gemma4 || (v->add_bos >= 0 ? v->add_bos != 0 : add_bos), err);
    if (!rc) rc = m5_tok_finish(t, err);
out:
    if (!rc)
        *out = t;
    else
        m5_tokenizer_free(t);
    return rc;
}
