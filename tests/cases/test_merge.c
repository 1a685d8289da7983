/* test_merge.c: partial results over disjoint keys, on small inputs from public reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cases.h"
#include "device_args.h"

#include <math.h>
#include <string.h>

typedef struct state {
    float o[8], lse[1];
} state;

static state state_of(float o, float lse)
{
    state s;
    mxt_set(s.o, 8, o);
    s.lse[0] = lse;
    return s;
}

/* One row of 8; a and b may be the output. */
static void merge(const mxt_config *config, state *a, state *b, state *out)
{
    const int64_t shape_o[3] = {1, 1, 8}, shape_lse[2] = {1, 1};
    state *states[] = {a, b, out};
    mxattn_tensor o[3], lse[3];
    for (int i = 0; i < 3; i++) {
        mxattn_tensor_view(&o[i], MXATTN_F32, states[i]->o, 3, shape_o);
        mxattn_tensor_view(&lse[i], MXATTN_F32, states[i]->lse, 2, shape_lse);
    }
    mxattn_states_merge_args args;
    mxattn_states_merge_args_init(&args);
    args.backend = config->backend;
    args.o_a = &o[0];
    args.o_b = &o[1];
    args.o = &o[2];
    args.lse_a = &lse[0];
    args.lse_b = &lse[1];
    args.lse = &lse[2];
    CHECK_STATUS(MXATTN_OK, mxt_states_merge(mxt_config_context(config), &args));
}

static void check_merge(const mxt_config *config, state a, state b, double o, double lse)
{
    state out = state_of(NAN, NAN), into = a;
    merge(config, &a, &b, &out);
    mxt_expect("o", out.o, 8, o, MXT_EXACT_INPUT);
    mxt_expect_one("lse", out.lse[0], lse, MXT_EXACT_INPUT);
    merge(config, &into, &b, &into);
    mxt_check_bytes("merged in place", into.o, out.o, sizeof(float), mxt_shape1(8));
    state swapped = state_of(NAN, NAN);
    merge(config, &b, &a, &swapped);
    mxt_check_bytes("swapped", swapped.o, out.o, sizeof(float), mxt_shape1(8));
}

static void empty_sides(const mxt_config *config)
{
    check_merge(config, state_of(0, -INFINITY), state_of(5, 1), 5, 1);
    check_merge(config, state_of(0, -INFINITY), state_of(0, -INFINITY), 0, -INFINITY);
    /* A side that saw nothing is not read. */
    check_merge(config, state_of(NAN, -INFINITY), state_of(5, 1), 5, 1);
}

static void far_apart(const mxt_config *config)
{
    check_merge(config, state_of(7, -200), state_of(3, 200), 3, 200);
    check_merge(config, state_of(7, 1e30F), state_of(3, -1e30F), 7, 1e30);
    check_merge(config, state_of(1, 2), state_of(3, 2), 2, 2 + log(2));
    check_merge(config, state_of(1, 0), state_of(5, (float)log(3)), 4, log(4));
}

static void nan_is_not_hidden(const mxt_config *config)
{
    state a = state_of(1, NAN), b = state_of(2, -INFINITY), out = state_of(0, 0);
    merge(config, &a, &b, &out);
    CHECK(isnan(out.o[0]) && isnan(out.lse[0]), "o %g, lse %g", (double)out.o[0],
          (double)out.lse[0]);
}

/* Copies keys [first, first+count) of head 0. */
static void take_keys(mxt_attention *part, const mxt_attention *whole, int64_t first)
{
    memcpy(part->q, whole->q, (size_t)mxt_size_q(whole) * sizeof(float));
    memcpy(part->k, whole->k + first * 32, (size_t)mxt_size_k(part) * sizeof(float));
    memcpy(part->v, whole->v + first * 32, (size_t)mxt_size_v(part) * sizeof(float));
}

static void merge_attention(const mxt_config *config, const mxt_attention *part, mxt_attention *sum)
{
    mxattn_states_merge_args args;
    mxattn_states_merge_args_init(&args);
    args.backend = config->backend;
    args.o_a = args.o = &sum->tensor_o;
    args.lse_a = args.lse = &sum->tensor_lse;
    args.o_b = &part->tensor_o;
    args.lse_b = &part->tensor_lse;
    CHECK_STATUS(MXATTN_OK, mxt_states_merge(mxt_config_context(config), &args));
}

/* Attention over the keys in 1 to 7 parts (some without keys), merged, is attention over all. */
static void split_keys(const mxt_config *config)
{
    static const int64_t keys[] = {1, 5, 129}, splits[] = {1, 2, 3, 7};
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 4; i++) {
            mxt_attention whole, sum;
            mxt_attention_dense(&whole, 1, 3, keys[n], 1, 1, 32);
            mxt_attention_configure(&whole, config);
            mxt_attention_alloc(&whole);
            mxt_attention_fill(&whole, MXT_EXACT, 17);
            CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&whole));
            mxt_attention_dense(&sum, 1, 3, 0, 1, 1, 32);
            mxt_attention_configure(&sum, config);
            mxt_attention_alloc(&sum);
            mxt_attention_fill(&sum, MXT_EXACT, 17);
            CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&sum));
            for (int64_t part = 0; part < splits[i]; part++) {
                const int64_t first = keys[n] * part / splits[i];
                mxt_attention a;
                mxt_attention_dense(&a, 1, 3, keys[n] * (part + 1) / splits[i] - first, 1, 1, 32);
                mxt_attention_configure(&a, config);
                mxt_attention_alloc(&a);
                take_keys(&a, &whole, first);
                CHECK_STATUS(MXATTN_OK, mxt_attention_forward(&a));
                merge_attention(config, &a, &sum);
                mxt_attention_free(&a);
            }
            mxt_check_rms("o", sum.o, whole.o, mxt_shape3(3, 1, 32), mxt_config_rounding(config));
            mxt_expect_finite("o", sum.o, 96);
            mxt_check_lse(config, sum.lse, whole.lse, 3);
            mxt_attention_free(&whole);
            mxt_attention_free(&sum);
        }
}

static const mxt_named_case cases[] = {
    {"B10 empty sides", empty_sides},
    {"B10 NaN is not hidden", nan_is_not_hidden},
    {"B111 LSE far apart", far_apart},
    {"B113 split keys", split_keys},
};

int main(int argc, char **argv)
{
    return mxt_run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
