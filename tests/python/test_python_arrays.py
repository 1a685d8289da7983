"""test_python_arrays.py: arrays of several libraries, with their strides, types and devices, without a copy.

SPDX-License-Identifier: Apache-2.0
"""

import ml_dtypes
import mxattn
import numpy as np
import pytest
from mxattn import _arrays as arrays
from python_data import qkv, same_bits


class Interface:
    """An array that shows nothing but __array_interface__."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.kept = array


class DLPack:
    """An array that shows nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnDevice:
    """What a CUDA array looks like to a reader that does not touch its memory."""

    def __init__(self, shape, typestr="<f4", strides=None, device=1):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "strides": strides, "data": (4096, False)}
        self.__cuda_array_interface__["version"] = 3
        self.device = device


@pytest.mark.parametrize("wrap", [Interface, DLPack])
def test_protocols(wrap):
    q, k, v = qkv()
    o = mxattn.attention(wrap(q), wrap(k), wrap(v), causal=True)
    assert isinstance(o, np.ndarray) and same_bits(o, mxattn.attention(q, k, v, causal=True))
    assert arrays.view(wrap(q)).data == q.ctypes.data, "no copy"


@pytest.mark.parametrize("wrap", [lambda x: x, Interface, DLPack])
def test_strides(wrap):
    """q, k and v inside one packed array, and (B, H, S, D) storage."""
    packed = np.random.default_rng(0).standard_normal((2, 50, 3, 4, 64), np.float32)
    q, k, v = (packed[:, :, i] for i in range(3))
    right = mxattn.attention(*(np.ascontiguousarray(x) for x in (q, k, v)))
    assert same_bits(mxattn.attention(wrap(q), wrap(k), wrap(v)), right)
    heads_first = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    assert same_bits(mxattn.attention(*map(wrap, heads_first)), right)
    with pytest.raises(mxattn.LayoutError, match="stride"):
        mxattn.attention(wrap(q[..., ::2]), wrap(k[..., ::2]), wrap(v))


def test_views():
    x = np.zeros((4, 6), ml_dtypes.bfloat16)[:, ::2]
    found = arrays.view(x)
    assert (found.shape, found.strides, found.dtype, found.device) == ((4, 3), (6, 2), "bfloat16", ("cpu", 0))
    kinds = {ml_dtypes.float8_e4m3fn: "e4m3", ml_dtypes.float8_e5m2: "e5m2", ml_dtypes.float8_e8m0fnu: "e8m0"}
    kinds.update({np.uint8: "uint8", np.float16: "float16", np.int64: "int64"})
    for kind, word in kinds.items():
        assert arrays.view(np.zeros(3, kind)).dtype == word
    odd = np.zeros(4, [("a", "f4"), ("b", "u1")])["a"]
    with pytest.raises(mxattn.LayoutError, match="multiple of its 4-byte"):
        arrays.view(odd)


def test_refused():
    q, k, v = qkv()
    with pytest.raises(mxattn.DtypeError, match="q has dtype float64"):
        mxattn.attention(q.astype(np.float64), k, v)
    with pytest.raises(mxattn.DtypeError, match="complex64"):
        mxattn.attention(q.astype(np.complex64), k, v)
    with pytest.raises(mxattn.DtypeError, match="q has dtype uint8"):
        mxattn.attention(q.astype(np.uint8), k, v)
    with pytest.raises(mxattn.ArgumentError, match="q is a list"):
        mxattn.attention([1.0, 2.0], k, v)
    with pytest.raises(mxattn.ShapeError, match="heads"):
        mxattn.attention(q[:, :, :3], k, v)
    with pytest.raises(mxattn.ShapeError, match=r"\(B, S, H, D\)"):
        mxattn.attention(q[0], k[0], v[0])
    with pytest.raises(NotImplementedError, match="head_dim"):
        mxattn.attention(q[..., :12], k[..., :12], v)
    with pytest.raises(ValueError, match="window_size"):
        mxattn.attention(q, k, v, window_size=3)
    with pytest.raises(ValueError, match="backend is 'gpu'"):
        mxattn.attention(q, k, v, backend="gpu")


def test_byte_order():
    """NumPy names both orders alike; what is not this machine's is refused, not read as it lies."""
    swapped = [x.astype(">f4") for x in qkv()]
    with pytest.raises(mxattn.DtypeError, match="q has dtype '>f4'"):
        mxattn.attention(*swapped)
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in qkv())
    with pytest.raises(mxattn.DtypeError, match="cu_seqlens_q has dtype '>i4'"):
        mxattn.attention(q, k, v, *[np.array([0, 5], ">i4")] * 2)


@pytest.mark.parametrize("given, sentence", [
    ({"window_size": (2**70, 0)}, r"window_size\[0\] is 1180591620717411303424; it must fit int64"),
    ({"window_size": (0, -(2**63) - 1)}, r"window_size\[1\] is -9223372036854775809"),
    ({"max_seqlen_q": 2**64 + 40}, "max_seqlen_q is 18446744073709551656; it must fit int64"),
    ({"max_seqlen_k": -1}, "max_seqlen_k is -1"),
    ({"cu_seqlens_q": [0, 2**32 + 5]}, r"cu_seqlens_q\[1\] is 4294967301; it must fit int32"),
    ({"softcap": None}, "softcap is None; it must be a number"),
    ({"softmax_scale": 1j}, "softmax_scale is 1j; it must be a number"),
])  # fmt: skip
def test_numbers(given, sentence):
    """No number is cut to the bits that a field has, and none ends in an exception of Python's own."""
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in qkv())
    with pytest.raises(mxattn.MxattnError, match=sentence):
        mxattn.attention(q, k, v, **{"cu_seqlens_q": [0, q.shape[0]], "cu_seqlens_k": [0, q.shape[0]], **given})


def test_dimensions_of_producers():
    for make in (lambda x: mxattn.quantize(x, "row"), mxattn.rmsnorm_quantize):
        with pytest.raises(mxattn.ShapeError, match=r"x has shape \(64,\)"):
            make(np.zeros(64, np.float32))


def test_cuda_arrays_are_seen_and_not_touched():
    """Memory of a device is recognised with its strides, type and device, and never handed to a host kernel.

    What a GPU would do is not run here: the arrays are stand-ins."""
    found = arrays.view(OnDevice((2, 3, 4), strides=(96, 32, 4)))
    assert (found.device, found.strides, found.data) == (("cuda", 1), (24, 8, 1), 4096)
    q = OnDevice((2, 8, 4, 64))
    with pytest.raises(mxattn.ArgumentError, match="backend is 'cpu' and the arrays are on cuda:1"):
        mxattn.attention(q, q, q, backend="cpu")
    with pytest.raises(mxattn.ArgumentError, match="k is on cpu:0 and q on cuda:1"):
        mxattn.attention(q, np.zeros((2, 8, 4, 64), np.float32), q, out=q)
    if not mxattn.info().backends["cuda"].available:
        with pytest.raises(mxattn.NoBackendError, match="CUDA"):
            mxattn.attention(q, q, q, out=q)


def test_mixed_libraries():
    """Each operand is read through its own library; O is of q's."""
    q, k, v = qkv()
    assert same_bits(mxattn.attention(q, Interface(k), DLPack(v)), mxattn.attention(q, k, v))
