/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised files of every container end to end: GGUF types and MLX widths against logits that transformers computed from the unpacked weights. This is where a
 * wrong row order, head order, norm shift, scale or key of a real converter shows. Usage: test_quantised [FOLDER-OF-MODELS [BOUND]] */
#include "base/json.h"
#include "base/mem.h"
#include "model/model.h"
#include "model/safetensors.h"

#include "t.h"

#include <math.h>

enum { N_LAST = 8, MAX_GREEDY = 64, MAX_ROWS = 512 };

static m5_error err;

typedef struct reference {
    m5_st *st;
    const int32_t *ids_short, *ids_long;
    const float *logits_short, *logits_last;
    int n_short, n_long, n_vocab, n_greedy;
    int32_t greedy[MAX_GREEDY];
} reference;

static const void *data_of(reference *r, const char *name, int64_t *rows, int64_t *cols)
{
    const m5_st_tensor *t = m5_st_find(r->st, name);
    T_CHECK(t, "no tensor %s", name);
    if (!t) return NULL;
    *rows = t->shape[0];
    *cols = t->n_dims > 1 ? t->shape[1] : 1;
    return t->data; /* the format pads its header to 8 bytes */
}

static bool read_reference(reference *r, const char *folder)
{
    char path[512], *text = NULL;
    int64_t rows = 0, cols = 0;
    size_t n = 0;
    m5_json *doc = NULL;
    memset(r, 0, sizeof *r);
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    if (m5_st_open(&r->st, path, &err)) return false;
    r->ids_short = data_of(r, "ids_short", &rows, &cols);
    r->n_short = (int)rows;
    r->ids_long = data_of(r, "ids_long", &rows, &cols);
    r->n_long = (int)rows;
    r->logits_last = data_of(r, "logits_long_last8", &rows, &cols);
    r->logits_short = data_of(r, "logits_short", &rows, &cols);
    r->n_vocab = (int)cols;
    snprintf(path, sizeof path, "%s/expected.json", folder);
    if (m5_file_read(&text, &n, path, 1 << 20, &err) == 0 && m5_json_parse(&doc, text, n, NULL, &err) == 0) {
        const m5_json *list = m5_json_get(doc, "greedy_tokens");
        for (size_t i = 0; i < m5_json_len(list) && r->n_greedy < MAX_GREEDY; i++) r->greedy[r->n_greedy++] = (int32_t)m5_json_int(m5_json_at(list, i));
    }
    m5_json_unref(doc);
    m5_free(text);
    return r->n_long <= MAX_ROWS && r->logits_short && r->logits_last && r->ids_short && r->ids_long;
}

static double max_diff(const float *a, const float *b, size_t n)
{
    double d = 0;
    for (size_t i = 0; i < n; i++) {
        double x = fabs((double)a[i] - (double)b[i]);
        if (!(x <= d)) d = x;
    }
    return d;
}

static int largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

static void feed(m5_model *m, m5_seq *s, const int32_t *ids, int n, float *out)
{
    m5_run run = {s, ids, n, n, false};
    T_CHECK(m5_model_forward(m, &run, 1, out, &err) == 0, "%s", err.text);
}

static void check_model(const char *folder, double bound)
{
    reference r;
    m5_model *m = NULL;
    m5_seq *s = NULL;
    float *out = NULL;
    if (!read_reference(&r, folder)) goto done;
    m5_model_options o = {.cpu = {2, 0xffffffffu, true}, .kv_type = M5_KV_F32, .max_batch_tok = MAX_ROWS};
    int rc = m5_model_open(&m, folder, &o, &err);
    T_CHECK(rc == 0, "%s: %s", folder, err.text);
    if (rc || (rc = m5_seq_new(&s, m, &err))) goto done;
    const size_t v = (size_t)r.n_vocab;
    out = malloc((size_t)r.n_long * v * sizeof *out);
    if (!out) goto done;
    feed(m, s, r.ids_short, r.n_short, out);
    double d_short = max_diff(out, r.logits_short, (size_t)r.n_short * v);
    const float *last = out + (size_t)(r.n_short - 1) * v;
    int n_same = 0;
    for (int i = 0; i < r.n_greedy; i++, last = out) {
        int32_t id = (int32_t)largest(last, r.n_vocab);
        n_same += id == r.greedy[i];
        feed(m, s, &r.greedy[i], 1, out);
    }
    m5_seq_reset(s);
    feed(m, s, r.ids_long, r.n_long, out);
    double d_long = max_diff(out + (size_t)(r.n_long - N_LAST) * v, r.logits_last, N_LAST * v);
    printf("%s: short %.1e, long %.1e, greedy %d of %d\n", folder, d_short, d_long, n_same, r.n_greedy);
    T_CHECK(d_short < bound, "%s: short logits differ by %g", folder, d_short);
    T_CHECK(d_long < bound, "%s: long logits differ by %g", folder, d_long);
    T_CHECK(n_same == r.n_greedy, "%s: %d of %d greedy tokens", folder, n_same, r.n_greedy);
done:
    free(out);
    m5_seq_free(s);
    m5_model_close(m);
    m5_st_close(r.st);
}

int main(int argc, char **argv)
{
    const char *root = argc > 1 ? argv[1] : M5_TEST_DATA "/models_quant";
    const double bound = argc > 2 ? atof(argv[2]) : 6e-5;
    char **names = NULL;
    size_t n = 0;
    if (m5_dir_list(&names, &n, root, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        char folder[480];
        snprintf(folder, sizeof folder, "%s/%s", root, names[i]);
        if (m5_path_is_dir(folder)) check_model(folder, bound);
        m5_free(names[i]);
    }
    m5_free(names);
    return t_done();
}
