/* model.h: a decoder-only transformer.
 *
 *     x = embedding[token]
 *     for each layer:  x += attention(head_norm(rope(rmsnorm(x) Wqkv^T))) Wout^T
 *                      x += squared_relu(rmsnorm(x) Wup^T) Wdown^T
 *     logits = rmsnorm(x) Whead^T
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_MODEL_H
#define TRAIN_LM_MODEL_H

#include "attention.h"
#include "data.h"
#include "layers.h"

enum { MAX_LAYERS = 16 };

typedef struct model_config {
    int vocabulary, layers, width, hidden;
    int heads, kv_heads, head_dim;
    int max_tokens, max_sequences, max_length; /* of a batch */
    int sees_all;                              /* 1: attention is not causal */
} model_config;

attention_shape model_attention_shape(const model_config *c);

/* Places of the parameters, or of their gradients, in one array. Matrices come first, gains last:
 * weight decay touches matrices only. Matrices are (outputs, inputs). */
typedef struct parameters {
    float *all;
    int64_t count, matrices;
    float *embedding; /* (vocabulary, width) */
    float *head;      /* (vocabulary, width) */
    float *final_gain;
    struct layer_parameters {
        float *qkv;  /* ((heads + 2 kv_heads) * head_dim, width) */
        float *out;  /* (width, heads * head_dim) */
        float *up;   /* (hidden, width) */
        float *down; /* (width, hidden) */
        float *attention_gain, *mlp_gain;
    } layer[MAX_LAYERS];
} parameters;

int64_t parameters_count(const model_config *c);

/* What forward keeps for backward: rows for each token of a batch. */
typedef struct activations {
    struct layer_activations {
        float *x;        /* the layer's input */
        float *norm;     /* rmsnorm(x) */
        float *rstd;     /* (tokens) */
        float *qkv;      /* q and k rotated and normalised */
        float *rstd_qk;  /* (tokens, heads + kv_heads) */
        float *o;        /* attention's output */
        float *x_middle; /* between attention and MLP */
        float *norm_middle, *rstd_middle;
        float *up, *active; /* before and after the activation function */
    } layer[MAX_LAYERS];
    float *x_last, *norm_last, *rstd_last;
    float *logits; /* after backward: their gradient */
    float *loss;   /* (tokens) */
} activations;

/* Bytes of activations that forward keeps for backward: in all, and those of tensors that go from a
 * layer that makes them to one that reads them (norm, qkv, o, norm_middle, active; not the residual
 * stream). */
typedef struct saved_bytes {
    int64_t all, crossing;
} saved_bytes;

typedef struct model {
    model_config config;
    pool *p;
    attention *attend;            /* owned; NULL with narrow */
    struct mxfp8_network *narrow; /* owned; computes all layers where it is there */
    parameters weights, gradients;
    activations act;
    float *dx, *dnorm, *dqkv, *dout, *dactive; /* gradients that live for one layer */
    rope_table rope;
    double attention_seconds; /* spent in attend->forward and ->backward so far */
} model;

/* Takes attend over, or narrow. */
model *model_create(pool *p, const model_config *config, attention *attend, uint64_t seed);
model *model_create_mxfp8(pool *p, const model_config *config, struct mxfp8_network *narrow,
                          uint64_t seed);
void model_destroy(model *m);

/* To be called when m->weights have changed. */
void model_weights_changed(model *m);

/* Fills m->act.logits. */
void model_forward(model *m, const batch *b);

/* Mean cross entropy of the batch after model_forward; with want_gradient the logits become their
 * gradient, as model_backward needs. */
double model_loss(model *m, const batch *b, int want_gradient);

/* Sets m->gradients to those of the batch's mean loss. */
void model_backward(model *m, const batch *b);

/* Of `tokens` tokens in one sequence: this model's, and those of the network in BF16: what float32
 * keeps, at two bytes an element (numbers a row stay FP32). */
saved_bytes model_saved(const model *m, int tokens);
saved_bytes model_saved_bf16(const model_config *c, int tokens);

double seconds_now(void); /* of a clock that never goes back */

#endif
