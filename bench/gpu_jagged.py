"""gpu_jagged.py: rows of the GPU bench for jagged batches, beside dense ones.

log-normal  lengths between 64 and 4096, head_dim 128; beside a dense batch of the length that has the same FLOPs
equal       eight lengths of 2048 as a jagged batch; beside the same as a dense one

SPDX-License-Identifier: Apache-2.0
"""

import random

import gpu_attention
from gpu_timing import beside, in_turns

TOKENS, HEAD_DIM = gpu_attention.TOKENS, 128


def log_normal_lengths():
    rng, lengths = random.Random(1), []
    while sum(lengths) < TOKENS:
        lengths.append(min(4096, max(64, round(rng.lognormvariate(6.5, 1.0)))))
    lengths[-1] -= sum(lengths) - TOKENS
    return lengths


def call(torch, library, operands, lengths, seqlen):
    heads = operands[0].shape[1]
    lse = torch.empty((heads, TOKENS), device="cuda")
    o = torch.full_like(operands[0], float("nan"))
    shape = (HEAD_DIM, seqlen, 0)
    if lengths:
        made = gpu_attention.Call(torch, library, shape, operands, o, lse, prepared=True, lengths=lengths)
    else:
        count = TOKENS // seqlen
        used = [t[: count * seqlen].view(count, seqlen, heads, HEAD_DIM) for t in (*operands, o)]
        made = gpu_attention.Call(torch, library, shape, used[:3], used[3], lse[:, : count * seqlen].contiguous()
                                  .view(count, heads, seqlen), prepared=True)
    made.forward()
    torch.cuda.synchronize()
    return made, o


def verify(torch, operands, lengths, o):
    """The last sequence of head 0 against float64; all of O written."""
    n = lengths[-1]
    q, k, v = (t[-n:, 0].double() for t in operands)
    want = torch.softmax(q @ k.T * HEAD_DIM**-0.5, -1) @ v
    error = ((o[-n:, 0].double() - want).norm() / want.norm()).item()
    if not error < gpu_attention.LARGEST_ERROR or torch.isnan(o).any():
        raise SystemExit(f"jagged: relative error {error}; nothing is timed")


def measure(torch, library):
    torch.manual_seed(1)
    heads = gpu_attention.HIDDEN // HEAD_DIM
    operands = [torch.randn((TOKENS, heads, HEAD_DIM), device="cuda").bfloat16() for _ in range(3)]
    lengths, equal = log_normal_lengths(), [2048] * (TOKENS // 2048)
    same = round(sum(n * n for n in lengths) / TOKENS / 64) * 64  # dense length of the same FLOPs
    made = {
        "log-normal": (call(torch, library, operands, lengths, max(lengths)), 4 * HEAD_DIM * heads * sum(n * n for n in lengths)),
        f"dense {same}": (call(torch, library, operands, None, same), 4 * HEAD_DIM * heads * same * same * (TOKENS // same)),
        "equal 2048": (call(torch, library, operands, equal, 2048), 4 * HEAD_DIM * heads * TOKENS * 2048),
        "dense 2048": (call(torch, library, operands, None, 2048), 4 * HEAD_DIM * heads * TOKENS * 2048),
    }
    verify(torch, operands, lengths, made["log-normal"][0][1])
    verify(torch, operands, equal, made["equal 2048"][0][1])
    times = in_turns(torch, {name: run[0][0].forward for name, run in made.items()})
    rows = [{"what": name, "library": library.name, "tera_per_s": run[1] / times[name]["sustained_us"] * 1e-6,
             **times[name]} for name, run in made.items()]
    for row, dense in ((rows[0], rows[1]), (rows[2], rows[3])):
        (run, work), (base, as_much) = made[row["what"]], made[dense["what"]]
        row["beside_dense"] = beside(torch, run[0].forward, base[0].forward) * work / as_much
    for run in made.values():
        run[0][0].close()
    return rows


def print_rows(rows):
    for row, dense in zip(rows, [rows[1], None, rows[3], None]):
        ratio = f"{row['beside_dense']:.3f} of {dense['what']}" if dense else ""
        print(f"jagged {row['library']:>10s} {row['what']:12s} {row['sustained_us']:8.1f} us {row['tera_per_s']:7.0f}  {ratio}", flush=True)
