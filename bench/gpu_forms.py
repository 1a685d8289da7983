"""gpu_forms.py: rows of the GPU bench for the forward's other forms, beside the usual one.

e4m3           P in E4M3, FP16 scores
bf16           intermediates bf16: P and V in BF16, FP32 scores
causal_strict  the same form, row blocks; a row's bits do not depend on later tokens
softcap        P in E4M3, FP32 scores
Operands are BF16, prepared. Each is checked as in gpu_attention.py, softcap not: its cap lies far above every logit.

SPDX-License-Identifier: Apache-2.0
"""

import sys

import gpu_attention
from gpu_timing import in_turns

SHAPES = [(128, 8192, 0), (128, 8192, 1), (64, 8192, 1), (256, 8192, 1)]


def forms(abi, causal):
    """Name -> what it changes in a problem."""
    def bf16(problem):
        problem.intermediates = abi.INTERMEDIATES["bf16"]

    def strict(problem):
        problem.causal_strict = 1
        problem.q.block = problem.k.block = problem.v.block = abi.ROW

    def softcap(problem):
        problem.softcap = 1e4

    made = {"e4m3": None, "bf16": bf16, "softcap": softcap}
    return {**made, "causal_strict": strict} if causal else made


def measure(torch, library, shape):
    head_dim, seqlen, causal = shape
    heads = gpu_attention.HIDDEN // head_dim
    size = (gpu_attention.TOKENS // seqlen, seqlen, heads, head_dim)
    torch.manual_seed(seqlen + head_dim)
    q, k, v = (torch.randn(size, device="cuda").bfloat16() for _ in range(3))
    lse = torch.empty((size[0], heads, seqlen), device="cuda")
    calls, errors = {}, {}
    for name, change in forms(gpu_attention.gpu_library.abi, causal).items():
        o = torch.full(size, float("nan"), device="cuda", dtype=torch.bfloat16)
        call = gpu_attention.Call(torch, library, shape, (q, k, v), o, lse, prepared=True, change=change)
        call.forward()
        torch.cuda.synchronize()
        errors[name], _ = gpu_attention.relative_error(torch, shape, q, k, v, o)
        if not errors[name] < gpu_attention.LARGEST_ERROR or torch.isnan(o).any():
            sys.exit(f"{library.name} {name} {shape}: relative error {errors[name]}; nothing is timed")
        calls[name] = call
    times = in_turns(torch, {name: call.forward for name, call in calls.items()})
    flops = 4 * gpu_attention.TOKENS * seqlen * heads * head_dim * (0.5 if causal else 1)
    for call in calls.values():
        call.close()
    return [{"library": library.name, "what": name, "head_dim": head_dim, "seqlen": seqlen, "causal": causal,
             "relative_error": errors[name], "sustained_us": times[name]["sustained_us"],
             "sustained_tera_per_s": flops / times[name]["sustained_us"] * 1e-6} for name in calls]


def print_rows(rows):
    for row in rows:
        print(f"{row['head_dim']:4d} {row['seqlen']:6d} {'causal' if row['causal'] else 'full':6s} {row['library']:>10s} "
              f"{row['what']:13s} {row['sustained_us']:8.1f} us {row['sustained_tera_per_s']:6.0f} TFLOP/s, "
              f"{row['sustained_us'] / rows[0]['sustained_us']:.2f} of e4m3's time, error {row['relative_error']:.4f}", flush=True)
