"""gpu_peers.py: what the GPU bench compares with: PyTorch's and cuDNN's attention, GEMM ceilings, a copy.

SPDX-License-Identifier: Apache-2.0
"""

import functools

from gpu_timing import cool, rotated, sustained


def torch_attention(torch, causal, q, k, v):
    """scaled_dot_product_attention in the operands' type, cuDNN backend; (B, S, H, D)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)

    return run


@functools.lru_cache(maxsize=1)
def cudnn_frontend():
    """The module, or None with a line that says why."""
    try:
        import cudnn
    except ImportError as error:
        print(f"no cuDNN FP8 rows: {error} (pip install nvidia-cudnn-frontend)", flush=True)
        return None
    return cudnn


def cudnn_fp8_attention(torch, causal, q, k, v):
    """Per-tensor FP8 attention of cuDNN, all scales 1, O in E4M3; None where there is none."""
    cudnn = cudnn_frontend()
    if not cudnn:
        return None
    try:
        return build_fp8(torch, cudnn, causal, *(t.to(torch.float8_e4m3fn).transpose(1, 2) for t in (q, k, v)))
    except Exception as error:  # the front end has many kinds; a peer that cannot run is no row
        print(f"no cuDNN FP8 row: {str(error).splitlines()[0]}", flush=True)
        return None


def build_fp8(torch, cudnn, causal, q, k, v):
    fp8, f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    graph = cudnn.pygraph(io_data_type=fp8, intermediate_data_type=f32, compute_data_type=f32, handle=handle)
    tensors = {}

    def operand(memory, data_type):
        tensor = graph.tensor(dim=list(memory.shape), stride=list(memory.stride()), data_type=data_type)
        tensors[tensor] = memory
        return tensor

    one = torch.ones((1, 1, 1, 1), device="cuda")
    scales = {name: operand(one.clone(), f32)
              for name in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")}
    o, stats, amax_s, amax_o = graph.sdpa_fp8(
        q=operand(q, fp8), k=operand(k, fp8), v=operand(v, fp8), is_inference=True, attn_scale=q.shape[-1] ** -0.5,
        use_causal_mask=causal, **scales,
    )
    out = torch.empty_like(q)
    o.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    tensors[o] = out
    for amax in (amax_s, amax_o):
        amax.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(f32)
        tensors[amax] = one.clone()
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")

    def run():
        graph.execute(tensors, workspace, handle=handle)

    run()
    torch.cuda.synchronize()
    return run


def copy(torch, count, sets=4):
    """A device copy that reads and writes `count` bytes, buffers rotated."""
    pairs = [[torch.empty(count // 2, dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in range(sets)]
    return rotated([lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs])


def ceilings(torch, with_cool):
    """GEMM of 8192^3 on random data, FP8 and BF16, and a copy: rows with tera_per_s (FLOP, or bytes)."""
    n = 8192
    a, b = (torch.randn((n, n), device="cuda") for _ in range(2))
    a16, b16 = a.bfloat16(), b.bfloat16()
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    runs = {
        "gemm bf16": (lambda: a16 @ b16, 2 * n**3),
        "gemm fp8": (lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16, use_fast_accum=True), 2 * n**3),
        "copy": (lambda: target.copy_(source), 2 * 4 * source.numel()),
    }
    rows = []
    for what, (run, count) in runs.items():
        row = {"what": what, "sustained_tera_per_s": count / sustained(torch, run) * 1e-12}
        if with_cool:
            row["cool_tera_per_s"] = count / cool(torch, run) * 1e-12
        rows.append(row)
    return rows
