"""gpu_backward.py: rows of the GPU bench for the attention backward.

Checks dQ, dK and dV of the last sequence and head against float64 of the inputs, then times, in turns,
  mxfp8          the whole call on public MXFP8 tensors, O and dO in BF16, gradients in BF16
  bf16           the whole call on BF16 tensors
  prepared       the call on operands that mxattn_prepare made: what training repeats
  fp32           the same, dQ added up in FP32
  deterministic  the same, additions to dQ in order
  jagged         the same tokens as one jagged batch of equal sequences
  torch          the backward of scaled_dot_product_attention in BF16, cuDNN backend (FlashAttention where it has none)
  cudnn fp8      per-tensor FP8 backward of cuDNN, where nvidia-cudnn-frontend is installed
Then fp32, deterministic and jagged once more, each alone beside prepared: their ratios come from there.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import sys

import gpu_library
import gpu_peers
from gpu_attention import HIDDEN, TOKENS
from gpu_timing import beside, in_turns

LARGEST_ERROR = 0.09  # of N(0, 1) data: operands cost 6.1e-2, P and dS in E4M3 a little more
BESIDE_PREPARED = ("fp32", "deterministic", "jagged")
OVER = (("sustained_over_bf16", "the best BF16"), ("sustained_over_fp8", "FP8"), ("beside_prepared", "prepared"))
SHAPES = [  # head_dim, seqlen, causal
    (128, 2048, 0), (128, 8192, 0), (128, 16384, 0), (128, 2048, 1), (128, 8192, 1), (128, 16384, 1),
    (64, 2048, 0), (64, 8192, 0), (64, 8192, 1), (256, 8192, 0), (256, 8192, 1),
]


class Call:
    """A training plan with its tensors, its forward done; `operands` BF16, or (payload, scales) of MXFP8."""

    def __init__(self, torch, library, shape, operands, wide, gradients, prepared=False, fp32=False, ordered=False,
                 jagged=False):
        abi = gpu_library.abi
        head_dim, seqlen, causal = shape
        self.library, self.plan, self.kept = library, c.c_void_p(), [operands, wide, gradients]
        problem = library.made("attention_problem")
        problem.backend, problem.batch, problem.causal, problem.mode = abi.CUDA, TOKENS // seqlen, causal, 1
        problem.max_seqlen_q = problem.max_seqlen_k = seqlen
        problem.heads = problem.kv_heads = HIDDEN // head_dim
        problem.head_dim = head_dim
        dtype = abi.E4M3 if isinstance(operands[0], tuple) else abi.BF16
        problem.q.dtype = problem.k.dtype = problem.v.dtype = dtype
        problem.o.dtype = abi.BF16
        problem.dq_reduce, problem.deterministic = 2 if fp32 else 0, int(ordered)
        if jagged:
            problem.format, problem.total_q, problem.total_k = 1, TOKENS, TOKENS
        library.call("plan_create", None, c.byref(problem), c.byref(self.plan))
        self.args = library.made("attention_args")
        flat = (TOKENS, HIDDEN // head_dim, head_dim)
        shape_of = (lambda t: flat if t.dim() == 4 else (flat[1], TOKENS)) if jagged else (lambda t: None)
        for name, operand in zip("qkv", operands):
            memory = operand[0] if dtype == abi.E4M3 else operand
            tensor = library.view(dtype, memory, shape_of(memory))
            if dtype == abi.E4M3:
                tensor.tags = abi.Tags(abi.E4M3, abi.SQUARE, 0, 0)
                tensor.scales[0].data = operand[1].data_ptr()
                tensor.scales[0].layout = abi.LINEAR
            self.keep(name, tensor)
        o, lse, dout = wide
        self.keep("o", library.view(abi.BF16, o, shape_of(o)))
        self.keep("lse", library.view(abi.F32, lse, shape_of(lse)))
        self.keep("dout", library.view(abi.BF16, dout, shape_of(dout)))
        for name, gradient in zip(("dq", "dk", "dv"), gradients):
            self.keep(name, library.view(abi.BF16, gradient, shape_of(gradient)))
        if jagged:
            self.lengths = torch.arange(0, TOKENS + 1, seqlen, dtype=torch.int32, device="cuda")
            self.args.batch = TOKENS // seqlen
            self.args.cu_seqlens_q = self.args.cu_seqlens_k = self.lengths.data_ptr()
        bytes_needed = TOKENS * HIDDEN * 14 + (256 << 20)  # more than any plan here asks for
        self.memory = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")
        self.args.workspace, self.args.workspace_bytes = self.memory.data_ptr(), bytes_needed
        self.saved = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        self.args.saved = self.saved.data_ptr()
        if prepared:
            self.memory_prepared = torch.empty(TOKENS * HIDDEN * 4 + (64 << 20), dtype=torch.uint8, device="cuda")
            self.args.prepared = self.memory_prepared.data_ptr()
            library.call("prepare", self.plan, c.byref(self.args))
        library.call("attention_forward", self.plan, c.byref(self.args))

    def keep(self, name, tensor):
        self.kept.append(tensor)
        setattr(self.args, name, c.addressof(tensor))

    def backward(self):
        self.library.call("attention_backward", self.plan, c.byref(self.args))

    def close(self):
        self.library.handle.mxattn_plan_destroy(self.plan)


def torch_backward(torch, causal, q, k, v, dout):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    leaves = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    gradient = dout.transpose(1, 2).contiguous()

    def made(backend):
        with sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=bool(causal))
        run = lambda: torch.autograd.grad(o, leaves, gradient, retain_graph=True)
        run()
        torch.cuda.synchronize()
        return run

    try:
        return made(SDPBackend.CUDNN_ATTENTION)
    except RuntimeError as error:
        print(f"torch: FlashAttention, not cuDNN: {str(error).splitlines()[0]}", flush=True)
        return made(SDPBackend.FLASH_ATTENTION)


def truth(torch, shape, q, k, v, dout):
    """dQ, dK, dV of the last sequence and head in float64."""
    scale = shape[0] ** -0.5
    q, k, v, dout = (t[-1, :, -1].double() for t in (q, k, v, dout))
    x = q @ k.T * scale
    if shape[2]:
        x = x.masked_fill(torch.ones_like(x, dtype=torch.bool).triu(1), float("-inf"))
    p = torch.softmax(x, -1)
    ds = p * (dout @ v.T - ((p @ v) * dout).sum(-1, keepdim=True))
    return ds @ k * scale, ds.T @ q * scale, p.T @ dout


def measure_shape(torch, libraries, shape, with_cool):
    head_dim, seqlen, causal = shape
    size = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    torch.manual_seed(seqlen + head_dim)
    q, k, v, dout = (torch.randn(size, device="cuda").bfloat16() for _ in range(4))
    lse = torch.empty((size[0], size[2], size[1]), device="cuda")
    scales = torch.full((*size[:3], head_dim // 32), 127, dtype=torch.uint8, device="cuda")
    public = [(t.to(torch.float8_e4m3fn), scales) for t in (q, k, v)]
    want = truth(torch, shape, q, k, v, dout)
    runs, errors, calls = {}, {}, []
    for library in libraries:
        gradients = [torch.empty(size, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        wide = (torch.empty(size, device="cuda", dtype=torch.bfloat16), lse, dout)
        made = {
            "mxfp8": Call(torch, library, shape, public, wide, gradients),
            "bf16": Call(torch, library, shape, (q, k, v), wide, gradients),
            "prepared": Call(torch, library, shape, public, wide, gradients, prepared=True),
            "fp32": Call(torch, library, shape, public, wide, gradients, prepared=True, fp32=True),
            "deterministic": Call(torch, library, shape, public, wide, gradients, prepared=True, ordered=True),
            "jagged": Call(torch, library, shape, public, wide, gradients, prepared=True, jagged=True),
        }
        calls += made.values()
        for name, call in made.items():
            for gradient in gradients:
                gradient.fill_(float("nan"))
            call.backward()
            torch.cuda.synchronize()
            error = [((g[-1, :, -1].double() - w).norm() / w.norm()).item() for g, w in zip(gradients, want)]
            if not max(error) < LARGEST_ERROR or any(torch.isnan(g).any() for g in gradients):
                sys.exit(f"{library.name} {name} {shape}: relative errors {error}; nothing is timed")
            errors[library.name, name] = {"relative_errors": error}
            runs[library.name, name] = call.backward
    del want
    runs["torch", "torch"] = torch_backward(torch, causal, q, k, v, dout)
    fp8 = gpu_peers.cudnn_fp8_backward(torch, bool(causal), q, k, v, dout)
    if fp8:
        runs["cudnn", "cudnn fp8"] = fp8
    cool = ("mxfp8", "prepared", "torch", "cudnn fp8")
    times = in_turns(torch, runs, [key for key in runs if with_cool and key[1] in cool])
    speeds = {key: beside(torch, run, runs[key[0], "prepared"]) for key, run in runs.items() if key[1] in BESIDE_PREPARED}
    flops = 2.5 * 4 * TOKENS * seqlen * HIDDEN * (0.5 if causal else 1)
    rows = []
    for key in runs:
        row = {"library": key[0], "what": key[1], "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
        for more in (errors.get(key, {}), times[key], gpu_peers.ratios(times, key, gpu_peers.FLASH3_BACKWARD.get(shape))):
            row.update(more)
        if key in speeds:
            row["beside_prepared"] = speeds[key]
        for regime in ("sustained", "cool"):
            if f"{regime}_us" in row:
                row[f"{regime}_tera_per_s"] = flops / row[f"{regime}_us"] * 1e-6
        rows.append(row)
    for call in calls:
        call.close()
    return rows


def print_rows(rows):
    """One shape's rows; beside ours what they stand over (gpu_peers.ratios, BESIDE_PREPARED)."""
    for row in rows:
        beside_text = "".join(f"  {row[key]:.3f} of {name}" for key, name in OVER if row.get(key))
        cool = f"{row['cool_tera_per_s']:6.0f}" if "cool_us" in row else "     -"
        error = " ".join(f"{e:.4f}" for e in row.get("relative_errors", ()))
        print(f"{row['head_dim']:4d} {row['seqlen']:6d} {'causal' if row['causal'] else 'full':6s} "
              f"{row['library']:>10s} {row['what']:13s} {row['sustained_us']:8.1f} us "
              f"{row['sustained_tera_per_s']:6.0f} {cool}  {error}{beside_text}", flush=True)
