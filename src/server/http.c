/* SPDX-License-Identifier: Apache-2.0 */
/* Home of libevent. May touch: base. Not here: routes, JSON, the engine.
 *
 * evhttp stops reading a connection once a request is complete, so a client that leaves during a long answer is not seen by it. A timer looks at
 * every connection with an open request (peer closed, reset) instead of enabling reads, which evhttp does not survive when a client pipelines. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "server/http.h"

#include "base/mem.h"
#include "base/task.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/thread.h>

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

enum { TICK_MS = 200, STOP_GRACE_MS = 3000, MAX_HEADER_BYTES = 64 << 10, IDLE_TIMEOUT_S = 75, WRITE_TIMEOUT_S = 60, MAX_QUEUED = 1024 };

struct m5_http_req {
    m5_http *h;
    atomic_int refs;
    m5_http_method method;
    char *path;
    char *body;
    size_t n_body;

    /* I/O thread only */
    struct evhttp_request *ev; /* NULL once answered or gone */
    struct evhttp_connection *con;
    bool started, dropping; /* dropping: this file closes the connection */
    uint64_t last_out_us;
    m5_http_req *active_prev, *active_next;

    /* under h->mu */
    m5_buf out;
    bool want_begin, want_end, whole, dirty, done, gone, retired;
    int status;
    char content_type[64];
    struct {
        char name[32], value[128];
    } headers[4];
    int n_headers;
    uint64_t auto_begin_us; /* monotonic time, 0 = never */
    void (*over_fn)(void *, bool);
    void *over_ctx;
    m5_http_req *dirty_next, *work_next;
};

struct m5_http {
    m5_http_options opt;
    struct event_base *base;
    struct evhttp *ev;
    struct evhttp_bound_socket *socket;
    struct event *wake, *tick, *sigint, *sigterm;
    m5_http_handler fn;
    void *ctx;
    int port;
    m5_http_req *active; /* I/O thread only */
    int n_active;
    bool stopping;
    uint64_t stop_us;
    void (*on_stop)(void *);
    void *on_stop_ctx;

    pthread_mutex_t mu;
    pthread_cond_t work_cv;
    m5_http_req *dirty_head, *dirty_tail;
    m5_http_req *work_head, *work_tail;
    int n_work;
    bool quit, stop_asked;
    pthread_t *workers;
    int n_workers;
};

m5_http_req *m5_http_req_ref(m5_http_req *r)
{
    atomic_fetch_add(&r->refs, 1);
    return r;
}

void m5_http_req_unref(m5_http_req *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1) return;
    m5_free(r->path);
    m5_free(r->body);
    m5_buf_free(&r->out);
    m5_free(r);
}

m5_http_method m5_http_req_method(const m5_http_req *r)
{
    return r->method;
}

m5_slice m5_http_req_path(const m5_http_req *r)
{
    return m5_slice_of(r->path);
}

m5_slice m5_http_req_body(const m5_http_req *r)
{
    return (m5_slice){r->body, r->n_body};
}

/* Puts r on the list that the I/O thread works off. h->mu held. */
static void mark_dirty(m5_http_req *r)
{
    m5_http *h = r->h;
    if (r->dirty) return;
    r->dirty = true;
    m5_http_req_ref(r);
    r->dirty_next = NULL;
    if (h->dirty_tail)
        h->dirty_tail->dirty_next = r;
    else
        h->dirty_head = r;
    h->dirty_tail = r;
    event_active(h->wake, EV_TIMEOUT, 0);
}

void m5_http_header(m5_http_req *r, const char *name, const char *value)
{
    pthread_mutex_lock(&r->h->mu);
    if (r->n_headers < (int)(sizeof r->headers / sizeof r->headers[0]) && strlen(name) < sizeof r->headers[0].name &&
        strlen(value) < sizeof r->headers[0].value) {
        memcpy(r->headers[r->n_headers].name, name, strlen(name) + 1);
        memcpy(r->headers[r->n_headers].value, value, strlen(value) + 1);
        r->n_headers++;
    }
    pthread_mutex_unlock(&r->h->mu);
}

bool m5_http_reply(m5_http_req *r, int status, const char *content_type, const char *body, size_t n)
{
    pthread_mutex_lock(&r->h->mu);
    bool begun = r->want_begin;
    if (!r->done && !r->gone && !begun) {
        r->status = status;
        strncpy(r->content_type, content_type, sizeof r->content_type - 1);
        m5_buf_append(&r->out, body, n);
        r->whole = true;
        r->done = true;
        mark_dirty(r);
    }
    pthread_mutex_unlock(&r->h->mu);
    return !begun;
}

void m5_http_stream_begin(m5_http_req *r)
{
    pthread_mutex_lock(&r->h->mu);
    if (!r->done && !r->gone && !r->want_begin) {
        r->want_begin = true;
        mark_dirty(r);
    }
    pthread_mutex_unlock(&r->h->mu);
}

void m5_http_stream_write(m5_http_req *r, const char *p, size_t n)
{
    pthread_mutex_lock(&r->h->mu);
    if (!r->done && !r->gone) {
        r->want_begin = true;
        m5_buf_append(&r->out, p, n);
        mark_dirty(r);
    }
    pthread_mutex_unlock(&r->h->mu);
}

void m5_http_stream_end(m5_http_req *r)
{
    pthread_mutex_lock(&r->h->mu);
    if (!r->done && !r->gone) {
        r->want_end = true;
        r->done = true;
        mark_dirty(r);
    }
    pthread_mutex_unlock(&r->h->mu);
}

bool m5_http_stream_begun(m5_http_req *r)
{
    pthread_mutex_lock(&r->h->mu);
    bool yes = r->want_begin;
    pthread_mutex_unlock(&r->h->mu);
    return yes;
}

void m5_http_stream_auto_begin(m5_http_req *r, int after_ms)
{
    pthread_mutex_lock(&r->h->mu);
    r->auto_begin_us = m5_time_us() + (uint64_t)after_ms * 1000u;
    pthread_mutex_unlock(&r->h->mu);
}

bool m5_http_gone(m5_http_req *r)
{
    pthread_mutex_lock(&r->h->mu);
    bool gone = r->gone;
    pthread_mutex_unlock(&r->h->mu);
    return gone;
}

void m5_http_on_over(m5_http_req *r, void (*fn)(void *ctx, bool gone), void *ctx)
{
    pthread_mutex_lock(&r->h->mu);
    bool now = r->retired, gone = r->gone;
    if (!now) {
        r->over_fn = fn;
        r->over_ctx = ctx;
    }
    pthread_mutex_unlock(&r->h->mu);
    if (now) fn(ctx, gone);
}

/* Tells the hook, takes r off the active list and drops that list's reference. I/O thread. */
static void retire(m5_http_req *r, bool gone)
{
    m5_http *h = r->h;
    pthread_mutex_lock(&h->mu);
    r->gone = gone;
    r->retired = true;
    void (*fn)(void *, bool) = r->over_fn;
    void *ctx = r->over_ctx;
    pthread_mutex_unlock(&h->mu);
    if (fn) fn(ctx, gone);
    r->ev = NULL;
    r->con = NULL;
    if (r->active_prev)
        r->active_prev->active_next = r->active_next;
    else
        h->active = r->active_next;
    if (r->active_next) r->active_next->active_prev = r->active_prev;
    h->n_active--;
    m5_http_req_unref(r);
}

/* The connection under an open request has closed. When libevent found out by itself (a failed write), it has taken the unanswered request off the connection
 * and left it to us; when this file closed the connection, the request went with it. */
static void closed(struct evhttp_connection *con, void *arg)
{
    (void)con;
    m5_http_req *r = arg;
    if (!r->dropping) evhttp_request_free(r->ev);
    retire(r, true);
}

static void drop(m5_http_req *r)
{
    r->dropping = true;
    evhttp_connection_free(r->con); /* leads to closed() */
}

static bool peer_left(evutil_socket_t fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return false;
    if (p.revents & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP)) return true;
    char c;
    return (p.revents & POLLIN) && recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* The answer to HEAD has the length of the body that GET would bring, and no body: a client would take one for its next answer. */
static void drop_body(struct evhttp_request *ev, struct evbuffer *body)
{
    char length[24];
    snprintf(length, sizeof length, "%zu", evbuffer_get_length(body));
    evhttp_add_header(evhttp_request_get_output_headers(ev), "Content-Length", length);
    evbuffer_drain(body, evbuffer_get_length(body));
}

/* Sends what is queued for r. I/O thread. */
static void flush(m5_http_req *r)
{
    m5_http *h = r->h;
    pthread_mutex_lock(&h->mu);
    m5_buf out = r->out;
    r->out = (m5_buf){0};
    bool begin = r->want_begin, end = r->want_end, whole = r->whole;
    int status = r->status;
    pthread_mutex_unlock(&h->mu);
    if (!r->ev) goto out;

    if ((begin || whole) && !r->started) {
        struct evkeyvalq *head = evhttp_request_get_output_headers(r->ev);
        evhttp_add_header(head, "Content-Type", whole ? r->content_type : "text/event-stream; charset=utf-8");
        evhttp_add_header(head, "Cache-Control", "no-store");
        if (!whole) evhttp_add_header(head, "X-Accel-Buffering", "no");
        for (int i = 0; i < r->n_headers; i++) evhttp_add_header(head, r->headers[i].name, r->headers[i].value);
        r->started = true;
        r->last_out_us = m5_time_us();
        if (!whole) evhttp_send_reply_start(r->ev, 200, "OK");
    }
    if (out.n > 0 || whole) {
        struct evbuffer *chunk = evbuffer_new();
        if (!chunk || evbuffer_add(chunk, out.p ? out.p : "", out.n) != 0 || out.failed) {
            if (chunk) evbuffer_free(chunk);
            drop(r);
            goto out;
        }
        r->last_out_us = m5_time_us();
        if (whole) {
            if (evhttp_request_get_command(r->ev) == EVHTTP_REQ_HEAD) drop_body(r->ev, chunk);
            evhttp_connection_set_closecb(r->con, NULL, NULL);
            bufferevent_set_timeouts(evhttp_connection_get_bufferevent(r->con), &(struct timeval){.tv_sec = IDLE_TIMEOUT_S},
                                     &(struct timeval){.tv_sec = WRITE_TIMEOUT_S});
            evhttp_send_reply(r->ev, status, NULL, chunk);
            evbuffer_free(chunk);
            retire(r, false);
            goto out;
        }
        if (r->started) evhttp_send_reply_chunk(r->ev, chunk);
        evbuffer_free(chunk);
    }
    if (end) {
        evhttp_connection_set_closecb(r->con, NULL, NULL);
        bufferevent_set_timeouts(evhttp_connection_get_bufferevent(r->con), &(struct timeval){.tv_sec = IDLE_TIMEOUT_S},
                                 &(struct timeval){.tv_sec = WRITE_TIMEOUT_S});
        evhttp_send_reply_end(r->ev);
        retire(r, false);
    }
out:
    m5_buf_free(&out);
}

static void begin_stop(m5_http *h)
{
    if (h->stopping) return;
    h->stopping = true;
    h->stop_us = m5_time_us();
    if (h->socket) evhttp_del_accept_socket(h->ev, h->socket);
    h->socket = NULL;
    if (h->on_stop) h->on_stop(h->on_stop_ctx);
}

static void woken(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    m5_http *h = arg;
    for (;;) {
        pthread_mutex_lock(&h->mu);
        m5_http_req *r = h->dirty_head;
        if (r) {
            h->dirty_head = r->dirty_next;
            if (!h->dirty_head) h->dirty_tail = NULL;
            r->dirty = false;
        }
        bool stop = h->stop_asked;
        pthread_mutex_unlock(&h->mu);
        if (!r) {
            if (stop) begin_stop(h);
            break;
        }
        flush(r);
        m5_http_req_unref(r);
    }
    if (h->stopping && h->n_active == 0) event_base_loopexit(h->base, &(struct timeval){.tv_usec = 50000});
}

/* Every TICK_MS: clients that left, streams that need a sign of life, the end of the grace time. */
static void ticked(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    m5_http *h = arg;
    uint64_t now = m5_time_us();
    m5_http_req *next;
    for (m5_http_req *r = h->active; r; r = next) {
        next = r->active_next;
        struct bufferevent *bev = evhttp_connection_get_bufferevent(r->con);
        if (peer_left(bufferevent_getfd(bev)) || evbuffer_get_length(bufferevent_get_output(bev)) > h->opt.max_out_bytes) {
            drop(r);
            continue;
        }
        pthread_mutex_lock(&h->mu);
        bool due = !r->done && r->auto_begin_us && !r->want_begin && now >= r->auto_begin_us;
        if (due) r->want_begin = true;
        if (due || (r->started && !r->done && now - r->last_out_us >= (uint64_t)h->opt.keepalive_s * 1000000u)) {
            m5_buf_puts(&r->out, ": keep-alive\n\n");
            mark_dirty(r);
        }
        pthread_mutex_unlock(&h->mu);
    }
    if (h->stopping && (h->n_active == 0 || now - h->stop_us > (uint64_t)STOP_GRACE_MS * 1000u)) event_base_loopbreak(h->base);
}

static void signalled(evutil_socket_t sig, short what, void *arg)
{
    (void)sig;
    (void)what;
    m5_http *h = arg;
    if (h->stopping)
        event_base_loopbreak(h->base);
    else
        begin_stop(h);
}

/* Name part of "host:port", "[::1]:port" or an origin; lower case, without brackets. */
static void host_name(const char *s, char *out, size_t cap)
{
    const char *p = strstr(s, "://");
    p = p ? p + 3 : s;
    size_t n = 0;
    if (*p == '[') {
        for (p++; *p && *p != ']' && n + 1 < cap; p++) out[n++] = *p;
    } else {
        for (; *p && *p != ':' && *p != '/' && n + 1 < cap; p++) out[n++] = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    }
    out[n] = '\0';
}

static bool is_ip_literal(const char *name)
{
    unsigned char tmp[16];
    return evutil_inet_pton(AF_INET, name, tmp) == 1 || evutil_inet_pton(AF_INET6, name, tmp) == 1;
}

/* A page on the web may make a browser resolve its own name to 127.0.0.1; such a request carries that name in Host. Names of this machine pass,
 * foreign names need
 * --allow-host. IP literals cannot be rebound, but are only expected when the server listens beyond loopback. */
static bool name_allowed(const m5_http *h, const char *name)
{
    static const char *const own[] = {"localhost", "127.0.0.1", "::1"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(name, own[i]) == 0) return true;
    size_t n = strlen(name);
    if (n > 10 && strcmp(name + n - 10, ".localhost") == 0) return true;
    if (strcasecmp(name, h->opt.host) == 0) return true;
    bool loopback = strncmp(h->opt.host, "127.", 4) == 0 || strcmp(h->opt.host, "::1") == 0 || strcmp(h->opt.host, "localhost") == 0;
    if (!loopback && is_ip_literal(name)) return true;
    for (const char *const *p = h->opt.allow_hosts; p && *p; p++)
        if (strcmp(*p, "*") == 0 || strcasecmp(*p, name) == 0) return true;
    return false;
}

static void refuse(struct evhttp_request *ev, int status, const char *type, const char *message)
{
    struct evbuffer *b = evbuffer_new();
    evhttp_add_header(evhttp_request_get_output_headers(ev), "Content-Type", "application/json");
    if (b) evbuffer_add_printf(b, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}", message, type);
    evhttp_send_reply(ev, status, NULL, b);
    if (b) evbuffer_free(b);
}

/* Time depends on the length of the given key only. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(given), m = strlen(key);
    unsigned char diff = n != m;
    for (size_t i = 0; i < n; i++) diff |= (unsigned char)(given[i] ^ key[m ? i % m : 0]);
    return diff == 0;
}

/* Answers what needs no handler; true when the request may go on. */
static bool admit(m5_http *h, struct evhttp_request *ev, const char *path)
{
    struct evkeyvalq *in = evhttp_request_get_input_headers(ev), *outh = evhttp_request_get_output_headers(ev);
    char name[256];
    const char *host = evhttp_find_header(in, "Host"), *origin = evhttp_find_header(in, "Origin");
    host_name(host ? host : "localhost", name, sizeof name);
    if (!name_allowed(h, name)) {
        refuse(ev, 403, "invalid_request_error", "this Host name is not served here; start with --allow-host NAME to accept it");
        return false;
    }
    if (origin && strcmp(origin, "null") != 0) {
        host_name(origin, name, sizeof name);
        if (!name_allowed(h, name)) {
            refuse(ev, 403, "invalid_request_error", "requests from this web origin are refused; start with --allow-host NAME to accept it");
            return false;
        }
        evhttp_add_header(outh, "Access-Control-Allow-Origin", origin);
        evhttp_add_header(outh, "Vary", "Origin");
    } else if (origin) {
        refuse(ev, 403, "invalid_request_error", "requests from an opaque web origin are refused");
        return false;
    }
    if (evhttp_request_get_command(ev) == EVHTTP_REQ_OPTIONS) {
        evhttp_add_header(outh, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        evhttp_add_header(outh, "Access-Control-Allow-Headers",
                          "Authorization, Content-Type, X-Api-Key, OpenAI-Organization, OpenAI-Project, Anthropic-Version, Anthropic-Beta");
        evhttp_add_header(outh, "Access-Control-Max-Age", "600");
        evhttp_send_reply(ev, 204, NULL, NULL);
        return false;
    }
    if (h->opt.api_key && strcmp(path, "/health") != 0) {
        const char *auth = evhttp_find_header(in, "Authorization"), *xkey = evhttp_find_header(in, "X-Api-Key");
        bool ok = (auth && strncasecmp(auth, "Bearer ", 7) == 0 && same_key(auth + 7, h->opt.api_key)) || (xkey && same_key(xkey, h->opt.api_key));
        if (!ok) {
            refuse(ev, 401, "authentication_error", "missing or wrong API key");
            return false;
        }
    }
    return true;
}

static void received(struct evhttp_request *ev, void *arg)
{
    m5_http *h = arg;
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);
    const char *raw = uri ? evhttp_uri_get_path(uri) : NULL;
    size_t n_path = 0;
    char *decoded = evhttp_uridecode(raw && *raw ? raw : "/", 0, &n_path);
    if (!decoded || strlen(decoded) != n_path) {
        refuse(ev, 400, "invalid_request_error", "malformed path");
        goto out;
    }
    if (!admit(h, ev, decoded)) goto out;
    m5_http_req *r = m5_calloc(M5_MEM_REQUEST, 1, sizeof *r);
    if (!r) {
        refuse(ev, 503, "server_error", "out of memory");
        goto out;
    }
    atomic_init(&r->refs, 2); /* active list + worker */
    r->h = h;
    r->ev = ev;
    r->con = evhttp_request_get_connection(ev);
    r->last_out_us = m5_time_us();
    switch (evhttp_request_get_command(ev)) {
    case EVHTTP_REQ_GET:
    case EVHTTP_REQ_HEAD: r->method = M5_HTTP_GET; break;
    case EVHTTP_REQ_POST: r->method = M5_HTTP_POST; break;
    case EVHTTP_REQ_DELETE: r->method = M5_HTTP_DELETE; break;
    default: r->method = M5_HTTP_OTHER; break;
    }
    struct evbuffer *in = evhttp_request_get_input_buffer(ev);
    r->n_body = evbuffer_get_length(in);
    r->path = m5_strndup(M5_MEM_REQUEST, decoded, n_path);
    r->body = m5_alloc(M5_MEM_REQUEST, r->n_body + 1);
    pthread_mutex_lock(&h->mu);
    bool full = h->n_work >= MAX_QUEUED || h->quit;
    pthread_mutex_unlock(&h->mu);
    if (!r->path || !r->body || full || evbuffer_remove(in, r->body, r->n_body) != (int)r->n_body) {
        atomic_store(&r->refs, 1);
        m5_http_req_unref(r);
        refuse(ev, 503, "server_error", full ? "too many requests are waiting" : "out of memory");
        goto out;
    }
    r->body[r->n_body] = '\0';
    /* Answers take as long as they take: only writes that make no progress time out from here on. */
    bufferevent_set_timeouts(evhttp_connection_get_bufferevent(r->con), NULL, &(struct timeval){.tv_sec = WRITE_TIMEOUT_S});
    evhttp_connection_set_closecb(r->con, closed, r);
    r->active_next = h->active;
    if (h->active) h->active->active_prev = r;
    h->active = r;
    h->n_active++;
    /* Token events are tiny; without this each would wait for the acknowledgement of the one before. */
    int one = 1;
    setsockopt(bufferevent_getfd(evhttp_connection_get_bufferevent(r->con)), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);

    pthread_mutex_lock(&h->mu);
    if (h->work_tail)
        h->work_tail->work_next = r;
    else
        h->work_head = r;
    h->work_tail = r;
    h->n_work++;
    pthread_cond_signal(&h->work_cv);
    pthread_mutex_unlock(&h->mu);
out:
    free(decoded); /* libevent's own malloc */
}

static void *worker_main(void *arg)
{
    m5_http *h = arg;
    m5_thread_name("m5-http");
    for (;;) {
        pthread_mutex_lock(&h->mu);
        while (!h->work_head && !h->quit) pthread_cond_wait(&h->work_cv, &h->mu);
        m5_http_req *r = h->work_head;
        if (!r) {
            pthread_mutex_unlock(&h->mu);
            return NULL;
        }
        h->work_head = r->work_next;
        if (!h->work_head) h->work_tail = NULL;
        h->n_work--;
        pthread_mutex_unlock(&h->mu);
        h->fn(h->ctx, r);
        m5_http_req_unref(r);
    }
}

int m5_http_port(const m5_http *h)
{
    return h->port;
}

static int bind_socket(m5_http *h, m5_error *err)
{
    h->socket = evhttp_bind_socket_with_handle(h->ev, h->opt.host, (ev_uint16_t)h->opt.port);
    if (!h->socket) {
        int e = errno;
        return m5_error_set(err, M5_ERR_IO, "cannot listen on %s port %d: %s%s", h->opt.host, h->opt.port, strerror(e),
                            e == EADDRINUSE ? " (choose another with --port)" : "");
    }
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(evhttp_bound_socket_get_fd(h->socket), (struct sockaddr *)&ss, &len) == 0) {
        if (ss.ss_family == AF_INET)
            h->port = ntohs(((struct sockaddr_in *)(void *)&ss)->sin_port);
        else if (ss.ss_family == AF_INET6)
            h->port = ntohs(((struct sockaddr_in6 *)(void *)&ss)->sin6_port);
    }
    return 0;
}

int m5_http_open(m5_http **out, const m5_http_options *opt, m5_http_handler fn, void *ctx, m5_error *err)
{
    int rc = 0;
    if (evthread_use_pthreads() != 0) return m5_error_set(err, M5_ERR_INTERNAL, "libevent has no thread support");
    m5_http *h = m5_calloc(M5_MEM_MISC, 1, sizeof *h);
    if (!h) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    pthread_mutex_init(&h->mu, NULL);
    pthread_cond_init(&h->work_cv, NULL);
    h->opt = *opt;
    if (!h->opt.host) h->opt.host = "127.0.0.1";
    if (!h->opt.max_body_bytes) h->opt.max_body_bytes = (size_t)64 << 20;
    if (!h->opt.max_out_bytes) h->opt.max_out_bytes = (size_t)16 << 20;
    if (!h->opt.keepalive_s) h->opt.keepalive_s = 15;
    if (!h->opt.n_workers) h->opt.n_workers = 2;
    h->fn = fn;
    h->ctx = ctx;
    signal(SIGPIPE, SIG_IGN);
    h->base = event_base_new();
    h->ev = h->base ? evhttp_new(h->base) : NULL;
    if (!h->ev) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "cannot set up the event loop");
        goto out;
    }
    evhttp_set_max_headers_size(h->ev, MAX_HEADER_BYTES);
    evhttp_set_max_body_size(h->ev, (ev_ssize_t)h->opt.max_body_bytes);
    evhttp_set_timeout(h->ev, IDLE_TIMEOUT_S);
    evhttp_set_allowed_methods(h->ev, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |
                                          EVHTTP_REQ_PATCH);
    evhttp_set_flags(h->ev, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_gencb(h->ev, received, h);
    rc = bind_socket(h, err);
    if (rc) goto out;
    h->wake = event_new(h->base, -1, EV_PERSIST, woken, h);
    h->tick = event_new(h->base, -1, EV_PERSIST, ticked, h);
    h->sigint = evsignal_new(h->base, SIGINT, signalled, h);
    h->sigterm = evsignal_new(h->base, SIGTERM, signalled, h);
    h->workers = m5_calloc(M5_MEM_MISC, (size_t)h->opt.n_workers, sizeof *h->workers);
    if (!h->wake || !h->tick || !h->sigint || !h->sigterm || !h->workers) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "cannot set up the event loop");
        goto out;
    }
    event_add(h->tick, &(struct timeval){.tv_usec = TICK_MS * 1000});
    for (; h->n_workers < h->opt.n_workers; h->n_workers++) {
        if (pthread_create(&h->workers[h->n_workers], NULL, worker_main, h) != 0) {
            rc = m5_error_set(err, M5_ERR_NOMEM, "cannot start a thread");
            goto out;
        }
    }
    *out = h;
    h = NULL;
out:
    m5_http_close(h);
    return rc;
}

void m5_http_run(m5_http *h, void (*on_stop)(void *ctx), void *ctx)
{
    h->on_stop = on_stop;
    h->on_stop_ctx = ctx;
    evsignal_add(h->sigint, NULL);
    evsignal_add(h->sigterm, NULL);
    event_base_dispatch(h->base);
    begin_stop(h);
    evsignal_del(h->sigint);
    evsignal_del(h->sigterm);
}

void m5_http_stop(m5_http *h)
{
    pthread_mutex_lock(&h->mu);
    h->stop_asked = true;
    pthread_mutex_unlock(&h->mu);
    event_active(h->wake, EV_TIMEOUT, 0);
}

void m5_http_join_workers(m5_http *h)
{
    pthread_mutex_lock(&h->mu);
    h->quit = true;
    pthread_cond_broadcast(&h->work_cv);
    pthread_mutex_unlock(&h->mu);
    for (int i = 0; i < h->n_workers; i++) pthread_join(h->workers[i], NULL);
    h->n_workers = 0;
}

void m5_http_close(m5_http *h)
{
    if (!h) return;
    m5_http_join_workers(h);
    /* Closes every connection; open requests learn it through closed(). */
    while (h->active) drop(h->active);
    if (h->ev) evhttp_free(h->ev);
    while (h->dirty_head) {
        m5_http_req *r = h->dirty_head;
        h->dirty_head = r->dirty_next;
        m5_http_req_unref(r);
    }
    if (h->wake) event_free(h->wake);
    if (h->tick) event_free(h->tick);
    if (h->sigint) event_free(h->sigint);
    if (h->sigterm) event_free(h->sigterm);
    if (h->base) event_base_free(h->base);
    m5_free(h->workers);
    pthread_cond_destroy(&h->work_cv);
    pthread_mutex_destroy(&h->mu);
    m5_free(h);
}
