/* backward_case.c: see backward_case.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "backward_case.h"

#include "compare.h"
#include "mx/element.h"
#include "report.h"
#include "thresholds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRADIENTS = 4 }; /* dq, dk, dv, dsink */

void mxt_backward_options(mxt_attention *a, const mxt_backward_case *c)
{
    a->problem.causal = c->causal;
    a->problem.alignment = c->top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    a->problem.window[0] = c->left;
    a->problem.window[1] = c->right;
    a->problem.softcap = c->softcap;
    a->problem.has_sink = c->sink;
    a->problem.backend = MXATTN_BACKEND_REF;
    a->problem.precision = MXATTN_PRECISION_MODEL;
    a->problem.intermediates = MXATTN_INTERMEDIATES_E4M3;
    a->problem.dq_reduce = c->dq_reduce;
    a->problem.deterministic = c->deterministic;
    a->problem.mode = MXATTN_TRAINING;
    a->with_dlse = c->dlse;
    if (c->strict) {
        a->problem.causal_strict = 1;
        a->problem.q.block = a->problem.k.block = a->problem.v.block = MXATTN_BLOCK_ROW;
    }
}

/* Values that a 16-bit type holds exactly. */
static void round_to(float *values, int64_t count, mxattn_dtype dtype)
{
    for (int64_t i = 0; (dtype == MXATTN_BF16 || dtype == MXATTN_F16) && i < count; i++) {
        uint16_t bits;
        mxa_store(&bits, dtype, 0, values[i]);
        values[i] = mxa_load(&bits, dtype, 0);
    }
}

void mxt_backward_make(mxt_attention *a, const mxt_backward_case *c, uint64_t seed)
{
    mxt_attention_dense(a, c->batch, c->seqlen_q, c->seqlen_k, c->heads, c->kv_heads, c->head_dim);
    mxt_backward_options(a, c);
    mxt_attention_alloc(a);
    mxt_attention_fill(a, c->kind, seed);
    for (int64_t i = 0; i < mxt_size_v(a); i++) {
        a->v[i] += c->mean;
    }
    for (int64_t i = 0; i < mxt_size_o(a); i++) {
        a->dout[i] += c->mean;
    }
    round_to(a->q, mxt_size_q(a), c->operands);
    round_to(a->k, mxt_size_k(a), c->operands);
    round_to(a->v, mxt_size_v(a), c->operands);
    round_to(a->dout, mxt_size_o(a), c->dout);
}

mxt_device_training mxt_backward_given(const mxt_backward_case *c, mxattn_backend backend)
{
    mxt_device_training given;
    memset(&given, 0, sizeof given);
    given.forward.prepared = c->prepared;
    given.forward.operands = c->operands ? c->operands : MXATTN_F32;
    given.forward.o = c->o ? c->o : MXATTN_F32;
    given.dout = c->dout ? c->dout : MXATTN_F32;
    given.gradients = c->gradients ? c->gradients : MXATTN_F32;
    given.without_saved = c->without_saved;
    given.forward.backend = backend;
    return given;
}

/* Root of the sum of squares of everything, for what is nearly nothing beside the rest. */
static double magnitude(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * x[i];
    }
    return sqrt(sum / (double)(count ? count : 1));
}

int mxt_backward_check(mxt_attention *a, const mxt_backward_case *c, mxattn_backend backend)
{
    static const char *const names[GRADIENTS] = {"dq", "dk", "dv", "dsink"};
    const int64_t counts[GRADIENTS] = {mxt_size_q(a), mxt_size_k(a), mxt_size_v(a),
                                       c->sink ? a->problem.heads : 0};
    mxt_attention exact;
    CHECK_STATUS(MXATTN_OK, mxt_attention_exact(a, &exact, 1));
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
    float *const device[GRADIENTS] = {a->dq, a->dk, a->dv, a->dsink};
    const float *const truth[GRADIENTS] = {exact.dq, exact.dk, exact.dv, exact.dsink};
    mxt_error model[GRADIENTS];
    for (int g = 0; g < GRADIENTS; g++) {
        model[g] = mxt_error_f32(device[g], truth[g], counts[g]);
    }
    const mxt_device_training given = mxt_backward_given(c, backend);
    const int ran = CHECK_STATUS(MXATTN_OK, mxt_device_backward(a, &given));
    for (int g = 0; ran && g < GRADIENTS; g++) {
        const mxt_error error = mxt_error_f32(device[g], truth[g], counts[g]);
        const double limit =
            g == 3 ? MXT_CUDA_DSINK : MXT_CUDA_FACTOR * model[g].relative_rms + MXT_CUDA_FLOOR;
        if (counts[g] == 0 || magnitude(truth[g], counts[g]) == 0) {
            continue;
        }
        (void)printf("    %s: error %.3e, the model's %.3e\n", names[g], error.relative_rms,
                     model[g].relative_rms);
        CHECK(error.relative_rms <= limit,
              "%s: relative RMS %.3e against float64, the model's is %.3e; worst at %lld", names[g],
              error.relative_rms, model[g].relative_rms, (long long)error.worst);
    }
    mxt_attention_free(&exact);
    return ran;
}
