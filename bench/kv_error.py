#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the type of the KV cache changes: logits against those with keys and values in f32, on held-out text.

    bench/kv_error.py models/nano/m5-nano.gguf [--ids models/nano/heldout.npy] [--rows 4] [--length 256] [--kv bf16,f16,i16,q8_0] [--binary build/m5-infer]

Each row of --ids is one text. Everything but the cache computes as with --f32, so that nothing else differs. One line a type: the largest difference of a logit,
the mean and the largest Kullback-Leibler divergence of the next-token distribution, and how often the likeliest token is another one. Needs numpy.
"""
import argparse
import json
import os
import subprocess
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def logits(a, ids, kv):
    r = subprocess.run([a.binary, "debug", "logits", "-m", a.model, "--f32", "--all", "--kv", kv, "--ids", ",".join(map(str, ids))], capture_output=True, text=True)
    if r.returncode:
        sys.exit(r.stderr)
    return np.array(json.loads(r.stdout)["logits"], dtype=np.float64)


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--ids", default=os.path.join(ROOT, "models", "nano", "heldout.npy"))
    ap.add_argument("--rows", type=int, default=4)
    ap.add_argument("--length", type=int, default=256)
    ap.add_argument("--kv", type=lambda s: s.split(","), default=["bf16", "f16", "i16", "q8_0"])
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "release", "m5-infer"))
    a = ap.parse_args()
    texts = np.load(a.ids)[:a.rows, :a.length].tolist()
    diff, kl, other = ({k: [] for k in a.kv} for _ in range(3))
    for ids in texts:
        want = logits(a, ids, "f32")
        lw = log_softmax(want)
        for k in a.kv:
            got = logits(a, ids, k)
            diff[k].append(np.abs(got - want).max(axis=1))
            kl[k].append((np.exp(lw) * (lw - log_softmax(got))).sum(axis=1))
            other[k].append(got.argmax(axis=1) != want.argmax(axis=1))
    print("| KV | max difference | mean KL | max KL | other token |\n| --- | ---: | ---: | ---: | ---: |")
    for k in a.kv:
        d, e, o = (np.concatenate(x[k]) for x in (diff, kl, other))
        print("| %s | %.1e | %.1e | %.1e | %.2f %% |" % (k, d.max(), e.mean(), e.max(), 100 * o.mean()))


if __name__ == "__main__":
    main()
