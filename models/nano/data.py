# SPDX-License-Identifier: Apache-2.0
"""Documents and batches: teacher chats (learned from the teacher's distribution) and synthetic tasks (learned from the text).

A batch is one flat row of rows * width tokens; no document crosses a multiple of width. Worker processes make whole batches.
"""

import multiprocessing as mp
import random
import re

import numpy as np

import chat
import gguf_read
import mix
import tasks
import teacher
import toolchat
from toolgen import Gen

KINDS = [
    "general",
    "dialogue",
    "unknown",
    "arithmetic",
    "needle",
    "json",
    "tool_call",
    "tool_parallel",
    "tool_answer",
    "tool_chat",
    "tool_nofit",
    "tool_chain",
    "copy",
]
WEIGHT = {"needle": 3.0, "tool_call": 2.0, "tool_parallel": 2.0, "tool_chain": 2.0, "json": 2.0}
HELD_OUT_ROWS = 384
THOUGHTS = (
    "The user wants a helpful reply. I will answer directly.",
    "I can answer this from what I know. I will be clear.",
    "Let me think about the request. A clear and friendly answer is best.",
    "The request is simple, so I will answer it now.",
)


class Doc:
    """ids; act = [n, 5]: position, teacher position (-1: none), label, KL weight, CE weight; the teacher's own ids or None."""

    def __init__(self, ids, act, kind, teacher_ids=None, number=-1):
        self.ids, self.act, self.kind, self.teacher_ids, self.number = ids, act, kind, teacher_ids, number


class Maker:
    def __init__(self, gguf_path, chats_path, seed, held_out=False):
        self.tok = chat.tokenizer_of(gguf_read.Gguf(gguf_path).kv)
        chats = np.load(chats_path, mmap_mode="r")
        self.chats = chats[-HELD_OUT_ROWS:] if held_out else chats[:-HELD_OUT_ROWS]
        self.r = random.Random(seed)
        self.head = len(self.enc(teacher.SYSTEM))
        self.assistant = self.enc("<|im_start|>assistant\n")
        self.closed = self.enc("<think>\n\n</think>\n\n")
        self.prose = self.sentences()

    def enc(self, s):
        return self.tok.encode(s, add_special_tokens=False).ids

    def sentences(self):
        out = []
        for _ in range(min(1200, len(self.chats))):
            text = self.tok.decode(self.chats[self.r.randrange(len(self.chats))].astype(int).tolist(), skip_special_tokens=True)
            for s in re.split(r"(?<=[.!?])\s+", text):
                if 4 <= len(s.split()) <= 30 and s[0].isupper() and s[-1] in ".!?" and "\n" not in s and s.isascii():
                    out.append(s)
        return out or ["The day was long."]

    def general(self, row=None, number=-1):
        """A teacher chat, without the teacher's system text, mostly with the empty thought before the last reply."""
        r = self.r
        row = r.randrange(len(self.chats)) if row is None else row
        D = self.chats[row].astype(np.int64)
        k = len(self.assistant)
        starts = [i + k for i in np.flatnonzero(D == chat.START) if i + k < len(D) and D[i + 1 : i + k].tolist() == self.assistant[1:]]
        if len(starts) > 1 and r.random() < 0.4:
            cut = r.randrange(len(starts) - 1)
            end = np.flatnonzero(D[starts[cut] :] == chat.END)
            D, starts = D[: starts[cut] + int(end[0]) + 1] if len(end) else D, starts[: cut + 1]
        own, k = [], r.random()
        if k < 0.2:
            own = self.enc(f"<|im_start|>system\n{r.choice(tasks.SYSTEMS)}<|im_end|>\n")
        elif k < 0.3 and number < 0:
            own = self.enc(chat.render([], toolchat.offered(r, self.prose), generate=False))
        ids = own + D[self.head :].tolist()
        tpos = np.concatenate([np.full(len(own), -1), np.arange(self.head, len(D))])
        ce = np.zeros(len(ids), np.int64)
        if starts and r.random() < 0.8:
            p = starts[-1] - self.head + len(own)  # first token of the reply
            if r.random() < 0.12:
                t = self.enc(r.choice(THOUGHTS) + "\n</think>\n\nA")[:-1]
                ins = self.enc("<think>\n") + t
                mark = np.r_[np.zeros(len(ins) - len(t)), np.ones(len(t))]
            else:
                ins, mark = self.closed, np.zeros(len(self.closed))
            ids = ids[:p] + ins + ids[p:]
            # the reply's first token is predicted at the last inserted one, in the teacher at the token before the reply
            tpos = np.r_[tpos[: p - 1], np.full(len(ins), -1), tpos[p - 1], tpos[p:]]
            ce = np.r_[ce[:p], mark, ce[p:]]
        n = len(ids) - 1
        labels = np.array(ids[1:])
        kl = (tpos[:n] >= 0).astype(np.float64)
        act = np.stack([np.arange(n), tpos[:n], labels, kl, ce[1 : n + 1] * (1 - kl)], 1)
        return Doc(ids, act[(act[:, 3] > 0) | (act[:, 4] > 0)], "general", D.tolist(), number)

    mix = None  # shared weights of the task kinds, in the order of mix.MIX

    def synthetic(self, s=None, number=-1):
        """The completion, and every earlier reply of the assistant, is learned."""
        if s is None:
            kind = self.r.choices([k for k, _ in mix.MIX], list(self.mix))[0] if self.mix else None
            s = mix.make(self.r, kind, self.prose)
        prompt = self.enc(chat.render(s["messages"], s["tools"], s["think"]))
        ids = prompt + self.enc(s["target"]) + [chat.END]
        w = WEIGHT.get(s["kind"], 1.5)
        learn = np.zeros(len(ids))
        learn[len(prompt) :] = w
        if number < 0:
            k, i = len(self.assistant), 0
            tail = len(prompt) - k
            while i < tail:
                if ids[i] == chat.START and ids[i : i + k] == self.assistant:
                    j = i + k
                    while j < len(prompt) and ids[j] != chat.END:
                        j += 1
                    if j < len(prompt):
                        learn[i + k : j + 1] = w
                    i = j
                i += 1
        n = len(ids) - 1
        act = np.stack([np.arange(n), np.full(n, -1), np.array(ids[1:]), np.zeros(n), learn[1:]], 1)
        return Doc(ids, act[act[:, 4] > 0], s["kind"], None, number)


def pack(draw, rows, width, t_total, mtp_rows):
    """`draw(room)` gives a document of any length or None (end). Returns the batch and the documents that found no place."""
    pending, placed, t_used = [], [], 0
    at = []
    for row in range(rows):
        room, misses = width, 0
        while room > 40 and misses < 5:
            d = next((p for p in pending if len(p.ids) <= room), None)
            if d is not None:
                pending.remove(d)
            else:
                d = draw(t_total - t_used - sum(len(p.teacher_ids or ()) for p in pending))
                if d is None:
                    break
                if len(d.ids) > room:
                    pending.append(d)
                    misses += 1
                    continue
            placed.append(d)
            at.append(row * width + width - room)
            t_used += len(d.teacher_ids or ())
            room -= len(d.ids)
    N = rows * width
    tokens, pos = np.zeros(N, np.int32), np.zeros(N, np.int32)
    cuts, acts, mtps = {0, N}, [], []
    t_tokens, t_pos, t_cut, t_at = np.zeros(t_total, np.int32), np.zeros(t_total, np.int32), [0], 0
    for n, (d, a) in enumerate(zip(placed, at)):
        L = len(d.ids)
        tokens[a : a + L], pos[a : a + L] = d.ids, np.arange(L)
        cuts |= {a, a + L}
        e = np.c_[d.act, np.full(len(d.act), KINDS.index(d.kind)), np.full(len(d.act), d.number)]
        if d.teacher_ids is not None:
            T = len(d.teacher_ids)
            t_tokens[t_at : t_at + T], t_pos[t_at : t_at + T] = d.teacher_ids, np.arange(T)
            e[:, 1] = np.where(e[:, 1] >= 0, e[:, 1] + t_at, 0)
            t_at += T
            t_cut.append(t_at)
        else:
            e[:, 1] = 0
        e[:, 0] += a
        acts.append(e)
        if a < mtp_rows * width:
            m = e[d.act[:, 0] > 0].copy()  # MTP reads the state one token earlier, so it predicts the same label
            m[:, 0] -= 1
            mtps.append(m)
    # gaps are documents of their own
    bounds = np.array(sorted(cuts), np.int32)
    for a, b in zip(bounds[:-1], bounds[1:]):
        if pos[a] == 0:
            pos[a:b] = np.arange(b - a)
    if t_at < t_total:
        t_pos[t_at:] = np.arange(t_total - t_at) % 1024
        t_cut += list(range(t_at + 1024, t_total, 1024)) + [t_total]
    t_cut = np.array(t_cut, np.int32)
    split = np.unique(np.r_[bounds, np.arange(0, N + 1, width)]).astype(np.int32)
    pos = pos.copy()
    for a, b in zip(split[:-1], split[1:]):
        if pos[a] != 0:  # a gap that ran over a row's end
            pos[a:b] = np.arange(b - a)
    act, mtp = np.concatenate(acts), np.concatenate(mtps) if mtps else np.zeros((0, 7))
    m_cut = split[split <= mtp_rows * width]
    return {
        "tokens": tokens,
        "pos": pos,
        "cu": split,
        "longest": int(np.diff(split).max()),
        "t_tokens": t_tokens,
        "t_pos": t_pos,
        "t_cu": t_cut,
        "t_longest": int(np.diff(t_cut).max()),
        "act": act,
        "mtp": mtp,
        "m_cu": m_cut,
        "used": int(sum(len(d.ids) for d in placed)),
    }, pending


def worker(gguf_path, chats_path, seed, queue, rows, width, t_total, mtp_rows, share, weights):
    m = Maker(gguf_path, chats_path, seed)
    m.mix = weights
    got = [1.0, 1.0]

    def draw(t_room):
        want_general = got[0] < share.value * (got[0] + got[1])
        d = m.general() if want_general and t_room > teacher.LENGTH else None
        if d is None:
            d = m.synthetic()
            while len(d.ids) > width:
                d = m.synthetic()
        got[0 if d.kind == "general" else 1] += len(d.ids)
        return d

    while True:
        got[:] = [1.0, 1.0]
        queue.put(pack(draw, rows, width, t_total, mtp_rows)[0])


class Stream:
    def __init__(self, n, *args, share=0.5, seed=0, depth=24):
        ctx = mp.get_context("spawn")
        self.queue = ctx.Queue(depth)
        self.share = ctx.Value("d", share)
        self.mix = ctx.Array("d", [float(w) for _, w in mix.MIX])
        g, c, rows, width, t_total, mtp_rows = args
        self.procs = [
            ctx.Process(target=worker, args=(g, c, seed * 1000 + i, self.queue, rows, width, t_total, mtp_rows, self.share, self.mix), daemon=True)
            for i in range(n)
        ]
        for p in self.procs:
            p.start()

    def get(self):
        return self.queue.get(timeout=120)

    def close(self):
        for p in self.procs:
            p.terminate()


def eval_samples(kind, n, seed=10**9):
    """Held-out samples of one judged task: tool, plain_tool and plain_parallel
    (known tools under their own names), parallel, held_tool (four tools never seen in training), new_tool, new_parallel, new_answer, new_chain and fields (tools,
    parameters and domains of the held-out lists of toolgen.py), tool_answer, needle2k, needle4k, arithmetic, json, unknown, dialogue.
    """
    r = random.Random(f"{seed}-{kind}")
    out = []
    for _ in range(n):
        if kind in ("tool", "parallel", "tool_answer"):
            out.append(tasks.tools_task(r, mode={"tool": "call", "parallel": "parallel", "tool_answer": "answer"}[kind]))
        elif kind in ("plain_tool", "plain_parallel"):
            out.append(tasks.tools_task(r, mode="call" if kind == "plain_tool" else "parallel", only=True))
        elif kind == "held_tool":
            out.append(tasks.tools_task(r, pool=list(tasks.HELD_OUT_TOOLS), mode="call", only=True))
        elif kind.startswith("new_"):
            mode = {"new_tool": "call", "new_parallel": "parallel", "new_answer": "answer", "new_chain": "chain"}[kind]
            out.append(toolchat.session(Gen(r, None, held=True), mode, 0))
        elif kind == "fields":
            out.append(toolchat.fields(Gen(r, None, held=True)))
        elif kind in ("needle2k", "needle4k"):
            out.append((r.random(), r.randrange(1 << 30)))
        elif kind == "arithmetic":
            out.append(tasks.arithmetic(r, force_think=True))
        elif kind == "json":
            out.append(tasks.extraction(r))
        elif kind == "unknown":
            out.append(tasks.unknown(r))
        else:
            out.append(tasks.dialogue(r))
    return out


def needle_sample(m, kind, depth, seed):
    """A needle prompt of 1,024 to 2,048 (2k) or 3,584 to 4,096 (4k) tokens, the fact at the given depth."""
    r = random.Random(seed)
    low, high = (1024, 2048) if kind == "needle2k" else (3584, 4096)
    words = (low + high) / 2 / 1.45
    for _ in range(40):
        s = tasks.needle(r, m.prose, int(words), 1, depth)
        n = len(m.enc(chat.render(s["messages"], s["tools"], s["think"])))
        if low <= n <= high:
            return s
        words *= (low + high) / 2 / n
    raise RuntimeError("no needle text of the wanted length")


def eval_docs(m, kind, n):
    out = []
    for i, s in enumerate(eval_samples(kind, n)):
        out.append(m.synthetic(needle_sample(m, kind, *s) if isinstance(s, tuple) else s, number=i))
    return out
