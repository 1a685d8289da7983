"""test_python_tensor.py: MxTensor: bytes as the format says, layouts, tags, explicit types.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes
import itertools

import ml_dtypes
import mxattn
import numpy as np
import pytest
from cli_oracle import quantize_sequence, tiled
from mxattn import _abi as abi
from python_data import normal, qkv, same_bits

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("block", ["row", "column", "square"])
def test_bytes(block, dtype):
    """Payload and scales, byte for byte, against NumPy and ml_dtypes."""
    x = normal(1, 70, 2, 72) * np.exp2(normal(1, 70, 2, 72, seed=1) * 5)
    payload, scales = quantize_sequence(x[0], block, "rceil", dtype)
    made = mxattn.quantize(x, block, dtype, layout="linear")
    assert same_bits(np.asarray(made.payload).view(np.uint8)[0], payload)
    if made.scale_hdim is not None:
        assert same_bits(np.asarray(made.scale_hdim).view(np.uint8)[0], np.ascontiguousarray(scales[..., ::32]))
    if made.scale_seq is not None:
        assert same_bits(np.asarray(made.scale_seq).view(np.uint8)[0], np.ascontiguousarray(scales[::32]))
    right = payload.view(made.payload.dtype).astype(np.float32) * np.exp2(scales.astype(np.float32) - 127)
    assert same_bits(made.dequantize()[0], right)


def test_types():
    made = mxattn.quantize(normal(1, 32, 1, 32))
    assert made.payload.dtype == E4M3 and made.scale_hdim.dtype == E8M0
    assert made.dequantize("bfloat16").dtype == ml_dtypes.bfloat16
    out = np.zeros((1, 32, 1, 32), np.float16)
    assert made.dequantize(out=out) is out and same_bits(out, made.dequantize("float16"))


def test_uint8_needs_its_type():
    made = mxattn.quantize(normal(1, 40, 2, 32), "row")
    raw, scales = made.payload.view(np.uint8), made.scale_hdim.view(np.uint8)
    with pytest.raises(mxattn.DtypeError, match="say 'e4m3' or 'e5m2'"):
        mxattn.MxTensor(raw, scales, block="row")
    again = mxattn.MxTensor(raw, scales, block="row", dtype="e4m3")
    assert same_bits(again.dequantize(), made.dequantize())
    with pytest.raises(mxattn.DtypeError, match="'e5m2' and payload has dtype e4m3"):
        mxattn.MxTensor(made.payload, scales, block="row", dtype="e5m2")
    assert not same_bits(mxattn.MxTensor(raw, scales, block="row", dtype="e5m2").dequantize(), made.dequantize())


def test_layouts():
    """linear -> tiled as the format draws it, square blocks between their axes, and what has no way is refused."""
    cu = np.array([0, 33, 33, 103], np.int32)
    x = normal(103, 2, 72)
    row = mxattn.quantize(x, "row", cu_seqlens=cu)
    units = row.with_scales("tiled").scale_hdim.view(np.uint8)
    for h in range(2):
        parts = [row.scale_hdim.view(np.uint8)[a:b, h] for a, b in zip(cu, cu[1:])]
        assert same_bits(units[h].reshape(-1, 1, 512), np.ascontiguousarray(tiled(parts)))
    square = mxattn.quantize(x, cu_seqlens=cu)
    assert square.layout == "compact" and square.scale_hdim.shape == (5, 2, 3)
    both = square.with_scales("linear")
    assert both.payload is square.payload and both.scale_hdim.shape == (103, 2, 3) and both.scale_seq.shape == (5, 2, 72)
    only_seq = mxattn.MxTensor(both.payload, None, both.scale_seq, cu_seqlens=cu)
    assert same_bits(only_seq.with_scales("linear", ("hdim",)).scale_hdim, both.scale_hdim)
    with pytest.raises(mxattn.LayoutError, match="row blocks"):
        row.with_scales("tiled", ("seq",))
    with pytest.raises(mxattn.LayoutError):
        row.with_scales("compact")


def test_sizes():
    """Arrays are as large as mxattn_scales_bytes says, and a shorter one is refused for every layout."""
    for shape, cu in (((2, 70, 3, 72), None), ((103, 2, 40), np.array([0, 33, 33, 103], np.int32))):
        for layout, axis in itertools.product(abi.LAYOUTS, abi.AXES):
            tags, size = abi.Tags(abi.E4M3, abi.SQUARE, 0, 0), ctypes.c_int64()
            batch, tokens = (shape[0], shape[1]) if cu is None else (3, shape[0])
            abi.check(
                abi.lib.mxattn_scales_bytes(
                    ctypes.addressof(tags), abi.AXES[axis], abi.LAYOUTS[layout], batch, tokens,
                    None if cu is None else cu.ctypes.data, shape[-2], shape[-1], ctypes.addressof(size),
                )
            )  # fmt: skip
            made = mxattn.quantize(np.zeros(shape, np.float32), layout=layout, axes=(axis,), cu_seqlens=cu)
            scales = np.asarray(made.scale_hdim if axis == "hdim" else made.scale_seq).view(np.uint8)
            assert scales.size == size.value, (shape, layout, axis)
            short = {"scale_" + axis: scales.ravel()[:-1]}
            with pytest.raises(mxattn.ShapeError, match=f"needs {size.value}"):
                mxattn.MxTensor(made.payload, layout=layout, cu_seqlens=cu, **short)


def test_read_only_outputs():
    x = normal(1, 32, 1, 32)
    out = np.zeros_like(x)
    out.flags.writeable = False
    for call in (lambda: mxattn.attention(x, x, x, out=out), lambda: mxattn.quantize(x).dequantize(out=out)):
        with pytest.raises(mxattn.ArgumentError, match="out is read-only"):
            call()
    assert not out.any()


@pytest.mark.parametrize("layout", ["linear", "compact", "tiled"])
def test_attention_reads_every_layout(layout):
    q, k, v = qkv()
    right = mxattn.attention(*(mxattn.quantize(x) for x in (q, k, v)))
    assert same_bits(mxattn.attention(*(mxattn.quantize(x, layout=layout) for x in (q, k, v))), right)
    jagged = [mxattn.quantize(x.reshape(140, *x.shape[2:]), layout=layout, cu_seqlens=[0, 70, 140]) for x in (q, k, v)]
    assert same_bits(mxattn.attention(*jagged, [0, 70, 140], [0, 70, 140]).reshape(right.shape), right)


def test_strided_scales():
    """Scale arrays that are views: padded rows, as other libraries keep them."""
    made = mxattn.quantize(normal(1, 64, 2, 64), "row")
    padded = np.full((64, 2, 8), 0xFF, np.uint8)
    padded[:, :, :2] = made.scale_hdim.view(np.uint8)[0]
    again = mxattn.MxTensor(made.payload[0], padded[:, :, :2], block="row")
    assert same_bits(again.dequantize(), made.dequantize()[0])
    explicit = mxattn.MxTensor(made.payload[0], padded, block="row", scale_strides=(16, 8, 1))
    assert same_bits(explicit.dequantize(), made.dequantize()[0])
    with pytest.raises(mxattn.ShapeError, match="holds 128 bytes; layout linear needs 256"):
        mxattn.MxTensor(made.payload, np.zeros(128, np.uint8), block="row")


def test_folded_and_centred():
    x = normal(1, 64, 2, 64)
    folded = mxattn.quantize(x, folded=True, layout="linear")
    scales = folded.scale_hdim.view(np.uint8)
    assert (scales[..., :1] == scales).all() and "folded" in repr(folded)
    v = x + 100
    centred = mxattn.quantize(v, centred=True)
    np.testing.assert_allclose(centred.centre[0], v[0].mean(0), rtol=1e-6)
    assert np.abs(centred.dequantize() - v).max() < np.abs(mxattn.quantize(v).dequantize() - v).max() / 4
    q, k, _ = qkv(batch=1, sq=64, heads=2)
    o = mxattn.attention(mxattn.quantize(q), mxattn.quantize(k), centred, out_dtype="float32")
    assert np.abs(o - 100).max() < 2
    with pytest.raises(mxattn.UnsupportedError, match="only v may carry a mean"):
        mxattn.attention(mxattn.quantize(q, centred=True), mxattn.quantize(k), centred)


def test_matrix_and_seqused():
    matrix = mxattn.quantize(normal(70, 96), "row")
    assert matrix.ndim == 2 and matrix.dequantize().shape == (70, 96)
    x = normal(2, 40, 1, 32)
    used = mxattn.quantize(x, seqused=[40, 10])
    assert not used.dequantize()[1, 10:].any() and used.dequantize()[1, :10].any()


def test_repr():
    made = mxattn.quantize(normal(103, 2, 72), cu_seqlens=[0, 33, 103], layout="tiled")
    for word in ("e4m3 (103, 2, 72)", "square blocks of 32", "hdim+seq scales tiled", "2 sequences", "numpy on cpu"):
        assert word in repr(made)
    assert f"{made.nbytes} bytes" in repr(made)
