#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time from process start to the first token, and peak resident memory, with the model file in the page cache.

    bench/start.py MODEL.gguf [MODEL.gguf ...] [--threads 2] [--rounds 5]

Each round is a new process that answers one short prompt; the clock stops at the first byte of text. The peak is compared with the bytes of the file, of KV for the
context and of one recurrent row. Standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONTEXT = 4096


def warm(path):
    with open(path, "rb", buffering=0) as f:
        while f.read(16 << 20):
            pass


def start(a, model):
    begin = time.perf_counter()
    p = subprocess.Popen([a.binary, "run", "-m", model, "-t", str(a.threads), "-c", str(CONTEXT), "--raw", "--temp", "0", "-n", "4", "--quiet", "Once upon a time"],
                         stdout=subprocess.PIPE)
    p.stdout.read(1)
    first = time.perf_counter() - begin
    p.stdout.read()
    p.stdout.close()
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise SystemExit("m5-infer run failed on %s" % model)
    return first, used.ru_maxrss * 1024


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+")
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "release", "m5-infer"))
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=5)
    a = ap.parse_args()
    print("| file | first token s (median) | best | peak MB | file + KV + state MB | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model in a.models:
        memory = json.loads(subprocess.run([a.binary, "inspect", model, "--json"], capture_output=True, text=True, check=True).stdout)["memory"]
        need = os.path.getsize(model) + CONTEXT * memory["kv_bytes_per_token"] + memory["row_bytes"]
        warm(model)
        times, peaks = zip(*(start(a, model) for _ in range(a.rounds)))
        peak = statistics.median(peaks)
        print("| %s | %.2f | %.2f | %.0f | %.0f | %.2f |" % (os.path.basename(model), statistics.median(times), min(times), peak / 1e6, need / 1e6, peak / need), flush=True)


if __name__ == "__main__":
    main()
