/* SPDX-License-Identifier: Apache-2.0 */
/* What /health and /metrics say of an engine's figures. */
#include "server/metrics.h"

#include "t.h"

#include <string.h>

static void test_health(void)
{
    enum { S = 1000000 };
    struct {
        bool busy;
        uint64_t last_s, now_s;
        bool ok;
    } rows[] = {
        {true, 100, 130, true},   {true, 100, 161, false}, {true, 100, 100, true}, {true, 200, 100, true}, /* a step ended after the time was read */
        {false, 100, 5000, true},                                                                          /* nothing to do is no stall */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        m5_engine_status st = {.busy = rows[i].busy, .n_running = rows[i].busy, .n_waiting = 3, .last_step_us = rows[i].last_s * S};
        m5_buf b = {0};
        T_CHECK(m5_health_write(&b, &st, rows[i].now_s * S) == rows[i].ok, "row %zu", i);
        T_CHECK(strstr(b.p, rows[i].ok ? "\"status\":\"ok\"" : "\"status\":\"stalled\"") && strstr(b.p, "\"waiting\":3"), "%s", b.p);
        m5_buf_free(&b);
    }
}

static void test_metrics(void)
{
    m5_engine_status st = {.n_running = 2, .n_layers_left_out = 3, .n_preempted = 7, .n_cache_hit_tokens = (uint64_t)1 << 40, .n_draft = 9,
                           .n_draft_accepted_by = {5, 1, 2, 3, 4}};
    m5_buf b = {0};
    m5_metrics_write(&b, &st, 4096);
    T_CHECK(strstr(b.p, "\nm5_requests_running 2\n") || strncmp(b.p, "m5_requests_running 2\n", 22) == 0);
    T_CHECK(strstr(b.p, "\nm5_preemptions_total 7\n") && strstr(b.p, "# TYPE m5_preemptions_total counter"));
    T_CHECK(strstr(b.p, "\nm5_cache_hit_tokens_total 1099511627776\n") && strstr(b.p, "\nm5_resident_bytes 4096\n"));
    T_CHECK(strstr(b.p, "\nm5_lossy_layers 3\n"), "%s", b.p);
    T_CHECK(strstr(b.p, "\nm5_draft_tokens_total 9\n") && strstr(b.p, "\nm5_draft_source_accepted_tokens_total{source=\"ngram\"} 5\n"));
    T_CHECK(strstr(b.p, "\nm5_draft_source_accepted_tokens_total{source=\"mtp\"} 1\n") && !strstr(b.p, "script"));
    T_CHECK(strstr(b.p, "{source=\"exit\"} 3\n") && strstr(b.p, "{source=\"skip\"} 4\n"));
    m5_buf_free(&b);
}

int main(void)
{
    test_health();
    test_metrics();
    return t_done();
}
