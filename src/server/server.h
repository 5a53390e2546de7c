/* SPDX-License-Identifier: Apache-2.0 */
/* The server: routes, model loading in the background, health. Room: server/server.c. */
#ifndef M5_SERVER_SERVER_H
#define M5_SERVER_SERVER_H

#include "m5.h"
#include "server/turn.h"

typedef struct m5_server_options {
    m5_engine_options engine;
    const char *host;               /* NULL = 127.0.0.1 */
    int port;                       /* default 8000; 0 = any free port */
    const char *api_key;            /* NULL = none */
    const char *const *allow_hosts; /* NULL-terminated or NULL */
    const char *model_alias;        /* name shown by /v1/models, NULL = the model's own */
    m5_sampling sampling;           /* defaults for requests that leave a field out; below 0: see m5_engine_fill_sampling */
    int max_tokens;                 /* default limit of an answer; < 0 = to the end of the context */
    m5_turn_policy policy;          /* thinking, loops, hints */
    /* Called once on the main thread's loop when the port is bound, and once when the model is ready (engine set); may be NULL. */
    void (*on_listen)(void *ctx, const char *host, int port);
    void (*on_ready)(void *ctx, m5_engine *engine, const char *host, int port);
    void *ctx;
} m5_server_options;

void m5_server_options_default(m5_server_options *o);
/* Listens, loads the model (health says 503 meanwhile), serves until SIGINT or SIGTERM. Errors: port taken, model cannot be opened. */
int m5_server_run(const m5_server_options *o, m5_error *err);

#endif
