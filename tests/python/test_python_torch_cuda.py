"""test_python_torch_cuda.py: CUDA tensors of PyTorch: values, gradients, bytes, streams, graphs, torch.compile, opcheck.

Skipped without a GPU that mxattn has kernels for. Truth is float64 on the host (backend ref, nothing quantized); bytes are
those of the CPU backend.

SPDX-License-Identifier: Apache-2.0
"""

import mxattn
import numpy as np
import pytest
from python_data import limit, qkv, rms

torch = pytest.importorskip("torch", exc_type=ImportError)
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
if not mxattn.info().backends["cuda"].available:
    pytest.skip(mxattn.info().backends["cuda"].reason, allow_module_level=True)
from mxattn import torch as mxt  # noqa: E402
from python_torch import check_operators  # noqa: E402

CU = [0, 37, 37, 165, 400]
LONGEST = 235
FACTOR, FLOOR = limit("CUDA_FACTOR"), limit("CUDA_FLOOR")
MOST = {"o": limit("O_RMS_E4M3"), "dq": limit("DQ_DK_RMS"), "dk": limit("DQ_DK_RMS"), "dv": limit("DV_RMS")}


def operands(dtype=torch.bfloat16, grad=False, **shape):
    shape = {"sq": 256, "dim": 128, **shape}
    return [torch.from_numpy(x).to("cuda", dtype).requires_grad_(grad) for x in qkv(**shape)]


def packed(dim=128, grad=False, dtype=torch.bfloat16):
    """A jagged batch, one sequence of it empty: q, k, v, cu_seqlens."""
    q, k, v = (x[0].detach().requires_grad_(grad) for x in operands(dtype, batch=1, sq=CU[-1], dim=dim))
    return q, k, v, torch.tensor(CU, dtype=torch.int32, device="cuda")


def host(*tensors):
    return [None if x is None else x.detach().cpu() if x.dtype == torch.int32 else x.detach().float().cpu() for x in tensors]


def close(got, right, name):
    error = rms(got.detach().float().cpu(), right)
    print(f"{name} {error:.4f}", end=" ")
    assert error < MOST[name] * FACTOR + FLOOR, name


def exact(q, k, v, cu=None, **options):
    where = () if cu is None else (cu.cpu(), cu.cpu(), LONGEST, LONGEST)
    return mxattn.attention(*host(q, k, v), *where, backend="ref", precision="float64", return_lse=True, **options)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_forward(dtype, dim):
    q, k, v = operands(dtype, dim=dim)
    o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
    assert o.device == q.device and o.dtype == dtype and lse.device == q.device and lse.dtype == torch.float32
    close(o, exact(q, k, v, causal=True)[0], "o")


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("shape", ["dense", "jagged", "window", "dlse"])
def test_gradients(shape, dim):
    """O and its gradients, through autograd, against float64; through LSE too."""
    q, k, v, cu = packed(dim, True) if shape == "jagged" else (*operands(dim=dim, grad=True), None)
    where = () if cu is None else (cu, cu, LONGEST, LONGEST)
    options = {"causal": True, "window_size": (64, 0) if shape == "window" else (-1, -1)}
    o, lse = mxattn.attention(q, k, v, *where, return_lse=True, **options)
    torch.manual_seed(0)
    do = torch.randn_like(o)
    dlse = torch.randn_like(lse) if shape == "dlse" else None
    torch.autograd.backward([o] if dlse is None else [o, lse], [do] if dlse is None else [do, dlse])
    right, right_lse = exact(q, k, v, cu, **options)
    close(o, right, "o")
    on_host = () if cu is None else (cu.cpu(), cu.cpu(), LONGEST, LONGEST)
    gradients = mxattn.attention_backward(
        *host(do, q, k, v), right, right_lse, *on_host, dlse=None if dlse is None else dlse.cpu(), backend="ref",
        precision="float64", **options,
    )  # fmt: skip
    for x, y, name in zip((q, k, v), gradients, ("dq", "dk", "dv")):
        assert x.grad.dtype == x.dtype and x.grad.device == x.device
        close(x.grad, y, name)


def test_strides():
    """q, k and v inside one packed tensor, and (B, H, S, D) storage: read where they lie, with the same bits."""
    q, k, v = operands(heads=2, kv_heads=2)
    right = mxattn.attention(q, k, v, causal=True)
    assert torch.equal(mxt.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True), right)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(mxattn.attention(*heads_first, causal=True), right)


@pytest.mark.parametrize("layout", [None, "linear", "tiled"])
@pytest.mark.parametrize("block", ["square", "row"])
@pytest.mark.parametrize("jagged", [False, True])
def test_quantize(block, layout, jagged):
    """Payload, scales and dequantized values: the bytes of the CPU backend."""
    x, cu = (packed()[1], packed()[3]) if jagged else (operands(sq=200)[1], None)
    on_host = None if cu is None else cu.cpu()
    got = mxattn.quantize(x, block, layout=layout, cu_seqlens=cu)
    right = mxattn.quantize(x.cpu(), block, layout=layout, cu_seqlens=on_host)
    assert got.payload.is_cuda and got.payload.dtype == torch.float8_e4m3fn and "torch on cuda:0" in repr(got)
    assert torch.equal(got.payload.cpu().view(torch.uint8), right.payload.view(torch.uint8))
    if not jagged:  # a device's arrays are as long as any offsets may need
        assert torch.equal(got.scale_hdim.cpu().view(torch.uint8), right.scale_hdim.view(torch.uint8))
    assert torch.equal(got.dequantize().cpu(), right.dequantize())


def test_mx_tensors():
    """Operands in MXFP8: attention over the values they hold, forward and backward."""
    q, k, v = operands()
    mx = [mxattn.quantize(x) for x in (q, k, v)]
    values = [x.dequantize() for x in mx]
    o, lse = mxattn.attention(*mx, causal=True, return_lse=True)
    assert o.dtype == torch.bfloat16 and o.is_cuda
    right, right_lse = exact(*values, causal=True)
    close(o, right, "o")
    do = torch.randn_like(o)
    gradients = mxattn.attention_backward(do, *mx, o, lse, causal=True)
    exactly = mxattn.attention_backward(*host(do, *values), right, right_lse, causal=True, backend="ref", precision="float64")
    for got, y, name in zip(gradients, exactly, ("dq", "dk", "dv")):
        close(got, y, name)
    with pytest.raises(mxattn.ArgumentError, match="k is on cpu:0 and q on cuda:0"):
        mxattn.attention(mx[0], mxattn.quantize(k.cpu()), mx[2])


def test_rmsnorm_quantize():
    """The bytes of the CPU backend, or, where the device has no such kernel, a refusal: never another device's answer."""
    x = operands()[0]
    try:
        got = mxattn.rmsnorm_quantize(x)
    except mxattn.UnsupportedError as error:
        assert "rmsnorm_quantize" in str(error) or "cuda" in str(error).lower()
        pytest.skip(f"refused: {error}")
    right = mxattn.rmsnorm_quantize(x.cpu())
    same = (got.payload.cpu().view(torch.uint8) == right.payload.view(torch.uint8)).float().mean()
    assert got.payload.is_cuda and same > 0.999, "the sum of squares may end one bit apart"


def test_merge_states():
    """Two halves of the keys, merged on the device, are attention over all of them."""
    q, k, v = operands(torch.float32)
    halves = [mxattn.attention(q, *(x[:, part].contiguous() for x in (k, v)), return_lse=True)
              for part in (slice(0, 128), slice(128, 256))]  # fmt: skip
    o, lse = mxattn.merge_states(*halves[0], *halves[1])
    right = mxattn.merge_states(*host(*halves[0]), *host(*halves[1]))
    assert o.is_cuda and torch.allclose(o.cpu(), right[0], atol=1e-6) and torch.allclose(lse.cpu(), right[1], atol=1e-6)
    close(o, exact(q, k, v)[0], "o")


def test_offsets_on_the_device():
    """int64 offsets are converted there; wrong ones are reported by the status word, and nothing is written."""
    q, k, v, cu = packed()
    right = mxattn.attention(q, k, v, cu, cu, LONGEST, LONGEST, causal=True)
    for longest in (LONGEST, 400, None):
        assert torch.equal(mxattn.attention(q, k, v, cu.long(), cu.long(), longest, longest, causal=True), right)
    for again in range(2):  # the second call goes the short way: changed contents must be seen
        cu[1], cu[2] = 20 + again, 50
        host_cu = cu.cpu()
        o = mxattn.attention(q, k, v, cu, cu, 400, 400, causal=True)
        on_host = [x.cpu() for x in (q, k, v)]
        assert rms(o.float().cpu(), mxattn.attention(*on_host, host_cu, host_cu, 400, 400, causal=True).float()) < 0.1
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    out = torch.full_like(q, 7)
    wrong = torch.tensor([0, 300, 200, 400], dtype=torch.int32, device="cuda")
    mxattn.attention(q, k, v, wrong, wrong, 400, 400, out=out, device_status=word)
    assert word.item() != 0 and bool((out == 7).all())
    with pytest.raises(mxattn.CuSeqlensError):
        mxattn.check_device_status(word.item())


def test_stream():
    """Work goes to the caller's current stream: an answer that waits there for late operands is right."""
    q, k, v = operands()
    right = mxattn.attention(q, k, v, causal=True)
    late = [torch.zeros_like(x) for x in (q, k, v)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for x, y in zip(late, (q, k, v)):
            x.copy_(y)
        o = mxattn.attention(*late, causal=True)
        again = mxattn.quantize(late[1])
    assert not stream.query(), "the calls must not wait for the device"
    stream.synchronize()
    assert torch.equal(o, right)
    assert torch.equal(again.payload.view(torch.uint8), mxattn.quantize(k).payload.view(torch.uint8))


def test_graph():
    """Forward and backward, captured once and replayed over new operands, dense and jagged."""
    for q, k, v, cu in ((*operands(grad=True), None), packed(grad=True)):
        where = () if cu is None else (cu, cu, LONGEST, LONGEST)
        do = torch.randn_like(q)

        def step():
            o = mxt.attention(q, k, v, *where, causal=True, deterministic=True)
            return (o, *torch.autograd.grad(o, (q, k, v), do))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            for x in (q, k, v):
                x.copy_(torch.randn_like(x))
        for x in captured:
            x.detach().zero_()
        graph.replay()
        torch.cuda.synchronize()
        for got, right in zip(captured, step()):
            assert torch.equal(got, right)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    """fullgraph: a break is an error. The compiled program has the bits of the eager one, gradients too."""
    q, k, v, cu = packed(grad=True)

    def step(q, k, v):
        o = mxattn.attention(q * 1.0, k, v, cu, cu, LONGEST, LONGEST, causal=True, deterministic=True)
        return o.float().square().sum()

    step(q, k, v).backward()
    right = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    torch.compile(step, fullgraph=True, backend=backend)(q, k, v).backward()
    for x, y in zip((q, k, v), right):
        assert torch.equal(x.grad, y) if backend == "aot_eager" else rms(x.grad.float().cpu(), y.float().cpu()) < 0.02


@pytest.mark.parametrize("case", ["dense", "jagged", "sink"])
def test_opcheck(case):
    """torch.library.opcheck on CUDA tensors: schema, fake kernel, autograd registration, AOT dispatch."""
    q, k, v, cu = packed(grad=True) if case == "jagged" else (*operands(grad=True, batch=1, sq=70), None)
    longest = None if cu is None else LONGEST
    sink = torch.randn(4, device="cuda", requires_grad=True) if case == "sink" else None
    arguments = (q, k, v, sink, cu, cu, None, None, longest, longest, True, -1, -1, None, 0.0, "bottom_right", False, True,
                 "auto", None, None, None, "mxfp8")  # fmt: skip
    check_operators(case, arguments)


def test_autocast_and_checkpointing():
    from torch.utils.checkpoint import checkpoint

    q, k, v = operands(torch.float32, grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        o = mxattn.attention(q, k, v, causal=True, deterministic=True)
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32
    right = []
    for wrap in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
        for x in (q, k, v):
            x.grad = None
        wrap(lambda q, k, v: mxattn.attention(q * 2, k, v, causal=True, deterministic=True) * 3, q, k, v).sum().backward()
        right.append([x.grad.clone() for x in (q, k, v)])
    assert all(torch.equal(x, y) for x, y in zip(*right))


def test_memory():
    """Hundreds of calls, forward and backward, leave no more memory in use than a few."""
    q, k, v, cu = packed(grad=True)

    def calls(count):
        for _ in range(count):
            mxattn.attention(q, k, v, cu, cu, LONGEST, LONGEST, causal=True).float().sum().backward()
        q.grad = k.grad = v.grad = None
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    assert calls(200) <= calls(5)


def test_refused():
    q, k, v = (x[0] for x in operands(batch=1))
    with pytest.raises(mxattn.ArgumentError, match="cu_seqlens_q is on cpu:0 and q on cuda:0"):
        mxattn.attention(q, k, v, torch.tensor([0, 256]), torch.tensor([0, 256]), 256, 256)
    cu = torch.tensor([0, 256], dtype=torch.int32, device="cuda")
    with pytest.raises(mxattn.ArgumentError, match="max_seqlen_q is a tensor"):
        mxattn.attention(q, k, v, cu, cu, torch.tensor(256, device="cuda"), 256)
    with pytest.raises(mxattn.ArgumentError, match="k is on cpu:0 and q on cuda:0"):
        mxattn.attention(q, k.cpu(), v, cu, cu, 256, 256)
    with pytest.raises(mxattn.ArgumentError, match="backend is 'cpu' and the arrays are on cuda:0"):
        mxattn.attention(q[None], k[None], v[None], backend="cpu")
    with pytest.raises(mxattn.UnsupportedError, match="head_dim"):
        odd = operands(batch=1, dim=264)
        mxattn.attention(*odd)


def test_plan_names_the_kernel():
    q, k, v = operands()
    found = mxattn.plan(q, k, v, causal=True, training=True)
    assert found.backend == "cuda" and "d128" in found.kernel_forward and found.kernel_backward, repr(found)
    assert "the arrays are on cuda:0" in repr(found)


def test_numpy_is_not_touched():
    """Host arrays stay with the host where a GPU is there too."""
    q, k, v = qkv()
    assert isinstance(mxattn.attention(q, k, v), np.ndarray) and mxattn.plan(q, k, v).backend == "cpu"
