"""conftest.py: the package of this tree over the library of this build.

SPDX-License-Identifier: Apache-2.0
"""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))  # cli_oracle
if os.environ.get("MXATTN_INSTALLED") != "1":  # 1: test the package that is installed
    sys.path.insert(0, str(ROOT / "python"))
    library = pathlib.Path(os.environ.get("MXATTN_LIBRARY") or ROOT / "build/release/libmxattn.so")
    os.environ["MXATTN_LIBRARY"] = str(library)
    if not library.exists():
        collect_ignore_glob = ["test_*.py"]
        sys.stderr.write(f"tests/python: no library at {library}; run make\n")
