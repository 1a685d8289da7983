"""gpu_tables.py: the GPU bench's JSON as the tables of docs/benchmarking.md.

    python3 bench/gpu_tables.py gpu.json                               print them
    python3 bench/gpu_tables.py gpu.json --update docs/benchmarking.md put each between its marks there:
                                                                       <!-- gpu_tables NAME --> ... <!-- end -->

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json

from tables import deliver, table


def by_shape(rows):
    """Shape -> what -> row, in the order of the rows."""
    shapes = {}
    for row in rows:
        shapes.setdefault((row["head_dim"], row["seqlen"], row["causal"]), {})[row["what"]] = row
    return shapes.items()


def shape_cells(shape):
    return [shape[0], f"{shape[1]:,}", "causal" if shape[2] else "full"]


def rate(row, regime):
    """TFLOP/s (over the best BF16, over the best FP8)."""
    if not row or f"{regime}_us" not in row:
        return ""
    over = [row[f"{regime}_over_{kind}"] for kind in ("bf16", "fp8")]
    return f"{row[f'{regime}_tera_per_s']:,.0f} ({', '.join(f'{ratio:.2f}' if ratio else '-' for ratio in over)})"


def forward(rows):
    text = []
    for regime in ("sustained", "cool"):
        lines = []
        for shape, of in by_shape(rows):
            plain = [f"{of[peer][f'{regime}_tera_per_s']:,.0f}" if peer in of and f"{regime}_us" in of[peer] else ""
                     for peer in ("torch", "cudnn fp8")]
            errors = [f"{of[what]['relative_error']:.3f}" for what in ("bf16",)] if regime == "sustained" else []
            lines.append([*shape_cells(shape), *(rate(of.get(what), regime) for what in ("prepared", "mxfp8", "bf16")),
                          *plain, *errors])
        head = ["D", "S", "mask", "(a) prepared", "(b) from MXFP8", "(c) from BF16", "PyTorch", "cuDNN FP8"]
        text.append(f"{regime.capitalize()}:\n\n" + table(head + (["error of (c)"] if regime == "sustained" else []), lines))
    lines = [[*shape_cells(shape), *(f"{of[what]['sustained_us']:.0f} us ({100 * of[what]['copy_share']:.0f}%)"
                                     for what in ("prepare", "prepare mxfp8"))]
             for shape, of in by_shape(rows) if "prepare mxfp8" in of]
    if lines:
        text.append("`mxattn_prepare` alone, in brackets the share of a device copy of as many bytes:\n\n"
                    + table(["D", "S", "mask", "from BF16", "from MXFP8"], lines))
    return "\n\n".join(text)


def jagged(rows):
    lines = [[row["what"], f"{row['tera_per_s']:,.0f}",
              f"{100 * row['beside_dense']:.1f}% of {dense['what']}" if dense else ""]
             for row, dense in zip(rows, [rows[1], None, rows[3], None])]
    return table(["batch", "TFLOP/s", "beside"], lines)


def forms(rows):
    names = ["e4m3", "bf16", "causal_strict", "softcap"]
    lines = []
    for shape, of in by_shape(rows):
        usual = of["e4m3"]["sustained_us"]
        lines.append([shape[0], "causal" if shape[2] else "full",
                      *(f"{of[name]['sustained_tera_per_s']:,.0f} ({of[name]['sustained_us'] / usual:.2f})" if name in of else ""
                        for name in names)])
    return table(["D", "mask", "e4m3", "intermediates bf16", "causal_strict", "softcap (FP32 scores)"], lines)


def backward(rows):
    lines = []
    for shape, of in by_shape(rows):
        lines.append([*shape_cells(shape),
                      *(rate(of.get(what), "sustained") for what in ("prepared", "mxfp8", "bf16")),
                      *(f"{of[what]['sustained_tera_per_s']:,.0f} ({100 * of[what]['beside_prepared']:.1f}%)" if what in of else ""
                        for what in ("fp32", "deterministic", "jagged")),
                      *(f"{of[peer]['sustained_tera_per_s']:,.0f}" if peer in of else "" for peer in ("torch", "cudnn fp8")),
                      rate(of["prepared"], "cool"), f"{of['torch']['cool_tera_per_s']:,.0f}" if "cool_us" in of["torch"] else "",
                      " ".join(f"{error:.3f}" for error in of["prepared"]["relative_errors"])])
    return table(["D", "S", "mask", "prepared", "mxfp8", "bf16", "FP32 sums (of prepared)", "deterministic (of prepared)",
                  "jagged (of prepared)", "PyTorch", "cuDNN FP8", "cool: prepared", "PyTorch", "errors"], lines)


def producers(rows):
    lines = [[row["what"], f"{row['sustained_us']:.1f} us", f"{row['tb_per_s']:.2f}", f"{row['copy_tb_per_s']:.2f}",
              f"{100 * row['share']:.0f}%"] for row in rows]
    return table(["call", "time", "TB/s", "copy", "share"], lines)


def ceilings(rows):
    lines = [[row["what"], f"{row['sustained_tera_per_s']:,.2f}",
              f"{row['cool_tera_per_s']:,.2f}" if "cool_tera_per_s" in row else ""] for row in rows]
    return table(["ceiling", "sustained TFLOP/s or TB/s", "cool"], lines)


def summary(result):
    """Of a whole run: 8,192 tokens, sustained, and what was timed beside them."""
    lines = []
    for section in ("forward", "backward"):
        for shape, of in by_shape(result[section]):
            if shape[1] != 8192 or (shape[2] and shape[0] != 128) or "prepared" not in of:
                continue
            own = of["prepared"]["sustained_tera_per_s"]
            over = [f"{of['prepared'][f'sustained_over_{kind}']:.2f} x {name}"
                    for kind, name in (("bf16", "the best BF16"), ("fp8", "the best FP8")) if of["prepared"][f"sustained_over_{kind}"]]
            lines.append([section, f"D {shape[0]}, {'causal' if shape[2] else 'full'}", f"{own:,.0f} TFLOP/s",
                          f"{of['bf16']['sustained_tera_per_s']:,.0f}" if "bf16" in of else "", ", ".join(over)])
    uneven = result["jagged"][0]
    lines.append(["forward, jagged", f"D 128, {uneven['what']} lengths", f"{uneven['tera_per_s']:,.0f} TFLOP/s", "",
                  f"{uneven['beside_dense']:.2f} of dense"])
    for row in result["producers"]:
        if row["what"] in ("quantize square", "scatter hdim"):
            lines.append([row["what"], "", f"{row['tb_per_s']:.2f} TB/s", "", f"{row['share']:.2f} of a copy"])
    return (f"{result['device']}, {result['date']}, `scripts/gpu_check`:\n\n"
            + table(["operation", "shape", "operands prepared", "from BF16", "over the fastest known, of a copy"], lines))


TABLES = {"ceilings": ceilings, "producers": producers, "forward": forward, "jagged": jagged, "forms": forms, "backward": backward}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="+", help="of bench/gpu.py --json; a later file's sections replace an earlier one's")
    parser.add_argument("--update", help="a document whose marked tables are replaced")
    options = parser.parse_args()
    result = {}
    for path in options.json:
        with open(path, encoding="utf-8") as file:
            result.update(json.load(file))
    made = {name: make(result[name]) for name, make in TABLES.items() if result.get(name)}
    if all(result.get(section) for section in ("forward", "backward", "jagged", "producers")):
        made["summary"] = summary(result)
    deliver(made, "gpu_tables", options.update)


if __name__ == "__main__":
    main()
