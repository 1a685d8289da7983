"""gpu_peers.py: what the GPU bench compares with: PyTorch's and cuDNN's attention, GEMM ceilings, a copy.

SPDX-License-Identifier: Apache-2.0
"""

import functools

from gpu_timing import cool, rotated, sustained

# FlashAttention 3 on an H200, sustained TFLOP/s, and PyTorch's in that run: it is not built here, its numbers are scaled
# by what PyTorch reaches now. Shape (head_dim, seqlen, causal): BF16, FP8 (0: none), PyTorch. Of several runs its best.
FLASH3_FORWARD = {  # at 4,096 the ratio of 8,192
    (128, 2048, 0): (619, 0, 641), (128, 4096, 0): (667, 0, 611), (128, 8192, 0): (667, 894, 611), (128, 16384, 0): (676, 880, 618),
    (128, 8192, 1): (627, 0, 529), (64, 8192, 0): (507, 645, 459),
}
FLASH3_BACKWARD = {
    (128, 2048, 0): (523, 0, 473), (128, 8192, 0): (596, 0, 523), (128, 16384, 0): (580, 0, 540),
    (128, 2048, 1): (436, 0, 386), (128, 8192, 1): (562, 0, 485), (128, 16384, 1): (587, 0, 522), (64, 8192, 0): (525, 0, 439),
}


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


def cudnn_fp8(torch, build, causal, *operands):
    """What `build` makes of them in E4M3, or None where cuDNN has none."""
    cudnn = cudnn_frontend()
    if not cudnn:
        return None
    try:
        return build(torch, cudnn, causal, *(t.to(torch.float8_e4m3fn).transpose(1, 2) for t in operands))
    except Exception as error:  # the front end has many kinds; a peer that cannot run is no row
        print(f"no cuDNN FP8 row: {str(error).splitlines()[0]}", flush=True)
        return None


def cudnn_fp8_attention(torch, causal, q, k, v):
    """Per-tensor FP8 attention of cuDNN, all scales 1, O in E4M3; None where there is none."""
    made = cudnn_fp8(torch, build_fp8, causal, q, k, v)
    return made and made[1]


def cudnn_fp8_backward(torch, causal, q, k, v, dout):
    """Its backward alone: scales known beforehand, gradients in E4M3; None where there is none."""
    return cudnn_fp8(torch, build_fp8_backward, causal, q, k, v, dout)


class Fp8Graph:
    """A cuDNN graph on tensors of PyTorch, per-tensor scales."""

    def __init__(self, torch, cudnn):
        self.torch, self.cudnn, self.tensors = torch, cudnn, {}
        self.fp8, self.f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.graph = cudnn.pygraph(io_data_type=self.fp8, intermediate_data_type=self.f32,
                                   compute_data_type=self.f32, handle=self.handle)

    def operand(self, memory):
        kind = self.f32 if memory.dtype == self.torch.float32 else self.fp8
        tensor = self.graph.tensor(dim=list(memory.shape), stride=list(memory.stride()), data_type=kind)
        self.tensors[tensor] = memory
        return tensor

    def scales(self, **values):
        return {name: self.operand(self.torch.full((1, 1, 1, 1), float(value), device="cuda"))
                for name, value in values.items()}

    def output(self, tensor, memory):
        tensor.set_output(True).set_dim(list(memory.shape)).set_stride(list(memory.stride()))
        if memory.dtype == self.torch.float32:
            tensor.set_data_type(self.f32)
        self.tensors[tensor] = memory

    def runner(self):
        self.graph.build([self.cudnn.heur_mode.A])
        workspace = self.torch.empty(max(1, self.graph.get_workspace_size()), dtype=self.torch.uint8, device="cuda")

        def run():
            self.graph.execute(self.tensors, workspace, handle=self.handle)

        run()
        self.torch.cuda.synchronize()
        return run


def build_fp8(torch, cudnn, causal, q, k, v, stats=None):
    """Forward; O, and the logarithms of the row sums where `stats` is memory for them, beside its run."""
    made, out = Fp8Graph(torch, cudnn), torch.empty_like(q)
    scales = made.scales(descale_q=1, descale_k=1, descale_v=1, descale_s=1, scale_s=1, scale_o=1)
    o, sums, *largest = made.graph.sdpa_fp8(
        q=made.operand(q), k=made.operand(k), v=made.operand(v), is_inference=stats is None,
        attn_scale=q.shape[-1] ** -0.5, use_causal_mask=causal, **scales,
    )
    made.output(o, out)
    if stats is not None:
        made.output(sums, stats)
    for amax in largest:
        made.output(amax, torch.ones((1, 1, 1, 1), device="cuda"))
    return out, made.runner()


def build_fp8_backward(torch, cudnn, causal, q, k, v, dout):
    stats = torch.empty((*q.shape[:3], 1), device="cuda")
    o, forward = build_fp8(torch, cudnn, causal, q, k, v, stats)
    forward()
    made, gradients = Fp8Graph(torch, cudnn), [torch.empty_like(t) for t in (q, k, v)]
    # Gradients of N(0, 1) data are far below 1, and so is dS: 2^8 and 2^4 bring them into E4M3's range.
    scales = made.scales(descale_q=1, descale_k=1, descale_v=1, descale_o=1, descale_dO=1, descale_s=2.0**-8,
                         descale_dP=2.0**-4, scale_s=2.0**8, scale_dQ=2.0**8, scale_dK=2.0**8, scale_dV=2.0**8,
                         scale_dP=2.0**4)
    results = made.graph.sdpa_fp8_backward(
        q=made.operand(q), k=made.operand(k), v=made.operand(v), o=made.operand(o), dO=made.operand(dout),
        stats=made.operand(stats), attn_scale=q.shape[-1] ** -0.5, use_causal_mask=causal, **scales,
    )
    for tensor, memory in zip(results[:3], gradients):
        made.output(tensor, memory)
    for amax in results[3:]:
        made.output(amax, torch.ones((1, 1, 1, 1), device="cuda"))
    return made.runner()


def copy(torch, count, sets=4):
    """A device copy that reads and writes `count` bytes, buffers rotated."""
    pairs = [[torch.empty(count // 2, dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in range(sets)]
    return rotated([lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs])


def over_best(flash, over_torch, over_cudnn):
    """Over the fastest BF16 and FP8 peer (None: there is none): those of the run, and FlashAttention 3, a row of a table above."""
    bf16, fp8, torch_then = flash or (0, 0, 1)
    over_fp8 = [over_cudnn] if over_cudnn else []
    if fp8:
        over_fp8.append(over_torch * torch_then / fp8)
    return over_torch * min(1.0, torch_then / bf16 if bf16 else 1.0), min(over_fp8, default=None)


def ratios(times, key, flash):
    """An attention row's over_best in each regime it was timed in. WHY from rows, not from bursts in turns: what runs alone has the clocks
    that its own power leaves it; in turns with cuDNN's FP8 backward ours stood 1.64 times over it, by rows 1.43."""
    made = {}
    for regime in ("sustained", "cool") if key[1] in ("prepared", "mxfp8", "bf16") else ():
        own = times[key].get(f"{regime}_us")
        torch, cudnn = (times.get(peer, {}).get(f"{regime}_us") for peer in (("torch", "torch"), ("cudnn", "cudnn fp8")))
        if own and torch:
            over = over_best(flash, torch / own, cudnn and cudnn / own)
            made.update({f"{regime}_over_{kind}": value for kind, value in zip(("bf16", "fp8"), over)})
    return made


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
