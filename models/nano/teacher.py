# SPDX-License-Identifier: Apache-2.0
"""The teacher (SmolLM2-135M-Instruct) lets itself be heard: batched sampling of whole chats in lockstep on one GPU.

    python teacher.py TEACHER.gguf OUT_DIR --rounds 10

Every row starts with the teacher's own system text; the first user turn is a prompt made here or sampled from the teacher,
every later turn is sampled, so a row is a chat of constant length. Output: OUT_DIR/chats.npy, uint16 [rows, length].
"""

import argparse
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import chat
import gguf_read

HEADS, KV_HEADS, HD, EPS, THETA = 9, 3, 64, 1e-5, 1e5
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
LENGTH = 640

SUBJECTS = (
    "the sea|dogs|cats|gardening|cooking pasta|coffee|tea|chess|football|space travel|the moon|the sun|black holes|volcanoes|rivers|mountains|trees|bees|birds|"
    "dinosaurs|robots|computers|the internet|programming|Python|databases|mathematics|algebra|geometry|statistics|physics|gravity|light|sound|chemistry|water|"
    "oxygen|metals|biology|cells|DNA|the heart|the brain|sleep|dreams|exercise|running|yoga|healthy food|breakfast|bread|cheese|chocolate|fruit|vegetables|"
    "history|ancient Rome|ancient Egypt|the Middle Ages|castles|pirates|trains|airplanes|cars|bicycles|ships|bridges|architecture|painting|music|jazz|the piano|"
    "the guitar|dancing|theater|movies|photography|poetry|novels|libraries|books|writing|grammar|learning a language|school|exams|teachers|friendship|family|"
    "kindness|honesty|courage|patience|happiness|stress|time management|work|job interviews|money|saving money|banks|trade|shops|cities|villages|Paris|London|"
    "Japan|Africa|Europe|America|deserts|forests|islands|lakes|the weather|rain|snow|wind|storms|climate|recycling|energy|electricity|batteries|magnets|clocks|"
    "maps|travel|hotels|camping|hiking|swimming|fishing|horses|cows|sheep|elephants|lions|whales|sharks|insects|spiders|snakes|flowers|roses|grass|farms|"
    "holidays|birthdays|weddings|gifts|toys|games|puzzles|riddles|jokes|magic|fairy tales|dragons|knights|kings and queens|laws|voting|cities of the future|"
    "artificial intelligence|telescopes|stars|planets|Mars|oceans|coral reefs|earthquakes|medicine|doctors|vaccines|teeth|eyes|muscles|vitamins|salt|sugar"
).split("|")
FRAMES = (
    "What is {s}?|Tell me about {s}.|Explain {s} in simple words.|Why is {s} important?|Write a short story about {s}.|Write a poem about {s}.|Give me three facts about {s}.|"
    "How can I learn more about {s}?|Write a paragraph about {s}.|What should a beginner know about {s}?|Give me five tips about {s}.|Write a short letter to a friend about {s}.|"
    "Summarize what you know about {s} in two sentences.|List the advantages and disadvantages of {s}.|Write a dialogue between two friends about {s}.|"
    "Describe {s} to a child.|What are common mistakes people make with {s}?|Can you help me write an email about {s}?|What is the history of {s}?|Write three questions about {s}.|"
    "I am interested in {s}. What can you tell me?|Write an outline for an essay on {s}.|Rewrite this sentence: I like {s} very much.|Do you like {s}?|"
    "Write a title for an article about {s}.|Compare {s} and {t}.|What do {s} and {t} have in common?|Write a short story with {s} and {t} in it.|"
    "Write a list of words related to {s}.|How does {s} affect our lives?|Give me an interesting idea about {s}.|Write a haiku about {s}.|Answer briefly: what is {s}?"
).split("|")


def rms(x, w):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * w


def rotate(x, cos, sin):
    a, b = x[..., : HD // 2], x[..., HD // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def inv_freq(device):
    return THETA ** (-torch.arange(0, HD, 2, device=device, dtype=torch.float32) / HD)


def to_torch(w, device, dtype):
    return {k: torch.from_numpy(np.ascontiguousarray(v)).to(device=device, dtype=dtype) for k, v in w.items()}


class Lockstep:
    """One token for all rows per step; a CUDA graph for each span of the cache length."""

    def __init__(self, w, rows, length, span=128):
        self.w, self.rows, self.length, self.span = w, rows, length, span
        dev, dt = w["embed"].device, w["embed"].dtype
        self.dev = dev
        self.n = sum(1 for k in w if k.endswith(".norm1"))
        self.k = torch.zeros(self.n, rows, KV_HEADS, length, HD, device=dev, dtype=dt)
        self.v = torch.zeros_like(self.k)
        self.t = torch.zeros(1, dtype=torch.long, device=dev)
        self.cur = torch.zeros(rows, dtype=torch.long, device=dev)
        self.out = torch.zeros(rows, length, dtype=torch.long, device=dev)
        self.forced = torch.full((rows, length + 8), -1, dtype=torch.long, device=dev)
        self.role = torch.zeros(rows, dtype=torch.long, device=dev)  # 0: the user speaks, 1: the assistant
        self.heat = torch.ones(rows, 2, device=dev)
        self.floor = torch.full((rows, 2), 0.04, device=dev)
        self.glue = torch.full((2, 5), -1, dtype=torch.long, device=dev)  # tokens after the end of a turn of that role
        ang = torch.arange(length, device=dev).float()[:, None] * inv_freq(dev)[None]
        self.cos, self.sin = ang.cos().to(dt), ang.sin().to(dt)
        self.graphs = {}

    def step(self, upto):
        w, B = self.w, self.rows
        x = w["embed"][self.cur]
        cos, sin = self.cos[self.t], self.sin[self.t]
        bias = torch.where(torch.arange(upto, device=self.dev) <= self.t, 0.0, float("-inf"))
        for i in range(self.n):
            h = rms(x, w[f"{i}.norm1"])
            q = rotate((h @ w[f"{i}.q"].T).view(B, HEADS, HD), cos, sin)
            k = rotate((h @ w[f"{i}.k"].T).view(B, KV_HEADS, 1, HD), cos, sin)
            v = (h @ w[f"{i}.v"].T).view(B, KV_HEADS, 1, HD)
            self.k[i].index_copy_(2, self.t, k)
            self.v[i].index_copy_(2, self.t, v)
            kc = self.k[i].view(B * KV_HEADS, self.length, HD)[:, :upto]
            vc = self.v[i].view(B * KV_HEADS, self.length, HD)[:, :upto]
            s = torch.bmm(q.reshape(B * KV_HEADS, HEADS // KV_HEADS, HD), kc.transpose(1, 2)).float() * HD**-0.5 + bias
            o = torch.bmm(s.softmax(-1).to(vc.dtype), vc).reshape(B, HEADS * HD)
            x = x + o @ w[f"{i}.o"].T
            h = rms(x, w[f"{i}.norm2"])
            x = x + (F.silu(h @ w[f"{i}.gate"].T) * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
        z = (rms(x, w["norm"]) @ w["embed"].T).float()
        z[:, 0], z[:, 3 : chat.N_SPECIAL] = float("-inf"), float("-inf")
        heat, floor = self.heat.gather(1, self.role[:, None]), self.floor.gather(1, self.role[:, None])
        z = z / heat
        z = torch.where(z >= z.amax(-1, keepdim=True) + floor.log(), z, float("-inf"))
        drawn = (z - torch.log(-torch.log(torch.rand_like(z).clamp_(1e-9, 1 - 1e-7)))).argmax(-1)
        want = self.forced.gather(1, (self.t + 1).expand(B, 1)).squeeze(1)
        nxt = torch.where(want >= 0, want, drawn)
        ended = (want < 0) & (nxt == chat.END)
        # after an end mark the next turn's header is forced, and the other role speaks
        at = (self.t + 2 + torch.arange(5, device=self.dev)).clamp(max=self.forced.shape[1] - 1)
        old = self.forced[:, at]
        self.forced[:, at] = torch.where(ended[:, None], self.glue[self.role], old)
        self.role.copy_(torch.where(ended, 1 - self.role, self.role))
        self.out.index_copy_(1, self.t, self.cur[:, None])
        self.cur.copy_(nxt)
        self.t.add_(1)

    def run(self):
        """From position 0 to the end; self.cur holds the first token, self.forced the prompts."""
        self.t.zero_()
        for p in range(self.length):
            upto = min(self.length, (p // self.span + 1) * self.span)
            if self.dev.type != "cuda":
                self.step(upto)
                continue
            if upto not in self.graphs:
                keep = [b.clone() for b in (self.t, self.cur, self.out, self.forced, self.role)]
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    self.step(upto)
                torch.cuda.current_stream().wait_stream(side)
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g):
                    self.step(upto)
                self.graphs[upto] = g
                for b, o in zip((self.t, self.cur, self.out, self.forced, self.role), keep):
                    b.copy_(o)
            self.graphs[upto].replay()
        return self.out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("gguf")
    ap.add_argument("out")
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--rows", type=int, default=4096)
    ap.add_argument("--length", type=int, default=LENGTH)
    ap.add_argument("--seconds", type=float, default=1e9)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--share", type=float, default=0.45, help="share of rows whose first prompt is made here")
    a = ap.parse_args()
    begin = time.time()
    weights, kv = gguf_read.load_teacher(a.gguf)
    tok = chat.tokenizer_of(kv)
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(a.seed)
    r = random.Random(a.seed)
    m = Lockstep(to_torch(weights, dev, torch.bfloat16 if dev.type == "cuda" else torch.float32), a.rows, a.length)
    enc = lambda s: tok.encode(s, add_special_tokens=False).ids  # noqa: E731
    head = enc(SYSTEM + "<|im_start|>user\n")
    for role, text in enumerate(("\n<|im_start|>assistant\n", "\n<|im_start|>user\n")):
        ids = enc(text)
        m.glue[role, : len(ids)] = torch.tensor(ids)
    out = []
    for i in range(a.rounds):
        forced = np.full((a.rows, a.length + 8), -1, np.int64)
        role = np.zeros(a.rows, np.int64)
        heat = np.ones((a.rows, 2), np.float32)
        for b in range(a.rows):
            ids = head
            if r.random() < a.share:
                q = r.choice(FRAMES).format(s=r.choice(SUBJECTS), t=r.choice(SUBJECTS))
                ids = enc(f"{SYSTEM}<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n")
                role[b] = 1
            forced[b, : len(ids)] = ids
            heat[b, 1] = r.choice((0.3, 0.6, 0.8, 0.8, 1.0))
            heat[b, 0] = r.choice((0.8, 1.0))
        m.forced.copy_(torch.from_numpy(forced))
        m.role.copy_(torch.from_numpy(role))
        m.heat.copy_(torch.from_numpy(heat))
        m.cur.copy_(m.forced[:, 0])
        out.append(m.run().cpu().numpy().astype(np.uint16))
        print(f"round {i}: {time.time() - begin:.1f} s, {sum(x.size for x in out) / 1e6:.1f} M tokens", flush=True)
        if i == 0:
            for b in range(0, min(a.rows, 6)):
                print(repr(tok.decode(out[0][b].astype(int).tolist(), skip_special_tokens=False)[:700]), flush=True)
        if time.time() - begin > a.seconds:
            break
    pathlib.Path(a.out).mkdir(parents=True, exist_ok=True)
    np.save(pathlib.Path(a.out) / "chats.npy", np.concatenate(out))


if __name__ == "__main__":
    main()
