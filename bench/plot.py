#!/usr/bin/env python3
"""plot: draws the share of the ceiling over the sequence length, from the JSON of mxattn bench --sweep.

Usage: bench/plot.py BENCH.json PICTURE.png    (needs matplotlib: scripts/venv matplotlib)

SPDX-License-Identifier: Apache-2.0
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (after the choice of backend)


def curves(rows):
    """(op, causal, isa) -> sorted (sequence length, share of the ceiling)."""
    found = {}
    for row in rows:
        if "gflops" in row:
            key = row["op"], row["shape"]["causal"], row["isa"]
            found.setdefault(key, []).append((row["shape"]["seqlen_q"], row["ceiling_share"]))
    return {key: sorted(points) for key, points in sorted(found.items())}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    found = curves(rows)
    if not found:
        sys.exit(f"{sys.argv[1]}: no row has gflops")
    figure, axes = plt.subplots(figsize=(9, 5))
    for (op, causal, isa), points in found.items():
        axes.plot(*zip(*points), marker="o", linestyle="--" if causal else "-",
                  label=f"{op}, {isa}{', causal' if causal else ''}")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("share of the measured arithmetic ceiling")
    axes.set_title(f"{rows[0]['machine']}, {rows[0]['threads']} threads, mxattn {rows[0]['version']}")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
