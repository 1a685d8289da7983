"""_functional.py: differentiable attention, and other libraries' signatures of it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from .. import _attention
from .._arrays import as_float, as_index, fits, word_of
from .._errors import ArgumentError, UnsupportedError
from .._tensor import MxTensor
from . import _ops


def _length(value, name) -> Any:
    """An int; a symbolic size of torch.compile as it is."""
    return value if value is None or isinstance(value, (int, torch.SymInt)) else as_index(value, name)


def _integers(x, name) -> Optional[torch.Tensor]:
    """Lengths as an int32 tensor; other integers are converted, also under a trace."""
    if x is None:
        return None
    if isinstance(x, (list, tuple)):
        return torch.tensor([fits(as_index(n, name), f"{name}[{i}]", 32) for i, n in enumerate(x)], dtype=torch.int32)
    if not isinstance(x, torch.Tensor):
        word_of(x.dtype, name)
        x = torch.tensor(x)  # a copy: autograd sees when a tensor of its own changes before backward, an array's memory not
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise ArgumentError(f"{name} has dtype {x.dtype}; it must be an array of integers")
    return x if x.dtype is torch.int32 else x.to(torch.int64)  # which is converted where it is read, if it fits


def attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k: Optional[torch.Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    *,
    causal: bool = False,
    window_size: tuple = (-1, -1),
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    sink: Optional[torch.Tensor] = None,
    seqused_q: Optional[torch.Tensor] = None,
    seqused_k: Optional[torch.Tensor] = None,
    alignment: str = "bottom_right",
    causal_strict: bool = False,
    return_lse: bool = False,
    deterministic: bool = False,
    intermediates: str = "auto",
    block: Optional[str] = None,
    out_dtype: Optional[str] = None,
    backend: Optional[str] = None,
    precision: str = "mxfp8",
) -> Any:
    """mxattn.attention for PyTorch, differentiable in q, k, v and sink, through O and LSE; takes the same arguments.

    Args:
        q, k, v: (B, S, H, D) or (T, H, D) with cu_seqlens; float32, float16 or bfloat16. Under autocast they are cast to
            its dtype first. MxTensors are taken where no gradient is wanted.

    Returns: O in q's dtype, or (O, LSE float32). Raises: MxattnError; see mxattn.attention.
    """
    if isinstance(q, MxTensor) or isinstance(k, MxTensor) or isinstance(v, MxTensor):
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in (q, k, v, sink)):
            raise ArgumentError("q, k or v is an MxTensor, which carries no gradient, and another operand requires one")
        return _attention._attend(
            _attention.library_of(q, "q"), q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal,
            window_size, softmax_scale, softcap, sink, seqused_q, seqused_k, alignment, causal_strict, return_lse,
            deterministic, intermediates, block, None, out_dtype, backend, precision,
        )  # fmt: skip
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        narrow = torch.get_autocast_dtype(kind)
        q, k, v = (x.to(narrow) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))
    left, right = _attention._window(window_size)
    o, lse = _ops.attention_forward(
        q, k, v, sink, _integers(cu_seqlens_q, "cu_seqlens_q"), _integers(cu_seqlens_k, "cu_seqlens_k"),
        _integers(seqused_q, "seqused_q"), _integers(seqused_k, "seqused_k"), _length(max_seqlen_q, "max_seqlen_q"),
        _length(max_seqlen_k, "max_seqlen_k"), bool(causal), left, right,
        None if softmax_scale is None else as_float(softmax_scale, "softmax_scale"), as_float(softcap, "softcap"),
        alignment, bool(causal_strict), bool(deterministic), intermediates, block, out_dtype, backend, precision,
    )  # fmt: skip
    return (o, lse) if return_lse else o


def _refuse(dropout_p, alibi_slopes, block_table=None) -> None:
    if dropout_p:
        raise UnsupportedError(f"dropout_p is {dropout_p}; MXFP8 attention has no dropout")
    if alibi_slopes is not None:
        raise UnsupportedError("alibi_slopes is set; MXFP8 attention has no ALiBi")
    if block_table is not None:
        raise UnsupportedError("block_table is set; MXFP8 attention has no paged keys")


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """FlashAttention's flash_attn_func in MXFP8. q (B, Sq, Hq, D), k and v (B, Sk, Hkv, D).

    return_attn_probs: (O, LSE, None), for no kernel forms the probabilities. Dropout and ALiBi: UnsupportedError."""
    _refuse(dropout_p, alibi_slopes)
    o, lse = attention(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                       deterministic=deterministic, return_lse=True)  # fmt: skip
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """FlashAttention's flash_attn_varlen_func in MXFP8. q (Tq, Hq, D), k and v (Tk, Hkv, D), cu_seqlens int32 (B + 1).

    return_attn_probs: (O, LSE (Hq, Tq), None). Dropout, ALiBi and paged keys: UnsupportedError."""
    _refuse(dropout_p, alibi_slopes, block_table)
    o, lse = attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=softmax_scale,
                       causal=causal, window_size=window_size, softcap=softcap, deterministic=deterministic,
                       return_lse=True)  # fmt: skip
    return (o, lse, None) if return_attn_probs else o


def flash_attn_qkvpacked_func(qkv, *args, **options):
    """flash_attn_func of q, k and v in one tensor (B, S, 3, H, D), which are read where they lie."""
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *args, **options)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *args, **options):
    """flash_attn_varlen_func of q, k and v in one tensor (T, 3, H, D), which are read where they lie."""
    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
                                 enable_gqa=False):  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention in MXFP8: (B, H, S, D) operands, read where they lie.

    is_causal is top-left aligned, as PyTorch's. attn_mask and dropout: UnsupportedError."""
    _refuse(dropout_p, None)
    if attn_mask is not None:
        raise UnsupportedError("attn_mask is set; masks are causal, windows, lengths (seqused) and sequences (cu_seqlens)")
    if not enable_gqa and query.shape[-3] != key.shape[-3]:
        raise ArgumentError(f"query has {query.shape[-3]} heads and key {key.shape[-3]}; enable_gqa is False")
    heads_last = [x.transpose(-2, -3) for x in (query, key, value)]
    o = attention(*heads_last, causal=is_causal, softmax_scale=scale, alignment="top_left" if is_causal else "bottom_right")
    return o.transpose(-2, -3)
