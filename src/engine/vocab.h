/* SPDX-License-Identifier: Apache-2.0 */
/* The text side of a model file: its tokenizer and chat template, as objects. Room: engine/vocab.c, the only place that joins model/ and text/. */
#ifndef M5_ENGINE_VOCAB_H
#define M5_ENGINE_VOCAB_H

#include "base/err.h"
#include "model/weights.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* Tokenizer of an opened model; *out stays NULL, without error, when the model brings none. Owner: caller. */
int m5_vocab_tokenizer(m5_tokenizer **out, const m5_weights *w, m5_error *err);
/* Template of an opened model, or template_text when not NULL; t may be NULL. Owner: caller. */
int m5_vocab_chat(m5_chat **out, const m5_weights *w, const m5_tokenizer *t, const char *template_text, m5_error *err);

/* Only the tokenizer of a path, without touching weights: a .gguf file, a tokenizer.json, or a folder that holds either. */
int m5_vocab_open_tokenizer(m5_tokenizer **out, const char *path, m5_error *err);

#endif
