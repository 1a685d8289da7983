"""mxattn.jax: attention for JAX on CPU: jit, grad and vmap, through a host callback.

    from mxattn.jax import attention
    o = jax.jit(functools.partial(attention, causal=True))(q, k, v)

Operands pass through host memory, so arrays of a CPU device cost no copy. Imported on demand.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from . import _attention
from ._arrays import as_float, as_index
from ._errors import ArgumentError, DtypeError, ShapeError

LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")


def _given(lengths) -> dict:
    return {name: np.asarray(x) for name, x in zip(LENGTHS, lengths) if x is not None}


def _no_gradient(x):
    return None if x is None else np.zeros(np.shape(x), jax.dtypes.float0)


@functools.lru_cache(maxsize=None)
def _function(options: tuple):
    """attention with these choices as a function JAX can differentiate: (q, k, v, sink, *lengths) -> (O, LSE)."""
    chosen = dict(options)
    out_dtype = chosen.pop("out_dtype")

    def on_host(q, k, v, sink, *lengths):
        q, k, v = (np.asarray(x) for x in (q, k, v))
        sink = None if sink is None else np.asarray(sink)
        o, lse = _attention.attention(
            q, k, v, sink=sink, return_lse=True, out_dtype=out_dtype, **_given(lengths), **chosen
        )  # fmt: skip
        return o, lse

    def gradients_on_host(dout, dlse, q, k, v, sink, o, lse, *lengths):
        dout, dlse, q, k, v, o, lse = (np.asarray(x) for x in (dout, dlse, q, k, v, o, lse))
        sink = None if sink is None else np.asarray(sink)
        found = _attention.attention_backward(
            dout, q, k, v, o, lse, dlse=dlse, sink=sink, grad_dtype=q.dtype.name, **_given(lengths), **chosen
        )  # fmt: skip
        return found

    def forward(q, k, v, sink, *lengths):
        rows = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])
        shapes = (
            jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), jnp.dtype(out_dtype or q.dtype)),
            jax.ShapeDtypeStruct(rows, jnp.float32),
        )
        return jax.pure_callback(on_host, shapes, q, k, v, sink, *lengths, vmap_method="sequential")

    def keep(q, k, v, sink, *lengths):
        o, lse = forward(q, k, v, sink, *lengths)
        return (o, lse), (q, k, v, sink, o, lse, lengths)

    def gradients(kept, given):
        q, k, v, sink, o, lse, lengths = kept
        dout, dlse = given
        shapes = [jax.ShapeDtypeStruct(x.shape, q.dtype) for x in (q, k, v)]
        if sink is not None:
            shapes.append(jax.ShapeDtypeStruct(sink.shape, jnp.float32))
        found = jax.pure_callback(
            gradients_on_host, tuple(shapes), dout, dlse, q, k, v, sink, o, lse, *lengths, vmap_method="sequential"
        )  # fmt: skip
        dq, dk, dv = found[0], found[1].astype(k.dtype), found[2].astype(v.dtype)
        return (dq, dk, dv, None if sink is None else found[3], *(_no_gradient(x) for x in lengths))

    made = jax.custom_vjp(forward)
    made.defvjp(keep, gradients)
    return made


def attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    *,
    causal: bool = False,
    window_size: tuple = (-1, -1),
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    sink: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
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
    """mxattn.attention for JAX arrays on a CPU, differentiable in q, k, v and sink, through O and LSE; may be traced.

    Args:
        q, k, v: (B, S, H, D), or (T, H, D) with cu_seqlens; float32, float16 or bfloat16.
        max_seqlen_q, max_seqlen_k, and all choices: static, as jit's static arguments or constants.
        The others: see mxattn.attention.

    Returns: O in q's dtype, or (O, LSE float32). Raises: MxattnError; inside jit, JAX passes on what the callback raised.
    """
    q, k, v = (x if isinstance(x, jax.Array) else jnp.asarray(x) for x in (q, k, v))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16):
            raise DtypeError(f"{name} has dtype {x.dtype}; it must be float32, float16 or bfloat16")
        if x.ndim != (4 if cu_seqlens_q is None else 3):
            raise ShapeError(f"{name} has shape {x.shape}; it must be (B, S, H, D), or (T, H, D) with cu_seqlens")
    for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if isinstance(value, jax.core.Tracer):
            raise ArgumentError(f"{name} is traced; it must be a static int")
    options = {
        "max_seqlen_q": None if max_seqlen_q is None else as_index(max_seqlen_q, "max_seqlen_q"),
        "max_seqlen_k": None if max_seqlen_k is None else as_index(max_seqlen_k, "max_seqlen_k"), "causal": bool(causal),
        "window_size": _attention._window(window_size), "softcap": as_float(softcap, "softcap"), "alignment": alignment,
        "softmax_scale": None if softmax_scale is None else as_float(softmax_scale, "softmax_scale"),
        "causal_strict": bool(causal_strict), "deterministic": bool(deterministic), "intermediates": intermediates, "block": block, "out_dtype": out_dtype,
        "backend": backend, "precision": precision,
    }  # fmt: skip
    lengths = [None if x is None else jnp.asarray(x) for x in (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)]
    o, lse = _function(tuple(options.items()))(q, k, v, None if sink is None else jnp.asarray(sink), *lengths)
    return (o, lse) if return_lse else o
