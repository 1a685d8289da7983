/* gemm.h: what the GEMM's ISA-independent half (gemm.c) and its kernels agree on.
 *
 * Operands are decoded once: A into rows of units (or, transposed, columns), B into panels of a few
 * columns. A unit is UNIT_DEPTH elements along K (vec_portable.h). K is cut into parts, each padded
 * with zeros to a multiple of 32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_GEMM_H
#define MXA_CPU_GEMM_H

#include <stdint.h>

enum {
    MXA_GEMM_PART_MOST = 512,
    MXA_GEMM_PAD = 16, /* keeps rows of A off one another's cache sets */
    MXA_GEMM_ROWS_LEAST = 64
};

/* 32 rows of E4M3 codes, `stride` bytes apart; a scale for each 32 columns and each row, from 10 to
 * 0xF6. */
typedef struct mxa_gemm_codes {
    const uint8_t *payload;
    int64_t stride;
    uint8_t scales[MXA_GEMM_PART_MOST / 32][32];
} mxa_gemm_codes;

typedef struct mxa_gemm_kernel {
    const char *isa;
    int32_t depth;      /* elements of a unit */
    int32_t part;       /* elements of a part of K */
    int32_t rows;       /* of A at once, at most; a multiple of 32 and of tile */
    int32_t stride;     /* FP32 between rows of values: part and MXA_GEMM_PAD */
    int32_t tile;       /* rows of a tile */
    int32_t range_cost; /* of a range of columns, where decoding its rows of A costs 1 */
    int32_t panel;      /* columns of a panel of B; divides 32 */
    /* On a thread, around its products; NULL: nothing is needed. */
    void (*begin)(void);
    void (*end)(void);
    /* values: FP32 with rows `stride` apart. A part of A, `rows` rows at most; with a depth of 1
     * values are units already. */
    void (*pack_a)(const float *values, int64_t rows, int64_t k, void *units);
    /* 32 rows (of N) by k values to 32 columns of panels, `panel_bytes` apart. */
    void (*pack_b)(const float *values, int64_t k, char *units, int64_t panel_bytes);
    /* The same from k rows of `width` values each, `stride` apart (a transposed operand). width:
     * that of the struct's `rows` for A, 32 for B. */
    void (*pack_a_columns)(const float *values, int64_t stride, int64_t k, void *units);
    void (*pack_b_columns)(const float *values, int64_t stride, int64_t k, char *units,
                           int64_t panel_bytes);
    /* pack_b and pack_a of k codes in each of 32 rows. Return 0 where there is a NaN, and FP32 must
     * do. NULL: it always must. */
    int (*pack_b_codes)(const mxa_gemm_codes *from, int64_t k, char *units, int64_t panel_bytes);
    int (*pack_a_codes)(const mxa_gemm_codes *from, int64_t k, void *units);
    /* c (rows, panel) = or += a * panel, `rows` rounded up to a tile; c_row floats between rows. */
    void (*multiply)(const void *a, int a_columns, const void *panel, int64_t k, int64_t rows,
                     float *c, int64_t c_row, int keep);
} mxa_gemm_kernel;

extern const mxa_gemm_kernel mxa_gemm_portable;
extern const mxa_gemm_kernel mxa_gemm_avx2;
extern const mxa_gemm_kernel mxa_gemm_avx512;
extern const mxa_gemm_kernel mxa_gemm_avx512bf16;
extern const mxa_gemm_kernel mxa_gemm_amx;

#endif
