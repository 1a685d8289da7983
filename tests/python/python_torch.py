"""python_torch.py: checks of mxattn's PyTorch operators, for tensors of any device.

SPDX-License-Identifier: Apache-2.0
"""

import torch
from mxattn.torch import _ops


def check_operators(case, arguments):
    """torch.library.opcheck of forward and of its backward. arguments: those of attention_forward, q, k, v and sink first."""
    found = torch.library.opcheck(_ops.attention_forward, arguments)
    print(case, found)
    assert set(found.values()) == {"SUCCESS"}
    with torch.no_grad():
        o, lse = _ops.attention_forward(*arguments)
        plain = [None if x is None else x.detach() for x in arguments[:4]]
        backward = (
            torch.randn_like(o), torch.randn_like(lse), *plain[:3], o, lse, plain[3], *arguments[4:20], *arguments[21:],
        )  # fmt: skip
        assert set(torch.library.opcheck(_ops.attention_backward, backward).values()) == {"SUCCESS"}
