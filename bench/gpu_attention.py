"""gpu_attention.py: rows of the GPU bench for the attention forward.

Checks rows of O against float64 of the inputs, then times, in turns,
  prepared       (a) the attention kernel on operands that mxattn_prepare made
  mxfp8          (b) the whole call on public MXFP8 tensors
  bf16           (c) the whole call on BF16 tensors
  prepare        mxattn_prepare from BF16 alone, beside a copy of as many bytes
  prepare mxfp8  the same from MXFP8
  torch          scaled_dot_product_attention in BF16, cuDNN backend
  cudnn fp8      per-tensor FP8 attention of cuDNN, where nvidia-cudnn-frontend is installed

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import itertools
import sys

import gpu_library
import gpu_peers
from gpu_timing import in_turns

TOKENS, HIDDEN, JAGGED = 16384, 2048, 1
LARGEST_ERROR = 0.12  # of N(0, 1) data: E4M3 holds an element to 2^-4, four of them make an O
SHAPES = [  # head_dim, seqlen, causal
    (128, 512, 0), (128, 2048, 0), (128, 4096, 0), (128, 8192, 0), (128, 16384, 0),
    (128, 2048, 1), (128, 8192, 1), (64, 2048, 0), (64, 8192, 0), (64, 8192, 1), (256, 8192, 0),
]
# Bytes that a preparation reads and writes once; v's second reading is not counted, nor are scales.
MOVED = {"prepare": 3 * 3 * TOKENS * HIDDEN, "prepare mxfp8": 2 * 3 * TOKENS * HIDDEN}


class Call:
    """A plan with its tensors; `operands` BF16, or (payload, scale bytes) of MXFP8. With `lengths` a jagged batch:
    operands are (T, H, D), lse is (H, T). `change` is given the problem before it is planned."""

    def __init__(self, torch, library, shape, operands, o, lse, prepared=False, lengths=None, change=None):
        abi = gpu_library.abi
        head_dim, seqlen, causal = shape
        self.library, self.plan, self.kept = library, c.c_void_p(), [operands, o, lse]
        problem = library.made("attention_problem")
        problem.backend, problem.batch, problem.causal = abi.CUDA, TOKENS // seqlen, causal
        problem.max_seqlen_q = problem.max_seqlen_k = seqlen
        problem.heads = problem.kv_heads = HIDDEN // head_dim
        problem.head_dim = head_dim
        dtype = abi.E4M3 if isinstance(operands[0], tuple) else abi.BF16
        problem.q.dtype = problem.k.dtype = problem.v.dtype = dtype
        problem.o.dtype = abi.BF16
        if lengths:
            problem.format, problem.batch = JAGGED, len(lengths)
            problem.total_q = problem.total_k = sum(lengths)
            problem.max_seqlen_q = problem.max_seqlen_k = max(lengths)
        if change:
            change(problem)
        library.call("plan_create", None, c.byref(problem), c.byref(self.plan))
        self.args = library.made("attention_args")
        if lengths:
            self.cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
            self.args.cu_seqlens_q = self.args.cu_seqlens_k = self.cu.data_ptr()
            self.args.batch = len(lengths)
        for name, operand in zip("qkv", operands):
            tensor = library.view(dtype, operand[0] if dtype == abi.E4M3 else operand)
            if dtype == abi.E4M3:
                tensor.tags = abi.Tags(abi.E4M3, abi.SQUARE, 0, 0)
                tensor.scales[0].data = operand[1].data_ptr()
                tensor.scales[0].layout = abi.LINEAR
            self.keep(name, tensor)
        self.keep("o", library.view(abi.BF16, o))
        self.keep("lse", library.view(abi.F32, lse))
        bytes_needed = TOKENS * HIDDEN * 4 + (64 << 20)  # more than any plan here asks for
        self.memory = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")
        self.args.workspace, self.args.workspace_bytes = self.memory.data_ptr(), bytes_needed
        if prepared:
            self.memory_prepared = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")
            self.args.prepared = self.memory_prepared.data_ptr()
            self.prepare()

    def keep(self, name, tensor):
        self.kept.append(tensor)
        setattr(self.args, name, c.addressof(tensor))

    def prepare(self):
        self.library.call("prepare", self.plan, c.byref(self.args))

    def forward(self):
        self.library.call("attention_forward", self.plan, c.byref(self.args))

    def close(self):
        self.library.handle.mxattn_plan_destroy(self.plan)


def relative_error(torch, shape, q, k, v, o):
    """Of 192 rows of the last sequence and head, against float64 of the unquantized inputs; and how
    much of the truth O holds (1 - slope is bias)."""
    rows = slice(shape[1] - 192, shape[1])
    qs, ks, vs = (t[-1, :, -1].double() for t in (q, k, v))
    x = qs[rows] @ ks.T * shape[0] ** -0.5
    if shape[2]:
        x = x.masked_fill(torch.ones_like(x).tril(shape[1] - 192) == 0, float("-inf"))
    want = torch.softmax(x, -1) @ vs
    got = o[-1, rows, -1].double()
    return ((got - want).norm() / want.norm()).item(), ((got * want).sum() / (want * want).sum()).item()


def measure_shape(torch, libraries, shape, with_cool):
    head_dim, seqlen, causal = shape
    size = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    torch.manual_seed(seqlen + head_dim)
    q, k, v = (torch.randn(size, device="cuda").bfloat16() for _ in range(3))
    lse = torch.empty((size[0], size[2], size[1]), device="cuda")
    scales = torch.full((*size[:3], head_dim // 32), 127, dtype=torch.uint8, device="cuda")
    public = [(t.to(torch.float8_e4m3fn), scales) for t in (q, k, v)]
    runs, errors, calls, rows = {}, {}, [], []
    for library in libraries:
        o = torch.full(size, float("nan"), device="cuda", dtype=torch.bfloat16)
        made = {
            "prepared": Call(torch, library, shape, (q, k, v), o, lse, prepared=True),
            "bf16": Call(torch, library, shape, (q, k, v), o, lse),
            "mxfp8": Call(torch, library, shape, public, o, lse),
        }
        from_public = Call(torch, library, shape, public, o, lse, prepared=True)
        calls += [*made.values(), from_public]
        for name in ("prepared", "bf16", "mxfp8"):
            o.fill_(float("nan"))
            made[name].forward()
            torch.cuda.synchronize()
            error, slope = relative_error(torch, shape, q, k, v, o)
            if not error < LARGEST_ERROR or torch.isnan(o).any():
                sys.exit(f"{library.name} {name} {shape}: relative error {error}; nothing is timed")
            errors[library.name, name] = {"relative_error": error, "slope": slope}
            runs[library.name, name] = made[name].forward
        runs[library.name, "prepare"] = made["prepared"].prepare
        runs[library.name, "prepare mxfp8"] = from_public.prepare
    runs["torch", "torch"] = gpu_peers.torch_attention(torch, bool(causal), q, k, v)
    fp8 = gpu_peers.cudnn_fp8_attention(torch, bool(causal), q, k, v)
    if fp8:
        runs["cudnn", "cudnn fp8"] = fp8
    for what, count in MOVED.items():
        runs["copy", "copy of " + what] = gpu_peers.copy(torch, count)
    cool_keys = [key for key in runs if with_cool and key[1] in ("prepared", "mxfp8", "bf16", "torch", "cudnn fp8")]
    times = in_turns(torch, runs, cool_keys)
    flops = 4 * TOKENS * seqlen * HIDDEN * (0.5 if causal else 1)
    for key in runs:
        row = {"library": key[0], "what": key[1], "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
        for more in (errors.get(key, {}), times[key], gpu_peers.ratios(times, key, gpu_peers.FLASH3_FORWARD.get(shape))):
            row.update(more)
        for regime in ("sustained", "cool"):
            if f"{regime}_us" in row:
                count = MOVED.get(key[1].removeprefix("copy of "), flops)
                row[f"{regime}_tera_per_s"] = count / row[f"{regime}_us"] * 1e-6
        if key[1] in MOVED:
            row["copy_share"] = times["copy", "copy of " + key[1]]["sustained_us"] / row["sustained_us"]
        rows.append(row)
    for call in calls:
        call.close()
    return rows


def print_rows(rows):
    """One shape's rows, each regime with its rate over the best BF16's and the best FP8's (gpu_peers.ratios)."""
    for row in rows:
        text = f"{row['head_dim']:4d} {row['seqlen']:6d} {'causal' if row['causal'] else 'full':6s} " \
               f"{row['library']:>8s} {row['what']:13s} {row['sustained_us']:8.1f} us"
        if row["what"].removeprefix("copy of ") in MOVED:
            share = f"  {100 * row['copy_share']:.0f}% of a copy of as many bytes" if "copy_share" in row else ""
            print(f"{text} {row['sustained_tera_per_s']:6.2f} TB/s{share}", flush=True)
            continue
        for regime in ("sustained", "cool"):
            if f"{regime}_us" in row:
                over = ", ".join(f"{value:.2f} {kind.upper()}" for kind in ("bf16", "fp8")
                                 if (value := row.get(f"{regime}_over_{kind}")))
                text += f"  {regime} {row[f'{regime}_tera_per_s']:5.0f}" + (f" ({over})" if over else "")
        error = f"  error {row['relative_error']:.4f} slope {row['slope']:.4f}" if "slope" in row else ""
        print(text + error, flush=True)
