/* SPDX-License-Identifier: Apache-2.0 */
/* `debug generate`: token ids in, the continuation out, through the whole engine: scheduler, batch, kept state. */
#include "cli/cli.h"

#include "base/mem.h"
#include "base/task.h"
#include "server/metrics.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MAX_COMPANIONS = 63 };

/* One of the sequences that run together; the first is the one that is printed. */
typedef struct member {
    struct batch *batch;
    m5_ids prompt, out;
    m5_request *req;
    m5_usage usage;
    m5_error err;
} member;

typedef struct batch {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int n_left;
    int n;
    member members[1 + MAX_COMPANIONS];
} batch;

static void on_event(void *ctx, const m5_event *ev)
{
    member *m = ctx;
    if (ev->kind == M5_EVENT_TOKEN && m5_ids_push(&m->out, ev->id) && !m->err.code) m5_error_set(&m->err, M5_ERR_NOMEM, "out of memory for ids");
    if (ev->kind != M5_EVENT_DONE) return;
    pthread_mutex_lock(&m->batch->mu);
    m->usage = ev->usage;
    if (ev->finish == M5_FINISH_ERROR) m->err = ev->error;
    m->batch->n_left--;
    pthread_cond_signal(&m->batch->cv);
    pthread_mutex_unlock(&m->batch->mu);
}

/* One list of ids a line, "5,6,7" or "[5,6,7]"; empty lines are skipped. */
static int read_companions(batch *b, const char *path)
{
    char *text = NULL;
    size_t n;
    m5_error err = {0};
    if (m5_file_read(&text, &n, path, (size_t)64 << 20, &err)) return m5_cli_fail(&err);
    int rc = CLI_OK;
    for (char *line = text, *end; !rc && *line; line = end) {
        size_t len = strcspn(line, "\r\n");
        end = line + len + (line[len] != '\0');
        line[len] = '\0';
        if (*line == '[') line++;
        line[strcspn(line, "]")] = '\0';
        if (!line[strspn(line, " \t")]) continue;
        if (b->n > MAX_COMPANIONS) {
            rc = m5_cli_usage("%s holds more than %d lists", path, MAX_COMPANIONS);
            break;
        }
        rc = m5_cli_ints(&b->members[b->n++].prompt, "batch-with", line, 0, INT32_MAX);
    }
    m5_free(text);
    return rc;
}

static int run_batch(m5_engine *e, batch *b, const m5_cli_opts *o)
{
    m5_error err = {0};
    int rc = CLI_OK;
    for (int i = 0; i < b->n && !rc; i++) {
        member *m = &b->members[i];
        m5_gen_params p = {.ids = m->prompt.p, .n_ids = m->prompt.n, .max_tokens = o->max_tokens, .ignore_eos = true};
        m5_sampling_default(&p.sampling);
        p.sampling.temperature = o->temperature > 0 ? (float)o->temperature : 0;
        p.sampling.seed = o->seed;
        p.spec.fixed = o->spec && strcmp(o->spec, "auto") != 0; /* what is compared here should be drafted */
        pthread_mutex_lock(&b->mu);
        b->n_left++;
        pthread_mutex_unlock(&b->mu);
        if (m5_engine_submit(e, &p, on_event, m, &m->req, &err)) {
            rc = m5_cli_fail(&err);
            pthread_mutex_lock(&b->mu);
            b->n_left--;
            pthread_mutex_unlock(&b->mu);
        }
    }
    pthread_mutex_lock(&b->mu);
    while (b->n_left > 0) pthread_cond_wait(&b->cv, &b->mu);
    pthread_mutex_unlock(&b->mu);
    for (int i = 0; i < b->n && !rc; i++)
        if (b->members[i].err.code) rc = m5_cli_fail(&b->members[i].err);
    return rc;
}

int m5_cmd_debug_generate(const m5_cli_opts *o)
{
    static batch b; /* too large for the stack; the command runs once */
    m5_engine *e = NULL;
    m5_buf out = {0};
    pthread_mutex_init(&b.mu, NULL);
    pthread_cond_init(&b.cv, NULL);
    for (int i = 0; i <= MAX_COMPANIONS; i++) b.members[i].batch = &b;
    if (o->args.n) return m5_cli_usage("'%s' is one argument too many. See 'm5-infer debug generate --help'.", o->args.items[0]);
    if (!o->model || !o->ids) return m5_cli_usage("--model and --ids are needed: m5-infer debug generate --model PATH --ids 5,6,7");
    if (o->guesses) return m5_cli_guesses(o);
    b.n = 1;
    int rc = m5_cli_ints(&b.members[0].prompt, "ids", o->ids, 0, INT32_MAX);
    if (!rc && o->batch_with) rc = read_companions(&b, o->batch_with);
    m5_cli_opts mine = *o;
    mine.parallel = b.n;
    mine.queue = b.n;
    if (!o->spec) mine.spec = "off";
    /* Kept state serves later runs, through files; within one run it would only let companions see each other. */
    if (!o->cache_dir) mine.cache_ram_mib = 0;
    if (!rc) rc = m5_cli_open_engine(&e, &mine);
    if (!rc) rc = run_batch(e, &b, o);
    if (!rc) {
        const member *m = &b.members[0];
        for (size_t i = 0; i < m->out.n; i++) m5_buf_printf(&out, "%s%d", i ? "," : "", (int)m->out.p[i]);
        m5_buf_printf(&out, "]");
        if (o->cache_dir) m5_buf_printf(&out, ",\"cached\":%d", m->usage.n_cached);
        if (o->spec) m5_buf_printf(&out, ",\"draft_n\":%d,\"draft_n_accepted\":%d", m->usage.n_draft, m->usage.n_draft_accepted);
        m5_engine_info info;
        m5_engine_get_info(e, &info);
        if (info.lossy) {
            m5_buf_puts(&out, ",\"lossy_layer_skip\":");
            m5_lossy_write(&out, info.lossy);
        }
        printf("{\"ids\":[%s}\n", out.p ? out.p : "]");
    }
    for (int i = 0; i < b.n; i++) {
        m5_request_free(b.members[i].req);
        m5_ids_free(&b.members[i].prompt);
        m5_ids_free(&b.members[i].out);
    }
    m5_engine_close(e);
    m5_buf_free(&out);
    pthread_mutex_destroy(&b.mu);
    pthread_cond_destroy(&b.cv);
    return rc;
}
