/* SPDX-License-Identifier: Apache-2.0 */
/* engine/marks: message boundaries from control tokens. */
#include "engine/marks.h"

#include "t.h"

static const char vocab[] = "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":\"<m>\",\"special\":true},{"
                            "\"id\":6,\"content\":\"</m>\",\"special\":true}],"
                            "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3},\"merges\":[]}}";

static void check(const m5_tokenizer *t, const int32_t *ids, int n, const char *want)
{
    int out[M5_MAX_MARKS], k = m5_marks_find(t, ids, n, out);
    char got[128] = "";
    for (int i = 0; i < k; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "", out[i]);
    T_EQ_STR(got, want);
}

int main(void)
{
    m5_tokenizer *t = NULL;
    m5_error err = {0};
    T_CHECK(m5_tokenizer_from_json(&t, vocab, sizeof vocab - 1, NULL, &err) == 0, "%s", err.text);
    enum { M = 5, E = 6 };
    /* system, user, assistant, user, generation prompt */
    const int32_t chat[] = {M, 0, 1, E, 3, M, 1, 1, E, 3, M, 2, 2, E, 3, M, 1, E, 3, M, 2};
    check(t, chat, 21, "5 10 15 19");
    check(t, chat, 10, "5");
    const int32_t one[] = {M, 0, 1, 1};
    check(t, one, 4, "3");
    int32_t plain[64] = {0};
    check(t, plain, 64, "63");
    check(NULL, plain, 64, "63");
    check(t, plain, 1, "");
    plain[0] = M;
    plain[10] = M;
    check(t, plain, 64, "10 63");
    check(t, plain, 20, "10");
    m5_tokenizer_free(t);
    return t_done();
}
