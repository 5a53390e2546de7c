/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the OpenAI dialect's reading side share. Nobody else includes this. */
#ifndef M5_SERVER_API_OPENAI_INTERNAL_H
#define M5_SERVER_API_OPENAI_INTERNAL_H

#include "server/api_openai.h"

/* Read obj[key]; absent or null leaves *out. Errors: 400 with the field's name. */
int m5_openai_get_real(const m5_json *o, const char *key, double lo, double hi, float *out, m5_api_error *ae);
int m5_openai_get_int(const m5_json *o, const char *key, int64_t lo, int64_t hi, int64_t *out, m5_api_error *ae);
int m5_openai_get_bool(const m5_json *o, const char *key, bool *out, m5_api_error *ae);
int m5_openai_oom(m5_api_error *ae);

/* Parts of a chat request; t->vars is there. */
int m5_openai_messages(m5_turn *t, const m5_json *o, m5_api_error *ae);
int m5_openai_tools(m5_turn *t, const m5_json *o, m5_api_error *ae);     /* tools, tool_choice, parallel_tool_calls; functions, function_call */
int m5_openai_structure(m5_turn *t, const m5_json *o, m5_api_error *ae); /* response_format and its relatives */
int m5_openai_thinking(m5_turn *t, const m5_json *o, m5_api_error *ae);  /* after chat_template_kwargs went into t->vars */

#endif
