#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files with random weights in the real shapes of published models, for speed measurements that need no download.

Blocks are drawn directly (random codes, scales of the right size), so a 4B file takes seconds, not an hour of quantising. Types follow the
usual recipes: Q4_0, Q8_0, and Q4_K_M with Q6_K for the head and part of attn_v/attn_qkv/ffn_down. The vocabulary is made up but has the real
size, real special tokens and a consistent merge list. Text is gibberish; speed, memory and every shape are real.

    tools/make_random_gguf.py qwen35-0.8b q4_0 out.gguf [--mtp] [--seed 1]

Needs the PyPI packages gguf and numpy.
"""
import argparse
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

QWEN35 = dict(family="qwen35", hd=256, kh=16, ds=128, conv=4, rot=64, theta=1e7, ctx=262144, vocab=248320, eps=1e-6, pre="qwen35")
MODELS = {
    "qwen35-0.8b": dict(QWEN35, arch="qwen35", h=1024, ffn=3584, layers=24, hq=8, hkv=2, vh=16, tied=True),
    "qwen35-4b": dict(QWEN35, arch="qwen35", h=2560, ffn=9216, layers=32, hq=16, hkv=4, vh=32, tied=True),
    "qwen35-9b": dict(QWEN35, arch="qwen35", h=4096, ffn=12288, layers=32, hq=16, hkv=4, vh=32, tied=False),
    "qwen35-35b-a3b": dict(QWEN35, arch="qwen35moe", h=2048, ffn=0, layers=40, hq=16, hkv=2, vh=32, tied=False, experts=256, used=8, effn=512,
                           sffn=512),
    "smollm2-135m": dict(family="llama", arch="llama", h=576, ffn=1536, layers=30, hq=9, hkv=3, hd=64, rot=64, theta=1e5, ctx=8192, vocab=49152,
                         eps=1e-5, tied=True, pre="smollm"),
    "llama-3.2-1b": dict(family="llama", arch="llama", h=2048, ffn=8192, layers=16, hq=32, hkv=8, hd=64, rot=64, theta=5e5, ctx=131072,
                         vocab=128256, eps=1e-5, tied=True, pre="llama-bpe", llama3=(32.0, 1.0, 4.0, 8192)),
    "gemma-3-1b": dict(family="gemma3", arch="gemma3", h=1152, ffn=6912, layers=26, hq=4, hkv=1, hd=256, rot=256, theta=1e6, ctx=32768,
                       vocab=262144, eps=1e-6, tied=True, pre="", window=512),
}
CHATML = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TURNS = ("{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }}\n{{ m['content'] }}"
         "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")


# --- random blocks -----------------------------------------------------------------------------------------------------------------

def f16_bytes(x):
    return x.astype("<f2").view(np.uint8).reshape(-1, 2)


def scales(rng, n, std):
    """Positive block scales, half to one and a half of std, one in eight negative."""
    s = rng.uniform(0.5, 1.5, n) * std
    return np.where(rng.integers(0, 8, n) == 0, -s, s)


def raw(rng, n, k):
    return np.frombuffer(rng.bytes(n * k), np.uint8).reshape(n, k)


def pack_k_scales(sc, mn):
    """Eight 6-bit scales and minima in 12 bytes, as Q4_K and Q5_K store them."""
    out = np.empty((sc.shape[0], 12), np.uint8)
    out[:, 0:4] = sc[:, 0:4] | (sc[:, 4:8] >> 4) << 6
    out[:, 4:8] = mn[:, 0:4] | (mn[:, 4:8] >> 4) << 6
    out[:, 8:12] = (sc[:, 4:8] & 15) | (mn[:, 4:8] & 15) << 4
    return out


def blocks(rng, t, n, std):
    """n elements of type t as bytes, zero mean, standard deviation about std."""
    if t == T.F32:
        return (rng.standard_normal(n, dtype=np.float32) * np.float32(std)).view(np.uint8)
    if t == T.F16:
        return (rng.standard_normal(n, dtype=np.float32) * np.float32(std)).astype("<f2").view(np.uint8)
    if t == T.Q4_0:
        b = n // 32
        return np.concatenate([f16_bytes(scales(rng, b, std / 4.64)), raw(rng, b, 16)], 1)
    if t == T.Q5_0:
        b = n // 32
        return np.concatenate([f16_bytes(scales(rng, b, std / 9.25)), raw(rng, b, 20)], 1)
    if t == T.Q8_0:
        b = n // 32
        return np.concatenate([f16_bytes(scales(rng, b, std / 73.9)), raw(rng, b, 32)], 1)
    if t == T.Q4_K:
        # scale = minimum code and dmin = 7.5 d centre the sixteen codes around zero
        b = n // 256
        d = np.abs(scales(rng, b, std / (48 * 4.64)))
        sc = rng.integers(32, 64, (b, 8), dtype=np.uint8)
        return np.concatenate([f16_bytes(d), f16_bytes(d * 7.5), pack_k_scales(sc, sc), raw(rng, b, 128)], 1)
    if t == T.Q6_K:
        b = n // 256
        sc = (rng.integers(32, 96, (b, 16)) * rng.choice([-1, 1], (b, 16))).astype(np.int8).view(np.uint8)
        return np.concatenate([raw(rng, b, 192), sc, f16_bytes(np.abs(scales(rng, b, std / (64 * 18.5))))], 1)
    raise ValueError(f"no random blocks for {t.name}")


# --- recipes -----------------------------------------------------------------------------------------------------------------------

FALLBACK = {T.Q4_K: T.Q5_0, T.Q6_K: T.Q8_0}  # rows that are no multiple of 256
FILE_TYPE = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15, "f16": 1}


def more_bits(i, n):
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def tensor_type(name, n_in, recipe, m, layer):
    base = {"q4_0": T.Q4_0, "q8_0": T.Q8_0, "q4_k_m": T.Q4_K, "f16": T.F16}[recipe]
    t = base
    head = name == "output.weight" or (m["tied"] and name == "token_embd.weight")
    if head and recipe in ("q4_0", "q4_k_m"):
        t = T.Q6_K
    elif recipe == "q4_k_m" and any(k in name for k in (".attn_v.", ".attn_qkv.", ".ffn_down")) and "shexp" not in name:
        t = T.Q6_K if more_bits(layer, m["layers"]) else T.Q4_K
    if t in FALLBACK and n_in % 256:
        t = FALLBACK[t]
    return t


# --- shapes: (name, shape as [out, in] or [n], kind) ----------------------------------------------------------------------------------

def attention(m, p):
    gate = 2 if m["family"] == "qwen35" else 1
    out = [(f"{p}.attn_q.weight", (m["hq"] * m["hd"] * gate, m["h"])), (f"{p}.attn_k.weight", (m["hkv"] * m["hd"], m["h"])),
           (f"{p}.attn_v.weight", (m["hkv"] * m["hd"], m["h"])), (f"{p}.attn_output.weight", (m["h"], m["hq"] * m["hd"]))]
    if m["family"] in ("qwen35", "gemma3"):
        out += [(f"{p}.attn_q_norm.weight", (m["hd"],)), (f"{p}.attn_k_norm.weight", (m["hd"],))]
    return out


def delta_net(m, p):
    kd, vd = m["kh"] * m["ds"], m["vh"] * m["ds"]
    return [(f"{p}.attn_qkv.weight", (2 * kd + vd, m["h"])), (f"{p}.attn_gate.weight", (vd, m["h"])),
            (f"{p}.ssm_conv1d.weight", (2 * kd + vd, m["conv"])), (f"{p}.ssm_dt.bias", (m["vh"],)), (f"{p}.ssm_a", (m["vh"],)),
            (f"{p}.ssm_beta.weight", (m["vh"], m["h"])), (f"{p}.ssm_alpha.weight", (m["vh"], m["h"])),
            (f"{p}.ssm_norm.weight", (m["ds"],)), (f"{p}.ssm_out.weight", (m["h"], vd))]


def feed_forward(m, p):
    if "experts" not in m:
        return [(f"{p}.ffn_gate.weight", (m["ffn"], m["h"])), (f"{p}.ffn_up.weight", (m["ffn"], m["h"])),
                (f"{p}.ffn_down.weight", (m["h"], m["ffn"]))]
    e, f, s, h = m["experts"], m["effn"], m["sffn"], m["h"]
    return [(f"{p}.ffn_gate_inp.weight", (e, h)), (f"{p}.ffn_gate_exps.weight", (e, f, h)), (f"{p}.ffn_up_exps.weight", (e, f, h)),
            (f"{p}.ffn_down_exps.weight", (e, h, f)), (f"{p}.ffn_gate_inp_shexp.weight", (h,)), (f"{p}.ffn_gate_shexp.weight", (s, h)),
            (f"{p}.ffn_up_shexp.weight", (s, h)), (f"{p}.ffn_down_shexp.weight", (h, s))]


def layer_tensors(m, i, full):
    p = f"blk.{i}"
    out = [(f"{p}.attn_norm.weight", (m["h"],))]
    out += attention(m, p) if full else delta_net(m, p)
    if m["family"] == "qwen35":
        out += [(f"{p}.post_attention_norm.weight", (m["h"],))]
    elif m["family"] == "gemma3":
        out += [(f"{p}.{n}.weight", (m["h"],)) for n in ("post_attention_norm", "ffn_norm", "post_ffw_norm")]
    else:
        out += [(f"{p}.ffn_norm.weight", (m["h"],))]
    return out + feed_forward(m, p)


def all_tensors(m, mtp):
    out = [("token_embd.weight", (m["vocab"], m["h"])), ("output_norm.weight", (m["h"],))]
    if not m["tied"]:
        out += [("output.weight", (m["vocab"], m["h"]))]
    if "llama3" in m:
        out += [("rope_freqs.weight", (m["hd"] // 2,))]
    for i in range(m["layers"]):
        out += layer_tensors(m, i, m["family"] != "qwen35" or (i + 1) % 4 == 0)
    if mtp:
        p = f"blk.{m['layers']}"
        out += layer_tensors(m, m["layers"], True)
        out += [(f"{p}.nextn.eh_proj.weight", (m["h"], 2 * m["h"]))]
        out += [(f"{p}.nextn.{n}.weight", (m["h"],)) for n in ("enorm", "hnorm", "shared_head_norm")]
    return out


def llama3_factors(m):
    factor, low, high, orig = m["llama3"]
    inv = m["theta"] ** (-np.arange(0, m["hd"], 2) / m["hd"])
    wave = 2 * np.pi / inv
    smooth = (orig / wave - low) / (high - low)
    mid = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wave < orig / high, 1.0, np.where(wave > orig / low, factor, mid)).astype(np.float32)


def plain_values(rng, name, shape, m):
    """The F32 tensors: norms near one, decays as a trained model has them."""
    n = int(np.prod(shape))
    if name == "rope_freqs.weight":
        return llama3_factors(m)
    if name.endswith(".ssm_a"):
        return -rng.uniform(1, 16, n).astype(np.float32)
    if name.endswith(".ssm_dt.bias"):
        return np.log(np.expm1(np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), n)))).astype(np.float32)
    if "norm" in name:
        return rng.uniform(0.7, 1.3, n).astype(np.float32)
    return (rng.standard_normal(n) * (0.3 if "conv1d" in name else 0.02)).astype(np.float32)


# --- vocabulary --------------------------------------------------------------------------------------------------------------------

def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    table = {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return [table[b] for b in keep + rest]


def made_up_merges(rng, n):
    """n merges over the byte alphabet, each of two tokens that exist, so that every token can be reached."""
    tokens = byte_alphabet()
    seen = set(tokens)
    letters = [tokens.index(c) for c in "etaoinshrdlucmfwypvbgkqjxz"] + [tokens.index("\u0120")] * 6
    merges = []
    while len(merges) < n:
        draws = rng.integers(0, 1 << 30, (n, 3))
        for a, b, kind in draws:
            if len(merges) == n:
                break
            first = letters[a % len(letters)] if kind % 3 == 0 else int(a % min(len(tokens), 4096))
            second = letters[b % len(letters)] if kind % 2 == 0 or len(merges) < 500 else int(b % len(tokens))
            word = tokens[first] + tokens[second]
            if len(word) > 16 or word in seen or "\u0120" in word[1:]:
                continue
            seen.add(word)
            merges.append(f"{tokens[first]} {tokens[second]}")
            tokens.append(word)
    return tokens, merges


def bpe_vocab(rng, m):
    special = {
        "qwen35": {248044: "<|endoftext|>", 248045: "<|im_start|>", 248046: "<|im_end|>", 248053: "<|vision_start|>", 248054: "<|vision_end|>",
                   248055: "<|vision_pad|>", 248056: "<|image_pad|>", 248057: "<|video_pad|>", 248060: "<|fim_prefix|>",
                   248061: "<|fim_middle|>", 248062: "<|fim_suffix|>"},
        "smollm": {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"},
        "llama-bpe": {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>", 128004: "<|finetune_right_pad_id|>",
                      128006: "<|start_header_id|>", 128007: "<|end_header_id|>", 128008: "<|eom_id|>", 128009: "<|eot_id|>",
                      128010: "<|python_tag|>"},
    }[m["pre"]]
    user = {248058: "<tool_call>", 248059: "</tool_call>", 248066: "<tool_response>", 248067: "</tool_response>", 248068: "<think>",
            248069: "</think>"} if m["pre"] == "qwen35" else {}
    n_merges = {"qwen35": 247587, "smollm": 48893, "llama-bpe": 127744}[m["pre"]]
    words, merges = made_up_merges(rng, n_merges)
    tokens, types, at = [], [], 0
    first_pad = {"qwen35": 248077, "smollm": 49152, "llama-bpe": 128256}[m["pre"]]
    for i in range(m["vocab"]):
        if i in special or i in user:
            tokens.append(special.get(i) or user[i])
            types.append(3 if i in special else 4)
        elif at < len(words):
            tokens.append(words[at])
            types.append(1)
            at += 1
        else:
            tokens.append(f"<|reserved_{i}|>" if i < first_pad else f"[PAD{i}]")
            types.append(3 if i < first_pad else 5)
    assert at == len(words)
    return tokens, types, merges


def add_vocab(w, rng, m):
    if m["family"] == "gemma3":
        return add_gemma_vocab(w, rng, m)
    tokens, types, merges = bpe_vocab(rng, m)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(m["pre"])
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    ids = {t: i for i, t in enumerate(tokens) if types[i] == 3}
    if m["pre"] == "llama-bpe":
        w.add_bos_token_id(ids["<|begin_of_text|>"])
        w.add_eos_token_id(ids["<|eot_id|>"])
        w.add_add_bos_token(True)
    else:
        w.add_eos_token_id(ids["<|im_end|>"])
        w.add_pad_token_id(ids["<|endoftext|>"])
        w.add_add_bos_token(False)
    w.add_chat_template(CHATML)


def add_gemma_vocab(w, rng, m):
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens = special + [f"<unused{i}>" for i in range(101)] + ["<start_of_turn>", "<end_of_turn>"]
    types = [3, 3, 3, 2] + [3] * (len(tokens) - 4)
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [6] * 256
    words, _ = made_up_merges(rng, m["vocab"])
    for t in words:
        t = t.replace("\u0120", "\u2581")
        if len(tokens) < m["vocab"] and t.isascii() or t[0] == "\u2581":
            tokens.append(t)
            types.append(1)
    tokens = tokens[:m["vocab"]]
    while len(tokens) < m["vocab"]:
        types = types[:len(tokens)] + [5]
        tokens.append(f"[PAD{len(tokens)}]")
    types = types[:m["vocab"]]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(len(tokens))])
    w.add_token_types(types)
    w.add_bos_token_id(2)
    w.add_eos_token_id(1)
    w.add_pad_token_id(0)
    w.add_unk_token_id(3)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)
    w.add_chat_template(TURNS)


# --- file --------------------------------------------------------------------------------------------------------------------------

def add_keys(w, m, name, recipe, mtp):
    w.add_name(f"random {name}")
    w.add_description("Random weights in the shape of a published model, for speed measurements only.")
    w.add_file_type(FILE_TYPE[recipe])
    w.add_quantization_version(2)
    w.add_block_count(m["layers"] + (1 if mtp else 0))
    w.add_context_length(m["ctx"])
    w.add_embedding_length(m["h"])
    w.add_head_count(m["hq"])
    w.add_head_count_kv(m["hkv"])
    w.add_key_length(m["hd"])
    w.add_value_length(m["hd"])
    w.add_rope_freq_base(m["theta"])
    w.add_rope_dimension_count(m["rot"])
    w.add_layer_norm_rms_eps(m["eps"])
    w.add_vocab_size(m["vocab"])
    if m["ffn"]:
        w.add_feed_forward_length(m["ffn"])
    if "window" in m:
        w.add_sliding_window(m["window"])
    if "experts" in m:
        w.add_expert_count(m["experts"])
        w.add_expert_used_count(m["used"])
        w.add_expert_feed_forward_length(m["effn"])
        w.add_expert_shared_feed_forward_length(m["sffn"])
    if m["family"] == "qwen35":
        w.add_ssm_conv_kernel(m["conv"])
        w.add_ssm_state_size(m["ds"])
        w.add_ssm_group_count(m["kh"])
        w.add_ssm_time_step_rank(m["vh"])
        w.add_ssm_inner_size(m["vh"] * m["ds"])
        w.add_full_attention_interval(4)
        w.add_rope_dimension_sections([11, 11, 10, 0])
        if mtp:
            w.add_nextn_predict_layers(1)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", choices=sorted(MODELS))
    ap.add_argument("recipe", choices=sorted(FILE_TYPE))
    ap.add_argument("out")
    ap.add_argument("--mtp", action="store_true", help="add the next-token block (qwen35)")
    ap.add_argument("--layers", type=int, help="fewer layers, for quick checks")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    m = dict(MODELS[a.model])
    if a.layers:
        m["layers"] = a.layers
    if a.mtp and m["family"] != "qwen35":
        sys.exit("--mtp is for qwen35 models")
    rng = np.random.Generator(np.random.SFC64(a.seed))
    w = gguf.GGUFWriter(a.out, m["arch"])
    add_keys(w, m, a.model, a.recipe, a.mtp)
    add_vocab(w, rng, m)
    plan = []
    for name, shape in all_tensors(m, a.mtp):
        layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
        plain = len(shape) == 1 or "norm" in name or "ssm_conv1d" in name or "ffn_gate_inp" in name
        t = T.F32 if plain else tensor_type(name, shape[-1], a.recipe, m, layer)
        block, size = gguf.GGML_QUANT_SIZES[t]
        n = int(np.prod(shape))
        byte_shape = (*shape[:-1], shape[-1] // block * size)
        if t == T.F32:
            w.add_tensor_info(name, shape, np.dtype(np.float32), n * 4)
        elif t == T.F16:
            w.add_tensor_info(name, shape, np.dtype(np.float16), n * 2)
        else:
            w.add_tensor_info(name, byte_shape, np.dtype(np.uint8), n // block * size, raw_dtype=t)
        plan.append((name, shape, t, plain))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, shape, t, plain in plan:
        std = 0.02 if name == "token_embd.weight" else 0.6 * shape[-1] ** -0.5
        if plain:
            data = plain_values(rng, name, shape, m)
        elif len(shape) == 3:
            data = np.concatenate([blocks(rng, t, shape[1] * shape[2], std).reshape(-1) for _ in range(shape[0])])
        else:
            data = blocks(rng, t, int(np.prod(shape)), std)
        w.write_tensor_data(np.ascontiguousarray(data).reshape(-1))
    w.close()


if __name__ == "__main__":
    main()
