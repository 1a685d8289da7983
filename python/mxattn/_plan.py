"""_plan.py: contexts, plans, and memory for runs.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import _thread
import ctypes as c

from . import _abi as abi
from . import _arrays as arrays

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Optional

# Host memory above this is not kept by a thread between calls.
KEPT_BYTES = 64 << 20
_INTERMEDIATES = {value: word for word, value in abi.INTERMEDIATES.items()}
_REDUCES = {value: word for word, value in abi.DQ_REDUCES.items()}
_BACKENDS = {value: word for word, value in abi.BACKENDS.items()}


class Context:
    """How the CPU backend runs: `threads` (0: the processors this process may use) and `isa`, the newest instruction
    set allowed ("portable", "avx2", "avx512", "avx512_bf16", "avx512_vbmi", "amx_bf16"; None: what the machine has).

    Immutable; any number of threads may use one at once. Results have the same bits for any number of threads.
    Raises ArgumentError."""

    def __init__(self, threads: int = 0, isa: Optional[str] = None):
        mask = 0x7FFFFFFF if isa is None else 2 * abi.named(abi.ISAS, isa, "isa") - 1
        options = abi.make(abi.ContextOptions, threads=threads, isa_mask=mask)
        handle = c.c_void_p()
        abi.check(abi.lib.mxattn_context_create(c.addressof(options), c.addressof(handle)))
        self._handle = handle.value

    def __del__(self, destroy=abi.lib.mxattn_context_destroy):
        handle = getattr(self, "_handle", None)
        if handle:
            destroy(handle)


class Plan:
    """A validated attention problem: the kernel that runs it, and why. Made by mxattn.plan.

    Attributes:
        backend: "cpu", "ref" or "cuda".
        kernel_forward, kernel_backward: names of kernels; backward's is "" unless the plan is for training.
        isa, threads: instruction set and threads on a CPU.
        intermediates: "bf16" or "e4m3": how P and dS are held.
        dq_reduce: "fp16" or "fp32".
        softmax_scale: the value in use.
        workspace_forward_bytes, workspace_backward_bytes, saved_bytes, prepared_bytes.
        why: one sentence for each choice.
    """

    def __init__(self, problem, context: Optional[Context], why: str = ""):
        handle = c.c_void_p()
        address = None if context is None else context._handle
        abi.check(abi.lib.mxattn_plan_create(address, c.addressof(problem), c.addressof(handle)))
        self._handle, self._context, self._problem = handle.value, context, problem
        info = abi.make(abi.PlanInfo)
        abi.check(abi.lib.mxattn_plan_query(self._handle, c.addressof(info)))
        self.backend = _BACKENDS[info.backend]
        self.kernel_forward, self.kernel_backward = info.kernel_forward.decode(), info.kernel_backward.decode()
        self.isa, self.threads = info.isa_name.decode(), info.threads
        self.intermediates, self.dq_reduce = _INTERMEDIATES[info.intermediates], _REDUCES[info.dq_reduce]
        self.max_headroom_log2, self.softmax_scale = info.max_headroom_log2, info.softmax_scale
        self.workspace_forward_bytes = info.workspace_forward_bytes
        self.workspace_backward_bytes = info.workspace_backward_bytes
        self.saved_bytes, self.prepared_bytes, self.saved_id = info.saved_bytes, info.prepared_bytes, info.saved_id
        self.why = why

    def __del__(self, destroy=abi.lib.mxattn_plan_destroy):
        handle = getattr(self, "_handle", None)
        if handle:
            destroy(handle)

    def __repr__(self) -> str:
        backward = f", backward {self.kernel_backward}" if self.kernel_backward else ""
        machine = f" ({self.isa}, {self.threads} threads)" if self.isa else ""
        return (
            f"Plan({self.backend}{machine}: forward {self.kernel_forward}{backward}, intermediates {self.intermediates}, "
            f"workspace {self.workspace_forward_bytes}"
            + (f" and {self.workspace_backward_bytes}" if self.kernel_backward else "")
            + f" bytes)\n{self.why}"
        )


_local = _thread._local()  # threading.local, without its import


def host_workspace(size: int) -> arrays.Memory:
    """Memory of this thread for one call into the library; its content on entry does not matter. Nothing of Python runs
    in a thread while the library does, so calls never share it."""
    kept = getattr(_local, "workspace", None)
    if kept is not None and kept.bytes >= size:
        return kept
    made = arrays.Memory(size)
    if size <= KEPT_BYTES:
        _local.workspace = made
    return made


def backend_for(backend: Optional[str], device: tuple) -> int:
    """The backend's value. None: where the arrays are. Host kernels never get a device's memory."""
    from ._errors import ArgumentError

    if backend is None:
        return abi.CUDA if device[0] == "cuda" else abi.CPU
    code = abi.named(abi.BACKENDS, backend, "backend")
    if backend.startswith("emu"):
        raise ArgumentError(f"backend is {backend!r}; an emulator's memory is its own (mxattn_device_alloc), arrays lie elsewhere")
    if device[0] == "cuda" and code != abi.CUDA:
        raise ArgumentError(f"backend is {backend!r} and the arrays are on cuda:{device[1]}; move them to the host first")
    return code
