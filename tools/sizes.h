/* sizes.h: the shape that SHAPE-OPTIONS ask for, with every default resolved.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_SIZES_H
#define MXA_TOOLS_SIZES_H

#include "options.h"

typedef struct mxa_sizes {
    int64_t batch;
    int64_t seqlen_q, seqlen_k; /* the longest when jagged */
    int64_t total_q, total_k;   /* tokens of the whole batch */
    int64_t heads, kv_heads, head_dim, head_dim_v;
    int32_t *cu_seqlens; /* jagged (batch+1), queries and keys alike; NULL: dense */
} mxa_sizes;

/* Dies where options contradict each other. cu_seqlens is freed by the caller. */
void mxa_sizes_resolve(const mxa_options *options, mxa_sizes *sizes);

/* Writes the sizes into a problem. */
void mxa_sizes_problem(const mxa_sizes *sizes, mxattn_attention_problem *problem);

/* A contiguous view of a tensor of these sizes: (batch, seqlen, heads, dim), or (total, heads,
 * dim) when jagged. */
void mxa_sizes_view(const mxa_sizes *sizes, int64_t total, int64_t heads, int64_t dim,
                    mxattn_tags tags, void *data, mxattn_tensor *tensor);
/* And of LSE: (batch, heads, seqlen_q), jagged (heads, total_q). */
void mxa_sizes_view_lse(const mxa_sizes *sizes, float *data, mxattn_tensor *tensor);

/* "B2 Sq1024 Sk1024 Hq8 Hkv2 D128 causal": the shape and what is special about the problem. */
void mxa_sizes_describe(const mxa_sizes *sizes, const mxattn_attention_problem *problem, char *text,
                        size_t text_size);

/* Pairs of query and key that the mask lets through, over the batch, for one head. */
double mxa_sizes_visible_pairs(const mxa_sizes *sizes, const mxattn_attention_problem *problem);

#endif
