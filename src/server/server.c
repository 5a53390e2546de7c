/* SPDX-License-Identifier: Apache-2.0 */
/* Routes and the life of the server. May touch: base, m5.h, http.h, the dialects. Not here: sockets, JSON of requests. */
#include "server/server.h"

#include "base/task.h"
#include "server/api_openai.h"
#include "server/http.h"
#include "server/metrics.h"
#include "text/chat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

typedef struct server {
    const m5_server_options *opt;
    m5_http *http;
    _Atomic(m5_engine *) engine; /* NULL while loading */
    m5_wire *wire;               /* set before engine */
    pthread_t loader;
    bool loader_running;
    m5_error load_error;
    atomic_bool failed;
    int64_t started;
    m5_sampling sampling; /* defaults of requests; set before the engine shows */
} server;

void m5_server_options_default(m5_server_options *o)
{
    *o = (m5_server_options){.host = "127.0.0.1", .port = 8000, .max_tokens = -1};
    m5_sampling_default(&o->sampling);
    m5_turn_policy_default(&o->policy);
}

static const char *model_id(const server *s, const m5_engine *e)
{
    return s->opt->model_alias ? s->opt->model_alias : m5_engine_model_id(e);
}

static void reply_buf(m5_http_req *r, int status, m5_buf *b)
{
    if (b->failed)
        m5_http_reply(r, 503, "application/json", "{}", 2);
    else
        m5_http_reply(r, status, "application/json", b->p ? b->p : "{}", b->p ? b->n : 2);
    m5_buf_free(b);
}

static void reply_fail(m5_http_req *r, const m5_api_error *ae)
{
    m5_turn_reply_error(r, &m5_openai_chat, ae);
}

static void get_health(server *s, m5_http_req *r)
{
    m5_engine *e = atomic_load(&s->engine);
    if (!e) {
        static const char loading[] = "{\"status\":\"loading model\",\"error\":{\"message\":\"the model is "
                                      "loading\",\"type\":\"unavailable_error\",\"param\":null,\"code\":503}}";
        m5_http_header(r, "Retry-After", "1");
        m5_http_reply(r, 503, "application/json", loading, sizeof loading - 1);
        return;
    }
    m5_engine_status st;
    m5_engine_get_status(e, &st);
    m5_buf b = {0};
    bool ok = m5_health_write(&b, &st, m5_time_us());
    reply_buf(r, ok ? 200 : 503, &b);
}

static void get_metrics(m5_engine *e, m5_http_req *r)
{
    m5_engine_status st;
    m5_buf b = {0};
    m5_engine_get_status(e, &st);
    m5_metrics_write(&b, &st, m5_memory_rss_bytes());
    m5_http_reply(r, b.failed ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8", b.p ? b.p : "", b.n);
    m5_buf_free(&b);
}

static void get_props(server *s, m5_engine *e, m5_http_req *r)
{
    m5_engine_info info;
    m5_buf b = {0};
    m5_engine_get_info(e, &info);
    m5_props_write(&b, &info, model_id(s, e), s->wire, &s->opt->policy);
    reply_buf(r, 200, &b);
}

static void get_models(server *s, m5_engine *e, m5_http_req *r)
{
    m5_buf b = {0};
    m5_buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    m5_openai_model(&b, model_id(s, e), s->started, m5_engine_n_ctx(e));
    m5_buf_puts(&b, "]}");
    reply_buf(r, 200, &b);
}

static void get_model(server *s, m5_engine *e, m5_http_req *r, m5_slice id)
{
    if (!m5_slice_is(id, model_id(s, e)) && !m5_slice_is(id, m5_engine_model_id(e))) {
        m5_api_error ae;
        m5_api_fail(&ae, 404, "model", "the model '%.*s' does not exist here; GET /v1/models lists what is served", (int)(id.n > 200 ? 200 : id.n),
                    id.p);
        ae.code = "model_not_found";
        reply_fail(r, &ae);
        return;
    }
    m5_buf b = {0};
    m5_openai_model(&b, model_id(s, e), s->started, m5_engine_n_ctx(e));
    reply_buf(r, 200, &b);
}

static void post_generate(server *s, m5_engine *e, m5_http_req *r, bool chat)
{
    m5_turn_defaults def = {.sampling = s->sampling, .max_tokens = s->opt->max_tokens, .policy = &s->opt->policy};
    def.n_vocab = m5_tokenizer_n_vocab(m5_engine_tokenizer(e));
    m5_slice body = m5_http_req_body(r);
    m5_turn *t = NULL;
    m5_api_error ae;
    int rc = chat ? m5_openai_parse_chat(&t, body.p, body.n, &def, &ae) : m5_openai_parse_completion(&t, body.p, body.n, &def, &ae);
    if (rc) {
        reply_fail(r, &ae);
        return;
    }
    m5_turn_run(e, s->wire, t, chat ? &m5_openai_chat : &m5_openai_completion, r);
}

/* llama-server's helpers, which clients use to count and to debug prompts. */
static void post_tokenize(m5_engine *e, m5_http_req *r)
{
    m5_api_error ae;
    m5_error err = {0};
    m5_json *o = NULL;
    m5_ids ids = {0};
    m5_slice body = m5_http_req_body(r);
    const m5_json *content = NULL;
    int rc = m5_json_parse(&o, body.p, body.n, NULL, &err);
    if (rc == 0) {
        content = m5_json_get(o, "content");
        if (!content) content = m5_json_get(o, "prompt");
        if (m5_json_typeof(content) != M5_JSON_STRING) rc = m5_error_set(&err, M5_ERR_ARG, "'content' must be a string");
    }
    if (rc == 0) {
        m5_slice text = m5_json_str(content);
        const m5_json *parse = m5_json_get(o, "parse_special");
        bool special = m5_json_typeof(parse) == M5_JSON_NONE || m5_json_bool(parse);
        rc = m5_tokenize(m5_engine_tokenizer(e), &ids, text.p, text.n, special ? M5_SPECIAL_PARSE : M5_SPECIAL_NONE,
                         m5_json_bool(m5_json_get(o, "add_special")), &err);
    }
    if (rc) {
        m5_api_fail_from(&ae, &err);
        reply_fail(r, &ae);
    } else {
        m5_buf b = {0};
        m5_buf_puts(&b, "{\"tokens\":[");
        for (size_t i = 0; i < ids.n; i++) m5_buf_printf(&b, "%s%d", i ? "," : "", ids.p[i]);
        m5_buf_printf(&b, "],\"count\":%zu}", ids.n);
        reply_buf(r, 200, &b);
    }
    m5_ids_free(&ids);
    m5_json_unref(o);
}

static void post_detokenize(m5_engine *e, m5_http_req *r)
{
    m5_api_error ae;
    m5_error err = {0};
    m5_json *o = NULL;
    m5_ids ids = {0};
    m5_buf text = {0};
    const m5_tokenizer *tok = m5_engine_tokenizer(e);
    m5_slice body = m5_http_req_body(r);
    int rc = m5_json_parse(&o, body.p, body.n, NULL, &err);
    const m5_json *list = m5_json_get(o, "tokens");
    if (rc == 0 && m5_json_typeof(list) != M5_JSON_ARRAY) rc = m5_error_set(&err, M5_ERR_ARG, "'tokens' must be a list of token ids");
    for (size_t i = 0; rc == 0 && i < m5_json_len(list); i++) {
        int64_t id = m5_json_int(m5_json_at(list, i));
        if (m5_json_typeof(m5_json_at(list, i)) != M5_JSON_INT || id < 0 || id >= m5_tokenizer_n_vocab(tok))
            rc = m5_error_set(&err, M5_ERR_ARG, "'tokens' must hold token ids of this model");
        else
            rc = m5_ids_push(&ids, (int32_t)id);
    }
    if (rc == 0) rc = m5_detokenize(tok, &text, ids.p, ids.n, false, &err);
    if (rc) {
        m5_api_fail_from(&ae, &err);
        reply_fail(r, &ae);
    } else {
        m5_buf b = {0};
        m5_buf_puts(&b, "{\"content\":");
        m5_json_write_str(&b, text.p ? text.p : "", text.n);
        m5_buf_putc(&b, '}');
        reply_buf(r, 200, &b);
    }
    m5_buf_free(&text);
    m5_ids_free(&ids);
    m5_json_unref(o);
}

static void post_apply_template(server *s, m5_engine *e, m5_http_req *r)
{
    m5_turn_defaults def = {.sampling = s->sampling, .max_tokens = -1, .n_vocab = m5_tokenizer_n_vocab(m5_engine_tokenizer(e)), .policy = &s->opt->policy};
    bool needle;
    m5_slice body = m5_http_req_body(r);
    m5_turn *t = NULL;
    m5_api_error ae;
    m5_error err = {0};
    m5_buf text = {0}, b = {0};
    if (m5_openai_parse_chat(&t, body.p, body.n, &def, &ae)) {
        reply_fail(r, &ae);
        return;
    }
    if (m5_turn_shape(s->wire, t, &needle, &ae)) {
        reply_fail(r, &ae);
    } else if (m5_chat_render(m5_engine_chat(e), t->vars, -1, &text, NULL, NULL, &err)) {
        m5_api_fail_from(&ae, &err);
        reply_fail(r, &ae);
    } else {
        m5_buf_puts(&b, "{\"prompt\":");
        m5_json_write_str(&b, text.p ? text.p : "", text.n);
        m5_buf_putc(&b, '}');
        reply_buf(r, 200, &b);
    }
    m5_buf_free(&text);
    m5_turn_free(t);
}

typedef enum route {
    R_NONE,
    R_INDEX,
    R_HEALTH,
    R_METRICS,
    R_PROPS,
    R_MODELS,
    R_MODEL,
    R_CHAT,
    R_COMPLETION,
    R_TOKENIZE,
    R_DETOKENIZE,
    R_TEMPLATE
} route;

static const struct {
    const char *path;
    route to;
    m5_http_method method;
} routes[] = {
    {"/", R_INDEX, M5_HTTP_GET},
    {"/health", R_HEALTH, M5_HTTP_GET},
    {"/v1/health", R_HEALTH, M5_HTTP_GET},
    {"/metrics", R_METRICS, M5_HTTP_GET},
    {"/props", R_PROPS, M5_HTTP_GET},
    {"/v1/models", R_MODELS, M5_HTTP_GET},
    {"/models", R_MODELS, M5_HTTP_GET},
    {"/v1/chat/completions", R_CHAT, M5_HTTP_POST},
    {"/chat/completions", R_CHAT, M5_HTTP_POST},
    {"/v1/completions", R_COMPLETION, M5_HTTP_POST},
    {"/completions", R_COMPLETION, M5_HTTP_POST},
    {"/tokenize", R_TOKENIZE, M5_HTTP_POST},
    {"/detokenize", R_DETOKENIZE, M5_HTTP_POST},
    {"/apply-template", R_TEMPLATE, M5_HTTP_POST},
};

static route find_route(m5_slice path, m5_slice *id, m5_http_method *method)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (!m5_slice_is(path, routes[i].path)) continue;
        *method = routes[i].method;
        return routes[i].to;
    }
    m5_slice prefix = M5_SLICE("/v1/models/");
    if (m5_slice_starts(path, prefix) && path.n > prefix.n) {
        *id = (m5_slice){path.p + prefix.n, path.n - prefix.n};
        *method = M5_HTTP_GET;
        return R_MODEL;
    }
    return R_NONE;
}

static void handle(void *ctx, m5_http_req *r)
{
    server *s = ctx;
    m5_slice path = m5_http_req_path(r), id = {0};
    m5_http_method method = M5_HTTP_OTHER;
    m5_api_error ae;
    route to = find_route(path, &id, &method);
    if (to == R_NONE) {
        m5_api_fail(&ae, 404, "", "there is no %.*s here", (int)(path.n > 200 ? 200 : path.n), path.p);
        reply_fail(r, &ae);
        return;
    }
    if (m5_http_req_method(r) != method) {
        m5_api_fail(&ae, 405, "", "%.*s takes %s requests", (int)path.n, path.p, method == M5_HTTP_POST ? "POST" : "GET");
        reply_fail(r, &ae);
        return;
    }
    m5_engine *e = atomic_load(&s->engine);
    if (to == R_HEALTH) {
        get_health(s, r);
        return;
    }
    if (to == R_INDEX) {
        static const char text[] =
            "m5-infer " M5_VERSION
            " is running.\n\nOpenAI-compatible API: POST /v1/chat/completions, POST /v1/completions, GET /v1/models\nHealth: GET /health\n";
        m5_http_reply(r, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
        return;
    }
    if (!e) {
        m5_api_fail(&ae, 503, "", "the model is loading; GET /health tells when it is ready");
        m5_http_header(r, "Retry-After", "1");
        reply_fail(r, &ae);
        return;
    }
    switch (to) {
    case R_METRICS: get_metrics(e, r); break;
    case R_PROPS: get_props(s, e, r); break;
    case R_MODELS: get_models(s, e, r); break;
    case R_MODEL: get_model(s, e, r, id); break;
    case R_CHAT: post_generate(s, e, r, true); break;
    case R_COMPLETION: post_generate(s, e, r, false); break;
    case R_TOKENIZE: post_tokenize(e, r); break;
    case R_DETOKENIZE: post_detokenize(e, r); break;
    default: post_apply_template(s, e, r); break;
    }
}

static void *load(void *arg)
{
    server *s = arg;
    m5_engine *e = NULL;
    m5_thread_name("m5-load");
    int rc = m5_engine_open(&e, &s->opt->engine, &s->load_error);
    if (rc == 0 && !m5_engine_tokenizer(e)) {
        m5_error_set(&s->load_error, M5_ERR_UNSUPPORTED, "%s brings no tokenizer, so it cannot be served", m5_engine_model_id(e));
        m5_engine_close(e);
        rc = M5_ERR_UNSUPPORTED;
    }
    if (rc == 0) {
        rc = m5_wire_new(&s->wire, m5_engine_tokenizer(e), m5_engine_chat(e), &s->load_error);
        if (rc) m5_engine_close(e);
    }
    if (rc != 0) {
        atomic_store(&s->failed, true);
        m5_http_stop(s->http);
        return NULL;
    }
    m5_sampling neutral;
    m5_sampling_default(&neutral);
    s->sampling = s->opt->sampling;
    m5_engine_fill_sampling(e, &s->sampling, &neutral);
    m5_log(M5_LOG_INFO, "requests that leave it open: temperature %g, top_k %d, top_p %g, min_p %g, repetition penalty %g", (double)s->sampling.temperature,
           s->sampling.top_k, (double)s->sampling.top_p, (double)s->sampling.min_p, (double)s->sampling.repetition_penalty);
    atomic_store(&s->engine, e);
    if (s->opt->on_ready) s->opt->on_ready(s->opt->ctx, e, s->opt->host ? s->opt->host : "127.0.0.1", m5_http_port(s->http));
    return NULL;
}

/* Stopping: the engine delivers the end of every running request, so that clients get their last events within the grace time. */
static void stopping(void *arg)
{
    server *s = arg;
    m5_engine *e = atomic_load(&s->engine);
    if (e) m5_engine_shutdown(e);
}

int m5_server_run(const m5_server_options *o, m5_error *err)
{
    server s = {.opt = o, .started = m5_time_unix_ms() / 1000};
    m5_http_options ho = {.host = o->host, .port = o->port, .api_key = o->api_key, .allow_hosts = o->allow_hosts};
    int rc = m5_http_open(&s.http, &ho, handle, &s, err);
    if (rc) return rc;
    if (o->on_listen) o->on_listen(o->ctx, o->host ? o->host : "127.0.0.1", m5_http_port(s.http));
    if (pthread_create(&s.loader, NULL, load, &s) != 0) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "cannot start a thread");
        goto out;
    }
    s.loader_running = true;
    m5_http_run(s.http, stopping, &s);
out:
    if (s.loader_running) pthread_join(s.loader, NULL);
    /* Order: nobody submits any more, then the engine delivers its last events, which still refer to requests of the HTTP side, then that side goes.
     */
    m5_http_join_workers(s.http);
    m5_engine_close(atomic_load(&s.engine));
    m5_http_close(s.http);
    m5_wire_free(s.wire);
    if (atomic_load(&s.failed)) {
        if (err) *err = s.load_error;
        rc = s.load_error.code;
    }
    return rc;
}
