/* SPDX-License-Identifier: Apache-2.0 */
/* See wire.h. May touch: base, text. */
#include "server/wire.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct m5_wire_lazy {
    pthread_mutex_t mu;
    m5_grammar_vocab *vocab;
};

static int tokens_of(const m5_tokenizer *tok, m5_ids *out, const char *a, const char *b, const char *c, m5_error *err)
{
    m5_buf text = {0};
    m5_buf_puts(&text, a);
    m5_buf_puts(&text, b);
    m5_buf_puts(&text, c);
    int rc = text.failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory")
                         : m5_tokenize(tok, out, text.p ? text.p : "", text.n, M5_SPECIAL_PARSE, false, err);
    m5_buf_free(&text);
    return rc;
}

/* The token that an opening tag begins with: the whole tag, or its bracketed part ("<|channel>" of "<|channel>thought"). */
static int32_t first_token(const m5_tokenizer *tok, const char *tag)
{
    int32_t id = m5_tokenizer_find(tok, m5_slice_of(tag));
    const char *end = strchr(tag, '>');
    return id < 0 && end && end[1] ? m5_tokenizer_find(tok, (m5_slice){tag, (size_t)(end - tag) + 1}) : id;
}

static int find_thought(m5_wire *w, m5_error *err)
{
    const m5_chat_thought *t = w->thought;
    w->open_id = first_token(w->tok, t->open);
    w->close_id = m5_tokenizer_find(w->tok, m5_slice_of(t->close));
    size_t n_first = w->open_id >= 0 ? m5_tokenizer_piece(w->tok, w->open_id).n : 0;
    int rc = n_first < strlen(t->open) && w->open_id >= 0 ? tokens_of(w->tok, &w->open_rest, t->open + n_first, "", "", err) : 0;
    if (!rc) rc = tokens_of(w->tok, &w->close_line, t->before, t->close, t->after, err);
    if (!rc) rc = tokens_of(w->tok, &w->close_bare, t->close, t->after, "", err);
    if (!rc) rc = tokens_of(w->tok, &w->after, t->after, "", "", err);
    return rc;
}

static int find_marks(m5_wire *w, m5_error *err)
{
    const char *mark;
    for (size_t i = 0; (mark = m5_toolcall_format_mark(w->format, i)) != NULL; i++) {
        m5_ids ids = {0};
        int rc = tokens_of(w->tok, &ids, mark, "", "", err);
        for (size_t k = 0; k < ids.n && !rc; k++)
            if (m5_tokenizer_is_control(w->tok, ids.p[k])) rc = m5_ids_push(&w->marks, ids.p[k]);
        m5_ids_free(&ids);
        if (rc) return rc;
    }
    return 0;
}

int m5_wire_new(m5_wire **out, const m5_tokenizer *tok, const m5_chat *chat, m5_error *err)
{
    *out = NULL;
    m5_wire *w = m5_calloc(M5_MEM_TEXT, 1, sizeof *w);
    struct m5_wire_lazy *lazy = m5_calloc(M5_MEM_TEXT, 1, sizeof *lazy);
    if (!w || !lazy) {
        m5_free(w);
        m5_free(lazy);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    }
    pthread_mutex_init(&lazy->mu, NULL);
    w->lazy = lazy;
    w->tok = tok;
    w->chat = chat;
    w->open_id = w->close_id = -1;
    w->thought = m5_chat_get_thought(chat);
    int rc = w->thought ? find_thought(w, err) : 0;
    if (!rc) rc = m5_toolcall_format_new(&w->format, chat, err);
    if (!rc) rc = find_marks(w, err);
    if (rc) {
        m5_wire_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void m5_wire_free(m5_wire *w)
{
    if (!w) return;
    m5_ids_free(&w->open_rest);
    m5_ids_free(&w->close_line);
    m5_ids_free(&w->close_bare);
    m5_ids_free(&w->after);
    m5_ids_free(&w->marks);
    m5_toolcall_format_free(w->format);
    m5_grammar_vocab_free(w->lazy->vocab);
    pthread_mutex_destroy(&w->lazy->mu);
    m5_free(w->lazy);
    m5_free(w);
}

bool m5_wire_shows(const m5_wire *w, int32_t id)
{
    if (!m5_tokenizer_is_control(w->tok, id) || id == w->open_id || id == w->close_id) return true;
    for (size_t i = 0; i < w->marks.n; i++)
        if (w->marks.p[i] == id) return true;
    return false;
}

int m5_wire_vocab(m5_wire *w, m5_grammar_vocab **out, m5_error *err)
{
    pthread_mutex_lock(&w->lazy->mu);
    int rc = w->lazy->vocab ? 0 : m5_grammar_vocab_new(&w->lazy->vocab, w->tok, err);
    *out = w->lazy->vocab;
    pthread_mutex_unlock(&w->lazy->mu);
    return rc;
}
