#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/quant.vec: blocks of every weight format and what foreign decoders make of them.

    tools/vectors_quant.py > tests/vectors/quant.vec

GGUF types: random bytes, then the awkward cases (negative and subnormal scales, largest codes and scale codes, zero), decoded by the PyPI package gguf.
MLX types: random codes with scales of either sign, decoded by mlx in f32. Lines, all numbers as little-endian hex:
    gguf <type> <bytes> <f32 bits>
    mlx <bits> <group> <scale type> <codes> <scales> <biases> <f32 bits>
Needs gguf, mlx and numpy.
"""
import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as T

GGUF_TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}  # where a block keeps its half-precision scales


def set_half(block, at, value):
    block[at:at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def gguf_blocks(rng, name, size):
    """Five or more blocks as rows of bytes; scales are finite, everything else is random."""
    if name in ("F32", "F16", "BF16"):
        n, width = 64, {"F32": 4, "F16": 2, "BF16": 2}[name]
        raw = rng.integers(0, 256, (n, width), dtype=np.uint8)
        top = {"F32": (3, 2), "F16": (1, None), "BF16": (1, 0)}[name][0]
        raw[:, top] &= 0xBB if name == "F16" else 0xBF  # no infinity, no NaN
        raw[:4] = 0
        raw[1, 0] = raw[2, 0] = 1  # smallest subnormal
        raw[2, top] = raw[3, top] = 0x80
        return raw
    raw = rng.integers(0, 256, (5, size), dtype=np.uint8)
    raw[3] = 0xFF
    raw[4] = 0
    cases = [0.0123, -0.75, 3e-7, -6e-8, 65504.0] if name != "MXFP4" else None
    for i in range(5):
        for k, at in enumerate(HALVES.get(name, [])):
            set_half(raw[i], at, cases[(i + 2 * k) % 5] * (1.5 if k and cases[(i + 2 * k) % 5] < 1000 else 1))
    if name == "MXFP4":
        raw[:, 0] = [127, 0, 1, 2, 252]
    return raw


def hexed(a):
    return np.ascontiguousarray(a).tobytes().hex()


def main():
    rng = np.random.default_rng(20261129)
    print("# made by tools/vectors_quant.py with gguf and mlx")
    for name in GGUF_TYPES:
        _, size = gguf.GGML_QUANT_SIZES[T[name]]
        raw = gguf_blocks(rng, name, size)
        with np.errstate(over="ignore"):
            out = gguf.quants.dequantize(raw.reshape(-1) if size <= 4 else raw, T[name]).astype("<f4")
        assert not np.isnan(out).any(), name
        print("gguf", name, hexed(raw), hexed(out))
    for bits in (2, 3, 4, 5, 6, 8):
        for group, kind in ((32, "F32"), (64, "BF16"), (128, "F16")):
            n_in = 128
            codes = rng.integers(0, 2**32, (1, n_in * bits // 32), dtype=np.uint32)
            kinds = {"F32": (mx.float32, mx.uint32), "F16": (mx.float16, mx.uint16), "BF16": (mx.bfloat16, mx.uint16)}[kind]
            scales, biases = (mx.array(rng.standard_normal((1, n_in // group)).astype(np.float32)).astype(kinds[0]) for _ in range(2))
            out = mx.dequantize(mx.array(codes), scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
            print("mlx", bits, group, kind, hexed(codes), hexed(np.array(scales.view(kinds[1]))), hexed(np.array(biases.view(kinds[1]))),
                  hexed(np.array(out).astype("<f4")))


if __name__ == "__main__":
    main()
