/* SPDX-License-Identifier: Apache-2.0 */
/* A small vocabulary for the tests of grammars: all single bytes, pieces that cross the borders of JSON and of tool calls, one control token, an end
 * token and a token without text. And a generator of random numbers with a fixed seed. */
#ifndef M5_TESTS_GRAMMAR_WORDS_H
#define M5_TESTS_GRAMMAR_WORDS_H

#include "t.h"
#include "text/grammar.h"

#include <stdint.h>

static const char *const words[] = {"{\"",
                                    "\"}",
                                    "\":",
                                    "\": ",
                                    "\":\"",
                                    "\",\"",
                                    "\", \"",
                                    "\"]",
                                    "[\"",
                                    "[[",
                                    "]]",
                                    "}}",
                                    "{}",
                                    "[]",
                                    "[{",
                                    "}]",
                                    "},{",
                                    "],[",
                                    "{\"a\":",
                                    "\"a\"",
                                    "\"b\"",
                                    "\"\"",
                                    "\",\"b\":",
                                    "true",
                                    "false",
                                    "null",
                                    "tr",
                                    "ue",
                                    "nul",
                                    "12",
                                    "-1",
                                    "0.",
                                    ".5",
                                    "e1",
                                    "00",
                                    "1,",
                                    ",2",
                                    " ",
                                    "  ",
                                    "    ",
                                    "\n",
                                    "\n  ",
                                    "\n    ",
                                    ",\n",
                                    "{\n",
                                    "\t",
                                    "\\n",
                                    "\\u",
                                    "\\u00",
                                    "\\\"",
                                    "\\",
                                    "abc",
                                    "name",
                                    "na",
                                    "me",
                                    "hello world",
                                    " world",
                                    "value",
                                    "red",
                                    "green",
                                    "blue",
                                    "re",
                                    "\"red\"",
                                    "\xC3",
                                    "\xA9",
                                    "\xC3\xA9",
                                    "\xE4\xB8",
                                    "\xAD",
                                    "\xE4\xB8\xAD",
                                    "\xF0\x9F",
                                    "\x98\x80",
                                    "\xF0\x9F\x98\x80",
                                    "a\"",
                                    "ab",
                                    "abcd",
                                    "aaaaaaaaaaaaaaaaaaaaaaaa",
                                    "\xC3\xA9\xC3\xA9\xC3\xA9",
                                    "2024",
                                    "-",
                                    "-01",
                                    "T10:",
                                    "Z\"",
                                    "@x.",
                                    ".com\"",
                                    "AB",
                                    "0-",
                                    "<a>",
                                    "</",
                                    "</a",
                                    "</a>",
                                    "x</a>",
                                    "]}",
                                    "\"}]",
                                    "1}",
                                    "1]",
                                    "null}",
                                    ", ",
                                    ": ",
                                    ":",
                                    ",",
                                    "{ ",
                                    "[ ",
                                    " }",
                                    " ]",
                                    "d83d",
                                    "\\ud83d",
                                    "\\ude00",
                                    "dc",
                                    "\xFF",
                                    "\x80\x80"};
enum {
    N_WORDS = sizeof words / sizeof words[0],
    N_PIECES = 256 + N_WORDS + 3,
    END = N_PIECES - 2,
    EMPTY = N_PIECES - 1,
    TAG = N_PIECES - 3,
    N_BITS = (N_PIECES + 63) / 64
};

static m5_slice pieces[N_PIECES];
static m5_grammar_vocab *vocab;

static void make_vocab(void)
{
    static char bytes[256];
    int32_t end = END;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[i] = (m5_slice){&bytes[i], 1};
    }
    for (int i = 0; i < N_WORDS; i++) pieces[256 + i] = m5_slice_of(words[i]);
    pieces[TAG] = M5_SLICE("\xFF<tag>\xFF");
    pieces[END] = M5_SLICE("<end>");
    pieces[EMPTY] = M5_SLICE("");
    T_EQ_INT(m5_grammar_vocab_of(&vocab, pieces, N_PIECES, &end, 1, NULL), 0);
}

static uint64_t rng_state = 0x9E3779B97F4A7C15u;
static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

#endif
