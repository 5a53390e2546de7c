#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the engine's logits with those of the reference implementation.

    tools/compare_logits.py build/m5-infer MODEL[=REFERENCE] [MODEL[=REFERENCE] ...]
    tools/compare_logits.py build/m5-infer tests/vectors/models/*

MODEL is a folder with safetensors or a .gguf file; REFERENCE is the folder that holds what the reference computed for it (expected.safetensors and
expected.json as tools/make_tiny.py writes them): a folder is its own reference unless another follows as MODEL=REFERENCE.

One line a model: max |difference| over all rows of the short prompt and over the last rows of the long one, both with --f32 (1e-3 and 5e-3 are allowed);
whether the greedy tokens are equal; whether chunks of 1, 3 and 64 tokens, one and two threads print the very same numbers, with --f32 and without.
Exit code 1 when a model fails. Standard library only.
"""
import array
import json
import struct
import subprocess
import sys

BOUNDS = (1e-3, 5e-3)
WAYS = (("1", "1"), ("2", "3"), ("1", "64"), ("2", "512"))  # threads, chunk


def read_tensors(path):
    """The f32 and i32 tensors of a safetensors file as flat arrays."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    kinds = {"F32": "f", "I32": "i"}
    return {k: array.array(kinds[v["dtype"]], data[v["data_offsets"][0]:v["data_offsets"][1]]) for k, v in header.items() if k != "__metadata__"}


def debug(binary, command, model, ids, *options):
    r = subprocess.run([binary, "debug", command, "--model", model, "--ids", ",".join(map(str, ids)), *options], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr.strip().splitlines()[-1])
    return r.stdout


def furthest(text, expected):
    """Largest difference between the last rows of a logits document and the expected ones."""
    doc = json.loads(text)
    n = len(expected) // doc["n_vocab"]
    got = [x for row in doc["logits"][-n:] for x in row]
    return max(abs(a - b) if a is not None else float("inf") for a, b in zip(got, expected, strict=True))


def compare(binary, model, reference):
    tensors = read_tensors(reference + "/expected.safetensors")
    with open(reference + "/expected.json", encoding="utf-8") as f:
        tokens = json.load(f)["greedy_tokens"]
    short, long = tensors["ids_short"], tensors["ids_long"]
    full = {f32: debug(binary, "logits", model, long, "--all", *f32) for f32 in (("--f32",), ())}
    d = (furthest(debug(binary, "logits", model, short, "--all", "--f32"), tensors["logits_short"]), furthest(full["--f32",], tensors["logits_long_last8"]))
    greedy = json.loads(debug(binary, "generate", model, short, "-n", str(len(tokens)), "--f32"))["ids"] == tokens
    bits = all(debug(binary, "logits", model, long, "--all", "--threads", t, "--chunk", c, *f32) == full[f32] for t, c in WAYS for f32 in full)
    good = d[0] <= BOUNDS[0] and d[1] <= BOUNDS[1] and greedy and bits
    return good, "%.1e  %.1e  greedy %-9s bits %s" % (*d, "equal" if greedy else "DIFFERENT", "equal" if bits else "DIFFERENT")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    failed = False
    for argument in sys.argv[2:]:
        model, _, reference = argument.partition("=")
        try:
            good, line = compare(sys.argv[1], model.rstrip("/"), (reference or model).rstrip("/"))
        except (OSError, RuntimeError, ValueError, KeyError) as e:
            good, line = False, str(e)
        failed |= not good
        print("%-4s %-44s %s" % ("ok" if good else "FAIL", "/".join(model.rstrip("/").split("/")[-2:]), line), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
