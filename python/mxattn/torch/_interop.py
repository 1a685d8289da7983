"""_interop.py: MXFP8 tensors of torchao and TransformerEngine as MxTensors and back: the same bytes, no copy.

Both hold a matrix (tokens, hidden) with hidden = heads * head_dim. Their scales are one of
    linear    (tokens, hidden / 32), TransformerEngine's padded to (128 i, 4 j); columnwise (tokens / 32, hidden)
    swizzled  512-byte units of 128 rows x 4 blocks, row of units after row of units
and an MxTensor reads either through strides: head h begins h * head_dim / 32 bytes, or h * head_dim / 128 units, later.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from .._errors import ArgumentError, LayoutError, ShapeError
from .._tensor import MxTensor, ceil_div


def _split(data: torch.Tensor, heads: Optional[int]):
    """A payload (..., hidden) as (tokens, heads, head_dim), without a copy."""
    if data.dim() < 2 or data.stride(-1) != 1:
        raise LayoutError(f"payload has shape {tuple(data.shape)} and strides {data.stride()}; rows must be contiguous")
    data = data.reshape(-1, data.shape[-1]) if data.dim() == 2 or data.is_contiguous() else data
    if data.dim() != 2:
        raise LayoutError(f"payload has strides {data.stride()}; leading dimensions must be contiguous")
    if heads is None:
        return data, data.shape[1], 1
    if data.shape[1] % heads:
        raise ShapeError(f"heads is {heads}; it must divide hidden ({data.shape[1]})")
    dim = data.shape[1] // heads
    if dim % 32:
        raise ShapeError(f"head_dim is {dim}; blocks of 32 of a matrix begin at heads where it is a multiple of 32")
    return data.unflatten(-1, (heads, dim)), dim, heads


def _rows(data, scale, heads, dtype, cu_seqlens) -> MxTensor:
    payload, dim, _ = _split(data, heads)
    if scale.stride(-1) != 1:
        raise LayoutError(f"scale has strides {scale.stride()}; the last must be 1")
    strides = (scale.stride(0), dim // 32, 1)
    return MxTensor(payload, scale, block="row", dtype=dtype, scale_strides=strides, cu_seqlens=cu_seqlens)


def _units(data, scale, heads, dtype, cu_seqlens) -> MxTensor:
    payload, dim, _ = _split(data, heads)
    if heads is not None and dim % 128:
        raise ShapeError(f"head_dim is {dim}; a unit of swizzled scales belongs to one head where it is a multiple of 128")
    columns = ceil_div(data.shape[-1], 128)
    strides = (columns, ceil_div(dim, 128), 1)
    return MxTensor(
        payload, scale, block="row", dtype=dtype, layout="tiled", scale_strides=strides, cu_seqlens=cu_seqlens
    )  # fmt: skip


def _of(x: Any, *names: str) -> Any:
    for name in names:
        if getattr(x, name, None) is not None:
            return getattr(x, name)
    raise ArgumentError(f"x is a {type(x).__name__} without {' or '.join(names)}")


def from_torchao(x: Any, heads: Optional[int] = None, *, cu_seqlens: Any = None) -> MxTensor:
    """A torchao MXTensor (..., hidden) as an MxTensor (tokens, heads, head_dim), or (tokens, hidden) without `heads`.

    x: an object with `qdata` (float8_e4m3fn or float8_e5m2), `scale` (float8_e8m0fnu) and `block_size` 32;
    `is_swizzled_scales` (or an older `_is_swizzled_scales`) says how its scales lie. Swizzled scales of one sequence, or of
    sequences of multiples of 128 tokens. Nothing is copied. Raises: MxattnError."""
    if getattr(x, "block_size", 32) != 32:
        raise LayoutError(f"x has blocks of {x.block_size}; they must be 32")
    swizzled = bool(getattr(x, "is_swizzled_scales", getattr(x, "_is_swizzled_scales", False)))
    data, scale = _of(x, "qdata", "_data"), _of(x, "scale", "_scale_e8m0")
    if swizzled:
        return _units(data, scale, heads, None, cu_seqlens)
    return _rows(data, scale.reshape(-1, scale.shape[-1]), heads, None, cu_seqlens)


def _matrix(x: MxTensor):
    """Payload as (tokens, hidden) and the scales of rows, both without a copy; whether the scales are units."""
    if x.block == "column" or x.scale_hdim is None:
        raise LayoutError(f"x has {x.block} blocks and scales along seq alone; its rows have no scales")
    payload = x.payload
    if payload.dim() != 2:
        if not payload.is_contiguous():
            raise LayoutError(f"x has strides {payload.stride()}; a matrix (tokens, hidden) needs contiguous ones")
        payload = payload.reshape(-1, payload.shape[-1] * payload.shape[-2])
    tokens, hidden = payload.shape
    heads, dim = (1 if x.ndim == 2 else x.shape[-2]), x.shape[-1]
    strides = x._struct.scales[0]
    given = (strides.stride_row, strides.stride_head, strides.stride_k)
    if heads > 1 and dim % (128 if x.layout == "tiled" else 32):
        raise LayoutError(f"head_dim is {dim}; blocks of a matrix straddle heads")
    if x.layout == "linear":
        if given != (0, 0, 0) and (given[1], given[2]) != (dim // 32, 1):
            raise LayoutError(f"scales have strides {given}; a matrix's lie head by head")
        width = ceil_div(hidden, 32)
        scale = x.scale_hdim
        return payload, scale.reshape(tokens, width) if given == (0, 0, 0) else scale, False
    if x.layout == "tiled":
        want = (ceil_div(hidden, 128), dim // 128, 1)
        if given != want and heads > 1:
            raise LayoutError(
                "scales are units head by head; a GEMM over hidden reads them row by row: quantize with scale_order='gemm'"
            )
        return payload, x.scale_hdim, True
    raise LayoutError("scales are compact; with_scales('linear') or ('tiled') gives rows of their own")


def to_torchao(x: MxTensor, orig_dtype: torch.dtype = torch.bfloat16) -> Any:
    """An MxTensor as torchao's MXTensor (tokens, hidden), without a copy. Needs row or square blocks, linear scales or
    units in GEMM order (quantize(..., layout="tiled", scale_order="gemm")). Raises: LayoutError, ImportError."""
    import inspect

    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    payload, scale, swizzled = _matrix(x)
    types = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    known = {
        "qdata": payload.view(types[x.dtype]), "scale": scale.view(torch.float8_e8m0fnu), "elem_dtype": types[x.dtype],
        "block_size": 32, "orig_dtype": orig_dtype, "is_swizzled_scales": swizzled, "act_quant_kwargs": None,
    }  # fmt: skip
    parameters = inspect.signature(MXTensor.__new__).parameters
    if "kernel_preference" in parameters:
        from torchao.quantization.quantize_.common import KernelPreference

        known["kernel_preference"] = KernelPreference.EMULATED
    return MXTensor(**{name: value for name, value in known.items() if name in parameters})


def from_transformer_engine(x: Any, heads: Optional[int] = None, *, columnwise: bool = False, cu_seqlens: Any = None):
    """A TransformerEngine MXFP8Tensor (..., hidden) as an MxTensor of its rows, or of its columns.

    x: an object with `_rowwise_data` and `_rowwise_scale_inv` (uint8, padded to (128 i, 4 j), not swizzled), or
    `_columnwise_data` and `_columnwise_scale_inv`. Columnwise blocks are those of tokens 32 i .. 32 i + 31: one sequence, or
    sequences of multiples of 32. Nothing is copied. Raises: MxattnError."""
    side = "columnwise" if columnwise else "rowwise"
    data, scale = _of(x, f"_{side}_data"), _of(x, f"_{side}_scale_inv")
    dtype = "e5m2" if "5M2" in str(getattr(x, "_fp8_dtype", "E4M3")).upper() else "e4m3"
    if not columnwise:
        return _rows(data, scale, heads, dtype, cu_seqlens)
    payload, dim, _ = _split(data, heads)
    strides = (scale.stride(0), dim, 1)
    return MxTensor(payload, None, scale, block="column", dtype=dtype, scale_strides=strides, cu_seqlens=cu_seqlens)


def to_transformer_engine(x: MxTensor) -> dict:
    """What TransformerEngine's MXFP8Tensor is made of: {"rowwise_data", "rowwise_scale_inv"}, uint8, without a copy.

    Its scales are padded to multiples of (128, 4); where x's are not such an array already, LayoutError says so
    (quantize into an MxTensor over a padded array: `out=`)."""
    payload, scale, swizzled = _matrix(x)
    rows, columns = payload.shape[0], ceil_div(payload.shape[1], 32)
    padded = (ceil_div(rows, 128) * 128, ceil_div(columns, 4) * 4)
    if swizzled or tuple(scale.shape) != padded:
        raise LayoutError(f"scales have shape {tuple(scale.shape)}; TransformerEngine's are linear, padded to {padded}")
    return {"rowwise_data": payload.view(torch.uint8), "rowwise_scale_inv": scale.view(torch.uint8)}
