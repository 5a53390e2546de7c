#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a Hugging Face model folder as GGUF: names, transforms and keys of the files that llama.cpp reads.

    tools/hf_to_gguf.py FOLDER OUT.gguf [--type f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1] [--split N]

Made for the tiny test models (everything is held in memory), and for checking the reader against files whose origin is known. What it does to values:
  - llama, mistral3: q and k rows go from half-split to interleaved order; llama3 rope scaling becomes rope_freqs.weight
  - zero-centred norms get their +1; A_log becomes -exp(A_log); conv1d loses its middle axis
  - qwen35: value heads from grouped to tiled order (rows of qkv, z, a, b; columns of out); qwen3next: qkvz is taken apart
  - experts are stacked; the next-token block becomes one more layer
Two keys go beyond what the usual converter writes, so that no model changes its meaning: <arch>.attention.scale where the score scale is not
head_dim^-0.5, and <arch>.attention.sliding_window for llama files with a window.

Needs gguf, numpy, safetensors and torch.
"""
import argparse
import glob
import json
import math
import os

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from safetensors import safe_open

ARCH = {
    "llama": "llama", "mistral": "llama", "ministral3": "mistral3", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_text": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_5_moe_text": "qwen35moe",
    "gemma2": "gemma2", "gemma3": "gemma3", "gemma3_text": "gemma3", "gemma4": "gemma4", "gemma4_text": "gemma4",
}
SHIFTED = ("gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe")
PERMUTED = ("llama", "mistral3")
DELTA_NET = ("qwen3next", "qwen35", "qwen35moe")
POST_NORM_BEFORE_FFN = ("llama", "mistral3", "qwen2", "qwen3", "qwen3moe")
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "router.proj": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
}
WHOLE = {  # names that do not end in .weight or .bias, or that belong to no layer
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
}
TOP = {
    "embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight", "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
MTP = {"fc.weight": "nextn.eh_proj.weight", "pre_fc_norm_embedding.weight": "nextn.enorm.weight", "pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
       "norm.weight": "nextn.shared_head_norm.weight"}


# --- reading -----------------------------------------------------------------------------------------------------------------------

def read_config(folder):
    with open(f"{folder}/config.json") as f:
        c = json.load(f)
    c = {**c, **c.get("text_config", {})}
    rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
    rope.setdefault("rope_theta", c.get("rope_theta", 10000.0))
    c["rope"] = rope
    return c


def check_expressible(c, arch):
    """GGUF has no keys for these; a file that leaves them out would be another model."""
    moe, rope = c.get("num_experts") or c.get("num_local_experts"), c["rope"].get("full_attention", c["rope"])
    period = {"gemma2": 2, "gemma3": 6}.get(arch)
    gemma_types = period and [["sliding_attention", "full_attention"][(i + 1) % period == 0] for i in range(c["num_hidden_layers"])]
    lost = {
        "use_sliding_window": arch.startswith("qwen") and c.get("use_sliding_window"),
        "norm_topk_prob: false": moe and arch in ("qwen3moe", "qwen3next") and not c.get("norm_topk_prob", arch == "qwen3next")
        and c["num_experts_per_tok"] < moe,
        "attn_logit_softcapping: null": arch == "gemma2" and not c.get("attn_logit_softcapping", 50),
        "final_logit_softcapping: null": arch == "gemma2" and not c.get("final_logit_softcapping", 30),
        "layer_types": gemma_types and c.get("layer_types", gemma_types) != gemma_types,
        "sliding_window_pattern": arch == "gemma3" and c.get("sliding_window_pattern", 6) != 6,
        "truncate: false": rope.get("truncate") is False,
    }
    lost = [k for k, v in lost.items() if v]
    if lost:
        raise SystemExit("GGUF cannot say this of a %s model: %s" % (c["model_type"], ", ".join(lost)))


def read_tensors(folder):
    """Text tensors as f32 under short names: "layers.3.mlp.up_proj.weight", "norm.weight", "lm_head.weight", "mtp.fc.weight"."""
    out = {}
    for path in sorted(glob.glob(f"{folder}/model*.safetensors")):
        with safe_open(path, "pt") as f:
            for name in f.keys():
                short = name
                for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model."):
                    if short.startswith(prefix):
                        short = short[len(prefix):]
                        break
                if short.startswith(("visual.", "vision_tower.", "multi_modal_projector.", "audio_tower.")):
                    continue
                out[short] = f.get_tensor(name).float()
    return out


# --- transforms --------------------------------------------------------------------------------------------------------------------

def interleave_rotary(t, n_head):
    """Half-split to interleaved: new row 2j of a head is old j, new row 2j + 1 is old j + hd/2."""
    return t.reshape(n_head, 2, t.shape[0] // n_head // 2, *t.shape[1:]).transpose(1, 2).reshape(t.shape)


def tile_heads(t, kh, per, width, dim=0):
    """Value heads from grouped (g * per + j) to tiled (j * kh + g) order along dim."""
    shape = list(t.shape)
    t = t.reshape(shape[:dim] + [kh, per, width] + shape[dim + 1:])
    return t.transpose(dim, dim + 1).reshape(shape)


def delta_net(c, arch, name, t):
    """(name, tensor) pairs of one linear_attn tensor."""
    kh, vh, dk, dv = (c[k] for k in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"))
    per, qk = vh // kh, 2 * kh * dk
    if name.endswith("conv1d.weight"):
        t = t.reshape(t.shape[0], t.shape[-1])
    if name.endswith("A_log"):
        t = -torch.exp(t)
    if name.endswith("in_proj_qkvz.weight"):
        q, k, v, z = t.reshape(kh, -1, t.shape[1]).split([dk, dk, per * dv, per * dv], 1)
        flat = [x.reshape(-1, t.shape[1]) for x in (q, k, v, z)]
        return [("linear_attn.in_proj_qkv.weight", torch.cat(flat[:3])), ("linear_attn.in_proj_z.weight", flat[3])]
    if arch != "qwen3next" and per > 1:
        part = name.split(".")[1]
        if part in ("in_proj_qkv", "conv1d"):
            t = torch.cat([t[:qk], tile_heads(t[qk:], kh, per, dv)])
        elif part == "in_proj_z":
            t = tile_heads(t, kh, per, dv)
        elif part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            t = tile_heads(t, kh, per, 1)
        elif part == "out_proj":
            t = tile_heads(t, kh, per, dv, 1)
    return [(name, t)]


def layer_tensor(c, arch, name, t):
    """GGUF (suffix, tensor) pairs of one layer tensor; name is what follows "layers.N."."""
    if name.startswith("linear_attn."):
        return [(gguf_suffix(arch, n), x) for n, x in delta_net(c, arch, name, t)]
    if name.endswith("norm.weight") and arch in SHIFTED:
        t = t + 1
    if arch in PERMUTED and name.startswith(("self_attn.q_proj", "self_attn.k_proj")):
        heads = c["num_attention_heads"] if ".q_proj" in name else c.get("num_key_value_heads") or c["num_attention_heads"]
        t = interleave_rotary(t, heads)
    if name in ("mlp.experts.gate_up_proj", "experts.gate_up_proj"):
        if arch == "gemma4":
            return [("ffn_gate_up_exps.weight", t)]
        half = t.shape[1] // 2
        return [("ffn_gate_exps.weight", t[:, :half]), ("ffn_up_exps.weight", t[:, half:])]
    if name in ("mlp.experts.down_proj", "experts.down_proj"):
        return [("ffn_down_exps.weight", t)]
    return [(gguf_suffix(arch, name), t)]


def gguf_suffix(arch, name):
    if name in WHOLE:
        return WHOLE[name]
    stem, _, kind = name.rpartition(".")
    if stem == "post_attention_layernorm":
        return "ffn_norm.weight" if arch in POST_NORM_BEFORE_FFN else "post_attention_norm.weight"
    return f"{NAMES[stem]}.{kind}"


def stack_experts(tensors):
    """Replaces layers.N.mlp.experts.E.{gate,up,down}_proj.weight by stacked tensors under GGUF names."""
    groups = {}
    for name in [n for n in tensors if ".mlp.experts." in n and n.endswith("_proj.weight")]:
        head, _, tail = name.partition(".mlp.experts.")
        e, part, _ = tail.split(".")
        groups.setdefault((head, part.split("_")[0]), {})[int(e)] = tensors.pop(name)
    return {(head, f"ffn_{part}_exps.weight"): torch.stack([es[e] for e in range(len(es))]) for (head, part), es in groups.items()}


def llama3_factors(c):
    rope, dim = c["rope"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    inv = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    low, high, factor, orig = (rope[k] for k in ("low_freq_factor", "high_freq_factor", "factor", "original_max_position_embeddings"))
    out = []
    for f in inv:
        wave = 2 * math.pi / f
        smooth = (orig / wave - low) / (high - low)
        out.append(1.0 if wave < orig / high else factor if wave > orig / low else 1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(out, dtype=torch.float32)


def gemma4_full(c):
    """head_dim and KV heads of the full layers, from either spelling."""
    per = c.get("per_layer_config")
    if per:
        full = [v for k, v in sorted(per.items()) if c["layer_types"][int(k)] == "full_attention"][0]
        return full.get("head_dim", c["head_dim"]), full.get("num_key_value_heads")
    return c["global_head_dim"], c.get("num_global_key_value_heads") if c.get("attention_k_eq_v") else None


def convert(c, arch, tensors):
    """All GGUF tensors as {name: f32 tensor}."""
    out = {}
    n_layer = c["num_hidden_layers"]
    if "llama3" in (c["rope"].get("rope_type"), c["rope"].get("type")):
        out["rope_freqs.weight"] = llama3_factors(c)
    if arch == "gemma4":
        hd = gemma4_full(c)[0]
        rotated = int(hd * c["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
        out["rope_freqs.weight"] = torch.tensor([1.0] * rotated + [1e30] * (hd // 2 - rotated))
    tensors = {(f"layers.{n_layer}." + n[len("mtp.layers.0."):] if n.startswith("mtp.layers.0.") else n): t for n, t in tensors.items()}
    stacked = stack_experts(tensors)
    for name, t in tensors.items():
        if name == "lm_head.weight":
            if not c.get("tie_word_embeddings", arch.startswith("gemma")):
                out["output.weight"] = t
        elif name in TOP:
            out[TOP[name]] = t + 1 if name == "norm.weight" and arch in SHIFTED else t
        elif name.startswith("mtp."):
            out[f"blk.{n_layer}.{MTP[name[4:]]}"] = t + 1 if "norm" in name else t
        elif name.startswith("layers."):
            _, i, rest = name.split(".", 2)
            for suffix, x in layer_tensor(c, arch, rest, t):
                out[f"blk.{i}.{suffix}"] = x
        else:
            raise SystemExit(f"no GGUF name for {name}")
    for (head, suffix), t in stacked.items():
        out[f"blk.{head.split('.')[1]}.{suffix}"] = t
    return out


# --- keys --------------------------------------------------------------------------------------------------------------------------

def add_rope(w, c, arch):
    rope = c["rope"]
    full = rope.get("full_attention", rope)
    kind, factor = full.get("rope_type") or full.get("type"), full.get("factor")
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(factor)
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(factor)
        w.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if full.get("attention_factor") is not None:
            w.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
        if full.get("beta_fast") is not None:
            w.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
        if full.get("beta_slow") is not None:
            w.add_rope_scaling_yarn_beta_slow(full["beta_slow"])
    if arch == "mistral3":
        w.add_rope_scaling_yarn_log_mul(full["mscale_all_dim"])
        w.add_attn_temperature_scale(full["llama_4_scaling_beta"])
    if "mrope_section" in rope:
        w.add_rope_dimension_sections((list(rope["mrope_section"]) + [0])[:4])
    if arch != "gemma2":
        w.add_rope_freq_base(full["rope_theta"])
    if "sliding_attention" in rope:
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])


def add_gemma(w, c, arch):
    if arch == "gemma2" and c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_sliding_window(c["sliding_window"])
    if arch != "gemma4":
        scalar = c.get("query_pre_attn_scalar", 256)
        if scalar != c["head_dim"]:
            w.add_attention_scale(scalar ** -0.5)
        return
    hd_full, kv_full = gemma4_full(c)
    sliding = [t == "sliding_attention" for t in c["layer_types"]]
    n_shared = c.get("num_kv_shared_layers", 0)
    w.add_sliding_window_pattern(sliding)
    w.add_shared_kv_layers(n_shared)
    w.add_embedding_length_per_layer_input(c.get("hidden_size_per_layer_input") or 0)
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_rope_dimension_count(hd_full)
    w.add_rope_dimension_count_swa(c["head_dim"])
    if kv_full is not None:
        w.add_head_count_kv([c["num_key_value_heads"] if s else kv_full for s in sliding])
    if c.get("use_double_wide_mlp"):
        first = c["num_hidden_layers"] - n_shared
        w.add_feed_forward_length([c["intermediate_size"] * (1 if i < first else 2) for i in range(c["num_hidden_layers"])])


def add_keys(w, c, arch, n_mtp, file_type):
    hd = c.get("head_dim") or (None if arch == "qwen2" else c["hidden_size"] // c["num_attention_heads"])
    w.add_block_count(c["num_hidden_layers"] + n_mtp)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps", 1e-6))
    w.add_file_type(file_type)
    if c.get("intermediate_size") and not (arch == "gemma4" and c.get("use_double_wide_mlp")):
        w.add_feed_forward_length(c["intermediate_size"])
    if not (arch == "gemma4" and gemma4_full(c)[1] is not None):
        w.add_head_count_kv(c.get("num_key_value_heads") or c["num_attention_heads"])
    if hd:
        full = gemma4_full(c)[0] if arch == "gemma4" else hd
        w.add_key_length(full)
        w.add_value_length(full)
    add_rope(w, c, arch)
    if arch in PERMUTED:
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(hd)
        if c["model_type"] == "mistral" and c.get("sliding_window", 4096):
            w.add_sliding_window(c.get("sliding_window", 4096))
    experts = c.get("num_experts") or c.get("num_local_experts")
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c.get("num_experts_per_tok") or c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if c.get("shared_expert_intermediate_size"):
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if arch in DELTA_NET:
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(c.get("full_attention_interval", 4))
        partial = c["rope"].get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25))
        w.add_rope_dimension_count(int(hd * partial))
        if n_mtp:
            w.add_nextn_predict_layers(n_mtp)
    if arch.startswith("gemma"):
        add_gemma(w, c, arch)


# --- vocabulary --------------------------------------------------------------------------------------------------------------------

def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return [chr(b) for b in keep] + [chr(256 + i) for i in range(len(rest))]


def add_vocab(w, folder, c, arch):
    """From tokenizer.json (byte-level BPE) when there, else the byte alphabet and padding."""
    pre = {"qwen35": "qwen35", "qwen35moe": "qwen35"}.get(arch, "qwen2")
    tokens, types, merges = [f"[PAD{i}]" for i in range(c["vocab_size"])], [5] * c["vocab_size"], []
    eos, template = c.get("eos_token_id"), None
    if os.path.exists(f"{folder}/tokenizer.json"):
        with open(f"{folder}/tokenizer.json") as f:
            tok = json.load(f)
        for text, i in tok["model"]["vocab"].items():
            tokens[i], types[i] = text, 1
        for a in tok["added_tokens"]:
            tokens[a["id"]], types[a["id"]] = a["content"], 3 if a["special"] else 4
        merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
        if os.path.exists(f"{folder}/tokenizer_config.json"):
            with open(f"{folder}/tokenizer_config.json") as f:
                template = json.load(f).get("chat_template")
    else:
        for i, text in enumerate(byte_alphabet()[:c["vocab_size"]]):
            tokens[i], types[i] = text, 1
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    if isinstance(eos, list):
        eos = eos[0]
    if eos is not None:
        w.add_eos_token_id(eos)
    if c.get("pad_token_id") is not None:
        w.add_pad_token_id(c["pad_token_id"])
    if c.get("bos_token_id") is not None:
        w.add_bos_token_id(c["bos_token_id"])
    w.add_add_bos_token(False)
    if template:
        w.add_chat_template(template)


# --- writing -----------------------------------------------------------------------------------------------------------------------

FILE_TYPE = {"f32": 0, "f16": 1, "bf16": 32, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9}


def stays_f32(name, t):
    return t.ndim <= 1 or name.endswith("_norm.weight") or any(k in name for k in ("ssm_conv1d", "ffn_gate_inp"))


def write_tensor(w, name, t, kind):
    kind = T.F32 if stays_f32(name, t) else kind
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if t.shape[-1] % block or (block > 1 and "per_layer_model_proj" in name):
        kind = T.F16
    data = t.contiguous().numpy()
    if kind == T.F32:
        w.add_tensor(name, data)
    elif kind == T.F16:
        w.add_tensor(name, data.astype(np.float16))
    else:
        w.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder")
    ap.add_argument("out")
    ap.add_argument("--type", default="bf16", choices=sorted(FILE_TYPE))
    ap.add_argument("--split", type=int, default=0, help="at most N tensors a file")
    a = ap.parse_args()
    c = read_config(a.folder)
    arch = ARCH[c["model_type"]]
    check_expressible(c, arch)
    tensors = convert(c, arch, read_tensors(a.folder))
    n_mtp = 1 if any(".nextn." in n for n in tensors) else 0
    w = gguf.GGUFWriter(a.out, arch, split_max_tensors=a.split)
    w.add_type("model")
    w.add_name(os.path.basename(os.path.normpath(a.folder)))
    add_keys(w, c, arch, n_mtp, FILE_TYPE[a.type])
    w.add_quantization_version(2)
    add_vocab(w, a.folder, c, arch)
    for name, t in tensors.items():
        write_tensor(w, name, t, T[a.type.upper()])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
