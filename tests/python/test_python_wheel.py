"""test_python_wheel.py: the wheel: tag, size, contents, the glibc it asks for, and that it works where it lands.

SPDX-License-Identifier: Apache-2.0
"""

import importlib.util
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


SCRIPT = runpy.run_path(str(ROOT / "scripts/wheel"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The CPU wheel, as scripts/wheel builds it."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    out = tmp_path_factory.mktemp("wheel")
    command = [shutil.which("python3") or sys.executable, ROOT / "scripts/wheel", "--cpu", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    command = [*SCRIPT["pip"](sys.executable), "install", "-q", "--no-deps", "--target", folder, wheel]
    subprocess.run(command, check=True)
    return folder


def test_tag_and_size(wheel):
    assert re.fullmatch(r"mxattn-[\d.]+-py3-none-manylinux_2_28_(x86_64|aarch64)\.whl", wheel.name)
    assert wheel.stat().st_size < 5 << 20, "a CPU wheel is below 5 MB"
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        assert "manylinux_2_28" in file.read(next(n for n in names if n.endswith("/WHEEL"))).decode()
    sources = {str(p.relative_to(ROOT / "python")) for p in (ROOT / "python/mxattn").rglob("*.py")}
    assert {n for n in names if n.startswith("mxattn/")} == sources | {"mxattn/libmxattn.so", "mxattn/py.typed"}


def test_B129_the_oldest_glibc(wheel):
    """No symbol newer than glibc 2.28, no library beyond glibc's own, no C++, and none of our own but mxattn_*."""
    with zipfile.ZipFile(wheel) as file:
        library = file.read("mxattn/libmxattn.so")
    versions = SCRIPT["glibc_versions"](library)
    assert versions and versions[-1] <= (2, 28), versions
    assert b"GLIBCXX" not in library and b"CXXABI" not in library and b"libstdc++" not in library
    needed = set(re.findall(rb"\0((?:lib|ld-)[\w\-]+\.so\.\d+)(?=\0)", library))
    assert {n.decode() for n in needed} - {"libcuda.so.1"} <= {
        "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
    }  # fmt: skip
    tool = shutil.which("objdump")
    if tool:
        path = wheel.parent / "libmxattn.so"
        path.write_bytes(library)
        table = subprocess.run([tool, "-T", path], capture_output=True, text=True, check=True).stdout
        exported = {line.split()[-1] for line in table.splitlines() if re.search(r"\s\.text\s", line)}
        assert exported and all(name.startswith("mxattn_") for name in exported), exported


def test_scan_finds_a_new_symbol():
    """The library that make builds on a recent machine is one the scan would refuse, or is old enough itself."""
    find = SCRIPT["glibc_versions"]
    assert find(b"x\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_2.28\0") == [(2, 2, 5), (2, 28), (2, 34)]


def test_installed_package_attends(installed):
    """Without MXATTN_LIBRARY and outside the tree: the library of the wheel is found and computes."""
    program = (
        "import numpy as np, mxattn; q = np.ones((1, 40, 2, 32), np.float32); o = mxattn.attention(q, q, q, causal=True);"
        "assert abs(o - 1).max() < 2**-8; print(mxattn.info().path)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "MXATTN_LIBRARY"}
    environment["PYTHONPATH"] = str(installed)
    done = subprocess.run([sys.executable, "-c", program], cwd=installed, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(installed / "mxattn/libmxattn.so"), done.stderr
