# SPDX-License-Identifier: Apache-2.0
# The test looks inside: regex spelling and byte tokens have no public face.
m5_test(test_tokenizer SOURCES unit/test_tokenizer.c LIBS m5_text m5_base LABELS unit TIMEOUT 300)
m5_test(test_grammar SOURCES unit/test_grammar.c LIBS m5_text m5_base LABELS unit TIMEOUT 300)
m5_test(test_grammar_text SOURCES unit/test_grammar_text.c LIBS m5_text m5_base LABELS unit)
m5_test(test_grammar_random SOURCES unit/test_grammar_random.c LIBS m5_text m5_base LABELS unit TIMEOUT 300)
m5_test(test_grammar_tools SOURCES unit/test_grammar_tools.c LIBS m5_text m5_base LABELS unit)
m5_test(test_jinja SOURCES unit/test_jinja.c LIBS m5_text m5_base LABELS unit TIMEOUT 300)
m5_test(test_chat SOURCES unit/test_chat.c LIBS m5_text m5_base LABELS unit)
m5_test(test_think SOURCES unit/test_think.c LIBS m5_text m5_base LABELS unit)
m5_test(test_ask SOURCES unit/test_ask.c LIBS m5_text m5_base LABELS unit)
m5_test(test_toolcall SOURCES unit/test_toolcall.c LIBS m5_text m5_base LABELS unit)
m5_test(test_toolcall_random SOURCES unit/test_toolcall_random.c LIBS m5_text m5_base LABELS unit)
