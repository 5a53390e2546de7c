/* SPDX-License-Identifier: Apache-2.0 */
/* The fake model layer; see fake_model.h. */
#include "fake_model.h"

#include "base/mem.h"
#include "base/task.h"
#include "model/mtp.h"
#include "model/state.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

fake_control fake;

struct m5_model {
    m5_weights weights;
    m5_pool *pool;
    int max_batch_tok;
};
struct m5_seq {
    int32_t ids[4096];
    int n, n_held;
};

int m5_model_open(m5_model **out, const char *path, const m5_model_options *opt, m5_error *err)
{
    *out = NULL;
    if (fake.fail_open) return m5_error_set(err, M5_ERR_FORMAT, "%s: told to fail", path);
    m5_model *m = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof(*m));
    if (!m) return m5_error_set(err, M5_ERR_NOMEM, "no memory");
    if (m5_pool_open(&m->pool, 1, err)) {
        m5_free(m);
        return M5_ERR_NOMEM;
    }
    m->weights.config.n_vocab = FAKE_VOCAB;
    m->weights.config.n_ctx_train = fake.n_ctx_train ? fake.n_ctx_train : 4000;
    m->weights.config.eos[0] = FAKE_END_ID;
    m->weights.config.author = (struct m5_author_sampling){.temperature = 0.25f, .top_p = -1, .min_p = -1, .repetition_penalty = -1, .top_k = 7};
    m->weights.config.n_eos = 1;
    m->weights.tokenizer_json = (char *)"{}";
    m->max_batch_tok = opt->max_batch_tok;
    *out = m;
    return 0;
}
void m5_model_close(m5_model *m)
{
    if (!m) return;
    m5_pool_close(m->pool);
    m5_free(m);
}
const m5_config *m5_model_config(const m5_model *m) { return &m->weights.config; }
const m5_weights *m5_model_weights(const m5_model *m) { return &m->weights; }
m5_cpu *m5_model_cpu(m5_model *m) { return (m5_cpu *)m; }
void m5_model_set_state_budget(m5_model *m, uint64_t bytes)
{
    (void)m;
    (void)bytes;
}
m5_pool *m5_cpu_pool(m5_cpu *c) { return ((m5_model *)c)->pool; }
void m5_cpu_settle_wait(m5_cpu *c)
{
    (void)c;
}
const char *m5_cpu_isa_name(const m5_cpu *c) { return c ? "fake" : ""; }
size_t m5_model_kv_bytes_per_tok(const m5_model *m) { return m ? 1024 : 0; }
size_t m5_model_row_bytes(const m5_model *m) { return m ? 4096 : 0; }

m5_layer_set m5_layers_first(int n)
{
    (void)n;
    return (m5_layer_set){0};
}
int m5_model_use_layers(m5_model *m, const m5_layer_set *set, m5_error *err)
{
    return m5_model_check_layers(m, set, err);
}

int m5_seq_new(m5_seq **out, m5_model *m, m5_error *err)
{
    *out = m ? m5_calloc(M5_MEM_STATE, 1, sizeof(**out)) : NULL;
    if (!*out) return m5_error_set(err, M5_ERR_NOMEM, "no memory for a sequence");
    fake.n_seqs++;
    return 0;
}
void m5_seq_free(m5_seq *s)
{
    if (!s) return;
    fake.n_seqs--;
    fake.n_state_tokens -= s->n;
    m5_free(s);
}
int m5_seq_pos(const m5_seq *s) { return s->n; }
void m5_seq_reset(m5_seq *s)
{
    fake.n_state_tokens -= s->n;
    s->n = s->n_held = 0;
}
int m5_seq_truncate(m5_seq *s, int n, m5_error *err)
{
    (void)err;
    fake.n_state_tokens -= s->n - n;
    s->n = n;
    return 0;
}
int m5_seq_ready_hold(m5_seq *s, m5_error *err)
{
    return s || err ? 0 : 1;
}
bool m5_seq_holds(const m5_seq *s)
{
    return s != NULL;
}
bool m5_seq_drop_hold(m5_seq *s)
{
    return s == NULL;
}
bool m5_mtp_present(const m5_model *m)
{
    return m == NULL;
}
int m5_mtp_forward(m5_model *m, const m5_mtp_run *runs, int n_run, float *logits, m5_error *err)
{
    (void)m, (void)runs, (void)n_run, (void)logits;
    return m5_error_set(err, M5_ERR_UNSUPPORTED, "no such head");
}
int m5_mtp_draft(m5_model *m, const m5_mtp_run *runs, int n_run, int n_draft, int32_t *drafts, float *logits, m5_error *err)
{
    (void)n_draft, (void)drafts;
    return m5_mtp_forward(m, runs, n_run, logits, err);
}
/* Nor layers that could guess. */
const m5_layer_set *m5_model_layers(const m5_model *m)
{
    static const m5_layer_set none;
    return m ? &none : NULL;
}
int m5_model_check_layers(const m5_model *m, const m5_layer_set *set, m5_error *err)
{
    return m && set ? m5_error_set(err, M5_ERR_ARG, "no layers") : 0;
}
int m5_model_guess(m5_model *m, const m5_run *runs, int n_run, const m5_layer_set *set, int n_guess, float *logits, m5_error *err)
{
    (void)m, (void)runs, (void)n_run, (void)set, (void)n_guess, (void)logits;
    return m5_error_set(err, M5_ERR_UNSUPPORTED, "no layers");
}
const float *m5_model_hidden_all(const m5_model *m)
{
    (void)m;
    return NULL;
}
uint64_t m5_model_state_copies(const m5_model *m)
{
    return m == NULL;
}
size_t m5_model_hold_bytes(const m5_model *m)
{
    return m == NULL;
}
void m5_seq_commit(m5_seq *s, int n)
{
    if (n < 0 || n > s->n_held) abort();
    fake.n_commits++;
    fake.n_state_tokens += n;
    s->n += n;
    s->n_held = 0;
}

/* Pages of FAKE_PAGE token ids; no recurrent rows. */
enum { FAKE_PAGE = 16 };
struct m5_page {
    int n_owner;
    int32_t ids[FAKE_PAGE];
};
int m5_model_page_tok(const m5_model *m) { return m ? FAKE_PAGE : 0; }
size_t m5_model_page_bytes(const m5_model *m) { return m ? sizeof(m5_page) : 0; }
bool m5_model_recurrent(const m5_model *m) { return m == NULL; }
m5_page *m5_seq_page_ref(const m5_seq *s, int i)
{
    m5_page *p = calloc(1, sizeof(*p)); /* the real one counts an owner and cannot fail, so no injected failure here */
    if (!p) abort();
    p->n_owner = 1;
    int n = s->n - i * FAKE_PAGE;
    memcpy(p->ids, s->ids + i * FAKE_PAGE, (size_t)(n < FAKE_PAGE ? n : FAKE_PAGE) * sizeof(*p->ids));
    return p;
}
m5_page *m5_page_new(m5_model *m)
{
    m5_page *p = m ? calloc(1, sizeof(*p)) : NULL;
    if (p) p->n_owner = 1;
    return p;
}
void *m5_page_data(m5_page *p) { return p->ids; }
void m5_page_ref(m5_page *p) { p->n_owner++; }
void m5_page_unref(m5_model *m, m5_page *p)
{
    if (m && p && --p->n_owner == 0) free(p);
}
void m5_seq_row_save(m5_seq *s, void *dst)
{
    if (s->n_held) abort();
    (void)dst;
}
int m5_seq_restore(m5_seq *s, m5_page *const *pages, int n_tok, const void *row, m5_error *err)
{
    (void)row;
    (void)err;
    m5_seq_reset(s);
    for (int i = 0; i < n_tok; i++) s->ids[i] = pages[i / FAKE_PAGE]->ids[i % FAKE_PAGE];
    s->n = n_tok;
    fake.n_state_tokens += n_tok;
    return 0;
}

static void nap(int us)
{
    if (us > 0) nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000L}, NULL);
}

/* What comes after the first n tokens. */
static void speak(const m5_seq *s, int n, float *logits)
{
    static const unsigned char euro[] = "\xC3\xA9\xE2\x82\xAC ";
    for (int i = 0; i < FAKE_VOCAB; i++) logits[i] = -20;
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < n; i++) h = (h ^ (uint64_t)s->ids[i]) * 1099511628211u;
    switch (s->ids[0]) {
    case FAKE_COUNT: logits[(s->ids[n - 1] + 1) % 256] = 20; break;
    case FAKE_EURO: logits[euro[n % 6]] = 20; break;
    case FAKE_END: logits[FAKE_END_ID] = 20; break;
    default:
        for (int i = 0; i < 256; i++) {
            h = h * 6364136223846793005u + 1442695040888963407u;
            logits[i] = (float)(h >> 40) / (float)(1 << 22);
        }
    }
}

int m5_model_forward(m5_model *m, const m5_run *runs, int n_run, float *logits, m5_error *err)
{
    int rows = 0, one_row = 0;
    fake.n_calls++;
    for (int i = 0; i < n_run; i++) {
        rows += runs[i].n_tok;
        one_row |= runs[i].n_tok == 1;
    }
    nap(fake.call_delay_us + rows * fake.row_delay_us);
    if (rows > m->max_batch_tok) return m5_error_set(err, M5_ERR_ARG, "%d rows", rows);
    if (fake.max_tokens_in_state && fake.n_state_tokens + rows > fake.max_tokens_in_state) {
        fake.n_failed++;
        return m5_error_set(err, M5_ERR_NOMEM, "state budget");
    }
    for (int i = 0; i < n_run; i++)
        for (int j = 0; j < runs[i].n_tok; j++)
            if (runs[i].ids[j] == FAKE_BAD_ID) {
                fake.n_failed++;
                return m5_error_set(err, M5_ERR_INTERNAL, "bad token");
            }
    if (rows > fake.max_rows) fake.max_rows = rows;
    if (one_row && n_run > 1 && rows > fake.max_rows_beside) fake.max_rows_beside = rows;
    if (n_run > fake.max_runs) fake.max_runs = n_run;
    for (int i = 0; i < n_run; i++) {
        m5_seq *s = runs[i].seq;
        memcpy(s->ids + s->n, runs[i].ids, (size_t)runs[i].n_tok * sizeof(*s->ids));
        const int end = s->n + runs[i].n_tok;
        for (int k = runs[i].n_out; k > 0; k--, logits += FAKE_VOCAB) speak(s, end - k + 1, logits);
        s->n_held = runs[i].hold ? runs[i].n_tok : 0;
        if (runs[i].hold) continue;
        s->n = end;
        fake.n_state_tokens += runs[i].n_tok;
    }
    return 0;
}

/* ---- text ---- */

struct m5_tokenizer {
    int unused;
};
struct m5_chat {
    int unused;
};
struct m5_decoder {
    char open[4];
    size_t n;
};

int m5_tokenizer_from_json(m5_tokenizer **out, const char *json, size_t n, const m5_json *config, m5_error *err)
{
    (void)json, (void)n, (void)config;
    *out = m5_calloc(M5_MEM_TEXT, 1, sizeof(**out));
    return *out ? 0 : m5_error_set(err, M5_ERR_NOMEM, "no memory");
}
int m5_tokenizer_from_gguf(m5_tokenizer **out, const m5_gguf_vocab *v, m5_error *err)
{
    (void)v;
    return m5_tokenizer_from_json(out, NULL, 0, NULL, err);
}
void m5_tokenizer_free(m5_tokenizer *t) { m5_free(t); }
int32_t m5_tokenizer_n_vocab(const m5_tokenizer *t) { return t ? FAKE_VOCAB : 0; }
int32_t m5_tokenizer_bos(const m5_tokenizer *t) { return t ? -1 : 0; }
m5_slice m5_tokenizer_piece(const m5_tokenizer *t, int32_t id)
{
    (void)t, (void)id;
    return (m5_slice){0};
}
int m5_tokenizer_stop_ids(const m5_tokenizer *t, int32_t *out, int cap)
{
    (void)t, (void)out, (void)cap;
    return 0;
}
int m5_chat_new(m5_chat **out, const char *text, const char *tool, const char *bos, const char *eos, m5_error *err)
{
    (void)text, (void)tool, (void)bos, (void)eos;
    *out = m5_calloc(M5_MEM_TEXT, 1, sizeof(**out));
    return *out ? 0 : m5_error_set(err, M5_ERR_NOMEM, "no memory");
}
void m5_chat_free(m5_chat *c) { m5_free(c); }

int m5_decoder_new(m5_decoder **out, const m5_tokenizer *t, bool skip_special, m5_error *err)
{
    (void)t, (void)skip_special;
    *out = m5_calloc(M5_MEM_REQUEST, 1, sizeof(**out));
    return *out ? 0 : m5_error_set(err, M5_ERR_NOMEM, "no memory");
}
void m5_decoder_free(m5_decoder *d) { m5_free(d); }
int m5_decoder_push(m5_decoder *d, int32_t id, m5_buf *out)
{
    if (id >= 256) return 0;
    d->open[d->n++] = (char)id;
    uint32_t cp;
    int len = m5_utf8_decode(d->open, d->n, &cp);
    if (len < 0 && d->n < 4) return 0;
    m5_buf_codepoint(out, cp);
    d->n = 0;
    return 0;
}
int m5_decoder_flush(m5_decoder *d, m5_buf *out)
{
    if (d->n) m5_buf_codepoint(out, 0xFFFD);
    d->n = 0;
    return 0;
}
bool m5_tokenizer_is_control(const m5_tokenizer *t, int32_t id) { return t && id == FAKE_END_ID; }
