/* SPDX-License-Identifier: Apache-2.0 */
/* `debug ...`: the stages of the engine one by one, for comparing with other implementations. Their options and output are a stable contract:
 * tests and tools parse them. Each loads only what it needs: text commands touch no weights, number commands no tokenizer. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "engine/vocab.h"
#include "model/model.h"
#include "text/chat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int no_arguments(const m5_cli_opts *o, const char *command)
{
    return o->args.n ? m5_cli_usage("'%s' is one argument too many. See 'm5-infer debug %s --help'.", o->args.items[0], command) : CLI_OK;
}

/* ---- logits ---- */

typedef struct forward {
    m5_model *model;
    m5_seq *seq;
    m5_ids ids;
    float *logits;
    int n_vocab, chunk;
} forward;

static int open_forward(forward *f, const m5_cli_opts *o, const char *command)
{
    m5_error err = {0};
    m5_engine_options eo;
    m5_cli_load load;
    int rc = no_arguments(o, command);
    if (rc) return rc;
    if (!o->model || !o->ids) return m5_cli_usage("--model and --ids are needed: m5-infer debug %s --model PATH --ids 5,6,7", command);
    rc = m5_cli_engine_options(&eo, o, &load);
    if (!rc) rc = m5_cli_ints(&f->ids, "ids", o->ids, 0, INT32_MAX);
    if (rc) goto out;
    f->chunk = o->chunk ? o->chunk : 512;
    m5_model_options mo = {
        .cpu = {.n_threads = eo.n_threads, .cpu_mask = eo.cpu_mask ? eo.cpu_mask : 0xffffffffu, .act_f32 = eo.act_f32},
        .kv_type = (m5_kv_type)eo.kv_type,
        .max_batch_tok = f->chunk,
        .no_repack = eo.no_repack,
    };
    if (m5_model_open(&f->model, o->model, &mo, &err) || m5_cli_leave_out(f->model, &eo, &err) || m5_seq_new(&f->seq, f->model, &err)) {
        rc = m5_cli_fail(&err);
        goto out;
    }
    f->n_vocab = m5_model_config(f->model)->n_vocab;
    f->logits = m5_calloc(M5_MEM_SCRATCH, (size_t)f->n_vocab * (size_t)(o->all ? f->chunk : 1), sizeof(float));
    if (!f->logits) {
        m5_error_set(&err, M5_ERR_NOMEM, "out of memory for logits");
        rc = m5_cli_fail(&err);
    }
out:
    m5_cli_load_deinit(&load);
    return rc;
}

static void close_forward(forward *f)
{
    m5_seq_free(f->seq);
    m5_model_close(f->model);
    m5_ids_free(&f->ids);
    m5_free(f->logits);
}

/* Nine digits bring every float back exactly. */
static void print_row(const float *x, int n)
{
    putchar('[');
    for (int i = 0; i < n; i++) {
        if (i) putchar(',');
        if (isfinite(x[i]))
            printf("%.9g", (double)x[i]);
        else
            fputs("null", stdout);
    }
    putchar(']');
}

int m5_cmd_debug_logits(const m5_cli_opts *o)
{
    forward f = {0};
    m5_error err = {0};
    int rc = open_forward(&f, o, "logits");
    bool begun = false; /* nothing goes out before the first result: a failure leaves stdout empty */
    for (size_t at = 0; !rc && at < f.ids.n;) {
        int n = f.ids.n - at < (size_t)f.chunk ? (int)(f.ids.n - at) : f.chunk;
        bool last = at + (size_t)n == f.ids.n;
        m5_run run = {.seq = f.seq, .ids = f.ids.p + at, .n_tok = n, .n_out = o->all ? n : last};
        if (m5_model_forward(f.model, &run, 1, f.logits, &err)) {
            rc = m5_cli_fail(&err);
            break;
        }
        for (int i = 0; i < run.n_out; i++) {
            if (begun)
                fputs(",\n", stdout);
            else
                printf("{\"n_vocab\":%d,\"logits\":[", f.n_vocab);
            begun = true;
            print_row(f.logits + (size_t)i * (size_t)f.n_vocab, f.n_vocab);
        }
        at += (size_t)n;
    }
    if (!rc) puts("]}");
    close_forward(&f);
    return rc;
}

/* ---- tokenize, detokenize ---- */

int m5_cli_open_tokenizer(m5_tokenizer **t, const char *path)
{
    m5_error err = {0};
    return m5_vocab_open_tokenizer(t, path, &err) ? m5_cli_fail(&err) : CLI_OK;
}

static int open_tokenizer(m5_tokenizer **t, const m5_cli_opts *o, const char *command)
{
    const char *path = o->tokenizer ? o->tokenizer : o->model;
    int rc = no_arguments(o, command);
    if (rc) return rc;
    if (!path || (o->tokenizer && o->model)) return m5_cli_usage("one of --model and --tokenizer is needed. See 'm5-infer debug %s --help'.", command);
    return m5_cli_open_tokenizer(t, path);
}

/* Appends one output line for the text. */
static int tokenize_line(m5_buf *out, const m5_tokenizer *t, const m5_cli_opts *o, m5_slice text, m5_error *err)
{
    m5_ids ids = {0};
    int rc = m5_tokenize(t, &ids, text.p ? text.p : "", text.n, o->user_text ? M5_SPECIAL_NONE : M5_SPECIAL_PARSE, o->special, err);
    m5_buf_puts(out, "{\"ids\":[");
    for (size_t i = 0; i < ids.n; i++) m5_buf_printf(out, "%s%d", i ? "," : "", (int)ids.p[i]);
    m5_buf_puts(out, "]}\n");
    m5_ids_free(&ids);
    return rc;
}

static int detokenize_ids(m5_buf *out, const m5_tokenizer *t, const int32_t *ids, size_t n, m5_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m5_tokenizer_n_vocab(t))
            return m5_error_set(err, M5_ERR_ARG, "token %d is not in the vocabulary of %d", (int)ids[i], (int)m5_tokenizer_n_vocab(t));
    return m5_detokenize(t, out, ids, n, false, err);
}

static int detokenize_line(m5_buf *out, const m5_tokenizer *t, const m5_json *array, m5_error *err)
{
    m5_ids ids = {0};
    m5_buf text = {0};
    int rc = m5_json_typeof(array) == M5_JSON_ARRAY ? 0 : m5_error_set(err, M5_ERR_ARG, "not an array of ids");
    for (size_t i = 0; !rc && i < m5_json_len(array); i++) {
        int64_t id = m5_json_int(m5_json_at(array, i));
        rc = m5_ids_push(&ids, id < 0 || id > INT32_MAX ? -1 : (int32_t)id);
    }
    if (!rc) rc = detokenize_ids(&text, t, ids.p, ids.n, err);
    m5_json_write_str(out, text.p ? text.p : "", text.n);
    m5_buf_putc(out, '\n');
    m5_buf_free(&text);
    m5_ids_free(&ids);
    return rc;
}

/* Every line of `in` is one JSON value; a failing line ends the run and is named. */
static int each_line(m5_buf *out, const m5_tokenizer *t, const m5_cli_opts *o, const m5_buf *in, bool encode, m5_error *err)
{
    int line = 0, rc = 0;
    for (size_t at = 0; !rc && at < in->n; line++) {
        size_t end = m5_slice_find(m5_buf_view(in), M5_SLICE("\n"), at);
        if (end == SIZE_MAX) end = in->n;
        m5_json *v = NULL;
        rc = m5_json_parse(&v, in->p + at, end - at, &(m5_json_limits){.any_root = true}, err);
        if (!rc && encode && m5_json_typeof(v) != M5_JSON_STRING) rc = m5_error_set(err, M5_ERR_ARG, "not a JSON string");
        if (!rc) rc = encode ? tokenize_line(out, t, o, m5_json_str(v), err) : detokenize_line(out, t, v, err);
        if (rc) m5_error_prefix(err, "stdin line %d", line + 1);
        m5_json_unref(v);
        fwrite(out->p ? out->p : "", 1, rc ? 0 : out->n, stdout);
        m5_buf_clear(out);
        at = end + 1;
    }
    return rc;
}

static int text_command(const m5_cli_opts *o, bool encode)
{
    m5_tokenizer *t = NULL;
    m5_error err = {0};
    m5_buf in = {0}, out = {0};
    m5_ids ids = {0};
    const char *name = encode ? "tokenize" : "detokenize";
    if (!encode && !o->ids && !o->jsonl) return m5_cli_usage("--ids or --jsonl is needed. See 'm5-infer debug detokenize --help'.");
    int rc = open_tokenizer(&t, o, name);
    if (rc) goto out;
    if (encode || o->jsonl) rc = m5_cli_read_stdin(&in);
    else if (*o->ids) rc = m5_cli_ints(&ids, "ids", o->ids, 0, INT32_MAX);
    if (rc) goto out;
    int code = o->jsonl ? each_line(&out, t, o, &in, encode, &err)
               : encode ? tokenize_line(&out, t, o, m5_buf_view(&in), &err)
                        : detokenize_ids(&out, t, ids.p, ids.n, &err);
    if (code) {
        if (!err.code) m5_error_set(&err, code, "%s failed", name);
        rc = m5_cli_fail(&err);
    } else {
        fwrite(out.p ? out.p : "", 1, out.n, stdout);
    }
out:
    m5_tokenizer_free(t);
    m5_ids_free(&ids);
    m5_buf_free(&in);
    m5_buf_free(&out);
    return rc;
}

int m5_cmd_debug_tokenize(const m5_cli_opts *o) { return text_command(o, true); }
int m5_cmd_debug_detokenize(const m5_cli_opts *o) { return text_command(o, false); }

/* ---- render ---- */

/* ISO 8601 date or date and time. Without a zone it is local time, which is also how templates show it. */
static int parse_time(const char *text, int64_t *unix_s)
{
    struct tm tm = {.tm_isdst = -1};
    int n = 0, zone = 0;
    if (sscanf(text, "%4d-%2d-%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &n) != 3) return CLI_USAGE;
    const char *p = text + n;
    if (*p == 'T' || *p == ' ') {
        n = 0;
        if (sscanf(p + 1, "%2d:%2d%n", &tm.tm_hour, &tm.tm_min, &n) != 2) return CLI_USAGE;
        p += 1 + n;
        n = 0;
        if (*p == ':' && sscanf(p + 1, "%2d%n", &tm.tm_sec, &n) == 1) p += 1 + n;
        if (*p == '.') p += 1 + strspn(p + 1, "0123456789");
    }
    bool has_zone = *p == 'Z' || *p == '+' || *p == '-';
    if (*p == 'Z') {
        p++;
    } else if (has_zone) {
        int h = 0, m = 0, sign = *p == '-' ? -1 : 1;
        n = 0;
        if (sscanf(p + 1, "%2d:%2d%n", &h, &m, &n) != 2) return CLI_USAGE;
        zone = sign * (h * 3600 + m * 60);
        p += 1 + n;
    }
    if (*p || tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31) return CLI_USAGE;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    if (!has_zone) {
        *unix_s = (int64_t)mktime(&tm);
        return CLI_OK;
    }
    /* Days since 1970 in the Gregorian calendar with years that begin in March, so that the leap day is a year's last. */
    int64_t y = (int64_t)tm.tm_year + 1900 - (tm.tm_mon < 2), m = (tm.tm_mon + 10) % 12;
    int64_t days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + tm.tm_mday - 1 - 719468;
    *unix_s = days * 86400 + tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec - zone;
    return CLI_OK;
}

int m5_cmd_debug_render(const m5_cli_opts *o)
{
    m5_error err = {0};
    char *template_text = NULL, *input = NULL;
    size_t n_template, n_input;
    m5_json *vars = NULL;
    m5_chat *chat = NULL;
    m5_buf text = {0};
    int64_t now = -1;
    int rc = no_arguments(o, "render");
    if (rc) return rc;
    if (!o->template_file || !o->input) return m5_cli_usage("--template and --input are needed. See 'm5-infer debug render --help'.");
    if (o->now && parse_time(o->now, &now)) return m5_cli_usage("--now needs a time like 2026-07-26T12:00:00, not '%s'", o->now);
    int code = m5_file_read(&template_text, &n_template, o->template_file, (size_t)64 << 20, &err);
    if (!code) code = m5_file_read(&input, &n_input, o->input, (size_t)256 << 20, &err);
    if (!code && (code = m5_json_parse(&vars, input, n_input, NULL, &err))) m5_error_prefix(&err, "%s", o->input);
    bool read = !code; /* whatever fails from here on is the template's fault, its limits included */
    if (!code) code = m5_chat_new(&chat, template_text, NULL, o->bos, o->eos, &err);
    if (!code) code = m5_chat_render(chat, vars, now, &text, NULL, NULL, &err);
    if (code) rc = m5_cli_fail(&err);
    if (code && read) rc = CLI_TEMPLATE;
    if (!code) fwrite(text.p ? text.p : "", 1, text.n, stdout);
    m5_chat_free(chat);
    m5_json_unref(vars);
    m5_buf_free(&text);
    m5_free(template_text);
    m5_free(input);
    return rc;
}
