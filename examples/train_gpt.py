#!/usr/bin/env python3
"""train_gpt.py: one small GPT trained twice from the same start: BF16 attention (PyTorch's), and MXFP8 attention.

    pip install mxattn torch matplotlib
    python examples/train_gpt.py --out build/train_gpt        # on a CPU: a small model, minutes
    python examples/train_gpt.py --large --device cuda        # 30 million parameters

Documents are the chapters of examples/data/kjv.txt, of every length, packed behind one another without padding; tokens are
bytes. Everything but attention is the same, bit by bit: parameters, order of documents, optimizer. Each seed gives a loss
curve of either kind; printed are the validation losses, and where matplotlib is installed both curves are drawn.
MXFP8 forward and backward run where mxattn has them: --device cuda needs GPU kernels for both, and says so otherwise.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import random
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from mxattn.torch import flash_attn_varlen_func

TEXT = pathlib.Path(__file__).resolve().parent / "data/kjv.txt"


def documents():
    """Chapters as byte tensors: (training, validation)."""
    chapters = [torch.tensor(list(c.encode())) for c in TEXT.read_text().split("\n\n") if len(c) > 64]
    return [c for i, c in enumerate(chapters) if i % 10], chapters[::10]


def pack(chapters, tokens, generator):
    """Pieces of random chapters, of random lengths, packed to `tokens` inputs: (inputs, targets, cu_seqlens)."""
    pieces, ends = [], [0]
    while ends[-1] < tokens:
        chapter = generator.choice(chapters)
        length = min(generator.randint(32, 512), len(chapter) - 1, tokens - ends[-1])
        first = generator.randint(0, len(chapter) - 1 - length)
        pieces.append(chapter[first : first + length + 1])
        ends.append(ends[-1] + length)
    inputs, targets = torch.cat([p[:-1] for p in pieces]), torch.cat([p[1:] for p in pieces])
    return inputs, targets, torch.tensor(ends, dtype=torch.int32)


def attend_bf16(q, k, v, cu, longest):
    """PyTorch's attention in BF16 over each document alone."""
    document = torch.repeat_interleave(torch.arange(len(cu) - 1, device=q.device), cu.diff())
    mask = (document[:, None] == document[None]).tril()
    heads_first = [x.bfloat16().transpose(0, 1)[None] for x in (q, k, v)]
    return functional.scaled_dot_product_attention(*heads_first, attn_mask=mask)[0].transpose(0, 1)


def attend_mxfp8(q, k, v, cu, longest):
    return flash_attn_varlen_func(q.bfloat16(), k.bfloat16(), v.bfloat16(), cu, cu, longest, longest, causal=True)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cu, longest, turn, attend):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        o = attend(turn(q), turn(k), v, cu, longest)
        x = x + self.out(o.to(x.dtype).flatten(1))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)
        self.half = width // heads // 2

    def forward(self, tokens, cu, attend):
        start = torch.repeat_interleave(cu[:-1], cu.diff())
        place = (torch.arange(len(tokens), device=tokens.device) - start).float()
        angle = place[:, None] * 1000.0 ** -(torch.arange(self.half, device=tokens.device) / self.half)
        cosine, sine = angle.cos()[:, None], angle.sin()[:, None]

        def turn(x):
            a, b = functional.rms_norm(x, x.shape[-1:]).chunk(2, -1)
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

        x, longest = self.embed(tokens), int(cu.diff().max())
        for block in self.blocks:
            x = block(x, cu, longest, turn, attend)
        return self.head(self.norm(x))


def train(attend, seed, arguments):
    """Loss of each step, and of the validation chapters at the end."""
    torch.manual_seed(seed)
    generator, device = random.Random(seed), arguments.device
    model = Gpt(arguments.width, arguments.heads, arguments.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.1)
    training, validation = documents()
    losses = []

    def loss_of(batch):
        inputs, targets, cu = (x.to(device) for x in batch)
        return functional.cross_entropy(model(inputs, cu, attend), targets)

    for step in range(arguments.steps):
        for group in optimizer.param_groups:
            warm = min(1.0, (step + 1) / (arguments.steps * 0.1))
            group["lr"] = arguments.rate * warm * (1 - 0.9 * step / arguments.steps)
        loss = loss_of(pack(training, arguments.tokens, generator))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    generator = random.Random(0)  # the same validation pieces for every run
    with torch.no_grad():
        held_out = [loss_of(pack(validation, arguments.tokens, generator)).item() for _ in range(8)]
    return losses, sum(held_out) / len(held_out)


def draw(curves, path):
    """Both kinds' curves, averaged over 10 steps; without matplotlib, nothing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("train_gpt: no matplotlib, so no picture")
        return
    for kind, colour in (("bf16", "tab:gray"), ("mxfp8", "tab:red")):
        for i, run in enumerate(curves[kind]):
            smooth = [sum(run[max(0, s - 9) : s + 1]) / len(run[max(0, s - 9) : s + 1]) for s in range(len(run))]
            style = "-" if kind == "bf16" else "--"
            pyplot.plot(smooth, style, color=colour, linewidth=1, label=f"{kind} attention" if i == 0 else None)
    pyplot.xlabel("step"), pyplot.ylabel("training loss, nats per byte"), pyplot.legend(), pyplot.tight_layout()
    pyplot.savefig(path, dpi=120)
    print(f"train_gpt: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--large", action="store_true", help="30 million parameters, head_dim 128")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--head-dim", type=int, choices=(64, 128), help="default 64, large 128")
    parser.add_argument("--out", type=pathlib.Path, help="folder for losses.json and losses.png")
    arguments = parser.parse_args()
    arguments.width, arguments.layers, arguments.tokens = (640, 6, 8192) if arguments.large else (128, 2, 512)
    arguments.heads = arguments.width // (arguments.head_dim or (128 if arguments.large else 64))
    arguments.steps = arguments.steps or (1000 if arguments.large else 120)
    arguments.rate = 1e-3 if arguments.large else 4e-3
    size = sum(p.numel() for p in Gpt(arguments.width, arguments.heads, arguments.layers).parameters())
    print(f"{size / 1e6:.1f} million parameters, head_dim {arguments.width // arguments.heads}, {arguments.steps} steps of "
          f"{arguments.tokens} tokens on {arguments.device}")  # fmt: skip
    curves, ends = {"bf16": [], "mxfp8": []}, {"bf16": [], "mxfp8": []}
    for seed in range(arguments.seeds):
        for kind, attend in (("bf16", attend_bf16), ("mxfp8", attend_mxfp8)):
            start = time.perf_counter()
            losses, end = train(attend, seed, arguments)
            curves[kind].append(losses), ends[kind].append(end)
            print(f"seed {seed}, {kind:5}: loss {losses[0]:.4f} -> {sum(losses[-10:]) / 10:.4f}, validation {end:.4f} "
                  f"({time.perf_counter() - start:.0f} s)", flush=True)  # fmt: skip
    means = {kind: sum(values) / len(values) for kind, values in ends.items()}
    ratio = means["mxfp8"] / means["bf16"]
    spread = (max(ends["bf16"]) - min(ends["bf16"])) / means["bf16"]
    print(f"validation loss: bf16 {means['bf16']:.4f}, mxfp8 {means['mxfp8']:.4f}, ratio {ratio:.4f} "
          f"(bf16's seeds are {spread:.4f} apart)")  # fmt: skip
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "losses.json").write_text(json.dumps({"training": curves, "validation": ends}))
        draw(curves, arguments.out / "losses.png")
    return 0 if ratio < 1.01 else 1


if __name__ == "__main__":
    sys.exit(main())
