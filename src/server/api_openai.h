/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenAI dialect: JSON of /v1/chat/completions and /v1/completions <-> neutral turn. Pure functions of bytes. Room: server/api_openai*.c. */
#ifndef M5_SERVER_API_OPENAI_H
#define M5_SERVER_API_OPENAI_H

#include "server/turn.h"

/* Body -> turn. Owner: caller (m5_turn_free, or give it to m5_turn_run). Unknown fields are ignored; known ones with a bad value, and known ones this
 * server cannot honour, fail with status 400 and name the field. */
int m5_openai_parse_chat(m5_turn **out, const char *body, size_t n, const m5_turn_defaults *def, m5_api_error *ae);
int m5_openai_parse_completion(m5_turn **out, const char *body, size_t n, const m5_turn_defaults *def, m5_api_error *ae);

extern const m5_dialect m5_openai_chat, m5_openai_completion;

void m5_openai_error(const m5_api_error *e, m5_buf *out); /* {"error":{message,type,param,code}} */
/* One entry of /v1/models. */
void m5_openai_model(m5_buf *out, const char *id, int64_t created, int n_ctx);

#endif
