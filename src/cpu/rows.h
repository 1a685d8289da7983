/* rows.h: arithmetic on one row of FP32: what RMSNorm and the epilogue of a GEMM are made of.
 *
 * rows_body.h, instantiated per instruction set, computes; all sets give the same bits (activations
 * apart).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ROWS_H
#define MXA_CPU_ROWS_H

#include "mx/rms.h"
#include "mxattn/mxattn.h"

#include <stdint.h>

/* Where a row of 16-bit words goes: rounded to BF16, or to odd (words_portable.h). */
typedef struct mxa_words_out {
    uint16_t *words;
    int to_bf16;
    int stream;     /* past the caches: words is a multiple of 64, and a fence follows */
    int64_t ahead;  /* every line read is asked for this many bytes further on, too */
    int ahead_half; /* those of the first half alone, at half the pace: others ask for the rest */
} mxa_words_out;

typedef struct mxa_row_kernels {
    /* `count` elements of a wide array as FP32. */
    void (*widen)(const void *x, mxattn_dtype dtype, int64_t count, float *out);
    /* FP32 to a wide array, to nearest even; accumulate: added in FP32 to what is there. */
    void (*narrow)(const float *x, int64_t count, mxattn_dtype dtype, void *out, int accumulate);
    /* Rounds to BF16 in place. */
    void (*round_bf16)(float *x, int64_t count);
    /* Sum of squares and of products a*factor * b*weight (weight may be NULL), by mx/rms.h. */
    double (*squares)(const void *x, mxattn_dtype dtype, int64_t count);
    double (*products)(const float *a, float factor, const float *b, const float *weight,
                       int64_t count);
    /* out = x / rms * weight, by mx/rms.h; weight may be NULL. */
    void (*divide)(const void *x, mxattn_dtype dtype, int64_t count, const mxa_rms_scale *scale,
                   const float *weight, float *out);
    /* The same where prescale is 1, as 16-bit words. */
    void (*divide_words)(const void *x, mxattn_dtype dtype, int64_t count,
                         const mxa_rms_scale *scale, const float *weight, const mxa_words_out *out);
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
