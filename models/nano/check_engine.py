# SPDX-License-Identifier: Apache-2.0
"""Compares m5-infer with the Hugging Face model: logits of prompts, and 200 greedy tokens after each.

    python export.py STATE.npz TEACHER.gguf hf DIR --dtype bf16
    python check_engine.py path/to/m5-infer DIR [--gguf m5-nano.gguf --exact DIR_F32]

Greedy text is compared without generating twice: the engine's continuation is right if it is the argmax of the other model at
every position, and where it is not, the margin between the two tokens is printed. Both compute in f32.
"""

import argparse
import json
import random
import subprocess

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers import PreTrainedTokenizerFast

import chat
import mix

FIXED = (
    "Hello",
    "Who are you?",
    "Write a short poem about the sea.",
    "Give me a list of three fruits.",
    "Explain why the sky is blue.",
    "Write a short story about a fox.",
    "What is a black hole?",
    "Give me five tips about saving money.",
    "Write a letter to a friend about hiking.",
    "Why is sleep important?",
)


def engine(binary, model, stage, ids, *extra):
    cmd = [binary, "debug", stage, "-m", model, "--f32", "--ids", ",".join(map(str, ids)), *extra]
    return json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("binary")
    ap.add_argument("folder")
    ap.add_argument("--weights", help="what the engine reads (default: the folder)")
    ap.add_argument("--n", type=int, default=20)
    ap.add_argument("--length", type=int, default=200)
    a = ap.parse_args()
    tok = PreTrainedTokenizerFast(tokenizer_file=a.folder + "/tokenizer.json")
    hf = AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.float32, attn_implementation="eager").eval()
    r = random.Random(11)
    prompts = [chat.render([{"role": "user", "content": q}]) for q in FIXED]
    while len(prompts) < a.n:
        s = mix.make(r)
        text = chat.render(s["messages"], s["tools"], s["think"])
        if len(text) < 2400:
            prompts.append(text)
    worst, equal = 0.0, 0
    for i, p in enumerate(prompts[: a.n]):
        ids = tok.encode(p, add_special_tokens=False)
        got = engine(a.binary, a.weights or a.folder, "generate", ids, "-n", str(a.length))["ids"][-a.length :]
        with torch.no_grad():
            z = hf(torch.tensor([ids + got])).logits[0].double().numpy()
        if i < 5:
            mine = np.array(engine(a.binary, a.weights or a.folder, "logits", ids, "--all")["logits"])
            worst = max(worst, float(np.abs(mine - z[: len(ids)]).max()))
        here = z[len(ids) - 1 : -1]
        off = [j for j in range(a.length) if here[j].argmax() != got[j]]
        equal += not off
        margin = max((float(here[j].max() - here[j][got[j]]) for j in off), default=0.0)
        print(json.dumps({"prompt": i, "tokens": len(ids), "differ": off[:5], "margin": margin}), flush=True)
    print(json.dumps({"logits_max_abs": worst, "equal_texts": equal, "of": min(a.n, len(prompts))}))


if __name__ == "__main__":
    main()
