"""test_python_cupy.py: CUDA arrays of CuPy, and arrays that show nothing but __cuda_array_interface__ or DLPack.

Skipped without CuPy and a GPU that mxattn has kernels for.

SPDX-License-Identifier: Apache-2.0
"""

import mxattn
import pytest
from mxattn import _arrays as arrays
from python_data import limit, qkv, rms

cupy = pytest.importorskip("cupy", exc_type=ImportError)
if not mxattn.info().backends["cuda"].available:
    pytest.skip(mxattn.info().backends["cuda"].reason, allow_module_level=True)
MOST = limit("O_RMS_E4M3") * limit("CUDA_FACTOR") + limit("CUDA_FLOOR")


class Interface:
    """An array that shows nothing but __cuda_array_interface__."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.kept = array


class DLPack:
    """An array that shows nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def operands(dtype="float16", **shape):
    host = qkv(**{"sq": 200, "dim": 64, **shape})
    return host, [cupy.asarray(x, dtype) for x in host]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_attention(dtype):
    host, (q, k, v) = operands(dtype)
    o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(o, cupy.ndarray) and o.dtype == dtype and lse.dtype == "float32"
    assert rms(o.get(), mxattn.attention(*host, causal=True, backend="ref", precision="float64")) < MOST
    do = cupy.ones_like(o)
    gradients = mxattn.attention_backward(do, q, k, v, o, lse, causal=True)
    right = mxattn.attention_backward(
        do.get().astype("float32"), *host, o.get().astype("float32"), lse.get(), causal=True, backend="ref", precision="float64"
    )
    for got, exact in zip(gradients, right):
        assert isinstance(got, cupy.ndarray) and rms(got.get(), exact) < 2 * MOST


def test_offsets():
    """A list, and an array of the device, say where sequences begin."""
    _, (q, k, v) = operands(batch=1)
    q, k, v = q[0], k[0], v[0]
    cu = cupy.asarray([0, 60, 200], "int32")
    o = mxattn.attention(q, k, v, cu, cu, 140, 140, causal=True)
    assert (o == mxattn.attention(q, k, v, [0, 60, 200], [0, 60, 200], 140, 140, causal=True)).all()
    assert (o[60:] == mxattn.attention(*(x[None, 60:] for x in (q, k, v)), causal=True)[0]).all()


@pytest.mark.parametrize("wrap", [Interface, DLPack])
def test_protocols(wrap):
    _, (q, k, v) = operands()
    right = mxattn.attention(q, k, v)
    assert arrays.view(wrap(q)).data == q.data.ptr, "no copy"
    out = cupy.empty_like(q)
    mxattn.attention(wrap(q), wrap(k), wrap(v), out=out)
    assert (out == right).all()


def test_quantize():
    host, (q, _, _) = operands("float32")
    got, right = mxattn.quantize(q), mxattn.quantize(host[0])
    assert got.payload.dtype == "uint8" and (got.payload.get() == right.payload.view("uint8")).all()
    assert (got.scale_hdim.get() == right.scale_hdim.view("uint8")).all()
    assert (got.dequantize().get() == right.dequantize()).all()


def test_stream():
    """CuPy's current stream carries the work."""
    _, (q, k, v) = operands()
    right = mxattn.attention(q, k, v)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        late = [x * 1 for x in (q, k, v)]
        o = mxattn.attention(*late)
    stream.synchronize()
    assert (o == right).all()
