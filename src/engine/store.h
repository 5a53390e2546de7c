/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt state on disk: files that let a prefix be resumed in another process. Room: engine/store.c; bytes: docs/FORMATS.md.
 *
 * A file holds the pages of tokens [prev, n) (from the page that prev lies in) and the recurrent row at n; the file for prev holds what comes before.
 * Its name tells fingerprint, n, prev and the hash of ids[0..n), so that the index needs no open file. A file is written beside its name and renamed;
 * anything torn, foreign or inconsistent is logged, removed and ignored (P4). Reading and index on the engine thread, writing on a thread of its own.
 */
#ifndef M5_ENGINE_STORE_H
#define M5_ENGINE_STORE_H

#include "engine/prefix.h"

typedef struct m5_store m5_store;

typedef struct m5_store_options {
    const char *dir;
    uint64_t budget_bytes;   /* of all state files in dir, whoever wrote them */
    uint64_t bytes_per_s;    /* bound of the write rate; 0 = 200 MB/s */
    const char *fingerprint; /* 16 hex digits: model, arithmetic, layout */
} m5_store_options;

typedef struct m5_store_stats {
    uint64_t n_files, bytes; /* of this fingerprint */
    uint64_t n_written, n_written_bytes, n_skipped, n_loaded, n_loaded_bytes, n_bad, n_evicted;
} m5_store_stats;

/* Makes dir (0700) when missing. A folder that cannot be written is used read-only, with a warning. Errors: no folder at all. */
int m5_store_open(m5_store **out, m5_model *m, const m5_store_options *o, m5_error *err);
/* Writes what waits, for at most a few seconds, and gives back every page. NULL allowed. */
void m5_store_close(m5_store *s);

/* Writes the state at ids[0..n_tok) behind, unless a file has it already. pages: all of the prefix, referenced until written; row NULL without
 * recurrent layers. */
void m5_store_put(m5_store *s, const int32_t *ids, int n_tok, m5_page *const *pages, m5_row *row);
/* Gives back the pages of finished writes. Call it now and then. */
void m5_store_reap(m5_store *s);
/* Deepest position that files can restore, > better_than and < n; 0 when there is none. */
int m5_store_find(m5_store *s, const int32_t *ids, int n, int better_than);
/* Reads the files of ids[0..n_tok) (a position from m5_store_find) into the tree. Errors: anything wrong with a file; the tree may have got a part,
 * all of it good. */
int m5_store_load(m5_store *s, m5_prefix *p, const int32_t *ids, int n_tok, m5_error *err);
void m5_store_get_stats(m5_store *s, m5_store_stats *out);
/* Waits until everything queued is written; tests and short-lived commands. */
void m5_store_flush(m5_store *s);

/* ---- administration, without a model ---- */
typedef struct m5_store_file {
    char name[128];
    char fingerprint[17];
    int n_tok, prev;
    uint64_t n_bytes;
    int64_t used_unix_ms;
} m5_store_file;
/* Files in dir, most recently used first; caller m5_free. */
int m5_store_list(m5_store_file **out, size_t *n, const char *dir, m5_error *err);
/* Reads a file whole and checks every sum. ids (may be NULL): caller m5_free. Errors: M5_ERR_FORMAT with what is wrong. */
int m5_store_verify(const char *dir, const char *name, int32_t **ids, m5_error *err);
/* Removes every state file in dir (all = false: only unfinished and unreadable ones). Returns how many in *n. */
int m5_store_clear(const char *dir, bool all, size_t *n, m5_error *err);

#endif
