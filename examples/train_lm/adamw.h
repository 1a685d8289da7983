/* adamw.h: the optimizer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_ADAMW_H
#define TRAIN_LM_ADAMW_H

#include "model.h"

typedef struct adamw {
    float *mean, *square; /* running means of gradient and squared gradient */
    int64_t steps;
    double beta_mean, beta_square, epsilon, weight_decay, max_norm;
} adamw;

adamw adamw_create(const parameters *w);
void adamw_destroy(adamw *o);

/* One step. The gradient is scaled down first where its norm exceeds max_norm. Returns the norm.
 * Weights are the FP32 master copy. */
double adamw_step(adamw *o, pool *p, parameters *weights, const parameters *gradients,
                  double learning_rate);

/* Linear warm-up over the first 5%, then a straight line to zero. */
double learning_rate_at(double peak, int step, int steps);

#endif
