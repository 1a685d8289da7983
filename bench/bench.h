/* bench.h: the core of mxattn bench: what to time, and the rows it makes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_BENCH_H
#define MXC_BENCH_H

#include "baselines.h"
#include "ceilings.h"
#include "json.h"
#include "options.h"
#include "sizes.h"
#include "timing.h"

typedef struct mxc_bench {
    const mxattn_context *context; /* with the library's own threads */
    const mxattn_context *checker; /* for the reference */
    const mxc_options *options;
    const mxc_sizes *sizes;
    int32_t threads;
    double min_seconds;
    const mxc_baseline *baselines[MXC_BASELINES_MOST];
    int baseline_count;
    double baseline_seconds[2]
                           [MXC_BASELINES_MOST]; /* forward, backward of this shape; 0: not timed */
    int cached;                                  /* 1: the same buffers in each call */
    cJSON *rows;                                 /* JSON array that grows */
} mxc_bench;

/* One line of the table, one object of the JSON. */
typedef struct mxc_bench_row {
    const char *op;       /* "forward" */
    const char *operands; /* "e4m3", "bf16" */
    const char *block;
    const char *backend, *kernel, *isa;
    mxc_timing timing;
    double flops, bytes;            /* one of them is 0 */
    double workspace;               /* bytes; 0: not told */
    mxc_ceiling ceiling;            /* no name: none is known */
    double share;                   /* of the ceiling; 0: out of the medians */
    const double *baseline_seconds; /* of each baseline, 0: not timed; NULL: none */
    const double *baseline_ratios;  /* their time over ours; NULL: out of the medians */
    const char *against;            /* another row it took turns with; NULL: none */
    double over;                    /* its rate over that row's */
} mxc_bench_row;

/* Seconds that a ceiling of arithmetic takes of a turn: as many as a call, within bounds. WHY:
 * where others share the processor, a piece of work much shorter than its ceiling is interrupted
 * less. */
double mxc_limit_seconds(const mxc_bench *bench, double call_seconds);

/* Verifies, then times. backward: else forward. in_call: operands come in BF16 and are quantized by
 * the call; else in E4M3. */
void mxc_bench_attention(mxc_bench *bench, int backward, int in_call);

/* Forward of two benches in turns, without baselines; the second row tells its rate over the
 * first's, which `against` names. Both take rows from the first. */
void mxc_bench_pair(mxc_bench *first, mxc_bench *second, const char *against);

/* Quantization of a tensor of q's shape out of float32 or bfloat16. */
void mxc_bench_quantize(mxc_bench *bench, mxattn_dtype wide, mxattn_block block);

/* Forward and backward over lengths from 512 to 8,192, with and without a causal mask. */
void mxc_bench_lengths(mxc_bench *bench, const mxc_options *options);

/* Forward over the other shapes that docs/benchmarking.md has goals for, and of one of them on one
 * and two threads and on each instruction set. */
void mxc_bench_shapes(mxc_bench *bench, const mxc_options *options);

/* Lengths 16,384 to 65,536, without mask, baselines or quantization in the call. */
void mxc_bench_long(mxc_bench *bench, const mxc_options *options, int forward, int backward);

/* Prints how the time of an operation grows with the length, from the rows so far. */
void mxc_bench_fit(mxc_bench *bench, const char *op);

/* Prints a row and keeps it as JSON. */
void mxc_bench_report(mxc_bench *bench, const mxattn_attention_problem *problem,
                      const mxc_bench_row *row);

/* Heads the table with the machine and this shape. */
void mxc_bench_head(const mxc_bench *bench);

/* "AMD EPYC 9004", from the system. Static storage. */
const char *mxc_machine(void);

#endif
