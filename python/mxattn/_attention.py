"""_attention.py: attention and its gradients over arrays of any library, with plans kept between calls.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c
from operator import sub

from . import _abi as abi
from . import _arrays as arrays
from ._errors import ArgumentError, DtypeError, ShapeError
from ._plan import Context, Plan, backend_for, host_workspace
from ._tensor import MxTensor, fill_tensor, wide_tags

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any, Optional

_forward = abi.lib.mxattn_attention_forward
_backward = abi.lib.mxattn_attention_backward
_libraries = arrays._libraries

# Plans of recent calls, by everything that decides them. The oldest half goes when it is full.
MOST_PLANS = 256
# Host workspaces up to this many bytes belong to the structs of a run; larger ones are the thread's.
OWN_WORKSPACE = 64 << 10
EVERYWHERE = (-1, -1)
_plans: dict = {}


class _Call:
    """Structs of one run of a plan. A wide operand's struct is kept; an MxTensor brings its own."""

    __slots__ = ("args", "address", "tensors", "memory", "q", "k", "v", "o", "lse")

    def __init__(self, entry):
        self.args = abi.make(abi.AttentionArgs)
        self.address = c.c_void_p(c.addressof(self.args))
        self.tensors = {}
        for name, kept in entry.kept.items():
            if kept is not None:
                found, tags = kept
                struct = fill_tensor(abi.make(abi.Tensor), found, tags, name)
                self.tensors[name] = struct
                setattr(self.args, name, c.addressof(struct))
        self.q, self.k, self.v, self.o, self.lse = (self.tensors.get(name) for name in ("q", "k", "v", "o", "lse"))
        self.args.batch = entry.batch
        self.memory = None
        if entry.host and entry.workspace_bytes <= OWN_WORKSPACE:
            self.memory = arrays.Memory(entry.workspace_bytes)
            self.args.workspace, self.args.workspace_bytes = self.memory.address, entry.workspace_bytes


class _Entry:
    """A plan and what its runs share."""

    __slots__ = ("plan", "handle", "calls", "kept", "new", "new_o", "new_lse", "workspace_bytes", "workspace", "device", "host",
                 "library", "batch")  # fmt: skip
    plan: Plan
    handle: Any  # the plan's, as ctypes passes it on
    calls: list  # structs not in use
    kept: dict  # name -> (view, tags) of a wide operand, None of an MxTensor
    new: dict  # name -> what makes the array
    new_o: Any  # of o and lse once more, None where the call makes none
    new_lse: Any
    workspace_bytes: int
    workspace: Any  # on a device: what makes it
    device: tuple
    host: bool
    library: Any
    batch: int  # -1: the plan's

    def take(self) -> _Call:
        try:
            return self.calls.pop()  # atomic: two threads never get the same structs
        except IndexError:
            return _Call(self)


def clear_cache() -> None:
    """Forgets all plans kept between calls, and this thread's workspace."""
    from . import _plan

    _plans.clear()
    _plan._local.workspace = None


def _keep(key, entry) -> None:
    if len(_plans) >= MOST_PLANS:
        for old in list(_plans)[: MOST_PLANS // 2]:
            _plans.pop(old, None)
    _plans[key] = entry


def _describe(x, name):
    """Key, address of memory (None: an MxTensor), what must outlive the call."""
    if type(x) is MxTensor:
        return x._key, None, x
    return (_libraries.get(type(x)) or arrays.library_of(x, name)).describe(x, name)


def library_of(x, name):
    return x._library if type(x) is MxTensor else arrays.library_of(x, name)


def _window(window_size) -> tuple:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ArgumentError(f"window_size is {window_size!r}; it must be a pair (left, right), -1 for all") from None
    return (
        -1 if left is None else arrays.as_index(left, "window_size[0]"),
        -1 if right is None else arrays.as_index(right, "window_size[1]"),
    )


def _jagged(cu_q, cu_k, used_q, used_k, max_q, max_k, q, k) -> tuple:
    """(the four arrays of lengths, (batch, max_seqlen_q, max_seqlen_k)); (None, None) where nothing is jagged, the
    second None in a dense batch."""
    if cu_q is cu_k is used_q is used_k is None:
        return None, None
    seen = _view(q, "q")
    offsets = _offsets(cu_q, cu_k, used_q, used_k, seen, library_of(q, "q"))
    if cu_q is None:
        return offsets, None
    max_q = None if max_q is None else arrays.as_index(max_q, "max_seqlen_q")
    max_k = None if max_k is None else arrays.as_index(max_k, "max_seqlen_k")
    return offsets, _lengths(offsets[0], offsets[1], max_q, max_k, seen, _view(k, "k"))


def _problem(options, views, tags, has_sink, training, lengths, dq_reduce="auto", dq_scale_log2=None):
    """The mxattn_attention_problem of operands q, k, v; lengths: (batch, max_q, max_k) of a jagged batch, or None."""
    (causal, window, scale, softcap, alignment, strict, deterministic, intermediates, block, precision,
     backend) = options  # fmt: skip
    q, k, v = views["q"], views["k"], views["v"]
    for name, found in views.items():
        if found.device != q.device:
            raise ArgumentError(f"{name} is on {found.device[0]}:{found.device[1]} and q on {q.device[0]}:{q.device[1]}")
    made = abi.make(abi.AttentionProblem)
    made.backend, made.device = backend_for(backend, q.device), q.device[1]
    made.mode = abi.TRAINING if training else abi.INFERENCE
    made.precision = abi.named(abi.PRECISIONS, precision, "precision")
    dims = 4 if lengths is None else 3
    for name in ("q", "k", "v"):
        if len(views[name].shape) != dims:
            letters = "(B, S, H, D) without cu_seqlens" if dims == 4 else "(T, H, D) with cu_seqlens"
            raise ShapeError(f"{name} has shape {views[name].shape}; it must be {letters}")
    if lengths is None:
        made.batch, made.max_seqlen_q, made.max_seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    else:
        made.format = abi.JAGGED
        made.batch, made.max_seqlen_q, made.max_seqlen_k = lengths
        made.total_q, made.total_k = q.shape[0], k.shape[0]
    made.heads, made.kv_heads, made.head_dim, made.head_dim_v = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    made.causal, (made.window[0], made.window[1]) = causal, window
    made.alignment = abi.named(abi.ALIGNMENTS, alignment, "alignment")
    if scale is not None:
        if scale != scale:
            raise ArgumentError("softmax_scale is nan; it must be finite, or None for 1/sqrt(head_dim)")
        made.softmax_scale = scale
    made.softcap, made.has_sink = softcap, has_sink
    made.causal_strict, made.deterministic = strict, deterministic
    made.intermediates = abi.named(abi.INTERMEDIATES, intermediates, "intermediates")
    made.dq_reduce = abi.named(abi.DQ_REDUCES, dq_reduce, "dq_reduce")
    if dq_scale_log2 is not None:
        made.dq_scale_log2 = arrays.fits(arrays.as_index(dq_scale_log2, "dq_scale_log2"), "dq_scale_log2", 32)
    if block is None:
        block = None if made.precision == abi.PRECISION_F64 else "row" if strict else "square"
    code = abi.BLOCK_NONE if block is None else abi.named(abi.BLOCKS, block, "block")
    for name, its in tags.items():
        quantized_here = name in ("q", "k", "v", "dout") and its.block == abi.BLOCK_NONE
        setattr(made, name, abi.Tags(its.dtype, code, abi.RCEIL, 0) if quantized_here else its)
    return made


def _tags(x, found, name) -> abi.Tags:
    return x._struct.tags if type(x) is MxTensor else wide_tags(found, name)


def _view(x, name) -> arrays.View:
    return x._kept[0] if type(x) is MxTensor else arrays.view(x, name)


def _lengths(cu_q, cu_k, max_q, max_k, q, k) -> tuple:
    """(batch, max_seqlen_q, max_seqlen_k) of a jagged batch; unknown lengths are read on the host, and bounded by the
    tokens there are on a device, where reading would wait for it."""
    if cu_q.shape[0] < 1:
        raise ShapeError("cu_seqlens_q has no entry; it must have batch + 1")
    if cu_k.shape != cu_q.shape:
        raise ShapeError(f"cu_seqlens_k has {cu_k.shape[0]} entries and cu_seqlens_q {cu_q.shape[0]}")
    found = []
    for cu, longest, x in ((cu_q, max_q, q), (cu_k, max_k, k)):
        if longest is None and cu.device[0] == "cpu":
            ends = arrays.read_ints(cu)
            longest = max(min(max(map(sub, ends[1:], ends), default=0), x.shape[0]), 0) if len(x.shape) == 3 else 0
        found.append(x.shape[0] if longest is None else longest)
    return (cu_q.shape[0] - 1, *found)


def _offsets(cu_q, cu_k, used_q, used_k, q: arrays.View, library) -> list:
    """The four arrays of lengths as views on q's device, None where absent."""
    if (cu_q is None) != (cu_k is None):
        missing = "cu_seqlens_q" if cu_q is None else "cu_seqlens_k"
        raise ArgumentError(f"{missing} is None; cu_seqlens_q and cu_seqlens_k come together")
    found: list = [None] * 4
    if cu_q is not None:
        found[0] = arrays.offsets(cu_q, library, q.device, "cu_seqlens_q")
        found[1] = found[0] if cu_k is cu_q else arrays.offsets(cu_k, library, q.device, "cu_seqlens_k")
    batch = q.shape[0] if cu_q is None else found[0].shape[0] - 1
    for i, used, name in ((2, used_q, "seqused_q"), (3, used_k, "seqused_k")):
        if used is not None:
            found[i] = arrays.offsets(used, library, q.device, name)
            if found[i].shape[0] != batch:
                raise ShapeError(f"{name} has {found[i].shape[0]} entries; it must have one for each of {batch} sequences")
    return found


def _sink(sink, heads, device) -> arrays.View:
    found = arrays.view(sink, "sink")
    if found.dtype != "float32":
        raise DtypeError(f"sink has dtype {found.dtype}; it must be float32")
    if found.shape != (heads,) or (heads > 1 and found.strides != (1,)):
        raise ShapeError(f"sink has shape {found.shape} and strides {found.strides}; it must be ({heads},), contiguous")
    if found.device != device:
        raise ArgumentError(f"sink is on {found.device} and q on {device}")
    return found


def _lse_shape(q) -> tuple:
    return (q.shape[1], q.shape[0]) if len(q.shape) == 3 else (q.shape[0], q.shape[2], q.shape[1])


def _build(arguments, outputs, options, lengths, has_sink, training, context, workspace, *reduce) -> _Entry:
    """Validates a call never seen before. arguments: name -> array given; outputs: name -> (shape, word) to be made."""
    views = {name: _view(x, name) for name, x in arguments.items()}
    entry = _Entry()
    entry.library, entry.device = library_of(arguments["q"], "q"), views["q"].device
    tags = {name: _tags(arguments[name], found, name) for name, found in views.items() if name not in ("lse", "dlse")}
    entry.new, entry.kept = {}, {}
    for name, x in arguments.items():
        if name in ("lse", "dlse"):
            if views[name].dtype != "float32":
                raise DtypeError(f"{name} has dtype {views[name].dtype}; it must be float32")
            entry.kept[name] = (views[name], abi.Tags(abi.F32, 0, 0, 0))
        else:
            entry.kept[name] = None if type(x) is MxTensor else (views[name], tags[name])
    for name, (shape, word) in outputs.items():
        if word not in abi.DTYPES or word in ("e4m3", "e5m2"):
            raise DtypeError(f"dtype of {name} is {word!r}; it must be float32, float16 or bfloat16 (MXFP8: pass out=)")
        found = arrays.View(None, shape, arrays.contiguous(shape), word, entry.device, entry.library, None)
        entry.kept[name] = (found, abi.Tags(abi.DTYPES[word], 0, 0, 0))
        if name != "lse":
            tags[name] = entry.kept[name][1]
        entry.new[name] = entry.library.allocator(shape, word, entry.device)
    tags.setdefault("o", abi.Tags(abi.BF16, 0, 0, 0))
    problem = _problem(options, views, tags, has_sink, training, lengths, *reduce)
    place = "the host" if entry.device[0] == "cpu" else f"cuda:{entry.device[1]}"
    asked = "asked for" if options[-1] else f"the arrays are on {place}"
    entry.plan = Plan(problem, context, f"backend {_backend_name(problem.backend)}: {asked}")
    if entry.plan.backend == "cuda" and entry.device[0] == "cpu":
        raise ArgumentError("backend is 'cuda' and the arrays are in host memory; move them to the device first")
    entry.handle = c.c_void_p(entry.plan._handle)
    entry.calls = []
    entry.new_o, entry.new_lse = entry.new.get("o"), entry.new.get("lse")
    entry.workspace_bytes = getattr(entry.plan, workspace)
    entry.host = entry.device[0] == "cpu"
    entry.workspace = None if entry.host else entry.library.allocator((entry.workspace_bytes,), "uint8", entry.device)
    entry.batch = -1 if lengths is None else lengths[0]
    return entry


def _backend_name(code: int) -> str:
    return next(word for word, value in abi.BACKENDS.items() if value == code)


def _run(entry, function, described, made, offsets, sink, dsink, stream, device_status):
    """One run of an entry's plan. described: name -> (key, address, owner); made: name -> new array."""
    call = entry.take()
    args, tensors = call.args, call.tensors
    for name, (_, address, owner) in described.items():
        if address is None:
            setattr(args, name, owner._address)
        else:
            tensors[name].data = address
    library = entry.library
    kept = []
    for name, array in made.items():
        _, address, keep = library.describe(array, name)
        tensors[name].data = address
        kept.append(keep)
    if offsets is not None:
        cu_q, cu_k, used_q, used_k = offsets
        args.cu_seqlens_q = None if cu_q is None else cu_q.data
        args.cu_seqlens_k = None if cu_k is None else cu_k.data
        args.seqused_q = None if used_q is None else used_q.data
        args.seqused_k = None if used_k is None else used_k.data
    args.sink = None if sink is None else sink.data
    args.dsink = dsink
    size = entry.workspace_bytes
    if entry.host:
        if call.memory is None:
            args.workspace, args.workspace_bytes = host_workspace(size).address, size
    else:
        kept.append(entry.workspace())
        args.workspace, args.workspace_bytes = library.describe(kept[-1], "workspace")[1], size
        args.stream = library.stream(entry.device) if stream is None else stream
        args.device_status = None if device_status is None else arrays.view(device_status, "device_status").data
    status = function(entry.handle, call.address)
    if status:
        abi.check(status)
    entry.calls.append(call)


def _quick(entry, q, k, v, cu_q, cu_k):
    """A run of a plan for wide operands that differ from earlier ones in their addresses alone."""
    call, library = entry.take(), entry.library
    args = call.args
    call.q.data, call.k.data, call.v.data = q, k, v
    if cu_q is not None:
        args.cu_seqlens_q, args.cu_seqlens_k = cu_q, cu_k
    if not entry.host:
        workspace = entry.workspace()
        args.workspace, args.workspace_bytes = library.address(workspace), entry.workspace_bytes
        args.stream, args.device_status = library.stream(entry.device), None
    elif call.memory is None:
        args.workspace, args.workspace_bytes = host_workspace(entry.workspace_bytes).address, entry.workspace_bytes
    o = entry.new_o()
    call.o.data = library.address(o)
    lse = None
    if entry.new_lse is not None:
        lse = entry.new_lse()
        call.lse.data = library.address(lse)
    status = _forward(entry.handle, call.address)
    if status:
        abi.check(status)
    entry.calls.append(call)
    return library.finish(o) if lse is None else (library.finish(o), library.finish(lse))


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
    window_size: tuple = EVERYWHERE,
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
    out: Any = None,
    out_dtype: Optional[str] = None,
    backend: Optional[str] = None,
    precision: str = "mxfp8",
    context: Optional[Context] = None,
    stream: Optional[int] = None,
    device_status: Any = None,
) -> Any:
    """Softmax attention in MXFP8: O = softmax(softmax_scale * q k^T) v, per head.

    Args:
        q: (B, Sq, Hq, D), or (Tq, Hq, D) with cu_seqlens; float32, float16 or bfloat16 (quantized by the call), or an
            MxTensor. Any strides but the last dimension's, which must be 1. NumPy, PyTorch, JAX, CuPy, or any array
            with DLPack or an array interface; CPU, or CUDA on the caller's current stream.
        k: (B, Sk, Hkv, D) or (Tk, Hkv, D). Head h of q reads head h // (Hq // Hkv).
        v: (B, Sk, Hkv, Dv) or (Tk, Hkv, Dv).
        cu_seqlens_q, cu_seqlens_k: (batch + 1) integers where the sequences of a jagged batch begin, int32 on q's
            device; on a CPU also other integers, strided arrays and lists, which are converted.
        max_seqlen_q, max_seqlen_k: longest lengths, ints; None: read from cu_seqlens on a CPU, the number of tokens
            on a GPU (correct, and slower).
        causal: mask keys beyond the diagonal.
        window_size: (left, right) keys beside the diagonal, inclusive; -1: all.
        softmax_scale: None: 1/sqrt(D).
        softcap: scores become softcap * tanh(scores / softcap); 0: off.
        sink: float32 (Hq): one more logit in each row's sum.
        seqused_q, seqused_k: (batch) int32, tokens used of each sequence.
        alignment: "bottom_right" (as FlashAttention) or "top_left".
        causal_strict: row i depends on tokens up to i only, to the bit (row blocks).
        return_lse: also return LSE, float32 (B, Hq, Sq) or (Hq, Tq), natural logarithm.
        deterministic: gradients equal bit for bit from run to run.
        intermediates: "auto", "bf16" or "e4m3": how P is held.
        block: of wide operands; None: "square", with causal_strict "row".
        out: an array or MxTensor to write O into.
        out_dtype: of O; None: q's, "bfloat16" for an MxTensor.
        backend: None: "cpu" for host arrays, "cuda" for CUDA arrays; "ref" for float64 loops.
        precision: "mxfp8"; backend "ref" also "float64" (nothing quantized) and "model".
        context: threads and instruction set; None: the process-wide one.
        stream: address of a CUDA stream; None: the current one of q's library.
        device_status: CUDA: one uint32 or int32 word on the device, not 0 where the device found cu_seqlens wrong;
            check_device_status explains it.

    Returns:
        O (B, Sq, Hq, Dv) or (Tq, Hq, Dv), or (O, LSE). Rows that see no key are 0, their LSE -inf.

    PyTorch tensors that need gradients, and tensors under torch.compile, go through mxattn.torch.attention; arrays
    traced by JAX belong to mxattn.jax.attention.

    Raises:
        MxattnError: a subclass for each kind of fault, with a sentence naming the argument, its value and the rule.
    """
    library = q._library if type(q) is MxTensor else (_libraries.get(type(q)) or arrays.library_of(q, "q"))
    if library.traced(q, k, v, sink):
        given = {"out": out, "context": context, "stream": stream, "device_status": device_status}
        for name, value in given.items():
            if value is not None:
                raise ArgumentError(
                    f"{name} is given; operands that need a gradient, are traced or under autocast go through an operator, "
                    "which takes none"
                )
        if library.name == "torch":
            from .torch import attention as traceable
        else:
            from .jax import attention as traceable
        return traceable(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, window_size=window_size,
            softmax_scale=softmax_scale, softcap=softcap, sink=sink, seqused_q=seqused_q, seqused_k=seqused_k,
            alignment=alignment, causal_strict=causal_strict, return_lse=return_lse, deterministic=deterministic,
            intermediates=intermediates, block=block, out_dtype=out_dtype, backend=backend, precision=precision,
        )  # fmt: skip
    return _attend(
        library, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size, softmax_scale,
        softcap, sink, seqused_q, seqused_k, alignment, causal_strict, return_lse, deterministic, intermediates, block, out,
        out_dtype, backend, precision, context, stream, device_status,
    )  # fmt: skip


def _attend(
    library, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size, softmax_scale, softcap,
    sink, seqused_q, seqused_k, alignment, causal_strict, return_lse, deterministic, intermediates, block, out, out_dtype,
    backend, precision, context=None, stream=None, device_status=None,
):  # fmt: skip
    """attention of arrays that hold values, gradients left aside."""
    # Plain numbers: what a tensor holds now may not stand for it later.
    if softmax_scale is not None and type(softmax_scale) is not float:
        softmax_scale = arrays.as_float(softmax_scale, "softmax_scale")
    if type(softcap) is not float:
        softcap = arrays.as_float(softcap, "softcap")
    if window_size is not EVERYWHERE:
        window_size = _window(window_size)
    options = (True if causal else False, window_size, softmax_scale, softcap, alignment, True if causal_strict else False,
               True if deterministic else False, intermediates, block, precision, backend)  # fmt: skip
    q_key, q_address, q_kept = _describe(q, "q")
    k_key, k_address, k_kept = _describe(k, "k")
    v_key, v_address, v_kept = _describe(v, "v")
    quick: Any = None
    cu_q: Any = None
    cu_k: Any = None
    if sink is seqused_q is seqused_k is out is stream is device_status is None:
        # The short way: arrays were checked when this key was new, and it says all of them but where they lie.
        if cu_seqlens_q is cu_seqlens_k is None:
            quick = (q_key, k_key, v_key, options, out_dtype, return_lse, context)
        elif type(max_seqlen_q) is type(max_seqlen_k) is int and type(cu_seqlens_q) in _libraries:
            cu_key, cu_q, cu_kept = _describe(cu_seqlens_q, "cu_seqlens_q")
            quick = (q_key, k_key, v_key, options, out_dtype, return_lse, context, cu_key, max_seqlen_q, max_seqlen_k)
            if cu_seqlens_k is cu_seqlens_q:
                cu_k = cu_q
            elif type(cu_seqlens_k) in _libraries:
                other, cu_k, other_kept = _describe(cu_seqlens_k, "cu_seqlens_k")
                quick = (*quick, other)
            else:
                quick = None
        entry = _plans.get(quick)
        if entry is not None:
            return _quick(entry, q_address, k_address, v_address, cu_q, cu_k)
    described = {"q": (q_key, q_address, q_kept), "k": (k_key, k_address, k_kept), "v": (v_key, v_address, v_kept)}
    if out is not None:
        arrays.writable(out.payload if type(out) is MxTensor else out, "out")
        described["o"] = _describe(out, "out")
    offsets, lengths = _jagged(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, q, k)
    key = ("forward", q_key, k_key, v_key, options, lengths, out_dtype, return_lse, context, sink is None, seqused_q is None,
           seqused_k is None, None if out is None else described["o"][0])  # fmt: skip
    entry = _plans.get(key)
    if entry is None:
        given = {"q": q, "k": k, "v": v}
        found = _view(q, "q")
        outputs = {}
        if out is not None:
            given["o"] = out
        else:
            word = out_dtype or ("bfloat16" if type(q) is MxTensor else found.dtype)
            outputs["o"] = ((*found.shape[:-1], _view(v, "v").shape[-1]), arrays.word_of(word, "out_dtype"))
        if return_lse:
            outputs["lse"] = (_lse_shape(found), "float32")
        entry = _build(given, outputs, options, lengths, sink is not None, False, context, "workspace_forward_bytes")
        _keep(key, entry)
    as_given = offsets is None or (offsets[0] is not None and (offsets[0].data, offsets[1].data) == (cu_q, cu_k))
    if quick is not None and as_given and None not in entry.kept.values():
        _keep(quick, entry)
    sink_view = None if sink is None else _sink(sink, entry.plan._problem.heads, entry.device)
    made = {name: new() for name, new in entry.new.items()}
    _run(entry, _forward, described, made, offsets, sink_view, None, stream, device_status)
    o = out if out is not None else library.finish(made["o"])
    return (o, library.finish(made["lse"])) if return_lse else o


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    *,
    dlse: Any = None,
    causal: bool = False,
    window_size: tuple = EVERYWHERE,
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    sink: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    alignment: str = "bottom_right",
    causal_strict: bool = False,
    deterministic: bool = False,
    intermediates: str = "auto",
    block: Optional[str] = None,
    grad_dtype: Optional[str] = None,
    backend: Optional[str] = None,
    precision: str = "mxfp8",
    dq_reduce: str = "auto",
    dq_scale_log2: Optional[int] = None,
    context: Optional[Context] = None,
    stream: Optional[int] = None,
    device_status: Any = None,
) -> tuple:
    """Gradients of attention, for the arguments forward had.

    Args:
        dout: gradient of O, O's shape; float32, float16, bfloat16 (quantized by the call) or an MxTensor.
        q, k, v: as given to attention: what forward quantized is quantized to the same bytes again.
        out: O of forward, float32, float16 or bfloat16.
        lse: LSE of forward, float32 (B, Hq, Sq) or (Hq, Tq).
        dlse: gradient of LSE, float32 like lse, or None.
        grad_dtype: of dq, dk and dv; None: q's, "bfloat16" for an MxTensor.
        dq_reduce: "auto", "fp16" or "fp32": in what type partial dq are added up; dq_scale_log2 as in the header.
        The others: see attention.

    Returns:
        (dq, dk, dv), with a sink (dq, dk, dv, dsink), shapes of q, k, v and sink. Raises as attention does.
    """
    library = library_of(q, "q")
    scale = None if softmax_scale is None else arrays.as_float(softmax_scale, "softmax_scale")
    options = (bool(causal), _window(window_size), scale, arrays.as_float(softcap, "softcap"), alignment, bool(causal_strict),
               bool(deterministic), intermediates, block, precision, backend)  # fmt: skip
    given = {"q": q, "k": k, "v": v, "o": out, "lse": lse, "dout": dout}
    if dlse is not None:
        given["dlse"] = dlse
    described = {name: _describe(x, name) for name, x in given.items()}
    offsets, lengths = _jagged(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, q, k)
    key = ("backward", *[d[0] for d in described.values()], options, lengths, grad_dtype, context, dq_reduce, dq_scale_log2)
    key = (*key, dlse is None, sink is None, seqused_q is None, seqused_k is None)
    entry = _plans.get(key)
    if entry is None:
        word = str(grad_dtype or ("bfloat16" if type(q) is MxTensor else _view(q, "q").dtype))
        outputs = {"d" + name: (_view(given[name], name).shape, word) for name in ("q", "k", "v")}
        entry = _build(given, outputs, options, lengths, sink is not None, True, context, "workspace_backward_bytes",
                       dq_reduce, dq_scale_log2)  # fmt: skip
        _keep(key, entry)
    sink_view = dsink = address = None
    if sink is not None:
        sink_view = _sink(sink, entry.plan._problem.heads, entry.device)
        dsink = library.empty(sink_view.shape, "float32", entry.device)
        dsink_view = library.view(dsink, "dsink")
        address = dsink_view.data
    made = {name: new() for name, new in entry.new.items()}
    _run(entry, _backward, described, made, offsets, sink_view, address, stream, device_status)
    gradients = tuple(library.finish(made[name]) for name in ("dq", "dk", "dv"))
    return gradients if sink is None else (*gradients, library.finish(dsink))
