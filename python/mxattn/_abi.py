"""_abi.py: include/mxattn/mxattn.h as ctypes: enums, structs, functions, and the library they are in.

A mirror and nothing more, of all but the emulator's section; tests/python/test_python_abi.py compares every struct,
member and enum value with what a C compiler makes of the header, and its functions with the header's.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c
import os

from ._errors import MxattnError, raise_status

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any

NONE, F32, F16, BF16, E4M3, E5M2 = range(6)
BLOCK_NONE, ROW, COLUMN, SQUARE = range(4)
RCEIL, FLOOR = range(2)
FOLDED, FOLDED_TOKEN, CENTRED = 1, 2, 4
HDIM, SEQ = range(2)
LINEAR, COMPACT, TILED = range(3)
BACKEND_AUTO, REF, CPU, CUDA = range(4)
INFERENCE, TRAINING = range(2)
DENSE, JAGGED = range(2)
BOTTOM_RIGHT, TOP_LEFT = range(2)
PRECISION_MXFP8, PRECISION_MODEL, PRECISION_F64 = range(3)
DQ_SCALE_AUTO = -(2**31)

# Python's words -> values of the header. _C_NAMES holds how the header spells them.
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "e4m3": E4M3, "e5m2": E5M2}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
ITEMSIZE = {F32: 4, F16: 2, BF16: 2, E4M3: 1, E5M2: 1}
BLOCKS = {"row": ROW, "column": COLUMN, "square": SQUARE}
ROUNDINGS = {"rceil": RCEIL, "floor": FLOOR}
AXES = {"hdim": HDIM, "seq": SEQ}
LAYOUTS = {"linear": LINEAR, "compact": COMPACT, "tiled": TILED}
BACKENDS = {"auto": BACKEND_AUTO, "ref": REF, "cpu": CPU, "cuda": CUDA, "emu_sm90": 4, "emu_sm100": 5}
ALIGNMENTS = {"bottom_right": BOTTOM_RIGHT, "top_left": TOP_LEFT}
PRECISIONS = {"mxfp8": PRECISION_MXFP8, "model": PRECISION_MODEL, "float64": PRECISION_F64}
INTERMEDIATES = {"auto": 0, "bf16": 1, "e4m3": 2}
DQ_REDUCES = {"auto": 0, "fp16": 1, "fp32": 2}
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3, "relu_squared": 4}
ISAS = {"portable": 1, "avx2": 2, "avx512": 4, "avx512_bf16": 8, "avx512_vbmi": 16, "amx_bf16": 32}

_C_NAMES = {
    "MXATTN_DTYPE_NONE": NONE,
    "MXATTN_F32": F32,
    "MXATTN_F16": F16,
    "MXATTN_BF16": BF16,
    "MXATTN_E4M3": E4M3,
    "MXATTN_E5M2": E5M2,
    "MXATTN_BLOCK_NONE": BLOCK_NONE,
    "MXATTN_FOLDED": FOLDED,
    "MXATTN_FOLDED_TOKEN": FOLDED_TOKEN,
    "MXATTN_CENTRED": CENTRED,
    "MXATTN_INFERENCE": INFERENCE,
    "MXATTN_TRAINING": TRAINING,
    "MXATTN_DENSE": DENSE,
    "MXATTN_JAGGED": JAGGED,
    "MXATTN_PRECISION_F64": PRECISION_F64,
    "MXATTN_DQ_SCALE_AUTO": DQ_SCALE_AUTO,
    **{f"MXATTN_BLOCK_{name.upper()}": value for name, value in BLOCKS.items()},
    **{f"MXATTN_{name.upper()}": value for name, value in ROUNDINGS.items()},
    **{f"MXATTN_{name.upper()}": value for name, value in AXES.items()},
    **{f"MXATTN_{name.upper()}": value for name, value in LAYOUTS.items()},
    **{f"MXATTN_BACKEND_{name.upper()}": value for name, value in BACKENDS.items()},
    **{f"MXATTN_{name.upper()}": value for name, value in ALIGNMENTS.items()},
    **{f"MXATTN_PRECISION_{name.upper()}": value for name, value in PRECISIONS.items() if name != "float64"},
    **{f"MXATTN_INTERMEDIATES_{name.upper()}": value for name, value in INTERMEDIATES.items()},
    **{f"MXATTN_DQ_REDUCE_{name.upper()}": value for name, value in DQ_REDUCES.items()},
    **{f"MXATTN_ACTIVATION_{name.upper()}": value for name, value in ACTIVATIONS.items()},
    **{f"MXATTN_ISA_{name.upper()}": value for name, value in ISAS.items()},
}

_size, _i32, _u32, _i64, _enum, _ptr, _f64 = c.c_size_t, c.c_int32, c.c_uint32, c.c_int64, c.c_int, c.c_void_p, c.c_double


def _members(text: str) -> list:
    """'type name name; type name' -> ctypes' _fields_."""
    fields = []
    for part in text.split(";"):
        kind, *names = part.split()
        fields += [(name, _TYPES[kind]) for name in names]
    return fields


class Tags(c.Structure):
    _fields_ = [("dtype", _enum), ("block", _enum), ("rounding", _enum), ("flags", _u32)]


_TYPES: dict = {
    "size": _size,
    "i32": _i32,
    "u32": _u32,
    "i64": _i64,
    "enum": _enum,
    "ptr": _ptr,
    "f64": _f64,
    "str": c.c_char_p,
    "Tags": Tags,
    "i64x2": _i64 * 2,
    "i64x4": _i64 * 4,
    "char128": c.c_char * 128,
}


class Scales(c.Structure):
    _fields_ = _members("ptr data; enum layout; i32 reserved; i64 stride_head stride_row stride_k; ptr cu_scale")


_TYPES["Scales"], _TYPES["Scales2"] = Scales, Scales * 2


class Tensor(c.Structure):
    _fields_ = _members(
        "size struct_size; Tags tags; i32 ndim reserved; ptr data; i64x4 shape stride; Scales2 scales; ptr centre"
    )


class ContextOptions(c.Structure):
    _fields_ = _members("size struct_size; i32 threads; u32 isa_mask; ptr alloc free alloc_user log log_user") + _members(
        "ptr parallel_for parallel_user"
    )


class BackendInfo(c.Structure):
    _fields_ = _members(
        "size struct_size; str name; i32 available; str reason; i32 devices threads; u32 isa; str isa_name kernels"
    )


class DeviceInfo(c.Structure):
    _fields_ = _members("size struct_size; char128 name; i32 arch multiprocessors; i64 memory_bytes")


class AttentionProblem(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; i32 device; enum mode format precision; i64 batch total_q total_k max_seqlen_q;"
        "i64 max_seqlen_k heads kv_heads head_dim head_dim_v; i32 causal; enum alignment; i64x2 window;"
        "f64 softmax_scale softcap; i32 has_sink causal_strict deterministic; enum intermediates dq_reduce;"
        "i32 dq_scale_log2; Tags q k v q_seq k_seq v_seq o dout dq dk dv"
    )


class PlanInfo(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; str kernel_forward kernel_backward isa_name; i32 threads;"
        "enum intermediates dq_reduce; i32 max_headroom_log2; f64 softmax_scale; i64 workspace_forward_bytes;"
        "i64 workspace_backward_bytes saved_bytes prepared_bytes"
    ) + [("saved_id", c.c_uint64)]


class AttentionArgs(c.Structure):
    _fields_ = _members(
        "size struct_size; ptr q k v q_seq k_seq v_seq o lse sink dout dlse dq dk dv dsink; i64 batch;"
        "ptr cu_seqlens_q cu_seqlens_k seqused_q seqused_k host_cu_seqlens_q host_cu_seqlens_k host_seqused_q;"
        "ptr host_seqused_k prepared saved workspace; size workspace_bytes; ptr device_status stream o_wide rope_q rope_k"
    )


class Sequences(c.Structure):
    _fields_ = _members("ptr cu_seqlens seqused host_cu_seqlens host_seqused; i64 batch")


class Rope(c.Structure):
    _fields_ = _members("ptr cosine sine; i64 positions dims offset; i32 interleaved inverse")


_TYPES["Sequences"], _TYPES["Rope"] = Sequences, Rope


class QuantizeArgs(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; i32 device; ptr wide quantized transposed; Sequences sequences; ptr workspace;"
        "size workspace_bytes; ptr device_status stream"
    )


class ScalesArgs(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; i32 device; Tags tags; enum from_axis to_axis; Scales from to;"
        "Sequences sequences; i64 seqlen heads head_dim; ptr device_status stream"
    )


class RmsnormQuantizeArgs(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; i32 device; ptr x weight; f64 eps; Rope rope; ptr y y_wide rstd;"
        "i32 round_to_bf16; Sequences sequences; ptr workspace; size workspace_bytes; ptr device_status stream"
    )


class RmsnormBackwardArgs(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; i32 device; ptr x dy weight rstd dx dweight workspace; size workspace_bytes;"
        "ptr stream dx_quantized; Rope rope; Sequences sequences; i32 normalised accumulate; ptr device_status"
    )


class GemmQuantizeArgs(c.Structure):
    _fields_ = _members(
        "size struct_size; enum backend; i32 device; ptr a b bias; enum activation; Rope rope; ptr c c_wide;"
        "Sequences sequences; ptr workspace; size workspace_bytes; ptr device_status stream;"
        "i32 transpose_a transpose_b accumulate head_norm; ptr norm_weight; f64 norm_eps; ptr norm_rstd; i64 norm_heads;"
        "ptr activated"
    )


class StatesMergeArgs(c.Structure):
    _fields_ = _members("size struct_size; enum backend; i32 device; ptr o_a lse_a o_b lse_b o lse stream")


STRUCTS = {
    "mxattn_tags": Tags,
    "mxattn_scales": Scales,
    "mxattn_tensor": Tensor,
    "mxattn_context_options": ContextOptions,
    "mxattn_backend_info": BackendInfo,
    "mxattn_device_info": DeviceInfo,
    "mxattn_attention_problem": AttentionProblem,
    "mxattn_plan_info": PlanInfo,
    "mxattn_attention_args": AttentionArgs,
    "mxattn_sequences": Sequences,
    "mxattn_quantize_args": QuantizeArgs,
    "mxattn_scales_args": ScalesArgs,
    "mxattn_rope": Rope,
    "mxattn_rmsnorm_quantize_args": RmsnormQuantizeArgs,
    "mxattn_rmsnorm_backward_args": RmsnormBackwardArgs,
    "mxattn_gemm_quantize_args": GemmQuantizeArgs,
    "mxattn_states_merge_args": StatesMergeArgs,
}
_INIT = {struct: name + "_init_sized" for name, struct in STRUCTS.items()}

# Function -> its parameters; each returns a status where RETURNS does not say otherwise.
FUNCTIONS = {
    "mxattn_version": (),
    "mxattn_version_string": (),
    "mxattn_status_name": (_enum,),
    "mxattn_last_error": (),
    "mxattn_tensor_view_sized": (_ptr, _size, _enum, _ptr, _i32, _ptr),
    "mxattn_scales_bytes": (_ptr, _enum, _enum, _i64, _i64, _ptr, _i64, _i64, _ptr),
    "mxattn_context_create": (_ptr, _ptr),
    "mxattn_context_destroy": (_ptr,),
    "mxattn_backend_query": (_ptr, _enum, _ptr),
    "mxattn_device_query": (_ptr, _enum, _i32, _ptr),
    "mxattn_device_alloc": (_ptr, _enum, _i32, _size, _ptr),
    "mxattn_device_free": (_ptr, _enum, _i32, _ptr),
    "mxattn_device_copy": (_ptr, _enum, _i32, _ptr, _ptr, _size),
    "mxattn_device_stream_create": (_ptr, _enum, _i32, _ptr),
    "mxattn_device_stream_destroy": (_ptr, _enum, _i32, _ptr),
    "mxattn_device_synchronise": (_ptr, _enum, _i32, _ptr),
    "mxattn_device_status_check": (_u32,),
    "mxattn_plan_create": (_ptr, _ptr, _ptr),
    "mxattn_plan_destroy": (_ptr,),
    "mxattn_plan_query": (_ptr, _ptr),
    "mxattn_attention_forward": (_ptr, _ptr),
    "mxattn_attention_backward": (_ptr, _ptr),
    "mxattn_prepare": (_ptr, _ptr),
    "mxattn_attention_forward_once": (_ptr, _ptr, _ptr),
    "mxattn_attention_backward_once": (_ptr, _ptr, _ptr),
    "mxattn_quantize": (_ptr, _ptr),
    "mxattn_dequantize": (_ptr, _ptr),
    "mxattn_quantize_workspace": (_ptr, _ptr, _ptr),
    "mxattn_scales_scatter": (_ptr, _ptr),
    "mxattn_scales_transform": (_ptr, _ptr),
    "mxattn_rmsnorm_quantize": (_ptr, _ptr),
    "mxattn_rmsnorm_quantize_workspace": (_ptr, _ptr, _ptr),
    "mxattn_rmsnorm_backward": (_ptr, _ptr),
    "mxattn_rmsnorm_backward_workspace": (_ptr, _ptr, _ptr),
    "mxattn_gemm_quantize": (_ptr, _ptr),
    "mxattn_gemm_quantize_workspace": (_ptr, _ptr, _ptr),
    "mxattn_states_merge": (_ptr, _ptr),
}
RETURNS: dict = {
    "mxattn_version": _i32,
    "mxattn_version_string": c.c_char_p,
    "mxattn_status_name": c.c_char_p,
    "mxattn_last_error": c.c_char_p,
    "mxattn_tensor_view_sized": None,
    "mxattn_context_destroy": None,
    "mxattn_plan_destroy": None,
}
# Structs without a size are frozen and have no _init.
FROZEN = (Tags, Scales, Sequences, Rope)


def library_path() -> str:
    """The shared library in use: $MXATTN_LIBRARY where that is set, else the one inside the package."""
    return os.environ.get("MXATTN_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmxattn.so")


def _load() -> c.CDLL:
    path = library_path()
    if not os.path.exists(path):
        raise ImportError(
            f"mxattn: no shared library at {path}; install the wheel (pip install .), or let MXATTN_LIBRARY name a "
            "libmxattn.so (make builds build/release/libmxattn.so)"
        )
    loaded = c.CDLL(path)
    for name, parameters in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = parameters, RETURNS.get(name, c.c_int)
    for struct, name in _INIT.items():
        if struct not in FROZEN:
            function = getattr(loaded, name)
            function.argtypes, function.restype = (_ptr, _size), None
    return loaded


lib = _load()


def make(struct: Any, **members) -> Any:
    """An initialised struct: the library's defaults, then the members given."""
    made = struct()
    getattr(lib, _INIT[struct])(c.addressof(made), c.sizeof(made))
    for name, value in members.items():
        setattr(made, name, value)
    return made


def last_error() -> str:
    """The sentence of this thread's last failed call."""
    return lib.mxattn_last_error().decode()


def check(status: int) -> None:
    """Raises the exception of a status that is not MXATTN_OK, with the library's sentence."""
    if status:
        raise_status(status, last_error())


def named(table: dict, word: object, argument: str) -> int:
    """The value of a word such as 'square'; ArgumentError that lists the words otherwise."""
    try:
        return table[word]
    except (KeyError, TypeError):
        from ._errors import ArgumentError

        known = ", ".join(repr(name) for name in table)
        raise ArgumentError(f"{argument} is {word!r}; it must be one of {known}") from None


__all__ = ["MxattnError", "lib", "make", "check", "named"]
