/* SPDX-License-Identifier: Apache-2.0 */
/* What a calibration run (engine/calibrate.h) measured of a model, and its file; bytes: docs/FORMATS.md. Room: engine/calib.c. Any thread.
 *
 * The file lies in the folder of prompt state under a name made of the model's fingerprint. It is whole or ignored (P4): written beside its name and
 * renamed, with version, fingerprint, length and checksum in its first line. */
#ifndef M5_ENGINE_CALIB_H
#define M5_ENGINE_CALIB_H

#include "engine/self_draft.h"
#include "model/model.h"

enum { M5_CALIB_THRESHOLDS = 8, M5_CALIB_MAX_SETS = 64, M5_CALIB_MAX_COSTS = 16 };
/* Least probabilities of a guess that are tried; 0 = every guess counts. */
extern const float m5_calib_thresholds[M5_CALIB_THRESHOLDS];

/* Guesses of some layers, beside the likeliest token of the whole model. */
typedef struct m5_calib_guess {
    m5_layer_set layers;                  /* that guess */
    double us[2];                         /* of a guess of one row and of four */
    double share[M5_CALIB_THRESHOLDS];    /* of the places, those whose guess is at least so probable */
    double right[M5_CALIB_THRESHOLDS];    /* and of these, those that are right */
} m5_calib_guess;

/* The model without some layers, beside the whole one. */
typedef struct m5_calib_cut {
    m5_layer_set out; /* layers left out */
    int n_out, n_tok; /* layers; places it was compared at */
    double kl_mean, kl_p99; /* KL(whole || cut) in nats: mean, 99th percentile of the places */
    double top1;            /* share of the places with the same likeliest token */
    double speed;           /* of plain decoding over the whole model's; 0 = not measured */
} m5_calib_cut;

/* What was chosen for one kind of self-draft. */
typedef struct m5_calib_choice {
    m5_layer_set layers; /* none = nothing that could be used */
    double confidence, accept;
    int k;               /* guesses a step, at most */
    double speed;        /* expected, over plain decoding */
} m5_calib_choice;

typedef struct m5_calib {
    char model[96], isa[16], text[16]; /* short name; "own" or "file" */
    int n_layer, n_threads, n_tok;     /* of the model; used; places measured */
    int n_ids;                         /* singles were compared over the first so many ids; 0 = all */
    int64_t made_unix_ms;
    int n_cost;
    struct { int rows; double us; } cost[M5_CALIB_MAX_COSTS]; /* of a forward */
    int n_exit, n_skip, n_single, n_cut;
    m5_calib_guess exits[M5_CALIB_MAX_SETS]; /* the first layers */
    m5_calib_guess skips[M5_CALIB_MAX_SETS]; /* layers left out as in cuts, for guesses only */
    m5_calib_cut singles[M5_MAX_LAYERS]; /* one layer left out, over a part of the places */
    m5_calib_cut cuts[M5_CALIB_MAX_SETS]; /* growing sets */
    m5_calib_choice chosen[M5_SELF_VARIANTS];
} m5_calib;

/* A choice pays when it is expected to be faster by more than this. */
#define M5_CALIB_LEAST_GAIN 1.02

/* The cut with the most layers and a mean KL of at most kl; of equals the one with the least KL. NULL when there is none. */
const m5_calib_cut *m5_calib_find_cut(const m5_calib *c, double kl);
/* What drafting needs of a choice. */
m5_self_draft m5_calib_self_draft(const m5_calib *c, m5_self_variant v);

/* ---- the file ---- */

/* The whole file; fingerprint: of m5_weights. A failed append shows in out->failed. */
void m5_calib_write(m5_buf *out, const m5_calib *c, const char *fingerprint);
/* Errors: M5_ERR_FORMAT for anything but a whole record of this version and fingerprint; *out is undefined then. */
int m5_calib_read(m5_calib *out, const char *text, size_t n, const char *fingerprint, m5_error *err);
/* The JSON behind the first line alone. */
int m5_calib_parse(m5_calib *out, const char *json, size_t n, m5_error *err);

/* Appends "folder/<fingerprint of the record>.m5calib". */
void m5_calib_path(m5_buf *out, const char *folder, const char *fingerprint);
/* Makes the folder when missing. Under a name that m5_calib_path made, what a killed run left unfinished in the folder is removed before. */
int m5_calib_save(const m5_calib *c, const char *path, const char *fingerprint, m5_error *err);
/* The record of a model that is open. Errors: M5_ERR_NOTFOUND without a file, M5_ERR_FORMAT for one that is torn, foreign or of another version, which
 * is removed when own (a name that m5_calib_path made). Owner: caller, m5_free. */
int m5_calib_load(m5_calib **out, const char *path, const m5_model *m, bool own, m5_error *err);
/* The user's file, or (path NULL) the model's record in dir, or (both NULL) none. What is wrong with a file goes to the log; *out is NULL then. */
int m5_calib_open(m5_calib **out, const char *path, const char *dir, const m5_model *m, m5_error *err);

/* ---- administration, without a model ---- */
typedef struct m5_calib_file {
    char name[32], model[96]; /* file; model as the record calls it, "" when it cannot be read */
    int n_tok;                /* places measured */
    bool whole;               /* of this version, untorn, under its own name */
    uint64_t n_bytes;
    int64_t made_unix_ms;     /* when it was written */
} m5_calib_file;
/* Records in dir under the names that m5_calib_path makes, by name; caller m5_free. Errors: M5_ERR_NOTFOUND without a folder. */
int m5_calib_list(m5_calib_file **out, size_t *n, const char *dir, m5_error *err);
/* One of them; *out is undefined on errors: M5_ERR_ARG for another kind of name, M5_ERR_NOTFOUND, M5_ERR_FORMAT with what is wrong. */
int m5_calib_view(m5_calib *out, char fingerprint[66], const char *dir, const char *name, m5_error *err);
bool m5_calib_is_name(const char *name);
/* Removes the records in dir (all = false: only those that are not whole) and files that were left unfinished a minute ago or earlier: a younger one may
 * belong to a run that is about to end. Returns how many in *n. Errors: of the first file that could not be removed; the others are gone. */
int m5_calib_clear(const char *dir, bool all, size_t *n, m5_error *err);

/* Leaves out what c has with a mean KL of at most kl; *cut NULL: it has nothing so close, and all layers stay. c NULL: refused, as somebody must
 * calibrate first. Only while the model has no sequence. */
int m5_calib_leave_out(const m5_calib *c, m5_model *m, double kl, const m5_calib_cut **cut, m5_error *err);

#endif
