"""test_numpy.py: ref through the public API against an independent implementation in NumPy, exact and
as a model that rounds where kernels round.

The NumPy side works on whole matrices with a boolean mask, takes its FP8 and BF16 from ml_dtypes, and
shares no line with the library.

SPDX-License-Identifier: Apache-2.0
"""

import random

import ml_dtypes
import numpy as np
import pytest

from public_api import (BF16_INTERMEDIATES, CENTRED, COLUMN, E4M3, E4M3_INTERMEDIATES, F32, F64, FP16_REDUCE,
                        FP32_REDUCE, HDIM, MODEL, REF, ROW, SEQ, SQUARE, Library, Problem, Tags)

LOG2E = float(np.log2(np.e))
DENSE, JAGGED = 0, 1

# Against float64: outputs are FP32. Against the model: a sum in another order may flip one rounding of P
# or dS, of 2^-9 or 2^-4; among the thousands of a problem that stays below this.
EXACT_RMS = 1e-6
MODEL_RMS = 2e-5

np.seterr(all="ignore")


@pytest.fixture(scope="session")
def library():
    return Library()


# --- formats ------------------------------------------------------------------------------------


def round_bf16(x):
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def round_e4m3(x):
    return np.clip(x, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)


def scale_exponent(amax):
    """Smallest e with amax / 2^e <= 448, at least -127; zero blocks take -127."""
    mantissa, exponent = np.frexp(amax)  # amax = mantissa * 2^exponent, mantissa in [0.5, 1)
    e = exponent - 9 + (mantissa > 0.875)
    return np.maximum(np.where(amax == 0, -127, e), -127)


def block_amax(x, block):
    """Largest magnitude of each element's block, with the shape of x (tokens, dims)."""
    tokens = 1 if block == ROW else 32
    dims = 1 if block == COLUMN else 32
    out = np.zeros_like(x)
    for s in range(0, x.shape[0], tokens):
        for d in range(0, x.shape[1], dims):
            part = x[s:s + tokens, d:d + dims]
            out[s:s + tokens, d:d + dims] = np.abs(part).max()
    return out


def quantize(x, block):
    """(payload, exponent of each element) of one head of one sequence."""
    e = scale_exponent(block_amax(x, block))
    return round_e4m3(np.ldexp(x, -e)), e


def requantized(x, block, centred=False):
    """What x stands for after quantization, and its centre."""
    centre = np.zeros(x.shape[1])
    if centred and len(x):
        centre = x.mean(axis=0).astype(np.float32).astype(np.float64)
    payload, e = quantize((x.astype(np.float32) - centre.astype(np.float32)).astype(np.float64), block)
    return np.ldexp(payload.astype(np.float64), e), centre


# --- attention of one head ----------------------------------------------------------------------


def mask_of(options, sq, sk):
    i, j = np.arange(sq)[:, None], np.arange(sk)[None, :]
    distance = j - i - (sk - sq if options["alignment"] == 0 else 0)  # of key from diagonal
    left, right = options["window"]
    seen = np.ones((sq, sk), bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    if options["causal"]:
        seen &= distance <= 0
    return seen


def hold_p(options, p):
    if options["hold"] == "bf16":
        return round_bf16(p)
    if options["hold"] == "e4m3":
        return round_e4m3(p * 256).astype(np.float64) / 256
    return p


def hold_ds(options, ds):
    if options["hold"] == "bf16":
        return round_bf16(ds)
    if options["hold"] == "e4m3":
        return requantized(ds.astype(np.float32).astype(np.float64), SQUARE)[0]
    return ds


def scores(options, q, k, seen):
    x = options["scale"] * (q @ k.T)
    slope = np.ones_like(x)
    if options["softcap"] > 0:
        t = np.tanh(x / options["softcap"])
        x, slope = options["softcap"] * t, 1 - t * t
    return np.where(seen, x, -np.inf), slope


def forward(options, q, k, v, centre, sink, seen):
    """O, LSE of one head; v without its centre."""
    x, _ = scores(options, q, k, seen)
    y = x * LOG2E
    s = sink * LOG2E if sink is not None else -np.inf
    top = np.maximum(y.max(axis=1, initial=-np.inf), s)
    if options["hold"] != "exact":
        top = np.ceil(top)
    some = seen.any(axis=1)
    top = np.where(np.isfinite(top), top, 0)
    p = np.where(seen, np.exp2(y - top[:, None]), 0)
    total = p.sum(axis=1) + np.exp2(s - top)
    lse = (top + np.log2(total)) / LOG2E
    total = np.where(some, total, 1)
    o = (hold_p(options, p) @ v + p.sum(axis=1)[:, None] * centre) / total[:, None]
    o[~some] = 0
    lse[~some] = sink if sink is not None else -np.inf
    return o, lse


def reduce_dq(options, ds, k, bound):
    if not options["fp16"]:
        return ds @ k
    e = 0
    if 0 < bound < np.inf:
        e = int(np.floor(np.log2(65504 / bound))) - 1
        while bound * 2.0**(e + 1) > 65504:
            e -= 1
    total = np.zeros((ds.shape[0], k.shape[1]), np.float16)
    for j in range(0, k.shape[0], 128):
        part = np.ldexp(ds[:, j:j + 128] @ k[j:j + 128], e).astype(np.float16)
        total = (total.astype(np.float64) + part.astype(np.float64)).astype(np.float16)
    return np.ldexp(total.astype(np.float64), -e)


def backward(options, q, k, v, q_seq, k_seq, dout, dlse, o, lse, sink, seen):
    """dQ, dK, dV, dsink of one head; v with its centre."""
    x, slope = scores(options, q, k, seen)
    p = np.where(seen, np.exp2((x - lse[:, None]) * LOG2E), 0)
    delta = np.where(seen.any(axis=1), (dout * o).sum(axis=1), 0) - dlse
    ds = hold_ds(options, np.where(seen, p * (dout @ v.T - delta[:, None]) * slope, 0))
    dv = hold_p(options, p).T @ dout
    norm = np.sqrt((v * v).sum(axis=1)).max(initial=0)
    bound = (2 * np.sqrt((dout * dout).sum(axis=1)) * norm + np.abs(dlse)).max(initial=0)
    bound *= np.abs(k_seq).max(initial=0)
    dq = options["scale"] * reduce_dq(options, ds, k_seq, bound)
    dk = options["scale"] * (ds.T @ q_seq)
    dsink = -(np.exp(sink - lse) * delta).sum() if sink is not None else 0
    return dq, dk, dv, dsink


# --- random problems ----------------------------------------------------------------------------


def random_problem(seed):
    pick = random.Random(seed)
    kv_heads = pick.randint(1, 2)
    options = {
        "batch": pick.randint(1, 3), "kv_heads": kv_heads, "heads": kv_heads * pick.randint(1, 3),
        "dim": 8 * pick.randint(1, 9), "dim_v": 8 * pick.randint(1, 9), "causal": pick.randint(0, 1),
        "alignment": pick.randint(0, 1), "window": (-1, -1), "softcap": pick.choice([0, 0, 2.5]),
        "sink": pick.randint(0, 1), "jagged": pick.randint(0, 1), "used": pick.randint(0, 1),
        "longest": pick.choice([5, 40, 70, 300]),
    }
    options["scale"] = pick.choice([options["dim"]**-0.5] * 3 + [0.0, -0.3])
    if pick.random() < 0.5:
        options["window"] = (pick.randint(-1, 50), pick.randint(-1, 50))
    batch, longest = options["batch"], options["longest"]
    for side in ("q", "k"):
        if options["jagged"]:
            lengths = [pick.randint(0, longest) for _ in range(batch)]
        else:
            lengths = [pick.randint(1, longest)] * batch
        options[f"lengths_{side}"] = lengths
        options[f"used_{side}"] = [pick.randint(0, n) for n in lengths] if options["used"] else lengths
        options[f"tail_{side}"] = pick.randint(0, 3) if options["jagged"] else 0
    return options


class Case:
    """Arrays of a problem as (tokens, heads, dim), views of them, and what NumPy says."""

    def __init__(self, library, seed, **more):
        self.library, self.options = library, dict(random_problem(seed), **more)
        o = self.options
        self.numbers = np.random.default_rng(seed)
        self.starts = {s: np.concatenate([[0], np.cumsum(o[f"lengths_{s}"])]).astype(np.int32) for s in "qk"}
        self.rows = {s: int(self.starts[s][-1]) + o[f"tail_{s}"] for s in "qk"}
        self.arrays = {
            "q": self.random("q", o["heads"], o["dim"]), "k": self.random("k", o["kv_heads"], o["dim"]),
            "v": self.random("k", o["kv_heads"], o["dim_v"]), "dout": self.random("q", o["heads"], o["dim_v"]),
            "dlse": self.numbers.standard_normal((self.rows["q"], o["heads"])).astype(np.float32),
        }
        self.sink = self.numbers.uniform(-1, 1, o["heads"]).astype(np.float32) if o["sink"] else None

    def random(self, side, heads, dim):
        x = self.numbers.standard_normal((self.rows[side], heads, dim)).astype(np.float32)
        return x + np.float32(0.5)  # a mean, so that a centre matters

    def parts(self, side):
        """Slices of the used tokens of each sequence."""
        return [slice(s, s + n) for s, n in zip(self.starts[side], self.options[f"used_{side}"])]

    def shaped(self, side, array):
        """The array as the call sees it: (B, S, ...) when dense."""
        o = self.options
        if o["jagged"]:
            return array
        return array.reshape((o["batch"], o[f"lengths_{side}"][0]) + array.shape[1:])

    def problem(self, precision, block, **tags):
        o, p = self.options, self.library.new(Problem, "attention_problem")
        p.backend, p.mode, p.format, p.precision = REF, 1, o["jagged"], precision
        p.batch, p.heads, p.kv_heads, p.head_dim, p.head_dim_v = (o["batch"], o["heads"], o["kv_heads"],
                                                                  o["dim"], o["dim_v"])
        p.max_seqlen_q, p.max_seqlen_k = max(o["lengths_q"]), max(o["lengths_k"])
        p.total_q, p.total_k = self.rows["q"], self.rows["k"]
        p.causal, p.alignment, p.softmax_scale, p.softcap = o["causal"], o["alignment"], o["scale"], o["softcap"]
        p.window[0], p.window[1], p.has_sink = *o["window"], o["sink"]
        p.intermediates = E4M3_INTERMEDIATES if o["hold"] == "e4m3" else BF16_INTERMEDIATES
        p.dq_reduce = FP16_REDUCE if o["fp16"] else FP32_REDUCE
        for name in ("q", "k", "v", "dout"):
            setattr(p, name, Tags(F32, block, 0, 0))
        for name in ("o", "dq", "dk", "dv"):
            setattr(p, name, Tags(F32, 0, 0, 0))
        for name, value in tags.items():
            setattr(p, name, value)
        return p

    def run(self, problem, tensors):
        """Outputs of the library as (tokens, heads, dim), LSE as (tokens, heads)."""
        o, library = self.options, self.library
        nan = {name: np.full_like(self.arrays[like], np.nan)
               for name, like in (("o", "dout"), ("dq", "q"), ("dk", "k"), ("dv", "v"))}
        lse = np.full(self.rows["q"] * o["heads"], np.nan, np.float32)
        shape = (o["heads"], self.rows["q"]) if o["jagged"] else (o["batch"], o["heads"], o["lengths_q"][0])
        to_rows = (1, 0) if o["jagged"] else (0, 2, 1)
        dlse = self.shaped("q", self.arrays["dlse"])
        dlse = np.ascontiguousarray(dlse.transpose(to_rows if not o["jagged"] else (1, 0)))
        views = {name: library.tensor(self.shaped("k" if name in ("dk", "dv") else "q", array))
                 for name, array in nan.items()}
        views |= {"lse": library.tensor(lse.reshape(shape)), "dlse": library.tensor(dlse)} | tensors
        dsink = np.full(o["heads"], np.nan, np.float32) if o["sink"] else None
        sequences = {"batch": o["batch"]}
        if o["jagged"]:
            sequences |= {"cu_seqlens_q": self.starts["q"], "cu_seqlens_k": self.starts["k"]}
        if o["used"]:
            used = {s: np.array(o[f"used_{s}"], np.int32) for s in "qk"}
            sequences |= {"seqused_q": used["q"], "seqused_k": used["k"]}
        library.attention(problem, views, self.sink, dsink, **sequences)
        lse = lse.reshape(shape).transpose(to_rows).reshape(self.rows["q"], o["heads"])
        return nan | {"lse": lse, "dsink": dsink}

    def expected(self, values):
        """values(name, part, head) -> (array without centre, centre) of one head of one sequence."""
        o, a = self.options, self.arrays
        out = {name: np.zeros(a[like].shape) for name, like in
               (("o", "dout"), ("dq", "q"), ("dk", "k"), ("dv", "v"))}
        out["lse"] = np.full((self.rows["q"], o["heads"]), -np.inf)
        out["dsink"] = np.zeros(o["heads"]) if o["sink"] else None
        for part_q, part_k in zip(self.parts("q"), self.parts("k")):
            for h in range(o["heads"]):
                g = h // (o["heads"] // o["kv_heads"])
                sink = float(self.sink[h]) if o["sink"] else None
                q, k, dout = (values(n, p, i)[0] for n, p, i in (("q", part_q, h), ("k", part_k, g),
                                                                 ("dout", part_q, h)))
                v, centre = values("v", part_k, g)
                v_seq, centre_seq = values("v_seq", part_k, g)
                seen = mask_of(o, len(q), len(k))
                out["o"][part_q, h], lse = forward(o, q, k, v_seq, centre_seq, sink, seen)
                out["lse"][part_q, h] = lse
                dq, dk, dv, dsink = backward(o, q, k, v + centre, values("q_seq", part_q, h)[0],
                                             values("k_seq", part_k, g)[0], dout,
                                             a["dlse"][part_q, h].astype(np.float64), out["o"][part_q, h],
                                             lse, sink, seen)
                out["dq"][part_q, h] = dq
                out["dk"][part_k, g] += dk
                out["dv"][part_k, g] += dv
                if o["sink"]:
                    out["dsink"][h] += dsink
        return out

    def wide(self, name, part, head):
        return self.arrays[name.removesuffix("_seq")][part, head].astype(np.float64), 0.0


def compare(got, want, limit):
    for name, wanted in want.items():
        if wanted is None:
            continue
        g = got[name].astype(np.float64)
        infinite = np.isinf(wanted)
        assert np.array_equal(g[infinite], wanted[infinite]), name
        g, w = np.where(infinite, 0, g), np.where(infinite, 0, wanted)
        assert np.isfinite(g).all(), name
        error, size = np.sqrt(np.square(g - w).sum()), np.sqrt(np.square(w).sum())
        floor = 1e-6 * np.sqrt(w.size)
        assert error <= limit * size + floor, f"{name}: relative RMS {error / max(size, 1e-30):.3g}"


def wide_tensors(case):
    return {name: case.library.tensor(case.shaped("q" if name in ("q", "dout") else "k", case.arrays[name]))
            for name in ("q", "k", "v", "dout")}


@pytest.mark.parametrize("seed", range(40))
def test_exact(library, seed):
    case = Case(library, seed, hold="exact", fp16=False)
    got = case.run(case.problem(F64, SQUARE), wide_tensors(case))
    compare(got, case.expected(case.wide), EXACT_RMS)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("hold", ["bf16", "e4m3"])
def test_model(library, seed, hold):
    """Wide operands quantized in the call; V centred in every third problem."""
    pick = random.Random(1000 + seed)
    block, centred = pick.choice([ROW, SQUARE]), seed % 3 == 0
    case = Case(library, seed, hold=hold, fp16=pick.random() < 0.5)
    problem = case.problem(MODEL, block)
    if centred:
        problem.v.flags = CENTRED

    def values(name, part, head):
        name = name.removesuffix("_seq")
        return requantized(case.wide(name, part, head)[0], block, centred and name == "v")

    compare(case.run(problem, wide_tensors(case)), case.expected(values), MODEL_RMS)


def quantized_tensor(case, name, side, block):
    """A tensor of E4M3 payload and linear scales, and each head's values."""
    array = case.arrays[name]
    heads, dim = array.shape[1:]
    payload = np.zeros(array.shape, np.uint8)
    values = np.zeros(array.shape)
    lengths = case.options[f"lengths_{side}"]
    blocks = np.concatenate([[0], np.cumsum([-(-n // 32) for n in lengths])])
    if block == COLUMN:
        axis, scales = SEQ, np.zeros((blocks[-1], heads, dim), np.uint8)
    else:
        axis, scales = HDIM, np.zeros((len(array), heads, -(-dim // 32)), np.uint8)
    for b, (start, length) in enumerate(zip(case.starts[side], lengths)):
        for h in range(heads):
            part = slice(start, start + length)
            codes, e = quantize(array[part, h].astype(np.float64), block)
            payload[part, h] = codes.view(np.uint8)
            values[part, h] = np.ldexp(codes.astype(np.float64), e)
            if axis == SEQ:
                scales[blocks[b]:blocks[b + 1], h] = e[::32] + 127
            else:
                scales[part, h] = e[:, ::32] + 127
    view = case.library.tensor(case.shaped(side, payload), Tags(E4M3, block, 0, 0), {axis: scales})
    return view, values, (payload, scales)


@pytest.mark.parametrize("seed", range(40, 60))
@pytest.mark.parametrize("hold", ["exact", "bf16"])
def test_column_partners(library, seed, hold):
    """Row-block q, k, v with column-block partners: each GEMM that contracts over tokens reads those.
    The partners hold other numbers than the row tensors, so that a mistaken one shows."""
    case = Case(library, seed, hold=hold, fp16=False, used=0)
    for side in "qk":
        case.options[f"used_{side}"] = case.options[f"lengths_{side}"]
    tensors, values, memory, tags = wide_tensors(case), {}, [], {}
    for name, side in (("q", "q"), ("k", "k"), ("v", "k")):
        for suffix, block in (("", ROW), ("_seq", COLUMN)):
            if suffix:
                case.arrays[name] = case.arrays[name] * np.float32(1.25)
            tensors[name + suffix], values[name + suffix], kept = quantized_tensor(case, name, side, block)
            tags[name + suffix] = Tags(E4M3, block, 0, 0)
            memory.append(kept)
    dout = case.arrays["dout"]
    case.arrays["dout"] = round_e4m3(dout).astype(np.float32)  # exact at scale 1, in any block
    tensors["dout"] = case.library.tensor(case.shaped("q", case.arrays["dout"]))
    precision = F64 if hold == "exact" else MODEL

    def look_up(name, part, head):
        if name == "dout":
            return requantized(case.wide(name, part, head)[0], SQUARE) if hold == "bf16" else case.wide(
                name, part, head)
        return values[name][part, head], np.zeros(values[name].shape[2])

    got = case.run(case.problem(precision, SQUARE, **tags), tensors)
    compare(got, case.expected(look_up), EXACT_RMS if hold == "exact" else MODEL_RMS)
