/* test_merge.c: merging on the CPU equals the reference bit for bit, strides and types included.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operations.h"
#include "cpu_context.h"
#include "fill.h"
#include "guard.h"
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <string.h>

enum { B = 2, S = 37, H = 3, D = 72, GAP = 5 };

typedef struct state {
    mxattn_tensor o, lse;
    size_t o_bytes, lse_bytes;
} state;

/* Rows with gaps between them; LSE head-major or token-major. */
static state make_state(mxattn_dtype dtype, int token_major)
{
    state s;
    memset(&s, 0, sizeof s);
    s.o.tags.dtype = dtype;
    s.o.ndim = 4;
    memcpy(s.o.shape, (int64_t[4]){B, S, H, D}, sizeof s.o.shape);
    memcpy(s.o.stride, (int64_t[4]){S * (H * D + GAP), H * D + GAP, D, 1}, sizeof s.o.stride);
    s.o_bytes = (size_t)(B * S * (H * D + GAP) * mxa_dtype_bytes(dtype));
    s.o.data = mxt_guard_end(s.o_bytes);
    s.lse.tags.dtype = MXATTN_F32;
    s.lse.ndim = 3;
    memcpy(s.lse.shape, (int64_t[4]){B, H, S, 0}, sizeof s.lse.shape);
    int64_t by_head[4] = {H * S, S, 1, 0}, by_token[4] = {H * S, 1, H, 0};
    memcpy(s.lse.stride, token_major ? by_token : by_head, sizeof s.lse.stride);
    s.lse_bytes = B * H * S * sizeof(float);
    s.lse.data = mxt_guard_end(s.lse_bytes);
    return s;
}

static void free_state(state *s)
{
    mxt_guard_free(s->o.data);
    mxt_guard_free(s->lse.data);
}

/* Gaussian O; LSEs of all kinds, -inf among them. O of rows that saw nothing stays NaN. */
static void fill_state(state *s, mxt_random *random)
{
    for (int64_t row = 0; row < B * S * H; row++) {
        int64_t b = row / S / H, t = row / H % S, h = row % H;
        float lse = (float)(mxt_random_gaussian(random) * 200);
        lse = mxt_random_int(random, 0, 3) == 0 ? -INFINITY : lse;
        lse = mxt_random_int(random, 0, 30) == 0 ? NAN : lse;
        ((float *)s->lse.data)[b * s->lse.stride[0] + h * s->lse.stride[1] + t * s->lse.stride[2]] =
            lse;
        for (int64_t d = 0; d < D && lse != -INFINITY; d++) {
            mxa_store(s->o.data, s->o.tags.dtype,
                      b * s->o.stride[0] + t * s->o.stride[1] + h * D + d,
                      (float)mxt_random_gaussian(random));
        }
    }
}

/* Bit for bit; of NaNs only that both are. */
static int same(const void *got, const void *want, mxattn_dtype dtype, size_t bytes)
{
    for (int64_t i = 0; i < (int64_t)bytes / mxa_dtype_bytes(dtype); i++) {
        float a = mxa_load(got, dtype, i), b = mxa_load(want, dtype, i);
        if (!(isnan(a) && isnan(b)) && memcmp(&a, &b, sizeof a) != 0) {
            return CHECK(0, "element %lld: got %a, want %a", (long long)i, (double)a, (double)b);
        }
    }
    return 1;
}

static void random_states(void)
{
    for (uint64_t seed = 1; seed <= 18; seed++) {
        mxt_random random = {seed};
        mxattn_dtype from = (mxattn_dtype)(1 + seed % 3), to = (mxattn_dtype)(1 + seed / 3 % 3);
        mxt_case("merge %s to %s, seed %llu", mxa_dtype_name(from), mxa_dtype_name(to),
                 (unsigned long long)seed);
        state a = make_state(from, 0), b = make_state(from, 1);
        state got = make_state(to, (int)(seed & 1)), want = make_state(to, (int)(seed & 1));
        fill_state(&a, &random);
        fill_state(&b, &random);
        mxa_merge_call call = {a.o, a.lse, b.o, b.lse, got.o, got.lse, 0, NULL};
        mxattn_context context = mxt_cpu_context(MXATTN_ISA_PORTABLE, 2);
        CHECK_STATUS(MXATTN_OK, mxa_cpu_states_merge(&context, &call));
        call.o = want.o;
        call.lse = want.lse;
        CHECK_STATUS(MXATTN_OK, mxa_ref_backend.states_merge(&context, &call));
        same(got.o.data, want.o.data, to, want.o_bytes);
        same(got.lse.data, want.lse.data, MXATTN_F32, want.lse_bytes);
        /* Outputs may be inputs, and LSE may be left out. */
        if (from == to) {
            call.o = a.o;
            call.lse.ndim = 0;
            CHECK_STATUS(MXATTN_OK, mxa_cpu_states_merge(&context, &call));
            same(a.o.data, want.o.data, to, want.o_bytes);
        }
        free_state(&a);
        free_state(&b);
        free_state(&got);
        free_state(&want);
    }
}

typedef struct one {
    float o, lse;
} one;

static one merge_one(one a, one b)
{
    one out = {NAN, NAN};
    mxattn_tensor o = {
        .tags = {.dtype = MXATTN_F32}, .ndim = 4, .shape = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    mxattn_tensor t[6] = {o, o, o, o, o, o};
    t[0].data = &a.o;
    t[1].data = &a.lse;
    t[2].data = &b.o;
    t[3].data = &b.lse;
    t[4].data = &out.o;
    t[5].data = &out.lse;
    mxa_merge_call call = {t[0], t[1], t[2], t[3], t[4], t[5], 0, NULL};
    mxattn_context context = mxt_cpu_context(MXATTN_ISA_PORTABLE, 1);
    CHECK_STATUS(MXATTN_OK, mxa_cpu_states_merge(&context, &call));
    return out;
}

static void expect(const char *name, one a, one b, one want)
{
    mxt_case("%s", name);
    for (int swap = 0; swap < 2; swap++) {
        one got = swap ? merge_one(b, a) : merge_one(a, b);
        CHECK(got.o == want.o && got.lse == want.lse, "got (%g, %g), want (%g, %g)", (double)got.o,
              (double)got.lse, (double)want.o, (double)want.lse);
    }
}

int main(void)
{
    const float none = -INFINITY;
    expect("B10 an empty side", (one){0, none}, (one){5, 1}, (one){5, 1});
    expect("B10 two empty sides", (one){0, none}, (one){0, none}, (one){0, none});
    expect("B10 what an empty side holds does not matter", (one){NAN, none}, (one){5, 1},
           (one){5, 1});
    expect("B111 far apart", (one){7, -200}, (one){3, 200}, (one){3, 200});
    expect("B111 equal", (one){2, 200}, (one){4, 200}, (one){3, 200.693147F});
    random_states();
    return mxt_finish();
}
