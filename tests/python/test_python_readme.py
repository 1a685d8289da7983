"""test_python_readme.py: the Python examples of the documents run as they stand.

SPDX-License-Identifier: Apache-2.0
"""

import contextlib
import io
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = [
    pytest.param(block, id=f"{name}-{i}")
    for name in ("README.md", "docs/python.md")
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block):
    for framework in re.findall(r"^import (torch|jax)\b", block, re.MULTILINE):
        pytest.importorskip(framework, exc_type=ImportError)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "example", "exec"), {})
    assert printed.getvalue().strip()


def test_readme_has_one():
    assert any("README" in block.id for block in BLOCKS)
