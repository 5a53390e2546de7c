/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt state on disk; see store.h, bytes in docs/FORMATS.md. May touch: base, model/state, engine/prefix.
 *
 *   header (128 bytes) | ids i32[n_tok] | page sums u64[n_page] | row sum u64 | pages | row          sections padded to 64 bytes
 *
 * Threads: index and reading belong to the engine thread; the writer owns a job from the queue to `done`; `mu` guards the queues, the index and the
 * figures. Pages and rows are counted on the engine thread alone, so a finished job waits in `done` until that thread gives them back. */
#include "engine/store.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/task.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 128, FORMAT_VERSION = 1, MAX_TOK = 1 << 24, STALE_TMP_MS = 600000, CLOSE_WAIT_US = 5000000, BACKOFF_US = 60000000 };
#define SUFFIX ".m5state"
static const uint64_t default_bytes_per_s = 200u << 20, max_pinned_bytes = 512u << 20;

typedef struct header {
    char magic[8];
    uint32_t version, header_bytes;
    char fingerprint[16];
    uint32_t n_tok, prev, page_tok, n_page;
    uint64_t page_bytes, row_bytes; /* row_bytes 0 = no row */
    uint64_t head_sum;              /* of this header with head_sum 0, the ids and the table of sums */
    char reserved[56];
} header;
_Static_assert(sizeof(header) == HEADER_BYTES, "the header is 128 bytes on disk");

typedef struct entry {
    m5_hash128 key; /* of ids[0..n_tok) */
    int n_tok, prev;
    uint64_t n_bytes;
    bool queued; /* its file is still to be written: others may stand on it, nobody reads it */
} entry;

typedef struct job {
    struct job *next;
    entry e;
    int32_t *ids;
    m5_page **pages; /* the pages that the file holds, referenced */
    int n_page;
    m5_row *row;
} job;

struct m5_store {
    m5_model *m;
    char *dir;
    char fingerprint[17];
    uint64_t budget_bytes, bytes_per_s;
    int page_tok;
    size_t page_bytes, row_bytes;
    bool recurrent;
    m5_hasher *hasher; /* engine thread */
    pthread_t thread;
    bool thread_started, read_only;

    pthread_mutex_t mu;
    pthread_cond_t cv; /* work, or the end of it */
    entry *index;      /* sorted by n_tok, then key */
    size_t n_index, cap_index;
    job *queue, *queue_tail, *done;
    uint64_t pinned_bytes;
    bool busy, quit;
    uint64_t give_up_us; /* closing: no writing after this */
    uint64_t backoff_until_us;
    double pace_us; /* writer: time until which the rate is used up */
    m5_store_stats st;
};

static size_t pad64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static uint64_t file_bytes(int n_tok, int n_page, size_t page_bytes, size_t row_bytes)
{
    return HEADER_BYTES + pad64((size_t)n_tok * 4) + pad64(((size_t)n_page + 1) * 8) + (uint64_t)n_page * page_bytes + row_bytes;
}

/* ---- names and index ---- */

static void name_of(const char *fingerprint, const entry *e, char *out, size_t cap)
{
    snprintf(out, cap, "%.16s-%08x-%08x-%016llx%016llx" SUFFIX, fingerprint, (unsigned)e->n_tok, (unsigned)e->prev, (unsigned long long)e->key.high,
             (unsigned long long)e->key.low);
}

/* "ffffffffffffffff-nnnnnnnn-pppppppp-<32 hex>.m5state" */
static bool parse_name(const char *name, char fingerprint[17], entry *e)
{
    unsigned n_tok, prev;
    unsigned long long high, low;
    char again[128];
    if (strlen(name) >= sizeof again || sscanf(name, "%16[0-9a-f]-%8x-%8x-%16llx%16llx", fingerprint, &n_tok, &prev, &high, &low) != 5) return false;
    *e = (entry){.key = {low, high}, .n_tok = (int)(n_tok & 0x7fffffff), .prev = (int)(prev & 0x7fffffff)};
    name_of(fingerprint, e, again, sizeof again);
    return strcmp(again, name) == 0 && e->n_tok > 0 && e->n_tok <= MAX_TOK && e->prev >= 0 && e->prev < e->n_tok;
}

static int compare(const entry *a, const entry *b)
{
    if (a->n_tok != b->n_tok) return a->n_tok < b->n_tok ? -1 : 1;
    if (a->key.high != b->key.high) return a->key.high < b->key.high ? -1 : 1;
    return a->key.low < b->key.low ? -1 : a->key.low > b->key.low;
}

/* First index position not below e. mu held. */
static size_t lower_bound(const m5_store *s, const entry *e)
{
    size_t lo = 0, hi = s->n_index;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (compare(&s->index[mid], e) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static entry *index_find(const m5_store *s, int n_tok, m5_hash128 key)
{
    entry want = {.key = key, .n_tok = n_tok};
    size_t i = lower_bound(s, &want);
    return i < s->n_index && compare(&s->index[i], &want) == 0 ? &s->index[i] : NULL;
}

static void index_add(m5_store *s, const entry *e)
{
    size_t i = lower_bound(s, e);
    if (i < s->n_index && compare(&s->index[i], e) == 0) return;
    if (s->n_index == s->cap_index) {
        size_t cap = s->cap_index ? 2 * s->cap_index : 64;
        entry *more = m5_realloc(M5_MEM_STATE, s->index, cap * sizeof *more);
        if (!more) return;
        s->index = more;
        s->cap_index = cap;
    }
    memmove(s->index + i + 1, s->index + i, (s->n_index - i) * sizeof *s->index);
    s->index[i] = *e;
    s->n_index++;
    s->st.n_files++;
    s->st.bytes += e->n_bytes;
}

static void index_remove(m5_store *s, const entry *e)
{
    size_t i = lower_bound(s, e);
    if (i >= s->n_index || compare(&s->index[i], e) != 0) return;
    s->st.n_files--;
    s->st.bytes -= s->index[i].n_bytes;
    memmove(s->index + i, s->index + i + 1, (s->n_index - i - 1) * sizeof *s->index);
    s->n_index--;
}

static char *path_of(const char *dir, const char *name)
{
    m5_buf b = {0};
    m5_buf_printf(&b, "%s/%s", dir, name);
    return b.failed ? NULL : m5_buf_take(&b);
}

static char *entry_path(const m5_store *s, const entry *e)
{
    char name[128];
    name_of(s->fingerprint, e, name, sizeof name);
    return path_of(s->dir, name);
}

/* ---- listing, budget ---- */

static int by_use(const void *a, const void *b)
{
    const m5_store_file *x = a, *y = b;
    if (x->used_unix_ms != y->used_unix_ms) return x->used_unix_ms > y->used_unix_ms ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool is_tmp(const char *name)
{
    const char *at = strstr(name, SUFFIX ".");
    return at && strlen(at) == strlen(SUFFIX) + 7;
}

int m5_store_list(m5_store_file **out, size_t *n_out, const char *dir, m5_error *err)
{
    char **names = NULL;
    size_t n = 0, k = 0;
    int rc = m5_dir_list(&names, &n, dir, err);
    if (rc) return rc;
    m5_store_file *list = m5_calloc(M5_MEM_MISC, n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        entry e;
        char *path = list && parse_name(names[i], list[k].fingerprint, &e) ? path_of(dir, names[i]) : NULL;
        if (path && m5_file_stat(path, &list[k].n_bytes, &list[k].used_unix_ms)) {
            snprintf(list[k].name, sizeof list[k].name, "%s", names[i]);
            list[k].n_tok = e.n_tok;
            list[k].prev = e.prev;
            k++;
        }
        m5_free(path);
        m5_free(names[i]);
    }
    m5_free(names);
    if (!list) return m5_error_set(err, M5_ERR_NOMEM, "out of memory while listing %s", dir);
    qsort(list, k, sizeof *list, by_use);
    *out = list;
    *n_out = k;
    return 0;
}

int m5_store_clear(const char *dir, bool all, size_t *n_out, m5_error *err)
{
    char **names = NULL;
    size_t n = 0;
    *n_out = 0;
    int rc = m5_dir_list(&names, &n, dir, err);
    if (rc) return rc == M5_ERR_NOTFOUND ? 0 : rc;
    for (size_t i = 0; i < n; i++) {
        char fingerprint[17];
        entry e;
        char *path = path_of(dir, names[i]);
        bool state = parse_name(names[i], fingerprint, &e), go = is_tmp(names[i]) || (state && all);
        if (path && state && !all) go = m5_store_verify(dir, names[i], NULL, NULL) != 0;
        if (path && go && m5_file_remove(path, err) == 0) ++*n_out;
        m5_free(path);
        m5_free(names[i]);
    }
    m5_free(names);
    return 0;
}

/* Removes what a killed process left half-written, a while ago: a younger one may belong to a living process. */
static void sweep_tmp(const m5_store *s)
{
    char **names = NULL;
    size_t n = 0;
    if (m5_dir_list(&names, &n, s->dir, NULL) != 0) return;
    for (size_t i = 0; i < n; i++) {
        char *path = is_tmp(names[i]) ? path_of(s->dir, names[i]) : NULL;
        uint64_t bytes;
        int64_t when;
        if (path && m5_file_stat(path, &bytes, &when) && m5_time_unix_ms() - when > STALE_TMP_MS) m5_file_remove(path, NULL);
        m5_free(path);
        m5_free(names[i]);
    }
    m5_free(names);
}

/* Removes the least recently used files until `need` more bytes fit the budget, counting files of every process and model in the folder. Using a file
 * touches all that it stands on, so a file never outlives what it needs by being younger. Writer thread or open. */
static void keep_budget(m5_store *s, uint64_t need)
{
    m5_store_file *list = NULL;
    size_t n = 0;
    if (m5_store_list(&list, &n, s->dir, NULL) != 0) return;
    uint64_t total = need;
    for (size_t i = 0; i < n; i++) total += list[i].n_bytes;
    while (n > 0 && total > s->budget_bytes) {
        m5_store_file *f = &list[--n];
        char fingerprint[17];
        entry e;
        char *path = path_of(s->dir, f->name);
        if (path && m5_file_remove(path, NULL) == 0) {
            total -= f->n_bytes;
            pthread_mutex_lock(&s->mu);
            s->st.n_evicted++;
            if (parse_name(f->name, fingerprint, &e) && strcmp(fingerprint, s->fingerprint) == 0) index_remove(s, &e);
            pthread_mutex_unlock(&s->mu);
        }
        m5_free(path);
    }
    m5_free(list);
}

/* ---- writing ---- */

static bool pace(void *ctx, size_t n)
{
    m5_store *s = ctx;
    pthread_mutex_lock(&s->mu);
    bool quit = s->quit;
    uint64_t give_up = s->give_up_us;
    pthread_mutex_unlock(&s->mu);
    uint64_t now = m5_time_us();
    if (quit) return now < give_up;
    if (s->pace_us < (double)now)
        s->pace_us = (double)now;
    else
        m5_sleep_us((uint64_t)(s->pace_us - (double)now));
    s->pace_us += (double)n * 1e6 / (double)s->bytes_per_s;
    return true;
}

static int write_file(m5_store *s, const job *j, m5_error *err)
{
    static const char zeros[64];
    int rc = 0;
    size_t n_sum = (size_t)j->n_page + 1, ids_bytes = (size_t)j->e.n_tok * 4, sums_bytes = n_sum * 8;
    char *path = entry_path(s, &j->e);
    uint64_t *sums = m5_calloc(M5_MEM_STATE, n_sum, 8);
    m5_file_part *parts = m5_calloc(M5_MEM_STATE, (size_t)j->n_page + 6, sizeof *parts);
    m5_hasher *hs = m5_hasher_new();
    if (!path || !sums || !parts || !hs) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory while writing prompt state");
        goto out;
    }
    for (int i = 0; i < j->n_page; i++) sums[i] = m5_hash64(m5_page_data(j->pages[i]), s->page_bytes);
    if (j->row) sums[j->n_page] = m5_hash64(j->row->data, s->row_bytes);
    header h = {.magic = {'M', '5', 'S', 'T', 'A', 'T', 'E', 0},
                .version = FORMAT_VERSION,
                .header_bytes = HEADER_BYTES,
                .n_tok = (uint32_t)j->e.n_tok,
                .prev = (uint32_t)j->e.prev,
                .page_tok = (uint32_t)s->page_tok,
                .n_page = (uint32_t)j->n_page,
                .page_bytes = s->page_bytes,
                .row_bytes = j->row ? s->row_bytes : 0};
    memcpy(h.fingerprint, s->fingerprint, sizeof h.fingerprint);
    m5_hasher_update(hs, &h, sizeof h);
    m5_hasher_update(hs, j->ids, ids_bytes);
    m5_hasher_update(hs, sums, sums_bytes);
    h.head_sum = m5_hasher_value(hs).low;
    int k = 0;
    parts[k++] = (m5_file_part){&h, sizeof h};
    parts[k++] = (m5_file_part){j->ids, ids_bytes};
    parts[k++] = (m5_file_part){zeros, pad64(ids_bytes) - ids_bytes};
    parts[k++] = (m5_file_part){sums, sums_bytes};
    parts[k++] = (m5_file_part){zeros, pad64(sums_bytes) - sums_bytes};
    for (int i = 0; i < j->n_page; i++) parts[k++] = (m5_file_part){m5_page_data(j->pages[i]), s->page_bytes};
    if (j->row) parts[k++] = (m5_file_part){j->row->data, s->row_bytes};
    rc = m5_file_write_parts(path, parts, k, 0600, pace, s, err);
out:
    m5_free(path);
    m5_free(sums);
    m5_free(parts);
    m5_hasher_free(hs);
    return rc;
}

static void *writer_main(void *arg)
{
    m5_store *s = arg;
    m5_thread_name("m5-store");
    pthread_mutex_lock(&s->mu);
    for (;;) {
        while (!s->queue && !s->quit) pthread_cond_wait(&s->cv, &s->mu);
        job *j = s->queue;
        if (!j) break;
        s->queue = j->next;
        if (!s->queue) s->queue_tail = NULL;
        s->busy = true;
        bool skip = m5_time_us() < s->backoff_until_us || (s->quit && m5_time_us() > s->give_up_us);
        pthread_mutex_unlock(&s->mu);
        m5_error err = {0};
        int rc = M5_ERR_CANCELLED;
        if (!skip) {
            keep_budget(s, j->e.n_bytes);
            rc = write_file(s, j, &err);
        }
        pthread_mutex_lock(&s->mu);
        if (rc == 0) {
            entry *e = index_find(s, j->e.n_tok, j->e.key);
            if (e) e->queued = false;
            s->st.n_written++;
            s->st.n_written_bytes += j->e.n_bytes;
        } else {
            s->st.n_skipped++;
            index_remove(s, &j->e);
            if (rc != M5_ERR_CANCELLED) {
                s->backoff_until_us = m5_time_us() + BACKOFF_US;
                m5_log(M5_LOG_WARN, "prompt state is not written for a minute: %s", err.text);
            }
        }
        j->next = s->done;
        s->done = j;
        s->busy = false;
        pthread_cond_broadcast(&s->cv);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

static void free_job(m5_store *s, job *j)
{
    for (int i = 0; i < j->n_page; i++) m5_page_unref(s->m, j->pages[i]);
    m5_row_unref(j->row);
    m5_free(j->pages);
    m5_free(j->ids);
    m5_free(j);
}

void m5_store_reap(m5_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->mu);
    job *j = s->done;
    s->done = NULL;
    for (job *k = j; k; k = k->next) s->pinned_bytes -= k->e.n_bytes;
    pthread_mutex_unlock(&s->mu);
    while (j) {
        job *next = j->next;
        free_job(s, j);
        j = next;
    }
}

/* Deepest position that files can restore, below n and above better_than. queued: files that are still to be written count too. mu held. */
static int find_locked(m5_store *s, const int32_t *ids, int n, int better_than, bool queued)
{
    enum { MAX_CHAIN = 512 };
    int hits[MAX_CHAIN], n_hit = 0, best = 0, done = 0;
    m5_hasher_reset(s->hasher);
    for (size_t i = 0; i < s->n_index && s->index[i].n_tok < n;) {
        int at = s->index[i].n_tok;
        m5_hasher_update(s->hasher, ids + done, (size_t)(at - done) * sizeof *ids);
        done = at;
        const entry *e = index_find(s, at, m5_hasher_value(s->hasher));
        if (e && e->queued && !queued) e = NULL;
        bool whole = e && e->prev == 0;
        for (int k = 0; e && k < n_hit && !whole; k++) whole = hits[k] == e->prev;
        if (whole) {
            if (n_hit == MAX_CHAIN) memmove(hits, hits + 1, --n_hit * sizeof *hits);
            hits[n_hit++] = at;
            if (at > better_than) best = at;
        }
        entry past = {.n_tok = at + 1};
        i = lower_bound(s, &past);
    }
    return best;
}

int m5_store_find(m5_store *s, const int32_t *ids, int n, int better_than)
{
    if (!s) return 0;
    pthread_mutex_lock(&s->mu);
    int at = find_locked(s, ids, n, better_than, false);
    pthread_mutex_unlock(&s->mu);
    return at;
}

static m5_hash128 hash_ids(const int32_t *ids, int n)
{
    return m5_hash128_of(ids, (size_t)n * sizeof *ids);
}

void m5_store_put(m5_store *s, const int32_t *ids, int n_tok, m5_page *const *pages, m5_row *row)
{
    if (!s || s->read_only || n_tok < 1 || n_tok > MAX_TOK) return;
    entry e = {.key = hash_ids(ids, n_tok), .n_tok = n_tok};
    pthread_mutex_lock(&s->mu);
    bool known = index_find(s, n_tok, e.key) != NULL;
    e.prev = known ? 0 : find_locked(s, ids, n_tok, 0, true);
    int first = e.prev / s->page_tok, n_page = (n_tok + s->page_tok - 1) / s->page_tok - first;
    e.n_bytes = file_bytes(n_tok, n_page, s->page_bytes, row ? s->row_bytes : 0);
    bool take = !known && !s->quit && e.n_bytes <= s->budget_bytes && s->pinned_bytes + e.n_bytes <= max_pinned_bytes;
    if (!known && !take) s->st.n_skipped++;
    pthread_mutex_unlock(&s->mu);
    if (!take) return;
    job *j = m5_calloc(M5_MEM_STATE, 1, sizeof *j);
    if (j) {
        j->ids = m5_alloc(M5_MEM_STATE, (size_t)n_tok * sizeof *ids);
        j->pages = m5_calloc(M5_MEM_STATE, (size_t)n_page, sizeof(m5_page *));
    }
    if (!j || !j->ids || !j->pages) {
        if (j) free_job(s, j);
        return;
    }
    memcpy(j->ids, ids, (size_t)n_tok * sizeof *ids);
    for (int i = 0; i < n_page; i++) {
        m5_page_ref(pages[first + i]);
        j->pages[i] = pages[first + i];
    }
    j->n_page = n_page;
    j->row = m5_row_ref(row);
    e.queued = true;
    j->e = e;
    pthread_mutex_lock(&s->mu);
    /* In the index at once: later files may stand on it; the queue keeps the order, and a failed write takes it out again. */
    index_add(s, &e);
    s->pinned_bytes += e.n_bytes;
    if (s->queue_tail)
        s->queue_tail->next = j;
    else
        s->queue = j;
    s->queue_tail = j;
    pthread_cond_broadcast(&s->cv);
    pthread_mutex_unlock(&s->mu);
}

/* ---- reading ---- */

/* The pieces of a mapped file after everything about its head has been checked. */
typedef struct opened {
    header h;
    const int32_t *ids;
    const uint64_t *sums;
    const uint8_t *pages, *row;
} opened;

static int check_head(const m5_map *map, const char *path, opened *o, m5_error *err)
{
    if (map->n < HEADER_BYTES) return m5_error_set(err, M5_ERR_FORMAT, "%s: shorter than a header", path);
    memcpy(&o->h, map->p, sizeof o->h);
    const header *h = &o->h;
    if (memcmp(h->magic, "M5STATE", 8) != 0) return m5_error_set(err, M5_ERR_FORMAT, "%s: not a state file", path);
    if (h->version != FORMAT_VERSION || h->header_bytes != HEADER_BYTES)
        return m5_error_set(err, M5_ERR_FORMAT, "%s: format version %u is not read here", path, h->version);
    bool sane = h->n_tok >= 1 && h->n_tok <= MAX_TOK && h->prev < h->n_tok && h->page_tok >= 1 && h->page_tok <= MAX_TOK &&
                h->page_bytes <= (uint64_t)1 << 40 && h->row_bytes <= (uint64_t)1 << 40;
    uint32_t n_page = sane ? (h->n_tok + h->page_tok - 1) / h->page_tok - h->prev / h->page_tok : 0;
    if (!sane || h->n_page != n_page || (h->page_bytes && n_page > ((uint64_t)1 << 50) / h->page_bytes) ||
        map->n != file_bytes((int)h->n_tok, (int)n_page, (size_t)h->page_bytes, (size_t)h->row_bytes))
        return m5_error_set(err, M5_ERR_FORMAT, "%s: its sizes do not agree with its %zu bytes", path, map->n);
    size_t ids_bytes = (size_t)h->n_tok * 4, sums_bytes = ((size_t)n_page + 1) * 8;
    o->ids = (const int32_t *)(const void *)(map->p + HEADER_BYTES);
    o->sums = (const uint64_t *)(const void *)(map->p + HEADER_BYTES + pad64(ids_bytes));
    o->pages = (const uint8_t *)o->sums + pad64(sums_bytes);
    o->row = h->row_bytes ? o->pages + (size_t)n_page * (size_t)h->page_bytes : NULL;
    header plain = *h;
    plain.head_sum = 0;
    m5_hasher *hs = m5_hasher_new();
    if (!hs) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    m5_hasher_update(hs, &plain, sizeof plain);
    m5_hasher_update(hs, o->ids, ids_bytes);
    m5_hasher_update(hs, o->sums, sums_bytes);
    uint64_t sum = m5_hasher_value(hs).low;
    m5_hasher_free(hs);
    return sum == h->head_sum ? 0 : m5_error_set(err, M5_ERR_FORMAT, "%s: the checksum of its head is wrong", path);
}

static int check_body(const opened *o, uint32_t i, const char *path, m5_error *err)
{
    const uint8_t *p = i < o->h.n_page ? o->pages + (size_t)i * (size_t)o->h.page_bytes : o->row;
    size_t n = i < o->h.n_page ? (size_t)o->h.page_bytes : (size_t)o->h.row_bytes;
    return m5_hash64(p, n) == o->sums[i] ? 0 : m5_error_set(err, M5_ERR_FORMAT, "%s: the checksum of part %u is wrong", path, i);
}

int m5_store_verify(const char *dir, const char *name, int32_t **ids, m5_error *err)
{
    char fingerprint[17];
    entry e;
    if (!parse_name(name, fingerprint, &e)) return m5_error_set(err, M5_ERR_ARG, "%s is not the name of a state file", name);
    m5_map map = {0};
    opened o;
    char *path = path_of(dir, name);
    if (!path) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    int rc = m5_map_open_nofollow(&map, path, err);
    if (rc == 0) rc = check_head(&map, path, &o, err);
    for (uint32_t i = 0; rc == 0 && i < o.h.n_page + (o.row ? 1 : 0); i++) rc = check_body(&o, i, path, err);
    if (rc == 0) {
        m5_hash128 key = hash_ids(o.ids, (int)o.h.n_tok);
        if ((int)o.h.n_tok != e.n_tok || (int)o.h.prev != e.prev || memcmp(o.h.fingerprint, fingerprint, 16) != 0 || key.low != e.key.low ||
            key.high != e.key.high)
            rc = m5_error_set(err, M5_ERR_FORMAT, "%s: its name does not fit its content", path);
    }
    if (rc == 0 && ids) {
        *ids = m5_alloc(M5_MEM_MISC, (size_t)o.h.n_tok * 4);
        if (*ids)
            memcpy(*ids, o.ids, (size_t)o.h.n_tok * 4);
        else
            rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    }
    m5_map_close(&map);
    m5_free(path);
    return rc;
}

/* One file into the tree. last: with its row. */
static int load_file(m5_store *s, m5_prefix *p, const entry *e, const int32_t *ids, bool last, const char *path, m5_error *err)
{
    m5_map map = {0};
    opened o;
    m5_page **pages = NULL;
    m5_row *row = NULL;
    int n = 0, first = e->prev / s->page_tok;
    int rc = m5_map_open_nofollow(&map, path, err);
    if (rc == 0) rc = check_head(&map, path, &o, err);
    if (rc) goto out;
    if (memcmp(o.h.fingerprint, s->fingerprint, 16) != 0 || (int)o.h.n_tok != e->n_tok || (int)o.h.prev != e->prev ||
        (int)o.h.page_tok != s->page_tok || o.h.page_bytes != s->page_bytes || o.h.row_bytes != (s->recurrent ? s->row_bytes : 0) ||
        memcmp(o.ids, ids, (size_t)e->n_tok * 4) != 0) {
        rc = m5_error_set(err, M5_ERR_FORMAT, "%s: belongs to another model or prompt", path);
        goto out;
    }
    int n_page = (int)o.h.n_page;
    pages = m5_calloc(M5_MEM_STATE, (size_t)n_page, sizeof(m5_page *));
    row = last && s->recurrent ? m5_row_new(s->row_bytes) : NULL;
    if (!pages || (last && s->recurrent && !row)) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for kept state");
    for (; rc == 0 && n < n_page; n++) {
        if ((rc = check_body(&o, (uint32_t)n, path, err))) break;
        pages[n] = m5_page_new(s->m);
        if (!pages[n]) {
            rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for kept state");
            break;
        }
        memcpy(m5_page_data(pages[n]), o.pages + (size_t)n * s->page_bytes, s->page_bytes);
    }
    if (rc == 0 && row && (rc = check_body(&o, o.h.n_page, path, err)) == 0) memcpy(row->data, o.row, s->row_bytes);
    if (rc) goto out;
    if (!m5_prefix_import(p, ids, e->n_tok, first, pages, n_page, row)) rc = m5_error_set(err, M5_ERR_NOMEM, "no room for kept state");
    n = 0;
    row = NULL;
    m5_file_touch(path);
    s->st.n_loaded++;
    s->st.n_loaded_bytes += map.n;
out:
    for (int i = 0; i < n; i++) m5_page_unref(s->m, pages[i]);
    m5_row_unref(row);
    m5_free(pages);
    m5_map_close(&map);
    return rc;
}

int m5_store_load(m5_store *s, m5_prefix *p, const int32_t *ids, int n_tok, m5_error *err)
{
    enum { MAX_DEPTH = 4096 };
    int chain[MAX_DEPTH], n = 0, rc = 0;
    pthread_mutex_lock(&s->mu);
    for (int at = n_tok; at > 0 && n < MAX_DEPTH;) {
        const entry *e = index_find(s, at, hash_ids(ids, at));
        if (!e) {
            n = 0;
            break;
        }
        chain[n++] = at;
        at = e->prev;
    }
    pthread_mutex_unlock(&s->mu);
    if (n == 0) return m5_error_set(err, M5_ERR_NOTFOUND, "the state of %d tokens is not there any more", n_tok);
    while (n > 0 && rc == 0) {
        int at = chain[--n];
        pthread_mutex_lock(&s->mu);
        const entry *found = index_find(s, at, hash_ids(ids, at));
        entry e = found ? *found : (entry){0};
        pthread_mutex_unlock(&s->mu);
        char *path = found ? entry_path(s, &e) : NULL;
        if (!path) return m5_error_set(err, M5_ERR_NOTFOUND, "the state of %d tokens is not there any more", at);
        rc = load_file(s, p, &e, ids, n == 0, path, err);
        if (rc && rc != M5_ERR_NOMEM) {
            if (rc != M5_ERR_NOTFOUND) {
                m5_log(M5_LOG_WARN, "%s; removed", err ? err->text : path);
                if (!s->read_only) m5_file_remove(path, NULL);
            }
            pthread_mutex_lock(&s->mu);
            s->st.n_bad++;
            index_remove(s, &e);
            pthread_mutex_unlock(&s->mu);
        }
        m5_free(path);
    }
    return rc;
}

/* ---- life ---- */

static void read_index(m5_store *s)
{
    m5_store_file *list = NULL;
    size_t n = 0;
    if (m5_store_list(&list, &n, s->dir, NULL) != 0) return;
    for (size_t i = 0; i < n; i++) {
        char fingerprint[17];
        entry e;
        if (strcmp(list[i].fingerprint, s->fingerprint) != 0 || !parse_name(list[i].name, fingerprint, &e)) continue;
        e.n_bytes = list[i].n_bytes;
        index_add(s, &e);
    }
    m5_free(list);
}

int m5_store_open(m5_store **out, m5_model *m, const m5_store_options *o, m5_error *err)
{
    *out = NULL;
    int rc = 0;
    m5_store *s = m5_calloc(M5_MEM_STATE, 1, sizeof *s);
    if (!s) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->cv, NULL);
    s->m = m;
    s->budget_bytes = o->budget_bytes;
    s->bytes_per_s = o->bytes_per_s ? o->bytes_per_s : default_bytes_per_s;
    s->page_tok = m5_model_page_tok(m);
    s->page_bytes = m5_model_page_bytes(m);
    s->row_bytes = m5_model_row_bytes(m);
    s->recurrent = m5_model_recurrent(m);
    snprintf(s->fingerprint, sizeof s->fingerprint, "%s", o->fingerprint);
    s->dir = m5_strdup(M5_MEM_STATE, o->dir);
    s->hasher = m5_hasher_new();
    if (!s->dir || !s->hasher) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory");
        goto out;
    }
    m5_error why = {0};
    if (m5_dir_make(s->dir, 0700, &why) != 0) {
        rc = m5_error_set(err, why.code, "%s", why.text);
        goto out;
    }
    char *probe = path_of(s->dir, "probe");
    if (!probe || m5_file_write_atomic(probe, "", 0, 0600, &why) != 0) {
        s->read_only = true;
        m5_log(M5_LOG_WARN, "prompt state is read but not written: %s", why.text);
    } else {
        m5_file_remove(probe, NULL);
        sweep_tmp(s);
        keep_budget(s, 0);
    }
    m5_free(probe);
    read_index(s);
    if (pthread_create(&s->thread, NULL, writer_main, s) != 0) {
        rc = m5_error_set(err, M5_ERR_IO, "the system refused a thread");
        goto out;
    }
    s->thread_started = true;
    *out = s;
    s = NULL;
out:
    m5_store_close(s);
    return rc;
}

void m5_store_flush(m5_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->mu);
    while (s->queue || s->busy) pthread_cond_wait(&s->cv, &s->mu);
    pthread_mutex_unlock(&s->mu);
    m5_store_reap(s);
}

void m5_store_close(m5_store *s)
{
    if (!s) return;
    if (s->thread_started) {
        pthread_mutex_lock(&s->mu);
        s->quit = true;
        s->give_up_us = m5_time_us() + CLOSE_WAIT_US;
        pthread_cond_broadcast(&s->cv);
        pthread_mutex_unlock(&s->mu);
        pthread_join(s->thread, NULL);
    }
    m5_store_reap(s);
    m5_hasher_free(s->hasher);
    m5_free(s->index);
    m5_free(s->dir);
    pthread_cond_destroy(&s->cv);
    pthread_mutex_destroy(&s->mu);
    m5_free(s);
}

void m5_store_get_stats(m5_store *s, m5_store_stats *out)
{
    *out = (m5_store_stats){0};
    if (!s) return;
    pthread_mutex_lock(&s->mu);
    *out = s->st;
    pthread_mutex_unlock(&s->mu);
}
