/* SPDX-License-Identifier: Apache-2.0 */
/* Experts in every layout in use, as one matrix view per expert and projection; nothing is copied. Room: model/bind.h.
 *
 *   GGUF                 ffn_gate_exps, ffn_up_exps [E, I, H], ffn_down_exps [E, H, I]; or ffn_gate_up_exps [E, 2I, H]
 *   Hugging Face fused   experts.gate_up_proj [E, 2I, H] (gate rows first), experts.down_proj [E, H, I]
 *   Hugging Face single  experts.N.gate_proj.weight [I, H], ...
 *   MLX                  switch_mlp.gate_proj.weight [E, I, H], ... quantised or not */
#include "model/bind.h"

#include <stdio.h>
#include <string.h>

/* Rows [first, first + n) of every slice of a [n_expert * rows, cols] matrix. */
static void spread(const m5_matrix *all, int n_expert, int64_t rows, int64_t first, int64_t n, m5_matrix *out)
{
    for (int e = 0; e < n_expert; e++) out[e] = m5_matrix_rows(all, e * rows + first, n);
}

/* names of a fused gate+up, and of the three stacked matrices; *found tells whether this layout is the one in the file. */
static int bind_stacked(m5_binder *b, const char *prefix, const char *gate_up, const char *gate, const char *up, const char *down,
                        m5_layer_weights *w, bool *found)
{
    const m5_config *c = &b->w->config;
    const int64_t width = c->n_ffn_expert, n = c->n_expert;
    m5_matrix all = {0};
    int rc = 0;
    *found = true;
    if (m5_bind_exists(b, prefix, gate_up)) {
        rc = m5_bind_matrix(b, prefix, gate_up, n, 2 * width, c->n_embd, false, &all);
        if (rc) return rc;
        spread(&all, c->n_expert, 2 * width, 0, width, w->exp_gate);
        spread(&all, c->n_expert, 2 * width, width, width, w->exp_up);
    } else if (m5_bind_exists(b, prefix, gate)) {
        rc = m5_bind_matrix(b, prefix, gate, n, width, c->n_embd, false, &all);
        if (rc) return rc;
        spread(&all, c->n_expert, width, 0, width, w->exp_gate);
        rc = m5_bind_matrix(b, prefix, up, n, width, c->n_embd, false, &all);
        if (rc) return rc;
        spread(&all, c->n_expert, width, 0, width, w->exp_up);
    } else {
        *found = false;
        return 0;
    }
    rc = m5_bind_matrix(b, prefix, down, n, c->n_embd, width, false, &all);
    if (rc == 0) spread(&all, c->n_expert, c->n_embd, 0, c->n_embd, w->exp_down);
    return rc;
}

static int bind_single(m5_binder *b, const char *prefix, const char *folder, m5_layer_weights *w)
{
    const m5_config *c = &b->w->config;
    int rc = 0;
    for (int e = 0; e < c->n_expert && rc == 0; e++) {
        char name[M5_BIND_NAME_BYTES];
        snprintf(name, sizeof name, "%s%s.%d.", prefix, folder, e);
        rc = m5_bind_matrix(b, name, "gate_proj.weight", 1, c->n_ffn_expert, c->n_embd, false, &w->exp_gate[e]);
        if (rc == 0) rc = m5_bind_matrix(b, name, "up_proj.weight", 1, c->n_ffn_expert, c->n_embd, false, &w->exp_up[e]);
        if (rc == 0) rc = m5_bind_matrix(b, name, "down_proj.weight", 1, c->n_embd, c->n_ffn_expert, false, &w->exp_down[e]);
    }
    return rc;
}

int m5_bind_experts(m5_binder *b, const char *prefix, const m5_slot *slot, m5_layer_weights *w)
{
    const size_t n = (size_t)b->w->config.n_expert;
    bool found = false;
    w->exp_gate = m5_bind_alloc(b, n, sizeof *w->exp_gate);
    w->exp_up = m5_bind_alloc(b, n, sizeof *w->exp_up);
    w->exp_down = m5_bind_alloc(b, n, sizeof *w->exp_down);
    if (!w->exp_gate || !w->exp_up || !w->exp_down) return M5_ERR_NOMEM;
    if (b->store->gguf) {
        int rc = bind_stacked(b, prefix, "ffn_gate_up_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", w, &found);
        /* Not there at all: the error for the plain layout names what is missing. */
        return rc || found ? rc : m5_bind_matrix(b, prefix, "ffn_gate_exps.weight", (int64_t)n, 1, 1, false, &(m5_matrix){0});
    }
    char folder[64] = "";
    for (const char *p = slot->hf; *p;) {
        char at[M5_BIND_NAME_BYTES];
        size_t len = strcspn(p, "|");
        snprintf(at, sizeof at, "%s%.*s.", prefix, (int)len, p);
        int rc =
            bind_stacked(b, at, "gate_up_proj|gate_up_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj|down_proj.weight", w, &found);
        if (rc || found) return rc;
        if (!folder[0]) snprintf(folder, sizeof folder, "%.*s", (int)len, p);
        p += len + (p[len] == '|');
    }
    return bind_single(b, prefix, folder, w);
}
