/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP front: sockets, limits, Host and Origin rules, server-sent events. Home of libevent (http.c). Knows no route and no JSON field.
 *
 * One I/O thread runs m5_http_run and owns every socket; a few worker threads call the handler, so that a slow template or a huge body never
 * holds up other connections. Replies may come from any thread: they are queued and the I/O thread is woken. */
#ifndef M5_SERVER_HTTP_H
#define M5_SERVER_HTTP_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

typedef struct m5_http m5_http;
typedef struct m5_http_req m5_http_req; /* counted reference; the handler's reference ends when the handler returns */

typedef struct m5_http_options {
    const char *host;               /* NULL = 127.0.0.1 */
    int port;                       /* 0 = any free port */
    size_t max_body_bytes;          /* 0 = 64 MiB */
    size_t max_out_bytes;           /* unsent bytes after which a slow client counts as gone; 0 = 16 MiB */
    int n_workers;                  /* 0 = 2 */
    int keepalive_s;                /* silence after which an open event stream gets a comment line; 0 = 15 */
    const char *api_key;            /* NULL = none; else "Authorization: Bearer KEY" or "x-api-key: KEY" is required */
    const char *const *allow_hosts; /* extra names accepted in Host and Origin; NULL-terminated; "*" = any */
} m5_http_options;

typedef enum m5_http_method { M5_HTTP_GET, M5_HTTP_POST, M5_HTTP_DELETE, M5_HTTP_OTHER } m5_http_method;

/* Thread: a worker. Must lead to exactly one whole reply or one begin..end stream, now or later. */
typedef void (*m5_http_handler)(void *ctx, m5_http_req *r);

int m5_http_open(m5_http **out, const m5_http_options *opt, m5_http_handler fn, void *ctx, m5_error *err);
int m5_http_port(const m5_http *h);
/* Runs until m5_http_stop or SIGINT / SIGTERM. on_stop is called once on the I/O thread when stopping begins: it should make running requests end
 * soon; replies still go out for up to three seconds. */
void m5_http_run(m5_http *h, void (*on_stop)(void *ctx), void *ctx);
void m5_http_stop(m5_http *h); /* any thread */
/* After m5_http_run: lets the workers finish what is queued and ends them, so that nothing calls the handler's context any more. */
void m5_http_join_workers(m5_http *h);
void m5_http_close(m5_http *h);

/* The request; borrowed views, valid while the reference is held. */
m5_http_method m5_http_req_method(const m5_http_req *r);
m5_slice m5_http_req_path(const m5_http_req *r); /* decoded, without query */
m5_slice m5_http_req_body(const m5_http_req *r);
m5_http_req *m5_http_req_ref(m5_http_req *r);
void m5_http_req_unref(m5_http_req *r);

/* Replies; Thread: any. Calls after the end or after the client has gone are ignored. */
/* Whole reply. False when an event stream has already begun (nothing is sent then): the caller must say it inside the stream. */
bool m5_http_reply(m5_http_req *r, int status, const char *content_type, const char *body, size_t n);
void m5_http_header(m5_http_req *r, const char *name, const char *value); /* before reply or begin */
void m5_http_stream_begin(m5_http_req *r);                                /* 200, text/event-stream */
void m5_http_stream_write(m5_http_req *r, const char *p, size_t n);       /* begins the stream if need be */
void m5_http_stream_end(m5_http_req *r);
bool m5_http_stream_begun(m5_http_req *r);
/* The stream may begin by itself, with a comment, when nothing was sent for this long: a client behind a proxy must see life during a long prefill.
 */
void m5_http_stream_auto_begin(m5_http_req *r, int after_ms);

/* fn is called exactly once, on the I/O thread (or at once on this one when it is over already): gone tells whether the client left before the reply
 * was complete. */
void m5_http_on_over(m5_http_req *r, void (*fn)(void *ctx, bool gone), void *ctx);
bool m5_http_gone(m5_http_req *r);

#endif
