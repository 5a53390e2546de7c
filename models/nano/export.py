# SPDX-License-Identifier: Apache-2.0
"""Writes the trained state: GGUF (what is shipped), a Hugging Face folder, or an MLX folder.

    python export.py STATE.npz TEACHER.gguf gguf OUT.gguf
    python export.py STATE.npz TEACHER.gguf hf OUT_DIR [--dtype bf16]     (f32 holds the quantised values exactly)
    python export.py STATE.npz TEACHER.gguf mlx OUT_DIR                   (affine, 4 bits, groups of 32: the same values)

    python export.py m5-nano.gguf - state STATE.npz                       (back: what train.py --resume reads)

The quantised tensors keep the very blocks of the state; nothing is quantised twice. TEACHER.gguf gives the vocabulary.
"""

import argparse
import json
import pathlib

import numpy as np

import chat
import gguf_read
import model
from train import unpack_q4_0

HERE = pathlib.Path(__file__).parent
SECTIONS = (6, 5, 5)


class State:
    def __init__(self, path):
        z = np.load(path)
        self.c = model.Config(**json.loads(str(z["config"])))
        self.blocks, self.small = {}, {}
        at = {"m": 0, "b": 0, "s": 0}
        for name, shape, g in model.spec(self.c):
            n = int(np.prod(shape))
            if g == "s":
                self.small[name] = z["s"][at[g] : at[g] + n].reshape(shape)
            else:
                self.blocks[name] = z[g][at[g] // 32 : (at[g] + n) // 32].reshape(*shape[:-1], shape[-1] // 32, 18)
            at[g] += n

    def value(self, name):
        if name in self.small:
            return self.small[name]
        b = self.blocks[name]
        return unpack_q4_0(b.reshape(-1, 18)).reshape(*b.shape[:-2], b.shape[-2] * 32)

    def names(self):
        return [n for n, _, _ in model.spec(self.c)]


def tiled(c):
    """Order of value heads in a GGUF file: position j * k_heads + g holds head g * r + j."""
    r = c.v_heads // c.k_heads
    return [g * r + j for j in range(r) for g in range(c.k_heads)]


GGUF = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
}
GGUF_MTP = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}


def gguf_name(c, name):
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name in GGUF_MTP:
        return f"blk.{c.layers}.{GGUF_MTP[name]}"
    parts = name.split(".")
    if name.startswith("mtp.layers.0."):
        return f"blk.{c.layers}." + GGUF[".".join(parts[3:])]
    return f"blk.{parts[2]}." + GGUF[".".join(parts[3:])]


def reorder(c, name, a, block, back=False):
    """Value heads from grouped to tiled order, or back. a: values, or blocks [rows, cols / 32, 18]."""
    if "linear_attn." not in name or name.endswith("linear_attn.norm.weight"):
        return a
    order, d = tiled(c), c.gdn_dim
    if back:
        order = [order.index(h) for h in range(len(order))]
    kd = 2 * c.k_heads * d
    rows = np.concatenate([np.arange(h * d, h * d + d) for h in order])
    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate([a[:kd], a[kd:][rows]])
    if "in_proj_z" in name:
        return a[rows]
    if "out_proj" in name:
        cols = np.concatenate([np.arange(h * d // 32, (h * d + d) // 32) for h in order]) if block else rows
        return a[:, cols]
    return a[order]


def shifted(name):
    """Zero-centred norms, stored with 1 added."""
    return "norm" in name and "linear_attn" not in name


def state_from_gguf(path, out):
    g = gguf_read.Gguf(path)
    c = model.Config()
    flat = {k: [] for k in "mbs"}
    for name, shape, group in model.spec(c):
        key = gguf_name(c, name)
        if group == "s":
            a = reorder(c, name, g.tensor(key).reshape(shape), False, True)
            a = np.log(-a) if name.endswith("A_log") else a - 1 if shifted(name) else a
            flat[group].append(a.astype(np.float32).ravel())
        else:
            b = g.bytes_of(key).reshape(*shape[:-1], shape[-1] // 32, 18)
            flat[group].append(reorder(c, name, b, True, True).reshape(-1, 18))
    np.savez(out, config=json.dumps(vars(c)), **{k: np.concatenate(v) for k, v in flat.items()})


def write_gguf(s, kv, path):
    import gguf

    c = s.c
    w = gguf.GGUFWriter(path, "qwen35")
    w.add_name("m5-nano")
    w.add_license("apache-2.0")
    w.add_block_count(c.layers + 1)
    w.add_context_length(8192)
    w.add_embedding_length(c.hidden)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_freq_base(c.theta)
    w.add_rope_dimension_count(c.rotary)
    w.add_rope_dimension_sections([*SECTIONS, 0])
    w.add_ssm_conv_kernel(c.conv)
    w.add_ssm_state_size(c.gdn_dim)
    w.add_ssm_group_count(c.k_heads)
    w.add_ssm_time_step_rank(c.v_heads)
    w.add_ssm_inner_size(c.v_heads * c.gdn_dim)
    w.add_uint32("qwen35.full_attention_interval", c.interval)
    w.add_uint32("qwen35.nextn_predict_layers", 1)
    w.add_file_type(2)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(chat.tokens_of(kv))
    w.add_token_types([4 if i in chat.RENAMED else t for i, t in enumerate(kv["tokenizer.ggml.token_type"])])
    w.add_token_merges(kv["tokenizer.ggml.merges"])
    w.add_eos_token_id(chat.END)
    w.add_pad_token_id(0)
    w.add_add_bos_token(False)
    w.add_chat_template((HERE / "chat_template.jinja").read_text())
    for name in s.names():
        if name in s.blocks:
            b = reorder(c, name, s.blocks[name], True)
            w.add_tensor(gguf_name(c, name), np.ascontiguousarray(b.reshape(b.shape[0], -1)), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
            continue
        a = reorder(c, name, s.small[name], False)
        if shifted(name):
            a = a + 1
        if name.endswith("A_log"):
            a = -np.exp(a)
        w.add_tensor(gguf_name(c, name), np.ascontiguousarray(a.astype(np.float32)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def hf_config(c, dtype):
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "eos_token_id": chat.END,
        "pad_token_id": 0,
        "dtype": dtype,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden,
        "initializer_range": 0.02,
        "intermediate_size": c.ffn,
        "full_attention_interval": c.interval,
        "layer_types": ["full_attention" if c.is_attention(i) else "linear_attention" for i in range(c.layers)],
        "linear_conv_kernel_dim": c.conv,
        "linear_key_head_dim": c.gdn_dim,
        "linear_value_head_dim": c.gdn_dim,
        "linear_num_key_heads": c.k_heads,
        "linear_num_value_heads": c.v_heads,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 8192,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "partial_rotary_factor": c.rotary / c.head_dim,
        "rms_norm_eps": c.eps,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.theta,
            "partial_rotary_factor": c.rotary / c.head_dim,
            "mrope_interleaved": True,
            "mrope_section": list(SECTIONS),
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": c.vocab,
    }


def write_side_files(out, kv, config):
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [chat.END, 0], "pad_token_id": 0}) + "\n")
    chat.tokenizer_of(kv).save(str(out / "tokenizer.json"))
    template = (HERE / "chat_template.jinja").read_text()
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "add_bos_token": False,
                "model_max_length": 8192,
            }
        )
        + "\n"
    )
    (out / "chat_template.jinja").write_text(template)


def write_hf(s, kv, out, dtype):
    import torch
    from safetensors.torch import save_file

    kind = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    write_side_files(out, kv, hf_config(s.c, {"bf16": "bfloat16", "f32": "float32"}[dtype]))
    t = {}
    for n in s.names():
        a = s.value(n)
        t[n] = torch.from_numpy(np.ascontiguousarray(a[:, None] if n.endswith("conv1d.weight") else a)).to(
            torch.float32 if n.endswith("A_log") else kind
        )
    save_file(t, str(out / "model.safetensors"), metadata={"format": "pt"})


def write_mlx(s, kv, out):
    import torch
    from safetensors.torch import save_file

    cfg = hf_config(s.c, "float16")
    q = {"group_size": 32, "bits": 4, "mode": "affine"}
    write_side_files(
        out,
        kv,
        {
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": cfg,
            "tie_word_embeddings": True,
            "eos_token_id": chat.END,
            "quantization": q,
            "quantization_config": q,
        },
    )
    t = {}
    for n in s.names():
        if n.startswith("mtp."):
            continue
        key = "language_model." + n
        if n in s.blocks:
            b = s.blocks[n]
            d = np.ascontiguousarray(b[..., :2]).view(np.float16)[..., 0]
            codes = np.concatenate([b[..., 2:] & 15, b[..., 2:] >> 4], -1).astype(np.uint32).reshape(*b.shape[:-2], -1, 8)
            words = (codes << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
            base = key[: -len(".weight")]
            t[key] = torch.from_numpy(words)
            t[base + ".scales"], t[base + ".biases"] = torch.from_numpy(d), torch.from_numpy((d * np.float16(-8)).astype(np.float16))
            continue
        a = s.small[n]
        if n.endswith("conv1d.weight"):
            a = a[:, :, None]
        elif n.endswith("norm.weight") and "linear_attn.norm" not in n:
            a = a + 1
        t[key] = torch.from_numpy(np.ascontiguousarray(a)).to(torch.float32 if n.endswith("A_log") else torch.float16)
    save_file(t, str(out / "model.safetensors"), metadata={"format": "mlx"})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("state")
    ap.add_argument("teacher")
    ap.add_argument("form", choices=("gguf", "hf", "mlx", "state"))
    ap.add_argument("out")
    ap.add_argument("--dtype", default="f32", choices=("bf16", "f32"))
    a = ap.parse_args()
    if a.form == "state":
        state_from_gguf(a.state, a.out)
        return
    s, kv = State(a.state), gguf_read.Gguf(a.teacher).kv
    if a.form == "gguf":
        write_gguf(s, kv, a.out)
    elif a.form == "hf":
        write_hf(s, kv, pathlib.Path(a.out), a.dtype)
    else:
        write_mlx(s, kv, pathlib.Path(a.out))


if __name__ == "__main__":
    main()
