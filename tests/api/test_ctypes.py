"""test_ctypes.py: a binding written from include/mxattn/mxattn.h alone, through the shared library.

The structs below are pinned by it: a C compiler must lay them out as ctypes does, and a member that
moves breaks every binding there is.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import os
import pathlib
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
F32, E4M3, SQUARE = 1, 4, 3
REF, TRAINING, JAGGED, F64 = 1, 1, 1, 2
OK, SHAPE, CU_SEQLENS = 0, 2, 6


class Tags(c.Structure):
    _fields_ = [("dtype", c.c_int), ("block", c.c_int), ("rounding", c.c_int), ("flags", c.c_uint32)]


class Scales(c.Structure):
    _fields_ = [("data", c.c_void_p), ("layout", c.c_int), ("reserved", c.c_int32)]
    _fields_ += [(n, c.c_int64) for n in ("stride_head", "stride_row", "stride_k")]
    _fields_ += [("cu_scale", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("tags", Tags), ("ndim", c.c_int32), ("reserved", c.c_int32)]
    _fields_ += [("data", c.c_void_p), ("shape", c.c_int64 * 4), ("stride", c.c_int64 * 4)]
    _fields_ += [("scales", Scales * 2), ("centre", c.c_void_p)]


class Problem(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_int), ("device", c.c_int32)]
    _fields_ += [(n, c.c_int) for n in ("mode", "format", "precision")]
    _fields_ += [(n, c.c_int64) for n in ("batch", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k")]
    _fields_ += [(n, c.c_int64) for n in ("heads", "kv_heads", "head_dim", "head_dim_v")]
    _fields_ += [("causal", c.c_int32), ("alignment", c.c_int), ("window", c.c_int64 * 2)]
    _fields_ += [("softmax_scale", c.c_double), ("softcap", c.c_double)]
    _fields_ += [(n, c.c_int32) for n in ("has_sink", "causal_strict", "deterministic")]
    _fields_ += [("intermediates", c.c_int), ("dq_reduce", c.c_int), ("dq_scale_log2", c.c_int32)]
    _fields_ += [(n, Tags) for n in ("q", "k", "v", "q_seq", "k_seq", "v_seq", "o", "dout", "dq", "dk", "dv")]


class Args(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)]
    _fields_ += [(n, c.POINTER(Tensor)) for n in ("q", "k", "v", "q_seq", "k_seq", "v_seq", "o", "lse")]
    _fields_ += [("sink", c.c_void_p), ("dout", c.POINTER(Tensor)), ("dlse", c.POINTER(Tensor))]
    _fields_ += [(n, c.POINTER(Tensor)) for n in ("dq", "dk", "dv")]
    _fields_ += [("dsink", c.c_void_p), ("batch", c.c_int64)]
    _fields_ += [(n, c.c_void_p) for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")]
    _fields_ += [(n, c.c_void_p) for n in ("host_cu_seqlens_q", "host_cu_seqlens_k")]
    _fields_ += [(n, c.c_void_p) for n in ("host_seqused_q", "host_seqused_k")]
    _fields_ += [(n, c.c_void_p) for n in ("prepared", "saved", "workspace")]
    _fields_ += [("workspace_bytes", c.c_size_t), ("device_status", c.c_void_p), ("stream", c.c_void_p)]
    _fields_ += [(n, c.c_void_p) for n in ("o_wide", "rope_q", "rope_k")]


STRUCTS = {
    "mxattn_tags": Tags,
    "mxattn_scales": Scales,
    "mxattn_tensor": Tensor,
    "mxattn_attention_problem": Problem,
    "mxattn_attention_args": Args,
}


@pytest.fixture(scope="module")
def library():
    path = os.environ.get("MXATTN_LIBRARY")
    if not path or not os.path.exists(path):
        pytest.skip("MXATTN_LIBRARY names no shared library")
    loaded = c.CDLL(path)
    loaded.mxattn_last_error.restype = c.c_char_p
    return loaded


def view(library, array):
    tensor = Tensor()
    shape = (c.c_int64 * 4)(*array.shape)
    library.mxattn_tensor_view_sized(
        c.byref(tensor), c.c_size_t(c.sizeof(tensor)), F32, c.c_void_p(array.ctypes.data), array.ndim, shape
    )
    return tensor


def problem(library):
    made = Problem()
    library.mxattn_attention_problem_init_sized(c.byref(made), c.c_size_t(c.sizeof(made)))
    made.backend, made.precision = REF, F64
    for name in ("q", "k", "v", "o"):
        setattr(made, name, Tags(dtype=F32))
    return made


def attend(library, made, arrays, **more):
    """mxattn_attention_forward_once over NumPy arrays; returns its status."""
    args = Args()
    library.mxattn_attention_args_init_sized(c.byref(args), c.c_size_t(c.sizeof(args)))
    kept = [view(library, array) for array in arrays]
    args.q, args.k, args.v, args.o, args.lse = [c.pointer(tensor) for tensor in kept]
    for name, value in more.items():
        setattr(args, name, value if isinstance(value, int) else value.ctypes.data)
    return library.mxattn_attention_forward_once(None, c.byref(made), c.byref(args))


def truth(q, k, v):
    """Softmax attention of (S, H, D) arrays, kv head of head h being h // ratio."""
    ratio = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, ratio, 1), np.repeat(v, ratio, 1)
    x = np.einsum("ihd,jhd->hij", q, k, dtype=np.float64) / np.sqrt(q.shape[-1])
    lse = np.log(np.exp(x).sum(-1))
    return np.einsum("hij,jhd->ihd", np.exp(x - lse[..., None]), v), lse


def operands(tokens, heads=4, kv_heads=2, dim=32):
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((tokens, h, dim)).astype(np.float32) for h in (heads, kv_heads, kv_heads))
    return q, k, v, np.full_like(q, np.nan), np.full((heads, tokens), np.nan, np.float32)


def test_struct_layouts(library, tmp_path):
    """sizeof and offsetof as a C compiler sees them."""
    lines = [f'printf("{n} %zu\\n", sizeof({n}));' for n in STRUCTS]
    lines += [f'printf("{n}.{f[0]} %zu\\n", offsetof({n}, {f[0]}));' for n, s in STRUCTS.items() for f in s._fields_]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <mxattn/mxattn.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    program = tmp_path / "layout"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-std=c11", f"-I{ROOT / 'include'}", "-o", program, source], check=True
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    want = [f"{n} {c.sizeof(s)}" for n, s in STRUCTS.items()]
    want += [f"{n}.{f[0]} {getattr(s, f[0]).offset}" for n, s in STRUCTS.items() for f in s._fields_]
    assert printed == want


def test_dense(library):
    arrays = operands(20)
    made = problem(library)
    dense = [array[None] for array in arrays]
    assert attend(library, made, dense) == OK, library.mxattn_last_error()
    o, lse = truth(*arrays[:3])
    np.testing.assert_allclose(arrays[3], o, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(arrays[4], lse, rtol=1e-6)


def test_jagged(library):
    arrays = operands(20)
    made = problem(library)
    made.format = JAGGED
    cu = np.array([0, 3, 3, 18], np.int32)
    more = {"batch": 3, "cu_seqlens_q": cu, "cu_seqlens_k": cu}
    assert attend(library, made, arrays, **more) == OK, library.mxattn_last_error()
    for first, last in ((0, 3), (3, 18)):
        o, lse = truth(*(array[first:last] for array in arrays[:3]))
        np.testing.assert_allclose(arrays[3][first:last], o, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(arrays[4][:, first:last], lse, rtol=1e-6)
    assert not arrays[3][18:].any() and np.isneginf(arrays[4][:, 18:]).all()


def test_refusals(library):
    """A status, a sentence, and untouched outputs."""
    arrays = operands(20)
    made = problem(library)
    made.format = JAGGED
    cu = np.array([0, 12, 9], np.int32)
    assert attend(library, made, arrays, batch=2, cu_seqlens_q=cu, cu_seqlens_k=cu) == CU_SEQLENS
    assert b"cu_seqlens_q[2] is 9" in library.mxattn_last_error()
    made.heads = 3
    cu = np.array([0, 20], np.int32)
    assert attend(library, made, arrays, batch=1, cu_seqlens_q=cu, cu_seqlens_k=cu) == SHAPE
    assert b"heads is 3" in library.mxattn_last_error()
    assert np.isnan(arrays[3]).all()
