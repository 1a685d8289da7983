"""public_api.py: the structs of include/mxattn/mxattn.h that a test of attention needs, by ctypes.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import os
import pathlib

import numpy as np

F32, F16, BF16, E4M3, E5M2 = 1, 2, 3, 4, 5
NONE, ROW, COLUMN, SQUARE = 0, 1, 2, 3
HDIM, SEQ = 0, 1
CENTRED = 4
REF = 1
MODEL, F64 = 1, 2
BF16_INTERMEDIATES, E4M3_INTERMEDIATES = 1, 2
FP16_REDUCE, FP32_REDUCE = 1, 2

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Tags(c.Structure):
    _fields_ = [("dtype", c.c_int), ("block", c.c_int), ("rounding", c.c_int), ("flags", c.c_uint32)]


class Scales(c.Structure):
    _fields_ = [("data", c.c_void_p), ("layout", c.c_int), ("reserved", c.c_int32),
                ("stride_head", c.c_int64), ("stride_row", c.c_int64), ("stride_k", c.c_int64),
                ("cu_scale", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("tags", Tags), ("ndim", c.c_int32), ("reserved", c.c_int32),
                ("data", c.c_void_p), ("shape", c.c_int64 * 4), ("stride", c.c_int64 * 4),
                ("scales", Scales * 2), ("centre", c.c_void_p)]


OPERANDS = ["q", "k", "v", "q_seq", "k_seq", "v_seq", "o", "dout", "dq", "dk", "dv"]


class Problem(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_int), ("device", c.c_int32), ("mode", c.c_int),
                ("format", c.c_int), ("precision", c.c_int), ("batch", c.c_int64), ("total_q", c.c_int64),
                ("total_k", c.c_int64), ("max_seqlen_q", c.c_int64), ("max_seqlen_k", c.c_int64),
                ("heads", c.c_int64), ("kv_heads", c.c_int64), ("head_dim", c.c_int64),
                ("head_dim_v", c.c_int64), ("causal", c.c_int32), ("alignment", c.c_int),
                ("window", c.c_int64 * 2), ("softmax_scale", c.c_double), ("softcap", c.c_double),
                ("has_sink", c.c_int32), ("causal_strict", c.c_int32), ("deterministic", c.c_int32),
                ("intermediates", c.c_int), ("dq_reduce", c.c_int), ("dq_scale_log2", c.c_int32)]
    _fields_ += [(name, Tags) for name in OPERANDS]


class PlanInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_int), ("kernel_forward", c.c_char_p),
                ("kernel_backward", c.c_char_p), ("isa_name", c.c_char_p), ("threads", c.c_int32),
                ("intermediates", c.c_int), ("dq_reduce", c.c_int), ("max_headroom_log2", c.c_int32),
                ("softmax_scale", c.c_double), ("workspace_forward_bytes", c.c_int64),
                ("workspace_backward_bytes", c.c_int64), ("saved_bytes", c.c_int64),
                ("prepared_bytes", c.c_int64), ("saved_id", c.c_uint64)]


P = c.POINTER(Tensor)


class Args(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)]
    _fields_ += [(name, P) for name in ("q", "k", "v", "q_seq", "k_seq", "v_seq", "o", "lse")]
    _fields_ += [("sink", c.c_void_p), ("dout", P), ("dlse", P), ("dq", P), ("dk", P), ("dv", P),
                 ("dsink", c.c_void_p), ("batch", c.c_int64)]
    _fields_ += [(name, c.c_void_p) for name in (
        "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "host_cu_seqlens_q", "host_cu_seqlens_k",
        "host_seqused_q", "host_seqused_k", "prepared", "saved", "workspace")]
    _fields_ += [("workspace_bytes", c.c_size_t), ("device_status", c.c_void_p), ("stream", c.c_void_p)]


def address(array):
    return array.ctypes.data if array is not None else None


def aligned(count):
    """NaN-filled bytes at a multiple of 256."""
    memory = np.full(count + 256, 0xFF, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start:start + count]


class Library:
    """The shared library of the build that is tested."""

    def __init__(self):
        path = os.environ.get("MXATTN_LIBRARY", ROOT / "build/release/libmxattn.so")
        self.call = c.CDLL(str(path))
        self.call.mxattn_last_error.restype = c.c_char_p

    def check(self, status):
        assert status == 0, self.call.mxattn_last_error().decode()

    def new(self, struct, name):
        made = struct()
        getattr(self.call, f"mxattn_{name}_init_sized")(c.byref(made), c.c_size_t(c.sizeof(struct)))
        return made

    def tensor(self, array, tags=None, scales=None, centre=None):
        """A view of a C-contiguous array; scales: {axis: linear scale bytes}."""
        view = Tensor()
        dtype = tags.dtype if tags else F32
        shape = (c.c_int64 * 4)(*array.shape)
        self.call.mxattn_tensor_view_sized(c.byref(view), c.c_size_t(c.sizeof(view)), dtype,
                                           c.c_void_p(address(array)), array.ndim, shape)
        if tags:
            view.tags = tags
        for axis, data in (scales or {}).items():
            view.scales[axis].data = address(data)
        view.centre = address(centre)
        return view

    def attention(self, problem, tensors, sink=None, dsink=None, **sequences):
        """Forward, then backward, in NaN-filled memory. tensors: name -> Tensor."""
        plan, info = c.c_void_p(), self.new(PlanInfo, "plan_info")
        self.check(self.call.mxattn_plan_create(None, c.byref(problem), c.byref(plan)))
        self.check(self.call.mxattn_plan_query(plan, c.byref(info)))
        args = self.new(Args, "attention_args")
        for name, tensor in tensors.items():
            setattr(args, name, c.pointer(tensor))
        for name, array in sequences.items():
            setattr(args, name, address(array) if isinstance(array, np.ndarray) else array)
        args.sink, args.dsink = address(sink), address(dsink)
        saved = aligned(info.saved_bytes)
        args.saved = address(saved)
        for direction in ("forward", "backward"):
            bytes_needed = getattr(info, f"workspace_{direction}_bytes")
            workspace = aligned(bytes_needed)
            args.workspace, args.workspace_bytes = address(workspace), bytes_needed
            self.check(getattr(self.call, f"mxattn_attention_{direction}")(plan, c.byref(args)))
        self.call.mxattn_plan_destroy(plan)
