/* ref.h: what the files of the ref backend share.
 *
 * ref says what each operation means: float64 loops over one head of one sequence at a time. The
 * operands of that head are decoded once into plain arrays, so that the stages read like the
 * formulas of docs/math.md. Precision F64 rounds nothing; MODEL rounds where fast kernels round.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_REF_H
#define MXA_REF_H

#include "backend.h"

#include <stdint.h>

/* Attention (attention_forward.c, attention_backward.c) and what it costs in workspace. */
mxattn_status mxa_ref_attention_forward(const mxattn_plan *plan, const mxa_attention_call *call);
mxattn_status mxa_ref_attention_backward(const mxattn_plan *plan, const mxa_attention_call *call);
int64_t mxa_ref_forward_workspace_bytes(const mxattn_plan *plan);
int64_t mxa_ref_backward_workspace_bytes(const mxattn_plan *plan);

/* The other operations (producers.c, states_merge.c). */
mxattn_status mxa_ref_quantize(const mxattn_context *context, const mxa_quantize_call *call);
mxattn_status mxa_ref_dequantize(const mxattn_context *context, const mxa_quantize_call *call);
mxattn_status mxa_ref_quantize_workspace(const mxattn_context *context,
                                         const mxa_quantize_call *call, size_t *workspace_bytes);
mxattn_status mxa_ref_scales_rewrite(const mxattn_context *context, const mxa_scales_call *call);
mxattn_status mxa_ref_states_merge(const mxattn_context *context, const mxa_merge_call *call);

/* The fused ones (norm.c, gemm.c) and their workspace bytes. */
mxattn_status mxa_ref_rmsnorm_quantize(const mxattn_context *context, const mxa_rmsnorm_call *call);
int64_t mxa_ref_rmsnorm_workspace(const mxattn_context *context, const mxa_rmsnorm_call *call);
mxattn_status mxa_ref_rmsnorm_backward(const mxattn_context *context,
                                       const mxa_rmsnorm_backward_call *call);
int64_t mxa_ref_rmsnorm_backward_workspace(const mxattn_context *context,
                                           const mxa_rmsnorm_backward_call *call);
mxattn_status mxa_ref_gemm_quantize(const mxattn_context *context, const mxa_gemm_call *call);
int64_t mxa_ref_gemm_workspace(const mxattn_context *context, const mxa_gemm_call *call);

/* ------------------------------------------------------------------------------------------------
 * Memory: arrays handed out of the caller's workspace one after the other. With base NULL nothing
 * is handed out and `used` counts the bytes: the same code sizes a workspace and carves it.
 * --------------------------------------------------------------------------------------------- */

typedef struct mxa_ref_arena {
    char *base;
    int64_t used;
} mxa_ref_arena;

void *mxa_ref_take(mxa_ref_arena *arena, int64_t bytes);
double *mxa_ref_take_f64(mxa_ref_arena *arena, int64_t count);

/* ------------------------------------------------------------------------------------------------
 * Workers: how many heads are worked on at once. 1 unless the context brings a parallel_for.
 * Worker w takes items w, w + workers, ...: no result depends on the number.
 * --------------------------------------------------------------------------------------------- */

int64_t mxa_ref_workers(const mxattn_plan *plan, int64_t items);
void mxa_ref_parallel(const mxattn_context *context, int64_t workers, mxattn_task task, void *arg);

/* ------------------------------------------------------------------------------------------------
 * Bounds of a plan
 * --------------------------------------------------------------------------------------------- */

int64_t mxa_ref_rows_q(const mxattn_attention_problem *problem); /* tokens, all sequences */
int64_t mxa_ref_rows_k(const mxattn_attention_problem *problem);

/* Memory kept from forward to backward: O (rows, Hq, Dv), then LSE (rows, Hq), in float64. A row is
 * a token as sequences.h numbers it. */
typedef struct mxa_ref_saved {
    double *o, *lse;
} mxa_ref_saved;

int64_t mxa_ref_saved_bytes(const mxattn_attention_problem *problem);
mxa_ref_saved mxa_ref_saved_at(const mxattn_attention_problem *problem, void *saved);

/* ------------------------------------------------------------------------------------------------
 * Operands and outputs (operand.c)
 * --------------------------------------------------------------------------------------------- */

/* Bytes of the scratch that mxa_ref_load needs for `tokens` tokens of head_dim elements. */
int64_t mxa_ref_load_scratch_bytes(int64_t tokens, int64_t head_dim);

/* One head of one sequence in float64: values[s*D + d] without the centre, centre[d] (zeros when
 * there is none). tags are the plan's for this operand: a wide operand whose tags name a block is
 * quantized first, except in precision F64. */
void mxa_ref_load(const mxattn_plan *plan, const mxattn_tags *tags, const mxattn_tensor *tensor,
                  const mxa_sequence *seq, int64_t b, int64_t head, void *scratch, double *values,
                  double *centre);

/* values[s*D + d] += centre[d] */
void mxa_ref_add_centre(double *values, const double *centre, int64_t tokens, int64_t head_dim);

/* columns[d*tokens + s] = rows[s*D + d] */
void mxa_ref_transpose(const double *rows, int64_t tokens, int64_t head_dim, double *columns);

/* Where an output is assembled: the tensor itself, or, when it leaves as FP8, `wide`: FP32 of the
 * same shape, quantized by mxa_ref_output_finish. Clear writes 0 to every element. */
int64_t mxa_ref_output_bytes(const mxattn_tags *tags, int64_t rows, int64_t heads,
                             int64_t head_dim);
mxattn_tensor mxa_ref_output(const mxattn_tensor *tensor, void *wide);
void mxa_ref_output_clear(const mxattn_tensor *output);
void mxa_ref_output_row(const mxattn_tensor *output, const mxa_sequence *seq, int64_t s,
                        int64_t head, const double *row);
void mxa_ref_output_finish(const mxattn_tensor *output, const mxattn_tensor *tensor,
                           const mxa_batch *batch);

/* Row s of a head in an FP32 (B, H, S) or (1, H, T) tensor: LSE, dLSE. */
float *mxa_ref_row_value(const mxattn_tensor *rows, const mxa_sequence *seq, int64_t head,
                         int64_t s);

/* ------------------------------------------------------------------------------------------------
 * Arithmetic the two directions share (arithmetic.c)
 * --------------------------------------------------------------------------------------------- */

/* Keys [first, end) that row i sees; end == first when none. Both never decrease with i. */
typedef struct mxa_ref_range {
    int64_t first, end;
} mxa_ref_range;

mxa_ref_range mxa_ref_visible(const mxattn_attention_problem *problem, int64_t seqlen_q,
                              int64_t seqlen_k, int64_t i);

/* How P is held, and dS unless it is E4M3 (which needs its block). */
typedef enum mxa_ref_hold { MXA_REF_HOLD_EXACT, MXA_REF_HOLD_BF16, MXA_REF_HOLD_E4M3 } mxa_ref_hold;

mxa_ref_hold mxa_ref_hold_of(const mxattn_plan *plan);

/* P as the second GEMM sees it. */
double mxa_ref_round_p(mxa_ref_hold hold, double p);

/* y[j] = log2(e) * score of row q with keys [range.first, range.end), y[0] being the first;
 * k_columns is (D, seqlen_k). slope (may be NULL): derivative of the softcap at each score. */
void mxa_ref_scores(const mxattn_plan *plan, const double *q, const double *k_columns,
                    int64_t seqlen_k, mxa_ref_range range, double *y, double *slope);

/* y[i] += sum_t weights[t] * rows[t*stride + i] for i < n, t < count, added in order of t. */
void mxa_ref_weighted_sum(double *y, int64_t n, const double *weights, const double *rows,
                          int64_t stride, int64_t count);

#endif
