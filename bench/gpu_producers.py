"""gpu_producers.py: rows of the GPU bench for quantize, dequantize, scatter and transform, beside a device copy.

Each row moves a known number of bytes; its share is of what a copy of as many bytes reaches in the same run. The
bytes of the last tile are compared with the CPU backend's before anything is timed.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import sys

import gpu_library
import gpu_peers
from gpu_timing import in_turns, rotated

TOKENS, HIDDEN, SETS = 16384, 2048, 4  # four sets of buffers: 400 MB, more than any cache
SCALE_TOKENS, SCALE_HIDDEN = 1 << 20, 4096

# name, wide type, head_dim, block, scale layouts by axis (None: absent), transposed
QUANTIZE = [
    ("quantize square", "bfloat16", 128, "square", ("tiled", "tiled"), False),
    ("quantize square linear", "bfloat16", 128, "square", ("linear", "linear"), False),
    ("quantize square + turned", "bfloat16", 128, "square", ("tiled", "tiled"), True),
    ("quantize row", "bfloat16", 128, "row", ("linear", None), False),
    ("quantize column", "bfloat16", 128, "column", (None, "linear"), False),
    ("quantize square d64", "bfloat16", 64, "square", ("tiled", "tiled"), False),
    ("quantize folded", "bfloat16", 128, "folded", ("compact", None), False),
    ("quantize f16", "float16", 128, "square", ("tiled", "tiled"), False),
    ("quantize f32", "float32", 128, "square", ("tiled", "tiled"), False),
]


def scale_bytes(layout, axis, tokens, heads, head_dim):
    abi = gpu_library.abi
    tags = abi.Tags(abi.E4M3, abi.SQUARE, 0, 0)
    bytes_needed = c.c_int64()
    abi.check(abi.lib.mxattn_scales_bytes(c.addressof(tags), axis, abi.LAYOUTS[layout], 1, tokens, None, heads,
                                          head_dim, c.addressof(bytes_needed)))
    return bytes_needed.value


class Quantized:
    """A payload with its scales, and the calls that write and read it."""

    def __init__(self, torch, library, row, x, device="cuda", backend=None):
        abi = gpu_library.abi
        _, wide_type, head_dim, block, layouts, turned = row
        tokens, heads = x.shape[1], x.shape[2]
        self.library, self.x, self.kept = library, x, []
        new = lambda n: torch.full((n,), 0xAA, dtype=torch.uint8, device=device)
        self.payload = new(x.numel())
        self.args = library.made("quantize_args")
        self.args.backend = abi.CUDA if backend is None else backend
        quantized = library.view(abi.E4M3, self.payload, x.shape)
        flags = abi.FOLDED if block == "folded" else 0
        quantized.tags = abi.Tags(abi.E4M3, abi.SQUARE if flags else abi.BLOCKS[block], 0, flags)
        self.scales = [None, None]
        for axis, layout in enumerate(layouts):
            if layout:
                self.scales[axis] = new(scale_bytes(layout, axis, tokens, heads, head_dim))
                quantized.scales[axis].data = self.scales[axis].data_ptr()
                quantized.scales[axis].layout = abi.LAYOUTS[layout]
        self.bytes = sum(t.numel() for t in [self.payload, *self.scales] if t is not None)
        self.wide = library.view(abi.DTYPES[wide_type], x)
        self.keep("wide", self.wide)
        self.keep("quantized", quantized)
        if turned:
            self.turned = new(x.numel())
            self.bytes += x.numel()
            self.keep("transposed", library.view(abi.E4M3, self.turned, (1, heads, head_dim, tokens)))

    def keep(self, name, tensor):
        self.kept.append(tensor)
        setattr(self.args, name, c.addressof(tensor))

    def quantize(self):
        self.library.call("quantize", None, c.byref(self.args))

    def reads(self, out):
        """The call that dequantizes into `out`."""
        abi = gpu_library.abi
        args = self.library.made("quantize_args")
        wide = self.library.view(abi.BF16, out)
        args.backend, args.quantized, args.wide = abi.CUDA, self.args.quantized, c.addressof(wide)
        self.kept += [args, wide]
        return lambda: self.library.call("dequantize", None, c.byref(args))


def verify(torch, library, row, made):
    """The last 128 tokens, all of a tile, against the CPU backend's bytes."""
    abi = gpu_library.abi
    x = made.x[:, -128:].cpu().contiguous()
    layouts = tuple("linear" if layout else None for layout in row[4])
    want = Quantized(torch, library, (*row[:4], layouts, False), x, device="cpu", backend=abi.CPU)
    want.quantize()
    made.quantize()
    torch.cuda.synchronize()
    got = made.payload.view(*made.x.shape)[:, -128:].cpu().flatten()
    if not torch.equal(got, want.payload):
        sys.exit(f"{row[0]}: the payload differs from the CPU's; nothing is timed")


def moves(torch, library, from_layout, to_layout, from_axis, to_axis):
    """A scatter or transform of one big array; its bytes."""
    abi = gpu_library.abi
    heads, head_dim = SCALE_HIDDEN // 128, 128
    counts = [scale_bytes(layout, axis, SCALE_TOKENS, heads, head_dim)
              for layout, axis in ((from_layout, from_axis), (to_layout, to_axis))]
    source = torch.randint(0, 255, (counts[0],), dtype=torch.uint8, device="cuda")
    target = torch.empty(counts[1], dtype=torch.uint8, device="cuda")
    args = library.made("scales_args")
    args.backend, args.tags = abi.CUDA, abi.Tags(abi.E4M3, abi.SQUARE, 0, 0)
    args.from_axis, args.to_axis = from_axis, to_axis
    source_scales = getattr(args, "from")
    source_scales.data, source_scales.layout = source.data_ptr(), abi.LAYOUTS[from_layout]
    args.to.data, args.to.layout = target.data_ptr(), abi.LAYOUTS[to_layout]
    args.sequences.batch, args.seqlen, args.heads, args.head_dim = 1, SCALE_TOKENS, heads, head_dim
    name = "scales_scatter" if from_axis == to_axis else "scales_transform"
    kept = (source, target, args)
    if from_layout == "tiled" and from_axis != to_axis:
        counts[0] //= 8  # of a unit's 512 bytes the 64 that memory gives for a load of 16 (ncu: 16.8 MB for 262,144 units)
    return (lambda: (kept, library.call(name, None, c.byref(args)))), sum(counts)


def measure(torch, libraries):
    """Rows: library, what, bytes, sustained_us, tb_per_s, share of a copy of as many bytes."""
    runs, bytes_of = {}, {}
    for library in libraries:
        for row in QUANTIZE:
            dtype = getattr(torch, row[1])
            shape = (1, TOKENS, HIDDEN // row[2], row[2])
            made = [Quantized(torch, library, row, torch.randn(shape, device="cuda").to(dtype)) for _ in range(SETS)]
            verify(torch, library, row, made[0])
            key = library.name, row[0]
            runs[key] = rotated([q.quantize for q in made])
            bytes_of[key] = made[0].x.numel() * made[0].x.element_size() + made[0].bytes
            if row[0] == "quantize square":
                for q in made:
                    q.quantize()
                outs = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(SETS)]
                runs[library.name, "dequantize square"] = rotated([q.reads(o) for q, o in zip(made, outs)])
                bytes_of[library.name, "dequantize square"] = bytes_of[key]
        for what, move in (
            ("scatter hdim", moves(torch, library, "linear", "tiled", 0, 0)),
            ("scatter seq", moves(torch, library, "linear", "tiled", 1, 1)),
            ("scatter compact", moves(torch, library, "compact", "tiled", 0, 0)),
            ("transform tiled", moves(torch, library, "tiled", "tiled", 0, 1)),
            ("transform linear", moves(torch, library, "linear", "tiled", 1, 0)),
        ):
            runs[library.name, what], bytes_of[library.name, what] = move
    copies = {}
    for key, count in bytes_of.items():
        half = count // 2 // 16 * 16
        runs["copy", half] = copies.setdefault(half, gpu_peers.copy(torch, 2 * half, SETS))
    times = in_turns(torch, runs)
    rows = []
    for key, count in bytes_of.items():
        us, copy_us = times[key]["sustained_us"], times["copy", count // 2 // 16 * 16]["sustained_us"]
        rows.append({"library": key[0], "what": key[1], "bytes": count, "sustained_us": us,
                     "tb_per_s": count / us * 1e-6, "copy_tb_per_s": count / copy_us * 1e-6, "share": copy_us / us})
    return rows


def print_rows(rows):
    for row in rows:
        print(f"{row['library']:>10s} {row['what']:26s} {row['sustained_us']:8.1f} us {row['tb_per_s']:5.2f} TB/s"
              f"  {100 * row['share']:4.0f}% of a copy ({row['copy_tb_per_s']:.2f})", flush=True)
