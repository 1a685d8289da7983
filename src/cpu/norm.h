/* norm.h: what RMSNorm's ISA-independent half (norm.c) hands to the kernels that divide rows and
 * quantize them at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_NORM_H
#define MXA_CPU_NORM_H

#include "cpu/scale_place.h"
#include "mx/rms.h"
#include "mxattn/mxattn.h"

#include <stdint.h>

enum { MXA_NORM_PAIRED = 128 }; /* dims that paired weights are padded to a multiple of */

/* Tokens of one block, one head: row blocks or a square, not folded. */
typedef struct mxa_norm_strip {
    const void *x;
    int64_t x_stride; /* elements between tokens */
    mxattn_dtype x_dtype;
    const mxa_rms_scale *scales; /* of each token in use; prescale is 1 */
    const float *weight;         /* NULL: 1 */
    const float *paired;         /* the same, by pair_weights (rows.h); never NULL */
    int64_t ahead;               /* bytes from each line of x to one that is asked for; 0: none */
    uint8_t *payload;
    int64_t payload_stride;
    int64_t tokens, used; /* as mxa_quantize_strip has them */
    int64_t dims;         /* a multiple of 32 */
    mxattn_tags tags;
    mxa_scale_place places[2]; /* indexed by mxattn_axis */
    int stream;                /* the payload passes by the caches, and drain follows */
} mxa_norm_strip;

/* x / rms * weight, quantized. */
typedef void (*mxa_norm_kernel)(const mxa_norm_strip *strip);

mxa_norm_kernel mxa_norm_kernel_for(uint32_t isa);

void mxa_norm_strip_portable(const mxa_norm_strip *strip);
void mxa_norm_strip_avx2(const mxa_norm_strip *strip);
void mxa_norm_strip_avx512(const mxa_norm_strip *strip);

#endif
