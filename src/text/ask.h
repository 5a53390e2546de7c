/* SPDX-License-Identifier: Apache-2.0 */
/* What a conversation asks for, read from its words: the form of the answer, and whether it is a question about a long text. Room: text/ask.c. Pure.
 *
 * These are guesses. Nothing uses them unless the operator says so (--escape-hints, --auto-think), and every use is reported in the response. */
#ifndef M5_TEXT_ASK_H
#define M5_TEXT_ASK_H

#include "base/json.h"
#include "base/str.h"

typedef enum m5_ask_form { M5_ASK_NONE, M5_ASK_JSON, M5_ASK_CODE, M5_ASK_SQL, M5_ASK_LIST, M5_ASK_TRANSLATION } m5_ask_form;

/* The form that the text asks for in so many words (English, German, French, Spanish, Italian, Portuguese, Chinese, Japanese); the first that fits in
 * the order JSON, SQL, code, translation, list. *opening: what an answer of that form begins with ("```json\n", "1. "); "" for none. */
m5_ask_form m5_ask_find_form(m5_slice text, const char **opening);
const char *m5_ask_form_name(m5_ask_form form); /* "json", "code", ...; NULL for none */

typedef struct m5_ask_needle_limits {
    int min_context;  /* characters around the question; 0 = 3000 */
    int max_question; /* characters; 0 = 200 */
} m5_ask_needle_limits;
/* A short question about a long text: more than min_context characters outside of the question, and a question of fewer than max_question that reads
 * like one. The question is the last user message, or, where the text came in that message too, its last or first line. messages: {role, content as a
 * string}. */
bool m5_ask_is_needle(const m5_json *messages, const m5_ask_needle_limits *lim);

/* The text of the last user message (of its last part, where it has parts); empty when there is none. Borrowed. */
m5_slice m5_ask_last_user(const m5_json *messages);

#endif
