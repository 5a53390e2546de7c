# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of one or more training logs: python plot.py OUT.png LOG.jsonl [LOG.jsonl ...]"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

COLUMNS = (
    ("alignment: relative error of a mixer", "align"),
    ("distillation: KL to the teacher", "kl"),
    ("tasks: cross-entropy", "tasks"),
    ("hit rate of the next token and of MTP", "hit"),
)

SHADE = {"arithmetic": "C0", "needle": "C1", "json": "C2", "tool_call": "C3", "tool_parallel": "C4"}


def main():
    fig, axes = plt.subplots(1, 4, figsize=(15, 3.2))
    base = 0
    for log in sys.argv[2:]:
        rows = [json.loads(x) for x in open(log)]
        a = [r for r in rows if r["stage"] == "align" and r["step"] > 3]
        if a:
            axes[0].plot([r["step"] for r in a], [r["loss"] for r in a])
        t = [r for r in rows if r["stage"] == "train" and r["step"] > 3]
        x = [base + r["step"] for r in t]
        axes[1].plot(x, [r["kl"] for r in t])
        e = [r for r in rows if r["stage"] == "eval"]
        for kind in SHADE:
            axes[2].plot(x, [r["tasks"].get(kind, [float("nan")])[0] for r in t], label=kind if base == 0 else None, color=SHADE[kind])
        axes[3].plot(x, [r["hit"] for r in t], color="C0", label="teacher chats" if base == 0 else None)
        axes[3].plot(x, [r["mtp_hit"] for r in t], color="C1", label="MTP, all text" if base == 0 else None)
        if base:
            for ax in axes[1:]:
                ax.axvline(base, color="0.7", lw=1)
        base = x[-1] if x else base
        print(log, "last evaluation:", json.dumps(e[-1]) if e else None)
    axes[2].set_yscale("log")
    for ax, (title, _) in zip(axes, COLUMNS):
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("step", fontsize=8)
        ax.tick_params(labelsize=7)
    axes[2].legend(fontsize=6)
    axes[3].legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(sys.argv[1], dpi=80)


if __name__ == "__main__":
    main()
