"""_modules.py: attention as nn.Modules.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import nn
from torch.nn import functional

from .._errors import ArgumentError, UnsupportedError
from ._functional import attention


class Attention(nn.Module):
    """The attention between projections, for models that hold q, k and v: attention(q, k, v, ...) with fixed choices.

    Args: causal, softmax_scale, window_size, softcap, causal_strict, deterministic as for mxattn.attention.
    Shapes: q (B, Sq, Hq, D), k and v (B, Sk, Hkv, D), or jagged (T, H, D) with cu_seqlens; O has q's shape and dtype."""

    def __init__(self, causal=False, softmax_scale=None, window_size=(-1, -1), softcap=0.0, causal_strict=False,
                 deterministic=False):  # fmt: skip
        super().__init__()
        self.options = {
            "causal": causal, "softmax_scale": softmax_scale, "window_size": window_size, "softcap": softcap,
            "causal_strict": causal_strict, "deterministic": deterministic,
        }  # fmt: skip

    def forward(self, q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None):
        return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with the attention in MXFP8: the same parameters, state_dict and shapes.

    What kernels have no form of is refused, never computed otherwise: dropout in training, weights asked for, masks
    other than causal, bias_k, bias_v and add_zero_attn. Padding at the end of keys is given as lengths (`seqused_k`).
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: Optional[torch.Tensor] = None,
        need_weights: bool = False,
        attn_mask: Optional[torch.Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        seqused_k: Optional[torch.Tensor] = None,
    ):
        """query (B, S, E), key and value (B, Sk, E), or sequence first as batch_first says; (output, None)."""
        if need_weights:
            raise UnsupportedError("need_weights is True; no kernel forms the weights (pass need_weights=False)")
        if key_padding_mask is not None:
            raise UnsupportedError("key_padding_mask is set; give the lengths as seqused_k, int32 (B,)")
        if attn_mask is not None and not is_causal:
            raise UnsupportedError("attn_mask is set and is_causal is False; masks are causal, windows and lengths")
        if self.dropout and self.training:
            raise UnsupportedError(f"dropout is {self.dropout}; MXFP8 attention has no dropout")
        if self.bias_k is not None or self.add_zero_attn:
            raise UnsupportedError("bias_k or add_zero_attn is set; MXFP8 attention has neither")
        if query.dim() != 3:
            raise ArgumentError(f"query has {query.dim()} dimensions; it must be batched, 3")
        operands = [query, key, value] if self.batch_first else [x.transpose(0, 1) for x in (query, key, value)]
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        heads = [
            functional.linear(x, w, b).unflatten(-1, (self.num_heads, self.head_dim))
            for x, w, b in zip(operands, weights, biases)
        ]
        # PyTorch's causal mask is aligned top-left.
        o = attention(*heads, causal=is_causal, alignment="top_left" if is_causal else "bottom_right", seqused_k=seqused_k)
        o = functional.linear(o.flatten(-2), self.out_proj.weight, self.out_proj.bias)
        return (o if self.batch_first else o.transpose(0, 1)), None
