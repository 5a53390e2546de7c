/* SPDX-License-Identifier: Apache-2.0 */
/* Message boundaries of a prompt, from its control tokens. */
#include "engine/marks.h"

/* Places of the token that opens messages: its second, and its last three. */
static int openers(const m5_tokenizer *t, const int32_t *ids, int n, int *out)
{
    enum { N_LAST = 3 };
    int first = ids[0] == m5_tokenizer_bos(t) ? 1 : 0, opener = -1, second = -1, last[N_LAST], n_last = 0, k = 0;
    for (int i = first; i < n && opener < 0; i++)
        if (m5_tokenizer_is_control(t, ids[i])) opener = i;
    if (opener < 0) return 0;
    for (int i = opener + 1; i < n && second < 0; i++)
        if (ids[i] == ids[opener]) second = i;
    if (second < 0) return 0;
    for (int i = n - 1; i > second && n_last < N_LAST; i--)
        if (ids[i] == ids[opener]) last[n_last++] = i;
    out[k++] = second;
    while (n_last > 0) out[k++] = last[--n_last];
    return k;
}

int m5_marks_find(const m5_tokenizer *t, const int32_t *ids, int n, int out[M5_MAX_MARKS])
{
    enum { CLOSE = 16 };
    if (n < 2) return 0;
    int k = t ? openers(t, ids, n, out) : 0;
    if (k == 0 || n - out[k - 1] > CLOSE) out[k++] = n - 1;
    return k;
}
