"""test_cli_quantize.py: quantize and dequantize, byte for byte against ml_dtypes; .npy files, good and bad.

SPDX-License-Identifier: Apache-2.0
"""

import json

import ml_dtypes
import numpy as np
import pytest

import cli_oracle as oracle
from cli_command import WIDE, gaussian, isas


def store_wide(mxattn, x, wide):
    """Saves x rounded to a wide type; returns what it then holds, as float32."""
    x = x.astype(WIDE[wide])
    np.save(mxattn.folder / "x.npy", x.view(np.uint16) if wide == "bf16" else x)
    return x.astype(np.float32)


def check_scales(mxattn, scales, sequences, block, layout, matrix):
    """Files of scales against the scale of every element. sequences: (first, length) of tokens."""
    parts = [scales[a : a + n] for a, n in sequences]
    blocks = [p[::32] for p in parts]
    heads, dim = scales.shape[1:]
    want = {}
    if layout == "linear":
        if block != "column":
            want["scales"] = scales[:, :, ::32]
        if block != "row":
            want["scales" if block == "column" else "scales_seq"] = np.concatenate(blocks)
        if matrix:
            want = {name: array[:, 0] for name, array in want.items()}
    elif layout == "compact":
        want["scales"] = want["scales_seq"] = np.concatenate([b[:, :, ::32] for b in blocks])
    else:
        if block != "column":
            want["scales"] = np.stack(
                [oracle.tiled([p[:, h, ::32] for p in parts]) for h in range(heads)])
        if block != "row":  # rows are d; blocks of tokens start at multiples of 4
            name = "scales" if block == "column" else "scales_seq"
            padded = [np.pad(b, ((0, -len(b) % 4), (0, 0), (0, 0))) for b in blocks]
            joined = np.concatenate(padded)
            want[name] = np.stack([oracle.tiled([joined[:, h].T]) for h in range(heads)])
    for name, array in want.items():
        got = mxattn.load(f"p.{name}.npy")
        assert got.dtype == np.uint8 and got.shape == array.shape, name
        assert np.array_equal(got, array), name
    assert (mxattn.folder / "p.scales_seq.npy").exists() == ("scales_seq" in want)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("rounding", ["rceil", "floor"])
@pytest.mark.parametrize("block", ["row", "column", "square", "folded"])
def test_quantize_bytes(mxattn, block, rounding, dtype):
    """Against ml_dtypes, dense; scales of many sizes, zeros and subnormals among them."""
    x = gaussian(2, 70, 2, 72) * np.exp2(np.arange(70) % 41 - 20.0).astype(np.float32)[:, None, None]
    x[0, :32, 0, :32] = 0
    x[1, 3, 1] *= np.float32(2.0**-130)
    np.save(mxattn.folder / "x.npy", x)
    mxattn("quantize", "x.npy", "--block", block, "--rounding", rounding, "--dtype", dtype,
           "--out", "p")
    parts = [oracle.quantize_sequence(x[b], block, rounding, dtype) for b in range(2)]
    payload, scales = (np.stack(p) for p in zip(*parts))
    assert np.array_equal(mxattn.load("p.payload.npy"), payload)
    flat = scales.reshape(140, 2, 72)
    check_scales(mxattn, flat, [(0, 70), (70, 70)], block, "linear", False)
    tags = json.loads((mxattn.folder / "p.json").read_text())
    assert tags["block"] == ("square" if block == "folded" else block)
    assert tags["folded"] == (block == "folded") and tags["rounding"] == rounding
    assert tags["dtype"] == dtype and tags["shape"] == [2, 70, 2, 72]
    mxattn("dequantize", "p", "--out", "y.npy")
    y = mxattn.load("y.npy")
    assert y.dtype == np.float32 and y.shape == x.shape
    assert np.array_equal(y, oracle.dequantize(payload, scales, dtype).astype(np.float32))


@pytest.mark.parametrize("layout", ["linear", "compact", "tiled"])
@pytest.mark.parametrize("block", ["row", "column", "square", "folded"])
@pytest.mark.parametrize("wide, kind", [("f32", np.int32), ("f16", np.int64), ("bf16", np.int32)])
def test_quantize_jagged(mxattn, block, layout, wide, kind):
    if layout == "compact" and block in ("row", "column"):
        np.save(mxattn.folder / "x.npy", gaussian(8, 1, 32))
        mxattn.refuses("quantize", "x.npy", "--block", block, "--scales", layout, "--out", "p")
        return
    lengths = [5, 0, 150, 33]
    cu = np.concatenate([[0], np.cumsum(lengths)])
    x = store_wide(mxattn, gaussian(int(cu[-1]), 2, 40), wide)
    np.save(mxattn.folder / "cu.npy", cu.astype(kind))
    mxattn("quantize", "x.npy", "--block", block, "--scales", layout, "--cu-seqlens", "cu.npy",
           "--out", "p")
    spans = list(zip(cu[:-1], lengths))
    parts = [oracle.quantize_sequence(x[a : a + n], block, "rceil", "e4m3") for a, n in spans]
    payload, scales = (np.concatenate(p) for p in zip(*parts))
    assert np.array_equal(mxattn.load("p.payload.npy"), payload)
    check_scales(mxattn, scales, spans, block, layout, False)
    mxattn("dequantize", "p", "--out", "y.npy")
    right = oracle.dequantize(payload, scales, "e4m3").astype(np.float32)
    assert np.array_equal(mxattn.load("y.npy"), right)


@pytest.mark.parametrize("block", ["row", "column", "square"])
def test_quantize_matrix(mxattn, block):
    x = store_wide(mxattn, gaussian(96, 72), "f32")
    mxattn("quantize", "x.npy", "--block", block, "--out", "p")
    payload, scales = oracle.quantize_sequence(x[:, None], block, "rceil", "e4m3")
    assert np.array_equal(mxattn.load("p.payload.npy"), payload[:, 0])
    check_scales(mxattn, scales, [(0, 96)], block, "linear", True)
    mxattn("dequantize", "p", "--out", "y.npy")
    right = oracle.dequantize(payload, scales, "e4m3")[:, 0].astype(np.float32)
    assert np.array_equal(mxattn.load("y.npy"), right)


def test_quantize_seqused(mxattn):
    """Tokens beyond seqused count as zero, and come back as zero."""
    x = store_wide(mxattn, gaussian(50, 1, 32), "f32")
    x[9:20] = 0
    mxattn.save(cu=np.int32([0, 20, 50]), used=np.int32([9, 30]))
    mxattn("quantize", "x.npy", "--block", "square", "--cu-seqlens", "cu.npy", "--seqused",
           "used.npy", "--out", "p")
    parts = [oracle.quantize_sequence(x[a:b], "square", "rceil", "e4m3") for a, b in ((0, 20), (20, 50))]
    assert np.array_equal(mxattn.load("p.payload.npy"), np.concatenate([p[0] for p in parts]))
    mxattn("dequantize", "p", "--out", "y.npy")
    assert not mxattn.load("y.npy")[9:20].any() and mxattn.load("y.npy")[:9].all()


@pytest.mark.parametrize("block", ["row", "column", "square", "folded"])
def test_quantize_same_on_every_isa(mxattn, block):
    store_wide(mxattn, gaussian(3, 70, 2, 72) * 3, "f32")
    found = set()
    for where in [["--backend", "ref"]] + [["--isa", isa] for isa in isas()]:
        mxattn("quantize", "x.npy", "--block", block, *where, "--out", "p")
        found.add((mxattn.load("p.payload.npy").tobytes(), mxattn.load("p.scales.npy").tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("array, naming", [
    (np.zeros((4, 32)), ["<f8", "float32"]), (np.zeros((4, 32), np.uint8), ["uint8"]),
    (np.zeros(32, np.float32), ["(32,)"]), (np.zeros((1, 1, 1, 1, 8), np.float32), ["5"]),
    (np.asfortranarray(np.zeros((4, 32), np.float32)), ["Fortran"]),
    (np.zeros((4, 32), ">f4"), [">f4"]), (np.zeros((4, 32), bool), ["b1"]),
    (np.zeros(4, [("a", "<f4")]), ["structured"]),
])
def test_quantize_refuses_array(mxattn, array, naming):
    np.save(mxattn.folder / "x.npy", array)
    mxattn.refuses("quantize", "x.npy", "--block", "row", "--out", "p", naming=["x.npy", *naming])


def mutilations():
    good = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 8), }".ljust(117) + b"\n"
    data = bytes(32)
    text = good[10:]

    def with_text(new):
        return good[:8] + len(new).to_bytes(2, "little") + new + data

    yield "empty", b""
    yield "short", good[:7]
    yield "magic", b"\x94" + good[1:] + data
    yield "version", good[:6] + b"\x04" + good[7:] + data
    yield "header", good[:60]
    yield "data", good + data[:-1]
    yield "more", good + data + b"\0"
    yield "key", with_text(text.replace(b"shape", b"shade"))
    yield "twice", with_text(text.replace(b"'fortran_order': False", b"'shape': (1, 8)"))
    yield "number", with_text(text.replace(b"(1, 8)", b"(8)"))
    yield "negative", with_text(text.replace(b"(1, 8)", b"(-1, 8)"))
    yield "huge", with_text(text.replace(b"(1, 8)", b"(9223372036854775807, 8)"))
    yield "overflow", with_text(text.replace(b"(1, 8)", b"(99999999999999999999, 8)"))
    yield "brace", with_text(text.replace(b"}", b" "))
    yield "after", with_text(text.replace(b"}", b"} 1"))
    yield "order", with_text(text.replace(b"False", b"Maybe"))
    yield "quote", with_text(text.replace(b"'<f4'", b"'<f4"))
    yield "text", b"q,k,v\n1,2,3\n"


@pytest.mark.parametrize("content", [pytest.param(c, id=n) for n, c in mutilations()])
def test_malformed_file(mxattn, content):
    (mxattn.folder / "x.npy").write_bytes(content)
    mxattn.refuses("quantize", "x.npy", "--block", "row", "--out", "p", naming=["x.npy"])


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_file_versions(mxattn, version):
    with open(mxattn.folder / "x.npy", "wb") as file:
        np.lib.format.write_array(file, gaussian(4, 32), version=version)
    mxattn("quantize", "x.npy", "--block", "row", "--out", "p")


def test_bfloat16_of_ml_dtypes(mxattn):
    x = gaussian(4, 32).astype(ml_dtypes.bfloat16)
    found = []
    for array in (x, x.view(np.uint16)):
        np.save(mxattn.folder / "x.npy", array)
        mxattn("quantize", "x.npy", "--block", "row", "--out", "p")
        found.append(mxattn.load("p.payload.npy"))
    assert np.array_equal(*found)


@pytest.mark.parametrize("arguments, naming", [
    (["x.npy", "--out", "p"], ["--block"]), (["x.npy", "--block", "row"], ["--out"]),
    (["--block", "row", "--out", "p"], ["X.npy"]),
    (["none.npy", "--block", "row", "--out", "p"], ["none.npy", "No such file"]),
    ([".", "--block", "row", "--out", "p"], ["directory"]),
    (["x.npy", "x.npy", "--block", "row", "--out", "p"], ["x.npy"]),
    (["x.npy", "--block", "row", "--out", "no/p"], ["--out", "no/p"]),
    (["x.npy", "--block", "row", "--out", ""], ["--out ''", "no file"]),
    (["x.npy", "--block", "row", "--out", "./"], ["--out './'", "no file"]),
    (["x.npy", "--block", "row", "--scales", "wavy", "--out", "p"], ["--scales", "linear"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "bad.npy"], ["cu_seqlens"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "big.npy"], ["--cu-seqlens", "32 bits"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "x.npy"], ["--cu-seqlens", "float32"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "none.npy"], ["--cu-seqlens"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "empty.npy"], ["--cu-seqlens", "empty"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "start.npy"], ["cu_seqlens"]),
    (["x.npy", "--block", "row", "--out", "p", "--cu-seqlens", "past.npy"], ["cu_seqlens"]),
    (["x.npy", "--block", "row", "--out", "p", "--seqused", "start.npy"], ["--seqused"]),
])
def test_quantize_refuses(mxattn, arguments, naming):
    mxattn.save(x=gaussian(8, 32), bad=np.int32([0, 5, 3, 8]), big=np.int64([0, 2**40]),
                empty=np.int32([]), start=np.int32([1, 8]), past=np.int32([0, 9]))
    mxattn.refuses("quantize", *arguments, naming=naming)


@pytest.mark.parametrize("edit, naming", [
    (lambda t: "{", ["not JSON"]), (lambda t: "[]", ["not JSON"]),
    (lambda t: t.replace("e4m3", "e3m4"), ["dtype", "e3m4"]),
    (lambda t: t.replace('"block"', '"blocks"'), ["block", "missing"]),
    (lambda t: t.replace("rceil", "ceil"), ["rounding"]), (lambda t: t.replace("64", "65"), ["payload"]),
    (lambda t: t.replace("64", "1e99"), ["shape"]), (lambda t: t.replace("64", "-64"), ["shape"]),
    (lambda t: t.replace("linear", "tiled"), ["scales"]), (lambda t: t.replace("row", "square"), ["p.json", "p.scales"]),
])
def test_dequantize_refuses(mxattn, edit, naming):
    store_wide(mxattn, gaussian(40, 64), "f32")
    mxattn("quantize", "x.npy", "--block", "row", "--out", "p")
    path = mxattn.folder / "p.json"
    path.write_text(edit(path.read_text()))
    if naming == ["p.json", "p.scales"]:  # a square tensor's hdim scales have the same shape
        mxattn("dequantize", "p", "--out", "y.npy")
    else:
        mxattn.refuses("dequantize", "p", "--out", "y.npy", naming=naming)
