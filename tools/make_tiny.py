#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tiny random models of tests/vectors/models: one of every supported family, with what transformers computes from them.

    tools/make_tiny.py tests/vectors/models [family ...]

Each folder is a complete Hugging Face model (config.json, model.safetensors in bf16, tokenizer.json, chat template) plus
  expected.safetensors  ids_short [12], logits_short [12, V], ids_long [80], logits_long_last8 [8, V], mtp_logits where there is an MTP head
  expected.json         greedy_tokens (16 after the short prompt) with their margins, and how far f32 and f64 differ in transformers itself
computed in f32 with eager attention from the bf16 weights. Values are chosen so that mistakes show: windows, rope ranges and softcaps lie within
the long prompt, norms and scalars differ from 1, head counts are uneven. Seeds are searched until every greedy margin is comfortable.

Needs torch, transformers 5.x, safetensors and tokenizers.
"""
import json
import os
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

VOCAB, N_SHORT, N_LONG, N_GREEDY, MIN_MARGIN = 288, 12, 80, 16, 0.02
BASE = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
            pad_token_id=0, bos_token_id=1, eos_token_id=2)
GDN = dict(BASE, head_dim=32, layer_types=["linear_attention"] * 3 + ["full_attention"], num_hidden_layers=4, linear_conv_kernel_dim=4,
           linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
           rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[2, 1, 1]))
GDN2 = dict(GDN, layer_types=["linear_attention", "full_attention"], num_hidden_layers=2)  # full_attention_interval 2
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)
DENSE = dict(BASE, num_hidden_layers=3, head_dim=16)
GEMMA = dict(BASE, head_dim=16, sliding_window=16)
G3 = dict(GEMMA, num_hidden_layers=6, layer_types=["sliding_attention"] * 5 + ["full_attention"])
G4 = dict(GEMMA, num_hidden_layers=6, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
          rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1e4),
                               full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25)))


def rope(kind, theta, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


# family: (config class, model class, settings)
FAMILIES = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM",
                dict(GDN, hidden_size=64, linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=1, linear_num_value_heads=2)),
    "qwen3_5_tied": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", dict(GDN, linear_num_value_heads=6, tie_word_embeddings=True)),
    "qwen3_5_mtp": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", dict(GDN)),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", dict(GDN2, **MOE)),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM",
                   dict(GDN2, **MOE, rope_parameters=rope("default", 1e4, partial_rotary_factor=0.25))),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {k: v for k, v in DENSE.items() if k != "head_dim"} | dict(rope_parameters=rope("default", 1e6))),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", dict(DENSE, head_dim=32, tie_word_embeddings=True, rope_parameters=rope("default", 1e6))),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM",
                  dict(DENSE, num_hidden_layers=2, norm_topk_prob=True, rope_parameters=rope("default", 1e6),
                       **{k: v for k, v in MOE.items() if "shared" not in k})),
    "qwen3_yarn": ("Qwen3Config", "Qwen3ForCausalLM",
                   dict(DENSE, head_dim=32, rope_parameters=rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=32))),
    "llama3": ("LlamaConfig", "LlamaForCausalLM",
               dict(DENSE, rms_norm_eps=1e-5, rope_parameters=rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                   original_max_position_embeddings=64))),
    "smollm2": ("LlamaConfig", "LlamaForCausalLM",
                dict(DENSE, num_attention_heads=3, num_key_value_heads=1, hidden_size=96, num_hidden_layers=2, head_dim=32, rms_norm_eps=1e-5,
                     tie_word_embeddings=True, rope_parameters=rope("default", 1e5))),
    "mistral": ("MistralConfig", "MistralForCausalLM",
                dict(DENSE, head_dim=24, rms_norm_eps=1e-5, sliding_window=16, rope_parameters=rope("default", 1e4))),
    "ministral3": ("Ministral3Config", "Ministral3ForCausalLM",
                   dict(DENSE, head_dim=24, rms_norm_eps=1e-5, sliding_window=None,
                        rope_parameters=rope("yarn", 1e6, factor=16.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0,
                                             mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, max_position_embeddings=4096))),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM",
               dict(GEMMA, num_hidden_layers=4, query_pre_attn_scalar=24, attn_logit_softcapping=3.0, final_logit_softcapping=5.0,
                    rope_parameters=rope("default", 1e4))),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM",
               dict(G3, query_pre_attn_scalar=16, rope_parameters=dict(sliding_attention=rope("default", 1e4),
                                                                       full_attention=rope("default", 1e6)))),
    "gemma3_linear": ("Gemma3TextConfig", "Gemma3ForCausalLM",
                      dict(G3, query_pre_attn_scalar=24, rope_parameters=dict(sliding_attention=rope("default", 1e4),
                                                                              full_attention=rope("linear", 1e6, factor=8.0)))),
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM",
               dict(G4, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=3, use_double_wide_mlp=True,
                    per_layer_config={"2": {"head_dim": 32}, "5": {"head_dim": 32}})),
    "gemma4_moe": ("Gemma4TextConfig", "Gemma4ForCausalLM",
                   dict(G4, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=0,
                        enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32,
                        attention_k_eq_v=True, final_logit_softcapping=5.0,
                        per_layer_config={"1": {"head_dim": 32, "num_key_value_heads": 1}, "3": {"head_dim": 32, "num_key_value_heads": 1}})),
}
ZERO_CENTRED = ("qwen3_5", "qwen3_next", "gemma2", "gemma3")  # norms that multiply by 1 + w


# --- weights -----------------------------------------------------------------------------------------------------------------------

def draw(name, shape, gemma, zero_centred, tied, gen):
    """Values of one tensor: unit-gain matrices, norms around their neutral point, decays as trained models have them."""
    def uniform(lo, hi):
        return torch.empty(shape).uniform_(lo, hi, generator=gen)

    def normal(std):
        return torch.empty(shape).normal_(0, std, generator=gen)

    last = name.split(".")[-1]
    if last == "A_log":
        return uniform(0.05, 4).log()
    if last == "dt_bias":
        return uniform(-4, 0.5)
    if last == "layer_scalar":
        return uniform(0.7, 1.2)
    if last in ("scale", "per_expert_scale"):
        return uniform(0.6, 1.4)
    if "norm" in name:
        centre = 0.0 if zero_centred and "linear_attn.norm" not in name else 1.0
        if gemma and ".post_" in name:
            centre += 1.2  # a post-norm decides how much a sublayer adds; with less, greedy decoding repeats one token
        return uniform(centre - 0.4, centre + 0.4)
    if last == "bias":
        return normal(0.4)
    if "embed_tokens" in name:
        return normal(1.2 * shape[-1] ** -0.5 if tied else 0.35)
    if "conv1d" in name:
        return normal(0.5)
    gain = 2.0 if any(k in name for k in ("q_proj", "k_proj")) else 1.6 if any(k in name for k in ("gate", "router")) else 1.0
    return normal(gain * shape[-1] ** -0.5)


def fill(module, family, seed):
    gen = torch.Generator().manual_seed(seed)
    zero_centred = family.startswith(ZERO_CENTRED)
    tied = family.startswith("gemma") or FAMILIES[family][2].get("tie_word_embeddings", False)
    seen = set()
    for name, p in [*module.named_parameters(), *module.named_buffers()]:
        if p.data_ptr() in seen or not (isinstance(p, torch.nn.Parameter) or name.endswith("layer_scalar")):
            continue
        seen.add(p.data_ptr())
        p.data.copy_(draw(name, p.shape, family.startswith("gemma"), zero_centred, tied, gen).to(torch.bfloat16).float())


# --- expectations ------------------------------------------------------------------------------------------------------------------

@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model, ids):
    out, margins = [], []
    for _ in range(N_GREEDY):
        top = logits_of(model, ids + out)[-1].float().topk(2)
        out.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
    return out, margins


class MtpHead(torch.nn.Module):
    """The next-token head from transformers' own parts: a one-layer text model whose input is fc(norm(embedding), norm(hidden))."""

    def __init__(self, model):
        super().__init__()
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, Qwen3_5TextModel
        config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        config._attn_implementation = "eager"
        h, eps = config.hidden_size, config.rms_norm_eps
        self.fc = torch.nn.Linear(2 * h, h, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(h, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(h, eps=eps)
        self.body = Qwen3_5TextModel(config)
        self.body.embed_tokens = None

    def tensors(self):
        out = {f"mtp.{k}": v for k, v in self.state_dict().items()}
        return {k.replace("mtp.body.", "mtp."): v for k, v in out.items()}

    @torch.no_grad()
    def forward(self, model, hidden, next_ids):
        e = self.pre_fc_norm_embedding(model.model.embed_tokens(torch.tensor([next_ids])))
        m = self.fc(torch.cat([e, self.pre_fc_norm_hidden(hidden)], -1))
        return self.body(inputs_embeds=m, use_cache=False).last_hidden_state

    @torch.no_grad()
    def expect(self, model, ids, next_token, n_draft=4):
        hidden = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
        next_ids = ids[1:] + [next_token]
        out = self(model, hidden, next_ids)
        logits, drafts, margins = model.lm_head(out)[0], [], []
        for _ in range(n_draft):
            top = model.lm_head(out)[0, -1].topk(2)
            drafts.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            hidden = torch.cat([hidden, out[:, -1:]], 1)
            next_ids = next_ids + [drafts[-1]]
            out = self(model, hidden, next_ids)
        return logits, drafts, margins


# --- tokenizer ---------------------------------------------------------------------------------------------------------------------

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
PAIRS = ["Ġ t", "h e", "i n", "Ġ a", "r e", "o n", "e r", "Ġt he", "a t", "o r", "e n", "Ġ s", "i s", "Ġ c", "a n", "in g", "Ġ w", "l l", "o u",
         "Ġa n", "Ġan d", "e s", "e d"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = """{%- if tools %}<|im_start|>system
Tools:
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return [chr(b) for b in keep] + [chr(256 + i) for i in range(len(rest))]


def write_tokenizer(folder):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    special = CONTROL + VISIBLE
    words = byte_alphabet() + [p.replace(" ", "") for p in PAIRS]
    vocab = {t: i for i, t in enumerate(special + words)}
    assert len(vocab) == VOCAB, len(vocab)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(p.split(" ")) for p in PAIRS]))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE])
    with open(f"{folder}/tokenizer.json", "w") as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    with open(f"{folder}/tokenizer_config.json", "w") as f:
        json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False, bos_token=None, eos_token="<|im_end|>",
                       pad_token="<|endoftext|>", chat_template=TEMPLATE), f, indent=1)
        f.write("\n")


# --- one family --------------------------------------------------------------------------------------------------------------------

def build(family, seed):
    config_class, model_class, settings = FAMILIES[family]
    config = getattr(transformers, config_class)(**json.loads(json.dumps(settings)))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = getattr(transformers, model_class)(config).float().eval()
    fill(model, family, seed)
    mtp = None
    if family == "qwen3_5_mtp":
        mtp = MtpHead(model).float().eval()
        fill(mtp, family, seed + 1_000_000)
    return model, mtp


def find_seed(family):
    for seed in range(1, 500):
        model, mtp = build(family, seed)
        gen = torch.Generator().manual_seed(seed)
        ids = torch.randint(9, VOCAB, (N_LONG,), generator=gen).tolist()
        short = ids[:N_SHORT]
        tokens, margins = greedy(model, short)
        if min(margins) < MIN_MARGIN or len(set(tokens)) < N_GREEDY // 2 or min(tokens) < 3:
            continue
        extra = mtp.expect(model, short, tokens[0]) if mtp else None
        if extra and min(extra[2]) < MIN_MARGIN:
            continue
        return seed, model, mtp, ids, tokens, margins, extra
    raise SystemExit(f"{family}: no seed with comfortable margins")


def edit_config(folder, change):
    with open(f"{folder}/config.json") as f:
        config = change(json.load(f))
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def wrap_as_published(folder, mtp):
    """Rewrites a text-only save the way the published multimodal uploads look: nested config, model.language_model. prefix, mtp.*, fused experts."""
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    moe = config["model_type"] == "qwen3_5_moe_text"
    if mtp:
        config |= dict(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
    edit_config(folder, lambda _: dict(architectures=["Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"],
                                       model_type="qwen3_5_moe" if moe else "qwen3_5", tie_word_embeddings=config["tie_word_embeddings"],
                                       text_config=config))
    tensors = load_file(f"{folder}/model.safetensors")
    if moe:
        for layer in range(config["num_hidden_layers"]):
            p = f"model.layers.{layer}.mlp.experts"
            if f"{p}.gate_up_proj" in tensors:
                continue
            part = {k: torch.stack([tensors.pop(f"{p}.{e}.{k}_proj.weight") for e in range(config["num_experts"])]) for k in ("gate", "up", "down")}
            tensors[f"{p}.gate_up_proj"] = torch.cat([part["gate"], part["up"]], 1)
            tensors[f"{p}.down_proj"] = part["down"]
    tensors = {("model.language_model." + k[6:] if k.startswith("model.") else k): v.contiguous() for k, v in tensors.items()}
    if mtp:
        tensors |= {k: v.to(torch.bfloat16).contiguous() for k, v in mtp.tensors().items()}
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


def write_family(root, family):
    folder = f"{root}/{family}"
    os.makedirs(folder, exist_ok=True)
    seed, model, mtp, ids, tokens, margins, extra = find_seed(family)
    short = logits_of(model, ids[:N_SHORT])
    long = logits_of(model, ids)[-8:]
    double = build(family, seed)[0].double()
    diff = [float((logits_of(double, ids[:N_SHORT]) - short).abs().max()), float((logits_of(double, ids)[-8:] - long).abs().max())]
    expected = dict(ids_short=torch.tensor(ids[:N_SHORT], dtype=torch.int32), ids_long=torch.tensor(ids, dtype=torch.int32),
                    logits_short=short.contiguous(), logits_long_last8=long.contiguous())
    info = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "class": FAMILIES[family][1], "seed": seed,
            "greedy_tokens": tokens, "greedy_margin": [round(m, 4) for m in margins], "fp32_vs_fp64_max_abs": diff, "logit_std": float(short.std())}
    if extra:
        expected["mtp_logits"] = extra[0].contiguous()
        info["mtp"] = {"next_token": tokens[0], "drafts": extra[1], "margins": [round(m, 4) for m in extra[2]],
                       "note": "row t of mtp_logits: head applied to (final-normed hidden of token t, token t+1); last row pairs the last "
                               "hidden with next_token; drafts chain the head's own normed output"}
    model.to(torch.bfloat16).save_pretrained(folder)
    if "linear_attention" in (getattr(model.config, "layer_types", None) or []):
        interval = model.config.layer_types.index("full_attention") + 1  # transformers drops the key, published files carry it
        edit_config(folder, lambda c: c | dict(full_attention_interval=interval))
    if mtp:
        wrap_as_published(folder, mtp)
    save_file(expected, f"{folder}/expected.safetensors")
    with open(f"{folder}/expected.json", "w") as f:
        json.dump(info, f)
        f.write("\n")
    write_tokenizer(folder)
    if family == "qwen3_5_moe":
        write_fused_twin(root, folder)
    print(f"{family}: seed {seed}, min margin {min(margins):.3f}, logit std {float(short.std()):.2f}, f32 vs f64 {max(diff):.1e}, "
          f"{os.path.getsize(folder + '/model.safetensors')} bytes", flush=True)


def write_fused_twin(root, folder):
    """The same weights in the published layout; its expectations are those of the original."""
    twin = f"{root}/qwen3_5_moe_fused"
    os.makedirs(twin, exist_ok=True)
    for name in os.listdir(folder):
        with open(f"{folder}/{name}", "rb") as src, open(f"{twin}/{name}", "wb") as dst:
            dst.write(src.read())
    wrap_as_published(twin, None)


def main():
    root = sys.argv[1]
    torch.set_num_threads(1)
    for family in sys.argv[2:] or FAMILIES:
        write_family(root, family)


if __name__ == "__main__":
    main()
