#!/usr/bin/env python3
"""make_corpus: writes the first inputs of the corpus, in the order in which the targets read bytes.

Run again when a target reads its bytes in another order; inputs that once failed are kept beside
these under names of their own.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import random

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
RANDOM = random.Random(1)


def write(target, name, data):
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(bytes(data))


def noise(count):
    return [RANDOM.randrange(256) for _ in range(count)]


def plan(backend, mode, layout, seqlen, dim, tags=None):
    """Sizes are bytes of fuzz_size: 8 times the byte."""
    return ([128, backend, 0, mode, layout, 0, 1, 10, 10, seqlen, seqlen, 1, 0, dim, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
             0, 0, 0] + (tags or [0] * 11))


def plans():
    write("plan", "dense", plan(2, 0, 0, 4, 4))
    write("plan", "training_jagged", plan(2, 1, 1, 4, 16))
    write("plan", "ref", plan(1, 1, 0, 2, 8))
    write("plan", "e5m2_row", plan(2, 1, 0, 4, 8, [0x8D, 1, 0, 0] * 3 + [0] * 8))
    write("plan", "cuda", plan(3, 0, 0, 4, 8))
    write("plan", "raw", [0] + noise(300))
    write("plan", "raw_zero", [0, 144, 1] + [0] * 200)
    write("plan", "newer", [33] + plan(2, 0, 0, 4, 4)[1:] + [8, 0])
    write("plan", "empty", [])
    write("plan", "huge", [128, 2, 0, 1, 0, 0] + [205] * 6 + [0, 4] + [0] * 25)


def side(kind, steps, used=()):
    """cu_seqlens by steps (second byte of each: 0, a usual one), then seqused when kind is odd."""
    return [kind] + [byte for step in steps for byte in (step, 0)] + [byte for u in used for byte in (0, u)]


def cu_seqlens():
    write("cu_seqlens", "cpu", [0, 3] + side(0, [5, 0, 12]) + side(0, [3, 0, 9]))
    write("cu_seqlens", "ref_used", [1, 3] + side(1, [5, 4, 12], [3, 0, 2]) + side(1, [3, 7, 9], [1, 3, 3]))
    write("cu_seqlens", "empty_batch", [0, 0, 0, 0])
    write("cu_seqlens", "first_not_zero", [0, 1, 240, 1, 0, 0, 0, 5, 0, 0, 5, 0])
    write("cu_seqlens", "decreasing", [0, 2, 0, 5, 0, 3, 250, 2, 0, 0, 0] + side(0, [5, 5]))
    write("cu_seqlens", "overflow", [0, 2, 0, 5, 255, 255, 255, 255, 127, 3, 0] + side(0, [5, 5]))
    write("cu_seqlens", "beyond_total", [0, 5] + side(0, [12] * 5) + side(0, [1] * 5))
    write("cu_seqlens", "used_too_long", [0, 2] + side(1, [1, 2], [3, 3]) + side(0, [4, 4]))


def quantize(block, flags=(0,), layouts=(0, 0), heads=1, dim=40, lengths=None, wide=0, kind=0, rounding=0,
             e4m3=1, data=()):
    """block 1 row, 2 column, 3 square; lengths: jagged; kind: of mxt_fill_f32; data: first bytes."""
    out = [wide, e4m3, block - 1, rounding, *flags, layouts[0], 0, layouts[1], 0, heads - 1, dim - 1]
    out += [1, len(lengths) - 1, 10, *lengths] if lengths else [0, 0, 10]
    return out + [0] + [0] * (len(lengths) if lengths else 1) + [kind, *data]


def quantizers():
    for block, name in ((1, "row"), (2, "column"), (3, "square")):
        write("quantize", name, quantize(block))
        write("quantize", name + "_tiled", quantize(block, layouts=(2, 2), dim=70, lengths=(26, 0, 7), kind=5))
        write("quantize", name + "_special", quantize(block, kind=6, dim=33, heads=2, wide=block - 1))
    write("quantize", "folded", quantize(3, flags=(200, 1), kind=1))
    write("quantize", "folded_token", quantize(1, flags=(200, 2), kind=2))
    write("quantize", "centred", quantize(1, flags=(200, 4), lengths=(20, 5)))
    write("quantize", "floor_e5m2", quantize(3, rounding=1, e4m3=0, kind=5))
    write("quantize", "compact", quantize(3, layouts=(1, 1)))
    write("quantize", "bits", quantize(3, dim=8, data=noise(320)))
    write("quantize", "nan_bits", quantize(1, dim=8, data=[0, 0, 0xC0, 0x7F, 0, 0, 0x80, 0x7F, 0, 0, 0x80, 0xFF]))


def npy_file(text, data=b"", version=1):
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def npy():
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"
    write("npy", "f4", npy_file(text, bytes(24)))
    write("npy", "version2", npy_file(text, bytes(24), 2))
    write("npy", "version3", npy_file(text.replace(b"<f4", b"|u1"), bytes(6), 3))
    write("npy", "scalar", npy_file(text.replace(b"(2, 3)", b"()"), bytes(4)))
    write("npy", "vector", npy_file(text.replace(b"(2, 3)", b"(3,)").replace(b"<f4", b"<i8"), bytes(24)))
    write("npy", "nothing", npy_file(text.replace(b"(2, 3)", b"(0, 99999999999)")))
    write("npy", "fortran", npy_file(text.replace(b"False", b"True"), bytes(24)))
    write("npy", "five", npy_file(text.replace(b"(2, 3)", b"(1, 1, 1, 1, 6)"), bytes(24)))
    write("npy", "huge", npy_file(text.replace(b"2, 3", b"4294967296, 4294967296")))
    write("npy", "order", npy_file(b'{"shape":(1,),"descr":"<V2","fortran_order":False}', bytes(2)))
    write("npy", "structured", npy_file(text.replace(b"'<f4'", b"[('a', '<f4')]"), bytes(24)))
    write("npy", "cut", npy_file(text)[:40])


if __name__ == "__main__":
    npy()
    plans()
    cu_seqlens()
    quantizers()
