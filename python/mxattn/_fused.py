"""_fused.py: producers that fuse arithmetic with quantization: RMSNorm and its gradient, GEMM.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c

from . import _abi as abi
from . import _arrays as arrays
from ._attention import library_of
from ._errors import ArgumentError, DtypeError, ShapeError
from ._plan import Context, backend_for
from ._producers import _finished, _handle, _new_mx, _on_device, _sequences, _struct, _workspace
from ._tensor import MxTensor, wide_tags

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any, Optional


class Rope:
    """Rotary embedding applied before quantization: float32 tables `cosine` and `sine` of (positions, dims / 2); pairs
    are (d, d + dims/2), or (2d, 2d + 1) when `interleaved`; a token's position is its place in its sequence + offset."""

    def __init__(self, cosine: Any, sine: Any, *, dims: int = 0, offset: int = 0, interleaved=False, inverse=False):
        self._views = [arrays.view(cosine, "cosine"), arrays.view(sine, "sine")]
        for found, name in zip(self._views, ("cosine", "sine")):
            if found.dtype != "float32" or len(found.shape) != 2 or found.strides != arrays.contiguous(found.shape):
                raise DtypeError(f"{name} is {found.dtype} {found.shape}; it must be contiguous float32 (positions, dims/2)")
        if self._views[0].shape != self._views[1].shape:
            raise ShapeError(f"cosine has shape {self._views[0].shape} and sine {self._views[1].shape}")
        rows, half = self._views[0].shape
        if dims and dims != 2 * half:
            raise ShapeError(f"dims is {dims} and the tables have {half} columns; dims is twice that")
        self._struct = abi.Rope(
            self._views[0].data, self._views[1].data, rows, 2 * half, arrays.as_index(offset, "offset"), int(interleaved),
            int(inverse),
        )


def _floats(x, length, device, name):
    """A contiguous float32 vector of `length`, or None."""
    if x is None:
        return None
    found = arrays.view(x, name)
    if found.dtype != "float32" or found.shape != (length,) or (length > 1 and found.strides != (1,)):
        raise DtypeError(f"{name} is {found.dtype} {found.shape}; it must be contiguous float32 ({length},)")
    if found.device != device:
        raise ArgumentError(f"{name} is on {found.device}; it must be on {device}")
    return found


def rmsnorm_quantize(
    x: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    block: str = "square",
    dtype: str = "e4m3",
    rope: Optional[Rope] = None,
    return_wide: bool = False,
    return_rstd: bool = False,
    round_to_bf16: bool = False,
    rounding: str = "rceil",
    layout: Optional[str] = None,
    axes: Optional[tuple] = None,
    folded: bool = False,
    cu_seqlens: Any = None,
    seqused: Any = None,
    backend: Optional[str] = None,
    context: Optional[Context] = None,
) -> Any:
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, rotated, in MXFP8.

    Args:
        x: (B, S, H, D), jagged (T, H, D), or (rows, hidden); float32, float16 or bfloat16.
        weight: float32 (D,), or None for ones.
        rope: rotation between norm and quantization.
        return_wide: also return y unquantized, in x's dtype.
        return_rstd: also 1/sqrt(mean + eps), float32 (tokens, H).
        round_to_bf16: quantize the bfloat16-rounded y.
        The others: see quantize.

    Returns: MxTensor, or a tuple (y, y_wide, rstd) of what was asked for.
    Raises: UnsupportedError where the backend has no such kernel; MxattnError.
    """
    abi.named(abi.BLOCKS, block, "block")
    found = arrays.view(x, "x")
    library, device = found.library, found.device
    cu = None if cu_seqlens is None else arrays.offsets(cu_seqlens, library, device, "cu_seqlens")
    used = None if seqused is None else arrays.offsets(seqused, library, device, "seqused")
    y = _new_mx(library, device, found.shape, dtype=dtype, block=block, layout=layout, axes=axes, rounding=rounding,
                folded=folded, centred=False, cu=cu, cu_seqlens=cu_seqlens, seqused=seqused)  # fmt: skip
    args = abi.make(abi.RmsnormQuantizeArgs)
    args.backend = backend_for(backend, device)
    gain = _floats(weight, found.shape[-1], device, "weight")
    kept: list = [gain, _struct(found, wide_tags(found, "x"), "x")]
    args.x, args.y, args.eps, args.round_to_bf16 = c.addressof(kept[-1]), y._address, arrays.as_float(eps, "eps"), int(round_to_bf16)
    args.weight = None if gain is None else gain.data
    if rope is not None:
        args.rope = rope._struct
    answers = [y]
    if return_wide:
        wide = library.empty(found.shape, found.dtype, device)
        its = library.view(wide)
        kept.append(_struct(its, wide_tags(its, "y_wide"), "y_wide"))
        args.y_wide = c.addressof(kept[-1])
        answers.append(library.finish(wide))
    if return_rstd:
        tokens = 1
        for size in found.shape[:-1] if len(found.shape) == 2 else found.shape[:-2]:
            tokens *= size
        rstd = library.empty((tokens, 1 if len(found.shape) == 2 else found.shape[-2]), "float32", device)
        args.rstd = library.view(rstd).data
        answers.append(library.finish(rstd))
    _sequences(args, cu, used, found.shape)
    _on_device(args, library, device)
    kept.append(_workspace(abi.lib.mxattn_rmsnorm_quantize_workspace, args, library, device, context))
    abi.check(abi.lib.mxattn_rmsnorm_quantize(_handle(context), c.addressof(args)))
    answers[0] = _finished(y, library)
    return answers[0] if len(answers) == 1 else tuple(answers)


def _operand(x, name, kept):
    """View and struct's address of an array or MxTensor."""
    if type(x) is MxTensor:
        return x._kept[0], x._address
    found = arrays.view(x, name)
    kept.append(_struct(found, wide_tags(found, name), name))
    return found, c.addressof(kept[-1])


def rmsnorm_backward(
    x: Any,
    dy: Any,
    rstd: Any,
    weight: Any = None,
    *,
    rope: Optional[Rope] = None,
    out_dtype: Optional[str] = None,
    normalised: bool = False,
    cu_seqlens: Any = None,
    backend: Optional[str] = None,
    context: Optional[Context] = None,
) -> tuple:
    """Gradients of RMSNorm: with u = x * rstd and g = dy * weight, dx = rstd * (g - u * mean(g * u)).

    Args:
        x, dy: forward's x and the gradient of y; (B, S, H, D), (T, H, D) or (rows, hidden); arrays or MxTensors.
        rstd: float32 (tokens, H), from forward with return_rstd.
        weight: float32 (D,), or None for ones.
        rope: as forward had it; dy is turned back first.
        out_dtype: of dx; None: x's, "bfloat16" for an MxTensor.
        normalised: x is forward's y; weight is None then.

    Returns: (dx, dweight float32 (D,)). Raises: MxattnError.
    """
    library = library_of(x, "x")
    kept: list = []
    found, address = _operand(x, "x", kept)
    device = found.device
    args = abi.make(abi.RmsnormBackwardArgs)
    args.backend, args.x, args.dy = backend_for(backend, device), address, _operand(dy, "dy", kept)[1]
    word = out_dtype or ("bfloat16" if type(x) is MxTensor else found.dtype)
    dx = library.empty(found.shape, arrays.word_of(word, "out_dtype"), device)
    dweight = library.empty((found.shape[-1],), "float32", device)
    args.dx, args.dweight = _operand(dx, "dx", kept)[1], library.view(dweight).data
    gain, inverse = _floats(weight, found.shape[-1], device, "weight"), arrays.view(rstd, "rstd")
    if inverse.dtype != "float32" or inverse.strides != arrays.contiguous(inverse.shape):
        raise DtypeError(f"rstd is {inverse.dtype} with strides {inverse.strides}; it must be contiguous float32")
    args.weight, args.rstd, args.normalised = None if gain is None else gain.data, inverse.data, int(normalised)
    if rope is not None:
        args.rope = rope._struct
    cu = None if cu_seqlens is None else arrays.offsets(cu_seqlens, library, device, "cu_seqlens")
    _sequences(args, cu, None, found.shape)
    _on_device(args, library, device)
    kept.append(_workspace(abi.lib.mxattn_rmsnorm_backward_workspace, args, library, device, context))
    abi.check(abi.lib.mxattn_rmsnorm_backward(_handle(context), c.addressof(args)))
    return library.finish(dx), library.finish(dweight)


def gemm_quantize(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: str = "none",
    heads: Optional[int] = None,
    head_norm: bool = False,
    norm_weight: Any = None,
    norm_eps: float = 1e-6,
    norm_heads: int = 0,
    rope: Optional[Rope] = None,
    block: Optional[str] = "square",
    dtype: str = "e4m3",
    out_dtype: Optional[str] = None,
    return_wide: bool = False,
    rounding: str = "rceil",
    layout: Optional[str] = None,
    axes: Optional[tuple] = None,
    folded: bool = False,
    cu_seqlens: Any = None,
    backend: Optional[str] = None,
    context: Optional[Context] = None,
) -> Any:
    """C = activation(A B^T + bias), normalised per head, rotated, in MXFP8; float32 sums.

    Args:
        a: (M, K) or (M, heads, K / heads), with transpose_a (K, M); b: (N, K), with transpose_b (K, N). MxTensors whose
            32 elements lie along K, or bfloat16.
        bias: float32 (N,).
        activation: "none", "relu", "gelu" (tanh form), "silu" or "relu_squared".
        heads: C is (M, heads, N // heads) instead of (M, N).
        head_norm: each head of C is divided by its root mean square, times norm_weight (float32 (N // heads), or None).
        norm_heads: norm and rope are for this many heads, from the first; 0: all.
        rope: rotation of C's heads.
        out_dtype: "bfloat16", "float16" or "float32" for a C that is not quantized.
        return_wide: also return C before it is quantized, as bfloat16.
        The others: see quantize.

    Returns: MxTensor or an array, with return_wide a pair.
    Raises: UnsupportedError where the backend has no such kernel; MxattnError.
    """
    library = library_of(a, "a")
    kept: list = []
    (a_view, a_address), (b_view, b_address) = _operand(a, "a", kept), _operand(b, "b", kept)
    sizes = []
    for name, found, transposed in (("a", a_view, transpose_a), ("b", b_view, transpose_b)):
        if len(found.shape) not in (2, 3):
            raise ShapeError(f"{name} has shape {found.shape}; it must be a matrix, or (rows, heads, columns / heads)")
        columns = found.shape[1] * (found.shape[2] if len(found.shape) == 3 else 1)
        sizes.append(columns if transposed else found.shape[0])
    device = a_view.device
    if b_view.device != device:
        raise ArgumentError(f"b is on {b_view.device} and a on {device}")
    rows, cols = sizes
    if heads is not None and (heads < 1 or cols % heads):
        raise ShapeError(f"heads is {heads}; it must divide the {cols} columns of c")
    shape = (rows, cols) if heads is None else (rows, heads, cols // heads)
    cu = None if cu_seqlens is None else arrays.offsets(cu_seqlens, library, device, "cu_seqlens")
    args = abi.make(abi.GemmQuantizeArgs)
    args.backend, args.activation = backend_for(backend, device), abi.named(abi.ACTIVATIONS, activation, "activation")
    args.a, args.b, args.transpose_a, args.transpose_b = a_address, b_address, int(transpose_a), int(transpose_b)
    vector, gain = _floats(bias, cols, device, "bias"), _floats(norm_weight, shape[-1], device, "norm_weight")
    args.bias = None if vector is None else vector.data
    args.head_norm, args.norm_weight = int(head_norm), None if gain is None else gain.data
    args.norm_eps, args.norm_heads = arrays.as_float(norm_eps, "norm_eps"), arrays.as_index(norm_heads, "norm_heads")
    if rope is not None:
        args.rope = rope._struct
    if out_dtype is None:
        abi.named(abi.BLOCKS, block, "block")
        made: Any = _new_mx(library, device, shape, dtype=dtype, block=block, layout=layout, axes=axes,
                            rounding=rounding, folded=folded, centred=False, cu=cu, cu_seqlens=cu_seqlens,
                            seqused=None)  # fmt: skip
        args.c = made._address
    else:
        made = library.empty(shape, arrays.word_of(out_dtype, "out_dtype"), device)
        args.c = _operand(made, "c", kept)[1]
    wide = None
    if return_wide:
        wide = library.empty(shape, "bfloat16", device)
        args.c_wide = _operand(wide, "c_wide", kept)[1]
    _sequences(args, cu, None, (rows, 1, 1))
    _on_device(args, library, device)
    kept.append(_workspace(abi.lib.mxattn_gemm_quantize_workspace, args, library, device, context))
    abi.check(abi.lib.mxattn_gemm_quantize(_handle(context), c.addressof(args)))
    done = _finished(made, library) if out_dtype is None else library.finish(made)
    return (done, library.finish(wide)) if return_wide else done
