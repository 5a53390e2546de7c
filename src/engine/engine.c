/* SPDX-License-Identifier: Apache-2.0 */
/* The public API of m5.h: open and close, the plan for memory, submitting and dropping requests. Runs on callers' threads; everything that happens to
 * a request after it is queued is in sched.c. */
#include "engine/internal.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/task.h"
#include "engine/vocab.h"
#include "model/state.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_PARALLEL = 4,
    DEFAULT_QUEUE = 64,
    DEFAULT_CHUNK = 512,
    DEFAULT_CHECKPOINT_EVERY = 512,
    MIN_CTX = 512,
    CTX_STEP = 256,
    MAX_PARALLEL = 256,
    MAX_CHUNK = 8192
};

/* ---- open ---- */

static char *short_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    size_t len = n - from;
    if (len > 5 && memcmp(path + n - 5, ".gguf", 5) == 0) len -= 5;
    return m5_strndup(M5_MEM_MISC, path + from, len);
}

static int check_options(const m5_engine_options *o, m5_error *err)
{
    if (!o->model_path || !*o->model_path) return m5_error_set(err, M5_ERR_ARG, "no model path given");
    if (o->n_threads < 0 || o->n_threads > 1024) return m5_error_set(err, M5_ERR_ARG, "%d threads are out of range", o->n_threads);
    if (o->n_ctx < 0) return m5_error_set(err, M5_ERR_ARG, "context of %d tokens is out of range", o->n_ctx);
    if (o->n_parallel < 0 || o->n_parallel > MAX_PARALLEL)
        return m5_error_set(err, M5_ERR_ARG, "%d parallel sequences are out of range (1 to %d)", o->n_parallel, MAX_PARALLEL);
    if (o->checkpoint_every < 0) return m5_error_set(err, M5_ERR_ARG, "checkpoints every %d tokens are out of range", o->checkpoint_every);
    if (o->spec.k < 0 || o->spec.k > M5_SPEC_MAX_K)
        return m5_error_set(err, M5_ERR_ARG, "drafts of %d tokens are out of range (1 to %d)", o->spec.k, M5_SPEC_MAX_K);
    if (o->spec.sources >> M5_SPEC_MODEL & 1 && !o->draft_model_path)
        return m5_error_set(err, M5_ERR_ARG, "drafts of a model need that model (--draft-model)");
    if (o->n_skip_layers < 0 || o->n_skip_layers > M5_MAX_LAYERS)
        return m5_error_set(err, M5_ERR_ARG, "a list of %d layers to leave out", o->n_skip_layers);
    if (!(o->draft_confidence >= 0 && o->draft_confidence <= 1))
        return m5_error_set(err, M5_ERR_ARG, "a probability of %g is out of range (0 to 1)", o->draft_confidence);
    if (!(o->lossy_layer_skip >= 0)) return m5_error_set(err, M5_ERR_ARG, "a mean KL of %g is out of range", o->lossy_layer_skip);
    if (o->n_queue < 0) return m5_error_set(err, M5_ERR_ARG, "queue of %d requests is out of range", o->n_queue);
    if (o->prefill_chunk < 0 || o->prefill_chunk > MAX_CHUNK)
        return m5_error_set(err, M5_ERR_ARG, "prefill chunk of %d rows is out of range (1 to %d)", o->prefill_chunk, MAX_CHUNK);
    return 0;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Context per sequence: the user's, else the model's own bounded by what the budget holds beside the weights. Without a budget of the user's, 15 % of
 * memory stays for scratch, text and the rest of the system. Pages are taken as sequences grow, so the figure is what is needed at full length, not
 * what is taken now; pages and rows never take more than their part of the budget, and sequences that need more wait for others. */
static int plan_context(m5_engine *e, const m5_engine_options *o, m5_error *err)
{
    const m5_weights *w = m5_model_weights(e->model);
    m5_engine_info *i = &e->info;
    i->kv_bytes_per_tok = m5_model_kv_bytes_per_tok(e->model);
    i->row_bytes = m5_model_row_bytes(e->model);
    i->memory_bytes = m5_memory_total_bytes();
    i->weight_bytes = w->file_bytes;
    i->n_params = w->n_params;
    i->n_ctx_train = w->config.n_ctx_train;
    const m5_model *draft = e->draft ? m5_draft_model_model(e->draft) : NULL;
    uint64_t hold = e->spec.max_k ? m5_model_hold_bytes(e->model) : 0, per_tok = i->kv_bytes_per_tok;
    if (draft) {
        i->weight_bytes += m5_model_weights(draft)->file_bytes;
        hold += m5_model_hold_bytes(draft) + m5_model_row_bytes(draft);
        per_tok += m5_model_kv_bytes_per_tok(draft);
    }
    uint64_t usable = o->memory_bytes ? o->memory_bytes : i->memory_bytes / 100 * 85,
             fixed = i->weight_bytes + (i->row_bytes + hold) * (uint64_t)e->n_parallel;
    uint64_t free_bytes = usable > fixed ? usable - fixed : 0, cache_max = (uint64_t)8 << 30;
    i->cache_ram_bytes = o->no_cache ? 0 : o->cache_ram_bytes ? o->cache_ram_bytes : free_bytes / 4 < cache_max ? free_bytes / 4 : cache_max;
    free_bytes = free_bytes > i->cache_ram_bytes ? free_bytes - i->cache_ram_bytes : 0;
    uint64_t fits = per_tok ? free_bytes / per_tok / (uint64_t)e->n_parallel : INT_MAX;
    if (o->n_ctx > 0) {
        e->n_ctx = o->n_ctx;
        if (w->config.n_ctx_train > 0 && e->n_ctx > w->config.n_ctx_train)
            m5_log(M5_LOG_WARN, "context %d is longer than the %d tokens the model was trained for", e->n_ctx, w->config.n_ctx_train);
    } else {
        uint64_t n = w->config.n_ctx_train > 0 ? (uint64_t)w->config.n_ctx_train : 4096;
        if (n > fits) n = fits / CTX_STEP * CTX_STEP > MIN_CTX ? fits / CTX_STEP * CTX_STEP : MIN_CTX;
        e->n_ctx = (int)(n < INT_MAX / 2 ? n : INT_MAX / 2);
    }
    if (e->n_ctx < 2) return m5_error_set(err, M5_ERR_ARG, "context of %d tokens cannot hold a prompt and an answer", e->n_ctx);
    i->n_ctx = e->n_ctx;
    i->state_bytes = ((uint64_t)e->n_ctx * per_tok + i->row_bytes + hold) * (uint64_t)e->n_parallel;
    /* Pages and rows of sequences and of the prompt cache come out of one pool; the cache's checkpoints lie outside, so their budget is left out of
     * it. */
    uint64_t least = i->row_bytes * 2 + (uint64_t)(e->n_ctx < MIN_CTX ? e->n_ctx : MIN_CTX) * i->kv_bytes_per_tok;
    uint64_t taken = i->weight_bytes + (m5_model_recurrent(e->model) ? i->cache_ram_bytes : 0), pool = usable > taken ? usable - taken : 0;
    if (o->memory_bytes && pool < least)
        return m5_error_set(
            err, M5_ERR_NOMEM,
            "a budget of %.0f MiB does not hold the weights (%.0f MiB), the prompt cache (%.0f MiB) and one short sequence; raise --memory "
            "or lower --cache-ram",
            mib(usable), mib(i->weight_bytes), mib(i->cache_ram_bytes));
    m5_model_set_state_budget(e->model, pool > least ? pool : least);
    m5_log(M5_LOG_INFO, "memory: weights %.0f MiB, %d x %d tokens of state up to %.0f MiB (%.1f KiB a token), budget %.0f of %.0f MiB",
           mib(i->weight_bytes), e->n_parallel, e->n_ctx, mib(i->state_bytes), (double)i->kv_bytes_per_tok / 1024, mib(usable), mib(i->memory_bytes));
    m5_log(M5_LOG_INFO, "prompt cache: up to %.0f MiB in memory, a checkpoint every %d tokens", mib(i->cache_ram_bytes), e->checkpoint_every);
    if (i->weight_bytes + i->state_bytes + i->cache_ram_bytes > usable)
        m5_log(M5_LOG_WARN,
               "memory: weights, full contexts and prompt cache need %.0f MiB, the budget is %.0f MiB; when it runs out, requests wait for others "
               "(or lower --ctx, --parallel or --cache-ram)",
               mib(i->weight_bytes + i->state_bytes + i->cache_ram_bytes), mib(usable));
    return 0;
}

static void add_end_id(m5_engine *e, int32_t id)
{
    for (int i = 0; i < e->n_end_ids; i++)
        if (e->end_ids[i] == id) return;
    if (id >= 0 && e->n_end_ids < M5_ENGINE_MAX_END) e->end_ids[e->n_end_ids++] = id;
}

static int open_text(m5_engine *e, const m5_engine_options *o, m5_error *err)
{
    const m5_weights *w = m5_model_weights(e->model);
    int rc = m5_vocab_tokenizer(&e->tokenizer, w, err);
    if (rc) return rc;
    if ((rc = m5_vocab_chat(&e->chat, w, e->tokenizer, o->chat_template, err))) return rc;
    e->info.own_template = o->chat_template || w->chat_template;
    if (!e->tokenizer) m5_log(M5_LOG_WARN, "the model brings no tokenizer: only token ids can be used");
    if (!e->info.own_template) m5_log(M5_LOG_WARN, "the model brings no chat template: ChatML is used");
    for (int i = 0; i < w->config.n_eos; i++) add_end_id(e, w->config.eos[i]);
    int32_t named[M5_ENGINE_MAX_END];
    int n = e->tokenizer ? m5_tokenizer_stop_ids(e->tokenizer, named, M5_ENGINE_MAX_END) : 0;
    for (int i = 0; i < n; i++) add_end_id(e, named[i]);
    return 0;
}

static int open_buffers(m5_engine *e, m5_error *err)
{
    size_t n = (size_t)e->n_parallel;
    int n_row = m5_model_config(e->model)->n_vocab, n_vocab = n_row;
    if (e->tokenizer && m5_tokenizer_n_vocab(e->tokenizer) < n_vocab) n_vocab = m5_tokenizer_n_vocab(e->tokenizer);
    int rc = m5_sampler_new(&e->sampler, n_row, n_vocab, err);
    if (rc) return rc;
    size_t n_logits = n + (size_t)e->spec.max_rows;
    e->info.spec_bytes = (uint64_t)e->spec.max_rows * (uint64_t)n_row * sizeof(float);
    if (e->spec.max_rows)
        m5_log(M5_LOG_INFO, "drafts: up to %d tokens a sequence, %d a step, %.0f MiB", e->spec.max_k, e->spec.max_rows, mib(e->info.spec_bytes));
    e->slots = m5_calloc(M5_MEM_MISC, n, sizeof(*e->slots));
    e->asks = m5_calloc(M5_MEM_SCRATCH, n, sizeof(*e->asks));
    e->runs = m5_calloc(M5_MEM_SCRATCH, n, sizeof(*e->runs));
    e->run_slot = m5_calloc(M5_MEM_SCRATCH, n, sizeof(*e->run_slot));
    e->run_err = m5_calloc(M5_MEM_SCRATCH, n, sizeof(*e->run_err));
    e->logits = m5_calloc(M5_MEM_SCRATCH, n_logits * (size_t)n_row, sizeof(float));
    if (!e->slots || !e->asks || !e->runs || !e->run_slot || !e->run_err || !e->logits)
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %zu sequences", n);
    return 0;
}

/* Raise it whenever a change of the arithmetic or of the layout of pages and rows makes old state files wrong. */
enum { STATE_EPOCH = 3 };

/* Files of prompt state serve a model only with the very arithmetic that made them: weights, instruction set, types and this version all count (P1).
 * A folder that cannot be used costs speed, not the server. */
static void open_store(m5_engine *e, const m5_engine_options *o)
{
    if (!o->cache_dir || o->no_cache) return;
    m5_error err = {0};
    char text[512 + 4 * M5_MAX_LAYERS], fingerprint[17];
    const char *isa = m5_cpu_isa_name(m5_model_cpu(e->model));
    size_t n = (size_t)snprintf(text, 512, "%s|%s|%s|%d|%d|%d|%d", m5_model_weights(e->model)->fingerprint, M5_VERSION, isa, (int)o->act_f32,
                                o->kv_type, (int)m5_mtp_present(e->model), STATE_EPOCH);
    /* Without some layers it is another model. */
    for (int i = 0; i < e->lossy.n_layers && n < sizeof text - 1; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", i ? "," : "|without ", e->lossy.layers[i]);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)m5_hash64(text, n < sizeof text ? n : sizeof text - 1));
    uint64_t budget = o->cache_disk_bytes, most = (uint64_t)16 << 30;
    if (!budget) {
        m5_dir_make(o->cache_dir, 0700, NULL);
        budget = m5_disk_free_bytes(o->cache_dir) / 10;
        if (budget > most) budget = most;
    }
    m5_store_options so = {.dir = o->cache_dir, .budget_bytes = budget, .fingerprint = fingerprint};
    if (m5_store_open(&e->store, e->model, &so, &err)) {
        m5_log(M5_LOG_WARN, "prompt state is not kept on disk: %s", err.text);
        return;
    }
    e->info.cache_disk_bytes = budget;
    m5_store_stats st;
    m5_store_get_stats(e->store, &st);
    m5_log(M5_LOG_INFO, "prompt cache: up to %.0f MiB in %s; %.0f MiB there for this model", mib(budget), o->cache_dir, mib(st.bytes));
}

/* The record of a calibration, and the layers that stay out for it. */
static int open_calib(m5_engine *e, const m5_engine_options *o, m5_error *err)
{
    const m5_calib_cut *cut = NULL;
    m5_lossy_info *i = &e->lossy;
    int rc = m5_calib_open(&e->calib, o->calibration_path, o->calibration_dir, e->model, err);
    if (rc || !(o->lossy_layer_skip > 0)) return rc;
    if ((rc = m5_calib_leave_out(e->calib, e->model, o->lossy_layer_skip, &cut, err))) return rc;
    *i = (m5_lossy_info){.wanted_kl = o->lossy_layer_skip, .top1 = 1, .speed = 1, .layers = e->lossy_layers};
    e->info.lossy = i;
    if (!cut) {
        m5_log(M5_LOG_WARN, "lossy layer skip: the calibration has nothing with a mean KL of %g or less, so no layer is left out", o->lossy_layer_skip);
        return 0;
    }
    for (int l = 0; l < e->calib->n_layer; l++)
        if (m5_layer_in(&cut->out, l)) e->lossy_layers[i->n_layers++] = l;
    i->kl = cut->kl_mean;
    i->kl_p99 = cut->kl_p99;
    i->top1 = cut->top1;
    i->speed = cut->speed;
    e->status.n_layers_left_out = i->n_layers;
    m5_buf list = {0};
    for (int l = 0; l < i->n_layers; l++) m5_buf_printf(&list, l ? ",%d" : "%d", i->layers[l]);
    m5_log(M5_LOG_WARN, "lossy layer skip: %d of %d layers are left out (%s): mean KL %.4f, 99 %% below %.4f, %.1f %% the same token, %.2f x", i->n_layers,
           e->calib->n_layer, list.p ? list.p : "", i->kl, i->kl_p99, i->top1 * 100, i->speed);
    m5_buf_free(&list);
    return 0;
}

/* What a calibration chose of the layers in use. Without some of them its share of right guesses is another model's. */
static void take_calibrated(const m5_engine *e, m5_self_variant v, m5_self_draft *d)
{
    const m5_layer_set *used = m5_model_layers(e->model);
    m5_self_draft c = m5_calib_self_draft(e->calib, v);
    for (int w = 0; w < M5_LAYER_WORDS; w++) c.layers.bits[w] &= used->bits[w];
    if (m5_model_check_layers(e->model, &c.layers, NULL)) return;
    if (memcmp(&c.layers, used, sizeof *used) == 0) c = (m5_self_draft){0}; /* guesses would cost what they save */
    if (e->lossy.n_layers) c.accept = 0;
    *d = c;
}

/* Which layers draft for the whole model: the user's, else those of a calibration, else the usual ones. */
static int plan_self_drafts(const m5_engine *e, const m5_engine_options *o, m5_self_draft *self, m5_error *err)
{
    int rc = 0;
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        self[v] = (m5_self_draft){.layers = m5_self_default(e->model, (m5_self_variant)v)};
        if (e->calib) take_calibrated(e, (m5_self_variant)v, &self[v]);
    }
    if (o->exit_layer) {
        self[M5_SELF_EXIT] = (m5_self_draft){0};
        rc = m5_self_exit_after(&self[M5_SELF_EXIT].layers, e->model, o->exit_layer, err);
    }
    if (!rc && o->n_skip_layers) {
        self[M5_SELF_SKIP] = (m5_self_draft){0};
        rc = m5_self_skip_list(&self[M5_SELF_SKIP].layers, e->model, o->skip_layers, o->n_skip_layers, err);
    }
    for (int v = 0; v < M5_SELF_VARIANTS && o->draft_confidence > 0; v++) self[v].confidence = (float)o->draft_confidence;
    return rc;
}

int m5_engine_open(m5_engine **out, const m5_engine_options *o, m5_error *err)
{
    *out = NULL;
    int rc = check_options(o, err);
    if (rc) return rc;
    m5_engine *e = m5_calloc(M5_MEM_MISC, 1, sizeof(*e));
    if (!e) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->n_left = 1;
    e->n_parallel = o->n_parallel ? o->n_parallel : DEFAULT_PARALLEL;
    e->n_queue = o->n_queue ? o->n_queue : DEFAULT_QUEUE;
    e->prefill_chunk = o->prefill_chunk ? o->prefill_chunk : DEFAULT_CHUNK;
    e->checkpoint_every = o->checkpoint_every ? o->checkpoint_every : DEFAULT_CHECKPOINT_EVERY;
    e->info.checkpoint_every = e->checkpoint_every;
    m5_spec_open(&e->spec, &o->spec, e->n_parallel);
    m5_self_draft self[M5_SELF_VARIANTS];
    m5_model_options mo = {
        .cpu = {.n_threads = o->n_threads, .cpu_mask = o->cpu_mask ? o->cpu_mask : 0xffffffffu, .act_f32 = o->act_f32},
        .kv_type = (m5_kv_type)o->kv_type,
        .max_batch_tok = e->prefill_chunk + e->n_parallel + e->spec.max_rows,
        .max_draft = e->spec.max_hold,
        .mtp = e->spec.sources >> M5_SPEC_MTP & 1,
        .no_repack = o->no_repack,
        .progress = o->progress,
        .progress_ctx = o->progress_ctx,
    };
    if ((rc = m5_model_open(&e->model, o->model_path, &mo, err))) goto out;
    e->model_id = short_name(o->model_path);
    if (!e->model_id) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory");
        goto out;
    }
    if ((rc = open_calib(e, o, err)) || (rc = open_text(e, o, err))) goto out;
    if (o->draft_model_path && e->spec.sources >> M5_SPEC_MODEL & 1)
        rc = m5_draft_model_open(&e->draft, o->draft_model_path, &mo, e->tokenizer, e->n_parallel, e->spec.max_k, err);
    if (rc || (rc = plan_self_drafts(e, o, self, err)) || (rc = m5_spec_attach(&e->spec, e->model, e->draft, self, e->n_parallel, err))) goto out;
    if ((rc = plan_context(e, o, err)) || (rc = open_buffers(e, err))) goto out;
    if ((rc = m5_prefix_open(&e->prefix, e->model, e->info.cache_ram_bytes, err))) goto out;
    open_store(e, o);
    e->info.family = m5_model_config(e->model)->family;
    e->info.format = m5_model_weights(e->model)->format;
    e->info.isa = m5_cpu_isa_name(m5_model_cpu(e->model));
    e->info.n_threads = m5_pool_size(m5_cpu_pool(m5_model_cpu(e->model)));
    e->info.n_vocab = m5_model_config(e->model)->n_vocab;
    e->info.n_parallel = e->n_parallel;
    e->info.n_queue = e->n_queue;
    e->info.prefill_chunk = e->prefill_chunk;
    e->info.spec_sources = e->spec.sources;
    e->info.spec_auto = e->spec.automatic;
    e->info.spec_k = e->spec.max_k;
    e->info.spec_rows = e->spec.max_rows;
    if (pthread_create(&e->thread, NULL, m5_engine_main, e)) {
        rc = m5_error_set(err, M5_ERR_IO, "the system refused the engine thread");
        goto out;
    }
    e->thread_started = true;
    *out = e;
    e = NULL;
out:
    m5_engine_close(e);
    return rc;
}

void m5_engine_shutdown(m5_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->quit = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void m5_engine_close(m5_engine *e)
{
    if (!e) return;
    if (e->thread_started) {
        m5_engine_shutdown(e);
        pthread_join(e->thread, NULL);
    }
    for (int i = 0; e->slots && i < e->n_parallel; i++) {
        m5_seq_free(e->slots[i].seq);
        m5_free(e->slots[i].ids);
        m5_spec_free(&e->slots[i].spec);
    }
    m5_spec_close(&e->spec);
    m5_draft_model_close(e->draft);
    m5_store_close(e->store);
    m5_prefix_close(e->prefix);
    m5_free(e->slots);
    m5_free(e->asks);
    m5_free(e->runs);
    m5_free(e->run_slot);
    m5_free(e->run_err);
    m5_free(e->logits);
    m5_sampler_free(e->sampler);
    m5_chat_free(e->chat);
    m5_tokenizer_free(e->tokenizer);
    m5_model_close(e->model);
    m5_free(e->calib);
    m5_free(e->model_id);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    m5_free(e);
}

void m5_engine_settle_wait(m5_engine *e)
{
    m5_cpu_settle_wait(m5_model_cpu(e->model));
}

const m5_tokenizer *m5_engine_tokenizer(const m5_engine *e)
{
    return e->tokenizer;
}
const m5_chat *m5_engine_chat(const m5_engine *e)
{
    return e->chat;
}
const m5_config *m5_engine_config(const m5_engine *e)
{
    return m5_model_config(e->model);
}
int m5_engine_n_ctx(const m5_engine *e)
{
    return e->n_ctx;
}
const char *m5_engine_model_id(const m5_engine *e)
{
    return e->model_id;
}
void m5_engine_get_info(const m5_engine *e, m5_engine_info *out)
{
    *out = e->info;
}

static float first_given(float user, float author, float other)
{
    return user >= 0 ? user : author >= 0 ? author : other;
}

void m5_engine_fill_sampling(const m5_engine *e, m5_sampling *s, const m5_sampling *other)
{
    const struct m5_author_sampling *a = &m5_model_config(e->model)->author;
    s->temperature = first_given(s->temperature, a->temperature, other->temperature);
    s->top_p = first_given(s->top_p, a->top_p, other->top_p);
    s->min_p = first_given(s->min_p, a->min_p, other->min_p);
    s->repetition_penalty = first_given(s->repetition_penalty, a->repetition_penalty, other->repetition_penalty);
    s->top_k = s->top_k >= 0 ? s->top_k : a->top_k >= 0 ? a->top_k : other->top_k;
}

void m5_engine_get_status(const m5_engine *e, m5_engine_status *out)
{
    m5_engine *m = (m5_engine *)e; /* the lock is not part of what a caller sees as constant */
    pthread_mutex_lock(&m->lock);
    *out = m->status;
    pthread_mutex_unlock(&m->lock);
    out->busy = out->n_running > 0 || out->n_waiting > 0;
}

/* ---- requests ---- */

static int check_params(const m5_engine *e, const m5_gen_params *p, m5_error *err)
{
    int n_vocab = m5_model_config(e->model)->n_vocab;
    if (!p->ids || p->n_ids == 0) return m5_error_set(err, M5_ERR_ARG, "the prompt is empty");
    if (p->n_ids + 1 > (size_t)e->n_ctx)
        return m5_error_set(err, M5_ERR_CONTEXT, "the prompt has %zu tokens; with room for an answer at most %d fit the context of %d", p->n_ids,
                            e->n_ctx - 1, e->n_ctx);
    for (size_t i = 0; i < p->n_ids; i++)
        if (p->ids[i] < 0 || p->ids[i] >= n_vocab)
            return m5_error_set(err, M5_ERR_ARG, "token %d at position %zu is not in the vocabulary of %d", (int)p->ids[i], i, n_vocab);
    if (p->n_stop > 0 && !e->tokenizer)
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "stop strings need a tokenizer, which this model does not bring");
    if (p->spec.k < 0 || p->spec.k > M5_SPEC_MAX_K)
        return m5_error_set(err, M5_ERR_ARG, "drafts of %d tokens are out of range (1 to %d)", p->spec.k, M5_SPEC_MAX_K);
    return m5_sampling_check(&p->sampling, n_vocab, err);
}

static int fill_request(m5_request *r, const m5_engine *e, const m5_gen_params *p, m5_error *err)
{
    int room = e->n_ctx - (int)p->n_ids;
    r->max_tokens = p->max_tokens < 0 || p->max_tokens > room ? room : p->max_tokens;
    r->n_prompt = r->n_ids = (int)p->n_ids;
    r->cap_ids = p->control ? e->n_ctx : r->n_prompt + r->max_tokens; /* uncounted tokens need room too */
    r->ignore_eos = p->ignore_eos;
    r->replay = p->replay;
    r->spec = p->spec;
    r->sampling = p->sampling;
    r->ids = m5_alloc(M5_MEM_REQUEST, (size_t)r->cap_ids * sizeof(*r->ids));
    r->bias = m5_alloc(M5_MEM_REQUEST, (size_t)p->sampling.n_bias * sizeof(*r->bias));
    if (!r->ids || !r->bias) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a request of %d tokens", r->cap_ids);
    if (p->control) {
        r->control = *p->control;
        r->mask = m5_calloc(M5_MEM_REQUEST, (size_t)m5_model_config(e->model)->n_vocab / 64 + 1, sizeof *r->mask);
        if (!r->mask) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a token mask");
    }
    memcpy(r->ids, p->ids, p->n_ids * sizeof(*r->ids));
    r->n_marks = m5_marks_find(e->tokenizer, r->ids, r->n_prompt, r->marks);
    if (p->sampling.n_bias > 0) memcpy(r->bias, p->sampling.bias, (size_t)p->sampling.n_bias * sizeof(*r->bias));
    r->sampling.bias = r->bias;
    int rc = m5_stop_new(&r->stop, p->stop, p->n_stop, err);
    if (!rc && e->tokenizer) rc = m5_decoder_new(&r->decoder, e->tokenizer, !p->keep_special, err);
    return rc;
}

int m5_engine_submit(m5_engine *e, const m5_gen_params *p, m5_event_fn fn, void *ctx, m5_request **out, m5_error *err)
{
    *out = NULL;
    int rc = check_params(e, p, err);
    if (rc) return rc;
    m5_request *r = m5_calloc(M5_MEM_REQUEST, 1, sizeof(*r));
    if (!r) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a request");
    pthread_mutex_init(&r->deliver, NULL);
    atomic_init(&r->refs, 2);
    atomic_init(&r->cancelled, false);
    r->fn = fn;
    r->ctx = ctx;
    r->engine_thread = e->thread;
    r->t_submit_us = m5_time_us();
    if ((rc = fill_request(r, e, p, err))) goto refused;
    pthread_mutex_lock(&e->lock);
    /* Free places count beside the queue, so that a burst on an idle engine is not refused before the engine thread wakes up. */
    if (e->status.n_waiting + e->status.n_running == 0) e->status.last_step_us = r->t_submit_us; /* idle until now: no stall */
    if (e->quit)
        rc = m5_error_set(err, M5_ERR_BUSY, "the engine is shutting down");
    else if (e->status.n_waiting + e->status.n_running >= e->n_queue + e->n_parallel)
        rc = m5_error_set(err, M5_ERR_BUSY, "%d requests are running and %d waiting; try again later", e->status.n_running, e->status.n_waiting);
    if (rc) {
        pthread_mutex_unlock(&e->lock);
        goto refused;
    }
    if (e->queue_tail)
        e->queue_tail->next = r;
    else
        e->queue_head = r;
    e->queue_tail = r;
    e->status.n_waiting++;
    e->status.n_requests++;
    *out = r;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return 0;
refused:
    atomic_store(&r->refs, 1);
    m5_request_unref(r);
    return rc;
}

/* The engine looks at the flag before every step, and it is never asleep while a request exists: no wake-up is needed. */
void m5_request_cancel(m5_request *r)
{
    if (r) atomic_store(&r->cancelled, true);
}

void m5_request_free(m5_request *r)
{
    if (!r) return;
    atomic_store(&r->cancelled, true);
    if (pthread_equal(pthread_self(), r->engine_thread)) { /* inside fn: `deliver` is already held by this thread */
        r->detached = true;
    } else {
        pthread_mutex_lock(&r->deliver);
        r->detached = true;
        pthread_mutex_unlock(&r->deliver);
    }
    m5_request_unref(r);
}

void m5_request_unref(m5_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) > 1) return;
    m5_free(r->ids);
    m5_free(r->bias);
    m5_free(r->mask);
    m5_stop_free(r->stop);
    m5_decoder_free(r->decoder);
    m5_buf_free(&r->decoded);
    m5_buf_free(&r->certain);
    pthread_mutex_destroy(&r->deliver);
    m5_free(r);
}
