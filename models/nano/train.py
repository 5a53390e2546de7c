# SPDX-License-Identifier: Apache-2.0
"""Trains m5-nano on one or more NVIDIA GPUs: align the mixers layer by layer with the teacher, then distil and tune end to end.

    python train.py TEACHER.gguf CHATS.npy OUT --align-seconds 60 --train-seconds 800
    torchrun --nproc_per_node 2 train.py TEACHER.gguf CHATS.npy OUT --resume STATE.npz --align-seconds 0

With several GPUs every process draws its own batches, gradients are averaged, and the first process keeps the clock, the log and the state.

Both stages are bounded by time; the learning rate and the start of quantisation-aware training follow the share of it that is spent.
OUT/control.json, if it appears, may set train_seconds, share, or stop while the run goes on. OUT/state.npz is the Q4_0 state.
"""

import argparse
import json
import os
import pathlib
import queue
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import data
import gguf_read
import mix
import model
import teacher as teacher_mod

CHUNK = 8192
JUDGED = (
    "tool",
    "held_tool",
    "parallel",
    "tool_answer",
    "new_tool",
    "new_parallel",
    "new_answer",
    "new_chain",
    "fields",
    "needle2k",
    "needle4k",
    "arithmetic",
    "json",
    "unknown",
    "dialogue",
)
# task kind -> judged tasks whose failures raise its share
FOLLOWED = {"tools": ("tool", "parallel", "tool_answer"), "needle": ("needle2k", "needle4k"), "arithmetic": ("arithmetic",), "json": ("json",)}
# teacher layers left out (their input and output differ least); the others become the student's layers in order
DROPPED = (13, 17)


@model.compiled
def t_pre(x, nw, wq, wk, wv, cos, sin):
    h = teacher_mod.rms(x, nw)
    f = lambda w: F.linear(h, w).view(x.shape[0], -1, teacher_mod.HD)  # noqa: E731
    q, k, v = f(wq), f(wk), f(wv)
    rep = q.shape[1] // k.shape[1]
    return model.rope(q, cos, sin), model.rope(k, cos, sin).repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)


@model.compiled
def t_post(x, o, wo, nw, wg, wu, wd):
    a = F.linear(o.flatten(1), wo)
    x = x + a
    h = teacher_mod.rms(x, nw)
    return a, x + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)


class Teacher:
    def __init__(self, w, device, dtype):
        self.w = teacher_mod.to_torch(w, device, dtype)
        self.n = sum(1 for k in self.w if k.endswith(".norm1"))
        ang = torch.arange(8192, device=device).float()[:, None] * teacher_mod.inv_freq(device)[None]
        self.cos, self.sin = ang.cos(), ang.sin()

    @torch.no_grad()
    def forward(self, b, collect=None, dropped=()):
        """Final normed hidden states; collect: a list that receives (input, mixer output) of every layer."""
        w = self.w
        x, cos, sin = w["embed"][b["t_tokens"]], self.cos[b["t_pos"]], self.sin[b["t_pos"]]
        for i in range(self.n):
            if i in dropped:
                continue
            q, k, v = t_pre(x, w[f"{i}.norm1"], w[f"{i}.q"], w[f"{i}.k"], w[f"{i}.v"], cos, sin)
            o = model.attention(q, k, v, b["t_cu"], b["t_longest"])
            a, y = t_post(x, o, w[f"{i}.o"], w[f"{i}.norm2"], w[f"{i}.gate"], w[f"{i}.up"], w[f"{i}.down"])
            if collect is not None:
                collect.append((x, a))
            x = y
        return teacher_mod.rms(x, w["norm"])


def to_device(b, device):
    """Numpy batch -> tensors; the lists of learned positions are padded to whole chunks with weight zero."""
    out = {k: v for k, v in b.items() if isinstance(v, int)}
    for k in ("tokens", "pos", "t_tokens", "t_pos"):
        out[k] = torch.from_numpy(b[k]).to(device, non_blocking=True).long()
    for k in ("cu", "t_cu", "m_cu"):
        out[k] = torch.from_numpy(b[k]).to(device, non_blocking=True)
    for k in ("act", "mtp"):
        a = b[k]
        pad = -len(a) % CHUNK or (CHUNK if len(a) == 0 else 0)
        a = np.r_[a, np.tile([[0, 0, 0, 0, 0, -1, -1]], (pad, 1))]
        whole = torch.from_numpy(a[:, [0, 1, 2, 5, 6]].astype(np.int64)).to(device, non_blocking=True)
        real = torch.from_numpy(a[:, 3:5].astype(np.float32)).to(device, non_blocking=True)
        out[k] = {
            "at": whole[:, 0],
            "t": whole[:, 1],
            "label": whole[:, 2],
            "kind": whole[:, 3],
            "number": whole[:, 4],
            "kl": real[:, 0].contiguous(),
            "ce": real[:, 1].contiguous(),
        }
    return out


class Prefetch:
    def __init__(self, stream, device):
        self.q = queue.Queue(3)
        self.stream, self.device = stream, device
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self):
        while True:
            try:
                self.q.put(to_device(self.stream.get(), self.device))
            except Exception as e:  # the workers ended
                self.q.put(e)
                return

    def get(self):
        b = self.q.get()
        if isinstance(b, Exception):
            raise b
        return b


class Run:
    def __init__(self, a):
        self.a = a
        self.begin = time.time()
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.dev = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
        if self.dev.type == "cuda":
            torch.cuda.set_device(self.dev)
        if self.world > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if self.dev.type == "cuda" else "gloo")
        dt = torch.bfloat16 if self.dev.type == "cuda" else torch.float32
        self.out = pathlib.Path(a.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.stream = data.Stream(a.workers, a.gguf, a.chats, a.rows, a.width, a.t_total, a.mtp_rows, share=a.share, seed=a.seed * 8 + self.rank)
        arrays, _ = gguf_read.load_teacher(a.gguf)
        self.keep = [i for i in range(sum(1 for k in arrays if k.endswith(".norm1"))) if i not in DROPPED]
        self.c = model.Config(layers=len(self.keep))
        self.teacher = Teacher(arrays, self.dev, dt)
        self.s = model.Student(self.c, self.dev, dt)
        if a.resume:
            self.load(a.resume)
        else:
            self.s.init_from({k: torch.from_numpy(v).to(self.dev) for k, v in arrays.items()}, self.keep, a.seed)
        self.log_file = open(self.out / "log.jsonl", "a") if self.rank == 0 else None
        self.prefetch = Prefetch(self.stream, self.dev)
        self.heldout = self.make_heldout()

    def say(self, **kw):
        if self.rank:
            return
        kw = {k: (round(v, 4) if isinstance(v, float) else v) for k, v in kw.items()}
        kw["t"] = round(time.time() - self.begin, 1)
        self.log_file.write(json.dumps(kw) + "\n")
        self.log_file.flush()
        print(json.dumps(kw), flush=True)

    def meta(self, b):
        return self.s.meta(b["pos"], b["cu"], b["longest"], self.a.rows)

    def control(self):
        f = self.out / "control.json"
        if f.exists():
            d = json.loads(f.read_text())
            for k in ("train_seconds", "qat_from"):
                if k in d:
                    setattr(self.a, k, d[k])
            if "share" in d:
                self.stream.share.value = d["share"]
            return d.get("stop", False)
        return False

    # ---------------------------------------------------------------------------------------------------- alignment

    def align(self):
        a, s = self.a, self.s
        opt = torch.optim.AdamW(
            [s.flat["m"], s.flat["s"]], lr=a.align_lr, betas=(0.9, 0.95), weight_decay=0.0, eps=1e-10, fused=self.dev.type == "cuda"
        )
        rows = a.align_rows
        start, step, total = None, 0, 0.0
        while True:
            now = time.time()
            if step == 3:
                start = now
            part = 0.0 if start is None else (now - start) / a.align_seconds
            if part >= 1 or step >= a.max_steps:
                break
            lr = a.align_lr * min(1.0, (step + 1) / 30) * (1 - 0.8 * part)
            for g in opt.param_groups:
                g["lr"] = lr
            b = self.prefetch.get()
            got = []
            self.teacher.forward(b, got, DROPPED)
            N = b["t_tokens"].shape[0]
            meta = s.meta(b["t_pos"], b["t_cu"], b["t_longest"], rows)
            # a document that began before its row has lost its state: not judged
            ok = (b["t_pos"] <= torch.arange(N, device=self.dev) % (N // rows)).float()[:, None]
            W = s.weights()
            losses = []
            for i, (x, want) in enumerate(got):
                m = s.mixer(W, i, x, meta)
                d = ((m - want).float().pow(2) * ok).mean() / (want.float().pow(2) * ok).mean()
                losses.append(d)
            loss = torch.stack(losses).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([s.flat["m"], s.flat["s"]], 5.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            s.flat["b"].grad = None
            step += 1
            total += N
            if step % 25 == 0 or step <= 3:
                v = [round(x.item(), 3) for x in losses]
                self.say(stage="align", step=step, loss=float(np.mean(v)), lr=lr, mtok=total / 1e6, layers=v if step % 100 == 0 else None)

    # ----------------------------------------------------------------------------------------------------- training

    def together(self, *values):
        """The first process's numbers, so that all of them take the same step."""
        if self.world == 1:
            return values
        t = torch.tensor([float(v) for v in values], dtype=torch.float64)
        dist.broadcast(t, 0)
        return t[0].item(), *(x > 0 for x in t[1:].tolist())

    def losses(self, W, b, ht):
        s = self.s
        h = s.forward(W, b["tokens"], self.meta(b))
        A, E = b["act"], W["model.embed_tokens.weight"]
        main = model.HeadLoss.apply(h[A["at"]], E, ht[A["t"]], self.teacher.w["embed"], A["label"], A["kl"], A["ce"], CHUNK, True)
        n = self.a.mtp_rows * self.a.width
        M = b["mtp"]
        nxt = torch.cat([b["tokens"][1:n], b["tokens"][:1]])
        meta = s.meta(b["pos"][:n], b["m_cu"], b["longest"], self.a.mtp_rows)
        hm = s.mtp(W, h[:n].detach(), nxt, meta)
        mtp = model.HeadLoss.apply(hm[M["at"]], E.detach(), ht[M["t"]], self.teacher.w["embed"], M["label"], M["kl"], M["ce"], CHUNK, False)
        return h, hm, main, mtp

    def train(self):
        a, s = self.a, self.s
        groups = [
            {"params": [s.flat["m"]], "base": a.lr_mixer},
            {"params": [s.flat["b"]], "base": a.lr_body},
            {"params": [s.flat["s"]], "base": a.lr_small},
        ]
        opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, eps=1e-10, fused=self.dev.type == "cuda")
        start, step, mark, tokens = None, 0, time.time(), 0
        sums = torch.zeros(len(data.KINDS), 4, device=self.dev)
        mtp_sum = torch.zeros(2, device=self.dev)
        next_eval = a.eval_every
        while True:
            now = time.time()
            if step == 3:
                start = now
            spent = 0.0 if start is None else now - start
            part, stop, judge = self.together(spent / a.train_seconds, step % 10 == 0 and self.control(), spent >= next_eval)
            if part >= 1 or step >= a.max_steps or stop:
                break
            if judge:
                t0 = time.time()
                self.evaluate(part >= a.qat_from)
                self.save()
                next_eval += a.eval_every
                if start is not None:
                    start += time.time() - t0
                mark, tokens = time.time(), 0
            quantise = part >= a.qat_from
            scale = min(1.0, (step + 1) / a.warmup) * min(1.0, max(0.02, (1 - part) / (1 - a.decay_from)))
            for g in opt.param_groups:
                g["lr"] = g["base"] * scale
            b = self.prefetch.get()
            ht = self.teacher.forward(b)
            W = s.weights(quantise)
            _, _, main, mtp = self.losses(W, b, ht)
            A, M = b["act"], b["mtp"]
            loss = main[0] / (A["kl"] + A["ce"]).sum() + a.mtp_weight * mtp[0] / (M["kl"] + M["ce"]).sum().clamp(min=1)
            loss.backward()
            if self.world > 1:
                for g in "mbs":
                    dist.all_reduce(s.flat[g].grad, op=dist.ReduceOp.AVG)
            norm = torch.nn.utils.clip_grad_norm_([s.flat[g] for g in "mbs"], 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            with torch.no_grad():
                live = A["kind"] >= 0
                one = torch.stack([live.float(), main[1] * (A["kl"] > 0), main[2] * live, main[3].float() * live], 1)
                sums.index_add_(0, A["kind"].clamp(min=0), one)
                mtp_sum += torch.stack([(mtp[3].float() * (M["kind"] >= 0)).sum(), (M["kind"] >= 0).float().sum()])
            step += 1
            tokens += b["tokens"].shape[0]
            if step % 50 == 0 or step <= 3:
                v = sums.tolist()
                gen = v[0]
                self.say(
                    stage="train",
                    step=step,
                    part=part,
                    lr=scale,
                    q=quantise,
                    tok_s=int(tokens * self.world / (time.time() - mark)),
                    norm=norm.item(),
                    kl=gen[1] / max(gen[0], 1),
                    ce=gen[2] / max(gen[0], 1),
                    hit=gen[3] / max(gen[0], 1),
                    mtp_hit=(mtp_sum[0] / mtp_sum[1].clamp(min=1)).item(),
                    tasks={k: [round(r[2] / r[0], 3), round(r[3] / r[0], 3)] for k, r in zip(data.KINDS[1:], v[1:]) if r[0]},
                )
                sums.zero_(), mtp_sum.zero_()
                mark, tokens = time.time(), 0
        self.evaluate(True)
        self.save()

    # --------------------------------------------------------------------------------------------------- evaluation

    def make_heldout(self):
        """Batches of held-out samples; a batch mixes kinds, entry = (batch, [(kind name, number base)])."""
        a = self.a
        m = data.Maker(a.gguf, a.chats, 987654321, held_out=True)
        docs, self.n_eval = [], {}
        for i, kind in enumerate(JUDGED):
            n = a.eval_n // (2 if kind == "needle4k" else 1)
            self.n_eval[kind] = n
            for d in data.eval_docs(m, kind, n):
                d.number += 100000 * (i + 1)
                docs.append(d)
        docs += [m.general(row=i % len(m.chats)) for i in range(a.eval_n)]
        docs.sort(key=lambda d: -len(d.ids))
        out = []
        left = docs
        while left:
            todo = list(left)
            taken = []

            def draw(room):
                for i, d in enumerate(todo):
                    if len(d.teacher_ids or ()) <= room:
                        taken.append(d)
                        return todo.pop(i)
                return None

            b, pending = data.pack(draw, a.rows, a.width, a.t_total, a.mtp_rows)
            out.append(b)
            left = sorted(todo + pending, key=lambda d: -len(d.ids))
        return [to_device(b, self.dev) for b in out[self.rank :: self.world]]

    def evaluate(self, quantise):
        """Teacher-forced: a sample counts as exact if every token of its completion is the most likely one."""
        bad, seen, kl, ce, ce_t, n, hits, agree, pairs = set(), set(), 0.0, 0.0, 0.0, 0, 0, 0, 0
        W = self.s.weights(quantise)
        E = W["model.embed_tokens.weight"].detach()
        for b in self.heldout:
            ht = self.teacher.forward(b)
            h, hm, main, mtp = self.losses(W, b, ht)
            with torch.no_grad():
                A, M = b["act"], b["mtp"]
                num, hit = A["number"], main[3]
                seen |= set(num[num >= 100000].tolist())
                bad |= set(num[(num >= 100000) & ~hit].tolist())
                g = A["kl"] > 0
                n += g.sum().item()
                kl += main[1][g].sum().item()
                ce += main[2][g].sum().item()
                hits += hit[g].sum().item()
                for i in range(0, A["at"].shape[0], CHUNK):
                    c = slice(i, i + CHUNK)
                    zt = ht[A["t"][c]] @ self.teacher.w["embed"].T
                    ce_t += (F.cross_entropy(zt.float(), A["label"][c], reduction="none") * g[c]).sum().item()
                gm = M["kl"] > 0
                for i in range(0, M["at"].shape[0], CHUNK):
                    c = slice(i, i + CHUNK)
                    same = (hm[M["at"][c]] @ E.T).argmax(-1) == (h[M["at"][c] + 1] @ E.T).argmax(-1)
                    agree += (same & gm[c]).sum().item()
                pairs += gm.sum().item()
            del h, hm, main, mtp
        if self.world > 1:
            parts = [None] * self.world
            dist.all_gather_object(parts, (bad, seen, [kl, ce, ce_t, n, hits, agree, pairs]))
            bad, seen = set().union(*(x[0] for x in parts)), set().union(*(x[1] for x in parts))
            kl, ce, ce_t, n, hits, agree, pairs = (sum(x) for x in zip(*(x[2] for x in parts)))
        n, pairs = max(n, 1), max(pairs, 1)
        res = {}
        for i, k in enumerate(JUDGED):
            mine = [x for x in seen if x // 100000 == i + 1]
            res[k] = round(1 - len([x for x in mine if x in bad]) / max(1, len(mine)), 3)
        # what still fails is shown more often
        for i, (kind, base) in enumerate(mix.MIX):
            judged = [v for k, v in res.items() if k in FOLLOWED.get(kind, ())]
            if judged:
                self.stream.mix[i] = base * (0.6 + 2.4 * (1 - min(judged)))
        self.say(
            stage="eval",
            q=quantise,
            exact=res,
            kl=kl / n,
            ppl=float(np.exp(ce / n)),
            ppl_teacher=float(np.exp(ce_t / n)),
            ratio=float(np.exp((ce - ce_t) / n)),
            hit=hits / n,
            mtp=agree / pairs,
        )

    # -------------------------------------------------------------------------------------------------------- state

    @torch.no_grad()
    def save(self):
        if self.rank:
            return
        self.write()

    @torch.no_grad()
    def write(self):
        """Quantised groups as Q4_0 blocks (f16 scale, 16 bytes of nibbles), small parameters as f32."""
        out = {"config": json.dumps(vars(self.c))}
        for g in "mb":
            b = self.s.flat[g].detach().view(-1, 32)
            top = b.gather(1, b.abs().argmax(1, keepdim=True))
            d = (top / -8).half()
            f = d.float()
            codes = (b * torch.where(f != 0, 1 / f, 0.0) + 8.5).floor().clamp(0, 15).to(torch.uint8)
            out[g] = torch.cat([d.view(torch.uint8).view(-1, 2), codes[:, :16] | (codes[:, 16:] << 4)], 1).cpu().numpy()
        out["s"] = self.s.flat["s"].detach().cpu().numpy()
        tmp = self.out / "state.tmp.npz"
        np.savez(tmp, **out)
        os.replace(tmp, self.out / "state.npz")

    @torch.no_grad()
    def load(self, path):
        z = np.load(path)
        for g in "mb":
            self.s.flat[g].copy_(torch.from_numpy(unpack_q4_0(z[g])).to(self.dev))
        self.s.flat["s"].copy_(torch.from_numpy(z["s"]).to(self.dev))


def unpack_q4_0(blocks):
    """[n, 18] bytes -> f32 of n * 32 values."""
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    q = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1).astype(np.float32)
    return ((q - 8) * d).ravel()


def main():
    ap = argparse.ArgumentParser()
    for n in ("gguf", "chats", "out"):
        ap.add_argument(n)
    for n, d in (
        ("align-seconds", 60.0),
        ("train-seconds", 800.0),
        ("align-lr", 2e-3),
        ("lr-mixer", 8e-4),
        ("lr-body", 4e-4),
        ("lr-small", 8e-4),
        ("qat-from", 0.55),
        ("decay-from", 0.35),
        ("mtp-weight", 0.5),
        ("share", 0.5),
        ("eval-every", 120.0),
    ):
        ap.add_argument("--" + n, type=float, default=d)
    for n, d in (
        ("rows", 16),
        ("width", 4352),
        ("t-total", 40960),
        ("align-rows", 16),
        ("mtp-rows", 4),
        ("workers", 10),
        ("seed", 1),
        ("eval-n", 128),
        ("max-steps", 10**9),
        ("warmup", 60),
    ):
        ap.add_argument("--" + n, type=int, default=d)
    ap.add_argument("--resume", default="")
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    run = Run(a)
    run.say(stage="start", device=str(run.dev), args=vars(a))
    if a.align_seconds > 0 and not a.resume:
        run.align()
    run.train()
    run.stream.close()
    run.say(stage="end")


if __name__ == "__main__":
    main()
