#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random hybrid model (Qwen3.5 layout) with a byte-level tokenizer and a ChatML template, for end-to-end tests.

Standard library only, so that tests make it on the spot: tools/make_chat_model.py FOLDER [--seed N] [--layers N] [--thinking]
The text it produces is noise; what it is for is everything around the text.
"""
import argparse
import json
import os
import random
import struct

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
HIDDEN_SPECIALS = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
MERGES = ["h e", "l l", "he ll", "hell o", "t h", "th e", "Ġ the", "i n", "a n", "e r", "o n", "Ġ a", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d"]

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Thoughts that the prompt opens, and tool calls in the XML form of Qwen3.5.
THINKING_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\nTo call one, write:\n<tool_call>\n"
    "<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call><|im_end|>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>\n"
    "{%- for k, v in call.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% if enable_thinking is false %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)


def byte_alphabet():
    """Byte -> printable character of the byte-level BPE alphabet."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def tokenizer():
    vocab = {}
    for b, c in byte_alphabet().items():
        vocab[c] = len(vocab)
    for m in MERGES:
        vocab.setdefault(m.replace(" ", ""), len(vocab))
    added = [
        {"id": len(vocab) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": s in HIDDEN_SPECIALS}
        for i, s in enumerate(SPECIALS)
    ]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": MERGES},
    }


def bf16(values):
    out = bytearray()
    for v in values:
        bits = struct.unpack("<I", struct.pack("<f", v))[0]
        bits += 0x7FFF + ((bits >> 16) & 1)
        out += struct.pack("<H", (bits >> 16) & 0xFFFF)
    return bytes(out)


class Weights:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.tensors = {}

    def normal(self, name, shape, std):
        n = 1
        for d in shape:
            n *= d
        self.tensors[name] = (shape, bf16(self.rng.gauss(0, std) for _ in range(n)))

    def write(self, path):
        header, data, at = {}, bytearray(), 0
        for name, (shape, raw) in self.tensors.items():
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
            data += raw
            at += len(raw)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)


def make(folder, seed=7, n_layer=4, n_ctx=40960, thinking=False):
    os.makedirs(folder, exist_ok=True)
    tok = tokenizer()
    n_vocab = len(tok["model"]["vocab"]) + len(SPECIALS)
    ids = {t["content"]: t["id"] for t in tok["added_tokens"]}
    h, ffn, heads, kv, hd, kh, vh, dk = 32, 48, 2, 1, 16, 1, 2, 16
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": h, "intermediate_size": ffn, "num_hidden_layers": n_layer,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": hd, "vocab_size": n_vocab, "max_position_embeddings": n_ctx, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "linear_num_key_heads": kh, "linear_num_value_heads": vh, "linear_key_head_dim": dk, "linear_value_head_dim": dk,
        "linear_conv_kernel_dim": 4, "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(n_layer)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, "eos_token_id": ids["<|endoftext|>"], "dtype": "bfloat16",
        "hidden_act": "silu",
    }
    w = Weights(seed)
    w.normal("model.embed_tokens.weight", [n_vocab, h], 0.5)
    w.normal("model.norm.weight", [h], 0.1)
    for i in range(n_layer):
        p = f"model.layers.{i}."
        w.normal(p + "input_layernorm.weight", [h], 0.1)
        w.normal(p + "post_attention_layernorm.weight", [h], 0.1)
        for name, shape in (("gate", [ffn, h]), ("up", [ffn, h]), ("down", [h, ffn])):
            w.normal(p + f"mlp.{name}_proj.weight", shape, 0.2)
        if (i + 1) % 4 == 0:
            for name, shape in (("q", [heads * hd * 2, h]), ("k", [kv * hd, h]), ("v", [kv * hd, h]), ("o", [h, heads * hd])):
                w.normal(p + f"self_attn.{name}_proj.weight", shape, 0.2)
            w.normal(p + "self_attn.q_norm.weight", [hd], 0.1)
            w.normal(p + "self_attn.k_norm.weight", [hd], 0.1)
        else:
            c = 2 * kh * dk + vh * dk
            for name, shape in (("in_proj_qkv", [c, h]), ("in_proj_z", [vh * dk, h]), ("in_proj_b", [vh, h]), ("in_proj_a", [vh, h]), ("out_proj", [h, vh * dk])):
                w.normal(p + f"linear_attn.{name}.weight", shape, 0.2)
            w.normal(p + "linear_attn.conv1d.weight", [c, 1, 4], 0.4)
            w.normal(p + "linear_attn.A_log", [vh], 0.5)
            w.normal(p + "linear_attn.dt_bias", [vh], 0.5)
            w.normal(p + "linear_attn.norm.weight", [dk], 0.1)
    w.write(os.path.join(folder, "model.safetensors"))
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]},
        "tokenizer.json": tok,
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "bos_token": None, "add_bos_token": False, "chat_template": THINKING_TEMPLATE if thinking else TEMPLATE},
    }
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("folder")
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--thinking", action="store_true", help="a template with thoughts and tool calls")
    args = ap.parse_args()
    make(args.folder, args.seed, args.layers, thinking=args.thinking)
