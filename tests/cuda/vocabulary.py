#!/usr/bin/env python3
"""vocabulary.py: assembles every function of src/cuda/dev with nvcc, each in a kernel of its own.

    tests/cuda/vocabulary.py [NVCC]

Kernels use some of them; this shows that ptxas takes all, for sm_90a and for sm_100a. On request only: `make test`
compiles the kernels. Ends with "N passed, N failed", a function and arch each.

SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = [h for h in sorted((ROOT / "src/cuda/dev").glob("*.h")) if h.name != "registers.h"]
INCLUDES = "".join(f'#include "cuda/dev/{h.name}"\n' for h in HEADERS)
# Words that start names of one arch's functions.
BLACKWELL = ("tcgen05", "tmem", "launch_control", "e8m0", "bf16x2_from_e8m0", "max3", "warp_max_abs", "f32x2", "fma_f32x2",
             "mul_f32x2", "add_f32x2", "max_f32x2", "add_exponent", "f32x8", "fma_f32x8", "exp2_approx_f32x8", "e4m3x8",
             "max_nan_f32x32")
HOPPER = ("wgmma_",)
PARAMETERS = "struct given { mxa_device_map map; unsigned long long x[64], *out; };\n"
MACROS = 'extern "C" __global__ void k_macros(void) { bulk_wait(0); bulk_wait_read(1); setmaxnreg_decrease(24); }\n'


def functions():
    """(result, name, parameters) of each, macros expanded."""
    command = ["cc", "-E", "-P", "-D__CUDACC__", "-Isrc", "-Iinclude", "-x", "c", "-"]
    text = subprocess.run(command, cwd=ROOT, input=INCLUDES, text=True, capture_output=True, check=True).stdout
    return re.findall(r"static __device__ __forceinline__\s+([\w\s*]+?)\b(\w+)\(([^)]*)\)", text)


def kernel(result, name, parameters):
    """A kernel that calls the function with arguments that no compiler knows, and keeps what it gives."""
    lines, arguments, arrays = [], [], []
    given = [] if parameters.strip() in ("", "void") else [p.strip() for p in parameters.split(",")]
    for i, (kind, word) in enumerate(re.match(r"(.*?)\s*(\w+)$", p).groups() for p in given):
        base = kind.replace("const", "").replace("*", "").strip()
        if base == "mxa_device_map":
            arguments.append("&p.map")
        elif "*" in kind:
            lines.append(f"{base} a{i}[128]; for (int k = 0; k < 128; k++) a{i}[k] = ({base})p.x[k % 60 + {i}];")
            arguments.append(f"a{i}")
            arrays.append(f"a{i}")
        elif base == "mxa_f32x8":
            lines.append(f"uint32_t a{i}[8]; for (int k = 0; k < 8; k++) a{i}[k] = (uint32_t)p.x[k + {i}];")
            arguments.append(f"f32x8_bits(a{i})")
        elif base == "mxa_u32x4":
            arguments.append("mxa_u32x4{1, 2, 3, (uint32_t)p.x[3]}")
        else:
            arguments.append("128" if word == "count" else f"({kind})p.x[{i}]")
    call = f"{name}({', '.join(arguments)})"
    if result.strip() == "void":
        lines.append(f"{call};")
    elif result.strip() == "mxa_f32x8":
        lines.append(f"mxa_f32x8 y = {call}; for (int k = 0; k < 4; k++) s += y.pair[k];")
    else:
        lines.append(f"s += {call}.x;" if result.startswith("mxa_u32x") else f"s += (unsigned long long){call};")
    lines += [f"for (int k = 0; k < 128; k++) s += (unsigned long long){a}[k];" for a in arrays]
    return (f'extern "C" __global__ void k_{name}(const __grid_constant__ given p)\n'
            f"{{ unsigned long long s = 0; {' '.join(lines)} *p.out = s; }}\n")


def main():
    nvcc = sys.argv[1] if len(sys.argv) > 1 else "nvcc"
    failed = passed = 0
    for arch, others in (("90a", BLACKWELL), ("100a", HOPPER)):
        chosen = [f for f in functions() if not f[1].startswith(others)]
        includes = INCLUDES if arch == "90a" else INCLUDES.replace('#include "cuda/dev/wgmma.h"\n', "")
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "vocabulary.cu"
            source.write_text(includes + PARAMETERS + MACROS + "".join(kernel(*f) for f in chosen))
            run = subprocess.run([nvcc, "-cubin", f"-arch=sm_{arch}", "-Isrc", "-Iinclude", "-o", f"{source}.cubin", source],
                                 cwd=ROOT, text=True, capture_output=True, check=False)
        errors = [line for line in run.stderr.splitlines() if "error" in line]
        print("\n".join(errors) or f"sm_{arch}: {len(chosen)} functions assembled")
        passed, failed = passed + (0 if run.returncode else len(chosen)), failed + (len(errors) or 1 if run.returncode else 0)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
