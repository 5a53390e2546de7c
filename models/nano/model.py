# SPDX-License-Identifier: Apache-2.0
"""The student: a Qwen3.5-type hybrid (three Gated DeltaNet layers, then one gated attention layer) with an MTP head, for training.

All documents of a batch lie in one flat row of tokens; `pos` is the position inside the document. Documents never see each
other: attention goes by cumulative lengths, the convolution is masked by `pos`, the recurrence forgets at `pos == 0`.
Parameters live in three flat f32 buffers (mixers, mlp + embedding, small) so that casting, fake-quantising and the optimiser
are a handful of kernels. Names in SPEC are those of the Hugging Face layout.
"""

import dataclasses
import os

import torch
import torch.nn.functional as F

FORGET = -50.0  # log decay at a document's first token: exp(-50) leaves nothing of the state


@dataclasses.dataclass
class Config:
    vocab: int = 49152
    hidden: int = 576
    ffn: int = 1536
    layers: int = 28
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    rotary: int = 32
    theta: float = 1e5
    k_heads: int = 3
    v_heads: int = 6
    gdn_dim: int = 64
    conv: int = 4
    eps: float = 1e-6
    interval: int = 4

    def is_attention(self, i):
        return i % self.interval == self.interval - 1


def spec(c):
    """[(name, shape, group)]: group m = mixers and MTP, b = mlp and embedding (both quantised), s = small f32."""
    H, kd, vd = c.hidden, c.k_heads * c.gdn_dim, c.v_heads * c.gdn_dim
    out = [("model.embed_tokens.weight", (c.vocab, H), "b"), ("model.norm.weight", (H,), "s")]

    def attention(p, g):
        out.extend(
            [
                (p + "self_attn.q_proj.weight", (2 * c.heads * c.head_dim, H), g),
                (p + "self_attn.k_proj.weight", (c.kv_heads * c.head_dim, H), g),
                (p + "self_attn.v_proj.weight", (c.kv_heads * c.head_dim, H), g),
                (p + "self_attn.o_proj.weight", (H, c.heads * c.head_dim), g),
                (p + "self_attn.q_norm.weight", (c.head_dim,), "s"),
                (p + "self_attn.k_norm.weight", (c.head_dim,), "s"),
            ]
        )

    def common(p, g):
        out.extend(
            [
                (p + "input_layernorm.weight", (H,), "s"),
                (p + "post_attention_layernorm.weight", (H,), "s"),
                (p + "mlp.gate_proj.weight", (c.ffn, H), g),
                (p + "mlp.up_proj.weight", (c.ffn, H), g),
                (p + "mlp.down_proj.weight", (H, c.ffn), g),
            ]
        )

    for i in range(c.layers):
        p = f"model.layers.{i}."
        common(p, "b")
        if c.is_attention(i):
            attention(p, "m")
        else:
            p += "linear_attn."
            out.extend(
                [
                    (p + "in_proj_qkv.weight", (2 * kd + vd, H), "m"),
                    (p + "in_proj_z.weight", (vd, H), "m"),
                    (p + "out_proj.weight", (H, vd), "m"),
                    (p + "in_proj_b.weight", (c.v_heads, H), "s"),
                    (p + "in_proj_a.weight", (c.v_heads, H), "s"),
                    (p + "conv1d.weight", (2 * kd + vd, c.conv), "s"),
                    (p + "A_log", (c.v_heads,), "s"),
                    (p + "dt_bias", (c.v_heads,), "s"),
                    (p + "norm.weight", (c.gdn_dim,), "s"),
                ]
            )
    out.extend(
        [
            ("mtp.fc.weight", (H, 2 * H), "m"),
            ("mtp.pre_fc_norm_embedding.weight", (H,), "s"),
            ("mtp.pre_fc_norm_hidden.weight", (H,), "s"),
            ("mtp.norm.weight", (H,), "s"),
        ]
    )
    common("mtp.layers.0.", "m")
    attention("mtp.layers.0.", "m")
    return out


def compiled(f):
    return f if os.environ.get("M5_NO_COMPILE") else torch.compile(f, dynamic=False)


def rms1(x, w, eps):
    """Zero-centred RMSNorm: n * (1 + w), statistics in f32."""
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * (1 + w)).to(x.dtype)


def rope(x, cos, sin):
    """Half-split rotation of the first 2 * cos.shape[-1] components of [N, heads, head_dim]."""
    h = cos.shape[-1]
    c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    a, b = x[..., :h], x[..., h : 2 * h]
    return torch.cat([a * c - b * s, b * c + a * s, x[..., 2 * h :]], -1)


@compiled
def attn_pre(x, nw, wq, wk, wv, qn, kn, cos, sin, eps: float, hd: int):
    h = rms1(x, nw, eps)
    q2 = F.linear(h, wq).view(x.shape[0], -1, 2 * hd)
    q, gate = rms1(q2[..., :hd], qn, eps), q2[..., hd:]
    k = rms1(F.linear(h, wk).view(x.shape[0], -1, hd), kn, eps)
    v = F.linear(h, wv).view(x.shape[0], -1, hd)
    rep = q.shape[1] // k.shape[1]
    k = rope(k, cos, sin).repeat_interleave(rep, 1)
    return rope(q, cos, sin), k, v.repeat_interleave(rep, 1), gate


@compiled
def attn_out(o, gate, wo):
    return F.linear((o * torch.sigmoid(gate)).flatten(1), wo)


@compiled
def gdn_pre(x, nw, wqkv, wz, wb, wa, conv, a_log, dt, pos, eps: float, kh: int, vh: int):
    N = x.shape[0]
    h = rms1(x, nw, eps)
    y = F.linear(h, wqkv)
    taps = conv.shape[1]
    acc = y.float() * conv[:, taps - 1]
    for j in range(1, taps):
        acc = acc + F.pad(y[:-j], (0, 0, j, 0)).float() * conv[:, taps - 1 - j] * (pos >= j)[:, None]
    y = F.silu(acc)
    d = y.shape[1] // (2 * kh + vh)
    q, k, v = y[:, : kh * d].view(N, kh, d), y[:, kh * d : 2 * kh * d].view(N, kh, d), y[:, 2 * kh * d :].view(N, vh, d)
    q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6)
    k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
    beta = torch.sigmoid(F.linear(h.float(), wb))
    g = -torch.exp(a_log) * F.softplus(F.linear(h.float(), wa) + dt)
    g = torch.where((pos == 0)[:, None], FORGET, g)
    t = x.dtype
    return q.to(t), k.to(t), v.to(t), g, beta, F.linear(h, wz).view(N, vh, d)


@compiled
def gdn_out(o, z, nw, wo, eps: float):
    y = o.float()
    n = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)) * nw * F.silu(z.float())
    return F.linear(n.to(z.dtype).flatten(1), wo)


@compiled
def mlp_add(x, a, nw, wg, wu, wd, eps: float):
    x = x + a
    h = rms1(x, nw, eps)
    return x + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)


@compiled
def mtp_join(e, h, ne, nh, fc, eps: float):
    return F.linear(torch.cat([rms1(e, ne, eps), rms1(h, nh, eps)], -1), fc)


@compiled
def final_norm(x, w, eps: float):
    return rms1(x, w, eps)


def gdn_recurrence(q, k, v, g, beta):
    """The definition, in f32 (tests and machines without a GPU). q, k [B,T,kh,d], v [B,T,vh,d], g, beta [B,T,vh]."""
    rep = v.shape[2] // k.shape[2]
    q, k, v = q.float().repeat_interleave(rep, 2) * q.shape[-1] ** -0.5, k.float().repeat_interleave(rep, 2), v.float()
    S = q.new_zeros(q.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    out = []
    for t in range(q.shape[1]):
        S = S * g[:, t].float().exp()[..., None, None]
        delta = beta[:, t].float()[..., None] * (v[:, t] - torch.einsum("bhij,bhi->bhj", S, k[:, t]))
        S = S + k[:, t][..., None] * delta[..., None, :]
        out.append(torch.einsum("bhij,bhi->bhj", S, q[:, t]))
    return torch.stack(out, 1)


def gdn_chunked(q, k, v, g, beta, C=64):
    """Chunked form in plain torch, the same result: the way out if flash-linear-attention fails."""
    B, T, kh, d = k.shape
    vh = v.shape[2]
    rep, n = vh // kh, T // C
    f = lambda x: x.float().view(B, n, C, x.shape[2], -1).transpose(2, 3)  # noqa: E731
    q, k, v = f(q.repeat_interleave(rep, 2)) * d**-0.5, f(k.repeat_interleave(rep, 2)), f(v)
    g, beta = f(g[..., None])[..., 0], f(beta[..., None])[..., 0]
    G = g.cumsum(-1)
    low = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    D = torch.where(low, G[..., :, None] - G[..., None, :], float("-inf")).exp()
    A = (beta[..., None] * (k @ k.transpose(-1, -2)) * D).tril(-1)
    rhs = torch.cat([beta[..., None] * v, (beta * G.exp())[..., None] * k], -1)
    UW = torch.linalg.solve_triangular(A + torch.eye(C, device=q.device), rhs, upper=False, unitriangular=True)
    U, W = UW[..., : v.shape[-1]], UW[..., v.shape[-1] :]
    QK = (q @ k.transpose(-1, -2)) * D
    qg, kg, last = q * G.exp()[..., None], k * (G[..., -1:] - G).exp()[..., None], G[..., -1].exp()
    S = q.new_zeros(B, vh, d, v.shape[-1])
    out = []
    for i in range(n):
        vn = U[:, i] - W[:, i] @ S
        out.append(qg[:, i] @ S + QK[:, i] @ vn)
        S = last[:, i][..., None, None] * S + kg[:, i].transpose(-1, -2) @ vn
    return torch.stack(out, 1).transpose(2, 3).reshape(B, T, vh, -1)


@compiled
def gdn_backward_parts(q, k, v, do, h, dh, w, g, dv, scale: float, C: int):
    """Gradients of one chunked pass by q, k (direct use only), w and the cumulated log2 decay g, chunk by chunk.

    The same contract as flash-linear-attention's chunk_bwd_dqkwg, whose Triton kernel is refused on Hopper with some Triton versions.
    h: state before each chunk, dh: gradient of the state after it, v: the written rows, dv: their gradient.
    """
    B, T, kh, d = k.shape
    vh = v.shape[2]
    rep, n = vh // kh, T // C
    cut = lambda x: x.reshape(B, n, C, x.shape[2], -1).transpose(2, 3)  # noqa: E731
    Q, K, V, O, DV = cut(q.repeat_interleave(rep, 2)), cut(k.repeat_interleave(rep, 2)), cut(v), cut(do), cut(dv)
    G = cut(g[..., None])[..., 0].float()
    ht, dht = h.transpose(-1, -2).to(O.dtype), dh.transpose(-1, -2).to(O.dtype)
    last = G[..., -1:]
    low = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    ds = (O @ V.transpose(-1, -2)).float() * torch.exp2(torch.where(low, G[..., :, None] - G[..., None, :], float("-inf"))) * scale
    ds = ds.to(K.dtype)
    dq0 = (O @ ht).float() * torch.exp2(G)[..., None] * scale
    dk0 = (V @ dht).float() * torch.exp2(last - G)[..., None]
    dlast = (h.float() * dh.float()).sum((-1, -2)) * torch.exp2(last[..., 0]) + (dk0 * K).sum((-1, -2))
    dq, dk = dq0 + (ds @ K).float(), dk0 + (ds.transpose(-1, -2) @ Q).float()
    dg = (dq * Q).sum(-1) - (dk * K).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + dlast[..., None]], -1)
    dw = -(DV.to(O.dtype) @ ht)
    back = lambda x: x.transpose(2, 3).reshape(B, T, x.shape[2], -1)  # noqa: E731
    dq, dk = (back(x).view(B, T, kh, rep, d).sum(3).to(q.dtype) for x in (dq, dk))
    return dq, dk, back(dw).to(w.dtype), back(dg[..., None])[..., 0]


def use_own_backward():
    from fla.ops.gated_delta_rule import chunk

    def parts(q, k, v, do, h, dh, w=None, g=None, dv=None, scale=None, chunk_size=64, **_):
        return gdn_backward_parts(q, k, v, do, h, dh, w, g, dv, scale, chunk_size)

    chunk.chunk_bwd_dqkwg = parts


_fla = None


def gdn_core(q, k, v, g, beta, rows):
    """[N, ...] -> [N, vh, d]: `rows` sequences of N / rows tokens each, independent of each other."""
    global _fla
    sh = lambda x: x.view(rows, -1, *x.shape[1:])  # noqa: E731
    if _fla is None:
        _fla = False
        if q.is_cuda and not os.environ.get("M5_NO_FLA"):
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule

            use_own_backward()
            _fla = chunk_gated_delta_rule
    if _fla:
        o, _ = _fla(sh(q), sh(k), sh(v), sh(g), sh(beta), scale=q.shape[-1] ** -0.5)
    else:
        o = gdn_chunked(sh(q), sh(k), sh(v), sh(g), sh(beta)).to(q.dtype)
    return o.flatten(0, 1)


def attention(q, k, v, cu, longest):
    """Causal attention inside each document. q, k, v [N, heads, d]; cu int32 [docs + 1]."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0))
    out = torch.zeros_like(q)
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if b > a:
            f = lambda x: x[a:b].transpose(0, 1)[None]  # noqa: E731
            out[a:b] = F.scaled_dot_product_attention(f(q), f(k), f(v), is_causal=True)[0].transpose(0, 1)
    return out


def fake_q4_0(w):
    """Q4_0 and back: blocks of 32, scale = the value of largest magnitude / -8 (as f16), codes -8..7."""
    b = w.view(-1, 32)
    top = b.gather(1, b.abs().argmax(1, keepdim=True))
    d = (top / -8).half().float()
    inv = torch.where(d != 0, 1 / d, 0.0)
    return ((b * inv).add_(8.5).floor_().clamp_(0, 15).sub_(8) * d).view(w.shape)


class Through(torch.autograd.Function):
    """Straight-through weights: forward casts (and fake-quantises), backward hands the gradient on in f32."""

    @staticmethod
    def forward(ctx, w, quantise, dtype):
        return (fake_q4_0(w) if quantise else w).to(dtype)

    @staticmethod
    def backward(ctx, g):
        return g.float(), None, None


class Student:
    def __init__(self, c, device, dtype=torch.bfloat16):
        self.c, self.device, self.dtype = c, device, dtype
        self.spec = spec(c)
        self.flat, self.parts = {}, {}
        for g in "mbs":
            self.parts[g] = [(n, s) for n, s, gg in self.spec if gg == g]
            self.flat[g] = torch.zeros(sum(torch.Size(s).numel() for _, s in self.parts[g]), device=device, requires_grad=True)
        j = torch.arange(c.rotary // 2, device=device).float()
        ang = torch.arange(8192, device=device).float()[:, None] * c.theta ** (-2 * j / c.rotary)
        self.cos, self.sin = ang.cos(), ang.sin()

    def views(self, g):
        """{name: view of the f32 master}, without gradient."""
        chunks = self.flat[g].detach().split([torch.Size(s).numel() for _, s in self.parts[g]])
        return {n: t.view(s) for (n, s), t in zip(self.parts[g], chunks)}

    def masters(self):
        return {k: v for g in "mbs" for k, v in self.views(g).items()}

    def weights(self, quantise=False):
        """{name: tensor to compute with}, connected to the flat masters."""
        out = {}
        for g in "mbs":
            f = self.flat[g] if g == "s" else Through.apply(self.flat[g], quantise, self.dtype)
            chunks = f.split([torch.Size(s).numel() for _, s in self.parts[g]])
            out.update({n: t.view(s) for (n, s), t in zip(self.parts[g], chunks)})
        return out

    def mixer(self, W, i, x, meta, prefix=None):
        """What layer i's mixer adds to the residual stream."""
        c = self.c
        p = prefix or f"model.layers.{i}."
        if prefix or c.is_attention(i):
            a = p + "self_attn."
            q, k, v, gate = attn_pre(
                x,
                W[p + "input_layernorm.weight"],
                W[a + "q_proj.weight"],
                W[a + "k_proj.weight"],
                W[a + "v_proj.weight"],
                W[a + "q_norm.weight"],
                W[a + "k_norm.weight"],
                meta["cos"],
                meta["sin"],
                c.eps,
                c.head_dim,
            )
            return attn_out(attention(q, k, v, meta["cu"], meta["longest"]), gate, W[a + "o_proj.weight"])
        a = p + "linear_attn."
        q, k, v, g, beta, z = gdn_pre(
            x,
            W[p + "input_layernorm.weight"],
            W[a + "in_proj_qkv.weight"],
            W[a + "in_proj_z.weight"],
            W[a + "in_proj_b.weight"],
            W[a + "in_proj_a.weight"],
            W[a + "conv1d.weight"],
            W[a + "A_log"],
            W[a + "dt_bias"],
            meta["pos"],
            c.eps,
            c.k_heads,
            c.v_heads,
        )
        return gdn_out(gdn_core(q, k, v, g, beta, meta["rows"]), z, W[a + "norm.weight"], W[a + "out_proj.weight"], c.eps)

    def mlp(self, W, p, x, a):
        return mlp_add(
            x,
            a,
            W[p + "post_attention_layernorm.weight"],
            W[p + "mlp.gate_proj.weight"],
            W[p + "mlp.up_proj.weight"],
            W[p + "mlp.down_proj.weight"],
            self.c.eps,
        )

    def meta(self, pos, cu, longest, rows):
        return {"pos": pos, "cu": cu, "longest": longest, "rows": rows, "cos": self.cos[pos], "sin": self.sin[pos]}

    def forward(self, W, tokens, meta):
        x = F.embedding(tokens, W["model.embed_tokens.weight"])
        for i in range(self.c.layers):
            x = self.mlp(W, f"model.layers.{i}.", x, self.mixer(W, i, x, meta))
        return final_norm(x, W["model.norm.weight"], self.c.eps)

    def mtp(self, W, hidden, following, meta):
        """Hidden states after the final norm and the tokens that follow them -> states that predict the tokens after those."""
        e = F.embedding(following, W["model.embed_tokens.weight"].detach())
        x = mtp_join(e, hidden, W["mtp.pre_fc_norm_embedding.weight"], W["mtp.pre_fc_norm_hidden.weight"], W["mtp.fc.weight"], self.c.eps)
        x = self.mlp(W, "mtp.layers.0.", x, self.mixer(W, -1, x, meta, "mtp.layers.0."))
        return final_norm(x, W["mtp.norm.weight"], self.c.eps)

    @torch.no_grad()
    def init_from(self, t, keep, seed=0):
        """From the teacher's f32 arrays {name: tensor}; student layer i takes after teacher layer keep[i]."""
        c, dev = self.c, self.device
        gen = torch.Generator(device="cpu").manual_seed(seed)
        rnd = lambda *s: torch.randn(*s, generator=gen).to(dev)  # noqa: E731
        V = self.masters()
        hd, H = c.head_dim, c.hidden
        V["model.embed_tokens.weight"].copy_(t["embed"])
        V["model.norm.weight"].copy_(t["norm"] - 1)
        for i, name in ((3, "thinking"), (4, "end"), (5, "call"), (6, "end"), (7, "response"), (8, "end")):
            V["model.embed_tokens.weight"][i] += 0.02 * rnd(H)

        # rotary pairs: the teacher turns (j, j + hd/2) at theta^(-2j/hd) for all j; the student keeps the even j, which are the
        # frequencies of rotary width hd/2, as its first components, and does not turn the odd ones
        half = hd // 2
        even, odd = torch.arange(0, half, hd // c.rotary), torch.tensor([j for j in range(half) if j % (hd // c.rotary)], dtype=torch.long)
        perm = torch.cat([even, even + half, odd, odd + half]).to(dev)

        def attention_from(p, j):
            q = t[f"{j}.q"].view(c.heads, hd, H)[:, perm]
            k = t[f"{j}.k"].view(c.kv_heads, hd, H)[:, perm]
            V[p + "self_attn.q_proj.weight"].copy_(torch.cat([q, torch.zeros_like(q)], 1).reshape(-1, H))
            V[p + "self_attn.k_proj.weight"].copy_(k.reshape(-1, H))
            V[p + "self_attn.v_proj.weight"].copy_(t[f"{j}.v"])
            V[p + "self_attn.o_proj.weight"].copy_(t[f"{j}.o"] * 2)  # the gate opens at sigmoid(0) = 1/2
            s = t[f"{j}.norm1"].pow(2)
            # expected RMS of a head's q and k for a normalised input of independent components
            for n, w in (("q_norm", q), ("k_norm", k)):
                V[p + f"self_attn.{n}.weight"].fill_((w.pow(2) * s).sum(-1).mean().sqrt().item() - 1)

        def common_from(p, j):
            V[p + "input_layernorm.weight"].copy_(t[f"{j}.norm1"] - 1)
            V[p + "post_attention_layernorm.weight"].copy_(t[f"{j}.norm2"] - 1)
            for n in ("gate", "up", "down"):
                V[p + f"mlp.{n}_proj.weight"].copy_(t[f"{j}.{n}"])

        for i in range(c.layers):
            p, j = f"model.layers.{i}.", keep[i]
            common_from(p, j)
            if c.is_attention(i):
                attention_from(p, j)
                continue
            p += "linear_attn."
            d, kh, vh = c.gdn_dim, c.k_heads, c.v_heads
            q = t[f"{j}.q"].view(kh, -1, d, H).mean(1).reshape(-1, H)
            rep = vh // kh
            v = t[f"{j}.v"].view(kh, d, H).repeat_interleave(rep, 0)
            v = (v + 0.3 * v.std() * rnd(*v.shape)).reshape(-1, H)
            V[p + "in_proj_qkv.weight"].copy_(torch.cat([q, t[f"{j}.k"], v]))
            s = t[f"{j}.norm1"].pow(2).sum().sqrt()
            V[p + "in_proj_z.weight"].copy_(rnd(vh * d, H) / s)
            o = t[f"{j}.o"].view(H, kh, -1, d).mean(2).repeat_interleave(rep, 1).reshape(H, -1)
            V[p + "out_proj.weight"].copy_(o)
            V[p + "in_proj_b.weight"].copy_(0.5 * rnd(vh, H) / s)
            V[p + "in_proj_a.weight"].copy_(0.5 * rnd(vh, H) / s)
            V[p + "conv1d.weight"].copy_(0.1 * rnd(2 * kh * d + vh * d, c.conv))
            V[p + "conv1d.weight"][:, -1] += 1
            V[p + "A_log"].copy_(torch.log(torch.linspace(1, 8, vh)))
            dt = torch.exp(torch.linspace(-6.5, -2.0, vh))
            V[p + "dt_bias"].copy_((dt + torch.log(-torch.expm1(-dt)))[torch.randperm(vh, generator=gen)])
            V[p + "norm.weight"].fill_(0.5)
        last = keep[max(i for i in range(c.layers) if c.is_attention(i))]
        common_from("mtp.layers.0.", last)
        attention_from("mtp.layers.0.", last)
        V["mtp.fc.weight"].copy_(torch.cat([0.3 * torch.eye(H), torch.eye(H)], 1))
        V["mtp.norm.weight"].copy_(t["norm"] - 1)


@compiled
def loss_rows(zs, zt, labels, wkl, wce):
    """Per row: KL(teacher || student), cross-entropy, hit; and the gradient of wkl * KL + wce * CE by the student's logits."""
    zs, zt = zs.float(), zt.float()
    ls, lt = torch.logsumexp(zs, -1, keepdim=True), torch.logsumexp(zt, -1, keepdim=True)
    ps, pt = (zs - ls).exp(), (zt - lt).exp()
    kl = (pt * ((zt - lt) - (zs - ls))).sum(-1)
    mark = torch.arange(zs.shape[1], device=zs.device)[None] == labels[:, None]
    at = torch.where(mark, zs, 0.0).sum(-1)
    ce = ls.squeeze(-1) - at
    hit = at >= zs.amax(-1)
    dz = wkl[:, None] * (ps - pt) + wce[:, None] * (ps - mark.float())
    return kl, ce, hit, dz.to(torch.bfloat16)


class HeadLoss(torch.autograd.Function):
    """Sum of w_kl * KL + w_ce * CE over rows, the logits made chunk by chunk and never kept. Returns (sum, kl, ce, hit)."""

    @staticmethod
    def forward(ctx, h, w, ht, wt, labels, wkl, wce, chunk, head_grad):
        gh, gw = torch.zeros_like(h), (torch.zeros(w.shape, device=w.device) if head_grad else None)
        kls, ces, hits = [], [], []
        for a in range(0, h.shape[0], chunk):
            s = slice(a, a + chunk)
            kl, ce, hit, dz = loss_rows(h[s] @ w.T, ht[s] @ wt.T, labels[s], wkl[s], wce[s])
            dz = dz.to(w.dtype)
            gh[s] = dz @ w
            if head_grad:
                gw += (dz.T @ h[s]).float()
            kls.append(kl), ces.append(ce), hits.append(hit)
        kl, ce, hit = torch.cat(kls), torch.cat(ces), torch.cat(hits)
        ctx.save_for_backward(gh, gw if head_grad else None)
        ctx.mark_non_differentiable(kl, ce, hit)
        return (wkl * kl + wce * ce).sum(), kl, ce, hit

    @staticmethod
    def backward(ctx, g, *_):
        gh, gw = ctx.saved_tensors
        return gh * g.to(gh.dtype), (gw * g).to(gh.dtype) if gw is not None else None, None, None, None, None, None, None, None
