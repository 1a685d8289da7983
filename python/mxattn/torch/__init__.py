"""mxattn.torch: attention for PyTorch: autograd, torch.compile, autocast, modules, FlashAttention's signatures.

    from mxattn.torch import attention
    o = attention(q, k, v, causal=True)      # (B, S, H, D); differentiable, also through return_lse=True

Kernels run on CPU tensors, and on CUDA tensors on the caller's current stream; they allocate through PyTorch, never
synchronise and can be captured in CUDA graphs. What was run where: docs/python.md.

SPDX-License-Identifier: Apache-2.0
"""

from ._functional import (
    attention,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    scaled_dot_product_attention,
)
from ._interop import from_torchao, from_transformer_engine, to_torchao, to_transformer_engine
from ._modules import Attention, MultiheadAttention

__all__ = [
    "Attention", "MultiheadAttention", "attention", "flash_attn_func", "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func", "flash_attn_varlen_qkvpacked_func", "from_torchao", "from_transformer_engine",
    "scaled_dot_product_attention", "to_torchao", "to_transformer_engine",
]  # fmt: skip
