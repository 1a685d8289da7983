"""_ops.py: attention and its gradients as PyTorch operators: what torch.compile, autograd and opcheck see.

The annotations are read by torch.library to make the operators' schemas.

SPDX-License-Identifier: Apache-2.0
"""

from typing import Optional, Tuple

import torch

from .. import _attention
from .._arrays import library_of
from .._errors import DtypeError, ShapeError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@torch.library.custom_op("mxattn::attention_forward", mutates_args=())
def attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: Optional[torch.Tensor],
    cu_seqlens_q: Optional[torch.Tensor],
    cu_seqlens_k: Optional[torch.Tensor],
    seqused_q: Optional[torch.Tensor],
    seqused_k: Optional[torch.Tensor],
    max_seqlen_q: Optional[int],
    max_seqlen_k: Optional[int],
    causal: bool,
    window_left: int,
    window_right: int,
    softmax_scale: Optional[float],
    softcap: float,
    alignment: str,
    causal_strict: bool,
    deterministic: bool,
    intermediates: str,
    block: Optional[str],
    out_dtype: Optional[str],
    backend: Optional[str],
    precision: str,
) -> Tuple[torch.Tensor, torch.Tensor]:
    return _attention._attend(
        library_of(q), q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal,
        (window_left, window_right), softmax_scale, softcap, sink, seqused_q, seqused_k, alignment, causal_strict, True,
        deterministic, intermediates, block, None, out_dtype, backend, precision,
    )  # fmt: skip


@attention_forward.register_fake
def _(q, k, v, sink, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, causal, window_left,
      window_right, softmax_scale, softcap, alignment, causal_strict, deterministic, intermediates, block, out_dtype,
      backend, precision):  # fmt: skip
    if q.dtype not in DTYPES.values():
        raise DtypeError(f"q has dtype {q.dtype}; it must be float32, float16 or bfloat16, or an MxTensor")
    if q.dim() != (4 if cu_seqlens_q is None else 3):
        raise ShapeError(f"q has shape {tuple(q.shape)}; it must be (B, S, H, D), or (T, H, D) with cu_seqlens")
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype if out_dtype is None else DTYPES[out_dtype])
    rows = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    return o, q.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("mxattn::attention_backward", mutates_args=())
def attention_backward(
    dout: torch.Tensor,
    dlse: Optional[torch.Tensor],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    sink: Optional[torch.Tensor],
    cu_seqlens_q: Optional[torch.Tensor],
    cu_seqlens_k: Optional[torch.Tensor],
    seqused_q: Optional[torch.Tensor],
    seqused_k: Optional[torch.Tensor],
    max_seqlen_q: Optional[int],
    max_seqlen_k: Optional[int],
    causal: bool,
    window_left: int,
    window_right: int,
    softmax_scale: Optional[float],
    softcap: float,
    alignment: str,
    causal_strict: bool,
    deterministic: bool,
    intermediates: str,
    block: Optional[str],
    backend: Optional[str],
    precision: str,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    if dout.stride(-1) != 1 or 0 in dout.stride():  # an expanded gradient, as sum() gives
        dout = dout.contiguous()
    found = _attention.attention_backward(
        dout, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dlse=dlse, causal=causal,
        window_size=(window_left, window_right), softmax_scale=softmax_scale, softcap=softcap, sink=sink,
        seqused_q=seqused_q, seqused_k=seqused_k, alignment=alignment, causal_strict=causal_strict,
        deterministic=deterministic, intermediates=intermediates, block=block, backend=backend, precision=precision,
    )  # fmt: skip
    return found if sink is not None else (*found, q.new_empty((0,), dtype=torch.float32))


@attention_backward.register_fake
def _(dout, dlse, q, k, v, o, lse, sink, *others):
    dsink = q.new_empty((0,) if sink is None else sink.shape, dtype=torch.float32)
    return tuple(x.new_empty(x.shape, dtype=q.dtype) for x in (q, k, v)) + (dsink,)


def _keep(ctx, inputs, output):
    q, k, v, sink, cu_q, cu_k, used_q, used_k, *numbers = inputs
    ctx.save_for_backward(q, k, v, sink, cu_q, cu_k, used_q, used_k, *output)
    ctx.numbers = tuple(numbers[:-3]) + tuple(numbers[-2:])  # all but out_dtype
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse):
    q, k, v, sink, cu_q, cu_k, used_q, used_k, o, lse = ctx.saved_tensors
    nothing = (None,) * 19
    if dout is None and dlse is None:
        return (None,) * 4 + nothing
    if dout is None:
        dout = torch.zeros_like(o)
    dq, dk, dv, dsink = torch.ops.mxattn.attention_backward(
        dout, dlse, q, k, v, o, lse, sink, cu_q, cu_k, used_q, used_k, *ctx.numbers
    )
    return dq, dk.to(k.dtype), dv.to(v.dtype), None if sink is None else dsink, *nothing


attention_forward.register_autograd(_gradients, setup_context=_keep)
