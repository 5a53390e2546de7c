# SPDX-License-Identifier: Apache-2.0
"""Reads the teacher: a minimal GGUF v3 reader (numpy only) for a `llama` file of F32, Q4_1, Q8_0 and Q4_0 tensors.

Owns: container parsing, de-quantisation, undoing the q/k row permutation. Not here: writing GGUF (export_gguf.py).
"""

import struct

import numpy as np

_FIXED = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# ggml type id -> (elements per block, bytes per block)
_BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}


class Gguf:
    def __init__(self, path):
        self.raw = np.memmap(path, dtype=np.uint8, mode="r")
        self.buf = memoryview(self.raw)
        self.pos = 0
        if bytes(self.buf[:4]) != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file")
        self.pos = 4
        self._num("<I")
        n_tensors, n_kv = self._num("<Q"), self._num("<Q")
        self.kv = {}
        for _ in range(n_kv):
            key = self._str()
            self.kv[key] = self._value(self._num("<I"))
        self.infos = {}
        for _ in range(n_tensors):
            name = self._str()
            dims = [self._num("<Q") for _ in range(self._num("<I"))]
            self.infos[name] = (dims, self._num("<I"), self._num("<Q"))
        align = self.kv.get("general.alignment", 32)
        self.base = (self.pos + align - 1) // align * align

    def _num(self, fmt):
        (v,) = struct.unpack_from(fmt, self.buf, self.pos)
        self.pos += struct.calcsize(fmt)
        return v

    def _str(self):
        n = self._num("<Q")
        s = bytes(self.buf[self.pos : self.pos + n]).decode("utf-8")
        self.pos += n
        return s

    def _value(self, kind):
        if kind == 8:
            return self._str()
        if kind == 9:
            item, n = self._num("<I"), self._num("<Q")
            return [self._value(item) for _ in range(n)]
        return self._num(_FIXED[kind])

    def bytes_of(self, name):
        dims, kind, off = self.infos[name]
        per, size = _BLOCK[kind]
        return np.asarray(self.raw[self.base + off : self.base + off + int(np.prod(dims)) // per * size])

    def tensor(self, name):
        """The named tensor as f32, rows first."""
        dims, kind, _ = self.infos[name]
        size = _BLOCK[kind][1]
        b = self.bytes_of(name)
        if kind == 0:
            out = b.view(np.float32)
        elif kind == 1:
            out = b.view(np.float16).astype(np.float32)
        else:
            b = b.reshape(-1, size)
            d = b[:, 0:2].copy().view(np.float16).astype(np.float32)
            if kind == 8:
                out = b[:, 2:].view(np.int8).astype(np.float32) * d
            else:
                qs = b[:, size - 16 :]
                q = np.concatenate([qs & 15, qs >> 4], axis=1).astype(np.float32)
                out = (q - 8) * d if kind == 2 else q * d + b[:, 2:4].copy().view(np.float16).astype(np.float32)
        return out.reshape(dims[::-1]).astype(np.float32)


def unpermute(w, n_head):
    """Rows from interleaved rotary pairs (as `llama` GGUF files store q and k) back to half-split ones."""
    hd = w.shape[0] // n_head
    return w.reshape(n_head, hd // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def load_teacher(path):
    """Teacher weights as {name: f32 array} with half-split rotary order, and the tokenizer fields."""
    g = Gguf(path)
    out = {"embed": g.tensor("token_embd.weight"), "norm": g.tensor("output_norm.weight")}
    n_head, n_kv = g.kv["llama.attention.head_count"], g.kv["llama.attention.head_count_kv"]
    for i in range(g.kv["llama.block_count"]):
        b = f"blk.{i}."
        out[f"{i}.norm1"], out[f"{i}.norm2"] = g.tensor(b + "attn_norm.weight"), g.tensor(b + "ffn_norm.weight")
        out[f"{i}.q"] = unpermute(g.tensor(b + "attn_q.weight"), n_head)
        out[f"{i}.k"] = unpermute(g.tensor(b + "attn_k.weight"), n_kv)
        out[f"{i}.v"], out[f"{i}.o"] = g.tensor(b + "attn_v.weight"), g.tensor(b + "attn_output.weight")
        for s in ("gate", "up", "down"):
            out[f"{i}.{s}"] = g.tensor(b + f"ffn_{s}.weight")
    return out, g.kv
