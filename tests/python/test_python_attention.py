"""test_python_attention.py: attention and its gradients over NumPy arrays.

SPDX-License-Identifier: Apache-2.0
"""

import gc
import resource
import threading

import ml_dtypes
import mxattn
import numpy as np
import pytest
from cli_oracle import attention as oracle
from mxattn import _attention
from python_data import limit, normal, qkv, rms, same_bits

BF16 = ml_dtypes.bfloat16


def truth(q, k, v, **options):
    """O and LSE of each sequence of a dense batch, float64."""
    pairs = [oracle(*x, **options) for x in zip(q, k, v)]
    return np.stack([o for o, _ in pairs]), np.stack([lse for _, lse in pairs])


@pytest.mark.parametrize("causal", [False, True])
def test_against_float64(causal):
    q, k, v = qkv(sq=300)
    o, lse = mxattn.attention(q, k, v, causal=causal, return_lse=True)
    right, right_lse = truth(q, k, v, causal=causal)
    assert o.dtype == np.float32 and o.shape == q.shape and lse.shape == (2, 4, 300)
    assert limit("O_RMS_LEAST") < rms(o, right) < limit("O_RMS_BF16")
    exact, exact_lse = mxattn.attention(
        q, k, v, causal=causal, return_lse=True, backend="ref", precision="float64"
    )  # fmt: skip
    assert rms(exact, right) < limit("EXACT_INPUT")
    np.testing.assert_allclose(exact_lse, right_lse, atol=limit("LSE_ABSOLUTE"))
    model = mxattn.attention(q, k, v, causal=causal, backend="ref", precision="model")
    assert rms(o, model) < limit("O_MODEL_BF16")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_dtypes(dtype):
    """O has q's dtype, or the one asked for."""
    q, k, v = qkv(dtype=dtype)
    assert mxattn.attention(q, k, v).dtype == dtype
    for word, kind in (("float32", np.float32), ("bfloat16", BF16), ("float16", np.float16)):
        assert mxattn.attention(q, k, v, out_dtype=word).dtype == kind
    right, _ = truth(*(x.astype(np.float64) for x in (q, k, v)))
    assert rms(mxattn.attention(q, k, v).astype(np.float32), right) < limit("O_RMS_BF16") * limit("MODEL_FACTOR")


def test_gradients():
    q, k, v = qkv(sq=200, sk=230)
    do, dlse = normal(*q.shape, seed=7), normal(2, 4, 200, seed=8)
    o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
    got = mxattn.attention_backward(do, q, k, v, o, lse, dlse=dlse, causal=True)
    right = [oracle(*x, causal=True)[2:5] for x in zip(q, k, v, do, dlse)]
    limits = (limit("DQ_DK_RMS"), limit("DQ_DK_RMS"), limit("DV_RMS"))
    for i, (x, most) in enumerate(zip(got, limits)):
        assert x.dtype == np.float32 and rms(x, np.stack([r[i] for r in right])) < most, "dq dk dv".split()[i]


def test_sink_and_its_gradient():
    q, k, v = qkv(sq=64)
    sink, do = normal(4, seed=5), normal(*q.shape, seed=7)
    o, lse = mxattn.attention(q, k, v, sink=sink, return_lse=True)
    right = [oracle(*x, sink=sink) for x in zip(q, k, v, do)]
    assert rms(o, np.stack([r[0] for r in right])) < limit("O_RMS_BF16")
    dsink = mxattn.attention_backward(do, q, k, v, o, lse, sink=sink)[3]
    exact = {"backend": "ref", "precision": "float64"}
    exact_o, exact_lse = mxattn.attention(q, k, v, sink=sink, return_lse=True, **exact)
    in_float64 = mxattn.attention_backward(do, q, k, v, exact_o, exact_lse, sink=sink, **exact)[3]
    assert rms(in_float64, sum(r[5] for r in right)) < limit("EXACT_INPUT")
    model = mxattn.attention_backward(do, q, k, v, o, lse, sink=sink, backend="ref", precision="model")[3]
    assert dsink.shape == (4,) and rms(dsink, model) < limit("DQ_DK_MODEL")  # a sum that cancels: against the model


def test_jagged_is_each_sequence_alone():
    q, k, v = (x[0] for x in qkv(batch=1, sq=130))
    cu = np.array([0, 37, 37, 130], np.int32)
    o, lse = mxattn.attention(q, k, v, cu, cu, causal=True, return_lse=True)
    do = normal(*q.shape, seed=9)
    grads = mxattn.attention_backward(do, q, k, v, o, lse, cu, cu, causal=True)
    for a, b in ((0, 37), (37, 130)):
        one = [x[None, a:b] for x in (q, k, v)]
        alone, alone_lse = mxattn.attention(*one, causal=True, return_lse=True)
        assert same_bits(o[a:b], alone[0]) and same_bits(np.ascontiguousarray(lse[:, a:b]), alone_lse[0])
        there = mxattn.attention_backward(do[None, a:b], *one, alone, alone_lse, causal=True)
        assert all(same_bits(x[a:b], y[0]) for x, y in zip(grads, there))
    longer = mxattn.attention(q, k, v, cu, cu, 130, 130, causal=True)
    assert same_bits(longer, o), "a larger max_seqlen changes no bit"


def test_offsets_are_read_in_each_call():
    """A call like an earlier one goes a shorter way; what cu_seqlens holds by then still counts, and is still checked."""
    q, k, v = (x[0] for x in qkv(batch=1, sq=90))
    cu_q, cu_k = np.array([0, 40, 90], np.int32), np.array([0, 40, 90], np.int32)

    def call(**options):
        return mxattn.attention(q, k, v, cu_q, cu_k, 90, 90, causal=True, return_lse=True, **options)

    def alone(*ends):
        parts = [mxattn.attention(*(x[None, a:b] for x in (q, k, v)), causal=True)[0] for a, b in zip(ends, ends[1:])]
        return np.concatenate(parts)

    for middle in (40, 40, 3, 89):
        cu_q[1] = cu_k[1] = middle
        o, lse = call()
        assert same_bits(o, alone(0, middle, 90)) and lse.shape == (4, 90)
        assert same_bits(mxattn.attention(q, k, v, cu_q, cu_q, 90, 90, causal=True), o)
        assert same_bits(mxattn.attention(q, k, v, [0, middle, 90], cu_k.astype(np.int64), 90, 90, causal=True), o)
    cu_k[1] = 95
    for _ in range(2):
        with pytest.raises(mxattn.CuSeqlensError, match="cu_seqlens_k"):
            call()
    cu_k[1] = 40
    with pytest.raises(mxattn.CuSeqlensError):
        mxattn.attention(q, k, v, cu_k, cu_k, 30, 30, causal=True)
    strided = np.zeros((3, 2), np.int32)
    strided[:, 0] = 0, 40, 90
    for _ in range(2):
        assert same_bits(mxattn.attention(q, k, v, strided[:, 0], strided[:, 0], 90, 90, causal=True), alone(0, 40, 90))


def test_seqused():
    q, k, v = qkv(sq=64)
    used = np.array([64, 40], np.int32)
    o = mxattn.attention(q, k, v, seqused_k=used)
    assert same_bits(o[1], mxattn.attention(q[1:], k[1:, :40], v[1:, :40])[0])
    plain = mxattn.attention(q, k, v)
    assert same_bits(o[0], plain[0]) and not same_bits(o[1], plain[1]), "seqused of an earlier call is forgotten"


def test_window_softcap_scale():
    q, k, v = qkv(sq=150)
    options = {"window": (20, 3), "softcap": 5.0, "scale": 0.3}
    o = mxattn.attention(q, k, v, window_size=(20, 3), softcap=5.0, softmax_scale=0.3)
    assert rms(o, truth(q, k, v, **options)[0]) < limit("O_RMS_BF16")
    same = mxattn.attention(q, k, v, window_size=[np.int64(20), np.int64(3)], softcap=5, softmax_scale=np.float64(0.3))
    assert same_bits(o, same)
    assert not same_bits(o, mxattn.attention(q, k, v, window_size=(20, 3), softcap=5.0, softmax_scale=0.31))
    assert same_bits(
        mxattn.attention(q, k, v, causal=True), mxattn.attention(q, k, v, window_size=(-1, 0)),
    )  # fmt: skip


def test_causal_strict():
    q, k, v = qkv(sq=96)
    before = mxattn.attention(q, k, v, causal=True, causal_strict=True)
    k[:, 50:], v[:, 50:] = np.nan, np.nan
    after = mxattn.attention(q, k, v, causal=True, causal_strict=True)
    assert same_bits(before[:, :50], after[:, :50]) and np.isnan(after[:, 50:]).all()


def test_out():
    q, k, v = qkv()
    out = np.full((2, 4, 70, 64), np.nan, np.float32).transpose(0, 2, 1, 3)  # (B, H, S, D) storage
    assert mxattn.attention(q, k, v, out=out) is out
    assert same_bits(np.ascontiguousarray(out), mxattn.attention(q, k, v))
    quantized = mxattn.quantize(np.zeros_like(q), block="row")
    mxattn.attention(q, k, v, out=quantized)
    assert rms(quantized.dequantize(), out) < limit("O_MODEL_FP8") * limit("MODEL_FACTOR") + limit("MODEL_FLOOR")


def test_fp8_operands():
    """Quantized ahead of time or by the call: the same bytes, the same O."""
    q, k, v = qkv()
    mx = [mxattn.quantize(x) for x in (q, k, v)]
    o = mxattn.attention(*mx, causal=True)
    assert o.dtype == BF16
    assert same_bits(mxattn.attention(*mx, causal=True, out_dtype="float32"), mxattn.attention(q, k, v, causal=True))


def test_merge_states():
    q, k, v = qkv(sq=64)
    halves = [mxattn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (np.s_[:32], np.s_[32:])]
    o, lse = mxattn.merge_states(*halves[0], *halves[1])
    right, right_lse = mxattn.attention(q, k, v, return_lse=True)
    assert rms(o, right) < limit("O_MODEL_BF16")
    np.testing.assert_allclose(lse, right_lse, atol=10 * limit("LSE_ABSOLUTE"))
    nothing = (np.zeros_like(o), np.full_like(lse, -np.inf))
    assert same_bits(mxattn.merge_states(o, lse, *nothing)[0], o)


def test_empty_and_unseen():
    q, k, v = qkv()
    assert mxattn.attention(q[:0], k[:0], v[:0]).shape == (0, 70, 4, 64)
    o, lse = mxattn.attention(q, k[:, :10], v[:, :10], causal=True, return_lse=True)
    assert not o[:, :60].any() and np.isneginf(lse[:, :, :60]).all() and np.isfinite(lse[:, :, 60:]).all()


def test_plan():
    q, k, v = qkv()
    made = mxattn.plan(q, k, v, causal=True, training=True)
    assert made.backend == "cpu" and "forward" in made.kernel_forward and "backward" in made.kernel_backward
    assert made.softmax_scale == 0.125 and "the arrays are on the host" in repr(made)
    shapes = mxattn.plan(q.shape, k.shape, v.shape, dtype="float32", causal=True, training=True)
    assert shapes.kernel_forward == made.kernel_forward and "asked for" not in shapes.why
    assert mxattn.plan(q, k, v, backend="ref").backend == "ref"
    jagged = mxattn.plan(q[0], k[0], v[0], [0, 70], [0, 70])
    assert jagged.kernel_backward == "" and jagged.workspace_forward_bytes > 0


def test_context():
    q, k, v = qkv()
    one = mxattn.Context(threads=1)
    assert same_bits(mxattn.attention(q, k, v, context=one), mxattn.attention(q, k, v))
    portable = mxattn.Context(isa="portable")
    assert "portable" in mxattn.plan(q, k, v, context=portable).kernel_forward
    assert mxattn.info(one).backends["cpu"].threads == 1
    with pytest.raises(mxattn.ArgumentError, match="isa is 'avx1024'"):
        mxattn.Context(isa="avx1024")


def test_threads():
    """Many threads through the same and through other plans: the bits of one thread."""
    inputs = [qkv(sq=s, seed=s) for s in (33, 64, 100)]
    right = [mxattn.attention(*x, causal=True) for x in inputs]
    wrong = []

    def work(start):
        for i in range(60):
            which = (start + i) % 3
            if not same_bits(mxattn.attention(*inputs[which], causal=True), right[which]):
                wrong.append((start, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_leak():
    """Memory stays where it was over calls, plans, tensors and refusals."""
    q, k, v = qkv(batch=1, sq=32, dim=16)
    do = normal(*q.shape, seed=3)

    def round_trip(i):
        o, lse = mxattn.attention(q, k, v, softmax_scale=1.0 + i * 1e-6, return_lse=True)  # a plan each
        mxattn.attention_backward(do, q, k, v, o, lse)
        mxattn.quantize(k).with_scales("tiled").dequantize()
        with pytest.raises(mxattn.ShapeError):
            mxattn.attention(q, k[..., :8], v)

    for i in range(300):
        round_trip(i)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(1500):
        round_trip(1000 + i)
    gc.collect()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4096, f"{grown} KiB more after 1500 rounds"  # a leaked plan is 2 KiB, a leaked O 8 KiB
    assert len(_attention._plans) <= _attention.MOST_PLANS
    mxattn.clear_cache()
    assert not _attention._plans
