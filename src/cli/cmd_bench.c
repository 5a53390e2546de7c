/* SPDX-License-Identifier: Apache-2.0 */
/* `bench`: prompt and answer speed of the model layer alone, without sampling and text. Each row is one measurement repeated; the state is built anew
 * for every repetition, outside the measured time. A warm-up that is not counted touches what the first repetition needs: a whole prompt. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "backend/ceilings.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct bench {
    const m5_cli_opts *o;
    m5_model *model;
    m5_seq **seqs; /* [n_seq] */
    m5_run *runs;  /* [n_seq] */
    int32_t *ids;  /* [n_ids] tokens to feed */
    float *logits; /* [n_seq * n_rows, n_vocab] */
    int n_seq, n_rows, n_threads, chunk;
    m5_ceiling_probe *probe; /* --ceilings: runs by turns with the model; else NULL */
    m5_json *rows;           /* for --json */
    bool titled;
} bench;

/* Any tokens do, as speed does not depend on them, except that experts should vary: a fixed sequence spread over the vocabulary. */
static void fill_ids(int32_t *ids, int n, int n_vocab)
{
    uint32_t x = 12345;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % (uint32_t)n_vocab);
    }
}

/* Appends n tokens to one sequence. */
static int feed(bench *b, int seq, int n, bool want_logits, m5_error *err)
{
    for (int at = 0; at < n;) {
        int k = n - at < b->chunk ? n - at : b->chunk;
        m5_run run = {.seq = b->seqs[seq], .ids = b->ids + at, .n_tok = k, .n_out = want_logits && at + k == n};
        int rc = m5_model_forward(b->model, &run, 1, b->logits, err);
        if (rc) return rc;
        at += k;
    }
    return 0;
}

static int decode(bench *b, int n, uint64_t *us, m5_error *err)
{
    const int rows = b->n_rows;
    for (int i = 0; i < n; i++) {
        const uint64_t t0 = m5_time_us();
        for (int s = 0; s < b->n_seq; s++)
            b->runs[s] = (m5_run){.seq = b->seqs[s], .ids = b->ids + (i + s) % 512, .n_tok = rows, .n_out = rows, .hold = rows > 1};
        int rc = m5_model_forward(b->model, b->runs, b->n_seq, b->logits, err);
        if (rc) return rc;
        for (int s = 0; s < b->n_seq && rows > 1; s++) m5_seq_commit(b->seqs[s], rows);
        const uint64_t t = m5_time_us() - t0;
        *us += t;
        if (b->probe) m5_ceiling_probe_read(b->probe, t);
    }
    return 0;
}

static int prompt(bench *b, int n, uint64_t *us, m5_error *err)
{
    const uint64_t t0 = m5_time_us();
    const int rc = feed(b, 0, n, true, err);
    *us = m5_time_us() - t0;
    if (b->probe && !rc) m5_ceiling_probe_multiply(b->probe, *us);
    return rc;
}

/* Tokens per second of one repetition. */
static int measure(bench *b, int n_prompt, int n_gen, int depth, double *speed, m5_error *err)
{
    int n_used = n_gen ? b->n_seq : 1, rc;
    for (int s = 0; s < b->n_seq; s++) m5_seq_reset(b->seqs[s]);
    for (int s = 0; s < n_used; s++)
        if ((rc = feed(b, s, depth, false, err))) return rc;
    uint64_t us = 0;
    rc = n_gen ? decode(b, n_gen, &us, err) : prompt(b, n_prompt, &us, err);
    *speed = (double)(n_gen ? n_gen * b->n_seq * b->n_rows : n_prompt) * 1e6 / (double)(us ? us : 1);
    return rc;
}

static void report(bench *b, const char *name, int n, int depth, const double *speed)
{
    const m5_weights *w = m5_model_weights(b->model);
    double mean = 0, var = 0, best = 0;
    int reps = b->o->reps;
    for (int i = 0; i < reps; i++) {
        mean += speed[i] / reps;
        if (speed[i] > best) best = speed[i];
    }
    for (int i = 0; i < reps; i++) var += (speed[i] - mean) * (speed[i] - mean) / (reps > 1 ? reps - 1 : 1);
    const char *isa = m5_cpu_isa_name(m5_model_cpu(b->model));
    const m5_ceiling top = b->probe ? m5_ceiling_probe_take(b->probe) : (m5_ceiling){0};
    if (b->rows) {
        m5_json *r = m5_json_new_object();
        m5_json_set_str(r, "test", name);
        m5_json_set_int(r, "n_tokens", n);
        m5_json_set_int(r, "depth", depth);
        m5_json_set_int(r, "threads", b->n_threads);
        m5_json_set_int(r, "parallel", b->n_seq);
        m5_json_set_int(r, "rows", b->n_rows);
        m5_json_set_int(r, "chunk", b->chunk);
        m5_json_set_real(r, "tokens_per_s", mean);
        m5_json_set_real(r, "stddev", sqrt(var));
        m5_json_set_real(r, "best", best);
        if (top.read_bytes_s > 0) m5_json_set_real(r, "read_bytes_s", top.read_bytes_s);
        if (top.int_ops_s > 0) m5_json_set_real(r, "int_ops_s", top.int_ops_s);
        m5_json_push_take(b->rows, r);
    } else if (b->o->csv) {
        if (!b->titled)
            puts("model,family,weight_bytes,isa,threads,parallel,rows,chunk,test,n_tokens,depth,tokens_per_s,stddev,best,read_bytes_s,int_ops_s");
        printf("\"%s\",%s,%llu,%s,%d,%d,%d,%d,%s,%d,%d,%.2f,%.2f,%.2f,%.0f,%.0f\n", w->config.name, w->config.family,
               (unsigned long long)w->file_bytes, isa, b->n_threads, b->n_seq, b->n_rows, b->chunk, name, n, depth, mean, sqrt(var), best,
               top.read_bytes_s, top.int_ops_s);
    } else {
        char label[64], bytes[32];
        snprintf(label, sizeof(label), depth ? "%s%d @%d" : "%s%d", name, n, depth);
        if (!b->titled)
            printf("%s (%s, %s, %s), %s\n\n%-16s %8s %8s %14s %10s %10s%s\n", w->config.name, w->config.family, w->format,
                   m5_cli_bytes(bytes, w->file_bytes), isa, "test", "threads", "parallel", "tokens/s", "+-", "best",
                   b->probe ? "   the machine beside it" : "");
        printf("%-16s %8d %8d %14.2f %10.2f %10.2f", label, b->n_threads, b->n_seq, mean, sqrt(var), best);
        if (top.read_bytes_s > 0) printf("   reads %.2f GB/s", top.read_bytes_s / 1e9);
        if (top.int_ops_s > 0) printf("   multiplies %.1f Gop/s", top.int_ops_s / 1e9);
        putchar('\n');
    }
    b->titled = true;
    fflush(stdout);
}

static int run_one(bench *b, int n_prompt, int n_gen, int depth, m5_error *err)
{
    enum { MAX_REPS = 1000 };
    double speed[MAX_REPS], warm;
    int rc = measure(b, n_prompt < b->chunk ? n_prompt : b->chunk, n_gen < 2 ? n_gen : 2, 0, &warm, err);
    if (b->probe) (void)m5_ceiling_probe_take(b->probe); /* the warm-up's */
    for (int i = 0; !rc && i < b->o->reps; i++) rc = measure(b, n_prompt, n_gen, depth, &speed[i], err);
    if (!rc) report(b, n_gen ? "tg" : "pp", n_gen ? n_gen : n_prompt, depth, speed);
    return rc;
}

static void close_bench(bench *b)
{
    for (int i = 0; b->seqs && i < b->n_seq; i++) m5_seq_free(b->seqs[i]);
    m5_free(b->seqs);
    m5_free(b->runs);
    m5_free(b->logits);
    m5_ceiling_probe_free(b->probe); /* uses the model's threads */
    m5_model_close(b->model);
    b->seqs = NULL;
    b->runs = NULL;
    b->logits = NULL;
    b->probe = NULL;
    b->model = NULL;
}

static int open_bench(bench *b, const m5_engine_options *eo, int n_threads, int n_ids, m5_error *err)
{
    m5_model_options mo = {
        .cpu = {.n_threads = n_threads, .cpu_mask = eo->cpu_mask ? eo->cpu_mask : 0xffffffffu, .act_f32 = eo->act_f32},
        .kv_type = (m5_kv_type)eo->kv_type,
        .max_batch_tok = b->chunk + b->n_seq * b->n_rows,
        .max_draft = b->n_rows,
        .no_repack = eo->no_repack,
        .progress = eo->progress,
        .progress_ctx = eo->progress_ctx,
    };
    int rc = m5_model_open(&b->model, b->o->model, &mo, err);
    m5_cli_clear_line();
    if (rc || (rc = m5_cli_leave_out(b->model, eo, err))) return rc;
    m5_cpu_settle_wait(m5_model_cpu(b->model)); /* measure what a running server has, not its first seconds */
    int n_vocab = m5_model_config(b->model)->n_vocab;
    b->n_threads = m5_pool_size(m5_cpu_pool(m5_model_cpu(b->model)));
    b->seqs = m5_calloc(M5_MEM_MISC, (size_t)b->n_seq, sizeof(*b->seqs));
    b->runs = m5_calloc(M5_MEM_MISC, (size_t)b->n_seq, sizeof(*b->runs));
    b->logits = m5_calloc(M5_MEM_SCRATCH, (size_t)(b->n_seq * b->n_rows) * (size_t)n_vocab, sizeof(float));
    if (!b->seqs || !b->runs || !b->logits) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %d sequences", b->n_seq);
    fill_ids(b->ids, n_ids, n_vocab);
    for (int i = 0; i < b->n_seq; i++)
        if ((rc = m5_seq_new(&b->seqs[i], b->model, err))) return rc;
    return b->o->ceilings ? m5_ceiling_probe_new(&b->probe, m5_model_cpu(b->model), 0, err) : 0;
}

static void print_json(bench *b, const m5_weights *w, const char *isa)
{
    m5_json *j = m5_json_new_object();
    m5_buf out = {0};
    m5_json_set_str(j, "model", w->config.name);
    m5_json_set_str(j, "family", w->config.family);
    m5_json_set_str(j, "format", w->format);
    m5_json_set_int(j, "weight_bytes", (int64_t)w->file_bytes);
    m5_json_set_str(j, "isa", isa);
    m5_json_set_str(j, "version", M5_VERSION);
    /* --lossy-layer-skip made another, faster model of it: figures must say so. */
    m5_json *left_out = m5_json_new_array();
    for (int l = 0; l < w->config.n_layer; l++)
        if (!m5_layer_in(m5_model_layers(b->model), l)) m5_json_push_take(left_out, m5_json_new_int(l));
    if (m5_json_len(left_out))
        m5_json_set_take(j, "layers_left_out", left_out);
    else
        m5_json_unref(left_out);
    m5_json_set_take(j, "results", b->rows);
    b->rows = NULL;
    m5_json_write(&out, j, 2);
    puts(out.p ? out.p : "{}");
    m5_buf_free(&out);
    m5_json_unref(j);
}

/* All measurements for one number of threads. */
static int run_all(bench *b, const m5_engine_options *eo, int n_threads, const m5_ids *pp, const m5_ids *tg, const m5_ids *depths, int n_ids,
                   bool last, m5_error *err)
{
    int rc = open_bench(b, eo, n_threads, n_ids, err);
    for (size_t d = 0; !rc && d < depths->n; d++) {
        for (size_t i = 0; !rc && i < pp->n; i++)
            if (pp->p[i] > 0) rc = run_one(b, pp->p[i], 0, depths->p[d], err);
        for (size_t i = 0; !rc && i < tg->n; i++)
            if (tg->p[i] > 0) rc = run_one(b, 0, tg->p[i], depths->p[d], err);
    }
    if (!rc && last && b->rows) print_json(b, m5_model_weights(b->model), m5_cpu_isa_name(m5_model_cpu(b->model)));
    close_bench(b);
    return rc;
}

static void print_ceilings(const m5_cli_opts *o, const m5_ceiling *c, const char *isa)
{
    m5_buf out = {0};
    if (o->json) {
        m5_json *j = m5_json_new_object(), *rows = m5_json_new_array();
        for (int i = 0; i < 2; i++) {
            m5_json *r = m5_json_new_object();
            m5_json_set_int(r, "threads", c[i].n_threads);
            m5_json_set_real(r, "read_bytes_s", c[i].read_bytes_s);
            m5_json_set_real(r, "int_ops_s", c[i].int_ops_s);
            m5_json_set_real(r, "fma_flops_s", c[i].fma_flops_s);
            m5_json_push_take(rows, r);
        }
        m5_json_set_str(j, "isa", isa);
        m5_json_set_take(j, "ceilings", rows);
        m5_json_write(&out, j, 2);
        puts(out.p ? out.p : "{}");
        m5_json_unref(j);
        m5_buf_free(&out);
        return;
    }
    if (o->csv)
        puts("isa,threads,read_bytes_s,int_ops_s,fma_flops_s");
    else
        printf("what this machine can do at best, with %s\n\n%8s %18s %22s %20s\n", isa, "threads", "memory read GB/s", "8-bit multiply-add Gop/s",
               "f32 fma Gflop/s");
    for (int i = 0; i < 2; i++)
        if (o->csv)
            printf("%s,%d,%.0f,%.0f,%.0f\n", isa, c[i].n_threads, c[i].read_bytes_s, c[i].int_ops_s, c[i].fma_flops_s);
        else
            printf("%8d %18.2f %24.1f %20.1f\n", c[i].n_threads, c[i].read_bytes_s / 1e9, c[i].int_ops_s / 1e9, c[i].fma_flops_s / 1e9);
}

static int run_ceilings(const m5_cli_opts *o, const m5_engine_options *eo, int n_threads)
{
    m5_error err = {0};
    m5_cpu *cpu = NULL;
    m5_ceiling c[2];
    m5_cpu_options co = {.n_threads = n_threads, .cpu_mask = eo->cpu_mask ? eo->cpu_mask : 0xffffffffu};
    int code = m5_cpu_open(&cpu, &co, &err);
    if (!code) code = m5_ceilings_measure(cpu, c, 0, &err);
    if (!code) print_ceilings(o, c, m5_cpu_isa_name(cpu));
    m5_cpu_close(cpu);
    return code ? m5_cli_fail(&err) : CLI_OK;
}

int m5_cmd_bench(const m5_cli_opts *o)
{
    m5_error err = {0};
    m5_engine_options eo;
    m5_cli_load load;
    m5_ids pp = {0}, tg = {0}, depths = {0}, threads = {0};
    bench b = {.o = o, .n_seq = o->parallel ? o->parallel : 1, .n_rows = o->rows ? o->rows : 1, .chunk = o->chunk ? o->chunk : 512};
    if (o->args.n) return m5_cli_usage("'%s' is one argument too many. See 'm5-infer bench --help'.", o->args.items[0]);
    if (!o->model && !o->ceilings) return m5_cli_usage("no model given: m5-infer bench --model PATH");
    if (o->ceilings && o->accepts) return m5_cli_usage("--ceilings goes with --prompt and --gen, not with --accept");
    m5_cli_opts one_thread = *o; /* a list of threads is read here, not by the engine's options */
    one_thread.threads = NULL;
    int rc = m5_cli_engine_options(&eo, &one_thread, &load);
    if (!rc) rc = m5_cli_ints(&pp, "prompt", o->prompt_lengths, 0, 1 << 24);
    if (!rc) rc = m5_cli_ints(&tg, "gen", o->gen_lengths, 0, 1 << 24);
    if (!rc) rc = m5_cli_ints(&depths, "depth", o->depths, 0, 1 << 24);
    if (!rc && o->threads) rc = m5_cli_ints(&threads, "threads", o->threads, 1, 1024);
    if (!rc && o->ceilings && !o->model) rc = run_ceilings(o, &eo, threads.n ? threads.p[0] : 0);
    if (!rc && o->accepts && o->model) {
        if (threads.n) eo.n_threads = threads.p[0];
        rc = m5_cli_bench_spec(o, &eo);
        goto out;
    }
    if (rc || !o->model) goto out;
    int n_ids = 1024, n_threads = threads.n ? (int)threads.n : 1;
    for (size_t i = 0; i < pp.n; i++) n_ids = pp.p[i] > n_ids ? pp.p[i] : n_ids;
    for (size_t i = 0; i < depths.n; i++) n_ids = depths.p[i] > n_ids ? depths.p[i] : n_ids;
    b.ids = m5_calloc(M5_MEM_MISC, (size_t)n_ids, sizeof(*b.ids));
    b.rows = o->json ? m5_json_new_array() : NULL;
    int code = b.ids && (b.rows || !o->json) ? 0 : m5_error_set(&err, M5_ERR_NOMEM, "out of memory for %d tokens", n_ids);
    for (int i = 0; !code && i < n_threads; i++)
        code = run_all(&b, &eo, threads.n ? threads.p[i] : 0, &pp, &tg, &depths, n_ids, i == n_threads - 1, &err);
    if (code) rc = m5_cli_fail(&err);
out:
    m5_cli_load_deinit(&load);
    m5_json_unref(b.rows);
    m5_free(b.ids);
    m5_ids_free(&pp);
    m5_ids_free(&tg);
    m5_ids_free(&depths);
    m5_ids_free(&threads);
    return rc;
}
