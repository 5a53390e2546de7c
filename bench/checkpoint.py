#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What keeping prompt state costs: cold prefill at several --checkpoint-every, and short turns with and without files on disk. Alternating rounds, medians.

    bench/checkpoint.py MODEL.gguf [--prompt 2048] [--every 128,256,512,1024,0] [--rounds 3]

0 stands for no checkpoints at all (--cache-ram 0). Standard library only.
"""
import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import agent  # noqa: E402


def server(a, options):
    a.m5_args = options
    return agent.Server("m5", a)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--binary", default=os.path.join(agent.ROOT, "build", "release", "m5-infer"))
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--ctx", type=int, default=8192)
    ap.add_argument("--prompt", type=int, default=2048)
    ap.add_argument("--every", default="128,256,512,1024,0")
    ap.add_argument("--turns", type=int, default=8)
    ap.add_argument("--rounds", type=int, default=3)
    a = ap.parse_args()
    words = agent.Words(3)
    every = [int(x) for x in a.every.split(",")]
    cold = {n: [] for n in every}
    turns = {True: [], False: []}
    for _ in range(a.rounds):
        for n in every:
            s = server(a, "--checkpoint-every %d" % n if n else "--cache-ram 0")
            if words.words_per_token == 1.0:
                words.measure(s)
            s.ask([agent.user(words(64))], 1)
            cold[n].append(s.ask([agent.user(words(a.prompt))], 1)[0])
            s.close()
        for disk in (True, False):
            s = server(a, "" if disk else "--cache-dir=")
            s.ask([agent.user(words(64))], 1)
            t0 = time.monotonic()
            for _ in range(a.turns):
                s.ask([agent.user(words(200))], 100)
            turns[disk].append(time.monotonic() - t0)
            s.close()
    base = statistics.median(cold[every[-1]])
    print("| checkpoint every | prefill of %d tokens, s | against the last row |\n| ---: | ---: | ---: |" % a.prompt)
    for n in every:
        t = statistics.median(cold[n])
        print("| %s | %.3f | %+.1f %% |" % (n or "never", t, 100 * (t / base - 1)))
    with_disk, without = statistics.median(turns[True]), statistics.median(turns[False])
    print("\n%d turns of 200 + 100 tokens: %.2f s with files, %.2f s without (%+.1f %%)" % (a.turns, with_disk, without, 100 * (with_disk / without - 1)))


if __name__ == "__main__":
    main()
