#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""References for quantised models: a quantised file is its own reference, so its weights are unpacked to f32 and given to transformers.

    tools/make_tiny_quant.py gguf HF_FOLDER OUT_FOLDER --type q8_0   # writes OUT_FOLDER/model.gguf (tools/hf_to_gguf.py) and its expectations
    tools/make_tiny_quant.py mlx HF_FOLDER MLX_FOLDER                # expectations for what `mlx_lm convert` made of HF_FOLDER
    tools/make_tiny_quant.py all tests/vectors/models tests/vectors/models_quant

HF_FOLDER is one of tools/make_tiny.py (its prompts are used). Expectations are named and shaped as there; greedy tokens end before the first margin
below 0.01. GGUF scores keep the meaning of the model through <arch>.attention.scale, see tools/hf_to_gguf.py.

Needs torch, transformers 5.x, safetensors, gguf, numpy; mlx and mlx-lm for MLX.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from gguf import GGMLQuantizationType as T  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import hf_to_gguf  # noqa: E402
import make_tiny  # noqa: E402

GGUF_SET = [("qwen3_5_mtp", "q4_0"), ("qwen3_5_tied", "q8_0"), ("qwen3_5_moe", "q4_1"), ("llama3", "q4_0"), ("qwen3_moe", "q5_1"),
            ("mistral", "q5_0"), ("gemma3_linear", "q8_0"), ("gemma4", "q8_0")]
MLX_SET = [("qwen3_5_tied", 4, 32), ("qwen3_5_moe_fused", 8, 32), ("qwen3_next", 4, 32), ("llama3", 3, 32), ("gemma3", 6, 32), ("smollm2", 5, 32)]


# --- transformers ------------------------------------------------------------------------------------------------------------------

def model_of(folder, tensors):
    """The transformers model of folder's config with these f32 tensors (short names of hf_to_gguf.read_tensors)."""
    with open(f"{folder}/config.json") as f:
        c = json.load(f)
    c = c.get("text_config", c)
    config_class, model_class, _ = next(v for v in make_tiny.FAMILIES.values() if v[1] == c["architectures"][0])
    config = getattr(transformers, config_class)(**c)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = getattr(transformers, model_class)(config).float().eval()
    state = {}
    experts = {}
    for name, t in tensors.items():
        if name.startswith("mtp."):
            continue
        if ".experts." in name and name.endswith("_proj.weight"):
            head, _, tail = name.partition(".experts.")
            e, part, _ = tail.split(".")
            experts.setdefault(head, {}).setdefault(part[:-5], {})[int(e)] = t
            continue
        state[name if name.startswith("lm_head") else f"model.{name}"] = t
    for head, parts in experts.items():
        stacked = {k: torch.stack([v[e] for e in range(len(v))]) for k, v in parts.items()}
        state[f"model.{head}.experts.gate_up_proj"] = torch.cat([stacked["gate"], stacked["up"]], 1)
        state[f"model.{head}.experts.down_proj"] = stacked["down"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [m for m in missing if m != "lm_head.weight"]
    if missing or unexpected:
        raise SystemExit(f"{folder}: missing {missing[:4]}, unexpected {unexpected[:4]}")
    model.tie_weights()
    mtp = None
    if any(n.startswith("mtp.") for n in tensors):
        mtp = make_tiny.MtpHead(model).float().eval()
        own = {n[4:]: t for n, t in tensors.items() if n.startswith("mtp.")}
        renamed = {(n if n.startswith(("fc.", "pre_fc")) else f"body.{n}"): t for n, t in own.items()}
        mtp.load_state_dict(renamed)
    return model, mtp


def write_expectations(folder, out, model, mtp, note):
    prompts = load_file(f"{folder}/expected.safetensors")
    short, long = prompts["ids_short"].tolist(), prompts["ids_long"].tolist()
    tokens, margins = make_tiny.greedy(model, short)
    n_sure = next((i for i, m in enumerate(margins) if m < 0.01), len(margins))
    expected = dict(ids_short=prompts["ids_short"], ids_long=prompts["ids_long"], logits_short=make_tiny.logits_of(model, short).contiguous(),
                    logits_long_last8=make_tiny.logits_of(model, long)[-8:].contiguous())
    info = {"transformers": transformers.__version__, "source": note, "greedy_tokens": tokens[:n_sure],
            "greedy_margin": [round(m, 4) for m in margins[:n_sure]]}
    if mtp:
        logits, drafts, draft_margins = mtp.expect(model, short, tokens[0])
        expected["mtp_logits"] = logits.contiguous()
        info["mtp"] = {"next_token": tokens[0], "drafts": drafts, "margins": [round(m, 4) for m in draft_margins]}
    save_file(expected, f"{out}/expected.safetensors")
    os.chmod(f"{out}/expected.safetensors", 0o644)
    with open(f"{out}/expected.json", "w") as f:
        json.dump(info, f)
        f.write("\n")
    print(f"{out}: {note}, {n_sure} greedy tokens, logit std {float(expected['logits_short'].std()):.2f}", flush=True)


# --- GGUF --------------------------------------------------------------------------------------------------------------------------

def requantised(c, arch, name, t, kind):
    """What is left of t after the file: rows quantised as hf_to_gguf writes them, out_proj in its tiled column order."""
    if t.ndim <= 1 or name.endswith("norm.weight") or any(k in name for k in ("conv1d", "mlp.gate.weight", "router.proj", "shared_expert_gate")):
        return t
    if t.shape[-1] % 32 or "per_layer_model_projection" in name:
        return t.half().float()
    x = t
    tiled = name.endswith("linear_attn.out_proj.weight") and arch != "qwen3next"
    if tiled:
        kh, per, dv = c["linear_num_key_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"], c["linear_value_head_dim"]
        x = hf_to_gguf.tile_heads(x, kh, per, dv, 1)
    x = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(x.contiguous().numpy(), kind), kind).astype(np.float32)).reshape(t.shape)
    return hf_to_gguf.tile_heads(x, per, kh, dv, 1) if tiled else x


def check_file(path, wanted):
    """The file must hold exactly the weights that transformers gets: quantising once more may change nothing."""
    for t in gguf.GGUFReader(path).tensors:
        got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(-1).astype(np.float32)
        want = wanted[t.name].contiguous().numpy().reshape(-1)
        if not np.array_equal(got, want):
            raise SystemExit(f"{path}: {t.name} differs by {np.abs(got - want).max()}")


def make_gguf(folder, out, kind_name):
    kind = T[kind_name.upper()]
    c = hf_to_gguf.read_config(folder)
    arch = hf_to_gguf.ARCH[c["model_type"]]
    tensors = {n: requantised(c, arch, n, t, kind) for n, t in hf_to_gguf.read_tensors(folder).items()}
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            if os.path.exists(f"{folder}/{name}"):
                shutil.copy(f"{folder}/{name}", f"{tmp}/{name}")
        save_file({n: t.contiguous().clone() for n, t in tensors.items()}, f"{tmp}/model.safetensors")
        sys.argv = ["hf_to_gguf.py", tmp, f"{out}/model.gguf", "--type", kind_name]
        hf_to_gguf.main()
    check_file(f"{out}/model.gguf", hf_to_gguf.convert(c, arch, dict(tensors)))
    model, mtp = model_of(folder, tensors)
    write_expectations(folder, out, model, mtp, f"gguf {kind_name} of {os.path.basename(folder)}")


# --- MLX ---------------------------------------------------------------------------------------------------------------------------

def mlx_tensors(folder):
    """All tensors as f32 under short Hugging Face names, quantised ones unpacked as scale * q + bias."""
    import mlx.core as mx
    mx.set_default_device(mx.cpu)
    with open(f"{folder}/config.json") as f:
        q = json.load(f)["quantization"]
    raw = {}
    for name in sorted(n for n in os.listdir(folder) if n.startswith("model") and n.endswith(".safetensors")):
        raw.update(mx.load(f"{folder}/{name}"))
    out = {}
    for name, t in raw.items():
        stem = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")):
            continue
        if name.endswith(".weight") and f"{stem}.scales" in raw:
            own = q.get(stem) if isinstance(q.get(stem), dict) else q
            t = mx.dequantize(t, raw[f"{stem}.scales"].astype(mx.float32), raw[f"{stem}.biases"].astype(mx.float32), group_size=own["group_size"],
                              bits=own["bits"])
        short = name
        for prefix in ("language_model.model.", "language_model.", "model."):
            if short.startswith(prefix):
                short = short[len(prefix):]
                break
        out[short] = torch.from_numpy(np.array(t.astype(mx.float32)))
    return out


def undo_sanitize(c, tensors):
    """Takes back what mlx-lm changes besides names: conv axes, the +1 of the hybrid families, stacked experts."""
    out = {}
    hybrid = any(n.endswith("linear_attn.A_log") for n in tensors)
    for name, t in tensors.items():
        if name.endswith("conv1d.weight"):
            t = t.transpose(1, 2)
        if hybrid and name.endswith("norm.weight") and "linear_attn.norm" not in name:
            t = t - 1
        if ".switch_" in name:
            head, part = name.split(".switch_mlp." if ".switch_mlp." in name else ".switch_glu.")
            head = head.removesuffix(".experts")
            if part.startswith("down"):
                out[f"{head}.experts.down_proj"] = t
            else:
                out.setdefault(f"{head}.experts.gate_up_proj", {})[part.split("_")[0]] = t
            continue
        out[name] = t.contiguous()
    return {n: (torch.cat([t["gate"], t["up"]], 1) if isinstance(t, dict) else t) for n, t in out.items()}


def make_mlx(folder, mlx_folder):
    c = hf_to_gguf.read_config(folder)
    tensors = undo_sanitize(c, mlx_tensors(mlx_folder))
    model, _ = model_of(folder, tensors)
    with open(f"{mlx_folder}/config.json") as f:
        q = json.load(f)["quantization"]
    write_expectations(folder, mlx_folder, model, None, f"mlx {q['bits']} bits, group {q['group_size']}, of {os.path.basename(folder)}")


def for_mlx(folder, tmp):
    """A copy of folder that mlx-lm accepts: it wants the nested form of qwen3_5 and some keys in their older places."""
    for name in os.listdir(folder):
        if not name.startswith("expected"):
            shutil.copy(f"{folder}/{name}", f"{tmp}/{name}")
    with open(f"{folder}/config.json") as f:
        c = json.load(f)
    if c["model_type"] in ("qwen3_5_text", "qwen3_5_moe_text"):
        make_tiny.wrap_as_published(tmp, None)
    elif c["model_type"] == "qwen3_next":
        make_tiny.edit_config(tmp, lambda x: x | dict(rope_theta=x["rope_parameters"]["rope_theta"], partial_rotary_factor=0.25))


def convert_mlx(folder, out, bits, group):
    """mlx-lm's own conversion; routers and gates at 8 bits as its defaults have them, but in groups that the narrow test models can hold."""
    from mlx_lm import convert

    def width(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group:
            return False
        return dict(group_size=group, bits=8) if path.endswith(("mlp.gate", "shared_expert_gate", "router.proj")) else True

    with tempfile.TemporaryDirectory() as tmp:
        for_mlx(folder, tmp)
        shutil.rmtree(out, ignore_errors=True)
        convert(tmp, out, quantize=True, q_bits=bits, q_group_size=group, quant_predicate=width)
    for extra in ("README.md", "model.safetensors.index.json"):
        if os.path.exists(f"{out}/{extra}"):
            os.remove(f"{out}/{extra}")
    make_mlx(folder, out)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("what", choices=("gguf", "mlx", "all"))
    ap.add_argument("folder")
    ap.add_argument("out")
    ap.add_argument("--type", default="q8_0", choices=sorted(hf_to_gguf.FILE_TYPE))
    a = ap.parse_args()
    torch.set_num_threads(1)
    if a.what == "gguf":
        make_gguf(a.folder, a.out, a.type)
    elif a.what == "mlx":
        make_mlx(a.folder, a.out)
    else:
        for family, kind in GGUF_SET:
            make_gguf(f"{a.folder}/{family}", f"{a.out}/{family}-{kind}", kind)
        for family, bits, group in MLX_SET:
            convert_mlx(f"{a.folder}/{family}", f"{a.out}/{family}-mlx{bits}", bits, group)


if __name__ == "__main__":
    main()
