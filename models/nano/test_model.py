# SPDX-License-Identifier: Apache-2.0
"""Checks the student's arithmetic on the CPU: chunked form against the definition, hand-written gradients against autograd, Q4_0 round trip.

python test_model.py
"""

import math
import os

os.environ["M5_NO_COMPILE"] = "1"
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import model  # noqa: E402
import train  # noqa: E402


def test_chunked():
    B, T, kh, vh, d = 2, 192, 3, 6, 16
    q, k, v = F.normalize(torch.randn(B, T, kh, d), dim=-1), F.normalize(torch.randn(B, T, kh, d), dim=-1), torch.randn(B, T, vh, d)
    g, beta = -torch.rand(B, T, vh) * 0.2, torch.rand(B, T, vh)
    g[:, ::37] = model.FORGET
    return (model.gdn_recurrence(q, k, v, g, beta) - model.gdn_chunked(q, k, v, g, beta)).abs().max().item()


def test_backward():
    B, T, kh, vh, d, C, scale = 1, 24, 2, 4, 8, 8, 0.3
    q, k = (torch.randn(B, T, kh, d, requires_grad=True) for _ in range(2))
    u, w = torch.randn(B, T, vh, d), (torch.randn(B, T, vh, d) * 0.1).requires_grad_()
    G = (-torch.rand(B, T // C, C, vh) * 0.3).cumsum(2).reshape(B, T, vh).requires_grad_()
    low = torch.ones(C, C).tril() > 0
    S, before, after, written, outs = torch.zeros(B, vh, d, d), [], [], [], []
    for i in range(T // C):
        cut = lambda x: x[:, i * C : i * C + C].transpose(1, 2)  # noqa: E731
        Q, K, g = cut(q).repeat_interleave(2, 1) * scale, cut(k).repeat_interleave(2, 1), cut(G[..., None])[..., 0]
        before.append(S)
        vn = cut(u) - cut(w) @ S
        D = torch.where(low, g[..., :, None] - g[..., None, :], float("-inf")).exp()
        outs.append((Q * g.exp()[..., None]) @ S + ((Q @ K.transpose(-1, -2)) * D) @ vn)
        S = g[..., -1].exp()[..., None, None] * S + (K * (g[..., -1:] - g).exp()[..., None]).transpose(-1, -2) @ vn
        vn.retain_grad()
        S.retain_grad()
        written.append(vn)
        after.append(S)
    o = torch.cat(outs, 2).transpose(1, 2)
    do = torch.randn_like(o)
    (o * do).sum().backward()
    dh = torch.stack([torch.zeros_like(x) if x.grad is None else x.grad for x in after], 1)
    rows = lambda xs: torch.cat(xs, 2).transpose(1, 2)  # noqa: E731
    got = model.gdn_backward_parts(
        q.detach(),
        k.detach(),
        rows(written).detach(),
        do,
        torch.stack(before, 1).detach(),
        dh,
        w.detach(),
        G.detach() / math.log(2),
        rows([x.grad for x in written]),
        scale,
        C,
    )
    return max((a - b).abs().max().item() for a, b in zip(got, (q.grad, k.grad, w.grad, G.grad)))


def test_q4_0():
    w = torch.randn(64, 64)
    once = model.fake_q4_0(w)
    b = w.view(-1, 32)
    top = b.gather(1, b.abs().argmax(1, keepdim=True))
    d = (top / -8).half()
    codes = (b / d.float() + 8.5).floor().clamp(0, 15).to(torch.uint8)
    packed = torch.cat([d.view(torch.uint8).view(-1, 2), codes[:, :16] | (codes[:, 16:] << 4)], 1).numpy()
    unpacked = torch.from_numpy(train.unpack_q4_0(packed)).view(64, 64)
    return max((once - unpacked).abs().max().item(), (model.fake_q4_0(once) - once).abs().max().item())


def main():
    torch.manual_seed(0)
    for name, f, limit in (("chunked", test_chunked, 1e-5), ("backward", test_backward, 1e-5), ("q4_0", test_q4_0, 1e-6)):
        e = f()
        assert e <= limit, (name, e)
        print(f"{name}: {e:.2g}")


if __name__ == "__main__":
    main()
