"""test_python_torch.py: PyTorch: operators, autograd, torch.compile, autocast, checkpointing, signatures, modules.

On CPU tensors; what needs a GPU is in test_python_torch_cuda.py.

SPDX-License-Identifier: Apache-2.0
"""

import copy
import math

import mxattn
import numpy as np
import pytest
from cli_oracle import attention as oracle
from python_data import limit, qkv, rms

torch = pytest.importorskip("torch", exc_type=ImportError)
from mxattn import torch as mxt  # noqa: E402
from torch.nn import functional  # noqa: E402
from python_torch import check_operators  # noqa: E402


def operands(grad=True, dtype=torch.float32, **shape):
    return [torch.from_numpy(x).to(dtype).requires_grad_(grad) for x in qkv(**shape)]


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numpy_and_torch_agree(dtype):
    """The same bits as through NumPy, in the tensor's dtype, without a copy."""
    q, k, v = operands(False, dtype)
    o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
    assert o.dtype == dtype and lse.dtype == torch.float32
    if dtype == torch.float32:
        right = mxattn.attention(*(x.numpy() for x in (q, k, v)), causal=True)
        assert same(o, torch.from_numpy(right))
    packed = torch.stack([q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1)], 2)
    again = mxt.flash_attn_qkvpacked_func(packed, causal=True)
    whole = mxattn.attention(q, k.repeat_interleave(1, 2).repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1), causal=True)
    assert same(again, whole)


@pytest.mark.parametrize("with_lse", [False, True])
def test_autograd(with_lse):
    """Gradients through O, and through LSE, are those of the library, and near float64's."""
    q, k, v = operands(sq=100)
    o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
    do, dlse = torch.randn_like(o), torch.randn_like(lse)
    (o * do).sum().backward(retain_graph=True) if not with_lse else ((o * do).sum() + (lse * dlse).sum()).backward()
    numbers = [x.detach().numpy() for x in (do, q, k, v, o, lse)]
    right = mxattn.attention_backward(*numbers, causal=True, dlse=dlse.numpy() if with_lse else None)
    for x, y in zip((q, k, v), right):
        assert same(x.grad, torch.from_numpy(y))
    exact = [oracle(*(x[b] for x in numbers[1:4]), numbers[0][b], dlse[b].numpy() if with_lse else None, causal=True)
             for b in range(2)]  # fmt: skip
    for i, (x, most) in enumerate(zip((q, k, v), ("DQ_DK_RMS", "DQ_DK_RMS", "DV_RMS"))):
        assert rms(x.grad, np.stack([e[2 + i] for e in exact])) < limit(most) * limit("MODEL_FACTOR") + limit("MODEL_FLOOR")


def test_lse_alone():
    q, k, v = operands(sq=40)
    mxattn.attention(q, k, v, return_lse=True)[1].sum().backward()
    assert q.grad.abs().sum() > 0 and k.grad.abs().sum() > 0


def test_sink_gradient():
    q, k, v = operands(sq=40)
    sink = torch.randn(4, requires_grad=True)
    mxattn.attention(q, k, v, sink=sink).square().sum().backward()
    assert sink.grad.shape == (4,) and sink.grad.abs().min() > 0


def test_merge_states_has_no_gradient_and_says_so():
    q, k, v = operands(sq=40)
    state = mxattn.attention(q, k, v, return_lse=True)
    with pytest.raises(mxattn.ArgumentError, match="no derivative"):
        mxattn.merge_states(*state, *state)
    with torch.no_grad():
        o, lse = mxattn.merge_states(*state, *state)
    torch.testing.assert_close(o, state[0].detach())
    torch.testing.assert_close(lse, state[1].detach() + math.log(2))


CASES = {
    "dense": dict(causal=True),
    "window": dict(window_size=(8, 0), softcap=3.0, softmax_scale=0.2),
    "strict": dict(causal=True, causal_strict=True),
}


@pytest.mark.parametrize("case", [*CASES, "jagged", "sink"])
def test_opcheck(case):
    """torch.library.opcheck: schema, fake kernel, autograd registration, AOT dispatch."""
    q, k, v = operands(sq=33, dim=32)
    cu = None
    options = {"causal": False, "window_size": (-1, -1), "softmax_scale": None, "softcap": 0.0, "causal_strict": False}
    options.update(CASES.get(case, {}))
    sink = torch.randn(4, requires_grad=True) if case == "sink" else None
    if case == "jagged":
        q, k, v = (x.detach().reshape(66, *x.shape[2:]).requires_grad_() for x in (q, k, v))
        cu = torch.tensor([0, 20, 66], dtype=torch.int32)
    longest = None if cu is None else 46
    arguments = (
        q, k, v, sink, cu, cu, None, None, longest, longest, options["causal"], *options["window_size"],
        options["softmax_scale"], options["softcap"], "bottom_right", options["causal_strict"], False, "auto", None, None,
        None, "mxfp8",
    )  # fmt: skip
    check_operators(case, arguments)


@pytest.mark.parametrize("entry", [mxattn.attention, mxt.attention])
def test_compile_without_a_graph_break(entry):
    """fullgraph: a break is an error. The compiled program has the bits of the eager one, gradients too."""
    q, k, v = operands(sq=48, dim=32)

    def step(q, k, v):
        return entry(q * 1.0, k, v, causal=True).square().sum()

    step(q, k, v).backward()
    right = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v).backward()
    assert all(same(x.grad, y) for x, y in zip((q, k, v), right))


def test_compile_of_other_lengths():
    """B105: max_seqlen as an int that changes, and as a 0-d tensor, without a recompilation for each value."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def step(q, k, v, cu, longest):
        return mxt.attention(q, k, v, cu, cu, longest, longest, causal=True)

    for tokens in (40, 50, 61, 72, 80):
        q, k, v = (torch.from_numpy(x[0]) for x in qkv(batch=1, sq=tokens, dim=32))
        cu = torch.tensor([0, 10, tokens], dtype=torch.int32)
        o = step(q, k, v, cu, tokens - 10)
        assert same(o, mxattn.attention(q, k, v, cu, cu, causal=True))
        assert same(o, mxattn.attention(q, k, v, cu, cu, torch.tensor(tokens - 10), torch.tensor(tokens - 10), causal=True))
    assert counter.frame_count <= 2


def test_autocast():
    q, k, v = operands(sq=40)
    with torch.autocast("cpu", torch.bfloat16):
        o = mxattn.attention(q, k, v, causal=True)
    assert o.dtype == torch.bfloat16
    assert same(o, mxattn.attention(*(x.detach().bfloat16() for x in (q, k, v)), causal=True))
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_checkpointing():
    """Recomputed activations give the same bits."""
    from torch.utils.checkpoint import checkpoint

    q, k, v = operands(sq=40)

    def block(q, k, v):
        return mxattn.attention(q * 2, k, v, causal=True) * 3

    block(q, k, v).sum().backward()
    right = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    checkpoint(block, q, k, v, use_reentrant=False).sum().backward()
    assert all(same(x.grad, y) for x, y in zip((q, k, v), right))


def test_flash_attention_signatures():
    q, k, v = (x[0] for x in operands(False, batch=1, sq=70))
    cu = torch.tensor([0, 30, 70], dtype=torch.int32)
    right = mxattn.attention(q, k, v, cu, cu, 40, 40, causal=True, softmax_scale=0.1, window_size=(16, 0))
    o = mxt.flash_attn_varlen_func(q, k, v, cu, cu, 40, 40, softmax_scale=0.1, causal=True, window_size=(16, 0))
    assert same(o, right)
    o, lse, nothing = mxt.flash_attn_varlen_func(q, k, v, cu, cu, 40, 40, 0.0, None, True, return_attn_probs=True)
    assert lse.shape == (4, 70) and nothing is None
    packed = torch.stack([k, k, v], 1)
    assert same(
        mxt.flash_attn_varlen_qkvpacked_func(packed, cu, 40, causal=True), mxattn.attention(k, k, v, cu, cu, causal=True)
    )
    dense = mxt.flash_attn_func(q[None], k[None], v[None], causal=True)
    assert same(dense, mxattn.attention(q[None], k[None], v[None], causal=True))


def test_B114_dropout():
    """Asked for dropout, ALiBi or pages, the answer is a refusal, not attention without them."""
    q, k, v = operands(False)
    for options, word in (
        ({"dropout_p": 0.1}, "dropout_p is 0.1"), ({"alibi_slopes": torch.ones(4)}, "alibi_slopes"),
    ):  # fmt: skip
        with pytest.raises(mxattn.UnsupportedError, match=word):
            mxt.flash_attn_func(q, k, v, **options)
    layer = mxt.MultiheadAttention(32, 2, dropout=0.1, batch_first=True)
    x = torch.randn(1, 8, 32)
    with pytest.raises(mxattn.UnsupportedError, match="dropout is 0.1"):
        layer(x, x, x)
    layer.eval()(x, x, x)


def test_scaled_dot_product_attention():
    q, k, v = (x.transpose(1, 2) for x in operands(False, sq=150, heads=4, kv_heads=4))
    for causal in (False, True):
        right = functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
        o = mxt.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert o.shape == right.shape and rms(o, right) < limit("O_RMS_BF16")
    with pytest.raises(mxattn.UnsupportedError, match="attn_mask"):
        mxt.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(150, 150))


def test_multihead_module():
    """The parameters of torch.nn.MultiheadAttention, its output within MXFP8's error, and gradients for all of them."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(128, 4, batch_first=True)
    ours = mxt.MultiheadAttention(128, 4, batch_first=True)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    x = torch.randn(2, 60, 128)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(60)
    right = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    got = ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    assert rms(got.detach(), right.detach()) < limit("O_RMS_BF16")
    got.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in ours.parameters())
    with pytest.raises(mxattn.UnsupportedError, match="need_weights"):
        ours(x, x, x, need_weights=True)
    core = mxt.Attention(causal=True)
    q, k, v = operands(False)
    assert same(core(q, k, v), mxattn.attention(q, k, v, causal=True)) and "causal=True" in repr(core)


def test_mx_tensors():
    """Typed FP8 tensors of PyTorch, and uint8 with a type; gradients are refused, not dropped."""
    q, k, v = operands(False)
    mx = [mxattn.quantize(x) for x in (q, k, v)]
    assert mx[0].payload.dtype == torch.float8_e4m3fn and "torch on cpu" in repr(mx[0])
    o = mxattn.attention(*mx, causal=True)
    assert o.dtype == torch.bfloat16
    raw = mxattn.MxTensor(mx[0].payload.view(torch.uint8), mx[0].scale_hdim, dtype="e4m3", layout="compact")
    assert same(mxattn.attention(raw, *mx[1:], causal=True), o)
    assert same(mxt.attention(*mx, causal=True), o)
    of_numpy = mxattn.attention(*(mxattn.quantize(x.numpy()) for x in (q, k, v)), causal=True)
    assert isinstance(of_numpy, np.ndarray), "a plan made for one library's tensors answers with that library's arrays"
    with pytest.raises(mxattn.ArgumentError, match="carries no gradient"):
        mxattn.attention(q.requires_grad_(), *mx[1:])


def test_lazy_negatives():
    """conj().imag is a view whose memory holds the other sign."""
    assert torch.zeros(1, dtype=torch.complex64).conj().imag.is_neg()
    q, k, v = operands(False)
    lazy = torch._neg_view(q)
    with pytest.raises(mxattn.LayoutError, match="q is the negative of what lies in memory"):
        mxattn.attention(lazy, k, v)
    mxattn.attention(q, k, v)  # a plan of the same shape, which must not be found for the next
    with pytest.raises(mxattn.LayoutError, match="resolve_neg"):
        mxattn.attention(lazy, k, v)
    assert same(mxattn.attention(lazy.resolve_neg(), k, v), mxattn.attention(-q, k, v))


def test_what_operators_do_not_take():
    """Not left out in silence where an operand needs a gradient."""
    q, k, v = operands()
    for name, value in {"out": torch.zeros_like(q), "context": mxattn.Context(threads=1)}.items():
        with pytest.raises(mxattn.ArgumentError, match=f"{name} is given"):
            mxattn.attention(q, k, v, **{name: value})


def test_lengths_of_numpy_are_kept():
    """An array of lengths that changes between forward and backward does not change the gradient."""
    cu = np.array([0, 7, 40], np.int32)
    q, k, v = (x.detach().reshape(-1, *x.shape[2:])[:40].requires_grad_() for x in operands())
    right = torch.autograd.grad(mxattn.attention(q, k, v, cu, cu).square().sum(), q)[0]
    o = mxattn.attention(q, k, v, cu, cu)
    cu[1] = 20
    assert same(torch.autograd.grad(o.square().sum(), q)[0], right)


@pytest.mark.parametrize("shape", [(2, 0, 4, 64), (0, 3, 4, 64), (0, 4, 64)])
def test_sink_gradient_of_an_empty_batch(shape):
    q = torch.zeros(shape, requires_grad=True)
    sink = torch.ones(4, requires_grad=True)
    cu = [torch.tensor([0, 0])] * 2 if len(shape) == 3 else []
    for _ in range(20):  # memory that others left
        torch.full((4,), float("nan"))
        assert same(torch.autograd.grad(mxattn.attention(q, q, q, *cu, sink=sink).sum(), sink)[0], torch.zeros(4))


def test_refusals():
    q, k, v = operands(False)
    with pytest.raises(mxattn.DtypeError, match="q has dtype torch.float64|q has dtype float64"):
        mxattn.attention(q.double(), k, v)
    with pytest.raises(mxattn.ArgumentError, match="meta"):
        mxattn.attention(q.to("meta"), k, v, out=torch.empty_like(q))
    with pytest.raises(mxattn.ShapeError, match="cu_seqlens"):
        mxattn.attention(q[0], k[0], v[0])
    with pytest.raises(mxattn.MxattnError):
        torch.compile(mxattn.attention, backend="eager")(q[..., :12], k[..., :12], v)
