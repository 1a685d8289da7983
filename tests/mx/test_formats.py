"""test_formats.py: src/mx against an independent implementation, NumPy and ml_dtypes.

Compares bit for bit: all codes, all rounding ties, every exponent, subnormals, NaN, infinity, every
scale, and whole quantized blocks. Everything runs twice, the second time with flush-to-zero and
denormals-are-zero set in the thread's MXCSR.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest

# NaN, overflow and underflow are inputs and results here.
np.seterr(all="ignore")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROOT = pathlib.Path(__file__).resolve().parents[2]

F32, F16, BF16, E4M3, E5M2 = 1, 2, 3, 4, 5
ROW, COLUMN, SQUARE = 1, 2, 3
RCEIL, FLOOR = 0, 1
FOLDED, FOLDED_TOKEN, CENTRED = 1, 2, 4

NUMPY = {
    F32: np.dtype(np.float32),
    F16: np.dtype(np.float16),
    BF16: np.dtype(ml_dtypes.bfloat16),
    E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
MAXIMUM = {E4M3: 448.0, E5M2: 57344.0}
FP8 = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
NARROW = pytest.mark.parametrize(
    "dtype", [F16, BF16, E4M3, E5M2], ids=["f16", "bf16", "e4m3", "e5m2"]
)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    shared = tmp_path_factory.mktemp("formats") / "formats.so"
    sources = sorted((ROOT / "src/mx").glob("*.c")) + [ROOT / "tests/mx/formats_shim.c"]
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O2", "-fPIC", "-shared"]
    command += ["-ffp-contract=off", f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
    subprocess.run([*command, "-o", shared, *sources, "-lm"], check=True)
    return ctypes.CDLL(str(shared))


class Mx:
    """Calls into src/mx, with the FP environment of the test around each call and only there."""

    def __init__(self, library, flush):
        self.library, self.flush = library, flush

    def call(self, name, *args):
        converted = []
        for arg in args:
            if isinstance(arg, np.ndarray):
                assert arg.flags.c_contiguous
                converted.append(ctypes.c_void_p(arg.ctypes.data))
            elif arg is None:
                converted.append(ctypes.c_void_p(None))
            else:
                converted.append(ctypes.c_int64(arg))
        self.library.shim_flush(self.flush)
        getattr(self.library, name)(*converted)
        self.library.shim_flush(0)

    def convert(self, values, from_dtype, to_dtype):
        out = np.empty(values.shape, NUMPY[to_dtype])
        self.call("shim_convert", values, from_dtype, out, to_dtype, values.size)
        return out


@pytest.fixture(params=[0, 1], ids=["ieee", "flush"])
def mx(library, request):
    return Mx(library, request.param)


def same_bits(got, want):
    """Equal bit for bit; of NaNs only that both are."""
    bits = BITS[got.dtype.itemsize] if got.dtype.itemsize < 8 else np.uint64
    got_bits, want_bits = got.view(bits), want.view(bits)
    nan = np.isnan(want.astype(np.float64))
    bad = np.flatnonzero(
        ~np.where(nan, np.isnan(got.astype(np.float64)), got_bits == want_bits).ravel()
    )
    assert bad.size == 0, (
        f"{bad.size} differ, first at {bad[0]}: got {got.ravel()[bad[0]]} "
        f"({got_bits.ravel()[bad[0]]:#x}), want {want.ravel()[bad[0]]} "
        f"({want_bits.ravel()[bad[0]]:#x})"
    )


def all_codes(dtype):
    size = NUMPY[dtype].itemsize
    return np.arange(1 << 8 * size, dtype=np.uint32).astype(BITS[size]).view(NUMPY[dtype])


def neighbours(values):
    """FP32 values and the ones next to them, of both signs."""
    values = np.concatenate(
        [values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(0))]
    )
    return np.concatenate([values, -values]).astype(np.float32)


def interesting(dtype):
    """Every value of dtype, every tie between two of them, with neighbours; every FP32 exponent
    with edge mantissas; specials; random bits."""
    codes = all_codes(dtype).astype(np.float64)
    finite = np.unique(np.abs(codes[np.isfinite(codes)]))
    ties = (finite[1:] + finite[:-1]) / 2
    beyond = np.array([finite[-1] + (finite[-1] - finite[-2]) * f for f in (0.5, 1, 1.5, 2, 9)])
    edges = np.concatenate([finite, ties, beyond]).astype(np.float32)
    mantissas = [0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF]
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    every = (exponents | np.array(mantissas, np.uint32)).ravel().view(np.float32)
    random = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    return np.concatenate([neighbours(edges), every, -every, random.view(np.float32)])


def saturated(values, dtype):
    """What every FP8 conversion here does before rounding: clamp, NaN kept."""
    return np.clip(values, -MAXIMUM[dtype], MAXIMUM[dtype])


@NARROW
def test_every_code_widens(mx, dtype):
    codes = all_codes(dtype)
    same_bits(mx.convert(codes, dtype, F32), codes.astype(np.float32))


@NARROW
def test_every_code_survives_a_round_trip(mx, dtype):
    codes = all_codes(dtype)
    if dtype == E5M2:  # infinities saturate
        codes = codes[~np.isinf(codes.astype(np.float32))]
    same_bits(mx.convert(mx.convert(codes, dtype, F32), F32, dtype), codes)


@NARROW
def test_narrowing_rounds_to_nearest_even(mx, dtype):
    values = interesting(dtype)
    clamped = saturated(values, dtype) if dtype in MAXIMUM else values
    want = clamped.astype(NUMPY[dtype])
    same_bits(mx.convert(values, F32, dtype), want)


@FP8
def test_saturates_and_keeps_nan_and_signs(mx, dtype):
    values = np.array([3e10, -3e10, np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    top = 0x7E if dtype == E4M3 else 0x7B
    got = mx.convert(values, F32, dtype).view(np.uint8)
    assert got.tolist() == [top, top | 0x80, top, top | 0x80, 0x7F, 0x00, 0x80]


def test_B90_b91_e4m3_table(mx):
    """B90, B91: saturation in the small, and what 0x80, 0x7F and 0xFF stand for."""
    values = np.array([448, 464, 465, 1000, -1000, 3e10], np.float32)
    got = mx.convert(values, F32, E4M3).view(np.uint8).tolist()
    assert got == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E]
    wide = mx.convert(np.array([0x80, 0x7F, 0xFF], np.uint8).view(NUMPY[E4M3]), E4M3, F32)
    assert np.signbit(wide[0]) and wide[0] == 0 and np.isnan(wide[1:]).all()


def nearest(values, dtype):
    """float64 to the nearest code, ties to the even one, by comparing with every midpoint.
    (ml_dtypes goes from float64 by way of FP32, which rounds twice.)"""
    codes = all_codes(dtype)[: 1 << 8 * NUMPY[dtype].itemsize - 1].astype(np.float64)
    finite = codes[np.isfinite(codes)]
    finite = np.append(finite, finite[-1] + (finite[-1] - finite[-2]))
    midpoints = (finite[1:] + finite[:-1]) / 2
    magnitude = np.abs(values)
    code = np.searchsorted(midpoints, magnitude)
    tie = magnitude == midpoints[np.minimum(code, midpoints.size - 1)]
    return np.copysign(finite[code + (tie & (code % 2 == 1))], values)


def test_float64_rounds_once(mx):
    rng = np.random.default_rng(2)
    values = interesting(E4M3).astype(np.float64)
    values = np.concatenate([values, values * (1 + 2.0**-40), values * (1 - 2.0**-40)])
    scattered = rng.standard_normal(50_000) * 2.0 ** rng.integers(-160, 127, 50_000)
    values = np.concatenate([values, scattered])
    e4m3 = np.empty(values.size, np.uint8)
    mx.call("shim_e4m3_from_f64", values, e4m3, values.size)
    finite = ~np.isnan(values)
    want = nearest(saturated(values[finite], E4M3), E4M3)
    same_bits(e4m3[finite].view(NUMPY[E4M3]), want.astype(NUMPY[E4M3]))
    assert ((e4m3[~finite] & 0x7F) == 0x7F).all()
    for dtype in (F32, F16):
        want = values.astype(NUMPY[dtype]).astype(np.float64)
        got = np.empty_like(values)
        mx.call("shim_round", values, got, dtype, values.size)
        same_bits(got, want)
    bf16 = np.empty_like(values)
    mx.call("shim_round", values, bf16, BF16, values.size)
    limit = 255.5 * 2.0**120  # from here on: infinity
    want = np.where(np.abs(values) < limit, nearest(np.clip(values, -limit, limit), BF16),
                    np.copysign(np.inf, values))
    same_bits(bf16, np.where(finite, want, np.nan))
    narrow = np.empty(values.size, np.float32)
    mx.call("shim_f32_from_f64", values, narrow, values.size)
    same_bits(narrow, values.astype(np.float32))


def test_f32_to_f64_is_exact(mx):
    values = interesting(BF16)
    got = np.empty(values.size, np.float64)
    mx.call("shim_f32_to_f64", values, got, values.size)
    same_bits(got, values.astype(np.float64))


def scale_exponent(amax, dtype, rounding):
    """log2 of the scale, by frexp in float64: another way than the bits of FP32."""
    fraction, exponent = np.frexp(np.asarray(amax, np.float64))
    top = 9 if dtype == E4M3 else 16  # 448 = 0.875 * 2^9, 57344 = 0.875 * 2^16
    exponent = exponent - top + (fraction > 0.875 if rounding == RCEIL else 0)
    return np.clip(np.where(np.asarray(amax) == 0, -127, exponent), -127, 127)


@FP8
@pytest.mark.parametrize("rounding", [RCEIL, FLOOR], ids=["rceil", "floor"])
def test_scale_of_every_exponent(mx, dtype, rounding):
    mantissas = np.array([0, 1, 2, 0x400000, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFE, 0x7FFFFF])
    rng = np.random.default_rng(4)
    mantissas = np.concatenate([mantissas, rng.integers(0, 1 << 23, 200)]).astype(np.uint32)
    bits = ((np.arange(255, dtype=np.uint32)[:, None] << 23) | mantissas).ravel()
    got = np.empty(bits.size, np.uint8)
    mx.call("shim_scale", bits, got, dtype, rounding, bits.size)
    want = scale_exponent(bits.view(np.float32), dtype, rounding) + 127
    np.testing.assert_array_equal(got, want)
    special = np.array([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32)
    got = np.empty(4, np.uint8)
    mx.call("shim_scale", special, got, dtype, rounding, 4)
    assert got.tolist() == [0xFE, 0xFF, 0xFF, 0xFF]


@FP8
def test_rceil_is_the_smallest_power_of_two_that_fits(mx, dtype):
    rng = np.random.default_rng(5)
    amax = np.abs(rng.standard_normal(20_000) * 2.0 ** rng.integers(-100, 100, 20_000))
    amax = amax.astype(np.float32)
    scale = np.empty(amax.size, np.uint8)
    mx.call("shim_scale", amax.view(np.uint32), scale, dtype, RCEIL, amax.size)
    power = 2.0 ** (scale.astype(np.float64) - 127)
    assert (amax <= power * MAXIMUM[dtype]).all() and (amax > power / 2 * MAXIMUM[dtype]).all()


def test_B65_scale_values(mx):
    """B65: byte 0 is 2^-127, an FP32 subnormal; 0xFF is NaN."""
    f32, f64 = np.empty(256, np.float32), np.empty(256, np.float64)
    mx.call("shim_scale_values", f32, f64)
    want = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    same_bits(f32, want.astype(np.float32))
    same_bits(f64, np.append(2.0 ** np.arange(-127, 128), np.nan))
    assert f32.view(np.uint32)[0] == 0x00400000


@FP8
def test_decode_every_code_under_every_scale(mx, dtype):
    f32, f64 = np.empty((256, 256), np.float32), np.empty((256, 256), np.float64)
    mx.call("shim_decode", f32, f64, dtype)
    scales = np.append(2.0 ** np.arange(-127, 128), np.nan)[:, None]
    want = all_codes(dtype).astype(np.float64) * scales
    same_bits(f64, want)
    same_bits(f32, want.astype(np.float32))


@FP8
@pytest.mark.parametrize("scale", [0, 1, 2, 7, 8, 9, 100, 126, 127, 128, 200, 246, 247, 253, 254])
def test_encode_under_a_scale(mx, dtype, scale):
    power = 2.0 ** (scale - 127)
    near = (interesting(dtype).astype(np.float64) * power).astype(np.float32)
    values = np.concatenate([interesting(BF16)[::7], near])
    want = saturated(values.astype(np.float64) / power, dtype).astype(NUMPY[dtype])
    got = np.empty(values.size, NUMPY[dtype])
    mx.call("shim_encode", values, scale, got, dtype, values.size)
    same_bits(got, want)


@FP8
def test_encode_under_a_nan_scale(mx, dtype):
    values = interesting(dtype)[::50].copy()
    got = np.empty(values.size, np.uint8)
    mx.call("shim_encode", values, 0xFF, got, dtype, values.size)
    assert (got == 0x7F).all()


def wide_values(rng, shape):
    """Gaussian over many binades, with whole blocks of zeros, subnormals, extremes and specials."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    tokens, _, dim = shape
    for kind in range(6):
        s, d = rng.integers(0, tokens), rng.integers(0, dim)
        at = (slice(s, s + 33), slice(None), slice(d, d + 33))
        if kind == 0:
            x[at] = 0.0
        elif kind == 1:
            x[at] *= 2.0**-140
        elif kind == 2:
            x[at] *= 2.0**120
        elif kind == 3:
            x[s, :, d] = np.inf
        elif kind == 4:
            x[s, :, d] = np.nan
        else:
            x[at] = -0.0
    return x.astype(np.float32)


def quantize_model(x, dtype, block, rounding, flags):
    """(tokens, heads, dim) FP32 -> codes, and scales spread to one byte per element."""
    x = np.asarray(x, np.float64)
    codes, scales = np.empty(x.shape, np.uint8), np.empty(x.shape, np.uint8)
    tokens, heads, dim = x.shape
    by_s = 1 if block == ROW else 32
    by_d = dim if flags & (FOLDED | FOLDED_TOKEN) else 1 if block == COLUMN else 32
    for s in range(0, tokens, by_s):
        for d in range(0, dim, by_d):
            for head in range(heads):
                at = (slice(s, s + by_s), head, slice(d, d + by_d))
                if np.isnan(x[at]).any():
                    codes[at], scales[at] = 0x7F, 0xFF
                    continue
                amax = np.abs(x[at]).max()
                exponent = 127 if np.isinf(amax) else int(scale_exponent(amax, dtype, rounding))
                ratio = saturated(x[at] / 2.0**exponent, dtype)
                codes[at] = ratio.astype(NUMPY[dtype]).view(np.uint8)
                scales[at] = exponent + 127
    return codes, scales


SHAPES = [(1, 1, 32), (31, 2, 40), (33, 1, 64), (65, 2, 72), (128, 1, 8)]
KINDS = [(ROW, 0), (COLUMN, 0), (SQUARE, 0), (SQUARE, FOLDED), (ROW, FOLDED_TOKEN)]


@FP8
@pytest.mark.parametrize("wide", [F32, F16, BF16], ids=["from_f32", "from_f16", "from_bf16"])
@pytest.mark.parametrize("block,flags", KINDS, ids=["row", "column", "square", "folded", "token"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantize_blocks(mx, dtype, wide, block, flags, shape):
    tokens, heads, dim = shape
    rng = np.random.default_rng(tokens * 1000 + dim)
    x = wide_values(rng, shape).astype(NUMPY[wide])
    for rounding in (RCEIL, FLOOR):
        payload = np.full(shape, 0xAA, np.uint8)
        hdim = np.full((tokens, heads, -(-dim // 32)), 0xAA, np.uint8)
        seq = np.full((-(-tokens // 32), heads, dim), 0xAA, np.uint8)
        arrays = (hdim if block != COLUMN else None, seq if block != ROW else None)
        mx.call("shim_quantize", x, wide, payload, *arrays, None, dtype, block, rounding, flags,
                tokens, tokens, heads, dim)
        codes, scales = quantize_model(x, dtype, block, rounding, flags)
        np.testing.assert_array_equal(payload, codes)
        if block != COLUMN:
            np.testing.assert_array_equal(hdim, scales[:, :, ::32])
        if block != ROW:
            np.testing.assert_array_equal(seq, scales[::32])


def test_centre(mx):
    rng = np.random.default_rng(7)
    tokens, used, heads, dim = 70, 41, 2, 40
    x = (rng.standard_normal((tokens, heads, dim)) + 5).astype(np.float32)
    x[0, 0, 0], x[3, 1, 7] = 2.0**-140, np.inf
    x[:, 0, 1] = rng.integers(1, 5, tokens) * np.float32(2.0**-149)
    payload, centre = np.empty(x.shape, np.uint8), np.empty((heads, dim), np.float32)
    hdim = np.empty((tokens, heads, 2), np.uint8)
    mx.call("shim_quantize", x, F32, payload, hdim, None, centre, E4M3, SQUARE, RCEIL, CENTRED,
            tokens, used, heads, dim)
    total = np.zeros((heads, dim))
    for token in x[:used].astype(np.float64):
        total += token
    mean = (total / used).astype(np.float32)
    mean[~np.isfinite(mean)] = 0
    np.testing.assert_array_equal(centre.view(np.uint32), mean.view(np.uint32))
    centred = np.where(np.arange(tokens)[:, None, None] < used, x - mean, np.float32(0))
    codes, scales = quantize_model(centred, E4M3, SQUARE, RCEIL, 0)
    codes[used:] = 0
    np.testing.assert_array_equal(payload, codes)
    np.testing.assert_array_equal(hdim, scales[:, :, ::32])
