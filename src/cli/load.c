/* SPDX-License-Identifier: Apache-2.0 */
/* Options -> engine: opening a model with a progress bar, sampling, small helpers of several commands. */
#include "cli/cli.h"

#include "base/mem.h"
#include "base/task.h"
#include "backend/cpu.h"
#include "engine/calib.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- progress ---- */

/* One bar on stderr, redrawn when its percentage changes, wiped when it is full. */
static void progress(void *ctx, double fraction, const char *what)
{
    enum { WIDTH = 30 };
    m5_cli_load *load = ctx;
    int percent = (int)(fraction < 0 ? 0 : fraction > 1 ? 100 : fraction * 100);
    if (percent == load->percent) return;
    load->percent = percent;
    if (percent == 100) {
        m5_cli_clear_line();
        return;
    }
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < percent * WIDTH / 100 ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r[%s] %3d %%  %-24.24s", bar, percent, what ? what : "");
    fflush(stderr);
}

void m5_cli_clear_line(void)
{
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}

void m5_cli_load_deinit(m5_cli_load *load)
{
    m5_free(load->template_text);
    m5_ids_free(&load->skip_layers);
    m5_free(load->calibration_dir);
}

const char *m5_cli_bytes(char buf[32], uint64_t bytes)
{
    if (bytes >= (uint64_t)10 << 30)
        snprintf(buf, 32, "%.1f GiB", (double)bytes / (1 << 30));
    else if (bytes >= (uint64_t)1 << 30)
        snprintf(buf, 32, "%.2f GiB", (double)bytes / (1 << 30));
    else if (bytes >= (uint64_t)1 << 20)
        snprintf(buf, 32, "%.0f MiB", (double)bytes / (1 << 20));
    else
        snprintf(buf, 32, "%.0f KiB", (double)bytes / (1 << 10));
    return buf;
}

/* ---- options ---- */

static int isa_mask(const char *name, uint32_t *mask)
{
    static const struct {
        const char *name;
        uint32_t mask;
    } table[] = {{"auto", 0},
                 {"ref", 1u << 31},
                 {"avx2", M5_ISA_AVX2},
                 {"avx512", M5_ISA_AVX2 | M5_ISA_AVX512},
                 {"amx", M5_ISA_AVX2 | M5_ISA_AVX512 | M5_ISA_AMX},
                 {"neon", M5_ISA_NEON},
                 {"i8mm", M5_ISA_NEON | M5_ISA_I8MM}};
    *mask = 0;
    if (!name) return CLI_OK;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(name, table[i].name) == 0) {
            *mask = table[i].mask;
            return CLI_OK;
        }
    return m5_cli_usage("--isa %s is not known; auto, ref, avx2, avx512, amx, neon and i8mm are", name);
}

static int kv_type(const char *name, bool f32, int *type)
{
    static const struct {
        const char *name;
        m5_kv_type type;
    } table[] = {{"i16", M5_KV_I16}, {"f16", M5_KV_F16}, {"bf16", M5_KV_BF16}, {"f32", M5_KV_F32}, {"q8_0", M5_KV_Q8_0}};
    *type = f32 ? M5_KV_F32 : M5_KV_I16;
    if (!name) return CLI_OK;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(name, table[i].name) == 0) {
            *type = (int)table[i].type;
            return CLI_OK;
        }
    return m5_cli_usage("--kv %s is not known; i16, f16, bf16, f32 and q8_0 are", name);
}

static int one_thread_count(const char *text, int *n)
{
    *n = 0;
    if (!text) return CLI_OK;
    m5_ids ids = {0};
    int rc = m5_cli_ints(&ids, "threads", text, 1, 1024);
    if (!rc && ids.n != 1) rc = m5_cli_usage("--threads needs one number here, not '%s'", text);
    if (!rc) *n = ids.p[0];
    m5_ids_free(&ids);
    return rc;
}

int m5_cli_engine_options(m5_engine_options *out, const m5_cli_opts *o, m5_cli_load *load)
{
    *load = (m5_cli_load){.percent = -1};
    *out = (m5_engine_options){
        .model_path = o->model,
        .n_ctx = o->ctx,
        .n_parallel = o->parallel,
        .n_queue = o->queue,
        .prefill_chunk = o->chunk,
        .memory_bytes = (uint64_t)o->memory_mib << 20,
        .cache_ram_bytes = o->cache_ram_mib > 0 ? (uint64_t)o->cache_ram_mib << 20 : 0,
        .no_cache = o->cache_ram_mib == 0,
        .checkpoint_every = o->checkpoint_every,
        .cache_dir = o->cache_dir && *o->cache_dir ? o->cache_dir : NULL,
        .cache_disk_bytes = (uint64_t)o->cache_disk_mib << 20,
        .act_f32 = o->f32,
        .no_repack = o->no_repack,
        .progress = !o->quiet && isatty(STDERR_FILENO) ? progress : NULL,
        .progress_ctx = load,
    };
    int rc = isa_mask(o->isa, &out->cpu_mask);
    m5_error bad = {0};
    out->spec.k = o->spec_k;
    out->draft_model_path = o->draft_model;
    out->exit_layer = o->exit_layer;
    out->draft_confidence = o->draft_confidence;
    if (!rc && o->skip_layers) rc = m5_cli_ints(&load->skip_layers, "skip-layers", o->skip_layers, 0, 511);
    out->skip_layers = load->skip_layers.p;
    out->n_skip_layers = (int)load->skip_layers.n;
    if (!rc && o->spec && m5_spec_parse(o->spec, &out->spec.sources, &bad)) rc = m5_cli_usage("--spec %s: %s", o->spec, bad.text);
    if (!rc) rc = kv_type(o->kv, o->f32, &out->kv_type);
    if (!rc) rc = one_thread_count(o->threads, &out->n_threads);
    if (!o->calibration) {
        m5_buf dir = {0};
        if (out->cache_dir)
            m5_buf_puts(&dir, out->cache_dir);
        else
            m5_cli_cache_dir(&dir);
        load->calibration_dir = dir.n ? m5_buf_take(&dir) : NULL;
        m5_buf_free(&dir);
    }
    out->lossy_layer_skip = o->lossy_layer_skip;
    out->calibration_dir = load->calibration_dir;
    out->calibration_path = o->calibration && *o->calibration ? o->calibration : NULL;
    if (rc || !o->chat_template) return rc;
    m5_error err = {0};
    size_t n;
    if (m5_file_read(&load->template_text, &n, o->chat_template, (size_t)16 << 20, &err)) return m5_cli_fail(&err);
    out->chat_template = load->template_text;
    return CLI_OK;
}

int m5_cli_open_engine(m5_engine **out, const m5_cli_opts *o)
{
    m5_engine_options eo;
    m5_error err = {0};
    m5_cli_load load;
    *out = NULL;
    if (!o->model) return m5_cli_usage("no model given: --model PATH");
    int rc = m5_cli_engine_options(&eo, o, &load);
    if (!eo.n_parallel) eo.n_parallel = 1; /* one conversation: all memory is for its context */
    if (!rc && m5_engine_open(out, &eo, &err)) rc = m5_cli_fail(&err);
    m5_cli_load_deinit(&load);
    return rc;
}

int m5_cli_leave_out(m5_model *m, const m5_engine_options *eo, m5_error *err)
{
    m5_calib *c = NULL;
    const m5_calib_cut *cut;
    if (!(eo->lossy_layer_skip > 0)) return 0;
    int rc = m5_calib_open(&c, eo->calibration_path, eo->calibration_dir, m, err);
    if (!rc) rc = m5_calib_leave_out(c, m, eo->lossy_layer_skip, &cut, err);
    if (!rc && cut)
        m5_log(M5_LOG_WARN, "lossy layer skip: %d of %d layers are left out, mean KL %.4f", cut->n_out, c->n_layer, cut->kl_mean);
    else if (!rc)
        m5_log(M5_LOG_WARN, "lossy layer skip: the calibration has nothing with a mean KL of %g or less, so no layer is left out", eo->lossy_layer_skip);
    m5_free(c);
    return rc;
}

void m5_cli_sampling(m5_sampling *s, const m5_cli_opts *o)
{
    m5_sampling_default(s);
    s->temperature = (float)o->temperature;
    s->top_k = o->top_k;
    s->top_p = (float)o->top_p;
    s->min_p = (float)o->min_p;
    s->typical_p = (float)o->typical_p;
    s->repetition_penalty = (float)o->repetition_penalty;
    s->penalty_last_n = o->penalty_last_n;
    s->presence_penalty = (float)o->presence_penalty;
    s->frequency_penalty = (float)o->frequency_penalty;
    s->seed = o->seed;
    if (!o->seed_given) m5_random_bytes(&s->seed, sizeof(s->seed));
}

int m5_cli_read_stdin(m5_buf *out)
{
    char part[65536];
    for (;;) {
        ssize_t n = read(STDIN_FILENO, part, sizeof(part));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            fprintf(stderr, "m5-infer: stdin: %s\n", strerror(errno));
            return CLI_FAILED;
        }
        if (n == 0) break;
        m5_buf_append(out, part, (size_t)n);
    }
    if (!out->failed) return CLI_OK;
    fputs("m5-infer: out of memory for the text on stdin\n", stderr);
    return CLI_FAILED;
}

void m5_cli_cache_dir(m5_buf *out)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache) m5_buf_printf(out, "%s/m5-infer/state", cache);
    else if (home && *home) m5_buf_printf(out, "%s/.cache/m5-infer/state", home);
}
