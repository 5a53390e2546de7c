/* SPDX-License-Identifier: Apache-2.0 */
/* Message boundaries of a prompt, from its control tokens. */
#include "engine/marks.h"

int m5_marks_find(const m5_tokenizer *t, const int32_t *ids, int n, int out[M5_MAX_MARKS])
{
    if (!t || n < 2) return 0;
    int first = ids[0] == m5_tokenizer_bos(t) ? 1 : 0, opener = -1;
    for (int i = first; i < n && opener < 0; i++)
        if (m5_tokenizer_is_control(t, ids[i])) opener = i;
    if (opener < 0) return 0;
    int second = -1, last[M5_MAX_MARKS - 1], n_last = 0;
    for (int i = opener + 1; i < n && second < 0; i++)
        if (ids[i] == ids[opener]) second = i;
    if (second < 0) return 0;
    for (int i = n - 1; i > second && n_last < M5_MAX_MARKS - 1; i--)
        if (ids[i] == ids[opener]) last[n_last++] = i;
    int k = 0;
    out[k++] = second;
    while (n_last > 0) out[k++] = last[--n_last];
    return k;
}
