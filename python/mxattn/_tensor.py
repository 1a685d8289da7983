"""_tensor.py: MxTensor, a tensor in MXFP8: payload, scales and the tags that say what they are.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c

from . import _abi as abi
from . import _arrays as arrays
from ._errors import ArgumentError, DtypeError, LayoutError, ShapeError

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any, Optional

BLOCK = 32


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def fill_tensor(struct, found: arrays.View, tags: abi.Tags, name: str):
    """Writes a view's memory and a tensor's tags into an mxattn_tensor."""
    if len(found.shape) > 4:
        raise ShapeError(f"{name} has {len(found.shape)} dimensions; it must have at most 4")
    struct.tags, struct.ndim, struct.data = tags, len(found.shape), found.data
    for i, (size, stride) in enumerate(zip(found.shape, found.strides)):
        struct.shape[i], struct.stride[i] = size, stride
    return struct


def wide_tags(found: arrays.View, name: str) -> abi.Tags:
    if found.dtype not in ("float32", "float16", "bfloat16"):
        raise DtypeError(
            f"{name} has dtype {found.dtype}; it must be float32, float16 or bfloat16, or an MxTensor (8-bit payloads "
            "come with scales)"
        )
    return abi.Tags(abi.DTYPES[found.dtype], abi.BLOCK_NONE, abi.RCEIL, 0)


class MxTensor:
    """A tensor in MXFP8 blocks of 32: an FP8 payload, E8M0 scale bytes, and tags.

    Args:
        payload: (B, S, H, D), jagged (T, H, D), or a matrix (rows, cols); E4M3 or E5M2, as a typed array
            (torch.float8_e4m3fn, ml_dtypes.float8_e5m2, ...) or as uint8 with `dtype`.
        scale_hdim: E8M0 bytes (uint8 or a float8_e8m0fnu type) of 32 elements along the head dimension, or, with
            layout "compact", of 32 x 32 blocks.
        scale_seq: E8M0 bytes of 32 elements along the sequence. Row tensors need scale_hdim, column tensors
            scale_seq, square tensors either.
        dtype: "e4m3" or "e5m2"; required where the payload is uint8.
        block: "row" (1 x 32), "column" (32 x 1) or "square" (32 x 32).
        layout: of both scale arrays: "linear", "compact" or "tiled" (docs/format.md, section 4).
        rounding: "rceil" or "floor": how the scales were chosen.
        folded: scales are equal across the head dimension (square: 32 x D, row: 1 x D).
        centre: float32 (B, H, D), contiguous: a mean that is part of the value (v only).
        cu_seqlens: int32 (batch + 1): where the sequences of a jagged payload begin.
        seqused: int32 (batch): tokens used of each.
        scale_strides: (row, head, k) of both arrays, in bytes, tiled in units of 512 bytes; None: contiguous.
        cu_scale: int32 (batch + 1), tiled jagged scales only: first rows, multiples of 128; None: computed.

    Nothing is copied; the object keeps its arrays alive. Raises DtypeError, LayoutError, ArgumentError.
    """

    __slots__ = (
        "payload", "scale_hdim", "scale_seq", "centre", "cu_seqlens", "seqused", "dtype", "block", "rounding", "layout",
        "folded", "shape", "device", "_struct", "_address", "_library", "_kept", "_key", "_cu", "_used",
        "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        payload: Any,
        scale_hdim: Any = None,
        scale_seq: Any = None,
        *,
        dtype: Optional[str] = None,
        block: str = "square",
        layout: str = "linear",
        rounding: str = "rceil",
        folded: bool = False,
        centre: Any = None,
        cu_seqlens: Any = None,
        seqused: Any = None,
        scale_strides: Optional[tuple] = None,
        cu_scale: Any = None,
    ):
        found = arrays.view(payload, "payload")
        if found.dtype == "uint8":
            if dtype is None:
                raise DtypeError("dtype is None and payload is uint8; say 'e4m3' or 'e5m2'")
        elif found.dtype not in ("e4m3", "e5m2"):
            raise DtypeError(f"payload has dtype {found.dtype}; it must be e4m3, e5m2, or uint8 with dtype=")
        elif dtype not in (None, found.dtype):
            raise DtypeError(f"dtype is {dtype!r} and payload has dtype {found.dtype}")
        self.dtype = dtype or found.dtype
        if self.dtype not in ("e4m3", "e5m2"):
            raise DtypeError(f"dtype is {self.dtype!r}; it must be 'e4m3' or 'e5m2'")
        self.payload, self.block, self.layout, self.rounding, self.folded = payload, block, layout, rounding, bool(folded)
        self.scale_hdim, self.scale_seq, self.centre = scale_hdim, scale_seq, centre
        self.cu_seqlens, self.seqused = cu_seqlens, seqused
        self.shape, self.device, self._library = found.shape, found.device, found.library
        code = abi.named(abi.BLOCKS, block, "block")
        flags = (abi.CENTRED if centre is not None else 0) | (_folded_flag(block) if folded else 0)
        tags = abi.Tags(abi.DTYPES[self.dtype], code, abi.named(abi.ROUNDINGS, rounding, "rounding"), flags)
        struct = fill_tensor(abi.make(abi.Tensor), found, tags, "payload")
        self._cu = None if cu_seqlens is None else arrays.offsets(cu_seqlens, self._library, self.device, "cu_seqlens")
        self._used = None if seqused is None else arrays.offsets(seqused, self._library, self.device, "seqused")
        self._kept = [found]
        if scale_hdim is None and scale_seq is None:
            raise ArgumentError("scale_hdim and scale_seq are both None; an MxTensor has at least one array of scales")
        for axis, scale, name in ((abi.HDIM, scale_hdim, "scale_hdim"), (abi.SEQ, scale_seq, "scale_seq")):
            if scale is not None:
                self._take_scale(struct.scales[axis], scale, name, layout, scale_strides, cu_scale)
        if centre is not None:
            mean = self._same_device(arrays.view(centre, "centre"), "centre")
            if mean.dtype != "float32" or mean.strides != arrays.contiguous(mean.shape):
                raise DtypeError(f"centre has dtype {mean.dtype}, strides {mean.strides}; it must be contiguous float32")
            struct.centre = mean.data
        self._struct, self._address = struct, c.addressof(struct)
        self._key = (self._library.name, tags.dtype, tags.block, tags.rounding, tags.flags, self.shape, self.device)

    def _same_device(self, found, name):
        if found.device != self.device:
            raise ArgumentError(f"{name} is on {found.device} and payload on {self.device}")
        self._kept.append(found)
        return found

    def _take_scale(self, struct, scale, name, layout, strides, cu_scale):
        found = self._same_device(arrays.view(scale, name), name)
        if found.dtype not in ("uint8", "e8m0"):
            raise DtypeError(f"{name} has dtype {found.dtype}; it must be uint8 or float8_e8m0fnu")
        struct.data, struct.layout = found.data, abi.named(abi.LAYOUTS, layout, "layout")
        if strides is None and layout != "tiled" and len(found.shape) in (3, 4):
            if found.strides != arrays.contiguous(found.shape):
                if len(found.shape) == 4 and found.strides[0] != found.shape[1] * found.strides[1]:
                    raise LayoutError(f"{name} has strides {found.strides}; sequences must follow each other")
                strides = found.strides[-3:]
        if strides is None and layout == "tiled" and self._cu is not None and self.device[0] == "cuda":
            # The host cannot tell how many units there are: the array's shape says (scale_shape makes it long enough).
            if len(found.shape) != 5:
                raise LayoutError(f"{name} has shape {found.shape}; on a device give scale_strides, or (heads, rows, columns, 32, 16)")
            strides = (found.shape[2], found.shape[1] * found.shape[2], 1)
        if strides is not None:
            struct.stride_row, struct.stride_head, struct.stride_k = strides
        if cu_scale is not None and layout == "tiled":
            offsets = self._same_device(arrays.offsets(cu_scale, self._library, self.device, "cu_scale"), "cu_scale")
            struct.cu_scale = offsets.data
        elif self._cu is None or self.device[0] == "cpu":
            self._check_size(found, name, strides)

    def _check_size(self, found, name, strides):
        """An array must reach as far as its layout is read; a shorter one would be read past its end."""
        shape = scale_shape("hdim" if name == "scale_hdim" else "seq", self.layout, self.shape, self._cu)
        if self.layout == "tiled":
            heads, rows, columns, unit = *shape[:3], 512
        else:
            rows, heads, columns, unit = 1, *shape[-2:], 1
            for size in shape[:-2]:
                rows *= size
        row, head, k = strides or ((columns, rows * columns, 1) if unit > 1 else (heads * columns, columns, 1))
        least = ((rows - 1) * row + (heads - 1) * head + (columns - 1) * k + 1) * unit if rows * heads * columns else 0
        have = sum((size - 1) * stride for size, stride in zip(found.shape, found.strides)) + 1
        if least > (0 if 0 in found.shape else have):
            raise ShapeError(f"{name} holds {have} bytes; layout {self.layout} needs {least} for shape {self.shape}")

    @property
    def ndim(self) -> int:
        """2 (matrix), 3 (jagged) or 4 (dense)."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of payload and scale arrays."""
        total = 0
        for found in self._kept[: 1 + (self.scale_hdim is not None) + (self.scale_seq is not None)]:
            size = 1
            for n in found.shape:
                size *= n
            total += size
        return total

    def dequantize(self, dtype: str = "float32", *, out: Any = None, backend: Optional[str] = None) -> Any:
        """code * scale (+ centre) as `dtype`; see mxattn.dequantize."""
        from ._producers import dequantize

        return dequantize(self, dtype, out=out, backend=backend)

    def with_scales(self, layout: str, axes: Optional[tuple] = None, *, backend: Optional[str] = None) -> "MxTensor":
        """The same payload with its scales in another layout; see mxattn.arrange_scales."""
        from ._producers import arrange_scales

        return arrange_scales(self, layout, axes, backend=backend)

    def __repr__(self) -> str:
        folded = ", folded" if self.folded else ""
        axes = "+".join(a for a, s in (("hdim", self.scale_hdim), ("seq", self.scale_seq)) if s is not None)
        parts = [f"{self.dtype} {self.shape}, {self.block} blocks of {BLOCK}{folded}", f"{axes} scales {self.layout}"]
        parts.append(self.rounding)
        if self.centre is not None:
            parts.append("centred")
        if self._cu is not None:
            parts.append(f"{max(self._cu.shape[0] - 1, 0)} sequences")
        device = "cpu" if self.device[0] == "cpu" else f"cuda:{self.device[1]}"
        return f"MxTensor({', '.join(parts)}, {self._library.name} on {device}, {self.nbytes} bytes)"


def _folded_flag(block: str) -> int:
    return abi.FOLDED_TOKEN if block == "row" else abi.FOLDED


def scale_shape(axis, layout, shape, cu: Optional[arrays.View]) -> tuple:
    """Shape of a scale array with default strides. On a device, where offsets cannot be read, the most it may need."""
    dense = len(shape) == 4
    heads, dim = (1 if len(shape) == 2 else shape[-2]), shape[-1]
    groups = ceil_div(dim, BLOCK)
    if dense:
        batch, tokens = shape[0], shape[1]
        blocks, rows = batch * ceil_div(tokens, BLOCK), batch * ceil_div(tokens, 128) * 128
    else:
        tokens = shape[0]
        if cu is None:
            lengths = [tokens]
        elif cu.device[0] == "cpu":
            ends = arrays.read_ints(cu)
            lengths = [b - a for a, b in zip(ends, ends[1:])]
        else:
            most = cu.shape[0] - 1
            lengths = [tokens // BLOCK * BLOCK] + [BLOCK] * most if layout != "tiled" else [tokens] + [128] * most
        blocks, rows = sum(ceil_div(n, BLOCK) for n in lengths), sum(ceil_div(n, 128) * 128 for n in lengths)
    if layout == "tiled":
        tiles = (rows // 128, ceil_div(groups, 4)) if axis == "hdim" else (ceil_div(dim, 128), ceil_div(rows // BLOCK, 4))
        return (heads, *tiles, 32, 16)
    if layout == "linear" and axis == "hdim":
        return (*shape[:-1], groups) if len(shape) > 2 else (tokens, 1, groups)
    width = dim if layout == "linear" else groups
    return (shape[0], ceil_div(tokens, BLOCK), heads, width) if dense else (blocks, heads, width)
