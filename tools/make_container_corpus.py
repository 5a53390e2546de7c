#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of tests/fuzz/corpus/gguf and tests/fuzz/corpus/safetensors: small valid files from which the fuzzers start.

    tools/make_container_corpus.py tests/fuzz/corpus

Needs gguf and numpy.
"""
import json
import struct
import sys

import gguf
import numpy as np


def gguf_file(path, fill):
    w = gguf.GGUFWriter(path, "llama")
    fill(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def every_kind(w):
    w.add_name("small")
    w.add_block_count(1)
    w.add_array("x.ints", [1, -2, 3])
    w.add_array("x.floats", [0.5, 1.5])
    w.add_array("x.bools", [True, False])
    w.add_bool("b", True)
    w.add_int64("i", -5)
    w.add_float64("f", 2.5)
    w.add_uint8("u", 7)
    w.add_token_list(["a", "b", "", "\u00e9"])
    w.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    kind = gguf.GGMLQuantizationType.Q8_0
    w.add_tensor("q.weight", gguf.quants.quantize(np.ones((2, 64), np.float32), kind), raw_dtype=kind)
    w.add_tensor("n", np.ones(4, np.float16))


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def safetensors_file(path, header, n_data):
    header = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + bytes(range(n_data)))


def main():
    g, s = f"{sys.argv[1]}/gguf", f"{sys.argv[1]}/safetensors"
    gguf_file(f"{g}/small.gguf", every_kind)
    gguf_file(f"{g}/meta_only.gguf", lambda w: w.add_name("meta"))
    with open(f"{g}/header_only.gguf", "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with open(f"{g}/aligned_64.gguf", "wb") as f:  # alignment 64, a scalar and a type that cannot be read
        head = b"GGUF" + struct.pack("<IQQ", 3, 2, 1) + text("general.alignment") + struct.pack("<II", 4, 64)
        head += text("t") + struct.pack("<IQIQ", 1, 4, 0, 0) + text("iq2") + struct.pack("<IQIQ", 1, 256, 16, 0)
        f.write(head + bytes(-len(head) % 64) + bytes(64))

    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    safetensors_file(f"{s}/small.safetensors", {
        "__metadata__": {"format": "pt"}, "w": entry("BF16", [2, 3], 0, 12), "s": entry("F32", [], 12, 16), "f8": entry("F8_E4M3", [4], 16, 20),
        "none": entry("I64", [3, 0], 20, 20)}, 20)
    safetensors_file(f"{s}/empty.safetensors", {}, 0)
    safetensors_file(f"{s}/names.safetensors", b'{"caf\\u00e9":{"dtype":"U32","shape":[1,1,1,1,1,1,1,2],"data_offsets":[0,8]},'
                     b'"\\ud83d\\ude00":{"data_offsets":[8,9],"shape":[1],"dtype":"BOOL"}}   ', 9)


if __name__ == "__main__":
    main()
