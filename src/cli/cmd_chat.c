/* SPDX-License-Identifier: Apache-2.0 */
/* `run` (one answer on stdout) and `chat` (a conversation in the terminal). Home of libedit. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "text/chat.h"

#include <errno.h>
#include <histedit.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The one thing a signal handler can reach. */
static volatile sig_atomic_t interrupted;

static void on_sigint(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* ---- one answer ---- */

typedef struct answer {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    m5_buf text;
    bool done;
    m5_finish finish;
    m5_error error;
    m5_usage usage;
} answer;

static void on_event(void *ctx, const m5_event *ev)
{
    answer *a = ctx;
    if (ev->n_text) {
        fwrite(ev->text, 1, ev->n_text, stdout);
        fflush(stdout);
    }
    pthread_mutex_lock(&a->lock);
    m5_buf_append(&a->text, ev->text, ev->n_text);
    if (ev->kind == M5_EVENT_DONE) {
        a->done = true;
        a->finish = ev->finish;
        a->error = ev->error;
        a->usage = ev->usage;
        pthread_cond_signal(&a->ended);
    }
    pthread_mutex_unlock(&a->lock);
}

static void print_stats(const m5_usage *u)
{
    fprintf(stderr, "[%d prompt tokens", u->n_prompt);
    if (u->n_cached) fprintf(stderr, ", %d of them reused", u->n_cached);
    if (u->prompt_ms > 0) fprintf(stderr, ", %.1f tokens/s", (u->n_prompt - u->n_cached) * 1000 / u->prompt_ms);
    fprintf(stderr, "; %d answer tokens", u->n_generated);
    if (u->generate_ms > 0 && u->n_generated > 1) fprintf(stderr, ", %.1f tokens/s", (u->n_generated - 1) * 1000 / u->generate_ms);
    if (u->n_draft) fprintf(stderr, ", %d of %d drafts right", u->n_draft_accepted, u->n_draft);
    fputs("]\n", stderr);
}

/* Streams the answer to `prompt` to stdout. With can_interrupt Ctrl-C ends the answer and not the program. */
static int generate(m5_engine *e, const m5_cli_opts *o, const m5_ids *prompt, bool can_interrupt, answer *a)
{
    m5_error err = {0};
    m5_request *req = NULL;
    m5_gen_params p = {.ids = prompt->p, .n_ids = prompt->n, .max_tokens = o->max_tokens, .stop = o->stop.items, .n_stop = o->stop.n, .ignore_eos = o->ignore_eos};
    m5_sampling other;
    m5_sampling_default(&other);
    other.temperature = 0.7f;
    other.top_p = 0.95f;
    m5_cli_sampling(&p.sampling, o);
    m5_engine_fill_sampling(e, &p.sampling, &other);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->ended, NULL);
    interrupted = 0;
    if (m5_engine_submit(e, &p, on_event, a, &req, &err)) return m5_cli_fail(&err);
    pthread_mutex_lock(&a->lock);
    while (!a->done) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&a->ended, &a->lock, &until);
        if (can_interrupt && interrupted) m5_request_cancel(req);
    }
    pthread_mutex_unlock(&a->lock);
    m5_request_free(req);
    interrupted = 0;
    if (a->finish == M5_FINISH_ERROR) return m5_cli_fail(&a->error);
    if (o->stats) print_stats(&a->usage);
    return CLI_OK;
}

static void answer_deinit(answer *a)
{
    m5_buf_free(&a->text);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->ended);
}

static int add_message(m5_json *messages, const char *role, const char *text, size_t n)
{
    m5_json *m = m5_json_new_object();
    int rc = m5_json_set_str(m, "role", role);
    if (!rc) rc = m5_json_set_take(m, "content", m5_json_new_str(text, n));
    if (rc) {
        m5_json_unref(m);
        return rc;
    }
    return m5_json_push_take(messages, m);
}

/* Messages -> template -> tokens. The template places BOS itself. */
static int render(m5_ids *ids, m5_engine *e, m5_json *messages, m5_error *err)
{
    m5_buf text = {0};
    m5_text_span *spans = NULL;
    size_t n_spans = 0;
    m5_json *vars = m5_json_new_object();
    int rc = m5_json_set_take(vars, "messages", m5_json_ref(messages));
    if (!rc) rc = m5_json_set_bool(vars, "add_generation_prompt", true);
    if (rc)
        m5_error_set(err, rc, "out of memory for the conversation");
    else if (!(rc = m5_chat_render(m5_engine_chat(e), vars, -1, &text, &spans, &n_spans, err)))
        rc = m5_tokenize_spans(m5_engine_tokenizer(e), ids, text.p, text.n, spans, n_spans, false, err);
    m5_json_unref(vars);
    m5_free(spans);
    m5_buf_free(&text);
    return rc;
}

static int need_tokenizer(const m5_engine *e)
{
    if (m5_engine_tokenizer(e)) return CLI_OK;
    fputs("m5-infer: this model brings no tokenizer, so it cannot read text; 'm5-infer debug generate --ids' works\n", stderr);
    return CLI_FAILED;
}

/* ---- run ---- */

static int collect_prompt(m5_buf *out, const m5_cli_opts *o)
{
    if (o->args.n == 0) {
        if (isatty(STDIN_FILENO)) return m5_cli_usage("no prompt given. See 'm5-infer run --help'.");
        return m5_cli_read_stdin(out);
    }
    for (int i = 0; i < o->args.n; i++) {
        if (i > 0) m5_buf_puts(out, strcmp(o->args.items[i], "-") == 0 || strcmp(o->args.items[i - 1], "-") == 0 ? "\n\n" : " ");
        if (strcmp(o->args.items[i], "-") != 0) {
            m5_buf_puts(out, o->args.items[i]);
        } else {
            int rc = m5_cli_read_stdin(out);
            if (rc) return rc;
        }
    }
    return CLI_OK;
}

int m5_cmd_run(const m5_cli_opts *o)
{
    m5_engine *e = NULL;
    m5_error err = {0};
    m5_buf prompt = {0};
    m5_ids ids = {0};
    m5_json *messages = NULL;
    answer a = {0};
    if (!o->model) return m5_cli_usage("no model given: m5-infer run --model PATH \"...\"");
    int rc = collect_prompt(&prompt, o);
    if (rc || (rc = m5_cli_open_engine(&e, o)) || (rc = need_tokenizer(e))) goto out;
    if (o->raw) {
        rc = m5_tokenize(m5_engine_tokenizer(e), &ids, prompt.p, prompt.n, M5_SPECIAL_PARSE, true, &err);
    } else {
        messages = m5_json_new_array();
        rc = o->system ? add_message(messages, "system", o->system, strlen(o->system)) : 0;
        if (!rc) rc = add_message(messages, "user", prompt.p ? prompt.p : "", prompt.n);
        if (!rc) rc = render(&ids, e, messages, &err);
    }
    if (rc) {
        if (!err.code) m5_error_set(&err, rc, "out of memory for the prompt");
        rc = m5_cli_fail(&err);
        goto out;
    }
    rc = generate(e, o, &ids, false, &a);
    if (a.text.n && a.text.p[a.text.n - 1] != '\n') putchar('\n');
    answer_deinit(&a);
out:
    m5_engine_close(e);
    m5_json_unref(messages);
    m5_ids_free(&ids);
    m5_buf_free(&prompt);
    return rc;
}

/* ---- chat ---- */

typedef struct chat {
    const m5_cli_opts *o;
    m5_engine *e;
    m5_json *messages;
    m5_buf system;
    EditLine *el; /* NULL when stdin is no terminal */
    History *history;
    m5_buf history_path;
    bool more;    /* the line being read continues the one before */
    bool dropped; /* Ctrl-C at the prompt */
} chat;

static const char *prompt_text(EditLine *el)
{
    const chat *c = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&c);
    return c && c->more ? ". " : "> ";
}

/* Ctrl-C at the prompt arrives as a key, not as a signal: a signal that came between two reads of the keyboard would be noticed at the next key only. */
static unsigned char on_cancel_key(EditLine *el, int key)
{
    chat *c = NULL;
    (void)key;
    el_get(el, EL_CLIENTDATA, (void **)&c);
    if (c) c->dropped = true;
    return CC_NEWLINE;
}

static void open_editor(chat *c)
{
    HistEvent ev;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return;
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state == '/')
        m5_buf_printf(&c->history_path, "%s/m5-infer", state);
    else if (home && *home)
        m5_buf_printf(&c->history_path, "%s/.local/state/m5-infer", home);
    c->el = el_init("m5-infer", stdin, stdout, stderr);
    c->history = history_init();
    if (!c->el || !c->history) return;
    history(c->history, &ev, H_SETSIZE, 1000);
    history(c->history, &ev, H_SETUNIQUE, 1);
    el_set(c->el, EL_CLIENTDATA, c);
    el_set(c->el, EL_PROMPT, prompt_text);
    el_set(c->el, EL_EDITOR, "emacs");
    el_set(c->el, EL_HIST, history, c->history);
    el_source(c->el, NULL);
    el_set(c->el, EL_SETTY, "-d", "intr=", NULL);
    el_set(c->el, EL_ADDFN, "m5-drop-line", "Drop the line", on_cancel_key);
    el_set(c->el, EL_BIND, "^C", "m5-drop-line", NULL);
    if (!c->history_path.n || m5_dir_make(c->history_path.p, 0700, NULL)) {
        m5_buf_free(&c->history_path);
        return;
    }
    m5_buf_puts(&c->history_path, "/history");
    if (m5_path_exists(c->history_path.p)) history(c->history, &ev, H_LOAD, c->history_path.p);
}

static void close_editor(chat *c)
{
    if (c->history) history_end(c->history);
    if (c->el) el_end(c->el);
    m5_buf_free(&c->history_path);
}

/* Appends one line as it was typed; false at the end of input. Lines longer than one read are joined. */
static bool read_line(chat *c, m5_buf *line)
{
    size_t before = line->n;
    if (c->el) {
        int n = 0;
        c->dropped = false;
        el_set(c->el, EL_PREP_TERM, 1); /* el_gets leaves this out when something was typed ahead */
        const char *text = el_gets(c->el, &n);
        bool signalled = !text && n < 0 && (errno == EINTR || interrupted); /* by another program */
        if (c->dropped || signalled) {
            interrupted = 0;
            puts("\n(Ctrl-D or /quit ends)");
            el_reset(c->el);
            m5_buf_clear(line);
            return true;
        }
        if (!text || n <= 0) return false;
        m5_buf_append(line, text, (size_t)n);
    } else {
        char part[4096];
        do {
            if (!fgets(part, sizeof(part), stdin)) break;
            m5_buf_puts(line, part);
        } while (line->n > before && line->p[line->n - 1] != '\n');
        if (line->n == before) return false;
    }
    HistEvent ev;
    if (c->history && line->n > before + 1) {
        history(c->history, &ev, H_ENTER, line->p + before);
        if (c->history_path.n) history(c->history, &ev, H_SAVE, c->history_path.p);
    }
    while (line->n && (line->p[line->n - 1] == '\n' || line->p[line->n - 1] == '\r')) line->p[--line->n] = 0;
    return true;
}

/* What is said next, without its line end; a backslash at the end of a line goes on with the next one. False at the end of input. */
static bool next_line(chat *c, m5_buf *line)
{
    m5_buf_clear(line);
    c->more = false;
    while (read_line(c, line)) {
        if (!line->n || line->p[line->n - 1] != '\\') return !line->failed;
        line->p[line->n - 1] = '\n';
        c->more = true;
    }
    return c->more && !line->failed;
}

static int reset(chat *c)
{
    m5_json_unref(c->messages);
    c->messages = m5_json_new_array();
    return c->system.n ? add_message(c->messages, "system", c->system.p, c->system.n) : c->messages ? 0 : M5_ERR_NOMEM;
}

/* Lines that begin with a slash. Returns false when the conversation is over. */
static bool command(chat *c, const char *line)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/reset") == 0) {
        reset(c);
        puts("(new conversation)");
    } else if (strncmp(line, "/system", 7) == 0 && (line[7] == ' ' || line[7] == 0)) {
        m5_buf_clear(&c->system);
        m5_buf_puts(&c->system, line + 7 + strspn(line + 7, " "));
        reset(c);
        printf("(new conversation, %s)\n", c->system.n ? "with this system message" : "without a system message");
    } else {
        if (strcmp(line, "/help") != 0) printf("'%s' is not known here.\n", line);
        puts("/reset         forget the conversation\n"
             "/system TEXT   set the system message and start over; without TEXT: none\n"
             "/quit          end (also Ctrl-D)\n"
             "/help          this list\n"
             "A line that ends with a backslash goes on with the next one. Ctrl-C stops an answer. Everything else is said to the model.");
    }
    return true;
}

/* One turn. A failed turn leaves the conversation as it was before. */
static int turn(chat *c, const m5_buf *line)
{
    m5_error err = {0};
    m5_ids ids = {0};
    answer a = {0};
    m5_json *before = m5_json_dup(c->messages);
    int rc = before ? add_message(c->messages, "user", line->p, line->n) : M5_ERR_NOMEM;
    if (!rc) rc = render(&ids, c->e, c->messages, &err);
    if (rc) {
        if (!err.code) m5_error_set(&err, rc, "out of memory for the conversation");
        rc = m5_cli_fail(&err);
    } else {
        rc = generate(c->e, c->o, &ids, true, &a);
        puts(rc == CLI_OK && a.finish == M5_FINISH_CANCELLED ? " (stopped)" : "");
        if (!rc && a.finish == M5_FINISH_LENGTH && c->o->max_tokens < 0) puts("(the context is full: /reset starts a new conversation)");
        if (!rc) rc = add_message(c->messages, "assistant", a.text.p ? a.text.p : "", a.text.n) ? CLI_FAILED : CLI_OK;
        answer_deinit(&a);
    }
    if (rc && before) {
        m5_json_unref(c->messages);
        c->messages = before;
        before = NULL;
    }
    m5_json_unref(before);
    m5_ids_free(&ids);
    return rc;
}

int m5_cmd_chat(const m5_cli_opts *o)
{
    chat c = {.o = o};
    m5_buf line = {0};
    if (o->args.n) return m5_cli_usage("'%s': chat takes no prompt; 'm5-infer run' does", o->args.items[0]);
    int rc = m5_cli_open_engine(&c.e, o);
    if (rc || (rc = need_tokenizer(c.e))) goto out;
    if (o->system) m5_buf_puts(&c.system, o->system);
    struct sigaction sa = {.sa_handler = on_sigint}, old;
    sigaction(SIGINT, &sa, &old); /* without SA_RESTART, so that Ctrl-C also ends waiting for a line */
    open_editor(&c);
    if (c.el) printf("%s, context %d tokens. /help lists commands.\n", m5_engine_model_id(c.e), m5_engine_n_ctx(c.e));
    rc = reset(&c) ? CLI_FAILED : CLI_OK;
    while (!rc && next_line(&c, &line)) {
        if (line.n == 0) continue;
        if (line.p[0] == '/') {
            if (!command(&c, line.p)) break;
            continue;
        }
        int failed = turn(&c, &line);
        if (failed && !c.el) rc = failed;
    }
    if (c.el) putchar('\n');
    close_editor(&c);
    sigaction(SIGINT, &old, NULL);
out:
    m5_engine_close(c.e);
    m5_json_unref(c.messages);
    m5_buf_free(&c.system);
    m5_buf_free(&line);
    return rc;
}
