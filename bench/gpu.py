"""gpu.py: the CUDA backend beside its peers, on one GPU, in one process.

    python3 bench/gpu.py --library build/libmxattn.so [--library other.so ...] [--only SECTION ...] [--json FILE]

Sections, each a module with measure and print_rows: ceilings (GEMM and copy), producers (gpu_producers.py), forward
(gpu_attention.py), jagged (gpu_jagged.py), forms (gpu_forms.py), backward (gpu_backward.py). Everything is verified before it is timed, and timed in turns,
in two regimes (gpu_timing.py): the card is power-capped, so sustained and cool differ. A section that fails is named at the end;
the others run. Needs PyTorch with CUDA; nvidia-cudnn-frontend adds rows.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import itertools
import json
import sys
import time

import gpu_attention
import gpu_backward
import gpu_forms
import gpu_jagged
import gpu_peers
import gpu_producers
from gpu_library import Library, named


def shapes_of(options, otherwise):
    return [tuple(map(int, shape.split(","))) for shape in options.shape or ()] or otherwise


def ceilings(torch, libraries, options):
    rows = gpu_peers.ceilings(torch, not options.no_cool)
    for row in rows:
        cool = f"{row['cool_tera_per_s']:8.2f}" if "cool_tera_per_s" in row else "       -"
        print(f"{row['what']:10s} {row['sustained_tera_per_s']:8.2f} TFLOP/s or TB/s sustained, {cool} cool", flush=True)
    return rows


def producers(torch, libraries, options):
    rows = gpu_producers.measure(torch, libraries)
    gpu_producers.print_rows(rows)
    return rows


def forward(torch, libraries, options):
    print("   D      S mask    library what             time    TFLOP/s (over the best BF16, over the best FP8)")
    rows = []
    for shape in shapes_of(options, gpu_attention.SHAPES):
        measured = gpu_attention.measure_shape(torch, libraries, shape, not options.no_cool)
        gpu_attention.print_rows(measured)
        rows += measured
    return rows


def jagged(torch, libraries, options):
    rows = []
    for library in libraries:
        measured = gpu_jagged.measure(torch, library)
        gpu_jagged.print_rows(measured)
        rows += measured
    return rows


def forms(torch, libraries, options):
    rows = []
    for library, shape in itertools.product(libraries, shapes_of(options, gpu_forms.SHAPES)):
        measured = gpu_forms.measure(torch, library, shape)
        gpu_forms.print_rows(measured)
        rows += measured
    return rows


def backward(torch, libraries, options):
    print("   D      S mask      library what           sustained TFLOP/s  cool  over torch, errors of dq dk dv")
    rows = []
    for shape in shapes_of(options, gpu_backward.SHAPES):
        measured = gpu_backward.measure_shape(torch, libraries, shape, not options.no_cool)
        gpu_backward.print_rows(measured)
        rows += measured
    return rows


SECTIONS = {"ceilings": ceilings, "producers": producers, "forward": forward, "jagged": jagged, "forms": forms,
            "backward": backward}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", action="append", required=True, help="[NAME=]PATH, repeated: timed in turns; without a name mxattn, mxattn2, ...")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="these sections; default: all")
    parser.add_argument("--json", help="where to write every number")
    parser.add_argument("--shape", action="append", help="forward, forms, backward: HEAD_DIM,SEQLEN,CAUSAL; default: the tables'")
    parser.add_argument("--no-cool", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("bench/gpu.py needs PyTorch with CUDA")
    libraries = [Library(*pair) for pair in named(options.library)]
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version(), "date": datetime.date.today().isoformat(),
              "tokens": gpu_attention.TOKENS, "hidden": gpu_attention.HIDDEN}
    print(f"{result['device']}, torch {result['torch']}, cuDNN {result['cudnn']}")
    for name in options.only or SECTIONS:
        start = time.perf_counter()
        try:
            result[name] = SECTIONS[name](torch, libraries, options)
        except (Exception, SystemExit) as error:  # the other sections are wanted too
            result.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"
            print(f"== {name} failed: {result['failed'][name]}", flush=True)
        result.setdefault("seconds", {})[name] = round(time.perf_counter() - start, 1)
        print(f"== {name}: {result['seconds'][name]} s", flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
                file.write("\n")
    if "failed" in result:
        sys.exit("bench/gpu.py: failed: " + ", ".join(result["failed"]))


if __name__ == "__main__":
    main()
