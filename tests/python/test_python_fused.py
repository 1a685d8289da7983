"""test_python_fused.py: RMSNorm and GEMM that write MXFP8, against NumPy in float64.

SPDX-License-Identifier: Apache-2.0
"""

import ml_dtypes
import mxattn
import numpy as np
import pytest
from python_data import limit, normal, rms, same_bits


def norm(x, weight=1.0, eps=1e-6):
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def turn(x, cosine, sine):
    """Pairs (d, d + D/2) of (S, H, D)."""
    a, b = np.split(x, 2, -1)
    cosine, sine = cosine[: len(x), None], sine[: len(x), None]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def rope(positions, dims):
    angle = np.arange(positions)[:, None] * 100.0 ** -(np.arange(dims // 2) * 2 / dims)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@pytest.mark.parametrize("block", ["row", "square"])
def test_rmsnorm(block):
    x, weight, tables = normal(50, 2, 64), normal(64, seed=1), rope(50, 64)
    y, wide, rstd = mxattn.rmsnorm_quantize(
        x, weight, block=block, rope=mxattn.Rope(*tables), return_wide=True, return_rstd=True
    )  # fmt: skip
    right = turn(norm(x, weight), *tables)
    np.testing.assert_allclose(wide, right, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rstd, 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1) + 1e-6), rtol=1e-6)
    alone = mxattn.quantize(wide, block)
    assert same_bits(y.dequantize(), alone.dequantize()) and same_bits(np.asarray(y.payload), np.asarray(alone.payload))


def test_rmsnorm_gradient():
    """Against central differences of the norm in float64."""
    x, weight, dy = normal(6, 2, 32), normal(32, seed=1), normal(6, 2, 32, seed=2)
    _, rstd = mxattn.rmsnorm_quantize(x, weight, return_rstd=True)
    dx, dweight = mxattn.rmsnorm_backward(x, dy, rstd, weight)
    step = 1e-4
    for _ in range(3):
        direction = normal(*x.shape, seed=3).astype(np.float64)
        difference = ((norm(x + step * direction, weight) - norm(x - step * direction, weight)) * dy).sum() / (2 * step)
        assert abs((dx * direction).sum() - difference) < 1e-4 * abs(difference) + 1e-4
    np.testing.assert_allclose(dweight, (norm(x) * dy).sum((0, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu", "relu_squared"])
def test_gemm(activation):
    a, b = mxattn.quantize(normal(70, 96), "row"), mxattn.quantize(normal(128, 96, seed=1), "row")
    bias = normal(128, seed=2)
    product = a.dequantize().astype(np.float64) @ b.dequantize().astype(np.float64).T + bias
    right = {
        "none": lambda x: x, "relu": lambda x: np.maximum(x, 0), "relu_squared": lambda x: np.maximum(x, 0) ** 2,
        "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "silu": lambda x: x / (1 + np.exp(-x)),
    }[activation](product)  # fmt: skip
    c = mxattn.gemm_quantize(a, b, bias, activation=activation, out_dtype="float32")
    np.testing.assert_allclose(c, right, rtol=1e-4, atol=1e-4)
    made, wide = mxattn.gemm_quantize(a, b, bias, activation=activation, heads=2, return_wide=True)
    assert made.shape == (70, 2, 64) and wide.dtype == ml_dtypes.bfloat16
    assert same_bits(made.dequantize(), mxattn.quantize(c.reshape(70, 2, 64)).dequantize())


def test_gemm_transposed_and_normalised():
    """One square payload for both directions; queries normalised and turned as attention wants them."""
    a, b, tables = mxattn.quantize(normal(64, 96)), mxattn.quantize(normal(96, 128, seed=1)), rope(64, 64)
    product = a.dequantize().astype(np.float64) @ b.dequantize().astype(np.float64)
    c = mxattn.gemm_quantize(a, b, transpose_b=True, out_dtype="float32")
    np.testing.assert_allclose(c, product, rtol=1e-4, atol=1e-4)
    backward = mxattn.gemm_quantize(a, mxattn.quantize(c), transpose_a=True, transpose_b=True, out_dtype="float32")
    assert backward.shape == (96, 128)
    assert rms(backward, a.dequantize().astype(np.float64).T @ product) < limit("O_RMS_BF16")
    q = mxattn.gemm_quantize(a, b, transpose_b=True, heads=2, head_norm=True, rope=mxattn.Rope(*tables), out_dtype="float32")
    np.testing.assert_allclose(q, turn(norm(product.reshape(64, 2, 64)), *tables), rtol=1e-3, atol=1e-3)


def test_refused():
    x = normal(8, 2, 64)
    with pytest.raises(mxattn.DtypeError, match="weight is float64"):
        mxattn.rmsnorm_quantize(x, np.ones(64))
    with pytest.raises(mxattn.ShapeError, match="heads is 3; it must divide the 64"):
        mxattn.gemm_quantize(mxattn.quantize(normal(8, 64)), mxattn.quantize(normal(64, 64)), heads=3)
    with pytest.raises(mxattn.ShapeError, match="b has K = 96; a has K = 64"):
        mxattn.gemm_quantize(mxattn.quantize(normal(8, 64), "row"), mxattn.quantize(normal(64, 96), "row"))
    with pytest.raises(mxattn.ArgumentError, match="emulator"):
        mxattn.attention(x[None], x[None], x[None], backend="emu_sm90")
