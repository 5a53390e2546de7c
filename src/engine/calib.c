/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a calibration and its file; see calib.h. May touch: base, model/model.h.
 *
 *   M5CALIB <version> <fingerprint of the model> <bytes of the JSON> <XXH3-64 of all the rest, hex>\n<JSON>\n */
#include "engine/calib.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 1, MAX_BYTES = 4 << 20, NAME_HEX = 16, STALE_TMP_MS = 60000 };
#define SUFFIX ".m5calib"

const float m5_calib_thresholds[M5_CALIB_THRESHOLDS] = {0, 0.3f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 0.95f};
static const char *const variants[M5_SELF_VARIANTS] = {"exit", "skip"};

/* ---- what it says ---- */

const m5_calib_cut *m5_calib_find_cut(const m5_calib *c, double kl)
{
    const m5_calib_cut *best = NULL;
    for (int i = 0; i < c->n_cut; i++) {
        const m5_calib_cut *cut = &c->cuts[i];
        if (cut->kl_mean > kl) continue;
        if (!best || cut->n_out > best->n_out || (cut->n_out == best->n_out && cut->kl_mean < best->kl_mean)) best = cut;
    }
    return best;
}

m5_self_draft m5_calib_self_draft(const m5_calib *c, m5_self_variant v)
{
    const m5_calib_choice *o = &c->chosen[v];
    return (m5_self_draft){.layers = o->layers,
                           .confidence = (float)o->confidence,
                           .accept = o->accept,
                           .known = true,
                           .pays = o->speed > M5_CALIB_LEAST_GAIN};
}

/* ---- writing ---- */

static void write_layers(m5_buf *b, const char *key, const m5_layer_set *s, int n_layer)
{
    m5_buf_printf(b, "\"%s\":[", key);
    for (int l = 0, n = 0; l < n_layer; l++)
        if (m5_layer_in(s, l)) m5_buf_printf(b, n++ ? ",%d" : "%d", l);
    m5_buf_putc(b, ']');
}

static void write_real(m5_buf *b, const char *key, double v)
{
    m5_buf_printf(b, ",\"%s\":", key);
    m5_json_write_real(b, v);
}

static void write_reals(m5_buf *b, const char *key, const double *v, int n)
{
    m5_buf_printf(b, ",\"%s\":", key);
    for (int i = 0; i < n; i++) {
        m5_buf_putc(b, i ? ',' : '[');
        m5_json_write_real(b, v[i]);
    }
    m5_buf_putc(b, ']');
}

static void write_guesses(m5_buf *b, const char *key, const m5_calib_guess *g, int n, int n_layer)
{
    m5_buf_printf(b, ",\n\"%s\":[", key);
    for (int i = 0; i < n; i++, g++) {
        m5_buf_puts(b, i ? ",\n {" : "\n {");
        write_layers(b, "layers", &g->layers, n_layer);
        write_reals(b, "us", g->us, 2);
        write_reals(b, "share", g->share, M5_CALIB_THRESHOLDS);
        write_reals(b, "right", g->right, M5_CALIB_THRESHOLDS);
        m5_buf_putc(b, '}');
    }
    m5_buf_putc(b, ']');
}

static void write_cuts(m5_buf *b, const char *key, const m5_calib_cut *c, int n, int n_layer)
{
    m5_buf_printf(b, ",\n\"%s\":[", key);
    for (int i = 0; i < n; i++, c++) {
        m5_buf_puts(b, i ? ",\n {" : "\n {");
        write_layers(b, "out", &c->out, n_layer);
        m5_buf_printf(b, ",\"n_tok\":%d", c->n_tok);
        write_real(b, "kl_mean", c->kl_mean);
        write_real(b, "kl_p99", c->kl_p99);
        write_real(b, "top1", c->top1);
        write_real(b, "speed", c->speed);
        m5_buf_putc(b, '}');
    }
    m5_buf_putc(b, ']');
}

static void write_json(m5_buf *b, const m5_calib *c)
{
    m5_buf_puts(b, "{\"model\":");
    m5_json_write_str(b, c->model, strlen(c->model));
    m5_buf_puts(b, ",\"isa\":");
    m5_json_write_str(b, c->isa, strlen(c->isa));
    m5_buf_puts(b, ",\"text\":");
    m5_json_write_str(b, c->text, strlen(c->text));
    m5_buf_printf(b, ",\"n_layer\":%d,\"n_threads\":%d,\"n_tok\":%d,\"n_ids\":%d,\"made_unix_ms\":%lld,\n\"cost\":[", c->n_layer, c->n_threads, c->n_tok,
                  c->n_ids, (long long)c->made_unix_ms);
    for (int i = 0; i < c->n_cost; i++) {
        m5_buf_printf(b, "%s[%d,", i ? "," : "", c->cost[i].rows);
        m5_json_write_real(b, c->cost[i].us);
        m5_buf_putc(b, ']');
    }
    m5_buf_puts(b, "],\n\"thresholds\":[");
    for (int i = 0; i < M5_CALIB_THRESHOLDS; i++) m5_buf_printf(b, "%s%.2f", i ? "," : "", (double)m5_calib_thresholds[i]);
    m5_buf_putc(b, ']');
    write_guesses(b, "exits", c->exits, c->n_exit, c->n_layer);
    write_guesses(b, "skips", c->skips, c->n_skip, c->n_layer);
    write_cuts(b, "singles", c->singles, c->n_single, c->n_layer);
    write_cuts(b, "cuts", c->cuts, c->n_cut, c->n_layer);
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        const m5_calib_choice *o = &c->chosen[v];
        m5_buf_printf(b, ",\n\"%s\":{", variants[v]);
        write_layers(b, "layers", &o->layers, c->n_layer);
        write_real(b, "confidence", o->confidence);
        m5_buf_printf(b, ",\"k\":%d", o->k);
        write_real(b, "accept", o->accept);
        write_real(b, "speed", o->speed);
        m5_buf_putc(b, '}');
    }
    m5_buf_putc(b, '}');
}

static uint64_t sum_of(int version, const char *fingerprint, const char *json, size_t n)
{
    char head[128];
    snprintf(head, sizeof head, "%d %s %zu", version, fingerprint, n);
    return m5_hash64(head, strlen(head)) ^ m5_hash64(json, n);
}

void m5_calib_write(m5_buf *out, const m5_calib *c, const char *fingerprint)
{
    m5_buf json = {0};
    write_json(&json, c);
    if (json.failed)
        out->failed = true;
    else
        m5_buf_printf(out, "M5CALIB %d %s %zu %016llx\n%s\n", VERSION, fingerprint, json.n,
                      (unsigned long long)sum_of(VERSION, fingerprint, json.p, json.n), json.p);
    m5_buf_free(&json);
}

/* ---- reading ---- */

typedef struct reader {
    m5_calib *c;
    bool bad;
} reader;

static double number(reader *r, const m5_json *v, double low, double high)
{
    double x = m5_json_real(v);
    if (m5_json_is_number(v) && x >= low && x <= high) return x;
    r->bad = true;
    return low;
}

static double real(reader *r, const m5_json *o, const char *key, double low, double high)
{
    return number(r, m5_json_get(o, key), low, high);
}

static int whole(reader *r, const m5_json *o, const char *key, int low, int high)
{
    const m5_json *v = m5_json_get(o, key);
    if (m5_json_typeof(v) != M5_JSON_INT) r->bad = true;
    return (int)number(r, v, low, high);
}

static void text(reader *r, const m5_json *o, const char *key, char *out, size_t cap)
{
    m5_slice s = m5_json_str(m5_json_get(o, key));
    if (s.n >= cap || memchr(s.p ? s.p : "", 0, s.n))
        r->bad = true;
    else
        snprintf(out, cap, "%.*s", (int)s.n, s.n ? s.p : "");
}

/* A list of at most max items; 0 and bad when it is none. */
static int items(reader *r, const m5_json *list, int max)
{
    size_t n = m5_json_len(list);
    if (m5_json_typeof(list) == M5_JSON_ARRAY && n <= (size_t)max) return (int)n;
    r->bad = true;
    return 0;
}

static int layers(reader *r, const m5_json *o, const char *key, m5_layer_set *out)
{
    const m5_json *list = m5_json_get(o, key);
    int n = items(r, list, r->c->n_layer), last = -1;
    *out = (m5_layer_set){0};
    for (int i = 0; i < n && !r->bad; i++) {
        const m5_json *v = m5_json_at(list, (size_t)i);
        if (m5_json_typeof(v) != M5_JSON_INT) r->bad = true;
        last = (int)number(r, v, last + 1, r->c->n_layer - 1);
        if (!r->bad) m5_layer_put(out, last, true);
    }
    return n;
}

static void reals(reader *r, const m5_json *o, const char *key, double *out, int n, double high)
{
    const m5_json *list = m5_json_get(o, key);
    if (items(r, list, n) != n) r->bad = true;
    for (int i = 0; i < n; i++) out[i] = number(r, m5_json_at(list, (size_t)i), 0, high);
}

static int guesses(reader *r, const m5_json *o, const char *key, m5_calib_guess *g)
{
    const m5_json *list = m5_json_get(o, key);
    int n = items(r, list, M5_CALIB_MAX_SETS);
    for (int i = 0; i < n; i++, g++) {
        const m5_json *v = m5_json_at(list, (size_t)i);
        if (layers(r, v, "layers", &g->layers) == 0) r->bad = true;
        reals(r, v, "us", g->us, 2, 1e12);
        reals(r, v, "share", g->share, M5_CALIB_THRESHOLDS, 1);
        reals(r, v, "right", g->right, M5_CALIB_THRESHOLDS, 1);
    }
    return n;
}

static int cuts(reader *r, const m5_json *o, const char *key, m5_calib_cut *c, int max)
{
    const m5_json *list = m5_json_get(o, key);
    int n = items(r, list, max);
    for (int i = 0; i < n; i++, c++) {
        const m5_json *v = m5_json_at(list, (size_t)i);
        c->n_out = layers(r, v, "out", &c->out);
        if (c->n_out < 1 || c->n_out >= r->c->n_layer) r->bad = true;
        c->n_tok = whole(r, v, "n_tok", 0, 1 << 28);
        c->kl_mean = real(r, v, "kl_mean", 0, 1e6);
        c->kl_p99 = real(r, v, "kl_p99", 0, 1e6);
        c->top1 = real(r, v, "top1", 0, 1);
        c->speed = real(r, v, "speed", 0, 1e6);
    }
    return n;
}

static void fields(reader *r, const m5_json *o)
{
    m5_calib *c = r->c;
    text(r, o, "model", c->model, sizeof c->model);
    text(r, o, "isa", c->isa, sizeof c->isa);
    text(r, o, "text", c->text, sizeof c->text);
    c->n_layer = whole(r, o, "n_layer", 1, M5_MAX_LAYERS);
    c->n_threads = whole(r, o, "n_threads", 1, 1 << 16);
    c->n_tok = whole(r, o, "n_tok", 0, 1 << 28);
    if (m5_json_get(o, "n_ids")) c->n_ids = whole(r, o, "n_ids", 0, 1 << 28);
    c->made_unix_ms = m5_json_int(m5_json_get(o, "made_unix_ms"));
    const m5_json *cost = m5_json_get(o, "cost");
    c->n_cost = items(r, cost, M5_CALIB_MAX_COSTS);
    for (int i = 0; i < c->n_cost; i++) {
        const m5_json *pair = m5_json_at(cost, (size_t)i);
        c->cost[i].rows = (int)number(r, m5_json_at(pair, 0), 1, 1 << 16);
        c->cost[i].us = number(r, m5_json_at(pair, 1), 0, 1e12);
    }
    c->n_exit = guesses(r, o, "exits", c->exits);
    c->n_skip = guesses(r, o, "skips", c->skips);
    c->n_single = cuts(r, o, "singles", c->singles, M5_MAX_LAYERS);
    c->n_cut = cuts(r, o, "cuts", c->cuts, M5_CALIB_MAX_SETS);
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        const m5_json *a = m5_json_get(o, variants[v]);
        m5_calib_choice *ch = &c->chosen[v];
        layers(r, a, "layers", &ch->layers);
        ch->confidence = real(r, a, "confidence", 0, 1);
        ch->k = whole(r, a, "k", 0, 1 << 16);
        ch->accept = real(r, a, "accept", 0, 1);
        ch->speed = real(r, a, "speed", 0, 1e6);
    }
}

int m5_calib_parse(m5_calib *out, const char *json, size_t n, m5_error *err)
{
    m5_json *o = NULL;
    int rc = m5_json_parse(&o, json, n, &(m5_json_limits){.max_bytes = MAX_BYTES, .max_depth = 8}, err);
    if (rc) return rc;
    memset(out, 0, sizeof *out);
    reader r = {.c = out};
    fields(&r, o);
    m5_json_unref(o);
    return r.bad ? m5_error_set(err, M5_ERR_FORMAT, "a value is missing or out of range") : 0;
}

int m5_calib_read(m5_calib *out, const char *s, size_t n, const char *fingerprint, m5_error *err)
{
    char head[192], whose[66] = "";
    unsigned version = 0;
    unsigned long long size = 0, sum = 0;
    const char *line = n ? memchr(s, '\n', n) : NULL;
    size_t len = line ? (size_t)(line - s) : 0;
    if (len == 0 || len >= sizeof head) return m5_error_set(err, M5_ERR_FORMAT, "it is no calibration");
    memcpy(head, s, len);
    head[len] = 0;
    if (sscanf(head, "M5CALIB %9u %65s %12llu %16llx", &version, whose, &size, &sum) != 4)
        return m5_error_set(err, M5_ERR_FORMAT, "it is no calibration");
    if (version != VERSION) return m5_error_set(err, M5_ERR_FORMAT, "it is of version %u, this is %d", version, VERSION);
    if (strcmp(whose, fingerprint) != 0) return m5_error_set(err, M5_ERR_FORMAT, "it belongs to another model");
    if (n != len + size + 2 || s[n - 1] != '\n') return m5_error_set(err, M5_ERR_FORMAT, "it is torn");
    if (sum != sum_of(VERSION, whose, line + 1, size)) return m5_error_set(err, M5_ERR_FORMAT, "its checksum is wrong");
    return m5_calib_parse(out, line + 1, size, err);
}

/* ---- files ---- */

static bool is_record(const char *name, size_t n)
{
    return n == NAME_HEX + strlen(SUFFIX) && strspn(name, "0123456789abcdef") == NAME_HEX && memcmp(name + NAME_HEX, SUFFIX, strlen(SUFFIX)) == 0;
}

bool m5_calib_is_name(const char *name)
{
    return is_record(name, strlen(name));
}

/* A record's name and what m5_file_write_atomic appends while it writes. */
static bool is_tmp(const char *name)
{
    const size_t n = strlen(name), own = NAME_HEX + strlen(SUFFIX);
    return n == own + 7 && name[own] == '.' && is_record(name, own);
}

/* Removes what matches in a folder: unfinished files, and records when asked. */
static int sweep(const char *dir, bool records, bool whole, size_t *n_gone, m5_error *err)
{
    char **names = NULL, fingerprint[66];
    size_t n = 0;
    int rc = m5_dir_list(&names, &n, dir, err);
    m5_calib *c = rc ? NULL : m5_alloc(M5_MEM_MISC, sizeof *c);
    if (!rc && !c) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const bool record = m5_calib_is_name(names[i]), tmp = is_tmp(names[i]);
        uint64_t bytes;
        int64_t when;
        m5_buf path = {0};
        m5_buf_printf(&path, "%s/%s", dir, names[i]);
        if (c && !path.failed && (record || tmp) && m5_file_stat(path.p, &bytes, &when)) {
            bool go = tmp ? m5_time_unix_ms() - when > STALE_TMP_MS : records;
            if (go && record && !whole) go = m5_calib_view(c, fingerprint, dir, names[i], NULL) == M5_ERR_FORMAT;
            const int failed = go ? m5_file_remove(path.p, rc ? NULL : err) : 0;
            if (go && !failed) ++*n_gone;
            if (!rc) rc = failed;
        }
        m5_buf_free(&path);
        m5_free(names[i]);
    }
    m5_free(names);
    m5_free(c);
    return rc;
}

int m5_calib_clear(const char *dir, bool all, size_t *n, m5_error *err)
{
    *n = 0;
    int rc = sweep(dir, true, all, n, err);
    return rc == M5_ERR_NOTFOUND ? 0 : rc;
}

int m5_calib_view(m5_calib *out, char fingerprint[66], const char *dir, const char *name, m5_error *err)
{
    char *s = NULL;
    size_t n = 0;
    m5_buf path = {0}, own = {0};
    if (!m5_calib_is_name(name)) return m5_error_set(err, M5_ERR_ARG, "%s is not the name of a calibration", name);
    m5_buf_printf(&path, "%s/%s", dir, name);
    int rc = path.failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory") : 0;
    if (!rc && !m5_path_exists(path.p)) rc = m5_error_set(err, M5_ERR_NOTFOUND, "there is no calibration %s", path.p);
    if (!rc && (rc = m5_file_read(&s, &n, path.p, MAX_BYTES, err)) == M5_ERR_LIMIT) rc = m5_error_set(err, M5_ERR_FORMAT, "it is too long");
    if (!rc) {
        fingerprint[0] = 0;
        if (sscanf(s, "M5CALIB %*9u %65s", fingerprint) != 1) rc = m5_error_set(err, M5_ERR_FORMAT, "it is no calibration");
        m5_calib_path(&own, dir, fingerprint);
        if (!rc) rc = m5_calib_read(out, s, n, fingerprint, err);
        if (!rc && !own.failed && strcmp(own.p, path.p) != 0) rc = m5_error_set(err, M5_ERR_FORMAT, "it bears another model's name");
        if (rc) m5_error_prefix(err, "calibration %s", path.p);
    }
    m5_free(s);
    m5_buf_free(&path);
    m5_buf_free(&own);
    return rc;
}

int m5_calib_list(m5_calib_file **out, size_t *n_out, const char *dir, m5_error *err)
{
    char **names = NULL, fingerprint[66];
    size_t n = 0, k = 0;
    *out = NULL;
    *n_out = 0;
    int rc = m5_dir_list(&names, &n, dir, err);
    if (rc) return rc;
    m5_calib_file *list = m5_calloc(M5_MEM_MISC, n + 1, sizeof *list);
    m5_calib *c = m5_alloc(M5_MEM_MISC, sizeof *c);
    for (size_t i = 0; i < n; i++) {
        m5_buf path = {0};
        m5_buf_printf(&path, "%s/%s", dir, names[i]);
        if (list && c && !path.failed && m5_calib_is_name(names[i]) && m5_file_stat(path.p, &list[k].n_bytes, &list[k].made_unix_ms)) {
            m5_calib_file *f = &list[k++];
            snprintf(f->name, sizeof f->name, "%s", names[i]);
            f->whole = m5_calib_view(c, fingerprint, dir, names[i], NULL) == 0;
            if (f->whole) snprintf(f->model, sizeof f->model, "%s", c->model);
            f->n_tok = f->whole ? c->n_tok : 0;
        }
        m5_buf_free(&path);
        m5_free(names[i]);
    }
    m5_free(names);
    if (!list || !c) {
        m5_free(list);
        m5_free(c);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory while listing %s", dir);
    }
    m5_free(c);
    *out = list;
    *n_out = k;
    return 0;
}

void m5_calib_path(m5_buf *out, const char *folder, const char *fingerprint)
{
    m5_buf_printf(out, "%s/%016llx" SUFFIX, folder, (unsigned long long)m5_hash64(fingerprint, strlen(fingerprint)));
}

int m5_calib_save(const m5_calib *c, const char *path, const char *fingerprint, m5_error *err)
{
    m5_buf b = {0};
    m5_calib_write(&b, c, fingerprint);
    int rc = b.failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory for a calibration") : 0;
    const char *slash = strrchr(path, '/');
    char *folder = !rc && slash && slash > path ? m5_strndup(M5_MEM_MISC, path, (size_t)(slash - path)) : NULL;
    if (folder) rc = m5_dir_make(folder, 0700, err);
    size_t n_gone = 0; /* a file that cannot be removed is no reason to lose the record */
    if (folder && !rc && m5_calib_is_name(slash + 1)) sweep(folder, false, false, &n_gone, NULL);
    if (!rc) rc = m5_file_write_atomic(path, b.p, b.n, 0600, err);
    m5_free(folder);
    m5_buf_free(&b);
    return rc;
}

/* Sets that the model cannot run would come from a damaged file with a right sum: as good as torn. */
static int check(const m5_calib *c, const m5_model *m, m5_error *err)
{
    const int n = m5_model_config(m)->n_layer;
    if (c->n_layer != n) return m5_error_set(err, M5_ERR_FORMAT, "it speaks of %d layers, the model has %d", c->n_layer, n);
    for (int i = 0; i < c->n_cut; i++) {
        m5_layer_set rest = m5_layers_first(n);
        for (int l = 0; l < n; l++)
            if (m5_layer_in(&c->cuts[i].out, l)) m5_layer_put(&rest, l, false);
        if (m5_model_check_layers(m, &rest, err)) return M5_ERR_FORMAT;
    }
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        const m5_layer_set none = {0}, *s = &c->chosen[v].layers;
        if (memcmp(s, &none, sizeof none) != 0 && m5_model_check_layers(m, s, err)) return M5_ERR_FORMAT;
    }
    return 0;
}

int m5_calib_load(m5_calib **out, const char *path, const m5_model *m, bool own, m5_error *err)
{
    char *s = NULL;
    size_t n = 0;
    *out = NULL;
    if (!m5_path_exists(path)) return m5_error_set(err, M5_ERR_NOTFOUND, "there is no calibration %s", path);
    int rc = m5_file_read(&s, &n, path, MAX_BYTES, err);
    m5_calib *c = rc ? NULL : m5_calloc(M5_MEM_MISC, 1, sizeof *c);
    if (!rc && !c) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a calibration");
    if (!rc && (rc = m5_calib_read(c, s, n, m5_model_weights(m)->fingerprint, err)) == 0) rc = check(c, m, err);
    if (rc == M5_ERR_LIMIT) rc = M5_ERR_FORMAT;
    if (!rc) {
        *out = c;
        c = NULL;
    } else {
        m5_error_prefix(err, "calibration %s is ignored", path);
        if (own && rc == M5_ERR_FORMAT) m5_file_remove(path, NULL);
    }
    m5_free(c);
    m5_free(s);
    return rc;
}

int m5_calib_open(m5_calib **out, const char *path, const char *dir, const m5_model *m, m5_error *err)
{
    m5_buf own = {0};
    m5_error why = {0};
    *out = NULL;
    if (!path && !dir) return 0;
    if (!path) m5_calib_path(&own, dir, m5_model_weights(m)->fingerprint);
    if (own.failed) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    int rc = m5_calib_load(out, path ? path : own.p, m, !path, &why);
    if (rc == M5_ERR_NOTFOUND && path) m5_log(M5_LOG_WARN, "%s", why.text);
    if (rc && rc != M5_ERR_NOTFOUND) m5_log(M5_LOG_WARN, rc == M5_ERR_FORMAT && !path ? "%s; removed" : "%s", why.text);
    m5_buf_free(&own);
    return 0;
}

int m5_calib_leave_out(const m5_calib *c, m5_model *m, double kl, const m5_calib_cut **cut, m5_error *err)
{
    *cut = NULL;
    if (!c)
        return m5_error_set(err, M5_ERR_NOTFOUND,
                            "--lossy-layer-skip needs a calibration of this model and there is none; make one with: m5-infer calibrate MODEL");
    *cut = m5_calib_find_cut(c, kl);
    if (!*cut) return 0;
    m5_layer_set rest = *m5_model_layers(m);
    for (int w = 0; w < M5_LAYER_WORDS; w++) rest.bits[w] &= ~(*cut)->out.bits[w];
    return m5_model_use_layers(m, &rest, err);
}
