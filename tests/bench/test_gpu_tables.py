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
    rows = [row("prepared", 1000), row("jagged", 1250, beside_prepared=0.971), row("torch", 2000)]
    cells = [cell.strip() for cell in gpu_tables.backward(rows).splitlines()[-1].split("|")]
    assert "1,000 (2.00)" in cells
    assert "800 (97.1%)" in cells
