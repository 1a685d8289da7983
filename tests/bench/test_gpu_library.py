"""test_gpu_library.py: the names that bench/gpu.py gives to the libraries it times in turns.

SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from gpu_library import named  # noqa: E402


def test_libraries_without_a_name_are_told_apart():
    assert named(["a.so"]) == [("mxattn", "a.so")]
    assert named(["a.so", "b.so", "c.so"]) == [("mxattn", "a.so"), ("mxattn2", "b.so"), ("mxattn3", "c.so")]
    assert named(["mxattn2=a.so", "b.so", "new=c.so", "d.so"]) == [
        ("mxattn2", "a.so"), ("mxattn", "b.so"), ("new", "c.so"), ("mxattn3", "d.so")]


def test_a_name_given_twice_is_refused():
    with pytest.raises(SystemExit, match="names must differ"):
        named(["new=a.so", "new=b.so"])
