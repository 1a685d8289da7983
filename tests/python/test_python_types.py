"""test_python_types.py: the package's type hints hold, for mypy, and the syntax is Python 3.9's.

SPDX-License-Identifier: Apache-2.0
"""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import mxattn
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_mypy():
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", ROOT / "build/mypy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_oldest_syntax():
    for path in [*(ROOT / "python").rglob("*.py"), *(ROOT / "examples").glob("*.py")]:
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


def test_every_public_name_is_documented():
    for name in mxattn.__all__:
        assert (getattr(mxattn, name).__doc__ or "").strip(), name
    for name in ("attention", "attention_backward", "quantize", "dequantize", "merge_states", "rmsnorm_quantize", "plan"):
        text = getattr(mxattn, name).__doc__
        assert "Returns" in text and "Raises" in text, name
