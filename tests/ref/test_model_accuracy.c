/* test_model_accuracy.c: what MXFP8 costs by the float64 model: its error against unquantized
 * float64 lies in the bands of the contract, neither above (wrong) nor far below (not MXFP8).
 *
 * With arguments it prints the tables of docs/numerics.md: seqlen, heads, kv_heads, head_dim.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUANTITIES = 5 };
static const char *const names[QUANTITIES] = {"O", "LSE", "dQ", "dK", "dV"};

static void run(mxt_attention *a, mxt_kind kind)
{
    mxt_attention_alloc(a);
    mxt_attention_fill(a, kind, 1);
    CHECK_STATUS(MXATTN_OK, mxt_attention_forward(a));
    CHECK_STATUS(MXATTN_OK, mxt_attention_backward(a));
}

static void errors_of(const mxt_attention *model, const mxt_attention *exact, mxt_error *errors)
{
    errors[0] = mxt_error_f32(model->o, exact->o, mxt_size_o(exact));
    errors[1] = mxt_error_f32(model->lse, exact->lse, mxt_size_lse(exact));
    errors[2] = mxt_error_f32(model->dq, exact->dq, mxt_size_q(exact));
    errors[3] = mxt_error_f32(model->dk, exact->dk, mxt_size_k(exact));
    errors[4] = mxt_error_f32(model->dv, exact->dv, mxt_size_v(exact));
}

static void check_bands(const mxt_config *config, const mxt_attention *exact)
{
    mxt_case("model against float64, S %d, causal %d, %s", (int)exact->seqlen_q,
             (int)exact->problem.causal, config->name);
    mxt_attention model;
    mxt_error errors[QUANTITIES];
    mxt_attention_dense(&model, 1, exact->seqlen_q, exact->seqlen_k, 2, 1, 128);
    model.problem.causal = exact->problem.causal;
    mxt_attention_configure(&model, config);
    run(&model, MXT_GAUSSIAN);
    errors_of(&model, exact, errors);
    const int e4m3 = config->intermediates == MXATTN_INTERMEDIATES_E4M3;
    const double most[QUANTITIES] = {e4m3 ? MXT_O_RMS_E4M3 : MXT_O_RMS_BF16, MXT_O_RMS_BF16,
                                     MXT_DQ_DK_RMS, MXT_DQ_DK_RMS, MXT_DV_RMS};
    for (int i = 0; i < QUANTITIES; i++)
        CHECK(errors[i].relative_rms <= most[i], "%s: relative RMS %.4f, limit %.4f", names[i],
              errors[i].relative_rms, most[i]);
    CHECK(errors[0].relative_rms >= MXT_O_RMS_LEAST, "O: relative RMS %.4f: this is not MXFP8",
          errors[0].relative_rms);
    CHECK(errors[0].cosine >= MXT_O_COSINE, "O: cosine %.5f", errors[0].cosine);
    CHECK(errors[2].cosine >= MXT_DQ_DK_COSINE, "dQ: cosine %.5f", errors[2].cosine);
    CHECK(errors[3].cosine >= MXT_DQ_DK_COSINE, "dK: cosine %.5f", errors[3].cosine);
    mxt_attention_free(&model);
}

/* One row of the table for each kind of data, block and configuration. */
static void print_table(int64_t seqlen, int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    static const mxt_kind kinds[] = {MXT_GAUSSIAN, MXT_OUTLIER, MXT_LONG_TAIL};
    static const mxattn_block blocks[] = {MXATTN_BLOCK_SQUARE, MXATTN_BLOCK_ROW};
    (void)printf("| data | block | intermediates | dQ reduced in | O | LSE | dQ | dK | dV |\n"
                 "|---|---|---|---|---|---|---|---|---|\n");
    for (int kind = 0; kind < 3; kind++) {
        mxt_attention exact;
        mxt_attention_dense(&exact, 1, seqlen, seqlen, heads, kv_heads, head_dim);
        run(&exact, kinds[kind]);
        for (int block = 0; block < 2; block++)
            for (int c = 1; c <= 3; c++) {
                mxt_attention model;
                mxt_error errors[QUANTITIES];
                mxt_attention_dense(&model, 1, seqlen, seqlen, heads, kv_heads, head_dim);
                mxt_attention_configure(&model, &mxt_configs[c]);
                model.problem.q.block = model.problem.k.block = model.problem.v.block =
                    model.problem.dout.block = blocks[block];
                run(&model, kinds[kind]);
                errors_of(&model, &exact, errors);
                (void)printf(
                    "| %s | %s | %s | %s |", mxt_kind_name(kinds[kind]), block ? "row" : "square",
                    model.problem.intermediates == MXATTN_INTERMEDIATES_E4M3 ? "e4m3" : "bf16",
                    model.problem.dq_reduce == MXATTN_DQ_REDUCE_FP16 ? "FP16" : "FP32");
                for (int i = 0; i < QUANTITIES; i++)
                    (void)printf(" %.2e |", errors[i].relative_rms);
                (void)printf("\n");
                mxt_attention_free(&model);
            }
        mxt_attention_free(&exact);
    }
}

/* What was tried beside one square payload, rceil and an exponent of dQ that fits. */
typedef struct variant {
    const char *name;
    mxattn_block block;
    int pairs; /* row blocks, and column blocks beside them */
    mxattn_rounding rounding;
    mxattn_dq_reduce dq_reduce;
    int32_t dq_scale_log2;
} variant;

static void set_variant(mxattn_attention_problem *problem, const variant *v)
{
    mxattn_tags *const operands[] = {&problem->q, &problem->k, &problem->v, &problem->dout};
    mxattn_tags *const partners[] = {&problem->q_seq, &problem->k_seq, &problem->v_seq};
    for (int i = 0; i < 4; i++) {
        operands[i]->block = v->block;
        operands[i]->rounding = v->rounding;
    }
    for (int i = 0; i < 3 && v->pairs; i++)
        *partners[i] = (mxattn_tags){MXATTN_F32, MXATTN_BLOCK_COLUMN, v->rounding, 0};
    problem->dq_reduce = v->dq_reduce;
    problem->dq_scale_log2 = v->dq_scale_log2;
}

static void print_variants(int64_t seqlen, int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    enum { AUTO = MXATTN_DQ_SCALE_AUTO };
    static const variant variants[] = {
        {"one square payload", MXATTN_BLOCK_SQUARE, 0, MXATTN_RCEIL, MXATTN_DQ_REDUCE_FP32, AUTO},
        {"row and column", MXATTN_BLOCK_ROW, 1, MXATTN_RCEIL, MXATTN_DQ_REDUCE_FP32, AUTO},
        {"row and column, floor", MXATTN_BLOCK_ROW, 1, MXATTN_FLOOR, MXATTN_DQ_REDUCE_FP32, AUTO},
        {"square, floor", MXATTN_BLOCK_SQUARE, 0, MXATTN_FLOOR, MXATTN_DQ_REDUCE_FP32, AUTO},
        {"square, dQ in FP16", MXATTN_BLOCK_SQUARE, 0, MXATTN_RCEIL, MXATTN_DQ_REDUCE_FP16, AUTO},
        {"square, dQ in FP16, 2^12", MXATTN_BLOCK_SQUARE, 0, MXATTN_RCEIL, MXATTN_DQ_REDUCE_FP16,
         12}};
    static const mxt_kind kinds[] = {MXT_GAUSSIAN, MXT_OUTLIER, MXT_LONG_TAIL};
    (void)printf("\n| data | operands | O | LSE | dQ | dK | dV |\n|---|---|---|---|---|---|---|\n");
    for (int kind = 0; kind < 3; kind++) {
        mxt_attention exact;
        mxt_attention_dense(&exact, 1, seqlen, seqlen, heads, kv_heads, head_dim);
        /* One column in 16 is 20 times as large in q and in k: logits of deviation 1 all the same.
         */
        const double scale = kinds[kind] == MXT_GAUSSIAN ? NAN : 0.01 / sqrt((double)head_dim);
        exact.problem.softmax_scale = scale;
        run(&exact, kinds[kind]);
        for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
            mxt_attention model;
            mxt_error errors[QUANTITIES];
            mxt_attention_dense(&model, 1, seqlen, seqlen, heads, kv_heads, head_dim);
            mxt_attention_configure(&model, &mxt_configs[1]);
            model.problem.softmax_scale = scale;
            set_variant(&model.problem, &variants[i]);
            run(&model, kinds[kind]);
            errors_of(&model, &exact, errors);
            (void)printf("| %s | %s |", mxt_kind_name(kinds[kind]), variants[i].name);
            for (int j = 0; j < QUANTITIES; j++)
                (void)printf(" %.2e |", errors[j].relative_rms);
            (void)printf("\n");
            mxt_attention_free(&model);
        }
        mxt_attention_free(&exact);
    }
}

int main(int argc, char **argv)
{
    if (argc == 5) {
        print_table(atoll(argv[1]), atoll(argv[2]), atoll(argv[3]), atoll(argv[4]));
        print_variants(atoll(argv[1]), atoll(argv[2]), atoll(argv[3]), atoll(argv[4]));
        return 0;
    }
    for (int causal = 0; causal < 2; causal++) {
        const int64_t seqlen = causal ? 512 : 1024;
        mxt_attention exact;
        mxt_case("float64");
        mxt_attention_dense(&exact, 1, seqlen, seqlen, 2, 1, 128);
        exact.problem.causal = causal;
        run(&exact, MXT_GAUSSIAN);
        for (int c = 1; c < 4; c++)
            check_bands(&mxt_configs[c], &exact);
        mxt_attention_free(&exact);
    }
    return mxt_finish();
}
