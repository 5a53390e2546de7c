/* SPDX-License-Identifier: Apache-2.0 */
/* Options: one table drives parsing, --help and the suggestions for mistyped names. */
#include "cli/cli.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum opt_type { OPT_FLAG, OPT_STR, OPT_INT, OPT_REAL, OPT_SEED, OPT_LIST } opt_type;
typedef enum opt_group { GROUP_MODEL, GROUP_SERVER, GROUP_TEXT, GROUP_THINKING, GROUP_SAMPLING, GROUP_COMMAND, GROUP_GENERAL, GROUP_COUNT } opt_group;

typedef struct option {
    const char *name;     /* without the dashes */
    char letter;          /* 0 = none */
    opt_type type;
    const char *arg;      /* how --help names the value; NULL for flags */
    size_t offset;
    unsigned commands;    /* CMD_* bits */
    opt_group group;
    double low, high;
    const char *help;     /* lines after the first are indented */
} option;

#define AT(field) offsetof(m5_cli_opts, field)
enum {
    ENGINE = CMD_SERVE | CMD_RUN | CMD_CHAT,
    FORWARD = ENGINE | CMD_BENCH | CMD_LOGITS | CMD_GENERATE,
    ALONE = FORWARD | CMD_CALIBRATE, /* everything that computes */
    ONE_MODEL = ALONE | CMD_INSPECT | CMD_TOKENIZE | CMD_DETOKENIZE | CMD_CACHE
};

static const option options[] = {
    {"model", 'm', OPT_STR, "PATH", AT(model), ONE_MODEL, GROUP_MODEL, 0, 0,
     "a .gguf file (of a split: any part), or a Hugging Face folder with safetensors"},
    {"threads", 't', OPT_STR, "N", AT(threads), ALONE & ~CMD_BENCH, GROUP_MODEL, 0, 0, "threads that compute (default: the usable cores)"},
    {"threads", 't', OPT_STR, "N,..", AT(threads), CMD_BENCH, GROUP_MODEL, 0, 0, "threads that compute; a list measures each (default: the usable cores)"},
    {"ctx", 'c', OPT_INT, "TOKENS", AT(ctx), ENGINE, GROUP_MODEL, 2, 1 << 28,
     "context of one sequence (default: the model's own, or what memory holds)"},
    {"parallel", 0, OPT_INT, "N", AT(parallel), CMD_SERVE, GROUP_MODEL, 1, 256, "requests that run at the same time (default 4); the others wait in line"},
    {"parallel", 0, OPT_INT, "N", AT(parallel), CMD_BENCH, GROUP_MODEL, 1, 256,
     "sequences that decode together (default 1); figures are sums over them"},
    {"rows", 0, OPT_INT, "N", AT(rows), CMD_BENCH, GROUP_COMMAND, 1, 32,
     "rows of each sequence in one forward of decode, as when N - 1 drafts are all accepted (default 1); figures count every row"},
    {"queue", 0, OPT_INT, "N", AT(queue), CMD_SERVE, GROUP_MODEL, 1, 1 << 20, "requests that may wait (default 64); more are refused with 429"},
    {"memory", 0, OPT_INT, "MIB", AT(memory_mib), ENGINE, GROUP_MODEL, 1, 1 << 30,
     "budget for weights, running sequences and prompt cache together (default: 85 % of the machine's memory)"},
    {"cache-ram", 0, OPT_INT, "MIB", AT(cache_ram_mib), ENGINE, GROUP_MODEL, 0, 1 << 30,
     "memory for prompt state that outlives its request (default: a quarter of what is free, at most 8192; 0: keep none)"},
    {"cache-dir", 0, OPT_STR, "FOLDER", AT(cache_dir), ENGINE | CMD_GENERATE | CMD_CACHE, GROUP_MODEL, 0, 0,
     "keep prompt state on disk here, so that it survives a restart (serve's default: m5-infer/state in the user's cache folder; none: \"\")"},
    {"cache-dir", 0, OPT_STR, "FOLDER", AT(cache_dir), CMD_CALIBRATE, GROUP_MODEL, 0, 0,
     "the record is written here, beside the model's prompt state (default: m5-infer/state in the user's cache folder)"},
    {"calibration", 0, OPT_STR, "FILE", AT(calibration), CMD_CALIBRATE, GROUP_MODEL, 0, 0, "write this file instead"},
    {"calibration", 0, OPT_STR, "FILE", AT(calibration), FORWARD, GROUP_MODEL, 0, 0,
     "what 'm5-infer calibrate' wrote (default: its record of this model in --cache-dir or the user's cache folder; none: \"\")"},
    {"lossy-layer-skip", 0, OPT_REAL, "KL", AT(lossy_layer_skip), FORWARD, GROUP_MODEL, 1e-9, 1e3,
     "LOSSY: leave out as many layers as 'm5-infer calibrate' measured a mean KL of at most this for, such as 0.05 (default: none); responses say so"},
    {"cache-disk", 0, OPT_INT, "MIB", AT(cache_disk_mib), ENGINE, GROUP_MODEL, 1, 1 << 30,
     "room for prompt state on disk (default: a tenth of what is free there, at most 16384)"},
    {"checkpoint-every", 0, OPT_INT, "TOKENS", AT(checkpoint_every), ENGINE, GROUP_MODEL, 16, 1 << 28,
     "a long prompt can be resumed at every multiple of this (default 512), beside message boundaries"},
    {"chunk", 0, OPT_INT, "ROWS", AT(chunk), FORWARD, GROUP_MODEL, 1, 8192,
     "prompt tokens computed in one pass, at most (default 512); the result does not depend on it"},
    {"kv", 0, OPT_STR, "TYPE", AT(kv), ALONE, GROUP_MODEL, 0, 0, "how keys and values are kept: i16 (default), f16, bf16, f32, q8_0"},
    {"isa", 0, OPT_STR, "NAME", AT(isa), ALONE | CMD_INSPECT, GROUP_MODEL, 0, 0, "highest instruction set to use: auto (default), ref, avx2, avx512, amx, neon, i8mm"},
    {"f32", 0, OPT_FLAG, NULL, AT(f32), ALONE, GROUP_MODEL, 0, 0, "reference arithmetic: activations, keys and values stay 32-bit floats (slow)"},
    {"no-repack", 0, OPT_FLAG, NULL, AT(no_repack), ALONE, GROUP_MODEL, 0, 0, "use the weights as the file lays them out: loads faster, runs slower"},
    {"spec", 0, OPT_STR, "LIST", AT(spec), ENGINE | CMD_GENERATE, GROUP_MODEL, 0, 0,
     "where drafts of coming tokens come from: auto (default; debug: off), off, or a list of ngram, mtp, model, exit, skip; never changes the output"},
    {"draft-model", 0, OPT_STR, "PATH", AT(draft_model), ENGINE | CMD_GENERATE, GROUP_MODEL, 0, 0, "a smaller model of the same vocabulary that drafts (source: model)"},
    {"exit-layer", 0, OPT_INT, "N", AT(exit_layer), ENGINE | CMD_GENERATE, GROUP_MODEL, 1, 512,
     "drafts of the source exit come from the first N layers (default: what was calibrated, else half of them)"},
    {"skip-layers", 0, OPT_STR, "N,..", AT(skip_layers), ENGINE | CMD_GENERATE, GROUP_MODEL, 0, 0,
     "drafts of the source skip leave these layers out (default: what was calibrated, else every second of the middle half)"},
    {"draft-confidence", 0, OPT_REAL, "P", AT(draft_confidence), ENGINE | CMD_GENERATE, GROUP_MODEL, 0, 1,
     "exit and skip stop before a guess of less probability (default: what was calibrated, else 0: never)"},
    {"spec-k", 0, OPT_INT, "N", AT(spec_k), ENGINE | CMD_GENERATE, GROUP_MODEL, 1, M5_SPEC_MAX_K, "longest draft, in tokens (default 12)"},
    {"chat-template", 0, OPT_STR, "FILE", AT(chat_template), ENGINE, GROUP_MODEL, 0, 0, "use this Jinja template instead of the model's own"},

    {"port", 'p', OPT_INT, "PORT", AT(port), CMD_SERVE, GROUP_SERVER, 0, 65535, "port to listen on (default 8000; 0 picks a free one)"},
    {"host", 0, OPT_STR, "ADDRESS", AT(host), CMD_SERVE, GROUP_SERVER, 0, 0, "address to listen on (default 127.0.0.1: this machine only)"},
    {"api-key", 0, OPT_STR, "KEY", AT(api_key), CMD_SERVE, GROUP_SERVER, 0, 0,
     "require this key; better given as M5_API_KEY in the environment, where process lists do not show it"},
    {"allow-host", 0, OPT_LIST, "NAME", AT(allow_host), CMD_SERVE, GROUP_SERVER, 0, 0,
     "accept this name in Host and Origin headers too; * accepts any (may be repeated)"},
    {"alias", 0, OPT_STR, "NAME", AT(alias), CMD_SERVE, GROUP_SERVER, 0, 0, "name of the model in answers (default: its file name)"},

    {"system", 's', OPT_STR, "TEXT", AT(system), CMD_RUN | CMD_CHAT, GROUP_TEXT, 0, 0, "system message"},
    {"raw", 0, OPT_FLAG, NULL, AT(raw), CMD_RUN, GROUP_TEXT, 0, 0, "continue the text as it is, without the chat template"},
    {"max-tokens", 'n', OPT_INT, "N", AT(max_tokens), CMD_SERVE | CMD_RUN | CMD_CHAT, GROUP_TEXT, -1, INT_MAX,
     "end an answer after N tokens (default -1: at the end of the context)"},
    {"max-tokens", 'n', OPT_INT, "N", AT(max_tokens), CMD_GENERATE, GROUP_TEXT, 0, INT_MAX, "how many tokens (default 32)"},
    {"stop", 0, OPT_LIST, "TEXT", AT(stop), CMD_RUN | CMD_CHAT, GROUP_TEXT, 0, 0, "end the answer right before this text (may be repeated)"},
    {"ignore-eos", 0, OPT_FLAG, NULL, AT(ignore_eos), CMD_RUN, GROUP_TEXT, 0, 0, "go on after the model's end token"},
    {"stats", 0, OPT_FLAG, NULL, AT(stats), CMD_RUN | CMD_CHAT, GROUP_TEXT, 0, 0, "say on stderr how many tokens were computed and how fast"},

    {"reasoning", 0, OPT_STR, "MODE", AT(reasoning), CMD_SERVE, GROUP_THINKING, 0, 0,
     "whether answers are thought about when the request leaves it open: on, off, auto (default: as the model's template does)"},
    {"reasoning-budget", 0, OPT_INT, "TOKENS", AT(reasoning_budget), CMD_SERVE, GROUP_THINKING, -1, INT_MAX,
     "thinking is closed after so many tokens and the answer follows (default 32768; -1: no limit; 0: no thinking)"},
    {"max-tokens-includes-thinking", 0, OPT_FLAG, NULL, AT(common_limit), CMD_SERVE, GROUP_THINKING, 0, 0,
     "max_tokens limits thought and answer together, as max_completion_tokens always does; else it limits the answer alone"},
    {"reasoning-format", 0, OPT_STR, "FORMAT", AT(reasoning_format), CMD_SERVE, GROUP_THINKING, 0, 0,
     "where thoughts go: deepseek or auto (default: their own field), none (the content, with tags), deepseek-legacy (both), hidden (nowhere)"},
    {"reasoning-field", 0, OPT_STR, "NAME", AT(reasoning_field), CMD_SERVE, GROUP_THINKING, 0, 0,
     "name of that field: reasoning_content (default), reasoning or both"},
    {"loop-guard", 0, OPT_STR, "WHERE", AT(loop_guard), CMD_SERVE, GROUP_THINKING, 0, 0,
     "a text that repeats itself word for word is ended: thought (default: the thought is closed), all (an answer ends with \"repetition\" too), off"},
    {"escape-hints", 0, OPT_STR, "MODE", AT(escape_hints), CMD_SERVE, GROUP_THINKING, 0, 0,
     "how an answer begins whose thought was cut: off (default: freely), format (only what the request's fields say), "
     "auto (also a form asked for in so many words, such as ```json)"},
    {"auto-think", 0, OPT_STR, "RULE", AT(auto_think), CMD_SERVE, GROUP_THINKING, 0, 0,
     "off (default), or needle: think about a short question on a long text when request and model leave thinking off"},

    {"temp", 0, OPT_REAL, "T", AT(temperature), ENGINE | CMD_GENERATE, GROUP_SAMPLING, 0, 1e6,
     "temperature; 0 always takes the likeliest token (default: what the model advises, else 0.7; serve: 1; debug: 0)"},
    {"top-k", 0, OPT_INT, "N", AT(top_k), ENGINE, GROUP_SAMPLING, 0, INT_MAX, "draw from the N likeliest tokens; 0: all (default: what the model advises, else 0)"},
    {"top-p", 0, OPT_REAL, "P", AT(top_p), ENGINE, GROUP_SAMPLING, 0, 1,
     "draw from the likeliest tokens that together reach P (default: what the model advises, else 0.95; serve: 1)"},
    {"min-p", 0, OPT_REAL, "P", AT(min_p), ENGINE, GROUP_SAMPLING, 0, 1, "drop tokens below P times the likeliest one (default: what the model advises, else 0)"},
    {"typical-p", 0, OPT_REAL, "P", AT(typical_p), ENGINE, GROUP_SAMPLING, 0, 1, "locally typical sampling with mass P (default 1: off)"},
    {"repeat-penalty", 0, OPT_REAL, "X", AT(repetition_penalty), ENGINE, GROUP_SAMPLING, 1e-3, 1e3,
     "make tokens seen before less likely; 1: off (default: what the model advises, else 1)"},
    {"repeat-last-n", 0, OPT_INT, "N", AT(penalty_last_n), ENGINE, GROUP_SAMPLING, -1, INT_MAX, "tokens --repeat-penalty looks back (default -1: all)"},
    {"presence-penalty", 0, OPT_REAL, "X", AT(presence_penalty), ENGINE, GROUP_SAMPLING, -100, 100, "subtract X from tokens of the answer so far (default 0)"},
    {"frequency-penalty", 0, OPT_REAL, "X", AT(frequency_penalty), ENGINE, GROUP_SAMPLING, -100, 100, "subtract X for each time a token was used (default 0)"},
    {"seed", 0, OPT_SEED, "N", AT(seed), CMD_RUN | CMD_CHAT | CMD_GENERATE, GROUP_SAMPLING, 0, 0, "the same seed gives the same answer (default: by chance)"},

    {"prompt", 'p', OPT_STR, "N,..", AT(prompt_lengths), CMD_BENCH, GROUP_COMMAND, 0, 0, "prompt lengths to measure (default 512; 0 = none)"},
    {"gen", 'n', OPT_STR, "N,..", AT(gen_lengths), CMD_BENCH, GROUP_COMMAND, 0, 0, "answer lengths to measure (default 64; 0 = none)"},
    {"depth", 'd', OPT_STR, "N,..", AT(depths), CMD_BENCH, GROUP_COMMAND, 0, 0, "tokens already in the context (default 0)"},
    {"reps", 'r', OPT_INT, "N", AT(reps), CMD_BENCH, GROUP_COMMAND, 1, 1000, "repetitions of each measurement (default 3)"},
    {"accept", 0, OPT_STR, "P,..", AT(accepts), CMD_BENCH, GROUP_COMMAND, 0, 0,
     "measure answers with drafts of which P percent are right, of each --spec-k (default 1,2,3,4,8), beside plain ones"},
    {"spec-k", 0, OPT_STR, "N,..", AT(spec_ks), CMD_BENCH, GROUP_COMMAND, 0, 0, "lengths of drafts for --accept"},
    {"ceilings", 0, OPT_FLAG, NULL, AT(ceilings), CMD_BENCH, GROUP_COMMAND, 0, 0,
     "measure what the machine can do: memory bandwidth and integer peak; with a model by turns with it, a token each or a prompt each"},
    {"guesses", 0, OPT_FLAG, NULL, AT(guesses), CMD_GENERATE, GROUP_COMMAND, 0, 0, "instead of the ids print how good the guesses of each source of drafts are"},
    {"csv", 0, OPT_FLAG, NULL, AT(csv), CMD_BENCH, GROUP_COMMAND, 0, 0, "comma-separated values"},
    {"text", 0, OPT_STR, "FILE", AT(text), CMD_CALIBRATE, GROUP_COMMAND, 0, 0, "measure on this text (default: the model's own answers to a few questions)"},
    {"tokens", 'n', OPT_INT, "N", AT(tokens), CMD_CALIBRATE, GROUP_COMMAND, 16, 1 << 20, "tokens to measure at (default 512)"},
    {"json", 0, OPT_FLAG, NULL, AT(json), CMD_BENCH | CMD_INSPECT | CMD_CACHE | CMD_CALIBRATE, GROUP_COMMAND, 0, 0, "JSON"},
    {"tensors", 0, OPT_FLAG, NULL, AT(tensors), CMD_INSPECT, GROUP_COMMAND, 0, 0, "list every matrix"},

    {"ids", 0, OPT_STR, "5,6,7", AT(ids), CMD_LOGITS | CMD_GENERATE | CMD_DETOKENIZE, GROUP_COMMAND, 0, 0, "token ids, separated by commas or blanks"},
    {"batch-with", 0, OPT_STR, "FILE", AT(batch_with), CMD_GENERATE, GROUP_COMMAND, 0, 0, "other id lists, one a line, that run in the same batch"},
    {"bad", 0, OPT_FLAG, NULL, AT(bad), CMD_CACHE, GROUP_COMMAND, 0, 0, "clear: only unfinished and damaged files"},
    {"all", 0, OPT_FLAG, NULL, AT(all), CMD_LOGITS, GROUP_COMMAND, 0, 0, "one row for every position instead of the last one"},
    {"tokenizer", 0, OPT_STR, "FILE", AT(tokenizer), CMD_TOKENIZE | CMD_DETOKENIZE, GROUP_COMMAND, 0, 0, "a tokenizer.json (or a .gguf) instead of --model"},
    {"special", 0, OPT_FLAG, NULL, AT(special), CMD_TOKENIZE, GROUP_COMMAND, 0, 0, "put the begin token in front where the model has that rule"},
    {"user-text", 0, OPT_FLAG, NULL, AT(user_text), CMD_TOKENIZE, GROUP_COMMAND, 0, 0, "control tokens in the text are ordinary characters, as in a user's message"},
    {"jsonl", 0, OPT_FLAG, NULL, AT(jsonl), CMD_TOKENIZE | CMD_DETOKENIZE, GROUP_COMMAND, 0, 0,
     "each line of stdin is one JSON value (a string; detokenize: an array of ids), each gives one line"},
    {"template", 0, OPT_STR, "FILE", AT(template_file), CMD_RENDER, GROUP_COMMAND, 0, 0, "the Jinja template"},
    {"input", 0, OPT_STR, "FILE", AT(input), CMD_RENDER, GROUP_COMMAND, 0, 0, "JSON object with messages, tools, add_generation_prompt and other variables"},
    {"bos", 0, OPT_STR, "TEXT", AT(bos), CMD_RENDER, GROUP_COMMAND, 0, 0, "text of the begin token (default empty)"},
    {"eos", 0, OPT_STR, "TEXT", AT(eos), CMD_RENDER, GROUP_COMMAND, 0, 0, "text of the end token (default empty)"},
    {"now", 0, OPT_STR, "TIME", AT(now), CMD_RENDER, GROUP_COMMAND, 0, 0, "what strftime_now sees, such as 2026-07-26T12:00:00 (default: the clock)"},

    {"verbose", 'v', OPT_FLAG, NULL, AT(verbose), CMD_ALL, GROUP_GENERAL, 0, 0, "log more"},
    {"quiet", 'q', OPT_FLAG, NULL, AT(quiet), CMD_ALL, GROUP_GENERAL, 0, 0, "log errors only, no progress"},
    {"help", 'h', OPT_FLAG, NULL, AT(help), CMD_ALL, GROUP_GENERAL, 0, 0, "this text"},
    {"version", 0, OPT_FLAG, NULL, AT(version), CMD_ALL, GROUP_GENERAL, 0, 0, "the version"},
};
enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

static const char *const group_names[GROUP_COUNT] = {"Model", "Server", "Text", "Thinking", "Sampling", "Options", "General"};

int m5_cli_usage(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("m5-infer: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return CLI_USAGE;
}

int m5_cli_fail(const m5_error *err)
{
    m5_cli_clear_line();
    fprintf(stderr, "m5-infer: %s\n", err->text[0] ? err->text : m5_err_name(err->code));
    return err->code == M5_ERR_TEMPLATE ? CLI_TEMPLATE : CLI_FAILED;
}

/* Edit distance with neighbours swapped at cost 1 (optimal string alignment), over short names. */
static int distance(const char *a, const char *b)
{
    enum { MAX = 32 };
    int n = (int)strlen(a), m = (int)strlen(b), d[MAX + 1][MAX + 1];
    if (n > MAX || m > MAX) return MAX;
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best) best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *m5_cli_nearest(const char *word, const char *const *candidates, int n)
{
    const char *best = NULL;
    int least = (int)strlen(word) / 3 + 2;
    size_t len = strlen(word);
    for (int i = 0; i < n; i++) {
        int d = distance(word, candidates[i]);
        if (len >= 3 && d > 1 && strncmp(word, candidates[i], len) == 0) d = 1; /* "--repeat" means the option it begins */
        if (d < least) least = d, best = candidates[i];
    }
    return best;
}

static const option *find_option(int command, const char *name, size_t n, char letter)
{
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &options[i];
        if (!(o->commands >> command & 1)) continue;
        if (letter ? o->letter == letter : strlen(o->name) == n && memcmp(o->name, name, n) == 0) return o;
    }
    return NULL;
}

static int unknown_option(int command, const char *text, size_t n)
{
    const char *names[N_OPTIONS];
    int n_names = 0;
    char word[64];
    snprintf(word, sizeof(word), "%.*s", (int)(n < 63 ? n : 63), text);
    const m5_cli_command *c = &m5_cli_commands[command];
    unsigned elsewhere = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        if (options[i].commands >> command & 1) names[n_names++] = options[i].name;
        if (strcmp(options[i].name, word) == 0) elsewhere |= options[i].commands;
    }
    if (elsewhere) {
        m5_buf b = {0};
        for (int i = 0; i < m5_cli_n_commands; i++)
            if (elsewhere >> i & 1) m5_buf_printf(&b, "%s%s", b.n ? ", " : "", m5_cli_commands[i].name);
        m5_cli_usage("--%s is not an option of '%s' (it belongs to: %s). See 'm5-infer %s --help'.", word, c->name, b.p ? b.p : "", c->name);
        m5_buf_free(&b);
        return CLI_USAGE;
    }
    const char *near = m5_cli_nearest(word, names, n_names);
    if (near) return m5_cli_usage("unknown option --%s. Did you mean --%s? See 'm5-infer %s --help'.", word, near, c->name);
    return m5_cli_usage("unknown option --%s. See 'm5-infer %s --help'.", word, c->name);
}

static int set_option(m5_cli_opts *opts, const option *o, const char *value)
{
    void *at = (char *)opts + o->offset;
    char *end = NULL;
    errno = 0;
    switch (o->type) {
    case OPT_FLAG: *(bool *)at = true; return CLI_OK;
    case OPT_STR: *(const char **)at = value; return CLI_OK;
    case OPT_INT: {
        long long v = strtoll(value, &end, 10);
        if (!*value || *end || errno) return m5_cli_usage("--%s needs a whole number, not '%s'", o->name, value);
        if ((double)v < o->low || (double)v > o->high) return m5_cli_usage("--%s %s is out of range (%.0f to %.0f)", o->name, value, o->low, o->high);
        *(int *)at = (int)v;
        return CLI_OK;
    }
    case OPT_REAL: {
        double v = strtod(value, &end);
        if (!*value || *end || errno) return m5_cli_usage("--%s needs a number, not '%s'", o->name, value);
        if (!(v >= o->low && v <= o->high)) return m5_cli_usage("--%s %s is out of range (%g to %g)", o->name, value, o->low, o->high);
        *(double *)at = v;
        return CLI_OK;
    }
    case OPT_SEED: {
        unsigned long long v = strtoull(value, &end, 10);
        if (!*value || *end || errno || *value == '-') return m5_cli_usage("--%s needs a whole number from 0 on, not '%s'", o->name, value);
        *(uint64_t *)at = v;
        opts->seed_given = true;
        return CLI_OK;
    }
    case OPT_LIST: {
        m5_cli_list *list = at;
        if (list->n == CLI_MAX_LIST) return m5_cli_usage("--%s may be given %d times", o->name, CLI_MAX_LIST);
        list->items[list->n++] = value;
        return CLI_OK;
    }
    }
    return CLI_OK;
}

static void defaults(m5_cli_opts *o, int command)
{
    memset(o, 0, sizeof(*o));
    o->port = 8000;
    o->host = "127.0.0.1";
    o->temperature = o->top_p = o->min_p = o->repetition_penalty = o->top_k = -1; /* not given: what the model's author advises */
    o->typical_p = 1;
    o->penalty_last_n = -1;
    o->cache_ram_mib = -1;
    o->reasoning_budget = 32768;
    o->max_tokens = 1u << command == CMD_GENERATE ? 32 : -1;
    o->prompt_lengths = "512";
    o->gen_lengths = "64";
    o->depths = "0";
    o->reps = 3;
    o->bos = o->eos = "";
}

int m5_cli_parse(m5_cli_opts *o, int command, int argc, char **argv)
{
    defaults(o, command);
    bool only_args = false;
    for (int i = 0; i < argc; i++) {
        char *a = argv[i];
        if (only_args || a[0] != '-' || a[1] == 0) {
            if (o->args.n == CLI_MAX_LIST) return m5_cli_usage("too many arguments; put text with blanks in quotes");
            o->args.items[o->args.n++] = a;
            continue;
        }
        if (strcmp(a, "--") == 0) {
            only_args = true;
            continue;
        }
        const option *opt;
        const char *value = NULL;
        if (a[1] == '-') {
            size_t n = strcspn(a + 2, "=");
            opt = find_option(command, a + 2, n, 0);
            if (!opt) return unknown_option(command, a + 2, n);
            if (a[2 + n] == '=') value = a + 2 + n + 1;
        } else {
            opt = find_option(command, NULL, 0, a[1]);
            if (!opt) return m5_cli_usage("unknown option -%c. See 'm5-infer %s --help'.", a[1], m5_cli_commands[command].name);
            if (a[2]) value = a + 2;
        }
        if (opt->type == OPT_FLAG) {
            if (value) return m5_cli_usage("--%s takes no value", opt->name);
        } else if (!value) {
            if (i + 1 == argc) return m5_cli_usage("--%s needs a value: --%s %s", opt->name, opt->name, opt->arg);
            value = argv[++i];
        }
        int rc = set_option(o, opt, value);
        if (rc) return rc;
    }
    return CLI_OK;
}

void m5_cli_help(int command)
{
    const m5_cli_command *c = &m5_cli_commands[command];
    printf("m5-infer %s: %s\n\nUsage: m5-infer %s%s [options]%s%s\n\n%s", c->name, c->summary, c->name, command == 0 ? " (or just: m5-infer)" : "", *c->args ? " " : "",
           c->args, c->text);
    for (int g = 0; g < GROUP_COUNT; g++) {
        bool titled = false;
        for (int i = 0; i < N_OPTIONS; i++) {
            const option *o = &options[i];
            if ((int)o->group != g || !(o->commands >> command & 1)) continue;
            if (!titled) printf("\n%s:\n", group_names[g]);
            titled = true;
            char left[64];
            snprintf(left, sizeof(left), "%c%c%c --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ', o->letter ? ',' : ' ', o->name, o->arg ? " " : "",
                     o->arg ? o->arg : "");
            printf("  %-28s %s\n", left, o->help);
        }
    }
}

static void print_commands(bool debug)
{
    for (int i = 0; i < m5_cli_n_commands; i++)
        if ((strncmp(m5_cli_commands[i].name, "debug ", 6) == 0) == debug) printf("  %-18s %s\n", m5_cli_commands[i].name, m5_cli_commands[i].summary);
}

void m5_cli_help_debug(void)
{
    puts("m5-infer debug: run one stage alone and print what it gives, for comparing with other implementations\n\nUsage: m5-infer debug STAGE [options]\n");
    print_commands(true);
    puts("\n'm5-infer debug STAGE --help' explains one.");
}

void m5_cli_help_overview(void)
{
    puts("m5-infer: a local server for language models, made for agents and long conversations\n\nUsage: m5-infer [COMMAND] [options]\n\nCommands:");
    print_commands(false);
    puts("  debug              run one stage alone and print what it gives\n"
         "\nExamples:\n"
         "  m5-infer --model model.gguf                  serve on http://127.0.0.1:8000 ('serve' is the default command)\n"
         "  m5-infer chat --model model.gguf             talk to it here\n"
         "  m5-infer run -m model.gguf \"Name a prime.\"   one answer on stdout\n"
         "\n'm5-infer COMMAND --help' explains a command and its options.");
}

int m5_cli_ints(m5_ids *out, const char *option_name, const char *text, int low, int high)
{
    const char *p = text;
    for (;;) {
        p += strspn(p, " ,\t\r\n[]");
        if (!*p) break;
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || (*end && !strchr(" ,\t\r\n[]", *end))) return m5_cli_usage("--%s needs whole numbers separated by commas, not '%s'", option_name, text);
        if (v < low || v > high) return m5_cli_usage("--%s: %lld is out of range (%d to %d)", option_name, v, low, high);
        if (m5_ids_push(out, (int32_t)v)) return m5_cli_usage("out of memory");
        p = end;
    }
    return out->n ? CLI_OK : m5_cli_usage("--%s names no number", option_name);
}
