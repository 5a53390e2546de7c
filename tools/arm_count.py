#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the Arm instructions that one weight tile (16 rows) costs, by running it under qemu's user emulation one instruction at a time.

Each tile is run once and twice; the difference is one product, exactly. Counts are no times: a core may do several of one kind in a cycle and few of
another.

    tools/arm_count.py [--build build/aarch64] [--n-in 1024] [--tok 16] TYPE...
"""
import argparse, collections, os, re, subprocess, tempfile

TRACE = re.compile(r"^Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/([0-9a-f]+)/")
CODE = re.compile(r"^0x([0-9a-f]+):\s+([0-9a-f]{8})\s+(\.?[a-z][a-z0-9.]*)")
# qemu's disassembler may be older than these two: mask and bits of the instruction word.
BY_WORD = [("sdot", 0xFFC0F400, 0x4F80E000), ("smmla", 0xFFE0FC00, 0x4E80A400)]
LEVELS = ["neon-dotprod", "neon-i8mm"]
KINDS = [("sdot", {"sdot"}), ("smmla", {"smmla"}), ("float", {"fmla", "fmul", "scvtf"}), ("shuffle", {"zip1", "zip2", "trn1", "trn2", "dup"}),
         ("load, store", {"ldr", "ldp", "ldur", "ld1", "ld1r", "str", "stp", "stur", "st1"})]


def run(build, sysroot, args, times, log):
    """How often each address ran, and what stands there."""
    command = ["qemu-aarch64", "-L", sysroot, "-singlestep", "-d", "nochain,exec,in_asm", "-D", log, os.path.join(build, "tests/checkkern"), "--tile", *args, str(times)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ran, names = collections.Counter(), {}
    for line in open(log, errors="replace"):
        if m := TRACE.match(line):
            ran[int(m[1], 16)] += 1
        elif m := CODE.match(line):
            names[int(m[1], 16)] = next((n for n, mask, bits in BY_WORD if int(m[2], 16) & mask == bits), m[3])
    return ran, names


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build/aarch64")
    p.add_argument("--sysroot", default="build/sysroot-arm64")
    p.add_argument("--n-in", type=int, default=1024)
    p.add_argument("--tok", type=int, default=16)
    p.add_argument("types", nargs="+")
    a = p.parse_args()
    print(f"one tile, 16 rows x {a.n_in} columns, {a.tok} tokens\n| type | level | instructions | " + " | ".join(n for n, _ in KINDS) + " | rest |")
    for name in a.types:
        for level in LEVELS:
            with tempfile.TemporaryDirectory() as tmp:
                args = [name, level, str(a.n_in), str(a.tok)]
                once, names = run(a.build, a.sysroot, args, 1, f"{tmp}/1")
                twice, more = run(a.build, a.sysroot, args, 2, f"{tmp}/2")
            names.update(more)
            count = collections.Counter()
            for pc, n in (twice - once).items():
                count[names[pc]] += n
            parts = [sum(count[m] for m in which) for _, which in KINDS]
            total = sum(count.values())
            print(f"| {name} | {level} | {total} | " + " | ".join(map(str, parts)) + f" | {total - sum(parts)} |", flush=True)


if __name__ == "__main__":
    main()
