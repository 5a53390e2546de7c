/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a tokenizer.json (Hugging Face) with byte-level or SentencePiece-style BPE. What this build cannot run is named and refused. */
#include "text/tokenizer_internal.h"

#include <string.h>

#define MAX_STEPS 64 /* of normalizers, pre-tokenizers, decoders each, after flattening */

/* Pattern that ByteLevel uses by itself; GPT-2's. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static bool type_is(const m5_json *v, const char *name)
{
    return m5_slice_is(m5_json_str(m5_json_get(v, "type")), name);
}

static bool is_object(const m5_json *v)
{
    return m5_json_typeof(v) == M5_JSON_OBJECT;
}

static int unsupported(const m5_json *v, const char *what, m5_error *err)
{
    m5_slice s = m5_json_str(m5_json_get(v, "type"));
    return m5_error_set(err, M5_ERR_UNSUPPORTED, "tokenizer.json: %s of type \"%.*s\" is not supported", what, (int)(s.n > 60 ? 60 : s.n), s.p);
}

static int no_memory(m5_error *err)
{
    return m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading a tokenizer");
}

static bool flag(const m5_json *v, const char *key, bool absent)
{
    m5_json *b = m5_json_get(v, key);
    return m5_json_typeof(b) == M5_JSON_BOOL ? m5_json_bool(b) : absent;
}

/* Appends one zeroed element to a list of steps. */
static void *grow(void **list, size_t *n, size_t size, m5_error *err)
{
    if (*n == MAX_STEPS) {
        m5_error_set(err, M5_ERR_UNSUPPORTED, "tokenizer.json: more than %d steps in one pipeline", MAX_STEPS);
        return NULL;
    }
    char *p = m5_realloc(M5_MEM_TEXT, *list, (*n + 1) * size);
    if (!p) {
        no_memory(err);
        return NULL;
    }
    *list = p;
    memset(p + *n * size, 0, size);
    return p + (*n)++ * size;
}

static int copy_text(char **out, size_t *n, m5_slice s, m5_error *err)
{
    *out = m5_strndup(M5_MEM_TEXT, s.p, s.n);
    *n = s.n;
    return *out ? 0 : no_memory(err);
}

/* {"String": s} or {"Regex": r}, or a bare string in old files */
static int read_pattern(tok_pattern *out, const m5_json *v, m5_error *err)
{
    m5_json *regex = m5_json_get(v, "Regex"), *literal = m5_json_typeof(v) == M5_JSON_STRING ? (m5_json *)v : m5_json_get(v, "String");
    if (m5_json_typeof(regex) == M5_JSON_STRING) {
        m5_slice s = m5_json_str(regex);
        return m5_tok_regex_compile(&out->regex, s.p, s.n, err);
    }
    if (m5_json_typeof(literal) != M5_JSON_STRING) return m5_error_set(err, M5_ERR_FORMAT, "tokenizer.json: a pattern is neither String nor Regex");
    return copy_text(&out->literal, &out->n_literal, m5_json_str(literal), err);
}

/* ---- normalizer ---- */

static int read_norm(m5_tokenizer *t, const m5_json *v, int depth, m5_error *err)
{
    static const struct {
        const char *name;
        bool compose, compat;
    } forms[] = {{"NFC", true, false}, {"NFD", false, false}, {"NFKC", true, true}, {"NFKD", false, true}};
    if (!is_object(v)) return 0;
    if (type_is(v, "Sequence")) {
        m5_json *list = m5_json_get(v, "normalizers");
        int rc = depth > 8 ? m5_error_set(err, M5_ERR_LIMIT, "tokenizer.json: normalizers are nested too deep") : 0;
        for (size_t i = 0; i < m5_json_len(list) && !rc; i++) rc = read_norm(t, m5_json_at(list, i), depth + 1, err);
        return rc;
    }
    tok_norm *f = grow((void **)&t->norm, &t->n_norm, sizeof *f, err);
    if (!f) return err->code;
    if (type_is(v, "Replace")) {
        f->kind = TOK_NORM_REPLACE;
        int rc = read_pattern(&f->pattern, m5_json_get(v, "pattern"), err);
        return rc ? rc : copy_text(&f->text, &f->n_text, m5_json_str(m5_json_get(v, "content")), err);
    }
    if (type_is(v, "Prepend")) {
        f->kind = TOK_NORM_PREPEND;
        return copy_text(&f->text, &f->n_text, m5_json_str(m5_json_get(v, "prepend")), err);
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (!type_is(v, forms[i].name)) continue;
        f->kind = TOK_NORM_FORM;
        f->compose = forms[i].compose;
        f->compat = forms[i].compat;
        return 0;
    }
    return unsupported(v, "a normalizer", err);
}

/* ---- pre-tokenizer ---- */

static tok_pre *add_pre(m5_tokenizer *t, tok_pre_kind kind, m5_error *err)
{
    tok_pre *s = grow((void **)&t->pre, &t->n_pre, sizeof *s, err);
    if (s) s->kind = kind;
    return s;
}

static int add_split(m5_tokenizer *t, const char *regex, tok_split behavior, bool invert, m5_error *err)
{
    tok_pre *s = add_pre(t, TOK_PRE_SPLIT, err);
    if (!s) return err->code;
    s->behavior = behavior;
    s->invert = invert;
    return m5_tok_regex_compile(&s->pattern.regex, regex, strlen(regex), err);
}

static int add_literal_split(m5_tokenizer *t, m5_slice text, tok_split behavior, m5_error *err)
{
    tok_pre *s = add_pre(t, TOK_PRE_SPLIT, err);
    if (!s) return err->code;
    s->behavior = behavior;
    return copy_text(&s->pattern.literal, &s->pattern.n_literal, text, err);
}

static int read_behavior(tok_split *out, const m5_json *v, m5_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    m5_slice s = m5_json_str(m5_json_get(v, "behavior"));
    *out = TOK_ISOLATED;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (m5_slice_is(s, names[i])) {
            *out = (tok_split)i;
            return 0;
        }
    }
    return s.n ? m5_error_set(err, M5_ERR_UNSUPPORTED, "tokenizer.json: split behavior \"%.*s\" is not known", (int)(s.n > 60 ? 60 : s.n), s.p) : 0;
}

static int read_metaspace(m5_tokenizer *t, const m5_json *v, m5_error *err)
{
    m5_slice mark = m5_json_str(m5_json_get(v, "replacement")), scheme = m5_json_str(m5_json_get(v, "prepend_scheme"));
    if (!mark.n) mark = M5_SLICE("\xE2\x96\x81");
    tok_pre *s = add_pre(t, TOK_PRE_METASPACE, err);
    if (!s) return err->code;
    s->prepend = m5_slice_is(scheme, "first") ? TOK_PREPEND_FIRST : TOK_PREPEND_ALWAYS;
    if (m5_slice_is(scheme, "never") || (!scheme.n && !flag(v, "add_prefix_space", true))) s->prepend = TOK_PREPEND_NEVER;
    int rc = copy_text(&s->text, &s->n_text, mark, err);
    if (!rc && flag(v, "split", true)) rc = add_literal_split(t, mark, TOK_WITH_NEXT, err);
    return rc;
}

static int read_byte_level(m5_tokenizer *t, const m5_json *v, m5_error *err)
{
    int rc = 0;
    if (flag(v, "add_prefix_space", true) && !add_pre(t, TOK_PRE_PREFIX_SPACE, err)) return err->code;
    if (flag(v, "use_regex", true)) rc = add_split(t, gpt2_pattern, TOK_ISOLATED, false, err);
    if (!rc && !add_pre(t, TOK_PRE_BYTES, err)) return err->code;
    return rc;
}

static int read_pre(m5_tokenizer *t, const m5_json *v, int depth, m5_error *err)
{
    tok_split behavior;
    if (!is_object(v)) return 0;
    if (type_is(v, "Sequence")) {
        m5_json *list = m5_json_get(v, "pretokenizers");
        int rc = depth > 8 ? m5_error_set(err, M5_ERR_LIMIT, "tokenizer.json: pre-tokenizers are nested too deep") : 0;
        for (size_t i = 0; i < m5_json_len(list) && !rc; i++) rc = read_pre(t, m5_json_at(list, i), depth + 1, err);
        return rc;
    }
    if (type_is(v, "ByteLevel")) return read_byte_level(t, v, err);
    if (type_is(v, "Metaspace")) return read_metaspace(t, v, err);
    if (type_is(v, "Digits")) return add_split(t, "\\p{N}", flag(v, "individual_digits", false) ? TOK_ISOLATED : TOK_CONTIGUOUS, false, err);
    if (type_is(v, "Whitespace")) return add_split(t, "\\w+|[^\\w\\s]+", TOK_REMOVED, true, err);
    if (type_is(v, "WhitespaceSplit")) return add_split(t, "\\s", TOK_REMOVED, false, err);
    if (type_is(v, "CharDelimiterSplit")) return add_literal_split(t, m5_json_str(m5_json_get(v, "delimiter")), TOK_REMOVED, err);
    int rc = read_behavior(&behavior, v, err);
    if (rc) return rc;
    if (type_is(v, "Punctuation")) return add_split(t, "[\\p{P}!-/:-@\\[-`{-~]", behavior, false, err);
    if (!type_is(v, "Split")) return unsupported(v, "a pre-tokenizer", err);
    tok_pre *s = add_pre(t, TOK_PRE_SPLIT, err);
    if (!s) return err->code;
    s->behavior = behavior;
    s->invert = flag(v, "invert", false);
    return read_pattern(&s->pattern, m5_json_get(v, "pattern"), err);
}

/* ---- decoder ---- */

static int read_dec(m5_tokenizer *t, const m5_json *v, int depth, m5_error *err)
{
    if (!is_object(v)) return 0;
    if (type_is(v, "Sequence")) {
        m5_json *list = m5_json_get(v, "decoders");
        int rc = depth > 8 ? m5_error_set(err, M5_ERR_LIMIT, "tokenizer.json: decoders are nested too deep") : 0;
        for (size_t i = 0; i < m5_json_len(list) && !rc; i++) rc = read_dec(t, m5_json_at(list, i), depth + 1, err);
        return rc;
    }
    tok_dec s = {0};
    m5_slice from = {"", 0}, to = {"", 0};
    if (type_is(v, "ByteLevel")) {
        s.kind = TOK_DEC_BYTE_LEVEL;
    } else if (type_is(v, "ByteFallback")) {
        s.kind = TOK_DEC_BYTE_FALLBACK;
    } else if (type_is(v, "Fuse")) {
        s.kind = TOK_DEC_FUSE;
    } else if (type_is(v, "Replace")) {
        s.kind = TOK_DEC_REPLACE;
        from = m5_json_str(m5_json_path(v, "pattern.String"));
        to = m5_json_str(m5_json_get(v, "content"));
        if (!from.n) return m5_error_set(err, M5_ERR_UNSUPPORTED, "tokenizer.json: a Replace decoder without a String pattern is not supported");
    } else if (type_is(v, "Strip")) {
        s.kind = TOK_DEC_STRIP;
        from = m5_json_str(m5_json_get(v, "content"));
        s.start = m5_json_int(m5_json_get(v, "start"));
        s.stop = m5_json_int(m5_json_get(v, "stop"));
        if (!from.n) return m5_error_set(err, M5_ERR_FORMAT, "tokenizer.json: a Strip decoder without content");
    } else if (type_is(v, "Metaspace")) {
        s.kind = TOK_DEC_METASPACE;
        from = m5_json_str(m5_json_get(v, "replacement"));
        if (!from.n) from = M5_SLICE("\xE2\x96\x81");
        m5_slice scheme = m5_json_str(m5_json_get(v, "prepend_scheme"));
        s.drop_first = scheme.n ? !m5_slice_is(scheme, "never") : flag(v, "add_prefix_space", true);
    } else if (type_is(v, "BPEDecoder")) {
        s.kind = TOK_DEC_SUFFIX;
        from = m5_json_str(m5_json_get(v, "suffix"));
        if (!from.n) from = M5_SLICE("</w>");
    } else {
        return unsupported(v, "a decoder", err);
    }
    tok_dec *d = grow((void **)&t->dec, &t->n_dec, sizeof *d, err);
    if (!d) return err->code;
    *d = s;
    int rc = copy_text(&d->from, &d->n_from, from, err);
    return rc ? rc : copy_text(&d->to, &d->n_to, to, err);
}

/* ---- added tokens, BOS ---- */

/* The id Hugging Face's loader gives: that of the text if the vocabulary has it, else the next one behind vocabulary and added tokens. The ids in
 * the file are the same unless it was edited by hand. */
static int read_added(m5_tokenizer *t, const m5_json *list, int64_t n_model, m5_error *err)
{
    int64_t max_added = -1;
    for (size_t i = 0; i < m5_json_len(list); i++) {
        m5_json *v = m5_json_at(list, i);
        m5_slice content = m5_json_str(m5_json_get(v, "content"));
        tok_added how = {.single_word = flag(v, "single_word", false),
                         .lstrip = flag(v, "lstrip", false),
                         .rstrip = flag(v, "rstrip", false),
                         .normalized = flag(v, "normalized", true)};
        if (!content.n) continue;
        int64_t id = m5_tok_vocab_find(t, content.p, content.n);
        if (id < 0) id = max_added >= n_model ? max_added + 1 : n_model;
        if (id > max_added) max_added = id;
        int64_t said = m5_json_int(m5_json_get(v, "id"));
        if (said != id) {
            m5_log(M5_LOG_WARN, "tokenizer.json: added token \"%.*s\" says id %lld but its place makes it %lld",
                   (int)(content.n > 60 ? 60 : content.n), content.p, (long long)said, (long long)id);
        }
        int rc = m5_tok_added_put(t, content, how, flag(v, "special", false), (int32_t)id, err);
        if (rc) return rc;
    }
    return 0;
}

static int push_prefix(m5_tokenizer *t, int32_t id, m5_error *err)
{
    int32_t *p = id < 0 ? NULL : grow((void **)&t->prefix, &t->n_prefix, sizeof *p, err);
    if (id < 0) return m5_error_set(err, M5_ERR_FORMAT, "tokenizer.json: the post-processor names a token that is not in the vocabulary");
    if (!p) return err->code;
    *p = id;
    return 0;
}

/* What stands in front of the text in the rule for a single sequence. What it puts behind (EOS of encoders) has no place in a prompt. */
static int read_post(m5_tokenizer *t, const m5_json *v, int depth, m5_error *err)
{
    int rc = 0;
    if (!is_object(v)) return 0;
    if (type_is(v, "Sequence")) {
        m5_json *list = m5_json_get(v, "processors");
        if (depth > 8) return m5_error_set(err, M5_ERR_LIMIT, "tokenizer.json: post-processors are nested too deep");
        for (size_t i = 0; i < m5_json_len(list) && !rc; i++) rc = read_post(t, m5_json_at(list, i), depth + 1, err);
    } else if (type_is(v, "TemplateProcessing")) {
        m5_json *single = m5_json_get(v, "single"), *table = m5_json_get(v, "special_tokens");
        for (size_t i = 0; i < m5_json_len(single) && !rc; i++) {
            m5_slice name = m5_json_str(m5_json_path(m5_json_at(single, i), "SpecialToken.id"));
            if (!name.n) break;
            m5_json *ids = m5_json_get(m5_json_getn(table, name.p, name.n), "ids");
            for (size_t k = 0; k < m5_json_len(ids) && !rc; k++) {
                int64_t id = m5_json_int(m5_json_at(ids, k));
                rc = push_prefix(t, id >= 0 && id < t->n_vocab && t->entry[id].flags & TOK_USED ? (int32_t)id : -1, err);
            }
            if (!m5_json_len(ids)) rc = push_prefix(t, m5_tok_vocab_find(t, name.p, name.n), err);
        }
    } else if (type_is(v, "RobertaProcessing") || type_is(v, "BertProcessing")) {
        m5_slice name = m5_json_str(m5_json_at(m5_json_get(v, "cls"), 0));
        rc = push_prefix(t, m5_tok_vocab_find(t, name.p, name.n), err);
    } else if (!type_is(v, "ByteLevel")) {
        rc = unsupported(v, "a post-processor", err);
    }
    return rc;
}

/* A token of tokenizer_config.json: a string, or an object with content. */
static int32_t config_token(const m5_tokenizer *t, const m5_json *config, const char *key)
{
    m5_json *v = m5_json_get(config, key);
    m5_slice s = is_object(v) ? m5_json_str(m5_json_get(v, "content")) : m5_json_str(v);
    return s.n ? m5_tok_vocab_find(t, s.p, s.n) : -1;
}

static int read_config(m5_tokenizer *t, const m5_json *config, m5_error *err)
{
    int rc = 0;
    t->bos = config_token(t, config, "bos_token");
    int32_t eos = config_token(t, config, "eos_token");
    if (eos >= 0) t->eos[t->n_eos++] = eos;
    if (t->bos < 0 && t->n_prefix) t->bos = t->prefix[t->n_prefix - 1];
    m5_json *add = m5_json_get(config, "add_bos_token");
    if (m5_json_typeof(add) == M5_JSON_BOOL) { /* the explicit word of the config outranks the post-processor */
        if (!m5_json_bool(add) && t->n_prefix == 1 && t->prefix[0] == t->bos) t->n_prefix = 0;
        if (m5_json_bool(add) && !t->n_prefix && t->bos >= 0) rc = push_prefix(t, t->bos, err);
    }
    t->adds_bos = t->n_prefix > 0;
    return rc;
}

/* ---- the whole file ---- */

static int read_affix(m5_slice *out, const m5_json *v, m5_error *err)
{
    char *p;
    m5_slice s = m5_json_str(v);
    if (!s.n) return 0;
    if (s.n > 64) return m5_error_set(err, M5_ERR_LIMIT, "tokenizer.json: a subword prefix or suffix of %zu bytes is too long", s.n);
    int rc = copy_text(&p, &out->n, s, err);
    out->p = p;
    return rc;
}

static int read_model(m5_tokenizer *t, const m5_json *root, const tok_scan_model *big, m5_error *err)
{
    m5_json *model = m5_json_get(root, "model");
    if (!is_object(model)) return m5_error_set(err, M5_ERR_FORMAT, "tokenizer.json has no model");
    if (m5_json_get(model, "type") && !type_is(model, "BPE")) return unsupported(model, "a model", err);
    if (!big->vocab.n || !big->merges.n) return m5_error_set(err, M5_ERR_FORMAT, "tokenizer.json: the model has no vocab or no merges");
    t->ignore_merges = flag(model, "ignore_merges", false);
    t->byte_fallback = flag(model, "byte_fallback", false);
    t->fuse_unk = flag(model, "fuse_unk", false);
    if (m5_json_real(m5_json_get(model, "dropout")) > 0) m5_log(M5_LOG_WARN, "tokenizer.json: BPE dropout is for training and left out");
    int rc = read_affix(&t->sub_prefix, m5_json_get(model, "continuing_subword_prefix"), err);
    if (!rc) rc = read_affix(&t->word_suffix, m5_json_get(model, "end_of_word_suffix"), err);
    if (!rc) rc = m5_tok_scan_vocab(t, big->vocab, err);
    if (!rc) rc = read_added(t, m5_json_get(root, "added_tokens"), (int64_t)t->n_find, err);
    if (!rc) rc = m5_tok_scan_merges(t, big->merges, err);
    m5_slice unk = m5_json_str(m5_json_get(model, "unk_token"));
    if (!rc && unk.n) t->unk = m5_tok_vocab_find(t, unk.p, unk.n);
    return rc;
}

int m5_tokenizer_from_json(m5_tokenizer **out, const char *json, size_t n, const m5_json *tokenizer_config, m5_error *err)
{
    m5_error own; /* steps that fail without a return code read theirs back from here */
    if (!err) err = &own;
    err->code = 0;
    m5_json *root = NULL, *decoder;
    tok_scan_model big = {0};
    int rc = 0;
    m5_tokenizer *t = m5_calloc(M5_MEM_TEXT, 1, sizeof *t);
    if (!t) return no_memory(err);
    t->bos = t->unk = -1;
    rc = m5_tok_scan_model(&big, json, n, err);
    if (!rc) rc = m5_json_parse(&root, big.rest.p, big.rest.n, NULL, err);
    if (!rc) rc = read_model(t, root, &big, err);
    if (!rc) rc = read_norm(t, m5_json_get(root, "normalizer"), 0, err);
    if (!rc) rc = read_pre(t, m5_json_get(root, "pre_tokenizer"), 0, err);
    /* Where the byte alphabet is the last step the model can work on the bytes themselves. */
    if (!rc && t->n_pre && t->pre[t->n_pre - 1].kind == TOK_PRE_BYTES) {
        t->byte_mode = true;
        t->n_pre--;
    }
    decoder = m5_json_get(root, "decoder");
    t->has_decoder = is_object(decoder);
    if (!rc) rc = read_dec(t, decoder, 0, err);
    if (!rc) rc = read_post(t, m5_json_get(root, "post_processor"), 0, err);
    if (!rc) rc = read_config(t, tokenizer_config, err);
    if (!rc) rc = m5_tok_finish(t, err);
    if (!rc) {
        *out = t;
        t = NULL;
    }
    m5_tokenizer_free(t);
    m5_json_unref(root);
    m5_buf_free(&big.rest);
    return rc;
}
