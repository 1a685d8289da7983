"""bench.py: what the package itself costs. Usage: python -m mxattn.bench [--wheel FILE]

Prints the time of `import mxattn` in new processes, of one call of attention on a tiny problem (the package's own time and the
library's apart) through NumPy and PyTorch where they are, and with --wheel the time to install that wheel. The least of
many short runs: other programs on the machine only add to it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from typing import Callable

IMPORT = "import time; t = time.perf_counter(); import mxattn; print((time.perf_counter() - t) * 1e3)"


def least(call: Callable, batch: int = 50, batches: int = 400) -> float:
    """Microseconds of a call: the least mean of a batch."""
    best = float("inf")
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        best = min(best, (time.perf_counter() - start) / batch)
    return best * 1e6


def import_time(processes: int = 10) -> float:
    """Milliseconds, the least of some new processes; bytecode is cached after the first."""
    run = [subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True) for _ in range(processes)]
    return min(float(done.stdout) for done in run)


def overhead(name: str, operands: tuple, *offsets) -> None:
    import mxattn
    from mxattn import _attention

    q, k, v = operands

    def call():
        return mxattn.attention(q, k, v, *offsets, causal=True)

    whole = least(call)
    real = _attention._forward
    setattr(_attention, "_forward", lambda plan, args: 0)
    try:
        package = least(call)
    finally:
        setattr(_attention, "_forward", real)
    print(f"attention({name}), plan cached: {whole:.1f} microseconds; the package's own part {package:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mxattn.bench")
    parser.add_argument("--wheel", help="a wheel to install into an empty folder")
    arguments = parser.parse_args()
    print(f"import mxattn: {import_time():.1f} ms")
    shape = (1, 1, 1, 8)
    if importlib.util.find_spec("numpy"):
        import numpy

        overhead("NumPy", tuple(numpy.ones(shape, "float32") for _ in range(3)))
    if importlib.util.find_spec("torch"):
        import mxattn.torch
        import torch

        torch.set_num_threads(1)
        cuda = torch.cuda.is_available() and mxattn.info().backends["cuda"].available
        for device in ("cpu", "cuda") if cuda else ("cpu",):
            q, k, v = (torch.ones(shape, device=device) for _ in range(3))
            overhead(f"PyTorch, {device}", (q, k, v))
            cu = torch.tensor([0, 1], dtype=torch.int32, device=device)
            q, k, v = q[0], k[0], v[0]
            overhead(f"PyTorch, {device}, cu_seqlens", (q, k, v), cu, cu, 1, 1)
            operator = least(lambda: mxattn.torch.attention(q, k, v, cu, cu, 1, 1, causal=True))
            print(f"mxattn.torch.attention({device}, cu_seqlens), through the operator: {operator:.1f} microseconds")
    if arguments.wheel:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, arguments.wheel]
            start = time.perf_counter()
            subprocess.run(command, check=True)
            print(f"pip install {arguments.wheel}: {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
