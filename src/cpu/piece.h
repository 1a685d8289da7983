/* piece.h: part of a block of 32 tokens of one head, in FP32: what the fused producers hold between
 * their arithmetic and quantization.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_PIECE_H
#define MXA_CPU_PIECE_H

#include "cpu/dequantize.h"
#include "cpu/parallel_blocks.h"
#include "cpu/quantize.h"
#include "cpu/rows.h"

/* Tokens [token, token + tokens) of a block and dims [dim, dim + dims) of a head. dim is
 * a multiple of 128, or the piece ends with the 32 dims it begins in (units of tiled scales). What
 * part of a block's tokens is quantized to has row blocks. */
typedef struct mxa_piece {
    const mxa_block_at *at;
    int64_t head;
    int64_t token, tokens;
    int64_t used; /* of these tokens */
    int64_t dim, dims;
    float *values; /* element (t, d) at t*stride + d */
    int64_t stride;
} mxa_piece;

/* Payload and scale bytes of a piece. */
void mxa_quantize_piece(const mxa_quantize_kernels *kernels, const mxa_piece *piece,
                        const mxattn_tensor *to);

/* The same where values hold BF16. stream: the payload passes by the caches, and kernels->drain
 * follows the last piece. */
void mxa_quantize_piece_bf16(const mxa_quantize_kernels *kernels, const mxa_piece *piece,
                             const mxattn_tensor *to, int stream);

/* Scale bytes of a piece. */
mxa_scale_place mxa_piece_scales(const mxattn_tensor *tensor, mxattn_axis axis,
                                 const mxa_piece *piece);

/* The tokens in use, from a wide or MXFP8 tensor. */
void mxa_load_piece(mxa_dequantize_kernel dequantize, const mxa_row_kernels *rows,
                    const mxattn_tensor *tensor, const mxa_piece *piece);

const void *mxa_element_of(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s,
                           int64_t head, int64_t d);

/* Writes 0: to one head of one token of a wide tensor; to the rows behind the last sequence of a
 * jagged batch. The tensor may be absent. */
void mxa_clear_row(const mxattn_tensor *tensor, const mxa_sequence *seq, int64_t s, int64_t head);
void mxa_clear_rows_behind(const mxattn_tensor *tensor, const mxa_batch *batch);

#endif
