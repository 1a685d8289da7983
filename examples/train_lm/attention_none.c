/* attention_none.c: attention that gives zero, to show what the network loses without it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attention_none {
    attention base;
    attention_shape shape;
};

static void forward(attention *base, int layer, float *o, const float *qkv, const jagged *batch)
{
    const attention_shape *s = &((struct attention_none *)base)->shape;
    (void)layer;
    (void)qkv;
    memset(o, 0, (size_t)batch->tokens * (size_t)(s->heads * s->head_dim) * sizeof(float));
}

static void backward(attention *base, int layer, float *dqkv, const float *dout, const float *qkv,
                     const float *o, const jagged *batch)
{
    const attention_shape *s = &((struct attention_none *)base)->shape;
    (void)layer;
    (void)dout;
    (void)qkv;
    (void)o;
    memset(dqkv, 0, (size_t)batch->tokens * (size_t)attention_qkv_width(s) * sizeof(float));
}

static void destroy(attention *base)
{
    free(base);
}

attention *attention_none_create(const attention_shape *shape)
{
    struct attention_none *self = allocate_zero(sizeof(*self));
    self->base = (attention){.forward = forward, .backward = backward, .destroy = destroy};
    snprintf(self->base.description, sizeof(self->base.description), "none, output 0");
    self->shape = *shape;
    return &self->base;
}
