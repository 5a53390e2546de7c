/* SPDX-License-Identifier: Apache-2.0 */
/* One table drives the text: name, kind, field, help. May touch: base, m5.h. */
#include "server/metrics.h"

#include "base/json.h"

#include <stddef.h>
#include <string.h>

typedef struct metric {
    const char *name;
    bool counter, is_int; /* is_int: the field is an int, else a uint64_t */
    size_t offset;
    const char *help;
} metric;

#define AT(field) offsetof(m5_engine_status, field)
static const metric metrics[] = {
    {"m5_requests_running", false, true, AT(n_running), "Requests that are being computed."},
    {"m5_requests_waiting", false, true, AT(n_waiting), "Requests in the queue."},
    {"m5_requests_total", true, false, AT(n_requests), "Requests accepted."},
    {"m5_prompt_tokens_total", true, false, AT(n_prompt_tokens), "Prompt tokens computed, without those found in the cache."},
    {"m5_generated_tokens_total", true, false, AT(n_generated_tokens), "Tokens generated."},
    {"m5_draft_tokens_total", true, false, AT(n_draft), "Drafted tokens that were checked."},
    {"m5_draft_accepted_tokens_total", true, false, AT(n_draft_accepted), "Drafted tokens that were right."},
    {"m5_lossy_layers", false, true, AT(n_layers_left_out), "Layers left out by --lossy-layer-skip."},
    {"m5_preemptions_total", true, false, AT(n_preempted), "Times that a request gave its memory to others and went on later."},
    {"m5_cache_bytes", false, false, AT(cache_bytes), "Bytes of kept prompt state in memory."},
    {"m5_cache_pages", false, false, AT(n_cache_nodes), "Pages of kept prompt state in memory."},
    {"m5_cache_checkpoints", false, false, AT(n_cache_checkpoints), "Recurrent checkpoints in memory."},
    {"m5_cache_lookups_total", true, false, AT(n_cache_lookups), "Prompts looked up."},
    {"m5_cache_hits_total", true, false, AT(n_cache_hits), "Prompts of which a part was found."},
    {"m5_cache_hit_tokens_total", true, false, AT(n_cache_hit_tokens), "Prompt tokens found instead of computed."},
    {"m5_cache_evicted_bytes_total", true, false, AT(n_cache_evicted_bytes), "Bytes dropped from memory to keep the budget."},
    {"m5_disk_bytes", false, false, AT(disk_bytes), "Bytes of prompt state on disk for this model."},
    {"m5_disk_files", false, false, AT(n_disk_files), "Files of prompt state for this model."},
    {"m5_disk_written_bytes_total", true, false, AT(n_disk_written_bytes), "Bytes written."},
    {"m5_disk_loads_total", true, false, AT(n_disk_loaded), "Files read back."},
    {"m5_disk_loaded_bytes_total", true, false, AT(n_disk_loaded_bytes), "Bytes read back."},
    {"m5_disk_bad_files_total", true, false, AT(n_disk_bad), "Files skipped and removed because something was wrong with them."},
    {"m5_disk_evicted_files_total", true, false, AT(n_disk_evicted), "Files removed to keep the budget."},
    {"m5_disk_skipped_total", true, false, AT(n_disk_skipped), "States not written because the writer was behind or the disk refused."},
};

static void write_sources(m5_buf *out, const char *name, const char *help, const uint64_t *by)
{
    m5_buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
    for (int s = 0; s < M5_SPEC_SCRIPT; s++)
        m5_buf_printf(out, "%s{source=\"%s\"} %llu\n", name, m5_spec_source_name((m5_spec_source)s), (unsigned long long)by[s]);
}

void m5_metrics_write(m5_buf *out, const m5_engine_status *st, uint64_t rss_bytes)
{
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        const metric *m = &metrics[i];
        const char *at = (const char *)st + m->offset;
        unsigned long long v;
        if (m->is_int) {
            int n;
            memcpy(&n, at, sizeof n);
            v = (unsigned long long)n;
        } else {
            uint64_t n;
            memcpy(&n, at, sizeof n);
            v = n;
        }
        m5_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", m->name, m->help, m->name, m->counter ? "counter" : "gauge", m->name, v);
    }
    write_sources(out, "m5_draft_source_tokens_total", "Drafted tokens that were checked, by source.", st->n_draft_by);
    write_sources(out, "m5_draft_source_accepted_tokens_total", "Drafted tokens that were right, by source.", st->n_draft_accepted_by);
    m5_buf_printf(out, "# HELP m5_resident_bytes Resident memory of the process.\n# TYPE m5_resident_bytes gauge\nm5_resident_bytes %llu\n",
                  (unsigned long long)rss_bytes);
}

/* A step is bounded to a few hundred milliseconds on any machine that can serve the model at all. */
enum { STALL_S = 60 };

bool m5_health_write(m5_buf *out, const m5_engine_status *st, uint64_t now_us)
{
    bool stalled = st->busy && now_us > st->last_step_us && now_us - st->last_step_us > (uint64_t)STALL_S * 1000000u;
    m5_buf_printf(out, "{\"status\":\"%s\",\"running\":%d,\"waiting\":%d}", stalled ? "stalled" : "ok", st->n_running, st->n_waiting);
    return !stalled;
}

static void write_tag(m5_buf *out, const char *key, const char *tag)
{
    m5_buf_printf(out, "\"%s\":", key);
    m5_json_write_str(out, tag, strlen(tag));
}

/* How the model writes, and the rules that may act on an answer. Those that change it and are on by the operator's wish are listed as lossy. */
static void write_rules(m5_buf *out, const m5_wire *wire, const m5_turn_policy *p, bool layers_out)
{
    static const char *const loops[] = {"off", "thought", "all"}, *const hints[] = {"off", "format", "auto"};
    static const char *const formats[] = {"deepseek", "none", "deepseek-legacy", "hidden"};
    m5_buf_printf(out, ",\"tool_format\":\"%s\",\"thinking\":{", m5_toolcall_kind_name(m5_toolcall_format_kind(wire->format)));
    if (wire->thought) {
        write_tag(out, "open", wire->thought->open);
        m5_buf_putc(out, ',');
        write_tag(out, "close", wire->thought->close);
        m5_buf_putc(out, ',');
    }
    m5_buf_printf(out, "\"default\":\"%s\",\"budget\":%d,\"max_tokens_includes_thinking\":%s,\"reasoning_format\":\"%s\",\"loop_guard\":\"%s\"",
                  p->thinking < 0 ? "auto"
                  : p->thinking   ? "on"
                                  : "off",
                  p->budget, p->common_limit ? "true" : "false", formats[p->reasoning], loops[p->loops]);
    m5_buf_printf(out, ",\"escape_hints\":\"%s\",\"auto_think\":\"%s\"},\"lossy\":[", hints[p->hints], p->needle ? "needle" : "off");
    const char *const lossy[] = {p->hints ? "escape_hints" : NULL, p->loops == M5_LOOPS_ALL ? "loop_guard" : NULL, layers_out ? "lossy_layer_skip" : NULL};
    for (int i = 0, n = 0; i < 3; i++)
        if (lossy[i]) m5_buf_printf(out, n++ ? ",\"%s\"" : "\"%s\"", lossy[i]);
    m5_buf_putc(out, ']');
}

void m5_lossy_write(m5_buf *out, const m5_lossy_info *l)
{
    m5_buf_puts(out, "{\"layers\":[");
    for (int i = 0; i < l->n_layers; i++) m5_buf_printf(out, i ? ",%d" : "%d", l->layers[i]);
    m5_buf_puts(out, "],\"kl\":");
    m5_json_write_real(out, l->kl);
    m5_buf_puts(out, ",\"kl_p99\":");
    m5_json_write_real(out, l->kl_p99);
    m5_buf_puts(out, ",\"top1\":");
    m5_json_write_real(out, l->top1);
    m5_buf_puts(out, ",\"speed\":");
    m5_json_write_real(out, l->speed);
    m5_buf_puts(out, ",\"wanted_kl\":");
    m5_json_write_real(out, l->wanted_kl);
    m5_buf_putc(out, '}');
}

static void write_source_names(m5_buf *out, unsigned sources)
{
    for (int s = 0, n = 0; s < M5_SPEC_SCRIPT; s++)
        if (sources >> s & 1) m5_buf_printf(out, "%s\"%s\"", n++ ? "," : "", m5_spec_source_name((m5_spec_source)s));
}

void m5_props_write(m5_buf *out, const m5_engine_info *i, const char *model_id, const m5_wire *wire, const m5_turn_policy *policy)
{
    m5_buf_puts(out, "{\"model\":");
    m5_json_write_str(out, model_id, strlen(model_id));
    m5_buf_printf(out,
                  ",\"family\":\"%s\",\"format\":\"%s\",\"isa\":\"%s\",\"n_threads\":%d,\"n_ctx\":%d,\"n_ctx_train\":%d,\"n_parallel\":%d,\"n_"
                  "queue\":%d,\"prefill_chunk\":%d",
                  i->family, i->format, i->isa, i->n_threads, i->n_ctx, i->n_ctx_train, i->n_parallel, i->n_queue, i->prefill_chunk);
    m5_buf_printf(out, ",\"n_params\":%llu,\"weight_bytes\":%llu,\"kv_bytes_per_token\":%llu,\"recurrent_row_bytes\":%llu",
                  (unsigned long long)i->n_params, (unsigned long long)i->weight_bytes, (unsigned long long)i->kv_bytes_per_tok,
                  (unsigned long long)i->row_bytes);
    m5_buf_puts(out, ",\"speculative\":{\"sources\":[");
    write_source_names(out, i->spec_sources);
    m5_buf_puts(out, "],\"auto\":[");
    write_source_names(out, i->spec_auto);
    m5_buf_printf(out, "],\"n_max\":%d,\"rows\":%d,\"bytes\":%llu}", i->spec_k, i->spec_rows, (unsigned long long)i->spec_bytes);
    m5_buf_printf(out, ",\"cache_ram_bytes\":%llu,\"cache_disk_bytes\":%llu,\"checkpoint_every\":%d,\"own_chat_template\":%s",
                  (unsigned long long)i->cache_ram_bytes, (unsigned long long)i->cache_disk_bytes, i->checkpoint_every,
                  i->own_template ? "true" : "false");
    write_rules(out, wire, policy, i->lossy != NULL);
    if (i->lossy) {
        m5_buf_puts(out, ",\"lossy_layer_skip\":");
        m5_lossy_write(out, i->lossy);
    }
    m5_buf_puts(out, ",\"build_info\":\"m5-infer " M5_VERSION "\"}");
}
