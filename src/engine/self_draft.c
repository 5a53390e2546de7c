/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of layers that guess, and chains of guesses; see self_draft.h. */
#include "engine/self_draft.h"

#include "model/mtp.h"

#include <math.h>

/* ---- layers ---- */

static int count_layers(const m5_model *m, const m5_layer_set *set)
{
    int n = 0;
    for (int l = 0; l < m5_model_config(m)->n_layer; l++) n += m5_layer_in(set, l);
    return n;
}

bool m5_self_usable(const m5_model *m, const m5_layer_set *set)
{
    for (int w = 0; w < M5_LAYER_WORDS; w++)
        if (set->bits[w] & ~m5_model_layers(m)->bits[w]) return false;
    return m5_model_check_layers(m, set, NULL) == 0;
}

double m5_self_share(const m5_model *m, const m5_layer_set *set)
{
    return (double)count_layers(m, set) / count_layers(m, m5_model_layers(m));
}

static m5_layer_set first_of(const m5_model *m, int n)
{
    m5_layer_set s = {0};
    for (int l = 0; l < m5_model_config(m)->n_layer && n > 0; l++) {
        if (!m5_layer_in(m5_model_layers(m), l)) continue;
        m5_layer_put(&s, l, true);
        n--;
    }
    return s;
}

/* Whether another layer in use reads the keys of this one. */
static bool is_donor(const m5_model *m, int layer)
{
    const m5_config *c = m5_model_config(m);
    for (int l = 0; l < c->n_layer; l++)
        if (l != layer && m5_layer_in(m5_model_layers(m), l) && c->layers[l].mixer == M5_MIX_ATTN && c->layers[l].kv_donor == layer) return true;
    return false;
}

m5_layer_set m5_self_default(const m5_model *m, m5_self_variant v)
{
    const m5_layer_set *all = m5_model_layers(m);
    const int n = m5_model_config(m)->n_layer, n_used = count_layers(m, all);
    if (v == M5_SELF_EXIT) return first_of(m, n_used / 2);
    const int edge = n / 4 > 1 ? n / 4 : 1;
    m5_layer_set s = *all;
    int left_out = 0;
    for (int l = edge + edge % 2; l < n - edge; l += 2) {
        if (!m5_layer_in(all, l) || is_donor(m, l)) continue;
        m5_layer_put(&s, l, false);
        left_out++;
    }
    return left_out && left_out < n_used ? s : (m5_layer_set){0};
}

int m5_self_exit_after(m5_layer_set *out, const m5_model *m, int n, m5_error *err)
{
    const int n_used = count_layers(m, m5_model_layers(m));
    if (n < 1 || n >= n_used) return m5_error_set(err, M5_ERR_ARG, "an exit after %d of %d layers", n, n_used);
    *out = first_of(m, n);
    return m5_model_check_layers(m, out, err);
}

int m5_self_skip_list(m5_layer_set *out, const m5_model *m, const int32_t *list, int n, m5_error *err)
{
    const int n_layer = m5_model_config(m)->n_layer;
    *out = *m5_model_layers(m);
    for (int i = 0; i < n; i++) {
        if (list[i] < 0 || list[i] >= n_layer)
            return m5_error_set(err, M5_ERR_ARG, "layer %d cannot be left out: the model has layers 0 to %d", list[i], n_layer - 1);
        m5_layer_put(out, list[i], false);
    }
    return m5_model_check_layers(m, out, err);
}

/* ---- guesses ---- */

/* The likeliest id, unless its probability is below `least`: then -1. */
static int32_t likeliest(const float *x, int n, float least)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    if (!(least > 0)) return best;
    const float top = x[best], near = top - 16; /* all the others together are nothing */
    float sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > near) sum += expf(x[i] - top);
    return sum * least <= 1 ? best : -1;
}

static bool goes_on(const m5_self_ask *a, int n_done)
{
    return !a->stopped && a->n == n_done && n_done < a->n_want;
}

int m5_self_guess(m5_model *m, const m5_self_draft *d, m5_self_ask *asks, int n, m5_run *runs, float *logits, const m5_spec_cost *cost,
                  double *whole_us, m5_error *err)
{
    const int n_vocab = m5_model_config(m)->n_vocab, n_guess = n_vocab > 2 * M5_MTP_SHORTLIST ? M5_MTP_SHORTLIST : n_vocab;
    *whole_us = 0;
    for (int i = 0; i < n; i++) {
        asks[i].n = 0;
        asks[i].stopped = false;
    }
    for (int j = 0; j < M5_SELF_MAX_K; j++) {
        int n_run = 0, rows = 0;
        for (int i = 0; i < n; i++) {
            const m5_self_ask *a = &asks[i];
            if (!goes_on(a, j)) continue;
            runs[n_run++] = (m5_run){.seq = a->seq, .ids = a->ids, .n_tok = a->n_certain + j, .n_out = 1};
            rows += a->n_certain + j;
        }
        if (n_run == 0) break;
        int rc = m5_model_guess(m, runs, n_run, &d->layers, n_guess, logits, err);
        if (rc) return rc;
        *whole_us += m5_spec_cost_of(cost, rows);
        const float *x = logits;
        for (int i = 0; i < n; i++) {
            m5_self_ask *a = &asks[i];
            if (!goes_on(a, j)) continue;
            const int32_t id = likeliest(x, n_guess, d->confidence);
            x += n_vocab;
            a->stopped = id < 0;
            if (id >= 0) a->ids[a->n_certain + a->n++] = id;
        }
    }
    return 0;
}
