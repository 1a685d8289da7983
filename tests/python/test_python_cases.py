"""test_python_cases.py: cases from public reports that a binding must get right, named after them.

SPDX-License-Identifier: Apache-2.0
"""

import os
import subprocess
import sys

import mxattn
import numpy as np
import pytest
from mxattn import _attention
from python_data import qkv, same_bits

CU = [0, 37, 37, 70]


def jagged():
    return tuple(x[0] for x in qkv(batch=1, sq=70))


def test_B105_max_seqlen_as_a_tensor():
    """A 0-d array is read once as an int: the plan of one call serves the next; a device's is refused."""
    q, k, v = jagged()
    cu = np.array(CU, np.int32)
    right = mxattn.attention(q, k, v, cu, cu, 37, 37)
    plans = len(_attention._plans)
    for longest in (np.int64(37), np.array(37), np.int32(37)):
        assert same_bits(mxattn.attention(q, k, v, cu, cu, longest, longest), right)
    assert len(_attention._plans) == plans
    with pytest.raises(mxattn.ArgumentError, match="max_seqlen_q is 37.5; it must be an integer"):
        mxattn.attention(q, k, v, cu, cu, 37.5, 37)

    class Elsewhere:
        device = type("Device", (), {"type": "cuda"})

        def __index__(self):
            raise AssertionError("read from the device")

    with pytest.raises(mxattn.ArgumentError, match="max_seqlen_k is a tensor on"):
        mxattn.attention(q, k, v, cu, cu, 37, Elsewhere())


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.uint64, "strided", "list", "strided int64", "tuple"])
def test_B133_cu_seqlens_of_another_type(kind):
    """Other integers, strided arrays and lists are converted, never reinterpreted."""
    q, k, v = jagged()
    right = mxattn.attention(q, k, v, np.array(CU, np.int32), np.array(CU, np.int32))
    if kind in ("strided", "strided int64"):
        cu = np.zeros(8, np.int64 if "int64" in kind else np.int32)
        cu[::2], cu[1::2] = CU, 12345
        cu = cu[::2]
    else:
        cu = {"list": CU, "tuple": tuple(CU)}.get(kind) if isinstance(kind, str) else np.array(CU, kind)
    assert same_bits(mxattn.attention(q, k, v, cu, cu), right)


def test_B133_cu_seqlens_refused():
    """What cannot be meant has a sentence, and an exception of its kind."""
    q, k, v = jagged()
    cu = np.array(CU, np.int32)
    with pytest.raises(mxattn.DtypeError, match="cu_seqlens_q has dtype float32"):
        mxattn.attention(q, k, v, cu.astype(np.float32), cu)
    with pytest.raises(mxattn.ArgumentError, match=r"cu_seqlens_q\[3\] is 4294967366; it must fit int32"):
        mxattn.attention(q, k, v, np.array([0, 1, 2, 2**32 + 70]), cu)
    with pytest.raises(mxattn.ArgumentError, match="one dimension"):
        mxattn.attention(q, k, v, cu[None], cu)
    with pytest.raises(mxattn.ArgumentError, match="come together"):
        mxattn.attention(q, k, v, cu)
    with pytest.raises(mxattn.ShapeError, match="cu_seqlens_k has 3 entries and cu_seqlens_q 4"):
        mxattn.attention(q, k, v, cu, cu[:3])
    with pytest.raises(mxattn.CuSeqlensError, match=r"cu_seqlens_q\[2\] is 9"):
        mxattn.attention(q, k, v, np.array([0, 12, 9, 70], np.int32), cu)
    with pytest.raises(ValueError, match="seqused_k has 2 entries"):
        mxattn.attention(q, k, v, cu, cu, seqused_k=[1, 2])

    class OnDevice:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<i4", "strides": None, "data": (4096, False), "version": 3}
        device = 0

    with pytest.raises(mxattn.ArgumentError, match="cu_seqlens_q is on cuda:0 and q on cpu:0"):
        mxattn.attention(q, k, v, OnDevice(), OnDevice())


PROBE = """
import sys
import mxattn
for module in ("numpy", "torch", "jax", "ml_dtypes"):
    assert module not in sys.modules, module + " was imported"
info = mxattn.info()
assert info.backends["cpu"].available and info.backends["ref"].available
cuda = info.backends["cuda"]
assert cuda.available or "cuda" in cuda.reason.lower(), cuda
assert cuda.reason in repr(info)
print("fine")
"""


def test_B132_import_without_a_driver():
    """Importing needs no driver, no GPU, no nvcc, no NumPy and no framework, and what is missing is said."""
    environment = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    if "MXATTN_LIBRARY" in os.environ:
        environment["MXATTN_LIBRARY"] = os.environ["MXATTN_LIBRARY"]
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


def test_B132_no_library():
    """A package without its library says where it looked."""
    environment = dict(os.environ, MXATTN_LIBRARY="/nowhere/libmxattn.so", PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", "import mxattn"], env=environment, capture_output=True, text=True)
    assert "ImportError: mxattn: no shared library at /nowhere/libmxattn.so" in done.stderr
