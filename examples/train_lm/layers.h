/* layers.h: the layers of the network that treat every token (row) by itself.
 *
 * Each layer is a forward and a backward function over FP32 rows. T is the number of tokens of a
 * packed batch, C the width of the network. Backward functions take the gradient of the output
 * (dy) and write the gradient of the input (dx), or add to it where the name says `add`; gradients
 * of parameters are always added to. The same bits for any number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_LAYERS_H
#define TRAIN_LM_LAYERS_H

#include "pool.h"

/* x[t] = table[token[t]]; table is (vocabulary, C). */
void embedding_forward(pool *p, float *x, const float *table, const int *token, int tokens,
                       int width);
void embedding_backward(pool *p, float *dtable, const float *dx, const int *token, int tokens,
                        int width);

/* y = x / sqrt(mean(x^2) + 1e-6) * gain. rstd (T) is kept for backward. */
void rmsnorm_forward(pool *p, float *y, float *rstd, const float *x, const float *gain, int tokens,
                     int width);
void rmsnorm_backward_add(pool *p, float *dx, float *dgain, const float *dy, const float *x,
                          const float *rstd, const float *gain, int tokens, int width);

/* y = x W^T, weight is (outputs, inputs). linear_forward_add: y += x W^T. */
void linear_forward(pool *p, float *y, const float *x, const float *weight, int tokens, int inputs,
                    int outputs);
void linear_forward_add(pool *p, float *y, const float *x, const float *weight, int tokens,
                        int inputs, int outputs);
void linear_backward(pool *p, float *dx, float *dweight, const float *dy, const float *x,
                     const float *weight, int tokens, int inputs, int outputs);

/* Rotary embedding in place: in each of the first `heads` heads of a row, the pair (d, d + half)
 * turns by position * 500^(-d/half), half = head_dim / 2: a base for sequences of hundreds of
 * tokens. Positions count from the start of each sequence. Rows are `stride` floats apart.
 * rope_backward turns the other way. */
typedef struct rope_table {
    int positions, half;
    float *cosine, *sine; /* (positions, half) */
} rope_table;

rope_table rope_table_create(int positions, int head_dim);
void rope_table_destroy(rope_table *table);
void rope_forward(pool *p, float *x, const rope_table *table, const int *position, int tokens,
                  int stride, int heads);
void rope_backward(pool *p, float *dx, const rope_table *table, const int *position, int tokens,
                   int stride, int heads);

/* Each of the first `heads` heads of a row, in place, divided by its root mean square: q and k of
 * length sqrt(head_dim), so that scores stay within +-sqrt(head_dim) and with them the error that a
 * narrow format makes in them. It commutes with rotation. rstd is (T, heads); backward takes the
 * normalised x. */
void head_norm_forward(pool *p, float *x, float *rstd, int tokens, int stride, int heads,
                       int head_dim);
void head_norm_backward(pool *p, float *dx, const float *x, const float *rstd, int tokens,
                        int stride, int heads, int head_dim);

/* y = max(x, 0)^2, over T * width numbers. */
void squared_relu_forward(pool *p, float *y, const float *x, int tokens, int width);
void squared_relu_backward(pool *p, float *dx, const float *dy, const float *x, int tokens,
                           int width);

/* Mean over tokens of -ln softmax(logits)[target]; loss (T) receives each token's part. With
 * want_gradient the logits are replaced by the gradient of that mean. A token whose target is -1 is
 * left out. */
double cross_entropy(pool *p, float *logits, float *loss, const int *target, int tokens,
                     int vocabulary, int want_gradient);

#endif
