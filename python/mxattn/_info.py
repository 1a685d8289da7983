"""_info.py: what is here (version, backends, devices), and which kernel a call would run.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c

from . import _abi as abi
from . import _arrays as arrays
from . import _attention
from ._errors import ArgumentError, MxattnError
from ._plan import Context, Plan
from ._tensor import MxTensor

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any, Optional


class Backend:
    """A backend: `name`, `available`, `reason` (why not), `devices`, `threads`, `isa`, `kernels` (names)."""

    def __init__(self, info):
        self.name, self.available, self.reason = info.name.decode(), bool(info.available), (info.reason or b"").decode()
        self.devices, self.threads, self.isa = info.devices, info.threads, (info.isa_name or b"").decode()
        self.kernels = (info.kernels or b"").decode().split()

    def __repr__(self) -> str:
        if not self.available:
            return f"{self.name}: not available: {self.reason}"
        machine = f", {self.isa}, {self.threads} threads" if self.isa else ""
        return f"{self.name}: {self.devices} device{'' if self.devices == 1 else 's'}{machine}"


class Info:
    """What this machine offers: `version` of the library, `path` it was loaded from, `backends` by name."""

    def __init__(self, version: str, path: str, backends: dict):
        self.version, self.path, self.backends = version, path, backends

    def __repr__(self) -> str:
        return "\n".join([f"mxattn {self.version} ({self.path})", *(f"  {b!r}" for b in self.backends.values())])


def info(context: Optional[Context] = None) -> Info:
    """Version, library and backends, those that are missing too, each with its reason. Never raises for lack of a GPU."""
    backends = {}
    for name in ("ref", "cpu", "cuda"):
        found = abi.make(abi.BackendInfo)
        abi.check(
            abi.lib.mxattn_backend_query(
                None if context is None else context._handle, abi.BACKENDS[name], c.addressof(found)
            )
        )
        backends[name] = Backend(found)
    return Info(abi.lib.mxattn_version_string().decode(), abi.library_path(), backends)


def _stand_in(x: Any, dtype: str, name: str):
    """A view of an array, an MxTensor, or a shape with `dtype`."""
    if isinstance(x, (tuple, list)):
        shape = tuple(arrays.as_index(n, f"{name}.shape") for n in x)
        return arrays.View(None, shape, arrays.contiguous(shape), arrays.word_of(dtype, "dtype"), ("cpu", 0), None, None)
    return x._kept[0] if isinstance(x, MxTensor) else arrays.view(x, name)


def plan(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    *,
    training: bool = False,
    dtype: str = "bfloat16",
    causal: bool = False,
    window_size: tuple = (-1, -1),
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    sink: Any = None,
    alignment: str = "bottom_right",
    causal_strict: bool = False,
    deterministic: bool = False,
    intermediates: str = "auto",
    block: Optional[str] = None,
    out_dtype: Optional[str] = None,
    backend: Optional[str] = None,
    precision: str = "mxfp8",
    dq_reduce: str = "auto",
    context: Optional[Context] = None,
) -> Plan:
    """Which kernel attention would run, and why; nothing is run.

    Args:
        q, k, v: arrays, MxTensors, or shapes, whose element type is then `dtype`.
        training: plan forward and backward.
        The others: as for attention.

    Returns: Plan. Raises: MxattnError with the reason why not.
    """
    given = {"q": q, "k": k, "v": v}
    views = {name: _stand_in(x, dtype, name) for name, x in given.items()}
    tags = {
        n: x._struct.tags if isinstance(x, MxTensor) else _attention.wide_tags(views[n], n) for n, x in given.items()
    }
    word = out_dtype or ("bfloat16" if isinstance(q, MxTensor) else views["q"].dtype)
    wide = abi.Tags(abi.named(abi.DTYPES, word, "out_dtype"), 0, 0, 0)
    tags["o"] = wide
    if training:
        tags.update(dout=wide, dq=wide, dk=wide, dv=wide)
    lengths = None
    if cu_seqlens_q is not None:
        if cu_seqlens_k is None:
            raise ArgumentError("cu_seqlens_k is None; cu_seqlens_q and cu_seqlens_k come together")
        library, device = views["q"].library or arrays._shared(arrays.Numpy), views["q"].device
        cu = [arrays.offsets(x, library, device, n) for x, n in ((cu_seqlens_q, "cu_seqlens_q"), (cu_seqlens_k, "cu_seqlens_k"))]
        lengths = _attention._lengths(cu[0], cu[1], max_seqlen_q, max_seqlen_k, views["q"], views["k"])
    scale = None if softmax_scale is None else arrays.as_float(softmax_scale, "softmax_scale")
    options = (bool(causal), _attention._window(window_size), scale, arrays.as_float(softcap, "softcap"), alignment,
               bool(causal_strict), bool(deterministic), intermediates, block, precision, backend)  # fmt: skip
    problem = _attention._problem(options, views, tags, sink is not None, training, lengths, dq_reduce)
    device = views["q"].device
    place = "the host" if device[0] == "cpu" else f"cuda:{device[1]}"
    blocks = ", ".join(f"{n} {_tag_words(getattr(problem, n))}" for n in ("q", "k", "v"))
    made = Plan(problem, context, "")
    asked = "asked for" if backend else f"the arrays are on {place}"
    lines = [f"backend {made.backend}: {asked}", f"operands: {blocks}", f"intermediates {made.intermediates}: "]
    lines[-1] += "asked for" if intermediates != "auto" else f"the default of {made.backend}"
    others = {name: found for name, found in info(context).backends.items() if name == "cuda" and not found.available}
    lines += [f"not {name}: {found.reason}" for name, found in others.items() if made.backend != name]
    made.why = "\n".join(lines)
    return made


def _tag_words(tags) -> str:
    blocks = {value: word for word, value in abi.BLOCKS.items()}
    word = abi.DTYPE_NAMES[tags.dtype]
    if tags.block == abi.BLOCK_NONE:
        return f"{word} as it is"
    kind = "in" if word in ("e4m3", "e5m2") else "quantized by the call to"
    return f"{word} {kind} {blocks[tags.block]} blocks"


def check_device_status(word: int) -> None:
    """Raises CuSeqlensError where a device's status word, copied to the host, is not 0."""
    abi.check(abi.lib.mxattn_device_status_check(arrays.as_index(word, "word")))


__all__ = ["Backend", "Info", "MxattnError", "check_device_status", "info", "plan"]
