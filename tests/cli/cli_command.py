"""cli_command.py: runs the command as a user does, and holds its refusals to their form.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("MXATTN_COMMAND") or str(ROOT / "build/release/mxattn")


class Command:
    """The command in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *arguments, code=0):
        result = subprocess.run([COMMAND, *map(str, arguments)], cwd=self.folder, text=True,
                                capture_output=True, check=False, timeout=300)
        assert result.returncode == code, f"{arguments}: {result.returncode} {result.stderr}"
        if code in (0, 1):
            assert result.stderr == "", "nothing is written to stderr in a pipe"
        return result.stdout

    def refuses(self, *arguments, naming=()):
        """Exit 2, one sentence that holds each of `naming`, and no file written or left."""
        before = {p: p.read_bytes() for p in self.folder.iterdir()}
        result = subprocess.run([COMMAND, *map(str, arguments)], cwd=self.folder, text=True,
                                capture_output=True, check=False, timeout=300)
        assert result.returncode == 2, f"{arguments}: {result.returncode} {result.stderr}"
        assert result.stderr.count("\n") == 1 and result.stderr.startswith("mxattn"), result.stderr
        for word in naming:
            assert word in result.stderr, f"'{word}' is not in: {result.stderr}"
        assert {p: p.read_bytes() for p in self.folder.iterdir()} == before, "files were touched"
        return result.stderr

    def save(self, **arrays):
        """Writes arrays as NAME.npy; returns --name NAME.npy ... for them."""
        options = []
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)
            options += [f"--{name.replace('_', '-')}", f"{name}.npy"]
        return options

    def load(self, name):
        return np.load(self.folder / name)


def probe(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)


def isas():
    names = ["portable", "avx2", "avx512", "avx512bf16", "amx"]
    info = json.loads(probe("info", "--json").stdout)
    best = next(b["isa"] for b in info["backends"] if b["name"] == "cpu")
    return names[: names.index(best) + 1]


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Element types of operands; bfloat16 goes into files as uint16.
WIDE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
