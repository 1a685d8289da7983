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
    """(op, causal, isa or baseline) -> sorted (sequence length, share of the ceiling)."""
    found = {}
    for row in rows:
        if "gflops" not in row or row["op"].endswith("_with_quantize"):
            continue
        length, share = row["shape"]["seqlen_q"], row["ceiling_share"]
        peers = {peer["name"]: share / peer["ratio"] for peer in row.get("baselines", [])}
        for name, reached in {row["isa"]: share, **peers}.items():
            found.setdefault((row["op"], row["shape"]["causal"], name), []).append((length, reached))
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
    for (op, causal, name), points in found.items():
        axes.plot(*zip(*points), marker="o", linestyle="--" if causal else "-",
                  label=f"{op}, {name}{', causal' if causal else ''}")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, None)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("share of the measured arithmetic ceiling")
    axes.set_title(f"{rows[0]['machine']}, {rows[0]['threads']} threads, mxattn {rows[0]['version']}")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
