"""test_cli_command.py: the mxattn command as a whole: help, info, plan, check, bench, exit codes.

SPDX-License-Identifier: Apache-2.0
"""

import json

import pytest

VERBS = ["info", "plan", "quantize", "dequantize", "forward", "backward", "check", "bench", "emu"]


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
    (["plan", "--fast", "1"], ["'--fast'"]), (["plan", "--heads", 2, "--fast", "--causal"], ["'--fast'"]),
    (["plan", "-x", "--heads", 2], ["'-x'"]), (["plan", "--causal=1", "--heads", 2], ["--causal", "no value"]),
])
def test_bad_arguments(mxattn, arguments, naming):
    mxattn.refuses(*arguments, naming=naming)


def test_info(mxattn):
    text = mxattn("info")
    info = json.loads(mxattn("info", "--json"))
    assert {b["name"] for b in info["backends"]} == {"cpu", "ref", "cuda", "emu-sm90", "emu-sm100"}
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


BENCH = ["bench", "--seqlen", 96, "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--min-time", 0.01,
         "--threads", 1]


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
    mxattn("bench", "forward", "backward", "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--min-time", 0, "--threads", 1,
           *more, "--json", "b.json")
    assert json.loads((mxattn.folder / "b.json").read_text())


def test_bench_producers(mxattn):
    """Fused and alone at the same shapes, and only where the aims apply: beyond the caches; M >= 512, K >= 1024. Quantizers
    and norms also in the second cache of one core, by names of their own."""
    mxattn("bench", "producers", "--min-time", 0, "--json", "b.json")
    rows = json.loads((mxattn.folder / "b.json").read_text())
    of = {op: [row for row in rows if row["op"] == op] for op in {row["op"] for row in rows}}
    assert set(of) >= {"quantize", "quantize_transposed", "rmsnorm", "rmsnorm_quantize", "rmsnorm_then_quantize", "gemm_bf16", "gemm_quantize", "gemm_then_quantize",
                       "scales_scatter", "scales_transform"}
    for alone, fused in (("rmsnorm", "rmsnorm_quantize"), ("gemm_bf16", "gemm_quantize")):
        shapes = [row["shape"] for row in of[alone]]
        assert all(row["shape"] in shapes and row["baseline"] == alone and row["ms_min"] > 0 for row in of[fused])
    assert {row["block"] for row in of["rmsnorm_quantize"]} == {"row", "square"}
    assert all(row["shape"]["m"] >= 512 and row["shape"]["k"] >= 1024 for row in of["gemm_bf16"])
    for op, kinds in (("quantize", 4), ("quantize_transposed", 1), ("rmsnorm", 1), ("rmsnorm_quantize", 2)):
        assert len({(row["operands"], row["block"]) for row in of[op]}) == len(of[op + "_cached"]) == kinds
        assert {row["ceiling"] for row in of[op]} == {"copy of memory"}
        assert all(row["gelements"] > 0 and row["threads"] == 1 and row["ceiling"] == "copy in the second cache" for row in of[op + "_cached"])
    assert {row["baseline"] for row in of["rmsnorm_quantize_cached"]} == {"rmsnorm_cached"}
    for op in ("quantize", "rmsnorm", "scales_scatter", "scales_transform"):
        assert all(row["gbytes"] * row["ms_median"] * 1e6 > 4 << 20 and row["ceiling"] == "copy of memory" for row in of[op])


def test_bench_refuses(mxattn):
    mxattn.refuses(*BENCH, "sideways", naming=["operation", "forward"])
    mxattn.refuses(*BENCH, "--json", "no/b.json", naming=["--json"])
    mxattn.refuses(*BENCH, "--sweep", naming=["--sweep"])
    mxattn.refuses(*BENCH, "--min-time", "-1", naming=["--min-time"])
    mxattn.refuses(*BENCH, "--heads", 3, naming=["heads"])
