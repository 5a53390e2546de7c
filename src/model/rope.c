/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary tables in their final form, from the dictionaries of config.json or the rope.* keys of GGUF. Room: model/families/family.h, "rotary
 * embedding". Not here: the rotation itself (forward pass) and which layer uses which table (families). */
#include "base/mem.h"
#include "model/families/family.h"

#include <math.h>
#include <string.h>

static const double TWO_PI = 6.283185307179586;

double m5_rope_mscale(double factor, double m)
{
    return factor > 1 ? 0.1 * m * log(factor) + 1 : 1;
}

/* llama3: long wavelengths are stretched by the factor, short ones kept, a linear blend between. */
static double scale_llama3(double inv, const m5_rope_spec *p)
{
    double wavelength = TWO_PI / inv;
    if (wavelength < p->orig_ctx / p->high_freq) return inv;
    if (wavelength > p->orig_ctx / p->low_freq) return inv / p->factor;
    double blend = (p->orig_ctx / wavelength - p->low_freq) / (p->high_freq - p->low_freq);
    return (1 - blend) * inv / p->factor + blend * inv;
}

/* YaRN (Peng et al. 2023, section 3.2): index at which a dimension turns `beta` times over the original context. */
static double yarn_border(double beta, int n_rot, const m5_rope_spec *p)
{
    return n_rot * log(p->orig_ctx / (beta * TWO_PI)) / (2 * log(p->theta));
}

static void scale_yarn(double *inv, int n_rot, const m5_rope_spec *p)
{
    double low = yarn_border(p->beta_fast, n_rot, p), high = yarn_border(p->beta_slow, n_rot, p);
    if (!p->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, n_rot - 1);
    if (low == high) high += 0.001;
    for (int j = 0; j < n_rot / 2; j++) {
        double ramp = fmin(fmax((j - low) / (high - low), 0), 1);
        inv[j] = inv[j] / p->factor * ramp + inv[j] * (1 - ramp);
    }
}

static double yarn_attn_factor(const m5_rope_spec *p)
{
    if (p->mscale != 0 && p->mscale_all_dim != 0) return m5_rope_mscale(p->factor, p->mscale) / m5_rope_mscale(p->factor, p->mscale_all_dim);
    return m5_rope_mscale(p->factor, 1);
}

static void fill_table(double *inv, int n_rot, const m5_rope_spec *p)
{
    /* Proportional: exponents are spread over the whole head although only a share of it turns; elsewhere over the rotated width. */
    int width = p->kind == M5_ROPE_PROPORTIONAL ? p->head_dim : n_rot;
    int turning = p->kind == M5_ROPE_PROPORTIONAL ? (int)floor(p->partial * p->head_dim / 2) : n_rot / 2;
    for (int j = 0; j < n_rot / 2; j++) inv[j] = j < turning ? pow(p->theta, -2.0 * j / width) : 0;
    for (int j = 0; j < n_rot / 2 && inv[j] > 0; j++) {
        if (p->kind == M5_ROPE_LINEAR || p->kind == M5_ROPE_PROPORTIONAL) inv[j] /= p->factor;
        if (p->kind == M5_ROPE_LLAMA3) inv[j] = scale_llama3(inv[j], p);
    }
    if (p->kind == M5_ROPE_YARN) scale_yarn(inv, n_rot, p);
}

static int check_spec(const m5_rope_spec *p, int n_rot, m5_error *err)
{
    if (n_rot < 2 || n_rot > p->head_dim || n_rot % 2) {
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "rotary width %d does not fit head_dim %d (must be even and at most as wide)", n_rot,
                            p->head_dim);
    }
    if (p->kind == M5_ROPE_YARN && !(p->theta > 1.0001))
        return m5_error_set(err, M5_ERR_FORMAT, "rope_theta is %g, yarn needs more than 1", p->theta);
    if (p->kind == M5_ROPE_LLAMA3 && !(p->high_freq > p->low_freq)) {
        return m5_error_set(err, M5_ERR_FORMAT, "rope high_freq_factor %g is not above low_freq_factor %g", p->high_freq, p->low_freq);
    }
    return 0;
}

int m5_rope_add(m5_config *c, const m5_rope_spec *spec, m5_error *err)
{
    m5_rope r = {.pairs = spec->pairs, .attn_factor = 1};
    double inv[M5_MAX_HEAD_DIM / 2];
    r.n_rot = spec->n_rot ? spec->n_rot : spec->kind == M5_ROPE_PROPORTIONAL ? spec->head_dim : (int)(spec->head_dim * spec->partial);
    int rc = check_spec(spec, r.n_rot, err);
    if (rc) return rc;
    if (c->n_rope == M5_MAX_ROPES) return m5_error_set(err, M5_ERR_LIMIT, "more than %d kinds of rotary embedding", M5_MAX_ROPES);
    fill_table(inv, r.n_rot, spec);
    if (spec->attn_factor > 0)
        r.attn_factor = (float)spec->attn_factor;
    else if (spec->kind == M5_ROPE_YARN)
        r.attn_factor = (float)yarn_attn_factor(spec);
    r.inv_freq = m5_alloc(M5_MEM_WEIGHTS, (size_t)(r.n_rot / 2) * sizeof *r.inv_freq);
    if (!r.inv_freq) return m5_error_set(err, M5_ERR_NOMEM, "no memory for a rotary table");
    for (int j = 0; j < r.n_rot / 2; j++) r.inv_freq[j] = (float)inv[j];
    for (int i = 0; i < c->n_rope; i++) {
        const m5_rope *o = &c->ropes[i];
        if (o->n_rot == r.n_rot && o->pairs == r.pairs && o->attn_factor == r.attn_factor &&
            memcmp(o->inv_freq, r.inv_freq, (size_t)(r.n_rot / 2) * sizeof *r.inv_freq) == 0) {
            m5_free(r.inv_freq);
            return i;
        }
    }
    c->ropes[c->n_rope] = r;
    return c->n_rope++;
}

static m5_rope_kind kind_of(m5_source *dict, m5_slice name)
{
    if (name.n == 0 || m5_slice_is(name, "default") || m5_slice_is(name, "mrope")) return M5_ROPE_DEFAULT; /* mrope with text is the default */
    if (m5_slice_is(name, "linear")) return M5_ROPE_LINEAR;
    if (m5_slice_is(name, "llama3")) return M5_ROPE_LLAMA3;
    if (m5_slice_is(name, "yarn")) return M5_ROPE_YARN;
    if (m5_slice_is(name, "proportional")) return M5_ROPE_PROPORTIONAL;
    m5_src_fail(dict, M5_ERR_UNSUPPORTED, "%srope_type \"%.*s\" is not supported (default, linear, llama3, yarn, proportional)", dict->path,
                (int)(name.n > 60 ? 60 : name.n), name.p);
    return M5_ROPE_DEFAULT;
}

void m5_hf_rope_dict(m5_source *dict, m5_rope_spec *spec, double n_ctx_train)
{
    if (!dict->json) return;
    if (m5_src_has(dict, "rope_type") || m5_src_has(dict, "type")) {
        spec->kind = kind_of(dict, m5_src_str(dict, m5_src_has(dict, "rope_type") ? "rope_type" : "type"));
    }
    spec->theta = m5_src_real(dict, "rope_theta", spec->theta, 1e-3, 1e15);
    spec->partial = m5_src_real(dict, "partial_rotary_factor", spec->partial, 1e-6, 1);
    if (spec->kind == M5_ROPE_DEFAULT) return;
    if (spec->kind != M5_ROPE_PROPORTIONAL && spec->factor == 0 && !m5_src_has(dict, "factor")) {
        m5_src_fail(dict, M5_ERR_FORMAT, "%sfactor is missing", dict->path);
    }
    spec->factor = m5_src_real(dict, "factor", spec->factor > 0 ? spec->factor : 1, 1e-6, 1e6);
    spec->orig_ctx = m5_src_real(dict, "original_max_position_embeddings", spec->orig_ctx > 0 ? spec->orig_ctx : n_ctx_train, 1, 1e12);
    if (spec->kind == M5_ROPE_LLAMA3) {
        spec->low_freq = m5_src_real(dict, "low_freq_factor", 1, 1e-6, 1e6);
        spec->high_freq = m5_src_real(dict, "high_freq_factor", 4, 1e-6, 1e6);
    }
    if (spec->kind == M5_ROPE_YARN) {
        spec->beta_fast = m5_src_real(dict, "beta_fast", spec->beta_fast > 0 ? spec->beta_fast : 32, 1e-6, 1e6);
        spec->beta_slow = m5_src_real(dict, "beta_slow", spec->beta_slow > 0 ? spec->beta_slow : 1, 1e-6, 1e6);
        spec->mscale = m5_src_real(dict, "mscale", spec->mscale, 0, 1e3);
        spec->mscale_all_dim = m5_src_real(dict, "mscale_all_dim", spec->mscale_all_dim, 0, 1e3);
        spec->attn_factor = m5_src_real(dict, "attention_factor", spec->attn_factor, 1e-6, 1e3);
        spec->no_truncate = !m5_src_bool(dict, "truncate", !spec->no_truncate);
    }
}

int m5_hf_rope(m5_config *c, m5_source *s, m5_rope_spec *spec)
{
    /* Flat keys first, so that the dictionary's own values win over them. */
    spec->theta = m5_src_real(s, "rope_theta", spec->theta, 1e-3, 1e15);
    spec->partial = m5_src_real(s, "partial_rotary_factor", spec->partial, 1e-6, 1);
    m5_source dict = m5_src_sub(s, m5_src_has(s, "rope_scaling") ? "rope_scaling" : "rope_parameters");
    m5_hf_rope_dict(&dict, spec, c->n_ctx_train);
    if (!m5_src_ok(s)) return 0;
    int i = m5_rope_add(c, spec, s->err);
    if (i < 0) *s->rc = i;
    return i < 0 ? 0 : i;
}

/* rope_freqs.weight: divisors of the base frequencies (llama3 scaling; 1e30 for the still half of gemma4's heads). */
static void apply_freqs(m5_rope *r, m5_source *s)
{
    const m5_gguf_tensor *t = m5_gguf_find(s->gguf, "rope_freqs.weight");
    if (!t) return;
    if (t->type != M5_F32 || t->dims[0] != r->n_rot / 2 || t->n_bytes != (size_t)(r->n_rot / 2) * 4) {
        m5_src_fail(s, M5_ERR_FORMAT, "tensor rope_freqs.weight must hold %d f32 values", r->n_rot / 2);
        return;
    }
    for (int j = 0; j < r->n_rot / 2; j++) {
        float f;
        memcpy(&f, t->data + 4 * (size_t)j, 4);
        if (!(f > 0)) {
            m5_src_fail(s, M5_ERR_FORMAT, "tensor rope_freqs.weight: element %d is %g, expected a positive number", j, (double)f);
            return;
        }
        r->inv_freq[j] = f >= 1e20f ? 0 : r->inv_freq[j] / f;
    }
}

int m5_gguf_rope(m5_config *c, m5_source *s, m5_rope_spec *spec, bool use_freqs)
{
    m5_slice type = m5_src_str(s, "rope.scaling.type");
    spec->theta = m5_src_real(s, "rope.freq_base", spec->theta, 1e-3, 1e15);
    spec->n_rot = m5_src_int(s, "rope.dimension_count", spec->n_rot, 1, M5_MAX_HEAD_DIM);
    double factor = m5_src_real(s, "rope.scaling.factor", m5_src_real(s, "rope.scale_linear", 0, 0, 1e6), 0, 1e6);
    if (type.n && !m5_slice_is(type, "none") && !m5_slice_is(type, "linear") && !m5_slice_is(type, "yarn")) {
        m5_src_fail(s, M5_ERR_UNSUPPORTED, "%s.rope.scaling.type \"%.*s\" is not supported (none, linear, yarn)", s->path,
                    (int)(type.n > 60 ? 60 : type.n), type.p);
    }
    if (factor > 0 && spec->kind == M5_ROPE_DEFAULT && !m5_slice_is(type, "none")) {
        spec->factor = factor;
        spec->kind = m5_slice_is(type, "yarn") ? M5_ROPE_YARN : M5_ROPE_LINEAR;
    }
    if (spec->kind == M5_ROPE_YARN) {
        spec->orig_ctx = m5_src_real(s, "rope.scaling.original_context_length", c->n_ctx_train, 1, 1e12);
        spec->beta_fast = m5_src_real(s, "rope.scaling.yarn_beta_fast", 32, 1e-6, 1e6);
        spec->beta_slow = m5_src_real(s, "rope.scaling.yarn_beta_slow", 1, 1e-6, 1e6);
        /* The converter copies attention_factor, which stands for the whole factor, to the first key; the second multiplies. */
        double whole = m5_src_real(s, "rope.scaling.yarn_attn_factor", yarn_attn_factor(spec), 1e-6, 1e3);
        spec->attn_factor = whole * m5_src_real(s, "rope.scaling.attn_factor", 1, 1e-6, 1e3);
    }
    if (!m5_src_ok(s)) return 0;
    bool has_freqs = use_freqs && m5_gguf_find(s->gguf, "rope_freqs.weight");
    /* gemma4: the tensor says the same as "proportional"; applied to the plain table it must not meet frequencies that are zero already. */
    if (has_freqs && spec->kind == M5_ROPE_PROPORTIONAL) {
        spec->kind = M5_ROPE_DEFAULT;
        spec->n_rot = spec->head_dim;
    }
    int before = c->n_rope, i = m5_rope_add(c, spec, s->err);
    if (i < 0) {
        *s->rc = i;
        return 0;
    }
    /* A table found again already has the divisors unless a layer kind without them made it; families add the kind with divisors first. */
    if (has_freqs && i == before) apply_freqs(&c->ropes[i], s);
    return i;
}
