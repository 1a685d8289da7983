/* sizes.h: the shape that SHAPE-OPTIONS ask for, with every default resolved.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_SIZES_H
#define MXC_TOOLS_SIZES_H

#include "options.h"

typedef struct mxc_sizes {
    int64_t batch;
    int64_t seqlen_q, seqlen_k; /* the longest when jagged */
    int64_t total_q, total_k;   /* tokens of the whole batch */
    int64_t heads, kv_heads, head_dim, head_dim_v;
    int32_t *cu_seqlens; /* jagged (batch+1), queries and keys alike; NULL: dense */
} mxc_sizes;

/* Dies where options contradict each other. cu_seqlens is freed by the caller. */
void mxc_sizes_resolve(const mxc_options *options, mxc_sizes *sizes);

/* Writes the sizes into a problem. */
void mxc_sizes_problem(const mxc_sizes *sizes, mxattn_attention_problem *problem);

/* A contiguous view of a tensor of these sizes: (batch, seqlen, heads, dim), or (total, heads,
 * dim) when jagged. */
void mxc_sizes_view(const mxc_sizes *sizes, int64_t total, int64_t heads, int64_t dim,
                    mxattn_tags tags, void *data, mxattn_tensor *tensor);
/* And of LSE: (batch, heads, seqlen_q), jagged (heads, total_q). */
void mxc_sizes_view_lse(const mxc_sizes *sizes, float *data, mxattn_tensor *tensor);

/* "B2 Sq1024 Sk1024 Hq8 Hkv2 D128 causal": the shape and what is special about the problem. */
void mxc_sizes_describe(const mxc_sizes *sizes, const mxattn_attention_problem *problem, char *text,
                        size_t text_size);

/* Pairs of query and key that the mask lets through, over the batch, for one head. */
double mxc_sizes_visible_pairs(const mxc_sizes *sizes, const mxattn_attention_problem *problem);

#endif
