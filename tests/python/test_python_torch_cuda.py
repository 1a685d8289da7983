"""test_python_torch_cuda.py: CUDA tensors: the caller's stream, device and allocator, graph capture.

Skipped without a GPU that mxattn has kernels for.

SPDX-License-Identifier: Apache-2.0
"""

import mxattn
import pytest
from python_data import limit, qkv, rms

torch = pytest.importorskip("torch", exc_type=ImportError)
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
if not mxattn.info().backends["cuda"].available:
    pytest.skip(mxattn.info().backends["cuda"].reason, allow_module_level=True)


def operands(device="cuda", dtype=torch.bfloat16):
    return [torch.from_numpy(x).to(device, dtype) for x in qkv(sq=256, dim=128)]


def test_forward():
    q, k, v = operands()
    o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
    assert o.device == q.device and o.dtype == torch.bfloat16 and lse.device == q.device
    right = mxattn.attention(*(x.cpu().float() for x in (q, k, v)), causal=True, backend="ref", precision="float64")
    assert rms(o.float().cpu(), right) < limit("O_RMS_E4M3") * limit("CUDA_FACTOR") + limit("CUDA_FLOOR")


def test_stream_and_graph():
    """On another stream than the default, and replayed from a graph: the same bits."""
    q, k, v = operands()
    right = mxattn.attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        o = mxattn.attention(q, k, v, causal=True)
    stream.synchronize()
    assert torch.equal(o, right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mxattn.attention(q, k, v, causal=True)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, right)


def test_host_offsets_are_refused():
    q, k, v = (x[0] for x in operands())
    with pytest.raises(mxattn.ArgumentError, match="cu_seqlens_q is on cpu:0 and q on cuda:0"):
        mxattn.attention(q, k, v, torch.tensor([0, 256]), torch.tensor([0, 256]), 256, 256)
    with pytest.raises(mxattn.ArgumentError, match="max_seqlen_q is a tensor"):
        cu = torch.tensor([0, 256], dtype=torch.int32, device="cuda")
        mxattn.attention(q, k, v, cu, cu, torch.tensor(256, device="cuda"), 256)
