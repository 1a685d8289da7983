/* producers.h: the bench of what makes MXFP8: fused producers beside their parts, in turns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_PRODUCERS_H
#define MXC_PRODUCERS_H

#include "bench.h"

/* Quantizers, RMSNorm and its backward, GEMM, scales: each at shapes whose memory is beyond the
 * last-level cache (GEMM: M >= 512, K >= 1024), quantizers and RMSNorm also in the second cache of
 * one core; verified, then timed in turns with what it is compared with. */
void mxc_bench_producers(mxc_bench *bench);

/* ---- what the files of this bench share ----------------------------------------------------- */

enum { MXC_TURNS_MOST = 6 };
enum { MXC_ROWS = 32 }; /* rows come in multiples of it */

/* One of the operations that take turns. */
typedef struct mxc_turn {
    const char
        *op; /* "rmsnorm_quantize"; with "_cached" behind it where it is reported from a cache */
    const char *operands, *block;
    void (*run)(void *arg);
    void *arg;
    double flops, bytes; /* one of them is 0 */
    int against;         /* the turn it is compared with; -1: none */
    double elements;     /* quantized; 0: not told */
    double written;      /* bytes, where a fill of as many is told beside; 0: it is not */
} mxc_turn;

/* Where the memory of operations lies that take turns. */
typedef struct mxc_place {
    int64_t cache; /* bytes that stay in the second cache of a core; 0: beyond the caches */
} mxc_place;

/* Runs the operations and their ceilings one after the other, over and over, so that all see the
 * same machine, then reports each. shape: a JSON object, taken over. text: the shape for people. */
void mxc_take_turns(mxc_bench *bench, mxc_turn *turns, int count, cJSON *shape, const char *text);
/* The same in another place. */
void mxc_take_turns_at(mxc_bench *bench, const mxc_place *place, mxc_turn *turns, int count,
                       cJSON *shape, const char *text);

/* Contiguous memory and values of a wide matrix; its rows repeat after a while. */
mxattn_tensor mxc_wide_matrix(mxattn_dtype dtype, int64_t rows, int64_t columns, uint64_t seed);
/* E4M3 of a block, with linear scales (seq too where the block has them), unwritten. */
mxattn_tensor mxc_narrow_matrix(mxattn_block block, int64_t rows, int64_t columns);
void mxc_matrix_quantize(const mxc_bench *bench, const mxattn_tensor *wide,
                         const mxattn_tensor *narrow);
void mxc_matrix_free(mxattn_tensor *matrix);
int64_t mxc_matrix_bytes(const mxattn_tensor *matrix); /* payload and scales */

/* Work on matrices of BF16. */
typedef void (*mxc_placed)(mxc_bench *bench, const mxc_place *place, int64_t rows, int64_t hidden,
                           const char *where);
/* Calls it for x beyond the last-level cache, `caches` times as large, with the bench's threads;
 * then for x and MXFP8 in half the second cache, with one thread. */
void mxc_in_both_places(mxc_bench *bench, int caches, mxc_placed work);

void mxc_bench_quantizers(mxc_bench *bench);
void mxc_bench_norms(mxc_bench *bench);
void mxc_bench_gemms(mxc_bench *bench);
void mxc_bench_scales(mxc_bench *bench);

#endif
