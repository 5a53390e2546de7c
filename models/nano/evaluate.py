# SPDX-License-Identifier: Apache-2.0
"""Judges a served m5-nano by its greedy answers to held-out samples, over the completions API.

    m5-infer serve -m m5-nano.gguf --port 8000 &
    python evaluate.py http://127.0.0.1:8000 TEACHER.gguf heldout.npy [--n 100] [--only tool,json] [--out RESULT.jsonl]

TEACHER.gguf gives the tokenizer (needle texts are made to a length in tokens), heldout.npy (or the whole CHATS.npy) the prose around the needles.
Every sample comes from data.eval_samples with its fixed seed; nothing here was drawn in training.
"""

import argparse
import json
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import chat
import data

KINDS = (
    "plain_tool",
    "plain_parallel",
    "tool",
    "parallel",
    "held_tool",
    "new_tool",
    "new_parallel",
    "new_answer",
    "new_chain",
    "tool_answer",
    "needle2k",
    "needle4k",
    "arithmetic",
    "json",
    "fields",
    "unknown",
)


def ask(url, s, limit=400):
    body = {
        "model": "m5-nano",
        "prompt": chat.render(s["messages"], s["tools"], s["think"]),
        "temperature": 0,
        "max_tokens": limit,
        "stop": ["<|im_end|>"],
    }
    q = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(q, timeout=600) as f:
        return json.loads(f.read())["choices"][0]["text"].split("</think>")[-1].strip()


def calls_in(text, tools):
    """[(name, arguments)] of the XML calls in an answer, values read by the schema's type."""
    kinds = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools}
    out = []
    for name, body in re.findall(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", text, re.S):
        args = {}
        for key, value in re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", body, re.S):
            if kinds.get(name, {}).get(key, {}).get("type", "string") != "string":
                try:
                    value = json.loads(value)
                except ValueError:
                    pass
            args[key] = value
        out.append((name, args))
    return out


def right(kind, s, text):
    if s["kind"] in ("tool_call", "tool_parallel", "tool_chain"):
        return calls_in(text, s["tools"]) == [(n, a) for n, a in s["gold"]]
    if kind.startswith("needle"):
        return s["gold"] in text
    if kind == "arithmetic":
        found = re.findall(r"-?\d+", text)
        return bool(found) and found[-1] == s["gold"]
    if kind in ("json", "fields"):
        try:
            return json.loads(text) == s["gold"]
        except ValueError:
            return False
    if kind == "unknown":
        return "not know" in text or "do not have" in text
    return text == s["target"].split("</think>")[-1].strip()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("url")
    ap.add_argument("teacher")
    ap.add_argument("chats")
    ap.add_argument("--n", type=int, default=100)
    ap.add_argument("--only", default=",".join(KINDS))
    ap.add_argument("--out", default="")
    ap.add_argument("--jobs", type=int, default=4)
    a = ap.parse_args()
    maker = data.Maker(a.teacher, a.chats, 987654321, held_out=True)
    for kind in a.only.split(","):
        n = max(1, a.n // 4) if kind == "needle4k" else a.n
        samples = data.eval_samples(kind, n)
        samples = [data.needle_sample(maker, kind, *s) if isinstance(s, tuple) else s for s in samples]
        begin = time.time()
        with ThreadPoolExecutor(a.jobs) as pool:
            replies = list(pool.map(lambda s: ask(a.url, s), samples))
        good = [right(kind, s, m) for s, m in zip(samples, replies)]
        row = {"task": kind, "n": n, "right": round(sum(good) / n, 4), "seconds": round(time.time() - begin, 1)}
        print(json.dumps(row), flush=True)
        if a.out:
            with open(a.out, "a") as f:
                f.write(json.dumps(row) + "\n")
        for s, m, g in zip(samples, replies, good):
            if not g:
                print(
                    "  missed:",
                    json.dumps(s["messages"][-1]["content"][-200:]),
                    "| wanted",
                    json.dumps(s["gold"])[:200],
                    "| got",
                    json.dumps(m)[:300],
                    flush=True,
                )


if __name__ == "__main__":
    main()
