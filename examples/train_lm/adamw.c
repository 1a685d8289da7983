/* adamw.c: the optimizer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "adamw.h"

#include <stdlib.h>

enum { SLICE = 16384 }; /* numbers a task takes */

adamw adamw_create(const parameters *w)
{
    adamw o = {.beta_mean = 0.9,
               .beta_square = 0.99,
               .epsilon = 1e-8,
               .weight_decay = 0.1,
               .max_norm = 1.0};
    o.mean = allocate_zero((size_t)w->count * sizeof(float));
    o.square = allocate_zero((size_t)w->count * sizeof(float));
    return o;
}

void adamw_destroy(adamw *o)
{
    free(o->mean);
    free(o->square);
}

struct step {
    float *weights, *mean, *square;
    const float *gradient;
    int64_t count, matrices;
    double *norm_parts;
    float beta_mean, beta_square, rate, decay, epsilon, gradient_scale, square_correction;
};

static int64_t slice_end(const struct step *s, int64_t index)
{
    int64_t last = (index + 1) * SLICE;
    return last < s->count ? last : s->count;
}

static void norm_task(void *arg, int64_t index)
{
    const struct step *s = arg;
    double sum = 0.0;
    for (int64_t i = index * SLICE; i < slice_end(s, index); i++)
        sum += (double)s->gradient[i] * (double)s->gradient[i];
    s->norm_parts[index] = sum;
}

static void step_task(void *arg, int64_t index)
{
    const struct step *s = arg;
    for (int64_t i = index * SLICE; i < slice_end(s, index); i++) {
        float g = s->gradient[i] * s->gradient_scale;
        float mean = s->mean[i] + (1.0f - s->beta_mean) * (g - s->mean[i]);
        float square = s->square[i] + (1.0f - s->beta_square) * (g * g - s->square[i]);
        float decay = i < s->matrices ? s->decay : 0.0f;
        s->mean[i] = mean;
        s->square[i] = square;
        s->weights[i] -= s->rate * mean / (sqrtf(square * s->square_correction) + s->epsilon) +
                         decay * s->weights[i];
    }
}

double adamw_step(adamw *o, pool *p, parameters *weights, const parameters *gradients,
                  double learning_rate)
{
    int64_t slices = (weights->count + SLICE - 1) / SLICE;
    struct step s = {.weights = weights->all,
                     .mean = o->mean,
                     .square = o->square,
                     .gradient = gradients->all,
                     .count = weights->count,
                     .matrices = weights->matrices};
    s.norm_parts = allocate((size_t)slices * sizeof(double));
    pool_for(p, slices, norm_task, &s);
    double sum = 0.0;
    for (int64_t i = 0; i < slices; i++)
        sum += s.norm_parts[i];
    free(s.norm_parts);
    double norm = sqrt(sum);

    o->steps++;
    double steps = (double)o->steps;
    s.beta_mean = (float)o->beta_mean;
    s.beta_square = (float)o->beta_square;
    s.epsilon = (float)o->epsilon;
    s.rate = (float)(learning_rate / (1.0 - pow(o->beta_mean, steps)));
    s.decay = (float)(learning_rate * o->weight_decay);
    s.square_correction = (float)(1.0 / (1.0 - pow(o->beta_square, steps)));
    s.gradient_scale = (float)(norm > o->max_norm ? o->max_norm / norm : 1.0);
    pool_for(p, slices, step_task, &s);
    return norm;
}

double learning_rate_at(double peak, int step, int steps)
{
    int warm = steps / 20 + 1;
    double rise = (double)(step + 1) / warm, fall = (double)(steps - step) / (steps - warm + 1);
    return peak * (rise < 1.0 ? rise : fall < 1.0 ? fall : 1.0);
}
