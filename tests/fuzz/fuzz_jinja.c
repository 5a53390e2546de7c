/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja: any bytes as a template, rendered with a small conversation under tight limits. Spans must cover the output. */
#include "base/json.h"
#include "base/mem.h"
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"Hi \\u00e9\\ud83d\\ude42 <|end|>\"},"
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"abcdef123\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, "
    "null, true]}}}]}, {\"role\": \"tool\", \"content\": \"[1]\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], "
    "\"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"l\": [3, 1, 2], \"s\": \"a B\\nc\", \"d\": {\"b\": 1, \"A\": \"x\"}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const trusted[] = {"bos_token", "messages[].role", NULL};
    m5_json *vars = NULL;
    m5_jinja *j = NULL;
    m5_error err = {0};
    if (m5_json_parse(&vars, conversation, sizeof conversation - 1, NULL, NULL) != 0) abort();
    if (m5_jinja_compile(&j, "fuzz", (const char *)data, n, &err) == 0) {
        m5_jinja_limits lim = {.max_steps = 200000, .max_bytes = 8 << 20};
        m5_jinja_render_args args = {vars, trusted, 1785067200, &lim};
        m5_buf out = {0};
        m5_text_span *spans = NULL;
        size_t n_spans = 0, at = 0;
        int rc = m5_jinja_render(j, &args, &out, &spans, &n_spans, &err);
        if (rc == 0) {
            for (size_t i = 0; i < n_spans; i++) {
                if (spans[i].begin != at || spans[i].end <= at) abort();
                at = spans[i].end;
            }
            if (at != out.n || !m5_utf8_valid(out.p ? out.p : "", out.n)) abort();
        } else if (rc != M5_ERR_TEMPLATE && rc != M5_ERR_LIMIT) {
            abort();
        }
        m5_free(spans);
        m5_buf_free(&out);
    } else if (err.code != M5_ERR_TEMPLATE && err.code != M5_ERR_LIMIT) {
        abort();
    }
    m5_jinja_free(j);
    m5_json_unref(vars);
    return 0;
}
