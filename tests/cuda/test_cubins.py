"""test_cubins.py: what the compiled kernels take: registers, shared and tensor memory, size.

Prints the table of docs/sm100.md (static report). Skipped where the build had no nvcc.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import pathlib
import re
import subprocess

import pytest

SHARED_BYTES_MOST, TMEM_COLUMNS_MOST, REGISTERS_OF_A_MULTIPROCESSOR = 232448, 512, 65536
CODE_BYTES_MOST = 250_000  # of one entry: a kernel that grows past this has been unrolled by accident

# Entry -> threads of a CTA, and CTAs of a multiprocessor that its registers must leave room for.
FORWARD = {f"mxa_sm100_forward_{form}_256x128_d{d}": (512, 1) for form in ("e4m3", "bf16") for d in (64, 128)}


@pytest.fixture(scope="module")
def rows():
    path = pathlib.Path(os.environ["MXATTN_BUILD"]) / "cubins.json"
    found = json.loads(path.read_text()) if path.is_file() else []
    if not found:
        pytest.skip("no nvcc: no kernels")
    return found


def test_nothing_spills(rows):
    for row in rows:
        assert row["spill_bytes"] == 0 and row["stack_bytes"] == 0, row


def test_sizes(rows):
    for row in rows:
        entries = sum(1 for other in rows if (other["source"], other["arch"]) == (row["source"], row["arch"]))
        assert 0 < row["cubin_bytes"] <= CODE_BYTES_MOST * entries, row
        assert row["smem_bytes"] + row.get("dynamic_smem_bytes", 0) <= SHARED_BYTES_MOST, row


def test_blackwell_forward(rows):
    found = {row["entry"]: row for row in rows if row["arch"] == "100a" and "/sm100/forward" in row["source"]}
    assert set(found) == set(FORWARD)
    for entry, (threads, ctas) in FORWARD.items():
        row = found[entry]
        print(f"{entry}: {row['registers']} registers, {row['dynamic_smem_bytes']} bytes shared, "
              f"{row['tmem_columns']} columns, {row['mma_per_tile']} products of a full tile, "
              f"{row['cubin_bytes']} bytes with its siblings")
        assert row["registers"] * threads * ctas <= REGISTERS_OF_A_MULTIPROCESSOR, row
        assert row["tmem_columns"] == TMEM_COLUMNS_MOST and row["dynamic_smem_bytes"] > 100_000, row


def test_products_of_a_tile(rows):
    """The report's number is the least that a tile of 128 x 128 takes, and what the emulator sees a kernel issue for it."""
    command = os.environ["MXATTN_COMMAND"]
    for entry, row in ((row["entry"], row) for row in rows if row["entry"] in FORWARD):
        form, d = re.fullmatch(r"mxa_sm100_forward_(\w+)_256x128_d(\d+)", entry).groups()
        assert row["mma_per_tile"] == int(d) // 32 + 128 // {"e4m3": 32, "bf16": 16}[form], row
        run = subprocess.run([command, "emu", "--backend", "emu-sm100", "--seqlen", "128", "--heads", "1", "--kv-heads", "1",
                              "--head-dim", d, "--intermediates", form, "--seeds", "1"],
                             text=True, capture_output=True, check=False, timeout=300)
        if "has no emulator" in run.stderr:
            pytest.skip("this build has no emulator")
        assert run.returncode == 0, run.stderr
        assert re.search(rf"^  tcgen05\.mma +{row['mma_per_tile']}$", run.stdout, re.MULTILINE), run.stdout
