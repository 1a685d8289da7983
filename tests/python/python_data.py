"""python_data.py: operands and comparisons of the Python tests. Tolerances are those of tests/lib/thresholds.h.

SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import re

import numpy as np

_TEXT = (pathlib.Path(__file__).resolve().parents[1] / "lib/thresholds.h").read_text()
THRESHOLDS = {name: float.fromhex(v) if "x" in v else float(v) for name, v in re.findall(r"#define (MXT_\w+) +(\S+)", _TEXT)}


def limit(name):
    """A tolerance of tests/lib/thresholds.h."""
    return THRESHOLDS["MXT_" + name]


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def qkv(batch=2, sq=70, sk=None, heads=4, kv_heads=2, dim=64, dim_v=None, seed=0, dtype=np.float32):
    sk = sk or sq
    shapes = ((batch, sq, heads, dim), (batch, sk, kv_heads, dim), (batch, sk, kv_heads, dim_v or dim))
    return tuple(normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))


def rms(got, right):
    """Relative root mean square of the difference, in float64."""
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    return float(np.sqrt(((got - right) ** 2).sum() / max((right**2).sum(), 1e-30)))


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
