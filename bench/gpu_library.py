"""gpu_library.py: builds of the library as the GPU bench calls them; each its own, to be timed in turns.

Structs are those of the Python package (python/mxattn/_abi.py), which this imports from the source tree.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import os
import sys

abi = None


def named(texts):
    """(name, path) of each [NAME=]PATH; what has no name is mxattn, then mxattn2, ... WHY distinct: rows are kept by name, and of
    two libraries of one name only the last would be timed."""
    pairs = []
    for text in texts:
        name, _, path = text.rpartition("=")
        taken = [other for other, _ in pairs]
        if name in taken:
            sys.exit(f"--library {text}: another library is called {name}; names must differ")
        number = 1
        while not name or name in taken:
            name, number = "mxattn" + (str(number) if number > 1 else ""), number + 1
        pairs.append((name, path))
    return pairs


class Library:
    """Calls with their statuses checked."""

    def __init__(self, name, file):
        global abi
        self.name = name
        if abi is None:
            os.environ["MXATTN_LIBRARY"] = os.path.abspath(file)
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
            from mxattn import _abi

            abi = _abi
        self.handle = c.CDLL(os.path.abspath(file))
        self.handle.mxattn_last_error.restype = c.c_char_p
        self.functions = {}

    def call(self, name, *arguments):
        function = self.functions.get(name)
        if function is None:
            function = self.functions[name] = getattr(self.handle, "mxattn_" + name)
        if function(*arguments):
            sys.exit(f"{self.name}: mxattn_{name}: {self.handle.mxattn_last_error().decode()}")

    def made(self, name):
        """A struct with its defaults: made("quantize_args")."""
        value = abi.STRUCTS["mxattn_" + name]()
        getattr(self.handle, f"mxattn_{name}_init_sized")(c.byref(value), c.c_size_t(c.sizeof(value)))
        return value

    def view(self, dtype, memory, shape=None):
        """A contiguous tensor over a torch tensor's memory."""
        tensor, sizes = abi.Tensor(), tuple(shape or memory.shape)
        self.handle.mxattn_tensor_view_sized(
            c.byref(tensor), c.c_size_t(c.sizeof(tensor)), dtype, c.c_void_p(memory.data_ptr()), len(sizes),
            (c.c_int64 * 4)(*sizes),
        )
        return tensor
