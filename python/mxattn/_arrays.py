"""_arrays.py: arrays of any library as views (pointer, shape, strides, type, device), and new arrays beside them.

An array is read through its library's own attributes (PyTorch, NumPy), __cuda_array_interface__, __array_interface__
or DLPack, without a copy. Nothing here imports NumPy, PyTorch or JAX before an array of theirs has been seen, NumPy
apart where an answer must be a NumPy array.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ctypes as c
import functools
import sys

from ._errors import ArgumentError, DtypeError, LayoutError

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from typing import Any

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "e4m3": 1, "e5m2": 1, "e8m0": 1, "uint8": 1, "int8": 1}
ITEMSIZE.update({"int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float64": 8, "bool": 1})

# What NumPy, ml_dtypes and PyTorch call a type -> our word. A type not named here is refused by name.
WORDS = {name: name for name in ITEMSIZE}
WORDS.update({"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float8_e8m0fnu": "e8m0"})
TYPED = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}

# DLPack's (code, bits).
DLPACK = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (10, 8): "e4m3", (12, 8): "e5m2"}
DLPACK.update({(14, 8): "e8m0", (1, 8): "uint8", (0, 32): "int32", (0, 64): "int64", (2, 64): "float64"})
TYPESTR = {"f4": "float32", "f2": "float16", "f8": "float64", "u1": "uint8", "i4": "int32", "i8": "int64"}


class View:
    """Memory of an array: address `data`, `shape`, `strides` in elements, `dtype` (a word of WORDS), `device`
    ('cpu' or 'cuda', index), the library it is of, and what keeps the memory alive."""

    __slots__ = ("data", "shape", "strides", "dtype", "device", "library", "owner")

    def __init__(self, data, shape, strides, dtype, device, library, owner):
        self.data, self.shape, self.strides, self.dtype = data, tuple(shape), tuple(strides), dtype
        self.device, self.library, self.owner = device, library, owner


def word_of(dtype: Any, name: str = "array") -> str:
    """Our word for a dtype of NumPy, ml_dtypes, PyTorch or JAX, or for its name."""
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    word = WORDS.get(text.rpartition(".")[2])
    if word is None:
        raise DtypeError(f"{name} has dtype {text}; known are " + ", ".join(sorted(WORDS)))
    if not getattr(dtype, "isnative", True):  # NumPy's name is that of either byte order
        raise DtypeError(f"{name} has dtype {dtype.str!r}, of the other byte order; this machine's own is needed")
    return word


def contiguous(shape) -> tuple:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Numpy:
    """NumPy, and whatever shows __array_interface__ or host memory through DLPack."""

    name = "numpy"
    plain: Any = None  # numpy.ndarray once it is there

    def view(self, array, name="array") -> View:
        if hasattr(array, "dtype") and hasattr(array, "__array_interface__"):
            interface = array.__array_interface__
            word = word_of(array.dtype, name)
            return from_interface(interface, word, ("cpu", 0), self, array, name)
        if hasattr(array, "__array_interface__"):
            interface = array.__array_interface__
            return from_interface(interface, from_typestr(interface["typestr"], name), ("cpu", 0), self, array, name)
        return from_dlpack(array, self, name)

    def describe(self, array, name):
        """What a plan is looked up by, the address, and what must outlive the call."""
        if type(array) is self.plain:
            return (array.dtype, array.shape, array.strides), array.__array_interface__["data"][0], array
        found = self.view(array, name)
        return (self.name, found.dtype, found.device, found.shape, found.strides), found.data, found

    def empty(self, shape, word, device):
        import numpy

        return numpy.empty(shape, self.dtype(word))

    def allocator(self, shape, word, device):
        """A function that makes such an array."""
        import numpy

        return functools.partial(numpy.empty, shape, self.dtype(word))

    def dtype(self, word):
        import numpy

        if word in TYPED or word == "bfloat16":
            try:
                import ml_dtypes
            except ImportError:
                if word == "bfloat16":
                    raise DtypeError(
                        "bfloat16 has no NumPy type without ml_dtypes: pip install ml_dtypes, or ask for another dtype"
                    ) from None
                return numpy.dtype("uint8")
            return numpy.dtype(getattr(ml_dtypes, TYPED.get(word, word), "uint8"))
        return numpy.dtype(word)

    def ints(self, values):
        import numpy

        return numpy.array(values, "int32")

    def finish(self, array):
        return array

    def address(self, array) -> int:
        return array.__array_interface__["data"][0]

    def stream(self, device):
        return None

    def traced(self, *arrays) -> bool:
        return False


class Jax(Numpy):
    """JAX arrays that hold values: read through DLPack, answered as JAX arrays."""

    name = "jax"

    def view(self, array, name="array") -> View:
        import jax
        import numpy

        if isinstance(array, numpy.ndarray):  # an output before it is finished
            return Numpy.view(self, array, name)
        if isinstance(array, jax.core.Tracer):
            raise ArgumentError(f"{name} is traced by JAX; mxattn.jax has the functions that can be traced")
        if not all(device.platform == "cpu" for device in array.devices()):
            raise ArgumentError(f"{name} is on {array.devices()}; JAX arrays are taken on CPU devices")
        return Numpy.view(self, numpy.asarray(array), name)  # zero-copy on a CPU device

    def traced(self, *arrays) -> bool:
        import jax

        return any(isinstance(array, jax.core.Tracer) for array in arrays)

    def finish(self, array):
        import jax.numpy

        return jax.numpy.asarray(array)


class Torch:
    """PyTorch: CPU and CUDA tensors, on the caller's current stream."""

    name = "torch"

    def __init__(self):
        torch = sys.modules["torch"]
        self.torch = torch
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of a device, without an object for it
        either = lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")  # noqa: E731
        self.autocast = getattr(torch._C, "_is_any_autocast_enabled", either)  # one call instead of two
        self.compiling = torch.compiler.is_compiling
        self.words, self.dtypes = {}, {}
        for word in ITEMSIZE:
            dtype = getattr(torch, TYPED.get(word, word), None)
            if isinstance(dtype, torch.dtype):
                self.words[dtype], self.dtypes[word] = word, dtype

    def view(self, array, name="array") -> View:
        word = self.words.get(array.dtype)
        if word is None:
            raise DtypeError(f"{name} has dtype {array.dtype}; known are " + ", ".join(sorted(self.dtypes)))
        device = array.device
        if device.type not in ("cpu", "cuda"):
            raise ArgumentError(f"{name} is on device {device}; it must be a CPU or CUDA tensor")
        if array.layout is not self.torch.strided:
            raise LayoutError(f"{name} has layout {array.layout}; it must be torch.strided")
        if array.is_neg():
            raise LayoutError(f"{name} is the negative of what lies in memory (is_neg()); resolve_neg() makes an array of it")
        place = (device.type, device.index or 0)
        return View(array.data_ptr(), array.shape, array.stride(), word, place, self, array)

    def describe(self, array, name):
        try:
            key = (array.dtype, array.device, array.shape, array.stride(), array.is_neg()), array.data_ptr(), array
        except RuntimeError:  # no strides or no memory of its own: view() says which
            self.view(array, name)
            raise
        return key

    def address(self, array) -> int:
        return array.data_ptr()

    def allocator(self, shape, word, device):
        # One element expanded, to be like: takes half the time of torch.empty with its keywords.
        return functools.partial(self.torch.empty_like, self.empty((1,) * len(shape), word, device).expand(shape))

    def empty(self, shape, word, device):
        dtype = self.dtypes.get(word, self.torch.uint8)
        where = "cpu" if device[0] == "cpu" else f"cuda:{device[1]}"
        return self.torch.empty(shape, dtype=dtype, device=where)

    def ints(self, values):
        return self.torch.tensor(values, dtype=self.torch.int32)

    def finish(self, array):
        return array

    def stream(self, device):
        if device[0] == "cpu":
            return None
        return self.raw_stream(device[1]) if self.raw_stream else self.torch.cuda.current_stream(device[1]).cuda_stream

    def traced(self, *arrays) -> bool:
        """Whether the custom operators must see this call: a gradient, a trace, autocast, or a subclass of Tensor."""
        torch, plain = self.torch, self.plain
        if self.compiling() or self.autocast():
            return True
        grad = torch.is_grad_enabled()
        for array in arrays:
            if array is not None:
                if type(array) in plain:
                    if grad and array.requires_grad:
                        return True
                elif isinstance(array, torch.Tensor):
                    return True
        return False


class Cuda:
    """CuPy, and whatever shows __cuda_array_interface__ or CUDA memory through DLPack."""

    name = "cuda"
    plain: Any = None

    def view(self, array, name="array") -> View:
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            return from_dlpack(array, self, name)
        dtype = getattr(array, "dtype", None)
        word = from_typestr(interface["typestr"], name) if dtype is None else word_of(dtype, name)
        device = getattr(array, "device", None)
        index = getattr(device, "id", device)
        if not isinstance(index, int):
            index = array.__dlpack_device__()[1] if hasattr(array, "__dlpack_device__") else 0
        return from_interface(interface, word, ("cuda", index), self, array, name)

    describe, traced = Numpy.describe, Numpy.traced

    def address(self, array) -> int:
        return array.__cuda_array_interface__["data"][0]

    def allocator(self, shape, word, device):
        return functools.partial(self.empty, shape, word, device)

    def empty(self, shape, word, device):
        cupy = sys.modules.get("cupy")
        if cupy is None:
            raise ArgumentError(
                "out is None; arrays that are neither PyTorch's nor CuPy's come with arrays for the answers (out=, lse=)"
            )
        names = {"bfloat16": "uint16", **{w: "uint8" for w in TYPED}}
        with cupy.cuda.Device(device[1]):
            return cupy.empty(shape, names.get(word, word))

    def ints(self, values):
        return sys.modules["cupy"].asarray(values, "int32")

    def finish(self, array):
        return array

    def stream(self, device):
        cupy = sys.modules.get("cupy")
        return None if cupy is None else cupy.cuda.get_current_stream(device[1]).ptr


_libraries: dict = {}


def library_of(array: Any, name: str = "array"):
    """The adapter for an array's type, found once for each type."""
    kind = type(array)
    found = _libraries.get(kind)
    if found is None:
        found = _libraries[kind] = _find(array, kind, name)
    return found


def _find(array, kind, name):
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    for root, make in (("torch", Torch), ("jax", Jax), ("jaxlib", Jax)):
        if root in roots:
            return _shared(make)
    if hasattr(array, "__cuda_array_interface__"):
        return _shared(Cuda)
    if hasattr(array, "__array_interface__"):
        made = _shared(Numpy)
        if "numpy" in roots:
            made.plain = sys.modules["numpy"].ndarray
        return made
    if hasattr(array, "__dlpack_device__"):
        return _shared(Cuda if array.__dlpack_device__()[0] == 2 else Numpy)
    raise ArgumentError(
        f"{name} is a {kind.__name__}; it must be an array with DLPack, __array_interface__ or __cuda_array_interface__"
    )


def _shared(make):
    return next((found for found in _libraries.values() if type(found) is make), None) or make()


def view(array: Any, name: str = "array") -> View:
    """A view of an array of any library."""
    return library_of(array, name).view(array, name)


def writable(array: Any, name: str) -> Any:
    """The array, where a call may write into it."""
    interface = getattr(array, "__array_interface__", None) or getattr(array, "__cuda_array_interface__", None)
    if library_of(array, name).name == "jax" or (interface is not None and interface["data"][1]):
        raise ArgumentError(f"{name} is read-only; it must be an array that can be written")
    return array


def from_typestr(typestr: str, name: str) -> str:
    if typestr[:1] in "<|=" and typestr[1:] in TYPESTR:
        return TYPESTR[typestr[1:]]
    raise DtypeError(f"{name} has type '{typestr}'; known are float32, float16, float64, uint8, int32, int64")


def from_interface(interface, word, device, library, owner, name) -> View:
    shape = interface["shape"]
    strides = interface.get("strides")
    if strides is None:
        strides = contiguous(shape)
    else:
        size = ITEMSIZE[word]
        if any(stride % size for stride in strides):
            raise LayoutError(f"{name} has strides of {strides} bytes; each must be a multiple of its {size}-byte elements")
        strides = [stride // size for stride in strides]
    return View(interface["data"][0] or 0, shape, strides, word, device, library, owner)


class _DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32)]
    _fields_ += [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]
    _fields_ += [("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (c.py_object, c.c_char_p), c.c_void_p


def from_dlpack(array, library, name) -> View:
    """A view through DLPack. The capsule stays unconsumed: it frees its tensor when the view goes."""
    kind, index = array.__dlpack_device__()
    if kind not in (1, 2, 3, 13):
        raise ArgumentError(f"{name} is on DLPack device type {kind}; it must be host (1, 3) or CUDA (2, 13) memory")
    device = ("cpu", 0) if kind in (1, 3) else ("cuda", index)
    if device[0] == "cpu":
        capsule = array.__dlpack__()
    else:  # 1: the legacy default stream, which DLPack may not write as 0
        capsule = array.__dlpack__(stream=library.stream(device) or 1)
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    word = DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if word is None:
        raise DtypeError(f"{name} has DLPack type code {tensor.code} of {tensor.bits} bits; no element type of mxattn")
    shape = tensor.shape[: tensor.ndim]
    strides = tensor.strides[: tensor.ndim] if tensor.strides else contiguous(shape)
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, word, device, library, (array, capsule))


def as_index(value: Any, name: str) -> int:
    """An int from anything that is one, a NumPy scalar or a CPU tensor of one element too. A CUDA tensor is refused:
    reading it would wait for the device in every call."""
    if type(value) is int:
        return fits(value, name, 64)
    device = getattr(value, "device", None)
    if getattr(device, "type", None) == "cuda" or hasattr(value, "__cuda_array_interface__"):
        raise ArgumentError(f"{name} is a tensor on {device}; it must be an int on the host (reading it would wait for the device)")
    try:
        return fits(value.__index__(), name, 64)
    except (AttributeError, TypeError):
        raise ArgumentError(f"{name} is {value!r}; it must be an integer") from None


def fits(value: int, name: str, bits: int) -> int:
    """The int, which ctypes would otherwise cut to its last bits in silence."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ArgumentError(f"{name} is {value}; it must fit int{bits}")
    return value


def as_float(value: Any, name: str) -> float:
    """A float from anything that is one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {value!r}; it must be a number") from None


def offsets(values: Any, library, device, name: str) -> View:
    """cu_seqlens and the like as contiguous int32 on `device`: as they are, or converted from other integers, strided
    arrays and sequences of ints. Memory on another device is refused, never copied in silence."""
    if isinstance(values, (list, tuple)):
        found = view(library.ints([fits(as_index(n, name), f"{name}[{i}]", 32) for i, n in enumerate(values)]), name)
    else:
        found = view(values, name)
    if found.device != device:
        raise ArgumentError(
            f"{name} is on {found.device[0]}:{found.device[1]} and q on {device[0]}:{device[1]}; move it there first"
        )
    if len(found.shape) != 1:
        raise ArgumentError(f"{name} has shape {found.shape}; it must have one dimension")
    if found.dtype == "int32" and (found.shape[0] < 2 or found.strides[0] == 1):
        return found
    if found.dtype not in ("int32", "int64", "uint32", "uint64"):
        raise DtypeError(f"{name} has dtype {found.dtype}; it must be an array of integers, int32 for no conversion")
    if device[0] == "cuda":
        if found.library.name != "torch":
            raise DtypeError(f"{name} has dtype {found.dtype} or strides; on a GPU it must be contiguous int32")
        return found.library.view(values.to(found.library.torch.int32).contiguous(), name)
    kind = {"int32": c.c_int32, "int64": c.c_int64, "uint32": c.c_uint32, "uint64": c.c_uint64}[found.dtype]
    step = found.strides[0] * c.sizeof(kind)
    numbers = [kind.from_address(found.data + i * step).value for i in range(found.shape[0])]
    return from_ints([fits(number, f"{name}[{i}]", 32) for i, number in enumerate(numbers)])


def from_ints(numbers) -> View:
    memory = (c.c_int32 * max(len(numbers), 1))(*numbers)
    return View(c.addressof(memory), (len(numbers),), (1,), "int32", ("cpu", 0), None, memory)


def read_ints(found: View) -> list:
    """The values of a host view made by offsets()."""
    return list((c.c_int32 * found.shape[0]).from_address(found.data)) if found.shape[0] else []


class Memory:
    """Zero-filled host memory aligned to 256 bytes."""

    __slots__ = ("address", "bytes", "_buffer")

    def __init__(self, size: int):
        self._buffer = c.create_string_buffer(size + 255)
        self.address, self.bytes = (c.addressof(self._buffer) + 255) & ~255, size
