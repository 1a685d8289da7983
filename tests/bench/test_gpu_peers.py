"""test_gpu_peers.py: what the GPU bench's ratios stand over.

SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import gpu_peers  # noqa: E402


def test_a_ratio_stands_over_the_fastest_peer():
    assert gpu_peers.over_best(None, 1.7, None) == (1.7, None)
    assert gpu_peers.over_best(None, 1.7, 1.3) == (1.7, 1.3)
    faster = gpu_peers.over_best((667, 894, 611), 1.74, 1.3)  # than PyTorch and than cuDNN's FP8
    assert faster == pytest.approx((1.74 * 611 / 667, 1.74 * 611 / 894))
    slower = gpu_peers.over_best((619, 0, 641), 1.7, 1.2)
    assert slower == pytest.approx((1.7, 1.2))


def test_a_row_stands_over_the_peers_of_its_regime():
    times = {("x", "prepared"): {"sustained_us": 100.0, "cool_us": 80.0}, ("torch", "torch"): {"sustained_us": 170.0, "cool_us": 120.0},
             ("cudnn", "cudnn fp8"): {"sustained_us": 130.0}}
    assert gpu_peers.ratios(times, ("x", "prepared"), None) == {
        "sustained_over_bf16": 1.7, "sustained_over_fp8": 1.3, "cool_over_bf16": 1.5, "cool_over_fp8": None}
    assert gpu_peers.ratios({("x", "prepared"): {"sustained_us": 100.0}}, ("x", "prepared"), None) == {}
