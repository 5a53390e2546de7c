/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations: facts per family, values of omitted keys, old and new spellings, rotary tables against published check values, and malformed input.
 */
#include "model/config.h"

#include "model_build.h"
#include "model/gguf.h"
#include "t.h"

#include <math.h>

static m5_config c; /* large; one at a time */
static m5_error err;

static int parse(const char *json)
{
    m5_json *j = NULL;
    memset(&err, 0, sizeof err);
    m5_config_deinit(&c);
    int rc = m5_json_parse(&j, json, strlen(json), NULL, &err);
    T_CHECK(rc == 0, "%s: %s", json, err.text);
    if (rc == 0) rc = m5_config_from_hf(&c, j, NULL, &err);
    m5_json_unref(j);
    return rc;
}

static bool near_rel(double a, double b)
{
    return fabs(a - b) <= 2e-7 * fabs(b);
}

#define OK(json) T_CHECK(parse(json) == 0, "%s", err.text)
#define FAILS(json, want, part)                                                                                                                      \
    do {                                                                                                                                             \
        int t_rc = parse(json);                                                                                                                      \
        T_CHECK(t_rc == (want) && strstr(err.text, part), "rc %d, \"%s\"", t_rc, err.text);                                                          \
        T_CHECK(err.code == t_rc && c.n_layer == 0 && c.n_rope == 0);                                                                                \
    } while (0)
#define INV(rope, j, value)                                                                                                                          \
    T_CHECK(c.n_rope > (rope) && near_rel(c.ropes[rope].inv_freq[j], value), "inv_freq[%d], expected %.9g", j, (double)(value))

#define SIZES "\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4,\"vocab_size\":100,"

/* ---- rotary tables; the numbers come from the reference implementations' formulas, not from this code ---- */

static void test_rope_llama3(void)
{
    OK("{\"model_type\":\"llama\",\"num_hidden_layers\":32,\"hidden_size\":4096,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_"
       "size\":14336,"
       "\"vocab_size\":128256,\"rope_theta\":500000.0,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"rope_scaling\":{\"factor\":8.0,"
       "\"low_freq_factor\":1.0,"
       "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}");
    T_EQ_INT(c.n_rope, 1);
    T_EQ_INT(c.ropes[0].n_rot, 128);
    T_CHECK(!c.ropes[0].pairs && c.ropes[0].attn_factor == 1.0f);
    for (int j = 0; j <= 28; j++) INV(0, j, pow(5e5, -2.0 * j / 128));
    INV(0, 29, 0.00216657076);
    INV(0, 32, 0.000524846161);
    INV(0, 34, 0.000178507813);
    for (int j = 35; j < 64; j++) INV(0, j, pow(5e5, -2.0 * j / 128) / 8);
    T_EQ_INT(c.layers[31].head_dim, 128);
    T_EQ_INT(c.layers[31].n_head_kv, 8);
    T_CHECK(c.rms_eps == 1e-5f && c.act == M5_ACT_SILU && !c.tied);
    OK("{\"model_type\":\"llama\",\"num_hidden_layers\":16,\"hidden_size\":2048,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_"
       "size\":8192,\"head_dim\":64,"
       "\"vocab_size\":128256,\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_theta\":500000.0,\"factor\":32.0,\"low_freq_factor\":1.0,"
       "\"high_freq_factor\":4.0,"
       "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}");
    INV(0, 14, pow(5e5, -28.0 / 64));
    INV(0, 15, 0.00129054793);
    INV(0, 17, 9.7082878e-05);
    INV(0, 18, pow(5e5, -36.0 / 64) / 32);
    T_CHECK(c.tied);
}

static void test_rope_yarn(void)
{
    OK("{\"model_type\":\"qwen3\"," SIZES
       "\"intermediate_size\":96,\"num_key_value_heads\":2,\"max_position_embeddings\":131072,\"rope_theta\":1000000,"
       "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}}");
    T_EQ_INT(c.ropes[0].n_rot, 128); /* head_dim of this family is 128 unless the file says otherwise, whatever hidden_size / heads is */
    T_CHECK(near_rel(c.ropes[0].attn_factor, 1.13862944), "%.9g", (double)c.ropes[0].attn_factor);
    INV(0, 23, pow(1e6, -46.0 / 128));
    INV(0, 24, 0.00537532149);
    INV(0, 36, 0.000179841156);
    INV(0, 40, pow(1e6, -80.0 / 128) / 4);
    INV(0, 63, pow(1e6, -126.0 / 128) / 4);
    OK("{\"model_type\":\"ministral3\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":16,\"vocab_size\":100,\"intermediate_"
       "size\":96}"); /* no dictionary at all: the published yarn values */
    T_EQ_INT(c.ropes[0].n_rot, 128);
    T_CHECK(c.ropes[0].attn_factor == 1.0f, "%.9g", (double)c.ropes[0].attn_factor);
    INV(0, 20, pow(1e6, -40.0 / 128));
    INV(0, 24, 0.00438295445);
    INV(0, 36, 4.96113533e-05);
    INV(0, 37, pow(1e6, -74.0 / 128) / 16);
    T_CHECK(c.q_pos_scale_beta == 0.1f && c.q_pos_scale_len == 16384 && c.rms_eps == 1e-5f);
    T_EQ_INT(c.layers[0].n_head_kv, 8);
}

static void test_rope_plain(void)
{
    OK("{\"model_type\":\"qwen3\"," SIZES "\"intermediate_size\":96,\"num_key_value_heads\":2,\"rope_theta\":1000000}");
    INV(0, 1, 0.805842188);
    OK("{\"model_type\":\"qwen3_5\",\"text_config\":{" SIZES
       "\"intermediate_size\":96,\"num_key_value_heads\":2,\"rope_parameters\":{\"rope_type\":\"default\","
       "\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]}}}");
    T_EQ_INT(c.ropes[0].n_rot, 64);
    INV(0, 1, 0.60429639);
    INV(0, 2, 0.365174127);
    INV(0, 16, 3.16227766e-4);
    INV(0, 31, 1.6548171e-7);
    OK("{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":6,\"hidden_size\":64,\"intermediate_size\":96}");
    T_EQ_INT(c.n_rope, 2);
    T_EQ_INT(c.layers[5].rope, 0);
    T_EQ_INT(c.ropes[0].n_rot, 512);
    T_EQ_INT(c.ropes[c.layers[0].rope].n_rot, 256);
    INV(0, 1, 0.947463526);
    INV(0, 63, 0.0333762469);
    T_CHECK(c.ropes[0].inv_freq[64] == 0 && c.ropes[0].inv_freq[255] == 0);
    INV(1, 1, pow(1e4, -2.0 / 256));
}

/* ---- families: omitted keys ---- */

static void test_defaults_plain(void)
{
    OK("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96}");
    T_EQ_INT(c.layers[0].head_dim, 16);
    T_EQ_INT(c.layers[0].n_head_kv, 4);
    T_CHECK(c.rms_eps == 1e-6f && !c.tied && c.embd_scale == 1 && c.attn_scale <= 0);
    INV(0, 1, pow(1e4, -2.0 / 16));
    OK("{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":256,\"num_attention_heads\":16,\"vocab_size\":100,\"intermediate_size\":"
       "96}");
    T_EQ_INT(c.layers[0].n_head_kv, 8);
    T_EQ_INT(c.layers[1].window, 4096);
    OK("{\"model_type\":\"mistral\"," SIZES "\"intermediate_size\":96,\"num_key_value_heads\":null,\"head_dim\":null,\"sliding_window\":null}");
    T_EQ_INT(c.layers[0].n_head_kv, 4);
    T_EQ_INT(c.layers[0].window, 0);
    T_EQ_INT(c.layers[0].head_dim, 16);
    OK("{\"model_type\":\"mistral3\",\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"mistral\"," SIZES
       "\"num_key_value_heads\":2,\"head_dim\":48,\"intermediate_size\":96,\"sliding_window\":null}}");
    T_EQ_STR(c.family, "mistral");
    T_EQ_INT(c.layers[0].head_dim, 48);
    OK("{\"model_type\":\"smollm3\"," SIZES "\"num_key_value_heads\":2,\"intermediate_size\":96}");
    T_EQ_INT(c.layers[2].rope, 0);
    T_EQ_INT(c.layers[3].rope, -1);
    OK("{\"model_type\":\"smollm3\"," SIZES "\"num_key_value_heads\":2,\"intermediate_size\":96,\"no_rope_layers\":[1,0,1,1]}");
    T_EQ_INT(c.layers[1].rope, -1);
    T_EQ_INT(c.layers[3].rope, 0);
}

static void test_defaults_qwen(void)
{
    OK("{\"model_type\":\"qwen2\"," SIZES "\"num_key_value_heads\":2,\"intermediate_size\":96,\"sliding_window\":32,\"max_window_layers\":1}");
    T_EQ_INT(c.layers[3].window, 0); /* the window is ignored unless use_sliding_window */
    OK("{\"model_type\":\"qwen2\"," SIZES
       "\"num_key_value_heads\":2,\"intermediate_size\":96,\"sliding_window\":32,\"max_window_layers\":1,\"use_sliding_window\":true}");
    T_EQ_INT(c.layers[0].window, 0);
    T_EQ_INT(c.layers[1].window, 32);
    OK("{\"model_type\":\"qwen3_moe\"," SIZES
       "\"moe_intermediate_size\":24,\"num_local_experts\":8,\"num_experts_per_tok\":2,\"mlp_only_layers\":[1],\"intermediate_size\":96}");
    T_EQ_INT(c.layers[0].n_head_kv, 4);
    T_EQ_INT(c.layers[0].head_dim, 16);
    T_EQ_INT(c.n_expert, 8);
    T_EQ_INT(c.n_ffn_shared, 0);
    T_CHECK(!c.expert_renorm && c.layers[0].ffn == M5_FFN_MOE && c.layers[1].ffn == M5_FFN_DENSE);
    OK("{\"model_type\":\"qwen3_moe\"," SIZES
       "\"moe_intermediate_size\":24,\"decoder_sparse_step\":2,\"intermediate_size\":96,\"norm_topk_prob\":true}");
    T_CHECK(c.expert_renorm && c.layers[0].ffn == M5_FFN_DENSE && c.layers[1].ffn == M5_FFN_MOE && c.n_expert == 128 && c.n_expert_used == 8);
    OK("{\"model_type\":\"qwen3_5_moe\",\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"," SIZES
       "\"num_experts\":8,\"num_experts_per_tok\":3,"
       "\"mtp_num_hidden_layers\":1,\"eos_token_id\":7}}");
    T_EQ_STR(c.family, "qwen3_5_moe");
    T_EQ_INT(c.layers[3].mixer, M5_MIX_ATTN);
    T_EQ_INT(c.layers[2].mixer, M5_MIX_GDN);
    T_EQ_INT(c.layers[3].n_head_kv, 2);
    T_EQ_INT(c.layers[3].head_dim, 256);
    T_CHECK(c.attn_gate && c.expert_renorm && !c.gdn_tiled && c.n_mtp == 1 && c.mtp_layer.mixer == M5_MIX_ATTN && c.mtp_layer.ffn == M5_FFN_MOE);
    T_EQ_INT(c.gdn_n_k_head, 16);
    T_EQ_INT(c.gdn_n_v_head, 32);
    T_EQ_INT(c.gdn_k_dim, 128);
    T_EQ_INT(c.n_ffn_shared, 512);
    T_EQ_INT(m5_config_gdn_channels(&c), 2 * 16 * 128 + 32 * 128);
    T_EQ_INT(m5_config_kv_values_per_tok(&c), 2 * 2 * 256);
    T_EQ_INT(m5_config_row_values(&c), 3 * (32 * 128 * 128 + 3 * 8192));
    T_EQ_INT(c.eos[0], 7);
    INV(0, 1, pow(1e4, -2.0 / 64)); /* 1e4 is the class default here too, a quarter of the head turns */
    OK("{\"model_type\":\"qwen3_5_text\"," SIZES
       "\"intermediate_size\":96,\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"linear_attention\"]}");
    T_CHECK(c.layers[0].mixer == M5_MIX_ATTN && c.layers[1].mixer == M5_MIX_GDN && c.layers[0].n_head_kv == 4);
    OK("{\"model_type\":\"qwen3_next\"," SIZES "\"num_experts\":16,\"full_attention_interval\":2}");
    T_CHECK(c.layers[0].mixer == M5_MIX_GDN && c.layers[1].mixer == M5_MIX_ATTN && c.expert_renorm && c.n_expert_used == 10);
}

static void test_defaults_gemma(void)
{
    OK("{\"model_type\":\"gemma2\"," SIZES "\"intermediate_size\":96,\"query_pre_attn_scalar\":144}");
    T_CHECK(c.attn_softcap == 50 && c.final_softcap == 30 && c.tied && c.act == M5_ACT_GELU_TANH && c.embd_scale == 8);
    T_CHECK(near_rel(c.attn_scale, 1.0 / 12));
    T_EQ_INT(c.layers[0].window, 4096);
    T_EQ_INT(c.layers[1].window, 0);
    T_EQ_INT(c.layers[1].head_dim, 256);
    OK("{\"model_type\":\"gemma2\"," SIZES
       "\"intermediate_size\":96,\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,\"hidden_act\":\"gelu\"}");
    T_CHECK(c.attn_softcap == 0 && c.final_softcap == 0 && c.act == M5_ACT_GELU_TANH);
    /* A multimodal file that leaves out everything equal to its class. */
    OK("{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_"
       "size\":10240,"
       "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024}}");
    T_EQ_INT(c.n_vocab, 262208);
    T_EQ_INT(c.layers[0].n_head, 8);
    T_EQ_INT(c.layers[0].n_head_kv, 4);
    T_EQ_INT(c.layers[0].window, 1024);
    T_EQ_INT(c.layers[5].window, 0);
    T_EQ_INT(c.layers[33].window, 1024);
    T_EQ_INT(c.n_eos, 2);
    INV(c.layers[5].rope, 1, pow(1e6, -2.0 / 256) / 8);
    INV(c.layers[0].rope, 1, pow(1e4, -2.0 / 256)); /* local layers are never scaled */
    OK("{\"model_type\":\"gemma3_text\"," SIZES
       "\"intermediate_size\":96,\"rope_theta\":500000,\"rope_local_base_freq\":20000,\"sliding_window_pattern\":2,"
       "\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0}");
    T_CHECK(c.attn_softcap == 0 && c.final_softcap == 30); /* the reference does not read the first */
    INV(c.layers[1].rope, 1, pow(5e5, -2.0 / 256));
    INV(c.layers[0].rope, 1, pow(2e4, -2.0 / 256));
    T_CHECK(c.layers[0].window == 4096 && c.layers[1].window == 0);
    /* New spelling: a dictionary per kind of layer, each with the default base of its kind. */
    OK("{\"model_type\":\"gemma3_text\"," SIZES "\"intermediate_size\":96,\"sliding_window_pattern\":2,\"rope_parameters\":{"
       "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0},\"sliding_attention\":{\"rope_type\":\"default\"}}}");
    INV(c.layers[1].rope, 1, pow(1e6, -2.0 / 256) / 8);
    INV(c.layers[0].rope, 1, pow(1e4, -2.0 / 256));
}

static void test_gemma4(void)
{
    OK("{\"model_type\":\"gemma4\",\"text_config\":{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":12,\"hidden_size\":64,\"num_attention_"
       "heads\":4,\"num_key_value_heads\":2,"
       "\"vocab_size\":100,\"head_dim\":32,\"intermediate_size\":96,\"num_kv_shared_layers\":6,\"use_double_wide_mlp\":true,\"hidden_size_per_layer_"
       "input\":16,"
       "\"vocab_size_per_layer_input\":100,\"global_head_dim\":64,\"final_logit_softcapping\":30.0}}");
    T_EQ_INT(c.layers[4].kv_donor, 4);
    T_EQ_INT(c.layers[6].kv_donor, 4);
    T_EQ_INT(c.layers[10].kv_donor, 4);
    T_EQ_INT(c.layers[11].kv_donor, 5);
    T_EQ_INT(c.layers[5].n_ffn, 96);
    T_EQ_INT(c.layers[6].n_ffn, 192);
    T_EQ_INT(c.layers[11].head_dim, 64);
    T_EQ_INT(c.layers[10].head_dim, 32);
    T_EQ_INT(c.n_ple, 16);
    T_EQ_INT(m5_config_kv_values_per_tok(&c), 2 * (5 * 2 * 32 + 2 * 64));
    T_CHECK(c.attn_scale == 1 && c.v_norm && c.final_softcap == 30 && c.tied);
    OK("{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":6,\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_"
       "size\":100,\"head_dim\":32,"
       "\"intermediate_size\":96,\"attention_k_eq_v\":true,\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":2,\"moe_intermediate_size\":"
       "16,"
       "\"hidden_size_per_layer_input\":0,\"per_layer_config\":{\"05\":{\"head_dim\":64,\"num_key_value_heads\":1}}}");
    T_CHECK(!c.layers[0].k_is_v && c.layers[5].k_is_v && c.layers[5].n_head_kv == 1 && c.layers[5].head_dim == 64 && c.layers[0].head_dim == 32);
    T_CHECK(c.layers[0].ffn == M5_FFN_DENSE_AND_MOE && c.n_ple == 0 && c.expert_renorm);
    OK("{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":6,\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_"
       "size\":100,\"intermediate_size\":96,"
       "\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1,\"num_experts\":null,\"top_k_experts\":null}");
    T_CHECK(c.layers[5].n_head_kv == 1 && c.layers[5].head_dim == 512 && c.layers[0].n_head_kv == 2 && c.layers[0].ffn == M5_FFN_DENSE);
}

/* ---- end tokens ---- */

static void test_eos(void)
{
    static const char config[] =
        "{\"model_type\":\"qwen3_5\",\"eos_token_id\":5,\"text_config\":{" SIZES "\"intermediate_size\":96,\"eos_token_id\":[3,5]}}";
    static const char generation[] = "{\"eos_token_id\":[3,8,-1,1000,\"x\",9]}";
    m5_json *a = NULL, *b = NULL;
    T_CHECK(m5_json_parse(&a, config, sizeof config - 1, NULL, NULL) == 0 && m5_json_parse(&b, generation, sizeof generation - 1, NULL, NULL) == 0);
    m5_config_deinit(&c);
    T_CHECK(m5_config_from_hf(&c, a, b, &err) == 0, "%s", err.text);
    T_EQ_INT(c.n_eos, 4); /* 3, 5, 8, 9: no doubles, nothing outside the vocabulary */
    T_CHECK(c.eos[0] == 3 && c.eos[1] == 5 && c.eos[2] == 8 && c.eos[3] == 9);
    m5_json_unref(a);
    m5_json_unref(b);
}

/* ---- the author's sampling ---- */

static void test_author(void)
{
    static const char config[] = "{\"model_type\":\"qwen3_5\",\"text_config\":{" SIZES "\"intermediate_size\":96}}";
    struct {
        const char *generation;
        float temperature, top_p;
        int top_k;
    } rows[] = {
        {NULL, -1, -1, -1},
        {"{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20}", 0.6f, 0.95f, 20},
        {"{\"do_sample\":false,\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20}", -1, -1, -1},
        {"{\"temperature\":0.6}", -1, -1, -1},
        {"{\"do_sample\":true,\"temperature\":-3,\"top_p\":7,\"top_k\":\"many\"}", -1, -1, -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        m5_json *a = NULL, *b = NULL;
        const char *g = rows[i].generation;
        T_CHECK(m5_json_parse(&a, config, sizeof config - 1, NULL, NULL) == 0 && (!g || m5_json_parse(&b, g, strlen(g), NULL, NULL) == 0));
        m5_config_deinit(&c);
        T_CHECK(m5_config_from_hf(&c, a, b, &err) == 0, "%s", err.text);
        T_CHECK(c.author.temperature == rows[i].temperature && c.author.top_p == rows[i].top_p && c.author.top_k == rows[i].top_k, "row %zu", i);
        T_CHECK(c.author.min_p == -1 && c.author.repetition_penalty == -1, "row %zu", i);
        m5_json_unref(a);
        m5_json_unref(b);
    }
}

/* ---- malformed ---- */

static void test_malformed(void)
{
    FAILS("{\"model_type\":\"gpt2\"}", M5_ERR_UNSUPPORTED, "\"gpt2\" is not supported; supported are qwen3_5");
    FAILS("{}", M5_ERR_UNSUPPORTED, "model_type");
    FAILS("[1]", M5_ERR_FORMAT, "not an object");
    FAILS("{\"model_type\":\"llama\"}", M5_ERR_FORMAT, "num_hidden_layers is missing");
    FAILS("{\"model_type\":7}", M5_ERR_FORMAT, "model_type is an integer, expected a string");
    FAILS("{\"model_type\":\"llama\",\"num_hidden_layers\":-1}", M5_ERR_FORMAT, "num_hidden_layers is -1, expected 1 to 512");
    FAILS("{\"model_type\":\"llama\",\"num_hidden_layers\":1e30}", M5_ERR_FORMAT, "num_hidden_layers is a real number");
    FAILS("{\"model_type\":\"llama\",\"num_hidden_layers\":\"32\"}", M5_ERR_FORMAT, "num_hidden_layers is a string, expected an integer");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"num_key_value_heads\":3}", M5_ERR_FORMAT,
          "4 attention heads cannot share 3");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"head_dim\":9223372036854775807}", M5_ERR_FORMAT,
          "head_dim is 9223372036854775807");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"head_dim\":15}", M5_ERR_UNSUPPORTED, "15");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"hidden_act\":\"relu\"}", M5_ERR_UNSUPPORTED, "hidden_act \"relu\"");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", M5_ERR_UNSUPPORTED,
          "\"dynamic\"");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"rope_scaling\":{\"type\":\"linear\"}}", M5_ERR_FORMAT,
          "rope_scaling.factor is missing");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"rope_scaling\":3}", M5_ERR_FORMAT,
          "rope_scaling is an integer, expected an object");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"rope_theta\":0}", M5_ERR_FORMAT, "rope_theta is 0");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"tie_word_embeddings\":\"yes\"}", M5_ERR_FORMAT,
          "tie_word_embeddings is a string");
    FAILS("{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96,\"quantization_config\":{\"quant_method\":\"awq\"}}", M5_ERR_UNSUPPORTED,
          "\"awq\"");
    FAILS("{\"model_type\":\"qwen3_5_text\"," SIZES "\"intermediate_size\":96,\"layer_types\":[\"full_attention\"]}", M5_ERR_FORMAT,
          "layer_types has 1 elements");
    FAILS("{\"model_type\":\"qwen3_5_text\"," SIZES "\"intermediate_size\":96,\"layer_types\":[1,2,3,4]}", M5_ERR_UNSUPPORTED, "layer_types[0]");
    FAILS("{\"model_type\":\"qwen3_5_text\"," SIZES "\"intermediate_size\":96,\"linear_num_value_heads\":24}", M5_ERR_FORMAT,
          "16 key heads of 128 and 24 value heads");
    FAILS("{\"model_type\":\"qwen3_5_text\"," SIZES "\"intermediate_size\":96,\"linear_conv_kernel_dim\":3}", M5_ERR_UNSUPPORTED, "3 tokens");
    FAILS("{\"model_type\":\"qwen3_5_text\"," SIZES "\"num_key_value_heads\":2}", M5_ERR_FORMAT, "intermediate_size is missing");
    FAILS("{\"model_type\":\"qwen3_moe\"," SIZES "\"num_experts\":4,\"num_experts_per_tok\":5}", M5_ERR_FORMAT, "5 of 4 experts");
    FAILS("{\"model_type\":\"qwen3_moe\"," SIZES "\"num_experts\":4,\"num_experts_per_tok\":2,\"mlp_only_layers\":[0]}", M5_ERR_FORMAT,
          "width is missing");
    FAILS("{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":4,\"num_kv_shared_layers\":3}", M5_ERR_FORMAT, "leaves no layer");
    FAILS("{\"model_type\":\"gemma4_text\",\"per_layer_config\":{\"x\":{}}}", M5_ERR_FORMAT, "per_layer_config has the key \"x\"");
    FAILS("{\"model_type\":\"gemma4_text\",\"per_layer_config\":{\"05\":{\"depth\":1}}}", M5_ERR_UNSUPPORTED, "per_layer_config.5.depth");
    FAILS("{\"model_type\":\"gemma3\",\"text_config\":[]}", M5_ERR_FORMAT, "text_config is a list, expected an object");
}

/* ---- GGUF metadata ---- */

static int parse_gguf(tb_gguf *g)
{
    m5_buf all = {0};
    m5_gguf *file = NULL;
    memset(&err, 0, sizeof err);
    m5_config_deinit(&c);
    tb_gfinish(g, &all);
    int rc = m5_gguf_open_mem(&file, all.p, all.n, "test.gguf", &err);
    if (rc == 0) rc = m5_config_from_gguf(&c, file, &err);
    m5_gguf_close(file);
    m5_buf_free(&all);
    memset(g, 0, sizeof *g);
    return rc;
}

static void gguf_base(tb_gguf *g, const char *arch, uint32_t n_block)
{
    char key[96];
#define K(name) (snprintf(key, sizeof key, "%s.%s", arch, name), key)
    memset(g, 0, sizeof *g);
    tb_gtext(g, "general.architecture", arch);
    tb_gu32(g, K("block_count"), n_block);
    tb_gu32(g, K("embedding_length"), 64);
    tb_gu32(g, K("feed_forward_length"), 96);
    tb_gu32(g, K("attention.head_count"), 4);
    tb_gu32(g, K("attention.head_count_kv"), 2);
    tb_gu32(g, K("context_length"), 32768);
    tb_gf32(g, K("attention.layer_norm_rms_epsilon"), 1e-5f);
    tb_gfrom(g, "token_embd.weight", "64, 100", "e", 0);
}

static void test_gguf_llama(void)
{
    tb_gguf g;
    float freqs[8] = {1, 1, 1, 1, 2, 2, 8, 8};
    gguf_base(&g, "llama", 3);
    tb_gf32(&g, "llama.rope.freq_base", 500000);
    tb_gu32(&g, "llama.rope.dimension_count", 16);
    tb_gu32(&g, "tokenizer.ggml.eos_token_id", 5);
    tb_gu32(&g, "tokenizer.ggml.eot_token_id", 6);
    tb_gf32(&g, "general.sampling.temp", 0.5f);
    tb_gu32(&g, "general.sampling.top_k", 30);
    tb_gtensor(&g, "rope_freqs.weight", 0, "8", freqs, sizeof freqs);
    T_CHECK(parse_gguf(&g) == 0, "%s", err.text);
    T_CHECK(c.author.temperature == 0.5f && c.author.top_k == 30 && c.author.top_p == -1);
    T_CHECK(c.ropes[0].pairs && c.n_vocab == 100 && c.n_eos == 2 && c.rms_eps == 1e-5f && c.layers[2].head_dim == 16);
    INV(0, 3, pow(5e5, -6.0 / 16));
    INV(0, 4, pow(5e5, -8.0 / 16) / 2);
    INV(0, 7, pow(5e5, -14.0 / 16) / 8);
    gguf_base(&g, "llama", 3);
    tb_gu32(&g, "llama.attention.value_length", 8);
    T_CHECK(parse_gguf(&g) == M5_ERR_UNSUPPORTED && strstr(err.text, "value_length 8"), "%s", err.text);
    gguf_base(&g, "falcon", 3);
    T_CHECK(parse_gguf(&g) == M5_ERR_UNSUPPORTED && strstr(err.text, "\"falcon\" is not supported; supported are qwen35"), "%s", err.text);
    gguf_base(&g, "llama", 3);
    freqs[2] = -1;
    tb_gtensor(&g, "rope_freqs.weight", 0, "8", freqs, sizeof freqs);
    T_CHECK(parse_gguf(&g) == M5_ERR_FORMAT && strstr(err.text, "rope_freqs.weight: element 2"), "%s", err.text);
}

static void test_gguf_others(void)
{
    tb_gguf g;
    gguf_base(&g, "mistral3", 2);
    tb_gu32(&g, "mistral3.attention.key_length", 128);
    tb_gu32(&g, "mistral3.attention.value_length", 128);
    tb_gf32(&g, "mistral3.rope.freq_base", 1e6f);
    tb_gtext(&g, "mistral3.rope.scaling.type", "yarn");
    tb_gf32(&g, "mistral3.rope.scaling.factor", 16);
    tb_gu32(&g, "mistral3.rope.scaling.original_context_length", 16384);
    tb_gf32(&g, "mistral3.rope.scaling.yarn_log_multiplier", 1);
    tb_gf32(&g, "mistral3.attention.temperature_scale", 0.1f);
    T_CHECK(parse_gguf(&g) == 0, "%s", err.text);
    T_CHECK(c.ropes[0].attn_factor == 1 && c.ropes[0].pairs && c.q_pos_scale_len == 16384 && c.q_pos_scale_beta == 0.1f);
    INV(0, 24, 0.00438295445);
    gguf_base(&g, "qwen3", 2);
    tb_gu32(&g, "qwen3.attention.key_length", 128);
    tb_gu32(&g, "qwen3.attention.value_length", 128);
    tb_gf32(&g, "qwen3.rope.freq_base", 1e6f);
    tb_gtext(&g, "qwen3.rope.scaling.type", "yarn");
    tb_gf32(&g, "qwen3.rope.scaling.factor", 4);
    T_CHECK(parse_gguf(&g) == 0, "%s", err.text); /* original context absent: context_length, 32768 */
    T_CHECK(near_rel(c.ropes[0].attn_factor, 1.13862944) && !c.ropes[0].pairs);
    INV(0, 36, 0.000179841156);
    gguf_base(&g, "qwen3", 2);
    tb_gtext(&g, "qwen3.rope.scaling.type", "yarn");
    tb_gf32(&g, "qwen3.rope.scaling.factor", 4);
    tb_gf32(&g, "qwen3.rope.scaling.yarn_attn_factor", 0.75f); /* the whole factor */
    tb_gf32(&g, "qwen3.rope.scaling.attn_factor", 2);          /* one more */
    T_CHECK(parse_gguf(&g) == 0 && c.ropes[0].attn_factor == 1.5f, "%s", err.text);
    gguf_base(&g, "gemma3", 12);
    tb_gu32(&g, "gemma3.attention.sliding_window", 512);
    tb_gf32(&g, "gemma3.rope.freq_base", 1e6f);
    tb_gf32(&g, "gemma3.rope.scaling.factor", 8);
    T_CHECK(parse_gguf(&g) == 0, "%s", err.text);
    T_CHECK(c.layers[4].window == 512 && c.layers[5].window == 0 && c.embd_scale == 8 && c.attn_scale == 0.25f && c.act == M5_ACT_GELU_TANH);
    INV(c.layers[5].rope, 1, pow(1e6, -2.0 / 16) / 8);
    INV(c.layers[4].rope, 1, pow(1e4, -2.0 / 16));
    gguf_base(&g, "gemma3", 62);
    T_CHECK(parse_gguf(&g) == 0 && c.layers[0].window == 0, "%s", err.text);
    gguf_base(&g, "gemma2", 46);
    tb_gu32(&g, "gemma2.attention.key_length", 8);
    tb_gu32(&g, "gemma2.attention.value_length", 8);
    T_CHECK(parse_gguf(&g) == 0 && c.attn_scale == 0.25f && c.layers[0].window == 4096 && c.layers[1].window == 0 && c.attn_softcap == 50, "%s",
            err.text);
}

static void test_gguf_qwen35(void)
{
    tb_gguf g;
    gguf_base(&g, "qwen35", 5); /* four layers and one next-token block */
    tb_gu32(&g, "qwen35.nextn_predict_layers", 1);
    tb_gu32(&g, "qwen35.attention.key_length", 32);
    tb_gu32(&g, "qwen35.attention.value_length", 32);
    tb_gu32(&g, "qwen35.rope.dimension_count", 8);
    tb_gf32(&g, "qwen35.rope.freq_base", 1e7f);
    tb_gu32(&g, "qwen35.ssm.conv_kernel", 4);
    tb_gu32(&g, "qwen35.ssm.state_size", 16);
    tb_gu32(&g, "qwen35.ssm.group_count", 2);
    tb_gu32(&g, "qwen35.ssm.time_step_rank", 4);
    tb_gu32(&g, "qwen35.ssm.inner_size", 64);
    tb_gfrom(&g, "blk.1.attn_q.weight", "64, 8", "q", 0); /* against the usual rhythm of four */
    T_CHECK(parse_gguf(&g) == 0, "%s", err.text);
    T_CHECK(c.n_layer == 4 && c.n_mtp == 1 && c.gdn_tiled && c.gdn_v_dim == 16 && c.attn_gate);
    T_CHECK(c.layers[0].mixer == M5_MIX_GDN && c.layers[1].mixer == M5_MIX_ATTN && c.layers[3].mixer == M5_MIX_ATTN);
    INV(0, 1, pow(1e7, -2.0 / 8));
    gguf_base(&g, "qwen35", 4);
    T_CHECK(parse_gguf(&g) == M5_ERR_FORMAT && strstr(err.text, "test.gguf: qwen35.ssm.inner_size is missing"), "%s", err.text);
}

static void test_gguf_gemma4(void)
{
    static const int sliding[6] = {1, 1, 1, 1, 1, 0}, kv[6] = {2, 2, 2, 2, 2, 1}, ffn[6] = {96, 96, 96, 96, 192, 192};
    tb_gguf g;
    memset(&g, 0, sizeof g);
    tb_gtext(&g, "general.architecture", "gemma4");
    tb_gu32(&g, "gemma4.block_count", 6);
    tb_gu32(&g, "gemma4.embedding_length", 64);
    tb_glist(&g, "gemma4.feed_forward_length", 5, ffn, 6);
    tb_gu32(&g, "gemma4.attention.head_count", 4);
    tb_glist(&g, "gemma4.attention.head_count_kv", 5, kv, 6);
    tb_gu32(&g, "gemma4.attention.key_length", 32);
    tb_gu32(&g, "gemma4.attention.value_length", 32);
    tb_gu32(&g, "gemma4.attention.key_length_swa", 16);
    tb_glist(&g, "gemma4.attention.sliding_window_pattern", 7, sliding, 6);
    tb_gu32(&g, "gemma4.attention.sliding_window", 32);
    tb_gf32(&g, "gemma4.rope.freq_base", 1e6f);
    tb_gu32(&g, "gemma4.rope.dimension_count", 32);
    tb_gu32(&g, "gemma4.rope.dimension_count_swa", 16);
    float freqs[16];
    for (int i = 0; i < 16; i++) freqs[i] = i < 4 ? 1 : 1e30f;
    tb_gtensor(&g, "rope_freqs.weight", 0, "16", freqs, sizeof freqs);
    tb_gfrom(&g, "token_embd.weight", "64, 100", "e", 0);
    T_CHECK(parse_gguf(&g) == 0, "%s", err.text);
    T_CHECK(c.layers[5].head_dim == 32 && c.layers[0].head_dim == 16 && c.layers[5].n_head_kv == 1 && c.layers[4].n_ffn == 192 &&
            c.layers[0].n_ffn == 96);
    T_CHECK(c.layers[5].k_is_v && !c.layers[0].k_is_v && c.layers[5].window == 0 && c.layers[0].window == 32);
    INV(c.layers[5].rope, 3, pow(1e6, -6.0 / 32));
    T_CHECK(c.ropes[c.layers[5].rope].inv_freq[4] == 0 && c.ropes[c.layers[0].rope].n_rot == 16);
}

/* Allocation failures at every point leave nothing behind. */
static void test_no_memory(void)
{
    static const char json[] = "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":6,\"hidden_size\":64,\"intermediate_size\":96}";
    m5_json *j = NULL;
    T_CHECK(m5_json_parse(&j, json, sizeof json - 1, NULL, NULL) == 0);
    m5_config_deinit(&c);
    size_t before = m5_mem_bytes(M5_MEM_WEIGHTS);
    int rc = M5_ERR_NOMEM;
    for (uint64_t n = 1; rc == M5_ERR_NOMEM && n < 50; n++) {
        m5_mem_fail_at(n);
        rc = m5_config_from_hf(&c, j, NULL, &err);
        m5_mem_fail_at(0);
        T_CHECK(rc == 0 || (rc == M5_ERR_NOMEM && m5_mem_bytes(M5_MEM_WEIGHTS) == before), "rc %d", rc);
    }
    T_EQ_INT(rc, 0);
    m5_json_unref(j);
    m5_config_deinit(&c);
    T_EQ_INT(m5_mem_bytes(M5_MEM_WEIGHTS), before);
}

int main(void)
{
    test_rope_llama3();
    test_rope_yarn();
    test_rope_plain();
    test_defaults_plain();
    test_defaults_qwen();
    test_defaults_gemma();
    test_gemma4();
    test_eos();
    test_author();
    test_malformed();
    test_gguf_llama();
    test_gguf_others();
    test_gguf_qwen35();
    test_gguf_gemma4();
    test_no_memory();
    m5_config_deinit(&c);
    return t_done();
}
