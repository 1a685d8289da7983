#!/usr/bin/env python3
"""train_gpt.py: one small GPT trained twice from the same start: BF16 attention (PyTorch's), and MXFP8 attention.

    pip install mxattn torch matplotlib
    python examples/train_gpt.py --out build/train_gpt        # on a CPU: a small model, minutes
    python examples/train_gpt.py --large --device cuda        # 30 million parameters, head_dim 64 and 128
    python examples/train_gpt.py --draw build/train_gpt/losses.json

Documents are pieces of the chapters of examples/data/kjv.txt, of every length, packed behind one another; tokens are bytes.
MXFP8 attention takes them as they lie. Everything but attention is the same, bit by bit: parameters, order of documents, optimizer. Each seed gives a loss
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


def pack(chapters, arguments, generator):
    """Pieces of random chapters, of random lengths, packed without padding: (inputs, targets, cu_seqlens, the longest)."""
    pieces, ends, longest = [], [0], 0
    while ends[-1] < arguments.tokens:
        chapter = generator.choice(chapters)
        length = min(generator.randint(32, arguments.longest), len(chapter) - 1, arguments.tokens - ends[-1])
        first = generator.randint(0, len(chapter) - 1 - length)
        pieces.append(chapter[first : first + length + 1])
        ends.append(ends[-1] + length)
        longest = max(longest, length)
    inputs, targets = torch.cat([p[:-1] for p in pieces]), torch.cat([p[1:] for p in pieces])
    return inputs, targets, torch.tensor(ends, dtype=torch.int32), longest


def attend_bf16(q, k, v, cu, longest):
    """PyTorch's FlashAttention in BF16, which takes no documents in a row: each is laid out for itself, padded to the longest.
    Padding follows a document, so that the causal mask hides it."""
    documents = len(cu) - 1
    document = torch.repeat_interleave(torch.arange(documents, device=q.device), cu.diff(), output_size=len(q))
    row = document * longest + torch.arange(len(q), device=q.device) - cu[document]
    padded = (
        x.new_zeros((documents * longest, *x.shape[1:]), dtype=torch.bfloat16).index_copy(0, row, x.bfloat16())
        for x in (q, k, v)
    )
    heads_first = [x.unflatten(0, (documents, longest)).transpose(1, 2) for x in padded]
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
        o = functional.scaled_dot_product_attention(*heads_first, is_causal=True)
    return o.transpose(1, 2).flatten(0, 1).index_select(0, row)


def attend_mxfp8(q, k, v, cu, longest):
    return flash_attn_varlen_func(q.bfloat16(), k.bfloat16(), v.bfloat16(), cu, cu, longest, longest, causal=True)


KINDS = {"bf16": attend_bf16, "mxfp8": attend_mxfp8}


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
    def __init__(self, width, head_dim, layers):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, width // head_dim) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)
        self.half = head_dim // 2

    def forward(self, tokens, cu, longest, attend):
        start = torch.repeat_interleave(cu[:-1], cu.diff(), output_size=len(tokens))
        place = (torch.arange(len(tokens), device=tokens.device) - start).float()
        angle = place[:, None] * 1000.0 ** -(torch.arange(self.half, device=tokens.device) / self.half)
        cosine, sine = angle.cos()[:, None], angle.sin()[:, None]

        def turn(x):
            a, b = functional.rms_norm(x, x.shape[-1:]).chunk(2, -1)
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cu, longest, turn, attend)
        return self.head(self.norm(x))


def train(kind, head_dim, seed, arguments):
    """One run: the loss of each step and, every 50, that of the validation chapters; in a file of its own with --out."""
    torch.manual_seed(seed)
    generator, device = random.Random(seed), arguments.device
    model = Gpt(arguments.width, head_dim, arguments.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.1)
    training, validation = documents()
    judge = random.Random(0)
    held_out = [pack(validation, arguments, judge) for _ in range(8)]  # the same for every run
    run = {"kind": kind, "head_dim": head_dim, "seed": seed, "training": [], "validation": []}
    start = time.perf_counter()

    def loss_of(batch):
        inputs, targets, cu, longest = (x.to(device) if isinstance(x, torch.Tensor) else x for x in batch)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
            logits = model(inputs, cu, longest, KINDS[kind])
        return functional.cross_entropy(logits.float(), targets)

    for first in range(0, arguments.steps, 50):
        losses = []
        for step in range(first, min(first + 50, arguments.steps)):
            for group in optimizer.param_groups:
                warm = min(1.0, (step + 1) / (arguments.steps * 0.1))
                group["lr"] = arguments.rate * warm * (1 - 0.9 * step / arguments.steps)
            loss = loss_of(pack(training, arguments, generator))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        run["training"] += [round(x, 4) for x in torch.stack(losses).tolist()]  # waits for the device
        with torch.no_grad():
            end = sum(loss_of(batch).item() for batch in held_out) / len(held_out)
        run["validation"].append([len(run["training"]), round(end, 5)])
        if arguments.out:
            (arguments.out / f"run_{head_dim}_{kind}_{seed}.json").write_text(json.dumps(run))
    loss = run["training"]
    print(f"head_dim {head_dim}, seed {seed}, {kind:5}: loss {loss[0]:.4f} -> {sum(loss[-10:]) / 10:.4f}, validation {end:.4f} "
          f"({time.perf_counter() - start:.0f} s)", flush=True)  # fmt: skip
    return run


def summary(runs):
    """A line for each head_dim, after the steps that all runs have; the largest ratio of MXFP8's validation loss to BF16's."""
    largest, last = 0.0, min(run["validation"][-1][0] for run in runs)
    for head_dim in sorted({run["head_dim"] for run in runs}):
        ends = {kind: [dict(r["validation"])[last] for r in runs if (r["kind"], r["head_dim"]) == (kind, head_dim)] for kind in KINDS}
        means = {kind: sum(values) / len(values) for kind, values in ends.items()}
        ratio = means["mxfp8"] / means["bf16"]
        spread = (max(ends["bf16"]) - min(ends["bf16"])) / means["bf16"]
        print(f"head_dim {head_dim}, {last} steps, validation loss: bf16 {means['bf16']:.4f}, mxfp8 {means['mxfp8']:.4f}, "
              f"ratio {ratio:.4f} (bf16's seeds are {spread:.4f} apart)")  # fmt: skip
        largest = max(largest, ratio)
    return largest


def draw(record, path):
    """Both kinds' curves: training averaged over 10 steps, and the validation losses as points. Without matplotlib, nothing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("train_gpt: no matplotlib, so no picture")
        return
    dims = sorted({run["head_dim"] for run in record["runs"]})
    figure, panels = pyplot.subplots(1, len(dims), figsize=(5.2 * len(dims), 3.8), sharey=True, squeeze=False)
    for head_dim, panel in zip(dims, panels[0]):
        for kind, colour, style in (("bf16", "tab:gray", "-"), ("mxfp8", "tab:red", "--")):
            runs = [r for r in record["runs"] if (r["kind"], r["head_dim"]) == (kind, head_dim)]
            for i, run in enumerate(runs):
                loss = run["training"]
                smooth = [sum(loss[max(0, s - 9) : s + 1]) / len(loss[max(0, s - 9) : s + 1]) for s in range(len(loss))]
                panel.plot(smooth, style, color=colour, linewidth=1, label=None if i else f"{kind}, training")
                mark = "o" if kind == "bf16" else "x"
                panel.plot(*zip(*run["validation"]), mark, color=colour, markersize=4, label=None if i else f"{kind}, validation")
        panel.set_title(f"head_dim {head_dim}, {len(runs)} seeds"), panel.set_xlabel("step")
    panels[0][0].set_ylabel("loss, nats per byte"), panels[0][-1].legend(), figure.tight_layout()
    pyplot.savefig(path, dpi=100)
    print(f"train_gpt: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--large", action="store_true", help="30 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--head-dim", type=int, nargs="+", choices=(64, 128), help="default 64, large 64 and 128")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, in processes: a device of this size has room for several")
    parser.add_argument("--out", type=pathlib.Path, help="folder for losses.json, losses.png, and run_*.json as they come")
    parser.add_argument("--draw", type=pathlib.Path, metavar="JSON", help="only sum up and draw such a file, beside it")
    arguments = parser.parse_args()
    if arguments.draw:
        record = json.loads(arguments.draw.read_text())
        summary(record["runs"])
        draw(record, arguments.draw.with_suffix(".png"))
        return 0
    large = arguments.large
    arguments.width, arguments.layers, arguments.rate = (640, 6, 1e-3) if large else (128, 2, 4e-3)
    arguments.tokens, arguments.longest = (8192, 2048) if large else (512, 512)
    arguments.steps = arguments.steps or (400 if large else 120)
    dims = arguments.head_dim or ([64, 128] if large else [64])
    size = sum(p.numel() for p in Gpt(arguments.width, dims[0], arguments.layers).parameters())
    where = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else arguments.device
    print(f"{size / 1e6:.1f} million parameters, {arguments.steps} steps of {arguments.tokens} tokens in documents of 32 to "
          f"{arguments.longest}, on {where}")  # fmt: skip
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    tasks = [(kind, dim, seed, arguments) for seed in range(arguments.seeds) for dim in dims for kind in KINDS]
    if arguments.jobs > 1:
        with torch.multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            runs = pool.starmap(train, tasks, 1)
    else:
        runs = [train(*task) for task in tasks]
    record = {"parameters": size, "tokens_per_step": arguments.tokens, "steps": arguments.steps, "device": where,
              "torch": torch.__version__, "runs": runs}  # fmt: skip
    ratio = summary(runs)
    if arguments.out:
        (arguments.out / "losses.json").write_text(json.dumps(record) + "\n")
        draw(record, arguments.out / "losses.png")
    return 0 if ratio < 1.01 else 1


if __name__ == "__main__":
    sys.exit(main())
