# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and prompt rendering of m5-nano: a fast twin of chat_template.jinja (test: python chat.py TEACHER.gguf)."""

import json
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# spare special tokens of the teacher's vocabulary, renamed
RENAMED = {3: "<think>", 4: "</think>", 5: "<tool_call>", 6: "</tool_call>", 7: "<tool_response>", 8: "</tool_response>"}
END, START, THINK, UNTHINK = 2, 1, 3, 4
N_SPECIAL = 17
TOOLS_HEAD = "# Tools\n\nYou may call these functions:\n<tools>"
TOOLS_TAIL = "\n</tools>\n\nTo call a function, write:\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"


def tokens_of(kv):
    toks = list(kv["tokenizer.ggml.tokens"])
    for i, s in RENAMED.items():
        toks[i] = s
    return toks


def tokenizer_of(kv):
    """tokenizers.Tokenizer from the metadata of the teacher's GGUF file."""
    toks = tokens_of(kv)
    merges = [tuple(m.split(" ", 1)) for m in kv["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(toks)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    plain = [AddedToken(s, special=False, normalized=False) for i, s in enumerate(toks[:N_SPECIAL]) if i in RENAMED]
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for i, s in enumerate(toks[:N_SPECIAL]) if i not in RENAMED])
    t.add_tokens(plain)
    return t


def value(v):
    return v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)


def render(messages, tools=None, think=False, generate=True):
    out = []
    query = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    head = messages[0]["content"].strip() if messages and messages[0]["role"] == "system" else ""
    if tools:
        out.append(
            "<|im_start|>system\n"
            + TOOLS_HEAD
            + "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools)
            + TOOLS_TAIL
            + ("\n\n" + head if head else "")
            + "<|im_end|>\n"
        )
    elif head:
        out.append(f"<|im_start|>system\n{head}<|im_end|>\n")
    for i, m in enumerate(messages):
        if m["role"] == "user":
            out.append(f"<|im_start|>user\n{m['content'].strip()}<|im_end|>\n")
        elif m["role"] == "assistant":
            body = (m["content"] or "").strip()
            out.append("<|im_start|>assistant\n")
            if i > query:
                out.append(f"<think>\n{(m.get('reasoning_content') or '').strip()}\n</think>\n\n")
            out.append(body)
            for j, c in enumerate(m.get("tool_calls") or []):
                out.append("\n" if j else ("\n\n" if body else ""))
                f = c["function"]
                out.append(
                    f"<tool_call>\n<function={f['name']}>\n"
                    + "".join(f"<parameter={k}>\n{value(v)}\n</parameter>\n" for k, v in f["arguments"].items())
                    + "</function>\n</tool_call>"
                )
            out.append("<|im_end|>\n")
        elif m["role"] == "tool":
            if messages[i - 1]["role"] != "tool":
                out.append("<|im_start|>user")
            out.append(f"\n<tool_response>\n{m['content'].strip()}\n</tool_response>")
            if i + 1 == len(messages) or messages[i + 1]["role"] != "tool":
                out.append("<|im_end|>\n")
    if generate:
        out.append("<|im_start|>assistant\n<think>\n" + ("" if think else "\n</think>\n\n"))
    return "".join(out)


def main():
    import pathlib
    import random

    import jinja2.sandbox

    import gguf_read
    import mix

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = lambda s: 1 / 0
    template = env.from_string((pathlib.Path(__file__).parent / "chat_template.jinja").read_text())
    tok = tokenizer_of(gguf_read.Gguf(sys.argv[1]).kv)
    r = random.Random(7)
    for _ in range(3000):
        s = mix.make(r)
        a = render(s["messages"], s["tools"], s["think"])
        b = template.render(messages=s["messages"], tools=s["tools"], enable_thinking=s["think"], add_generation_prompt=True)
        assert a == b, (a, b)
        ids = tok.encode(a, add_special_tokens=False).ids
        assert tok.decode(ids, skip_special_tokens=False) == a
    print("render and template agree on 3000 samples; last:", repr(a[-300:]), tok.encode("<think>\n\n</think>\n\n").ids)


if __name__ == "__main__":
    main()
