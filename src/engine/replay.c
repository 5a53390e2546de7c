/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange of equal text by the tokens that were sampled; see replay.h. */
#include "engine/replay.h"

#include <string.h>

enum { MAX_BRANCH = 8 };

/* Tokens of stored whose text equals that of seg exactly, where a control token or the stored branch's end follows; 0 when there is no such cut. */
static int same_text(const m5_tokenizer *t, const int32_t *seg, int n_seg, const int32_t *stored, int n_stored)
{
    int i = 0, j = 0;
    m5_slice a = {"", 0}, b = {"", 0};
    for (;;) {
        while (a.n == 0 && i < n_seg) a = m5_tokenizer_piece(t, seg[i++]);
        if (a.n == 0) break;
        while (b.n == 0 && j < n_stored) {
            if (m5_tokenizer_is_control(t, stored[j])) return 0;
            b = m5_tokenizer_piece(t, stored[j++]);
        }
        size_t n = a.n < b.n ? a.n : b.n;
        if (n == 0 || memcmp(a.p, b.p, n) != 0) return 0;
        a = (m5_slice){a.p + n, a.n - n};
        b = (m5_slice){b.p + n, b.n - n};
    }
    return b.n == 0 && (j == n_stored || m5_tokenizer_is_control(t, stored[j])) ? j : 0;
}

int m5_replay(const m5_prefix *p, const m5_tokenizer *t, int32_t *ids, int *n, int cap, int32_t *scratch, int n_scratch)
{
    int n_replayed = 0;
    if (!p || !t) return 0;
    for (int from = 0; from < *n;) {
        int at = m5_prefix_common(p, ids, *n);
        if (at <= from || at >= *n) break;
        from = at;
        int end = at;
        while (end < *n && !m5_tokenizer_is_control(t, ids[end])) end++;
        /* Without an end mark the text may go on: nothing is known to be the same. */
        if (end == *n || end == at) break;
        int k = 0;
        for (int branch = 0; branch < MAX_BRANCH && k == 0; branch++) {
            int n_stored = m5_prefix_follow(p, ids, at, branch, scratch, n_scratch);
            if (n_stored == 0) break;
            k = same_text(t, ids + at, end - at, scratch, n_stored);
        }
        if (k == 0 || *n - (end - at) + k > cap) break;
        memmove(ids + at + k, ids + end, (size_t)(*n - end) * sizeof *ids);
        memcpy(ids + at, scratch, (size_t)k * sizeof *ids);
        *n += k - (end - at);
        n_replayed += k;
    }
    return n_replayed;
}
