"""test_gpu_tables.py: which number a ratio in the GPU bench's tables is made of.

SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import gpu_tables  # noqa: E402


def row(what, us, **more):
    return {"what": what, "head_dim": 128, "seqlen": 2048, "causal": 0, "sustained_us": us,
            "sustained_tera_per_s": 1e6 / us, "relative_errors": [0.07], **more}


def test_a_variant_of_the_backward_stands_over_prepared_as_timed_beside_it():
    rows = [row("prepared", 1000, sustained_over_bf16=1.58, sustained_over_fp8=None),
            row("jagged", 1250, beside_prepared=0.971), row("torch", 2000)]
    cells = [cell.strip() for cell in gpu_tables.backward(rows).splitlines()[-1].split("|")]
    assert "1,000 (1.58, -)" in cells
    assert "800 (97.1%)" in cells


def test_a_jagged_batch_stands_over_the_dense_one_as_timed_beside_it():
    rows = [{"what": "log-normal", "tera_per_s": 900, "beside_dense": 0.957}, {"what": "dense 1792", "tera_per_s": 960},
            {"what": "equal 2048", "tera_per_s": 950, "beside_dense": 1.001}, {"what": "dense 2048", "tera_per_s": 970}]
    assert "95.7% of dense 1792" in gpu_tables.jagged(rows)
    assert "100.1% of dense 2048" in gpu_tables.jagged(rows)
