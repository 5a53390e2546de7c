#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws speed against the length of drafts from the output of `m5-infer bench --accept ... --csv`: bench/spec_plot.py OUT.png NAME=RESULT.csv [...]"""
import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def main():
    out, sources = sys.argv[1], [x.split("=", 1) for x in sys.argv[2:]]
    fig, axes = plt.subplots(1, len(sources), figsize=(5 * len(sources), 3.6), squeeze=False)
    for ax, (name, path) in zip(axes[0], sources):
        rows = list(csv.DictReader(open(path)))
        shares = sorted({float(r["accept"]) for r in rows if r["test"] == "fixed"})
        for i, share in enumerate(shares):
            color = plt.cm.viridis(i / max(1, len(shares) - 1))
            mine = [r for r in rows if float(r["accept"]) == share]
            fixed = sorted((int(r["k"]), float(r["ratio"])) for r in mine if r["test"] == "fixed")
            ax.plot([0] + [k for k, _ in fixed], [1] + [y for _, y in fixed], "o-", color=color, ms=3, label=f"{share:.0%}")
            for r in mine:
                if r["test"] == "chosen":
                    ax.axhline(float(r["ratio"]), color=color, lw=0.8, ls=":")
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("drafted tokens a step")
        ax.set_ylabel("speed over plain decoding")
        ax.grid(alpha=0.3)
    axes[0][0].legend(title="right", fontsize=8, title_fontsize=8)
    fig.tight_layout()
    fig.savefig(out, dpi=90)


if __name__ == "__main__":
    main()
