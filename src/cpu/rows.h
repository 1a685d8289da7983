/* rows.h: arithmetic on one row of FP32: what RMSNorm and the epilogue of a GEMM are made of.
 *
 * rows_body.h, instantiated per instruction set, computes; all sets give the same bits (activations
 * apart).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ROWS_H
#define MXA_CPU_ROWS_H

#include "cpu/norm.h"
#include "mx/rms.h"
#include "mxattn/mxattn.h"

#include <stdint.h>

typedef struct mxa_row_kernels {
    /* `count` elements of a wide array as FP32. */
    void (*widen)(const void *x, mxattn_dtype dtype, int64_t count, float *out);
    /* FP32 to a wide array, to nearest even; accumulate: added in FP32 to what is there. */
    void (*narrow)(const float *x, int64_t count, mxattn_dtype dtype, void *out, int accumulate);
    /* Rounds to BF16 in place. */
    void (*round_bf16)(float *x, int64_t count);
    /* Sum of squares and of products a*factor * b*weight (weight may be NULL), by mx/rms.h. ahead:
     * every line of x is asked for so many bytes further on, too. */
    double (*squares)(const void *x, mxattn_dtype dtype, int64_t count, int64_t ahead);
    double (*products)(const float *a, float factor, const float *b, const float *weight,
                       int64_t count);
    /* out = x / rms * weight, by mx/rms.h; weight may be NULL. */
    void (*divide)(const void *x, mxattn_dtype dtype, int64_t count, const mxa_rms_scale *scale,
                   const float *weight, float *out);
    /* The same to BF16, where prescale is 1. paired: weights by pair_weights. Every line of x is
     * asked for `ahead` bytes further on, too. stream: past the caches; then out is a
     * multiple of 64, and a fence follows. */
    void (*divide_bf16)(const void *x, mxattn_dtype dtype, int64_t count,
                        const mxa_rms_scale *scale, const float *paired, int64_t ahead,
                        uint16_t *out, int stream);
    /* Weights (NULL: 1) in the order in which rows of 16-bit words take them; ones behind, up to a
     * multiple of MXA_NORM_PAIRED. */
    void (*pair_weights)(const float *weight, int64_t count, float *paired);
    /* With u = x*factor and g = dy*weight: dweight += dy*u (may be NULL), dy = rstd * (g - u*mean).
     */
    void (*divide_backward)(const float *x, float factor, float *dy, const float *weight,
                            float mean, float rstd, float *dweight, int64_t count);
    /* Turns one head; cosine and sine of its position. */
    void (*rotate)(float *row, const float *cosine, const float *sine, const mxattn_rope *rope);
    /* x = activation(x + bias); bias may be NULL. */
    void (*activate)(float *x, const float *bias, mxattn_activation activation, int64_t count);
    /* x = (x + bias) * the derivative, from what forward's activation gave. */
    void (*activate_backward)(float *x, const float *bias, const float *activated,
                              mxattn_activation activation, int64_t count);
} mxa_row_kernels;

extern const mxa_row_kernels mxa_row_kernels_portable;
extern const mxa_row_kernels mxa_row_kernels_avx2;
extern const mxa_row_kernels mxa_row_kernels_avx512;

const mxa_row_kernels *mxa_row_kernels_for(uint32_t isa);

/* Turns a head of the token at `position` of its sequence; nothing where there is no rotation. */
static inline void mxa_rows_rotate(const mxa_row_kernels *rows, const mxattn_rope *rope,
                                   int64_t position, float *row)
{
    const int64_t place = (rope->offset + position) * (rope->dims / 2);
    if (rope->cosine)
        rows->rotate(row, rope->cosine + place, rope->sine + place, rope);
}

#endif
