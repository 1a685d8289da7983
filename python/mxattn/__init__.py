"""mxattn: MXFP8 FlashAttention for NumPy, PyTorch, JAX and CuPy arrays, on CPU and CUDA.

    import mxattn
    o = mxattn.attention(q, k, v, causal=True)           # (B, S, H, D); O has q's dtype
    x = mxattn.quantize(k)                               # an MxTensor: FP8 payload, E8M0 scales, tags
    print(mxattn.info())                                 # what is here, and why something is not
    print(mxattn.plan(q, k, v, causal=True))             # which kernel would run

mxattn.torch and mxattn.jax are imported on demand. Faults are subclasses of MxattnError whose text names the argument,
its value and the rule.

SPDX-License-Identifier: Apache-2.0
"""

from . import _abi
from ._attention import attention, attention_backward, clear_cache
from ._errors import (
    AlignmentError,
    ArgumentError,
    CuSeqlensError,
    DeviceError,
    DtypeError,
    LayoutError,
    MxattnError,
    NoBackendError,
    OutOfMemoryError,
    ShapeError,
    UnsupportedError,
    VersionMismatchError,
    WorkspaceError,
)
from ._fused import Rope, gemm_quantize, rmsnorm_backward, rmsnorm_quantize
from ._info import Backend, Info, check_device_status, info, plan
from ._plan import Context, Plan
from ._producers import arrange_scales, dequantize, merge_states, quantize
from ._tensor import MxTensor

__version__ = _abi.lib.mxattn_version_string().decode()

__all__ = [
    "AlignmentError", "ArgumentError", "Backend", "Context", "CuSeqlensError", "DeviceError", "DtypeError", "Info",
    "LayoutError", "MxTensor", "MxattnError", "NoBackendError", "OutOfMemoryError", "Plan", "Rope", "ShapeError",
    "UnsupportedError", "VersionMismatchError", "WorkspaceError", "arrange_scales", "attention", "attention_backward",
    "check_device_status", "clear_cache", "dequantize", "gemm_quantize", "info", "merge_states", "plan", "quantize",
    "rmsnorm_backward", "rmsnorm_quantize",
]  # fmt: skip
