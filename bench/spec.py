#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What drafts bring on real text: the same greedy requests to one m5-infer server with drafts off and on, by turns, the answers compared word for word.

    bench/spec.py MODEL.gguf [-t 2] [--modes off,auto,ngram,mtp] [--reps 2] [--streams 1] [--peer /path/to/llama-server --peer-args "--spec-type ngram-simple"]

Scenes: edit (a file of 200 lines is written again with a name changed), chat (ten questions), tool (calls with long schemas in the prompt), noise (hostile: words by
chance at temperature 1.5). Speeds are compared with the first mode: by the least time of each request over the repetitions ("best"; with several streams of a
repetition), and as the median over the repetitions. With --peer the same prompts go to llama-server without and with --peer-args.
"""
import argparse
import concurrent.futures
import json
import os
import random
import statistics
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


def measure(server, jobs, modes, reps, streams):
    """The modes by turns in every repetition; for each mode (tokens, least ms of a request, ms of each repetition, drafted, right, same). With several streams the ms
    of a repetition are those on the wall."""
    got = [{"n": 0, "best": [float("inf")] * len(jobs), "ms": [], "drafted": 0, "right": 0, "same": True} for _ in modes]
    text = [None] * len(jobs)
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        for _ in range(reps):
            for g, mode in zip(got, modes):
                t0 = time.time()
                answers = list(pool.map(lambda job: server.ask(job[0], job[1], {**job[2], **mode}), jobs))
                times = [a["timings"] for a in answers]
                g["ms"].append((time.time() - t0) * 1000 if streams > 1 else sum(t["predicted_ms"] for t in times))
                g["n"] = sum(t["predicted_n"] for t in times)
                g["drafted"] = sum(t.get("draft_n", 0) for t in times)
                g["right"] = sum(t.get("draft_n_accepted", 0) for t in times)
                for i, a in enumerate(answers):
                    g["best"][i] = min(g["best"][i], times[i]["predicted_ms"])
                    text[i] = text[i] or a["choices"][0]["text"]
                    g["same"] &= text[i] == a["choices"][0]["text"]
    return got


def show(scene, name, g, first, streams):
    """first: of each scene the mode that the others are compared with."""
    base = first.setdefault(scene, g)
    ms = min(g["ms"]) if streams > 1 else sum(g["best"])
    best = (min(base["ms"]) if streams > 1 else sum(base["best"])) / base["n"] / (ms / g["n"])
    median = statistics.median(b / base["n"] / (m / g["n"]) for b, m in zip(base["ms"], g["ms"]))
    share = f"{100 * g['right'] / g['drafted']:.0f} % of {g['drafted']}" if g["drafted"] else ""
    print(f"{scene:8} {name:18} {g['n'] * 1000 / ms:10.1f} {best:8.2f} x {median:8.2f} x  {share:16} {'' if g['same'] else 'OTHER TEXT'}", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("-t", "--threads", type=int, default=2)
    ap.add_argument("--modes", default="off,auto,ngram,mtp")
    ap.add_argument("--scenes", default="edit,chat,tool,noise")
    ap.add_argument("--reps", type=int, default=2)
    ap.add_argument("--streams", type=int, default=1, help="requests at a time")
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "m5-infer"))
    ap.add_argument("--m5-args", default="")
    ap.add_argument("--peer")
    ap.add_argument("--peer-args", default="--spec-type ngram-simple")
    a = ap.parse_args()
    port = random.randint(20000, 40000)
    first = {}
    print(f"{'scene':8} {'drafts':18} {'tokens/s':>10} {'best':>10} {'median':>10}  right")
    s = Server([a.binary, "serve", "-m", a.model, "-t", str(a.threads), "--port", str(port), "--parallel", str(a.streams), "--ctx", "8192", "--cache-dir", "", "--quiet",
                *a.m5_args.split()], port)
    try:
        for scene in a.scenes.split(","):
            modes = a.modes.split(",")
            for mode, got in zip(modes, measure(s, scenes()[scene], [{"speculative": m} for m in modes], a.reps, a.streams)):
                show(scene, mode, got, first, a.streams)
    finally:
        s.stop()
    for i, extra in enumerate((["", a.peer_args] if a.peer else [])):
        s = Server([a.peer, "-m", a.model, "-t", str(a.threads), "--port", str(port), "-np", str(a.streams), "-c", "8192", *extra.split()], port)
        try:
            for scene in a.scenes.split(","):
                show(scene, "llama.cpp " + (extra or "plain"), measure(s, scenes()[scene], [{}], a.reps, a.streams)[0], first, a.streams)
        finally:
            s.stop()


if __name__ == "__main__":
    main()
