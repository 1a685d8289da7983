"""_producers.py: what makes and reads MXFP8 tensors: quantize, dequantize, scale layouts; merging of partial results.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c

from . import _abi as abi
from . import _arrays as arrays
from ._errors import ArgumentError, DtypeError, LayoutError, ShapeError
from ._plan import Context, backend_for, host_workspace
from ._tensor import MxTensor, fill_tensor, scale_shape, wide_tags

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any, Optional

AXES_OF = {"row": ("hdim",), "column": ("seq",), "square": ("hdim", "seq")}


def _handle(context: Optional[Context]):
    return None if context is None else context._handle


def _struct(found: arrays.View, tags: abi.Tags, name: str):
    return fill_tensor(abi.make(abi.Tensor), found, tags, name)


def _on_device(args, library, device):
    """The caller's stream."""
    args.device = device[1]
    if device[0] == "cuda":
        args.stream = library.stream(device)


def _sequences(args, cu, used, shape):
    args.sequences.cu_seqlens = None if cu is None else cu.data
    args.sequences.seqused = None if used is None else used.data
    args.sequences.batch = shape[0] if len(shape) == 4 else 1 if cu is None else cu.shape[0] - 1


def _workspace(query, args, library, device, context):
    """Gives a call the memory that `query` says it needs; the answer keeps it alive."""
    size = c.c_size_t()
    abi.check(query(_handle(context), c.addressof(args), c.addressof(size)))
    if size.value == 0:
        return None
    if device[0] == "cpu":
        memory = host_workspace(size.value)
        args.workspace, args.workspace_bytes = memory.address, size.value
        return memory
    memory = library.empty((size.value,), "uint8", device)
    args.workspace, args.workspace_bytes = library.view(memory).data, size.value
    return memory


def _new_mx(library, device, shape, *, dtype, block, layout, axes, rounding, folded, centred, cu, cu_seqlens, seqused,
            order="head"):  # fmt: skip
    """An MxTensor over new arrays, to be written by a producer."""
    if order not in ("head", "gemm"):
        raise ArgumentError(f"scale_order is {order!r}; it must be 'head' or 'gemm'")
    if not 2 <= len(shape) <= 4:
        raise ShapeError(f"x has shape {tuple(shape)}; it must be (B, S, H, D), (T, H, D) or (rows, cols)")
    if layout is None:
        layout = "compact" if block == "square" else "linear"
    abi.named(abi.LAYOUTS, layout, "layout")
    if axes is None:
        axes = ("hdim",) if layout == "compact" else AXES_OF[block]
    for axis in axes:
        if axis not in AXES_OF[block]:
            raise LayoutError(f"axes has {axis!r}; {block} blocks have scales along {' and '.join(AXES_OF[block])}")
    scales = {axis: library.empty(scale_shape(axis, layout, shape, cu), "e8m0", device) for axis in axes}
    strides = None
    if order == "gemm":
        if layout != "tiled" or "seq" in axes or len(shape) < 3 or shape[-1] % 128:
            raise LayoutError("scale_order is 'gemm'; it needs layout 'tiled', axes ('hdim',) and head_dim a multiple of 128")
        heads, rows, columns = scales["hdim"].shape[:3]
        scales["hdim"] = library.empty((rows, heads * columns, 32, 16), "e8m0", device)
        strides = (heads * columns, columns, 1)
    centre = None
    if centred:
        if len(shape) == 2:
            raise ShapeError("centred is True and x is a matrix; a centre needs (B, S, H, D) or (T, H, D)")
        batch = shape[0] if len(shape) == 4 else 1 if cu is None else cu.shape[0] - 1
        centre = library.empty((batch, shape[-2], shape[-1]), "float32", device)
    return MxTensor(
        library.empty(shape, dtype, device), scales.get("hdim"), scales.get("seq"), dtype=dtype, block=block,
        layout=layout, rounding=rounding, folded=folded, centre=centre, cu_seqlens=cu_seqlens, seqused=seqused,
        scale_strides=strides,
    )  # fmt: skip


def _finished(made: MxTensor, library) -> MxTensor:
    """The tensor with arrays of the caller's library."""
    if library.name != "jax":
        return made
    done = {n: None if (a := getattr(made, n)) is None else library.finish(a) for n in ("scale_hdim", "scale_seq", "centre")}
    return MxTensor(
        library.finish(made.payload), done["scale_hdim"], done["scale_seq"], dtype=made.dtype, block=made.block,
        layout=made.layout, rounding=made.rounding, folded=made.folded, centre=done["centre"],
        cu_seqlens=made.cu_seqlens, seqused=made.seqused,
    )  # fmt: skip


def quantize(
    x: Any,
    block: str = "square",
    dtype: str = "e4m3",
    *,
    rounding: str = "rceil",
    layout: Optional[str] = None,
    axes: Optional[tuple] = None,
    scale_order: str = "head",
    folded: bool = False,
    centred: bool = False,
    cu_seqlens: Any = None,
    seqused: Any = None,
    out: Optional[MxTensor] = None,
    backend: Optional[str] = None,
    context: Optional[Context] = None,
) -> MxTensor:
    """x in MXFP8.

    Args:
        x: (B, S, H, D), jagged (T, H, D) with cu_seqlens, or (rows, cols); float32, float16 or bfloat16, any strides
            but the last dimension's.
        block: "row" (1 token x 32), "column" (32 x 1) or "square" (32 x 32: one payload for forward and backward).
        dtype: "e4m3" or "e5m2".
        rounding: "rceil" (nothing saturates) or "floor" (OCP MX v1.0).
        layout: of the scales: "linear", "compact" (square), "tiled"; None: compact for square blocks, else linear.
        axes: which arrays of scales: "hdim", "seq"; None: all the block has (compact: one).
        scale_order: of tiled units along hdim: "head" (one head after another, as attention reads them) or "gemm" (the
            units of one (tokens, H * D) matrix, as a GEMM over hidden reads them; D a multiple of 128).
        folded: one scale across the head dimension.
        out: an MxTensor of x's shape to write into; its tags then choose all of the above.
        centred: subtract a mean per (sequence, head, dim), kept in the tensor (v only).
        cu_seqlens, seqused: where the sequences of a jagged x begin, tokens used of each; see attention.
        backend, context: see attention.

    Returns:
        MxTensor over new arrays of x's library: typed float8 arrays where it has them, else uint8.

    Raises: MxattnError.
    """
    abi.named(abi.BLOCKS, block, "block")
    if dtype not in ("e4m3", "e5m2"):
        raise DtypeError(f"dtype is {dtype!r}; it must be 'e4m3' or 'e5m2'")
    found = arrays.view(x, "x")
    library, device = found.library, found.device
    tags = wide_tags(found, "x")
    cu = None if cu_seqlens is None else arrays.offsets(cu_seqlens, library, device, "cu_seqlens")
    used = None if seqused is None else arrays.offsets(seqused, library, device, "seqused")
    if out is not None:
        made, _ = out, arrays.writable(out.payload, "out")
    else:
        made = _new_mx(library, device, found.shape, dtype=dtype, block=block, layout=layout, axes=axes,
                       rounding=rounding, folded=folded, centred=centred, cu=cu, cu_seqlens=cu_seqlens, seqused=seqused,
                       order=scale_order)  # fmt: skip
    args = abi.make(abi.QuantizeArgs)
    args.backend = backend_for(backend, device)
    wide = _struct(found, tags, "x")
    args.wide, args.quantized = c.addressof(wide), made._address
    _sequences(args, cu, used, found.shape)
    _on_device(args, library, device)
    kept = _workspace(abi.lib.mxattn_quantize_workspace, args, library, device, context)
    abi.check(abi.lib.mxattn_quantize(_handle(context), c.addressof(args)))
    del kept, wide
    return out if out is not None else _finished(made, library)


def dequantize(
    x: MxTensor,
    dtype: str = "float32",
    *,
    out: Any = None,
    backend: Optional[str] = None,
    context: Optional[Context] = None,
) -> Any:
    """The values of an MxTensor: code * scale, plus its centre; exact in float32, rounded once to a narrower dtype.

    Args:
        dtype: "float32", "float16" or "bfloat16".
        out: an array of x's shape to write into, instead of a new one.

    Returns: an array of the library x's payload is of. Raises: MxattnError.
    """
    library = x._library
    made = library.empty(x.shape, arrays.word_of(dtype, "dtype"), x.device) if out is None else arrays.writable(out, "out")
    found = arrays.view(made, "out")
    args = abi.make(abi.QuantizeArgs)
    args.backend = backend_for(backend, x.device)
    wide = _struct(found, wide_tags(found, "out"), "out")
    args.wide, args.quantized = c.addressof(wide), x._address
    _sequences(args, x._cu, x._used, x.shape)
    _on_device(args, library, x.device)
    kept = _workspace(abi.lib.mxattn_quantize_workspace, args, library, x.device, context)
    abi.check(abi.lib.mxattn_dequantize(_handle(context), c.addressof(args)))
    del kept, wide
    return library.finish(made) if out is None else out


def arrange_scales(
    x: MxTensor,
    layout: str,
    axes: Optional[tuple] = None,
    *,
    backend: Optional[str] = None,
    context: Optional[Context] = None,
) -> MxTensor:
    """The same payload with its scales in another layout; values never change, and the payload is not copied.

    Args:
        layout: "linear", "compact" (square blocks) or "tiled" (512-byte units of 128 rows x 4 blocks, as block-scaled
            tensor cores, cuBLASLt, TransformerEngine's GEMMs and torch._scaled_mm read them).
        axes: arrays to make; None: all the block has (compact: one).

    Returns: MxTensor. Raises: MxattnError, UnsupportedError or LayoutError where there is no way.
    """
    library, device = x._library, x.device
    made = _new_mx(library, device, x.shape, dtype=x.dtype, block=x.block, layout=layout, axes=axes,
                   rounding=x.rounding, folded=x.folded, centred=False, cu=x._cu, cu_seqlens=x.cu_seqlens,
                   seqused=x.seqused)  # fmt: skip
    for axis, source in (("hdim", made.scale_hdim), ("seq", made.scale_seq)):
        if source is None:
            continue
        code = abi.AXES[axis]
        same = x._struct.scales[code].data is not None
        from_axis = code if same else 1 - code
        args = abi.make(abi.ScalesArgs)
        args.backend, args.tags = backend_for(backend, device), x._struct.tags
        args.from_axis, args.to_axis = from_axis, code
        setattr(args, "from", x._struct.scales[from_axis])
        args.to = made._struct.scales[code]
        _sequences(args, x._cu, x._used, x.shape)
        args.seqlen = x.shape[1] if len(x.shape) == 4 else x.shape[0]
        args.heads, args.head_dim = (1 if len(x.shape) == 2 else x.shape[-2]), x.shape[-1]
        _on_device(args, library, device)
        convert = abi.lib.mxattn_scales_scatter if same else abi.lib.mxattn_scales_transform
        abi.check(convert(_handle(context), c.addressof(args)))
    done = _finished(made, library)
    return MxTensor(
        x.payload, done.scale_hdim, done.scale_seq, dtype=x.dtype, block=x.block, layout=layout, rounding=x.rounding,
        folded=x.folded, centre=x.centre, cu_seqlens=x.cu_seqlens, seqused=x.seqused,
    )  # fmt: skip


def merge_states(
    o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, *, backend: Optional[str] = None, context: Optional[Context] = None
) -> tuple:
    """Merges attention over two disjoint sets of keys: LSE = ln(e^LSE_a + e^LSE_b), O the weighted mean.

    Args:
        o_a, o_b: (B, S, H, Dv) or (T, H, Dv); float32, float16 or bfloat16.
        lse_a, lse_b: float32 (B, H, S) or (H, T); -inf where nothing was seen.

    Returns: (O, LSE), O with o_a's dtype. Raises: MxattnError, for a tensor that needs a gradient too: there is none.
    """
    given = (o_a, lse_a, o_b, lse_b)
    if any(getattr(a, "requires_grad", False) for a in given) and arrays.library_of(o_a, "o_a").torch.is_grad_enabled():
        raise ArgumentError("merge_states has no derivative: detach its tensors, or call it under torch.no_grad()")
    views = {n: arrays.view(a, n) for n, a in (("o_a", o_a), ("lse_a", lse_a), ("o_b", o_b), ("lse_b", lse_b))}
    library, device = views["o_a"].library, views["o_a"].device
    made = {"o": library.empty(views["o_a"].shape, views["o_a"].dtype, device)}
    made["lse"] = library.empty(views["lse_a"].shape, "float32", device)
    for name, array in made.items():
        views[name] = library.view(array, name)
    args = abi.make(abi.StatesMergeArgs)
    args.backend, args.device = backend_for(backend, device), device[1]
    kept = []
    for name, found in views.items():
        if found.device != device:
            raise ArgumentError(f"{name} is on {found.device} and o_a on {device}")
        kept.append(_struct(found, wide_tags(found, name), name))
        setattr(args, name, c.addressof(kept[-1]))
    if device[0] == "cuda":
        args.stream = library.stream(device)
    abi.check(abi.lib.mxattn_states_merge(_handle(context), c.addressof(args)))
    return library.finish(made["o"]), library.finish(made["lse"])
