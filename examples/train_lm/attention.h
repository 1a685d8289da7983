/* attention.h: self-attention, causal or not, over a jagged batch, behind one interface.
 *
 * Sequences lie one after another without padding: sequence b is rows cu_seqlens[b] to
 * cu_seqlens[b+1] - 1. A row of qkv holds heads queries, kv_heads keys and kv_heads values, each
 * head_dim long; q and k are already rotated. Query head h reads kv head h / (heads / kv_heads).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_ATTENTION_H
#define TRAIN_LM_ATTENTION_H

#include "pool.h"

typedef struct attention_shape {
    int layers; /* each has its own memory between forward and backward */
    int heads, kv_heads, head_dim;
    int max_tokens, max_sequences, max_length;
    int sees_all; /* 1: every key of the sequence, not only those up to the query */
} attention_shape;

static inline int attention_qkv_width(const attention_shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

typedef struct jagged {
    int sequences, tokens, longest;
    const int32_t *cu_seqlens; /* (sequences + 1) */
} jagged;

typedef struct attention attention;
struct attention {
    /* o (tokens, heads * head_dim) from qkv (tokens, attention_qkv_width). */
    void (*forward)(attention *self, int layer, float *o, const float *qkv, const jagged *batch);
    /* dqkv, written whole, from the gradient of o. qkv and o are those of this layer's last
     * forward. */
    void (*backward)(attention *self, int layer, float *dqkv, const float *dout, const float *qkv,
                     const float *o, const jagged *batch);
    void (*destroy)(attention *self);
    /* Bytes kept for backward beside the network's own activations; NULL: none. */
    int64_t (*saved_bytes)(const attention *self, int tokens);
    int64_t quantizations; /* so far, of activations and gradients */
    char description[256]; /* for people: which kernels run */
};

/* MXFP8 otherwise than by default, to see what that does (docs/numerics.md). */
typedef enum mxfp8_variant {
    VARIANT_NONE,
    VARIANT_FLOOR,   /* scales rounded down, as in OCP MX v1.0 */
    VARIANT_FP16_DQ, /* dQ summed in FP16, times 2^12 whatever its size */
    VARIANT_PAIRS,   /* q, k and v twice, in 1x32 and in 32x1 blocks, not once in 32x32 */
    VARIANTS
} mxfp8_variant;

attention *attention_float32_create(pool *p, const attention_shape *shape);
attention *attention_none_create(const attention_shape *shape); /* o = 0 */

/* Through mxattn. backend: as mxfp8_library_open takes it. Ends the program with the library's
 * sentence where the library refuses. */
attention *attention_mxfp8_create(pool *p, const attention_shape *shape, const char *backend,
                                  mxfp8_variant variant);

#endif
