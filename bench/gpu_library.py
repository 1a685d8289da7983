"""gpu_library.py: builds of the library as the GPU bench calls them; each its own, to be timed in turns.

Structs are those of the Python package (python/mxattn/_abi.py), which this imports from the source tree.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import os
import sys

abi = None


class Library:
    """[NAME=]PATH; calls with their statuses checked."""

    def __init__(self, path):
        global abi
        self.name, file = path.split("=") if "=" in path else ("mxattn", path)
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
