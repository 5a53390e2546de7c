#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What drafts bring on real text: the same greedy requests to one m5-infer server with drafts off and on, by turns, the answers compared word for word.

    bench/spec.py MODEL.gguf [-t 2] [--modes off,auto,ngram,mtp] [--reps 2] [--peer /path/to/llama-server --peer-args "--spec-type ngram-simple"]

Scenes: edit (a file of 200 lines is written again with a name changed), chat (ten questions), tool (calls with long schemas in the prompt), noise (hostile: words by
chance at temperature 1.5). With --peer the same prompts go to llama-server without and with --peer-args.
"""
import argparse
import json
import os
import random
import subprocess
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QUESTIONS = ("Hello", "Who are you?", "Write a short poem about the sea.", "Give me a list of three fruits.", "Explain why the sky is blue.",
             "Write a short story about a fox.", "What is a black hole?", "Give me five tips about saving money.",
             "Write a letter to a friend about hiking.", "Why is sleep important?")


def code_file(n):
    r = random.Random(7)
    nouns = "socket buffer cache page token parser writer reader queue timer thread worker store index row batch".split()
    verbs = "open close read write push drop check count merge split start stop send wait".split()
    out = []
    while len(out) < n:
        v, a, b = r.choice(verbs), r.choice(nouns), r.choice(nouns)
        out += [f"def {v}_{a}(config, {b}):", f"    limit = config.max_{a}_{r.randint(1, 99)}", f"    if {b}.size > limit:",
                f'        raise ValueError("{a} too large for {v}: %d" % {b}.size)', f"    return config.backend.{v}({b}, limit)", ""]
    return out[:n]


def chat(text, system=None):
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{head}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def scenes():
    lines = code_file(200)
    edited = [x.replace("config", "settings") for x in lines]
    edit = ("\n".join(lines) + "\n\n# The same file again; config is now called settings:\n\n" + "\n".join(edited[:30]) + "\n", 512, {"temperature": 0})
    tools = json.dumps([{"name": f"{v}_file", "parameters": {"path": "string", "encoding": "string", "maximum_number_of_lines": "integer"}}
                        for v in ("read", "write", "append", "delete", "search", "compare")], indent=1)
    calls = [f'Call {v}_file for /home/user/project/src/main_{i}.c as JSON with name and parameters: '
             for i, v in enumerate(("read", "write", "append", "delete", "search"))]
    r = random.Random(3)
    words = [w for x in lines for w in x.split()] + list("abcdefghijklmnop")
    noise = [(" ".join(r.choice(words) for _ in range(60)), 160, {"temperature": 1.5, "seed": i + 1}) for i in range(4)]
    return {"edit": [edit], "chat": [(chat(q), 128, {"temperature": 0}) for q in QUESTIONS],
            "tool": [(chat(c, "You have these tools:\n" + tools), 96, {"temperature": 0}) for c in calls], "noise": noise}


class Server:
    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=2).read()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the server did not start: " + " ".join(command))

    def ask(self, prompt, n, extra):
        body = {"prompt": prompt, "max_tokens": n, "cache_prompt": True, "ignore_eos": True, **extra}
        q = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.loads(urllib.request.urlopen(q, timeout=900).read())

    def stop(self):
        self.p.terminate()
        self.p.wait()


def measure(server, jobs, modes, reps):
    """Best time over the repetitions of every request, the modes by turns; for each mode (tokens, ms, drafted, right, same)."""
    got = [[0, 0.0, 0, 0, True] for _ in modes]
    for prompt, limit, extra in jobs:
        best, text = [None] * len(modes), None
        for _ in range(reps):
            for i, mode in enumerate(modes):
                a = server.ask(prompt, limit, {**extra, **mode})
                t = a["timings"]
                if best[i] is None or t["predicted_ms"] < best[i]["predicted_ms"]:
                    best[i] = t
                text = text or a["choices"][0]["text"]
                got[i][4] &= text == a["choices"][0]["text"]
        for g, t in zip(got, best):
            g[0] += t["predicted_n"]
            g[1] += t["predicted_ms"]
            g[2] += t.get("draft_n", 0)
            g[3] += t.get("draft_n_accepted", 0)
    return got


def show(scene, name, got, plain):
    n, ms, drafted, right, same = got
    speed = n * 1000 / ms
    plain.setdefault(scene, speed)
    share = f"{100 * right / drafted:.0f} % of {drafted}" if drafted else ""
    print(f"{scene:8} {name:18} {speed:10.1f} {speed / plain[scene]:8.2f} x  {share:16} {'' if same else 'OTHER TEXT'}", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("-t", "--threads", type=int, default=2)
    ap.add_argument("--modes", default="off,auto,ngram,mtp")
    ap.add_argument("--scenes", default="edit,chat,tool,noise")
    ap.add_argument("--reps", type=int, default=2)
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "m5-infer"))
    ap.add_argument("--m5-args", default="")
    ap.add_argument("--peer")
    ap.add_argument("--peer-args", default="--spec-type ngram-simple")
    a = ap.parse_args()
    port = random.randint(20000, 40000)
    plain = {}
    print(f"{'scene':8} {'drafts':18} {'tokens/s':>10} {'':>10}  right")
    s = Server([a.binary, "serve", "-m", a.model, "-t", str(a.threads), "--port", str(port), "--parallel", "1", "--ctx", "8192", "--cache-dir", "", "--quiet",
                *a.m5_args.split()], port)
    try:
        for scene in a.scenes.split(","):
            modes = a.modes.split(",")
            for mode, got in zip(modes, measure(s, scenes()[scene], [{"speculative": m} for m in modes], a.reps)):
                show(scene, mode, got, plain)
    finally:
        s.stop()
    for i, extra in enumerate((["", a.peer_args] if a.peer else [])):
        s = Server([a.peer, "-m", a.model, "-t", str(a.threads), "--port", str(port), "-np", "1", "-c", "8192", *extra.split()], port)
        try:
            for scene in a.scenes.split(","):
                show(scene, "llama.cpp " + (extra or "plain"), measure(s, scenes()[scene], [{}], a.reps)[0], plain)
        finally:
            s.stop()


if __name__ == "__main__":
    main()
