/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the command line share: the parsed options, the commands, loading with a progress bar. The only folder that prints.
 * Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the chat template failed. */
#ifndef M5_CLI_CLI_H
#define M5_CLI_CLI_H

#include "m5.h"

#include "base/str.h"
#include "text/tokenizer.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_TEMPLATE = 3 };
enum { CLI_MAX_LIST = 64 };

struct m5_model;

typedef struct m5_cli_list {
    const char *items[CLI_MAX_LIST + 1]; /* NULL-terminated */
    int n;
} m5_cli_list;

typedef struct m5_cli_opts {
    /* model and engine */
    const char *model, *isa, *kv, *chat_template, *threads;
    int ctx, parallel, queue, chunk, memory_mib, cache_ram_mib, cache_disk_mib, checkpoint_every;
    const char *cache_dir, *spec, *draft_model;
    int spec_k, exit_layer;
    const char *skip_layers;
    double draft_confidence;
    bool f32, no_repack;
    /* sampling */
    double temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty;
    int top_k, penalty_last_n, max_tokens;
    uint64_t seed;
    bool seed_given;
    m5_cli_list stop;
    /* serve */
    const char *host, *api_key, *alias;
    int port;
    m5_cli_list allow_host;
    const char *reasoning, *reasoning_format, *reasoning_field, *loop_guard, *escape_hints, *auto_think;
    int reasoning_budget;
    bool common_limit;
    /* run, chat */
    const char *system;
    bool raw, ignore_eos, stats;
    /* bench */
    const char *prompt_lengths, *gen_lengths, *depths, *spec_ks, *accepts;
    int rows;
    int reps;
    bool csv, ceilings;
    /* inspect, bench */
    bool json, tensors;
    /* debug */
    const char *ids, *tokenizer, *template_file, *input, *bos, *eos, *now;
    const char *batch_with;
    bool all, special, user_text, jsonl, guesses;
    /* cache */
    bool bad;
    /* calibrate, and who uses its record */
    const char *calibration, *text;
    double lossy_layer_skip;
    int tokens;
    /* everywhere */
    bool verbose, quiet, help, version;
    m5_cli_list args; /* what is not an option */
} m5_cli_opts;

typedef struct m5_cli_command {
    const char *name;     /* "serve", "debug logits" */
    const char *args;     /* what follows the options in the usage line */
    const char *summary;  /* one line */
    const char *text;     /* paragraphs and examples of --help */
    int (*run)(const m5_cli_opts *o);
} m5_cli_command;
/* Order of the table in main.c; the option table names commands by these bits. */
enum {
    CMD_SERVE = 1 << 0, CMD_RUN = 1 << 1, CMD_CHAT = 1 << 2, CMD_INSPECT = 1 << 3, CMD_BENCH = 1 << 4, CMD_LOGITS = 1 << 5, CMD_GENERATE = 1 << 6,
    CMD_TOKENIZE = 1 << 7, CMD_DETOKENIZE = 1 << 8, CMD_RENDER = 1 << 9, CMD_CACHE = 1 << 10, CMD_CALIBRATE = 1 << 11, CMD_ALL = (1 << 12) - 1
};
extern const m5_cli_command m5_cli_commands[];
extern const int m5_cli_n_commands;

/* opts.c */
/* Fills *o with the command's defaults and the arguments. Returns CLI_OK or CLI_USAGE (the message is already on stderr). */
int m5_cli_parse(m5_cli_opts *o, int command, int argc, char **argv);
void m5_cli_help(int command);
void m5_cli_help_overview(void);
void m5_cli_help_debug(void);
/* The candidate nearest to word, or NULL when none is near. */
const char *m5_cli_nearest(const char *word, const char *const *candidates, int n);
/* "5,6,7" -> ints in [low, high]; complains with the option's name. Caller frees ids. */
int m5_cli_ints(m5_ids *out, const char *option, const char *text, int low, int high);
int m5_cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints "m5-infer: <text>" and returns the exit code for the error. */
int m5_cli_fail(const m5_error *err);

/* load.c */
/* What must outlive loading: the bar's place, the template's text, a folder's name. */
typedef struct m5_cli_load {
    char *template_text, *calibration_dir;
    m5_ids skip_layers;
    int percent;
} m5_cli_load;
void m5_cli_load_deinit(m5_cli_load *load);
int m5_cli_engine_options(m5_engine_options *out, const m5_cli_opts *o, m5_cli_load *load); /* CLI_*; *load is set in any case */
int m5_cli_open_engine(m5_engine **out, const m5_cli_opts *o);                             /* CLI_*; complains itself */
/* For commands that open the model alone: leaves out what --lossy-layer-skip asks for. A warning names them. */
int m5_cli_leave_out(struct m5_model *m, const m5_engine_options *eo, m5_error *err);
void m5_cli_sampling(m5_sampling *s, const m5_cli_opts *o); /* what the user left open is below 0: m5_engine_fill_sampling */
void m5_cli_clear_line(void); /* wipes a progress bar on a terminal */
/* A number of bytes for people: "512 MiB", "1.5 GiB". */
const char *m5_cli_bytes(char buf[32], uint64_t bytes);
/* A calibration for people and for programs: cmd_calibrate.c. */
struct m5_calib;
void m5_cli_calib_table(const struct m5_calib *c, const char *path);
int m5_cli_calib_json(const struct m5_calib *c, const char *fingerprint);
/* Folder for prompt state in the user's cache folder; empty without one. */
void m5_cli_cache_dir(m5_buf *out);
int m5_cli_read_stdin(m5_buf *out); /* CLI_*; complains itself */

/* cmd_*.c */
int m5_cmd_serve(const m5_cli_opts *o);
int m5_cmd_run(const m5_cli_opts *o);
int m5_cmd_chat(const m5_cli_opts *o);
int m5_cmd_inspect(const m5_cli_opts *o);
int m5_cmd_bench(const m5_cli_opts *o);
int m5_cli_bench_spec(const m5_cli_opts *o, const m5_engine_options *eo); /* CLI_*; bench --accept */
int m5_cmd_debug_logits(const m5_cli_opts *o);
int m5_cmd_debug_generate(const m5_cli_opts *o);
int m5_cli_guesses(const m5_cli_opts *o); /* debug generate --guesses */
int m5_cmd_debug_tokenize(const m5_cli_opts *o);
int m5_cmd_debug_detokenize(const m5_cli_opts *o);
int m5_cli_open_tokenizer(m5_tokenizer **t, const char *path); /* CLI_*; complains itself */
int m5_cmd_cache(const m5_cli_opts *o);
int m5_cmd_debug_render(const m5_cli_opts *o);
int m5_cmd_calibrate(const m5_cli_opts *o);

#endif
