"""gpu.py: the CUDA forward beside PyTorch's BF16 attention, on one GPU, in one process.

    python3 bench/gpu.py --library build/libmxattn.so [--library other.so ...] [--json FILE]

For each shape: checks rows of O against float64 of the inputs, then times, in turns,
  prepared  the attention kernel on operands that mxattn_prepare made
  mxfp8     the whole call on public MXFP8 tensors
  bf16      the whole call on BF16 tensors
  prepare   mxattn_prepare from BF16 alone
  torch     scaled_dot_product_attention in BF16, cuDNN backend
in two regimes: sustained (0.1 s of calls first, then 40) and cool (8 calls after idling; the best of
three). The card is power-capped, so the two differ. Needs PyTorch with CUDA.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import ctypes as c
import datetime
import json
import statistics
import sys
import time

CUDA, BF16, F32, E4M3, SQUARE, LINEAR = 3, 3, 1, 4, 3, 0
TOKENS, HIDDEN = 16384, 2048
LARGEST_ERROR = 0.12  # of N(0, 1) data: E4M3 holds an element to 2^-4, four of them make an O
SHAPES = [  # head_dim, seqlen, causal
    (128, 512, 0), (128, 2048, 0), (128, 4096, 0), (128, 8192, 0), (128, 16384, 0),
    (128, 2048, 1), (128, 8192, 1), (64, 2048, 0), (64, 8192, 0), (64, 8192, 1),
]


class Tags(c.Structure):
    _fields_ = [("dtype", c.c_int), ("block", c.c_int), ("rounding", c.c_int), ("flags", c.c_uint32)]


class Scales(c.Structure):
    _fields_ = [("data", c.c_void_p), ("layout", c.c_int), ("reserved", c.c_int32)]
    _fields_ += [(n, c.c_int64) for n in ("stride_head", "stride_row", "stride_k")]
    _fields_ += [("cu_scale", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("tags", Tags), ("ndim", c.c_int32), ("reserved", c.c_int32)]
    _fields_ += [("data", c.c_void_p), ("shape", c.c_int64 * 4), ("stride", c.c_int64 * 4)]
    _fields_ += [("scales", Scales * 2), ("centre", c.c_void_p)]


class Problem(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("backend", c.c_int), ("device", c.c_int32)]
    _fields_ += [(n, c.c_int) for n in ("mode", "format", "precision")]
    _fields_ += [(n, c.c_int64) for n in ("batch", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k")]
    _fields_ += [(n, c.c_int64) for n in ("heads", "kv_heads", "head_dim", "head_dim_v")]
    _fields_ += [("causal", c.c_int32), ("alignment", c.c_int), ("window", c.c_int64 * 2)]
    _fields_ += [("softmax_scale", c.c_double), ("softcap", c.c_double)]
    _fields_ += [(n, c.c_int32) for n in ("has_sink", "causal_strict", "deterministic")]
    _fields_ += [("intermediates", c.c_int), ("dq_reduce", c.c_int), ("dq_scale_log2", c.c_int32)]
    _fields_ += [(n, Tags) for n in ("q", "k", "v", "q_seq", "k_seq", "v_seq", "o", "dout", "dq", "dk", "dv")]


class Args(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)]
    _fields_ += [(n, c.POINTER(Tensor)) for n in ("q", "k", "v", "q_seq", "k_seq", "v_seq", "o", "lse")]
    _fields_ += [("sink", c.c_void_p), ("dout", c.POINTER(Tensor)), ("dlse", c.POINTER(Tensor))]
    _fields_ += [(n, c.POINTER(Tensor)) for n in ("dq", "dk", "dv")]
    _fields_ += [("dsink", c.c_void_p), ("batch", c.c_int64)]
    _fields_ += [(n, c.c_void_p) for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")]
    _fields_ += [(n, c.c_void_p) for n in ("host_cu_seqlens_q", "host_cu_seqlens_k")]
    _fields_ += [(n, c.c_void_p) for n in ("host_seqused_q", "host_seqused_k")]
    _fields_ += [(n, c.c_void_p) for n in ("prepared", "saved", "workspace")]
    _fields_ += [("workspace_bytes", c.c_size_t), ("device_status", c.c_void_p), ("stream", c.c_void_p)]


class Library:
    """The calls that the bench makes, with their statuses checked."""

    def __init__(self, path):
        self.name = path.split("=")[0] if "=" in path else "mxattn"
        self.handle = c.CDLL(path.split("=")[-1])
        self.handle.mxattn_last_error.restype = c.c_char_p

    def call(self, name, *arguments):
        if getattr(self.handle, "mxattn_" + name)(*arguments):
            sys.exit(f"mxattn_{name}: {self.handle.mxattn_last_error().decode()}")

    def made(self, kind, name):
        value = kind()
        getattr(self.handle, f"mxattn_{name}_init_sized")(c.byref(value), c.c_size_t(c.sizeof(value)))
        return value

    def view(self, dtype, memory):
        tensor, shape = Tensor(), (c.c_int64 * 4)(*memory.shape)
        self.handle.mxattn_tensor_view_sized(
            c.byref(tensor), c.c_size_t(c.sizeof(tensor)), dtype, c.c_void_p(memory.data_ptr()), memory.dim(), shape
        )
        return tensor


class Call:
    """A plan with its tensors; `operands` BF16, or (payload, scale bytes) of MXFP8."""

    def __init__(self, torch, library, shape, operands, o, lse, prepared=False):
        head_dim, seqlen, causal = shape
        self.library, self.plan, self.kept = library, c.c_void_p(), [operands, o, lse]
        problem = library.made(Problem, "attention_problem")
        problem.backend, problem.batch, problem.causal = CUDA, TOKENS // seqlen, causal
        problem.max_seqlen_q = problem.max_seqlen_k = seqlen
        problem.heads = problem.kv_heads = HIDDEN // head_dim
        problem.head_dim = head_dim
        dtype = E4M3 if isinstance(operands[0], tuple) else BF16
        problem.q.dtype = problem.k.dtype = problem.v.dtype = dtype
        problem.o.dtype = BF16
        library.call("plan_create", None, c.byref(problem), c.byref(self.plan))
        self.args = library.made(Args, "attention_args")
        for name, operand in zip("qkv", operands):
            tensor = library.view(dtype, operand[0] if dtype == E4M3 else operand)
            if dtype == E4M3:
                tensor.tags = Tags(E4M3, SQUARE, 0, 0)
                tensor.scales[0].data = operand[1].data_ptr()
                tensor.scales[0].layout = LINEAR
            self.keep(name, tensor)
        self.keep("o", library.view(BF16, o))
        self.keep("lse", library.view(F32, lse))
        bytes_needed = TOKENS * HIDDEN * 4 + (64 << 20)  # more than any plan here asks for
        self.memory = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")
        self.args.workspace, self.args.workspace_bytes = self.memory.data_ptr(), bytes_needed
        if prepared:
            self.memory_prepared = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")
            self.args.prepared = self.memory_prepared.data_ptr()
            self.prepare()

    def keep(self, name, tensor):
        self.kept.append(tensor)
        setattr(self.args, name, c.pointer(tensor))

    def prepare(self):
        self.library.call("prepare", self.plan, c.byref(self.args))

    def forward(self):
        self.library.call("attention_forward", self.plan, c.byref(self.args))

    def close(self):
        self.library.handle.mxattn_plan_destroy(self.plan)


def torch_attention(torch, shape, q, k, v):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=bool(shape[2]))

    return run


def relative_error(torch, shape, q, k, v, o):
    """Of 192 rows of the last sequence and head, against float64 of the unquantized inputs; and how
    much of the truth O holds (1 - slope is bias)."""
    rows = slice(shape[1] - 192, shape[1])
    qs, ks, vs = (t[-1, :, -1].double() for t in (q, k, v))
    x = qs[rows] @ ks.T * shape[0] ** -0.5
    if shape[2]:
        x = x.masked_fill(torch.ones_like(x).tril(shape[1] - 192) == 0, float("-inf"))
    want = torch.softmax(x, -1) @ vs
    got = o[-1, rows, -1].double()
    return ((got - want).norm() / want.norm()).item(), ((got * want).sum() / (want * want).sum()).item()


def timed(torch, run, count):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def sustained(torch, run):
    once = timed(torch, run, 2)
    timed(torch, run, max(1, int(0.1 / once)))
    return timed(torch, run, 40)


def cool(torch, run):
    best = []
    for _ in range(3):
        time.sleep(0.25)
        timed(torch, run, 2)
        best.append(timed(torch, run, 8))
    return min(best)


def measure_shape(torch, libraries, shape, with_cool):
    head_dim, seqlen, causal = shape
    size = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    torch.manual_seed(seqlen + head_dim)
    q, k, v = (torch.randn(size, device="cuda").bfloat16() for _ in range(3))
    lse = torch.empty((size[0], size[2], size[1]), device="cuda")
    scales = torch.full((*size[:3], head_dim // 32), 127, dtype=torch.uint8, device="cuda")
    public = [(t.to(torch.float8_e4m3fn), scales) for t in (q, k, v)]
    runs, errors, calls, rows = {}, {}, [], []
    for library in libraries:
        o = torch.full(size, float("nan"), device="cuda", dtype=torch.bfloat16)
        made = {
            "prepared": Call(torch, library, shape, (q, k, v), o, lse, prepared=True),
            "bf16": Call(torch, library, shape, (q, k, v), o, lse),
            "mxfp8": Call(torch, library, shape, public, o, lse),
        }
        calls += made.values()
        for name in ("prepared", "bf16", "mxfp8"):
            o.fill_(float("nan"))
            made[name].forward()
            torch.cuda.synchronize()
            error, slope = relative_error(torch, shape, q, k, v, o)
            if not error < LARGEST_ERROR or torch.isnan(o).any():
                sys.exit(f"{library.name} {name} {shape}: relative error {error}; nothing is timed")
            errors[library.name, name] = {"relative_error": error, "slope": slope}
            runs[library.name, name] = made[name].forward
        runs[library.name, "prepare"] = made["prepared"].prepare
    runs["torch", "torch"] = torch_attention(torch, shape, q, k, v)
    times = {key: [] for key in runs}
    for _ in range(2):
        for key, run in runs.items():
            times[key].append(sustained(torch, run))
    flops = 4 * TOKENS * seqlen * HIDDEN * (0.5 if causal else 1)
    for key, run in runs.items():
        row = {"library": key[0], "what": key[1], "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
        row.update(errors.get(key, {}))
        row["sustained_us"] = statistics.median(times[key]) * 1e6
        if with_cool and key[1] in ("prepared", "torch"):
            row["cool_us"] = cool(torch, run) * 1e6
        for regime in ("sustained", "cool"):
            if f"{regime}_us" in row:
                count = 3 * 3 * TOKENS * HIDDEN if key[1] == "prepare" else flops  # bytes read and written
                row[f"{regime}_tera_per_s"] = count / row[f"{regime}_us"] * 1e-6
        rows.append(row)
    for call in calls:
        call.close()
    return rows


def print_rows(rows):
    peer = next(row for row in rows if row["what"] == "torch")
    for row in rows:
        cool_text = f"{row['cool_tera_per_s']:7.0f}" if "cool_us" in row else "      -"
        ratio = f"{peer['sustained_us'] / row['sustained_us']:.2f}" if row["what"] != "prepare" else "   -"
        error = f"error {row['relative_error']:.4f} slope {row['slope']:.4f}" if "slope" in row else ""
        print(f"{row['head_dim']:4d} {row['seqlen']:6d} {'causal' if row['causal'] else 'full':6s} "
              f"{row['library']:>10s} {row['what']:9s} {row['sustained_us']:8.1f} us "
              f"{row['sustained_tera_per_s']:7.{2 if row['what'] == 'prepare' else 0}f} {cool_text}  {ratio}  {error}", flush=True)


def copy_bandwidth(torch):
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / sustained(torch, lambda: target.copy_(source)) * 1e-12


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", action="append", required=True, help="[NAME=]PATH, repeated: timed in turns")
    parser.add_argument("--json", help="where to write every number")
    parser.add_argument("--shape", action="append", help="HEAD_DIM,SEQLEN,CAUSAL; default: the table's")
    parser.add_argument("--no-cool", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("bench/gpu.py needs PyTorch with CUDA")
    libraries = [Library(path) for path in options.library]
    shapes = [tuple(map(int, s.split(","))) for s in options.shape or ()] or SHAPES
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version(), "date": datetime.date.today().isoformat(),
              "tokens": TOKENS, "hidden": HIDDEN, "copy_tb_per_s": copy_bandwidth(torch), "rows": []}
    print(f"{result['device']}, torch {result['torch']}, copy {result['copy_tb_per_s']:.2f} TB/s")
    print("   D      S mask      library what      sustained   TFLOP/s (TB/s) cool  over torch")
    for shape in shapes:
        rows = measure_shape(torch, libraries, shape, not options.no_cool)
        print_rows(rows)
        result["rows"] += rows
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
