"""test_cli.py: the mxattn command: verbs, files, exit codes, sentences.

What it computes is compared with cli_oracle.py, which knows NumPy and ml_dtypes alone.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import pty
import signal
import subprocess
import time

import ml_dtypes
import numpy as np
import pytest

import cli_oracle as oracle
from command import COMMAND, Command, isas

# Tolerances, relative root mean square, each with its reason.
F64 = 2e-6  # float64 results written as float32
MODEL = 8e-2  # what MXFP8 costs against unquantized float64: 7.5e-2 for dQ and dK, and small shapes
KERNEL_MODEL = 7.5e-3  # kernels against the model that rounds where they round (contract)
ISA = 1e-3  # one ISA against another: BF16 P flips where FP32 sums differ in order

VERBS = ["info", "plan", "quantize", "dequantize", "forward", "backward", "check", "bench"]


@pytest.fixture
def mxattn(tmp_path):
    return Command(tmp_path)


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(b=2, sq=40, sk=40, hq=4, hkv=2, d=64, dv=None, seed=0):
    dv = dv or d
    return {"q": gaussian(b, sq, hq, d, seed=seed), "k": gaussian(b, sk, hkv, d, seed=seed + 1),
            "v": gaussian(b, sk, hkv, dv, seed=seed + 2)}


def dense_oracle(x, **options):
    """oracle.attention over a batch; arrays stacked."""
    results = []
    for b in range(x["q"].shape[0]):
        own = {n: x[n][b] for n in ("do", "dlse") if n in x}
        results.append(oracle.attention(x["q"][b], x["k"][b], x["v"][b], **own, **options))
    return [np.stack(r) for r in zip(*results)]


# --- The command itself.


def test_version_and_help(mxattn):
    assert mxattn("--version").startswith("mxattn 0.")
    text = mxattn("--help")
    for verb in VERBS:
        assert f"\n  {verb} " in text


@pytest.mark.parametrize("verb", VERBS)
def test_verb_help(mxattn, verb):
    text = mxattn(verb, "--help")
    assert text.startswith(f"Usage: mxattn {verb}") and f"Example: mxattn {verb}" in text


@pytest.mark.parametrize("arguments, naming", [
    ([], ["verb"]), (["fly"], ["'fly'"]), (["info", "--fast"], ["--fast"]),
    (["plan", "--seqlen"], ["--seqlen", "lacks"]), (["plan", "more"], ["'more'"]),
    (["plan", "--causal=1"], ["--causal", "no value"]),
])
def test_bad_arguments(mxattn, arguments, naming):
    mxattn.refuses(*arguments, naming=naming)


def test_info(mxattn):
    text = mxattn("info")
    info = json.loads(mxattn("info", "--json"))
    assert {b["name"] for b in info["backends"]} == {"cpu", "ref", "cuda"}
    for backend in info["backends"]:
        assert backend["name"] in text
        if backend["available"]:
            assert backend["reason"] == "" and isinstance(backend["kernels"], list)
        else:
            assert backend["reason"] and backend["reason"] in text
    assert info["version"] in text


# --- plan.

SHAPE = ["--batch", 2, "--seqlen", 96, "--heads", 4, "--kv-heads", 2, "--head-dim", 64]


@pytest.mark.parametrize("more", [
    [], ["--causal"], ["--window", "16,0"], ["--block", "row"], ["--block", "folded"],
    ["--causal", "--causal-strict"], ["--intermediates", "e4m3"], ["--dq-reduce", "fp16"],
    ["--rounding", "floor"], ["--threads", 1], ["--head-dim-v", 32], ["--inference"],
])
def test_plan(mxattn, more):
    text = mxattn("plan", *SHAPE, *more, "--backend", "ref")
    assert "kernel forward" in text and "workspace forward" in text
    if more == ["--head-dim-v", 32]:
        assert "Dv32" in text


@pytest.mark.parametrize("more, naming", [
    (["--heads", 3, "--kv-heads", 2], ["heads"]), (["--head-dim", 12], ["head_dim", "12"]),
    (["--head-dim", 520], ["head_dim", "520"]), (["--window", "-2,0"], ["--window", "-2"]),
    (["--window", "5"], ["--window", "'5'"]), (["--block", "diagonal"], ["--block", "square"]),
    (["--rounding", "up"], ["--rounding", "rceil"]), (["--threads", 0], ["--threads", "0"]),
    (["--seqlen", "many"], ["--seqlen", "'many'"]), (["--seqlen", 0], ["--seqlen", "0"]),
    (["--lengths", "4,5"], ["--lengths", "--seqlen"]), (["--backend", "cuda"], ["cuda"]),
    (["--backend", "tpu"], ["--backend"]), (["--isa", "neon"], ["--isa", "portable"]),
    (["--seqlen-q", 5], ["--seqlen"]), (["--causal-strict"], ["causal"]),
    (["--causal-strict", "--causal", "--block", "square"], ["row"]),
])
def test_plan_says_why_not(mxattn, more, naming):
    mxattn.refuses("plan", *SHAPE, *more, naming=naming)


@pytest.mark.parametrize("lengths", ["4,5", "5,17,300", "0,7", "lognormal:16:64"])
def test_plan_of_jagged(mxattn, lengths):
    assert "T" in mxattn("plan", "--lengths", lengths, "--backend", "ref")


@pytest.mark.parametrize("lengths", ["", "4,", "4,-1", "lognormal:9", "lognormal:9:8", "4;5",
                                     "lognormal:0:4", "2000000000,2000000000"])
def test_plan_of_bad_lengths(mxattn, lengths):
    mxattn.refuses("plan", "--lengths", lengths, naming=["--lengths"])


# --- quantize and dequantize.

WIDE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


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


# --- forward and backward.

CASES = {
    "plain": ({}, [], {}),
    "causal": ({}, ["--causal"], {"causal": True}),
    "causal_long_q": ({"sq": 50}, ["--causal"], {"causal": True}),
    "top_left": ({"sk": 60}, ["--causal-top-left"], {"top_left": True}),
    "window": ({}, ["--window", "7,3"], {"window": (7, 3)}),
    "causal_window": ({}, ["--causal", "--window", "9,-1"], {"causal": True, "window": (9, -1)}),
    "scale": ({}, ["--softmax-scale", "-0.2"], {"scale": -0.2}),
    "softcap": ({}, ["--softcap", "2.5"], {"softcap": 2.5}),
    "mqa": ({"hkv": 1}, [], {}),
    "dv": ({"dv": 32}, ["--causal"], {"causal": True}),
    "decode": ({"sq": 1}, ["--causal"], {"causal": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_forward_f64(mxattn, case):
    sizes, options, right_options = CASES[case]
    x = operands(**sizes)
    mxattn("forward", *mxattn.save(**x), *options, "--precision", "f64", "--out", "o.npy", "--lse", "l.npy")
    o, lse = dense_oracle(x, **right_options)
    got_o, got_lse = mxattn.load("o.npy"), mxattn.load("l.npy")
    assert got_o.dtype == got_lse.dtype == np.float32
    assert got_o.shape == o.shape and got_lse.shape == lse.shape
    assert oracle.relative_rms(got_o, o) < F64 and oracle.relative_rms(got_lse, lse) < F64


@pytest.mark.parametrize("wide", WIDE)
def test_forward_types(mxattn, wide):
    """float16 and bfloat16 operands are what they hold, no more."""
    x = {n: a.astype(WIDE[wide]) for n, a in operands().items()}
    files = {n: a.view(np.uint16) if wide == "bf16" else a for n, a in x.items()}
    mxattn("forward", *mxattn.save(**files), "--precision", "f64", "--out", "o.npy")
    o, _ = dense_oracle({n: a.astype(np.float64) for n, a in x.items()})
    assert oracle.relative_rms(mxattn.load("o.npy"), o) < F64


def test_forward_sink(mxattn):
    x, sink = operands(), np.float32([0.5, -1, 3, 0])
    mxattn("forward", *mxattn.save(**x, sink=sink), "--precision", "f64", "--out", "o.npy", "--lse", "l.npy")
    o, lse = dense_oracle(x, sink=sink)
    assert oracle.relative_rms(mxattn.load("o.npy"), o) < F64
    assert oracle.relative_rms(mxattn.load("l.npy"), lse) < F64


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["model", "mxfp8"])
def test_forward_quantized(mxattn, case, precision):
    """Close to unquantized float64, as MXFP8 is, and not closer."""
    sizes, options, right_options = CASES[case]
    x = operands(**sizes)
    mxattn("forward", *mxattn.save(**x), *options, "--precision", precision, "--out", "o.npy")
    o, _ = dense_oracle(x, **right_options)
    assert 5e-3 < oracle.relative_rms(mxattn.load("o.npy"), o) < MODEL


@pytest.mark.parametrize("block", ["square", "row", "folded"])
@pytest.mark.parametrize("more", [[], ["--intermediates", "e4m3"], ["--rounding", "floor"], ["--centre"]])
def test_forward_kernels_are_the_model(mxattn, block, more):
    saved = mxattn.save(**operands(sq=130, sk=130))
    found = []
    for precision in ("mxfp8", "model"):
        mxattn("forward", *saved, "--block", block, *more, "--causal", "--precision", precision,
               "--out", "o.npy")
        found.append(mxattn.load("o.npy"))
    assert oracle.relative_rms(*found) < KERNEL_MODEL


def test_causal_strict_defaults_to_rows(mxattn):
    saved = mxattn.save(**operands())
    strict = ["forward", *saved, "--causal", "--causal-strict"]
    mxattn(*strict, "--out", "a.npy")
    mxattn(*strict, "--block", "row", "--out", "b.npy")
    assert np.array_equal(mxattn.load("a.npy"), mxattn.load("b.npy"))
    mxattn.refuses(*strict, "--block", "square", "--out", "c.npy", naming=["row"])
    mxattn.refuses(*strict, "--centre", "--out", "c.npy", naming=["causal_strict"])
    mxattn.refuses("forward", *saved, "--causal-strict", "--out", "c.npy", naming=["causal"])


def jagged_operands(lengths_q=(5, 0, 33, 7), lengths_k=(9, 4, 33, 0)):
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(n)]) for n in (lengths_q, lengths_k))
    x = {"q": gaussian(cu_q[-1], 4, 64), "k": gaussian(cu_k[-1], 2, 64, seed=1),
         "v": gaussian(cu_k[-1], 2, 64, seed=2), "do": gaussian(cu_q[-1], 4, 64, seed=3)}
    return x, cu_q, cu_k


def jagged_oracle(x, cu_q, cu_k, **options):
    parts = []
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        parts.append(oracle.attention(x["q"][rows], x["k"][keys], x["v"][keys], x["do"][rows], **options))
    o, lse, dq, dk, dv, _ = zip(*parts)
    return [np.concatenate(o), np.concatenate(lse, 1), *(np.concatenate(g) for g in (dq, dk, dv))]


@pytest.mark.parametrize("causal", [False, True])
def test_jagged(mxattn, causal):
    x, cu_q, cu_k = jagged_operands()
    saved = mxattn.save(q=x["q"], k=x["k"], v=x["v"], dout=x["do"], cu_seqlens_q=cu_q.astype(np.int32),
                        cu_seqlens_k=cu_k)
    outs = ["out", "lse", "dq", "dk", "dv"]
    mxattn("backward", *saved, *(["--causal"] if causal else []), "--precision", "f64",
           *(word for n in outs for word in (f"--{n}", f"{n}_out.npy")))
    for name, right in zip(outs, jagged_oracle(x, cu_q, cu_k, causal=causal)):
        got = mxattn.load(f"{name}_out.npy")
        assert got.shape == right.shape and oracle.relative_rms(got, right) < F64, name
    mxattn("forward", *[w for w in saved if "dout" not in w], "--out", "o.npy")
    assert oracle.relative_rms(mxattn.load("o.npy"), jagged_oracle(x, cu_q, cu_k)[0]) < MODEL


def test_jagged_keys_default_to_queries(mxattn):
    x, cu, _ = jagged_operands(lengths_k=(5, 0, 33, 7))
    saved = mxattn.save(q=x["q"], k=x["k"], v=x["v"], cu_seqlens_q=cu.astype(np.int32))
    mxattn("forward", *saved, "--precision", "f64", "--out", "o.npy")
    assert oracle.relative_rms(mxattn.load("o.npy"), jagged_oracle(x, cu, cu)[0]) < F64


def test_seqused(mxattn):
    x = operands(b=2, sq=20, sk=20)
    saved = mxattn.save(**x, seqused_q=np.int32([7, 20]), seqused_k=np.int32([11, 20]))
    mxattn("forward", *saved, "--precision", "f64", "--out", "o.npy", "--lse", "l.npy")
    o, lse = oracle.attention(x["q"][0, :7], x["k"][0, :11], x["v"][0, :11])
    got_o, got_lse = mxattn.load("o.npy")[0], mxattn.load("l.npy")[0]
    assert oracle.relative_rms(got_o[:7], o) < F64 and not got_o[7:].any()
    assert oracle.relative_rms(got_lse[:, :7], lse) < F64 and np.isneginf(got_lse[:, 7:]).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision, limit", [("f64", F64), ("model", MODEL), ("mxfp8", MODEL)])
def test_backward(mxattn, case, precision, limit):
    sizes, options, right_options = CASES[case]
    if precision != "f64" and case == "decode":
        return  # one query: its dQ is a difference of nearly equal sums, of no size to compare with
    x = operands(**sizes)
    o, lse = dense_oracle(x, **right_options)
    x["do"], x["dlse"] = gaussian(*o.shape, seed=7), gaussian(*lse.shape, seed=8)
    x["dlse"][np.isinf(lse)] = 0
    saved = mxattn.save(q=x["q"], k=x["k"], v=x["v"], dout=x["do"], dlse=x["dlse"])
    outs = ["out", "lse", "dq", "dk", "dv"]
    mxattn("backward", *saved, *options, "--precision", precision,
           *(word for n in outs for word in (f"--{n}", f"{n}_out.npy")))
    for name, right in zip(outs, dense_oracle(x, **right_options)):
        got = mxattn.load(f"{name}_out.npy")
        assert got.dtype == np.float32 and got.shape == right.shape, name
        assert oracle.relative_rms(got, right) < limit, name


def test_backward_sink(mxattn):
    x, sink = operands(), np.float32([0.5, -1, 3, 0])
    x["do"] = gaussian(*x["q"].shape, seed=7)
    saved = mxattn.save(q=x["q"], k=x["k"], v=x["v"], dout=x["do"], sink=sink)
    found = {}
    for precision in ("f64", "model", "mxfp8"):
        mxattn("backward", *saved, "--precision", precision, "--dq", "g.npy", "--dsink", "s.npy")
        found[precision] = mxattn.load("g.npy"), mxattn.load("s.npy")
    right = dense_oracle(x, sink=sink)
    assert oracle.relative_rms(found["f64"][0], right[2]) < F64
    assert oracle.relative_rms(found["f64"][1], right[5].sum(0)) < F64
    for kernel, model in zip(found["mxfp8"], found["model"]):
        assert oracle.relative_rms(kernel, model) < KERNEL_MODEL


@pytest.mark.parametrize("more", [[], ["--intermediates", "e4m3"], ["--dq-reduce", "fp16"],
                                  ["--dq-reduce", "fp16", "--dq-scale-log2", 3], ["--deterministic"],
                                  ["--block", "row"]])
def test_backward_kernels_are_the_model(mxattn, more):
    x = operands(sq=130, sk=130)
    saved = mxattn.save(**x, dout=gaussian(*x["q"].shape, seed=7))
    found = []
    for precision in ("mxfp8", "model"):
        mxattn("backward", *saved, "--causal", *more, "--precision", precision, "--dq", "dq_.npy",
               "--dk", "dk_.npy", "--dv", "dv_.npy")
        found.append([mxattn.load(f"{n}_.npy") for n in ("dq", "dk", "dv")])
    for kernel, model in zip(*found):
        assert oracle.relative_rms(kernel, model) < KERNEL_MODEL


def test_isas_and_threads(mxattn):
    """Any number of threads gives the same bits; any ISA the same within its class."""
    x = operands(sq=150, sk=150)
    saved = mxattn.save(**x, dout=gaussian(*x["q"].shape, seed=7))
    outs = ["out", "lse", "dq", "dk", "dv"]
    files = [word for n in outs for word in (f"--{n}", f"{n}_out.npy")]
    by_isa = []
    for isa in isas():
        found = []
        for threads in (1, 2, 3):
            mxattn("backward", *saved, "--causal", "--isa", isa, "--threads", threads, *files)
            found.append([mxattn.load(f"{n}_out.npy") for n in outs])
        for other in found[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(found[0], other)), isa
        by_isa.append(found[0])
    for other in by_isa[1:]:
        assert all(oracle.relative_rms(a, b) < ISA for a, b in zip(other, by_isa[0]))


def test_empty_batch(mxattn):
    saved = mxattn.save(**operands(b=0))
    mxattn("forward", *saved, "--out", "o.npy", "--lse", "l.npy")
    assert mxattn.load("o.npy").shape == (0, 40, 4, 64) and mxattn.load("l.npy").shape == (0, 4, 40)


REFUSED_FORWARD = [
    ({}, ["--out", "o.npy", "--q", "none.npy"], ["--q", "none.npy"]),
    ({"q": gaussian(2, 40, 3, 64)}, ["--out", "o.npy"], ["heads"]),
    ({"k": gaussian(2, 40, 2, 32)}, ["--out", "o.npy"], ["k"]),
    ({"k": gaussian(1, 40, 2, 64)}, ["--out", "o.npy"], ["k"]),
    ({"v": gaussian(2, 39, 2, 64)}, ["--out", "o.npy"], ["v"]),
    ({"v": gaussian(40, 2, 64)}, ["--out", "o.npy"], ["--v", "dimensions"]),
    ({"q": gaussian(40, 64)}, ["--out", "o.npy"], ["--q", "(40, 64)"]),
    ({"q": gaussian(2, 40, 4, 64).astype(np.float64)}, ["--out", "o.npy"], ["--q", "<f8"]),
    ({}, [], ["--out", "--lse"]),
    ({}, ["--out", "."], ["--out", "folder"]),
    ({}, ["--out", "no/o.npy"], ["--out", "no/o.npy"]),
    ({}, ["--out", "o.npy", "--lse", "o.npy"], ["--lse", "--out"]),
    ({}, ["--out", "o.npy", "--lse", "./o.npy"], ["--lse", "--out"]),
    ({}, ["--out", "o.npy", "--cu-seqlens-q", "q.npy"], ["--cu-seqlens"]),
    ({}, ["--out", "o.npy", "--sink", "q.npy"], ["--sink", "(4,)"]),
    ({}, ["--out", "o.npy", "--seqused-k", "q.npy"], ["--seqused-k"]),
    ({"seqused_q": np.int32([5, 41])}, ["--out", "o.npy"], ["seqused_q", "41"]),
    ({"seqused_q": np.int32([5])}, ["--out", "o.npy"], ["--seqused-q"]),
    ({}, ["--out", "o.npy", "--softmax-scale", "nan"], ["--softmax-scale"]),
    ({}, ["--out", "o.npy", "--softmax-scale", "1x"], ["--softmax-scale", "'1x'"]),
    ({}, ["--out", "o.npy", "--softcap", "-1"], ["softcap"]),
    ({}, ["--out", "o.npy", "--window", "-8,0"], ["--window", "-8"]),
    ({}, ["--out", "o.npy", "--causal", "--causal-top-left"], ["--causal"]),
    ({}, ["--out", "o.npy", "--precision", "f32"], ["--precision", "f64"]),
    ({}, ["--out", "o.npy", "--precision", "f64", "--backend", "cpu"], ["--precision", "ref"]),
    ({}, ["--out", "o.npy", "--backend", "cuda"], ["cuda"]),
    ({}, ["--out", "o.npy", "--block", "column"], ["--block", "square"]),
    ({}, ["--out", "o.npy", "--threads", "two"], ["--threads"]),
]


@pytest.mark.parametrize("change, more, naming", REFUSED_FORWARD)
def test_forward_refuses(mxattn, change, more, naming):
    mxattn.refuses("forward", *mxattn.save(**{**operands(), **change}), *more, naming=naming)


@pytest.mark.parametrize("cu, naming", [
    ([1, 12], ["cu_seqlens_q"]), ([0, 9, 5, 12], ["cu_seqlens_q"]), ([0, 13], ["cu_seqlens_q"]),
    ([], ["--cu-seqlens-q"]), ([[0, 12]], ["--cu-seqlens-q"]), ([0, 2**33], ["--cu-seqlens-q"]),
    ([0, -5], ["cu_seqlens_q"]), (None, ["--cu-seqlens-q", "missing"]),
])
def test_forward_refuses_sequences(mxattn, cu, naming):
    x = {"q": gaussian(12, 4, 64), "k": gaussian(12, 2, 64), "v": gaussian(12, 2, 64)}
    more = {} if cu is None else {"cu_seqlens_q": np.array(cu, np.int64)}
    mxattn.refuses("forward", *mxattn.save(**x, **more), "--out", "o.npy", naming=naming)


@pytest.mark.parametrize("more, naming", [
    (["--dq", "a.npy"], ["--dout"]), (["--dout", "do.npy"], ["--dq"]),
    (["--dout", "q.npy", "--dq", "a.npy", "--dlse", "q.npy"], ["--dlse"]),
    (["--dout", "k.npy", "--dq", "a.npy"], ["--dout", "(2, 40, 2, 64)"]),
    (["--dout", "do.npy", "--dq", "a.npy", "--dk", "a.npy"], ["--dk", "--dq"]),
    (["--dout", "do.npy", "--dsink", "a.npy"], ["--dsink", "--sink"]),
    (["--dout", "do.npy", "--dq", "a.npy", "--dq-reduce", "fp8"], ["--dq-reduce"]),
    (["--dout", "do.npy", "--dq", "a.npy", "--dq-scale-log2", "some"], ["--dq-scale-log2"]),
    (["--dout", "do.npy", "--dq", "a.npy", "--dk", "no/a.npy"], ["--dk"]),
])
def test_backward_refuses(mxattn, more, naming):
    x = operands()
    saved = mxattn.save(**x)
    mxattn.save(do=x["q"])
    mxattn.refuses("backward", *saved, *more, naming=naming)


# --- Files whole or not at all, progress, long work.


def test_output_replaces_and_keeps_mode(mxattn):
    saved = mxattn.save(**operands())
    path = mxattn.folder / "o.npy"
    path.write_bytes(b"before")
    path.chmod(0o640)
    mxattn.refuses("forward", *saved, "--window", "1", "--out", "o.npy")
    mxattn("forward", *saved, "--precision", "f64", "--out", "o.npy")
    assert mxattn.load("o.npy").shape == (2, 40, 4, 64) and path.stat().st_mode & 0o777 == 0o640
    assert not list(mxattn.folder.glob("*.tmp*"))


def test_full_disk(mxattn):
    saved = mxattn.save(**operands())
    mxattn.refuses("forward", *saved, "--precision", "f64", "--out", "/dev/full", "--lse", "l.npy",
                   naming=["--out", "/dev/full"])


def long_work(mxattn):
    """Some seconds of float64."""
    saved = mxattn.save(**operands(b=1, sq=1500, sk=1500, hq=4, hkv=4, d=128))
    return [COMMAND, "forward", *saved, "--precision", "f64", "--threads", "1", "--out", "o.npy"]


def test_signal_leaves_nothing(mxattn):
    with subprocess.Popen(long_work(mxattn), cwd=mxattn.folder) as process:
        deadline = time.monotonic() + 20
        while not list(mxattn.folder.glob("o.npy.tmp*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
    assert not list(mxattn.folder.glob("o.npy*"))


def test_progress_on_a_terminal(mxattn):
    master, terminal = pty.openpty()
    with subprocess.Popen(long_work(mxattn), cwd=mxattn.folder, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        assert process.wait() == 0
    os.close(master)
    assert b"forward: " in shown and b"%" in shown and shown.endswith(b"\r\x1b[K")


# --- check and bench.

CHECK = ["check", "--seqlen", 160, "--heads", 4, "--kv-heads", 2, "--head-dim", 64]


@pytest.mark.parametrize("more", [
    [], ["--causal"], ["--intermediates", "e4m3"], ["--block", "row"], ["--block", "folded"],
    ["--causal", "--causal-strict"], ["--window", "20,4"], ["--dq-reduce", "fp16"], ["--rounding", "floor"],
    ["--isa", "portable"], ["--backend", "ref"], ["--head-dim-v", 32],
])
def test_check(mxattn, more):
    text = mxattn(*CHECK, *more)
    rows = [line.split() for line in text.splitlines() if line.endswith(" ok")]
    assert {tuple(row[:2]) for row in rows} == {(data, name) for data in ("gaussian", "outliers", "long-tail")
                                                for name in ("O", "LSE", "dQ", "dK", "dV")}


@pytest.mark.parametrize("lengths", ["5,17,300", "1", "lognormal:16:128"])
def test_check_jagged(mxattn, lengths):
    mxattn("check", "--lengths", lengths, "--heads", 2, "--head-dim", 32, "--causal")


def test_check_past_a_limit(mxattn):
    text = mxattn(*CHECK, "--limits", 0.01, code=1)
    assert "PAST" in text and "past their limits" in text


def test_check_refuses(mxattn):
    mxattn.refuses(*CHECK, "--heads", 3, naming=["heads"])
    mxattn.refuses(*CHECK, "--limits", "some", naming=["--limits"])


BENCH = ["bench", "--seqlen", 96, "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--min-time", 0.01]


def check_rows(rows, ops):
    assert {row["op"] for row in rows} == ops
    for row in rows:
        assert row["ms_min"] <= row["ms_median"] <= row["ms_max"] and row["ms_min"] > 0
        assert row["ceiling_share"] > 0 and row["threads"] >= 1 and row["isa"] and row["backend"] == "cpu"
        work = "gbytes" if row["op"] == "quantize" else "gflops"
        assert row[work] > 0
        assert (row["baseline"] is None) == (row["ratio"] is None)
        assert {"batch", "seqlen_q", "seqlen_k", "heads", "kv_heads", "head_dim"} <= row["shape"].keys()


@pytest.mark.parametrize("op, ops", [
    ("quantize", {"quantize"}), ("forward", {"forward", "forward_with_quantize"}),
    ("backward", {"backward", "backward_with_quantize"}),
    ("all", {"quantize", "forward", "forward_with_quantize", "backward", "backward_with_quantize"}),
])
def test_bench(mxattn, op, ops):
    text = mxattn(*BENCH, op, "--causal", "--json", "b.json")
    rows = json.loads((mxattn.folder / "b.json").read_text())
    check_rows(rows, ops)
    for name in ops:
        assert f"\n{name} " in text


@pytest.mark.parametrize("more", [
    ["--lengths", "5,70,0,200"], ["--seqlen", 200, "--window", "40,8"], ["--seqlen", 160, "--block", "row"],
    ["--seqlen", 160, "--block", "folded"], ["--seqlen", 160, "--intermediates", "e4m3"],
    ["--seqlen", 160, "--head-dim-v", 32], ["--seqlen-q", 40, "--seqlen-k", 150],
])
def test_bench_shapes(mxattn, more):
    """What is timed is verified first, whatever the shape."""
    mxattn("bench", "all", "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--min-time", 0, *more,
           "--json", "b.json")
    assert json.loads((mxattn.folder / "b.json").read_text())


def test_bench_refuses(mxattn):
    mxattn.refuses(*BENCH, "sideways", naming=["operation", "forward"])
    mxattn.refuses(*BENCH, "--json", "no/b.json", naming=["--json"])
    mxattn.refuses(*BENCH, "--sweep", naming=["--sweep"])
    mxattn.refuses(*BENCH, "--min-time", "-1", naming=["--min-time"])
    mxattn.refuses(*BENCH, "--heads", 3, naming=["heads"])
