"""test_cli_attention.py: forward and backward against float64 NumPy; files whole or not at all; progress.

SPDX-License-Identifier: Apache-2.0
"""

import os
import pty
import resource
import signal
import subprocess
import time

import numpy as np
import pytest

import cli_oracle as oracle
from cli_command import COMMAND, WIDE, gaussian, isas

# Tolerances, relative root mean square, each with its reason.
F64 = 2e-6  # float64 results written as float32
MODEL = 8e-2  # what MXFP8 costs against unquantized float64: 7.5e-2 for dQ and dK, and small shapes
KERNEL_MODEL = 7.5e-3  # kernels against the model that rounds where they round (contract)
ISA = 1e-3  # one ISA against another: BF16 P flips where FP32 sums differ in order


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
                   naming=["--out", "/dev/full", "No space left"])


def test_file_too_large(mxattn):
    saved = mxattn.save(**operands())
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # noqa: E731
    run = subprocess.run([COMMAND, "forward", *saved, "--out", "o.npy", "--lse", "l.npy"], cwd=mxattn.folder,
                         capture_output=True, text=True, preexec_fn=limit)
    assert run.returncode == 2 and "--out o.npy cannot be written: File too large" in run.stderr
    assert not list(mxattn.folder.glob("[ol].npy*"))


def long_work(mxattn, tokens=3000):
    """Seconds of float64, growing with the square of the tokens."""
    saved = mxattn.save(**operands(b=1, sq=tokens, sk=tokens, hq=4, hkv=4, d=128))
    return [COMMAND, "forward", *saved, "--precision", "f64", "--threads", "1", "--out", "o.npy"]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM, signal.SIGABRT])
def test_signal_leaves_nothing(mxattn, ending):
    with subprocess.Popen(long_work(mxattn), cwd=mxattn.folder) as process:
        deadline = time.monotonic() + 20
        while not list(mxattn.folder.glob("o.npy.tmp*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(ending)
        assert process.wait() == -ending
    assert not list(mxattn.folder.glob("o.npy*"))


def run_on_terminal(mxattn, tokens):
    """What long work writes to a terminal, and the seconds it took."""
    command = long_work(mxattn, tokens)
    master, terminal = pty.openpty()
    start = time.monotonic()
    with subprocess.Popen(command, cwd=mxattn.folder, stderr=terminal) as process:
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
    return shown, time.monotonic() - start


def test_progress_on_a_terminal(mxattn):
    # Work shorter than a second shows nothing; machines differ in what that is.
    tokens, seconds = 1500, 0
    while seconds < 3:
        shown, seconds = run_on_terminal(mxattn, tokens)
        tokens *= 2
    assert b"forward: " in shown and b"%" in shown and shown.endswith(b"\r\x1b[K")
