"""cpu_tables.py: the JSON of mxattn bench on a CPU as the tables of docs/benchmarking.md.

    python3 bench/cpu_tables.py cpu.json cpu_sweep.json                               print them
    python3 bench/cpu_tables.py cpu.json cpu_sweep.json --update docs/benchmarking.md put each between its marks there:
                                                                       <!-- cpu_tables NAME --> ... <!-- end -->
    ... --machine xeon                                                NAME is "all xeon" or "sweep xeon"

scripts/cpu_table makes both files.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json

from tables import deliver, table


def shape_text(shape):
    """B and lengths, heads, head dim, mask: what differs between the rows of a table."""
    if "rows" in shape:
        return f"{shape['rows']:,} x {shape['hidden']:,}"
    if "batch" not in shape:
        return ", ".join(f"{name} {size:,.0f}" for name, size in shape.items())
    queries, keys = shape["seqlen_q"], shape["seqlen_k"]
    lengths = f"S {keys:,}" if queries == keys else f"Sq {queries:,}, Sk {keys:,}"
    if shape["jagged"]:
        lengths = f"jagged, {shape['total_q']:,} tokens"
    batch = f"B {shape['batch']}, " if shape["batch"] > 1 else ""
    heads = f"H {shape['heads']}" + (f" on {shape['kv_heads']}" if shape["heads"] != shape["kv_heads"] else "")
    return f"{batch}{lengths}, {heads}, D {shape['head_dim']}" + (", causal" if shape["causal"] else "")


def rate_text(row):
    if "gelements" in row:
        return f"{row['gelements']:.2f} Gelem/s"
    return f"{row['gflops']:,.1f} GFLOP/s" if "gflops" in row else f"{row['gbytes']:.1f} GB/s"


def everything(rows):
    lines = []
    for row in rows:
        share = f"{100 * row['ceiling_share']:.0f}% of {row['ceiling']}" if row["ceiling_share"] else ""
        peers = ", ".join(f"{peer['name'].split()[0]} {peer['ratio']:.2f}x" for peer in row.get("baselines", []))
        if "against" in row:
            peers = f"{row['rate_over']:.3f} of the rate of {row['against']}"
        if "time_over_baseline" in row:
            peers = f"{row['time_over_baseline']:.3f} of {row['baseline']}'s time"
        lines.append([f"{row['op']} {row['operands']} {row['block']}", shape_text(row["shape"]), row["isa"], row["threads"],
                      f"{row['ms_median']:.4g} ({row['ms_min']:.4g})", rate_text(row), share, peers])
    return table(["operation", "shape", "ISA", "threads", "ms (least)", "rate", "of its ceiling", "beside"], lines)


def fit(points):
    """a, b of ms = a S^2 + b S with the least relative residuals, and those."""
    squares = [(length * length / ms, length / ms) for length, ms in points]
    xx, xy, yy = (sum(x * x for x, _ in squares), sum(x * y for x, y in squares), sum(y * y for _, y in squares))
    x, y = sum(x for x, _ in squares), sum(y for _, y in squares)
    a, b = (x * yy - y * xy) / (xx * yy - xy * xy), (y * xx - x * xy) / (xx * yy - xy * xy)
    return a, b, [ms / (a * length * length + b * length) - 1 for length, ms in points]


def sweep(rows):
    rows = [row for row in rows if row["op"] == "forward"]
    lines, text = [], []
    for row in sorted(rows, key=lambda row: (row["shape"]["causal"], row["shape"]["seqlen_q"])):
        lines.append([f"{row['shape']['seqlen_q']:,}", "causal" if row["shape"]["causal"] else "full",
                      f"{row['ms_median']:.4g} ({row['ms_min']:.4g})", f"{row['gflops']:.1f}", f"{100 * row['ceiling_share']:.0f}%",
                      f"{row['workspace_bytes'] / 2**20:.2f}"])
    for causal in (False, True):
        long = [row for row in rows if row["shape"]["causal"] == causal and row["shape"]["seqlen_q"] >= 2048]
        if len(long) >= 3:
            ceiling = sum(row["ceiling_gflops"] for row in long) / len(long)
            # A share is of one turn, whatever speed the machine had then.
            a, b, residuals = fit([(row["shape"]["seqlen_q"], row["ms_median"] * row["gflops"] / (row["ceiling_share"] * ceiling))
                                   for row in long])
            text.append(f"{'Causal' if causal else 'Full'}, from S = 2,048 on, at {ceiling:.1f} GFLOP/s of ceiling: ms = {a:.4g} S^2 + {b:.4g} S; residuals "
                        + ", ".join(f"{100 * residual:.1f}%" for residual in residuals) + ".")
    return "\n\n".join([table(["S", "mask", "ms (least)", "GFLOP/s", "of peak", "workspace, MiB"], lines), *text])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("all", help="of mxattn bench all --json")
    parser.add_argument("sweep", help="of mxattn bench forward --sweep --json")
    parser.add_argument("--update", help="a document whose marked tables are replaced")
    parser.add_argument("--machine", help="a second machine's tables, marked with its name")
    options = parser.parse_args()
    made = {}
    for name, path, make in (("all", options.all, everything), ("sweep", options.sweep, sweep)):
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
        made[f"{name} {options.machine}" if options.machine else name] = f"{rows[0]['machine']}, mxattn {rows[0]['version']}:\n\n{make(rows)}"
    deliver(made, "cpu_tables", options.update)


if __name__ == "__main__":
    main()
