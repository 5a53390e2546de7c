/* SPDX-License-Identifier: Apache-2.0 */
/* What grammar_schema.c and grammar_merge.c share. Included by nobody else. */
#ifndef M5_TEXT_GRAMMAR_SCHEMA_H
#define M5_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar_internal.h"

/* A member that merged schemas carry; its name can stand in no real schema by accident. */
#define G_SCHEMA_MERGED "\x01merged"

typedef struct schema_ctx {
    m5_gb *b;
    const m5_json *root;
    const char *where;
    m5_buf path;    /* JSON pointer of the schema at hand */
    m5_json *owned; /* merged schemas, kept while their addresses are keys */
    struct g_memo { /* rules by schema; open addressing */
        const m5_json *schema;
        int32_t rule;
    } * memo;
    size_t n_memo, cap_memo;
    int depth;
    size_t n_schema, n_merge;
} schema_ctx;

/* b, root, where and path stand; false: out of memory. */
bool m5_g_schema_init(schema_ctx *c);
void m5_g_schema_deinit(schema_ctx *c);
void m5_g_schema_note(schema_ctx *c, const char *keyword);
size_t m5_g_schema_enter(schema_ctx *c, const char *key, size_t n);
void m5_g_schema_leave(schema_ctx *c, size_t back);
int32_t m5_g_schema_node(schema_ctx *c, const m5_json *s);

/* ---- grammar_merge.c ---- */
/* The target when the schema is a reference and nothing else (annotations aside), else NULL. */
const m5_json *m5_g_schema_only_ref(schema_ctx *c, const m5_json *s);
/* A call of the schema's own rule, made at first sight. */
int32_t m5_g_schema_ref(schema_ctx *c, const m5_json *s);
/* The schema without $ref and allOf: itself or a merged one, borrowed. NULL after a failure. */
const m5_json *m5_g_schema_flat(schema_ctx *c, const m5_json *s);
/* One branch of anyOf or oneOf together with what stands beside it. */
const m5_json *m5_g_schema_branch(schema_ctx *c, const m5_json *s, const char *key, const m5_json *branch);

#endif
