"""plot_loss.py DIR: draws the curves of DIR/loss_*.csv into DIR/loss.png.

Needs matplotlib. Training losses are averaged over 20 steps; dots are validation losses.

SPDX-License-Identifier: Apache-2.0
"""
import csv
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

WINDOW = 20


def main(directory):
    files = sorted(directory.glob("loss_*.csv"))
    if not files:
        sys.exit(f"plot_loss.py: no loss_*.csv in {directory}")
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for file in files:
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        tokens = [int(row["tokens"]) for row in rows]
        loss = [float(row["train_loss"]) for row in rows]
        mean = [sum(loss[max(0, i + 1 - WINDOW):i + 1]) / min(i + 1, WINDOW) for i in range(len(loss))]
        name = file.stem.removeprefix("loss_")
        line, = axes.plot(tokens, mean, linewidth=1, label=f"{name}, training")
        seen = [(t, float(row["validation_loss"])) for t, row in zip(tokens, rows) if row["validation_loss"]]
        axes.plot(*zip(*seen), "o", color=line.get_color(), markersize=5, label=f"{name}, validation")
    axes.set(xlabel="tokens", ylabel="cross entropy, nats per character", title="examples/train_lm")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(directory / "loss.png", dpi=150, bbox_inches="tight")
    print(f"wrote {directory / 'loss.png'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: plot_loss.py DIR")
    main(pathlib.Path(sys.argv[1]))
