/* SPDX-License-Identifier: Apache-2.0 */
/* `cache`: look at, check and empty the folder of prompt state. Needs no model, except to show tokens as text. */
#include "cli/cli.h"

#include "base/mem.h"
#include "base/task.h"
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

static int list(const char *dir, bool json)
{
    m5_error err = {0};
    m5_store_file *f = NULL;
    size_t n = 0;
    uint64_t total = 0;
    char when[32], bytes[32];
    int rc = m5_store_list(&f, &n, dir, &err);
    if (rc && rc != M5_ERR_NOTFOUND) return m5_cli_fail(&err);
    if (json) {
        printf("{\"dir\":\"%s\",\"files\":[", dir);
        for (size_t i = 0; i < n; i++)
            printf("%s{\"name\":\"%s\",\"fingerprint\":\"%s\",\"n_tok\":%d,\"from\":%d,\"bytes\":%llu,\"used_unix_ms\":%lld}", i ? "," : "",
                   f[i].name, f[i].fingerprint, f[i].n_tok, f[i].prev, (unsigned long long)f[i].n_bytes, (long long)f[i].used_unix_ms);
        puts("]}");
    } else {
        if (n) printf("%-18s %8s %8s %10s  %-14s %s\n", "model", "tokens", "from", "size", "last used", "name");
        for (size_t i = 0; i < n; i++) {
            total += f[i].n_bytes;
            printf("%-18s %8d %8d %10s  %-14s %.60s\n", f[i].fingerprint, f[i].n_tok, f[i].prev, m5_cli_bytes(bytes, f[i].n_bytes),
                   age(f[i].used_unix_ms, when), f[i].name);
        }
        printf("%zu files, %s in %s\n", n, m5_cli_bytes(bytes, total), dir);
    }
    m5_free(f);
    return CLI_OK;
}

static int verify(const char *dir)
{
    m5_error err = {0};
    m5_store_file *f = NULL;
    size_t n = 0, bad = 0;
    int rc = m5_store_list(&f, &n, dir, &err);
    if (rc && rc != M5_ERR_NOTFOUND) return m5_cli_fail(&err);
    for (size_t i = 0; i < n; i++) {
        if (m5_store_verify(dir, f[i].name, NULL, &err) == 0) continue;
        printf("%s\n", err.text);
        bad++;
    }
    printf("%zu files are whole, %zu are not%s\n", n - bad, bad, bad ? " (m5-infer cache clear --bad removes those)" : "");
    m5_free(f);
    return bad ? CLI_FAILED : CLI_OK;
}

static int show(const m5_cli_opts *o, const char *dir, const char *name)
{
    m5_error err = {0};
    int32_t *ids = NULL;
    char fingerprint[17];
    unsigned n_tok = 0;
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
    m5_error err = {0};
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
        size_t n = 0;
        rc = m5_store_clear(dir, !o->bad, &n, &err) ? m5_cli_fail(&err) : CLI_OK;
        if (!rc) printf("%zu files removed from %s\n", n, dir);
    } else {
        static const char *const words[] = {"list", "show", "verify", "clear"};
        const char *near = m5_cli_nearest(what, words, 4);
        rc = m5_cli_usage("unknown word '%s'%s%s. See 'm5-infer cache --help'.", what, near ? "; did you mean " : "", near ? near : "");
    }
    m5_buf_free(&own);
    return rc;
}
