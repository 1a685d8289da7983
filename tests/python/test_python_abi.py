"""test_python_abi.py: the ctypes mirror against the header, as a C compiler reads it.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from mxattn import _abi as abi
from mxattn import _errors as errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include/mxattn/mxattn.h").read_text()
# Section 8, the emulator, is for those who write kernels and is not bound.
API = re.sub(r" \* 8  The emulator\n.*", "*/", HEADER, flags=re.DOTALL)
CODE = re.sub(r"/\*.*?\*/", "", API, flags=re.DOTALL)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What a C compiler prints for a list of integer expressions."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")

    def values(expressions):
        folder = tmp_path_factory.mktemp("c")
        lines = "\n".join(f'printf("%lld\\n", (long long)({e}));' for e in expressions)
        (folder / "x.c").write_text(
            f"#include <mxattn/mxattn.h>\n#include <stdio.h>\nint main(void) {{\n{lines}\nreturn 0; }}\n"
        )
        command = [compiler, "-std=c11", f"-I{ROOT / 'include'}", "-o", folder / "x", folder / "x.c"]
        subprocess.run(command, check=True)
        printed = subprocess.run([folder / "x"], check=True, capture_output=True, text=True).stdout
        return [int(line) for line in printed.split()]

    return values


def test_layouts(compiled):
    """Every struct has the size, and every member the offset and size, that the compiler gives it."""
    expressions, want = [], []
    for name, struct in abi.STRUCTS.items():
        expressions.append(f"sizeof({name})")
        want.append(ctypes.sizeof(struct))
        for member, _ in struct._fields_:
            expressions += [f"offsetof({name}, {member})", f"sizeof((({name} *)0)->{member})"]
            want += [getattr(struct, member).offset, getattr(struct, member).size]
    got = compiled(expressions)
    wrong = [f"{e} is {g}, ctypes has {w}" for e, g, w in zip(expressions, got, want) if g != w]
    assert not wrong


def test_every_struct_and_member():
    """No struct or member of the header is missing."""
    found = {name: body for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", CODE, re.DOTALL)}
    assert set(found) == set(abi.STRUCTS)
    for name, body in found.items():
        members = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            pointer = re.search(r"\(\*(\w+)\)", declaration)
            members += [pointer[1]] if pointer else re.findall(r"(\w+)(?:\[\d+\])?(?=\s*(?:,|$))", declaration)
        assert members == [member for member, _ in abi.STRUCTS[name]._fields_], name


def test_enum_values(compiled):
    """Each constant has the header's value, and none of the enums the package uses is missing one."""
    names = list(abi._C_NAMES)
    assert compiled(names) == list(abi._C_NAMES.values())
    unused = r"MXATTN_(LOG|ISA_ALL|OK|VERSION|API|H$)"
    enums = re.findall(r"enum(?: \w+)? \{(.*?)\}", CODE, re.DOTALL)
    constants = {n for body in enums for n in re.findall(r"\b(MXATTN_\w+)", body) if not re.match(unused, n)}
    statuses = set(re.findall(r"\b(MXATTN_\w+)", enums[0]))
    assert constants - statuses == set(names) - {"MXATTN_DQ_SCALE_AUTO"}


def test_statuses(compiled):
    """One exception for each status, in the header's order."""
    body = re.search(r"typedef enum mxattn_status \{(.*?)\}", CODE, re.DOTALL)[1]
    names = [name for name in re.findall(r"\b(MXATTN_\w+)", body) if name != "MXATTN_OK"]
    assert compiled(names) == [error.status for error in errors.STATUSES]
    for name, error in zip(names, errors.STATUSES):
        assert name in (error.__doc__ or ""), error
        assert abi.lib.mxattn_status_name(error.status).decode() == name
        with pytest.raises(error, match="a sentence"):
            errors.raise_status(error.status, "a sentence")
    with pytest.raises(errors.MxattnError):
        errors.raise_status(99, "a status of a newer library")


def test_functions():
    """Each function of the header is bound with as many parameters as it has."""
    declared = {}
    for name, parameters in re.findall(r"MXATTN_API [\w \*]*?\b(mxattn_\w+)\((.*?)\);", CODE, re.DOTALL):
        declared[name] = 0 if parameters.strip() == "void" else parameters.count(",") + 1
    inits = {name: 2 for struct, name in abi._INIT.items() if struct not in abi.FROZEN}
    bound = {name: len(parameters) for name, parameters in abi.FUNCTIONS.items()}
    assert {**bound, **inits} == declared
