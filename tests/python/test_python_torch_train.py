"""test_python_torch_train.py: the GPT of examples/train_gpt.py learns alike with BF16 and with MXFP8 attention.

SPDX-License-Identifier: Apache-2.0
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch", exc_type=ImportError)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_train_gpt(tmp_path):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")
    command = [sys.executable, ROOT / "examples/train_gpt.py", "--steps", "12", "--seeds", "1", "--out", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"(bf16|mxfp8) *: loss ([\d.]+) -> ([\d.]+), validation ([\d.]+)", done.stdout)
    assert [kind for kind, *_ in runs] == ["bf16", "mxfp8"]
    for _, first, last, _ in runs:
        assert float(last) < 0.7 * float(first), done.stdout
    assert runs[0][3] != runs[1][3], "MXFP8 is not BF16"
    assert (tmp_path / "losses.json").exists()
    assert len(list(tmp_path.glob("run_64_*_0.json"))) == 2


def test_the_documented_training(tmp_path):
    """docs/python.md says what the recorded training of 30 million parameters gave."""
    record = shutil.copy(ROOT / "docs/results/h200_train_gpt.json", tmp_path)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, ROOT / "examples/train_gpt.py", "--draw", record]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.findall(r"head_dim (\d+), 300 steps, .*?bf16 ([\d.]+), mxfp8 ([\d.]+), ratio ([\d.]+) .*?are ([\d.]+)", done.stdout)
    assert [row[0] for row in found] == ["64", "128"], done.stdout + done.stderr
    text = (ROOT / "docs/python.md").read_text()
    for dim, bf16, mxfp8, ratio, apart in found:
        assert re.search(rf"\| {dim} \|.* \| {bf16} \|.* \| {mxfp8} \| {ratio} \| {apart} \|", text)
