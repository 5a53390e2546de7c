/* SPDX-License-Identifier: Apache-2.0 */
/* Entry: the table of commands, dispatch, and `serve`. */
#include "cli/cli.h"

#include "base/mem.h"
#include "model/config.h"
#include "server/server.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const m5_cli_command m5_cli_commands[] = {
    {"serve", "[MODEL]", "serve a model over HTTP (the default command)",
     "Loads a model and answers the OpenAI chat and completion calls until Ctrl-C.\n\n"
     "  m5-infer --model model.gguf                        serve on http://127.0.0.1:8000\n"
     "  m5-infer serve -m model.gguf --port 0 --ctx 32768  a free port, contexts of 32768 tokens\n"
     "  m5-infer -m model.gguf --parallel 4                four requests at the same time\n\n"
     "The sampling options are defaults for requests that leave a field out.\n",
     m5_cmd_serve},
    {"run", "[PROMPT...]", "answer one prompt on stdout",
     "The prompt is the arguments, or stdin when there are none; '-' among them stands for stdin.\n\n"
     "  m5-infer run -m model.gguf \"Name three primes.\"\n"
     "  m5-infer run -m model.gguf \"Summarise this:\" - < notes.txt\n"
     "  m5-infer run -m model.gguf --raw --temp 0 -n 40 \"Once upon a time\"\n",
     m5_cmd_run},
    {"chat", "", "talk with a model in the terminal",
     "  m5-infer chat -m model.gguf --system \"Answer briefly.\"\n\n"
     "Ctrl-C stops the answer, Ctrl-D or /quit ends. /reset forgets the conversation, /system TEXT sets the system message, /help lists these.\n"
     "A line that ends with a backslash goes on with the next one. "
     "Lines are kept in $XDG_STATE_HOME/m5-infer/history (~/.local/state when unset).\n",
     m5_cmd_chat},
    {"inspect", "MODEL", "describe a model file without running it",
     "Architecture, sizes, tokenizer, template, memory need, and how each type of matrix will run on this machine.\n\n"
     "  m5-infer inspect model.gguf\n"
     "  m5-infer inspect model-folder --tensors\n"
     "  m5-infer inspect model.gguf --json\n",
     m5_cmd_inspect},
    {"bench", "", "measure prompt and answer speed",
     "Rows: ppN = N prompt tokens, tgN = N answer tokens, @D = with D tokens already in the context.\n\n"
     "  m5-infer bench -m model.gguf                             pp512 and tg64\n"
     "  m5-infer bench -m model.gguf -p 512,4096 -n 64 -d 0,8192\n"
     "  m5-infer bench -m model.gguf -p 0 -n 32 -t 1,2,4 --csv   answers with 1, 2 and 4 threads\n"
     "  m5-infer bench -m model.gguf -t 2 --accept 0,70,100      answers with drafts of coming tokens, some of them right\n"
     "  m5-infer bench --ceilings                                what the machine could do at best\n",
     m5_cmd_bench},
    {"debug logits", "", "print the logits after given token ids as JSON",
     "  m5-infer debug logits -m model.gguf --ids 5,6,7          {\"n_vocab\":V,\"logits\":[[...]]}, the last position\n"
     "  m5-infer debug logits -m model.gguf --ids 5,6,7 --all    one row for every position\n\n"
     "The same numbers must come out for any --threads and --chunk.\n",
     m5_cmd_debug_logits},
    {"debug generate", "", "print the continuation of token ids as JSON",
     "  m5-infer debug generate -m model.gguf --ids 5,6,7 -n 32  {\"ids\":[...]}\n"
     "  m5-infer debug generate ... --cache-dir D                uses and fills kept state; adds \"cached\":N\n"
     "  m5-infer debug generate ... --batch-with FILE            runs the id lists of FILE, one a line, in the same batch\n"
     "  m5-infer debug generate ... --spec ngram --spec-k 4      with drafts; adds \"draft_n\":N,\"draft_n_accepted\":N; the ids must not change\n"
     "  m5-infer debug generate ... --guesses                    how often each source's first guess is right, and its second when that is wrong\n\n"
     "Takes the likeliest token, or draws with --temp and --seed; does not stop at end tokens. --spec LIST always drafts as much as the list "
     "gives.\n",
     m5_cmd_debug_generate},
    {"debug tokenize", "", "turn the text on stdin into token ids",
     "  printf 'Hello' | m5-infer debug tokenize -m model.gguf       {\"ids\":[...]}\n"
     "  m5-infer debug tokenize --tokenizer tokenizer.json --jsonl < strings.jsonl\n\n"
     "Control tokens written in the text are recognised and no begin token is added, as Hugging Face's encode(text, add_special_tokens=False) does.\n"
     "--special adds the begin token where the model has that rule, as encode(text) does. --user-text takes control tokens in the text for ordinary\n"
     "characters, as the server does with the messages of users.\n",
     m5_cmd_debug_tokenize},
    {"debug detokenize", "", "turn token ids into text",
     "  m5-infer debug detokenize -m model.gguf --ids 9707,1879\n\n"
     "Prints the text alone, control tokens included, without a line end of its own.\n",
     m5_cmd_debug_detokenize},
    {"debug render", "", "render a chat template",
     "  m5-infer debug render --template chat.jinja --input case.json --bos '<s>' --eos '</s>'\n\n"
     "Prints the text alone, without a line end of its own. When the template fails, its message goes to stderr and the exit code is 3.\n",
     m5_cmd_debug_render},
    {"cache", "list|show NAME|verify|clear", "look at the prompt state and calibrations kept on disk",
     "  m5-infer cache list                   what is there: prompt state, most recently used first, and calibrations\n"
     "  m5-infer cache show NAME -m MODEL     the prompt of one file, as text (without -m: its token ids); of a calibration its table\n"
     "  m5-infer cache verify                 read every file and check every sum\n"
     "  m5-infer cache clear                  remove everything, calibrations too; --bad: only unfinished and damaged files\n\n"
     "A server that runs meanwhile is not disturbed: what is gone is computed again, calibrations when you run 'm5-infer calibrate'. A file that you named\n"
     "with --calibration is never touched.\n",
     m5_cmd_cache},
    {"calibrate", "MODEL", "measure what a model does without some of its layers",
     "Finds out which of its own layers guess the model's next tokens best and fastest, and what it loses when layers are left out for good. The record is\n"
     "kept beside the model's prompt state: drafts use it, and --lossy-layer-skip chooses from it.\n\n"
     "  m5-infer calibrate model.gguf                       on the model's own answers, a minute or two for one of 0.8B\n"
     "  m5-infer calibrate model.gguf --tokens 4096         with less noise\n"
     "  m5-infer calibrate model.gguf --text notes.txt      on a text of yours\n"
     "  m5-infer calibrate model.gguf --calibration m.rec   in a file of your choice\n",
     m5_cmd_calibrate},
};
const int m5_cli_n_commands = sizeof(m5_cli_commands) / sizeof(m5_cli_commands[0]);

/* ---- serve ---- */

static bool loopback(const char *host) { return strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0; }

static void on_listen(void *ctx, const char *host, int port)
{
    const m5_cli_opts *o = ctx;
    if (!o->quiet) fprintf(stderr, "m5-infer %s: loading %s; http://%s:%d answers health checks meanwhile\n", M5_VERSION, o->model, host, port);
}

static void print_lossy(const m5_lossy_info *l)
{
    printf("  LOSSY     %d layer%s left out (--lossy-layer-skip %g)", l->n_layers, l->n_layers == 1 ? " is" : "s are", l->wanted_kl);
    for (int k = 0; k < l->n_layers; k++) printf(k ? ", %d" : ": %d", l->layers[k]);
    printf("\n            mean KL %.4f, %.1f %% the same likeliest token, %.2f x\n\n", l->kl, l->top1 * 100, l->speed);
}

static void on_ready(void *ctx, m5_engine *engine, const char *host, int port)
{
    const m5_cli_opts *o = ctx;
    m5_engine_info i;
    char a[32], b[32], c[32];
    m5_engine_get_info(engine, &i);
    m5_cli_clear_line();
    const char *shown = strcmp(host, "0.0.0.0") == 0 ? "127.0.0.1" : host;
    printf("\n"
           "  model     %s (%s, %s, %.2f billion parameters)\n"
           "  runs on   %d thread%s, %s\n"
           "  context   %d tokens%s, %d at a time, %d may wait\n"
           "  memory    weights %s, state up to %s, of %s\n"
           "  address   http://%s:%d/v1\n\n",
           m5_engine_model_id(engine), i.family, i.format, (double)i.n_params / 1e9, i.n_threads, i.n_threads == 1 ? "" : "s", i.isa, i.n_ctx,
           i.n_ctx < i.n_ctx_train ? " (the model could more)" : "", i.n_parallel, i.n_queue, m5_cli_bytes(a, i.weight_bytes),
           m5_cli_bytes(b, i.state_bytes), m5_cli_bytes(c, i.memory_bytes), shown, port);
    if (i.lossy) print_lossy(i.lossy);
    printf("Try:\n  curl http://%s:%d/v1/chat/completions -H 'Content-Type: application/json'%s \\\n"
           "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Why is the sky blue?\"}]}'\n\nCtrl-C stops the server.\n",
           shown, port, o->api_key ? " -H \"Authorization: Bearer $M5_API_KEY\"" : "");
    if (!loopback(host) && !o->api_key) puts("Note: every machine that reaches this address may use the model. --api-key or M5_API_KEY asks for a key.");
    fflush(stdout);
}

typedef struct choice {
    const char *name;
    int value;
} choice;

/* Finds the word an option was given; NULL leaves *value. */
static int choose(const char *option, const char *word, const choice *choices, int *value)
{
    if (!word) return CLI_OK;
    m5_buf list = {0};
    for (int i = 0; choices[i].name; i++) {
        if (strcmp(word, choices[i].name) == 0) {
            *value = choices[i].value;
            m5_buf_free(&list);
            return CLI_OK;
        }
        m5_buf_printf(&list, "%s%s", i ? ", " : "", choices[i].name);
    }
    m5_cli_usage("--%s %s is not known; these are: %s", option, word, list.p ? list.p : "");
    m5_buf_free(&list);
    return CLI_USAGE;
}

static int policy(m5_turn_policy *p, const m5_cli_opts *o)
{
    static const choice modes[] = {{"auto", -1}, {"on", 1}, {"off", 0}, {NULL, 0}}, rules[] = {{"off", 0}, {"needle", 1}, {NULL, 0}};
    static const choice formats[] = {{"auto", M5_REASONING_FIELD}, {"deepseek", M5_REASONING_FIELD}, {"deepseek-legacy", M5_REASONING_BOTH},
                                     {"none", M5_REASONING_TEXT}, {"hidden", M5_REASONING_HIDDEN}, {NULL, 0}};
    static const choice fields[] = {{"reasoning_content", M5_FIELD_REASONING_CONTENT}, {"reasoning", M5_FIELD_REASONING}, {"both", M5_FIELD_BOTH}, {NULL, 0}};
    static const choice guards[] = {{"off", M5_LOOPS_OFF}, {"thought", M5_LOOPS_THOUGHT}, {"all", M5_LOOPS_ALL}, {NULL, 0}};
    static const choice hints[] = {{"off", M5_HINTS_OFF}, {"format", M5_HINTS_FORMAT}, {"auto", M5_HINTS_AUTO}, {NULL, 0}};
    int mode = -1, rule = 0, format = M5_REASONING_FIELD, field = M5_FIELD_REASONING_CONTENT, guard = M5_LOOPS_THOUGHT, hint = M5_HINTS_OFF;
    int rc = choose("reasoning", o->reasoning, modes, &mode);
    if (!rc) rc = choose("auto-think", o->auto_think, rules, &rule);
    if (!rc) rc = choose("reasoning-format", o->reasoning_format, formats, &format);
    if (!rc) rc = choose("reasoning-field", o->reasoning_field, fields, &field);
    if (!rc) rc = choose("loop-guard", o->loop_guard, guards, &guard);
    if (!rc) rc = choose("escape-hints", o->escape_hints, hints, &hint);
    *p = (m5_turn_policy){.thinking = o->reasoning_budget == 0 ? 0 : mode, .budget = o->reasoning_budget, .common_limit = o->common_limit};
    p->needle = rule;
    p->reasoning = (m5_reasoning)format;
    p->field = (m5_reasoning_field)field;
    p->loops = (m5_loop_guard)guard;
    p->hints = (m5_hints)hint;
    return rc;
}

int m5_cmd_serve(const m5_cli_opts *given)
{
    m5_cli_opts o = *given;
    m5_buf cache_dir = {0};
    m5_server_options so;
    m5_error err = {0};
    m5_cli_load load;
    if (!o.model && o.args.n == 1) o.model = o.args.items[0];
    else if (o.args.n) return m5_cli_usage("'%s' is one argument too many. See 'm5-infer serve --help'.", o.args.items[o.model ? 0 : 1]);
    if (!o.model) {
        m5_cli_usage("no model given. Serve one with: m5-infer --model PATH");
        fputs("'m5-infer --help' lists the commands.\n", stderr);
        return CLI_USAGE;
    }
    if (!o.api_key) o.api_key = getenv("M5_API_KEY");
    if (o.api_key && !*o.api_key) o.api_key = NULL;
    m5_server_options_default(&so);
    if (!o.cache_dir) m5_cli_cache_dir(&cache_dir);
    if (cache_dir.p) o.cache_dir = cache_dir.p;
    int rc = m5_cli_engine_options(&so.engine, &o, &load);
    if (!rc) rc = policy(&so.policy, &o);
    if (rc) {
        m5_cli_load_deinit(&load);
        m5_buf_free(&cache_dir);
        return rc;
    }
    so.host = o.host;
    so.port = o.port;
    so.api_key = o.api_key;
    so.allow_hosts = o.allow_host.n ? o.allow_host.items : NULL;
    so.model_alias = o.alias;
    m5_cli_sampling(&so.sampling, &o);
    so.max_tokens = o.max_tokens;
    so.on_listen = on_listen;
    so.on_ready = on_ready;
    so.ctx = &o;
    if (m5_server_run(&so, &err)) rc = m5_cli_fail(&err);
    m5_cli_load_deinit(&load);
    m5_buf_free(&cache_dir);
    return rc;
}

/* ---- dispatch ---- */

static int find_command(const char *name)
{
    for (int i = 0; i < m5_cli_n_commands; i++)
        if (strcmp(m5_cli_commands[i].name, name) == 0) return i;
    return -1;
}

static int unknown_command(const char *word, bool debug)
{
    const char *names[16];
    int n = 0;
    for (int i = 0; i < m5_cli_n_commands; i++) {
        bool is_debug = strncmp(m5_cli_commands[i].name, "debug ", 6) == 0;
        if (is_debug == debug) names[n++] = m5_cli_commands[i].name + (debug ? 6 : 0);
    }
    if (!debug) names[n++] = "debug";
    const char *near = m5_cli_nearest(word, names, n), *lead = debug ? "debug " : "";
    size_t len = strlen(word);
    if (!debug && (strchr(word, '/') || (len > 5 && strcmp(word + len - 5, ".gguf") == 0)))
        return m5_cli_usage("'%s' is not a command. To serve it: m5-infer --model %s", word, word);
    if (near) return m5_cli_usage("unknown command '%s%s'. Did you mean '%s%s'? 'm5-infer --help' lists them.", lead, word, lead, near);
    return m5_cli_usage("unknown command '%s%s'. 'm5-infer --help' lists them.", lead, word);
}

static int help_for(int argc, char **argv)
{
    char name[64];
    if (argc == 0) {
        m5_cli_help_overview();
        return CLI_OK;
    }
    snprintf(name, sizeof(name), "%s%s%s", argv[0], argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
    if (strcmp(name, "debug") == 0) {
        m5_cli_help_debug();
        return CLI_OK;
    }
    int c = find_command(name);
    if (c < 0) return unknown_command(argv[0], false);
    m5_cli_help(c);
    return CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    int command = 0, skip = 0;
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) return help_for(0, argv);
    if (argc > 0 && strcmp(argv[0], "help") == 0) return help_for(argc - 1, argv + 1);
    if (argc > 0 && argv[0][0] != '-') {
        char name[64];
        bool debug = strcmp(argv[0], "debug") == 0;
        if (debug && argc < 2) return m5_cli_usage("debug needs the name of a stage. 'm5-infer debug --help' lists them.");
        if (debug && argv[1][0] == '-') {
            m5_cli_help_debug();
            return CLI_OK;
        }
        snprintf(name, sizeof(name), "%s%s%s", argv[0], debug ? " " : "", debug ? argv[1] : "");
        command = find_command(name);
        if (command < 0) return unknown_command(argv[debug], debug);
        skip = debug ? 2 : 1;
    }
    m5_cli_opts *o = m5_calloc(M5_MEM_MISC, 1, sizeof(*o));
    if (!o) return CLI_FAILED;
    int rc = m5_cli_parse(o, command, argc - skip, argv + skip);
    if (rc == CLI_OK && o->version) {
        puts("m5-infer " M5_VERSION);
    } else if (rc == CLI_OK && o->help) {
        m5_cli_help(command);
    } else if (rc == CLI_OK) {
        m5_log_level usual = command == 0 ? M5_LOG_INFO : M5_LOG_WARN;
        m5_log_set_level(o->quiet ? M5_LOG_ERROR : o->verbose ? M5_LOG_DEBUG : usual);
        rc = m5_cli_commands[command].run(o);
    }
    m5_free(o);
    return rc;
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, ""); /* line editing only; numbers keep the C locale */
    signal(SIGPIPE, SIG_IGN);
    int rc = dispatch(argc - 1, argv + 1);
    if (fflush(stdout) || ferror(stdout)) {
        fputs("m5-infer: cannot write to stdout\n", stderr);
        rc = rc ? rc : CLI_FAILED;
    }
    return rc;
}
