/* SPDX-License-Identifier: Apache-2.0 */
/* `cache`: look at, check and empty the folder of prompt state and calibrations. Needs no model, except to show tokens as text. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "engine/calib.h"
#include "engine/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "3 min ago" */
static const char *age(int64_t unix_ms, char out[32])
{
    int64_t s = (m5_time_unix_ms() - unix_ms) / 1000;
    if (s < 0) s = 0;
    if (s < 120)
        snprintf(out, 32, "%lld s ago", (long long)s);
    else if (s < 7200)
        snprintf(out, 32, "%lld min ago", (long long)(s / 60));
    else if (s < 172800)
        snprintf(out, 32, "%lld h ago", (long long)(s / 3600));
    else
        snprintf(out, 32, "%lld days ago", (long long)(s / 86400));
    return out;
}

static void print_json(const char *dir, const m5_store_file *f, size_t n, const m5_calib_file *c, size_t n_calib)
{
    m5_buf b = {0};
    m5_buf_puts(&b, "{\"dir\":");
    m5_json_write_str(&b, dir, strlen(dir));
    m5_buf_puts(&b, ",\"files\":[");
    for (size_t i = 0; i < n; i++)
        m5_buf_printf(&b, "%s{\"name\":\"%s\",\"fingerprint\":\"%s\",\"n_tok\":%d,\"from\":%d,\"bytes\":%llu,\"used_unix_ms\":%lld}", i ? "," : "",
                      f[i].name, f[i].fingerprint, f[i].n_tok, f[i].prev, (unsigned long long)f[i].n_bytes, (long long)f[i].used_unix_ms);
    m5_buf_puts(&b, "],\"calibrations\":[");
    for (size_t i = 0; i < n_calib; i++) {
        m5_buf_printf(&b, "%s{\"name\":\"%s\",\"model\":", i ? "," : "", c[i].name);
        m5_json_write_str(&b, c[i].model, strlen(c[i].model));
        m5_buf_printf(&b, ",\"n_tok\":%d,\"whole\":%s,\"bytes\":%llu,\"made_unix_ms\":%lld}", c[i].n_tok, c[i].whole ? "true" : "false",
                      (unsigned long long)c[i].n_bytes, (long long)c[i].made_unix_ms);
    }
    m5_buf_puts(&b, "]}");
    if (!b.failed) puts(b.p);
    m5_buf_free(&b);
}

static void print_table(const char *dir, const m5_store_file *f, size_t n, const m5_calib_file *c, size_t n_calib)
{
    uint64_t total = 0;
    char when[32], bytes[32];
    if (n) printf("%-18s %8s %8s %10s  %-14s %s\n", "model", "tokens", "from", "size", "last used", "name");
    for (size_t i = 0; i < n; i++) {
        total += f[i].n_bytes;
        printf("%-18s %8d %8d %10s  %-14s %.60s\n", f[i].fingerprint, f[i].n_tok, f[i].prev, m5_cli_bytes(bytes, f[i].n_bytes),
               age(f[i].used_unix_ms, when), f[i].name);
    }
    if (n_calib) printf("%s%-36s %10s  %-14s %s\n", n ? "\n" : "", "calibration of", "size", "made", "name");
    for (size_t i = 0; i < n_calib; i++) {
        total += c[i].n_bytes;
        printf("%-36.36s %10s  %-14s %s\n", c[i].whole ? c[i].model : "(damaged or of another version)", m5_cli_bytes(bytes, c[i].n_bytes),
               age(c[i].made_unix_ms, when), c[i].name);
    }
    printf("%zu files, %s in %s\n", n + n_calib, m5_cli_bytes(bytes, total), dir);
}

static int list(const char *dir, bool json)
{
    m5_error err = {0};
    m5_store_file *f = NULL;
    m5_calib_file *c = NULL;
    size_t n = 0, n_calib = 0;
    int rc = m5_store_list(&f, &n, dir, &err);
    if (!rc) rc = m5_calib_list(&c, &n_calib, dir, &err);
    if (rc && rc != M5_ERR_NOTFOUND) {
        m5_free(f);
        return m5_cli_fail(&err);
    }
    if (json)
        print_json(dir, f, n, c, n_calib);
    else
        print_table(dir, f, n, c, n_calib);
    m5_free(f);
    m5_free(c);
    return CLI_OK;
}

static int verify(const char *dir)
{
    m5_error err = {0};
    m5_store_file *f = NULL;
    m5_calib_file *c = NULL;
    m5_calib record;
    char fingerprint[66];
    size_t n = 0, n_calib = 0, bad = 0;
    int rc = m5_store_list(&f, &n, dir, &err);
    if (!rc) rc = m5_calib_list(&c, &n_calib, dir, &err);
    for (size_t i = 0; i < n; i++) {
        if (m5_store_verify(dir, f[i].name, NULL, &err) == 0) continue;
        printf("%s\n", err.text);
        bad++;
    }
    for (size_t i = 0; i < n_calib; i++) {
        if (m5_calib_view(&record, fingerprint, dir, c[i].name, &err) == 0) continue;
        printf("%s\n", err.text);
        bad++;
    }
    m5_free(f);
    m5_free(c);
    if (rc && rc != M5_ERR_NOTFOUND) return m5_cli_fail(&err);
    printf("%zu files are whole, %zu are not%s\n", n + n_calib - bad, bad, bad ? " (m5-infer cache clear --bad removes those)" : "");
    return bad ? CLI_FAILED : CLI_OK;
}

static int show_calibration(const m5_cli_opts *o, const char *dir, const char *name)
{
    m5_error err = {0};
    m5_calib c;
    char fingerprint[66];
    m5_buf path = {0};
    if (m5_calib_view(&c, fingerprint, dir, name, &err)) return m5_cli_fail(&err);
    if (o->json) return m5_cli_calib_json(&c, fingerprint);
    m5_buf_printf(&path, "%s/%s", dir, name);
    m5_cli_calib_table(&c, path.failed ? name : path.p);
    m5_buf_free(&path);
    return CLI_OK;
}

static int clear(const char *dir, bool bad_only)
{
    m5_error err = {0};
    size_t n = 0, n_calib = 0;
    int rc = m5_store_clear(dir, !bad_only, &n, &err), rc_calib = m5_calib_clear(dir, !bad_only, &n_calib, rc ? NULL : &err);
    if (rc || rc_calib) return m5_cli_fail(&err);
    printf("%zu files of prompt state and %zu of calibrations removed from %s\n", n, n_calib, dir);
    return CLI_OK;
}

static int show(const m5_cli_opts *o, const char *dir, const char *name)
{
    m5_error err = {0};
    int32_t *ids = NULL;
    char fingerprint[17];
    unsigned n_tok = 0;
    if (m5_calib_is_name(name)) return show_calibration(o, dir, name);
    if (m5_store_verify(dir, name, &ids, &err)) return m5_cli_fail(&err);
    if (sscanf(name, "%16[0-9a-f]-%8x", fingerprint, &n_tok) != 2) n_tok = 0;
    int rc = CLI_OK;
    if (o->model) {
        m5_tokenizer *t = NULL;
        m5_buf text = {0};
        rc = m5_cli_open_tokenizer(&t, o->model);
        if (!rc && m5_detokenize(t, &text, ids, n_tok, false, &err)) rc = m5_cli_fail(&err);
        if (!rc) printf("%s\n", text.p ? text.p : "");
        m5_buf_free(&text);
        m5_tokenizer_free(t);
    } else {
        for (unsigned i = 0; i < n_tok; i++) printf("%s%d", i ? "," : "", (int)ids[i]);
        putchar('\n');
    }
    m5_free(ids);
    return rc;
}

int m5_cmd_cache(const m5_cli_opts *o)
{
    m5_buf own = {0};
    const char *what = o->args.n ? o->args.items[0] : "list", *dir = o->cache_dir;
    if (!dir) {
        m5_cli_cache_dir(&own);
        dir = own.p;
    }
    int rc;
    if (!dir) {
        rc = m5_cli_usage("no cache folder: neither --cache-dir nor HOME is set");
    } else if (o->args.n > (strcmp(what, "show") == 0 ? 2 : 1)) {
        rc = m5_cli_usage("'%s' is one argument too many. See 'm5-infer cache --help'.", o->args.items[o->args.n - 1]);
    } else if (strcmp(what, "list") == 0) {
        rc = list(dir, o->json);
    } else if (strcmp(what, "verify") == 0) {
        rc = verify(dir);
    } else if (strcmp(what, "show") == 0) {
        rc = o->args.n == 2 ? show(o, dir, o->args.items[1]) : m5_cli_usage("show needs the name of a file; 'm5-infer cache list' prints them");
    } else if (strcmp(what, "clear") == 0) {
        rc = clear(dir, o->bad);
    } else {
        static const char *const words[] = {"list", "show", "verify", "clear"};
        const char *near = m5_cli_nearest(what, words, 4);
        rc = m5_cli_usage("unknown word '%s'%s%s. See 'm5-infer cache --help'.", what, near ? "; did you mean " : "", near ? near : "");
    }
    m5_buf_free(&own);
    return rc;
}
