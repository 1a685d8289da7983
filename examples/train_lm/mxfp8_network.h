/* mxfp8_network.h: the layers of the network with every activation in MXFP8, through the producers
 * of mxattn.
 *
 * What one layer keeps for backward, of (T, ...) tokens:
 *
 *     x, x_middle        BF16      the residual stream
 *     norm, norm_middle  MXFP8     written by RMSNorm
 *     qkv                MXFP8     written by the projection, q and k normalised and rotated
 *     o                  MXFP8     written by attention; and once more in BF16, for delta
 *     active             MXFP8     written by the MLP's first GEMM, activated
 *
 * and FP32 numbers a row: rstd of each norm, LSE. MXFP8 tensors are square blocks of 32 x 32 with
 * one scale byte each, so that the same bytes serve forward and both products of backward.
 * Gradients between these places are MXFP8 too. Weights stay FP32 in the optimizer; MXFP8 copies
 * are made once after each of its steps. Nothing is gathered, padded or quantized on the way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_MXFP8_NETWORK_H
#define TRAIN_LM_MXFP8_NETWORK_H

#include "model.h"

typedef struct mxfp8_network mxfp8_network;

/* backend as in attention_mxfp8_create; any variant but VARIANT_PAIRS: producers write one payload.
 */
mxfp8_network *mxfp8_network_create(pool *p, const model_config *config, const char *backend,
                                    mxfp8_variant variant);
void mxfp8_network_destroy(mxfp8_network *n);

/* Copies of the weights, after they have changed. */
void mxfp8_network_load(mxfp8_network *n, const parameters *weights);

/* logits (T, vocabulary) from the embedded tokens x (T, width). */
void mxfp8_network_forward(mxfp8_network *n, const parameters *weights, const rope_table *rope,
                           const float *x, const jagged *seqs, float *logits);

/* Adds to the gradients; dx (T, width) is written. dlogits is that of logits. */
void mxfp8_network_backward(mxfp8_network *n, const parameters *weights, parameters *gradients,
                            const rope_table *rope, const float *dlogits, const jagged *seqs,
                            float *dx);

/* What the steps so far cost beside arithmetic. */
typedef struct mxfp8_counts {
    int64_t calls;            /* of producers and of attention */
    int64_t weights;          /* quantizations of weights */
    int64_t activations;      /* quantizations of activations or gradients outside producers */
    int64_t operands;         /* MXFP8 tensors read */
    int64_t foreign;          /* those of them that no producer wrote where they were read */
    double attention_seconds; /* inside attention's calls */
} mxfp8_counts;

mxfp8_counts mxfp8_network_counts(const mxfp8_network *n);

/* What is kept for backward of `tokens` tokens in one sequence. */
saved_bytes mxfp8_network_saved(const mxfp8_network *n, int tokens);
const char *mxfp8_network_description(const mxfp8_network *n);

#endif
