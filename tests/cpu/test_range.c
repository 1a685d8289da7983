/* test_range.c: which sequences BF16 dot products may compute.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/range.h"
#include "mx/e8m0.h"
#include "report.h"

#include <limits.h>
#include <string.h>

enum { TOKENS = 40, DIMS = 64, BLOCKS = 2 * 2 };

static const mxa_range none = {INT_MAX, INT_MIN};

static void test_of(void)
{
    uint8_t codes[TOKENS * DIMS], scales[BLOCKS] = {127, 20, 3, MXA_SCALE_NAN};
    mxattn_tensor t;
    const mxa_sequence sequence = {.length = TOKENS, .used = TOKENS};
    const int64_t shape[4] = {1, TOKENS, 1, DIMS};

    mxattn_tensor_view(&t, MXATTN_E4M3, codes, 4, shape);
    t.tags.block = MXATTN_BLOCK_SQUARE;
    t.scales[MXATTN_HDIM] = (mxattn_scales){
        .data = scales, .layout = MXATTN_COMPACT, .stride_head = 2, .stride_row = 2, .stride_k = 1};
    memset(codes, 0x38, sizeof codes);
    mxt_case("range of four blocks");
    mxa_range range = mxa_range_of(&t, &sequence, 0);
    CHECK(range.low == 3 - 127 && range.high == 0, "%d to %d, want -124 to 0", range.low,
          range.high);

    mxt_case("a block of zeros has no range");
    for (int s = 32; s < TOKENS; s++)
        memset(codes + s * DIMS, s % 2 ? 0x80 : 0, 32);
    range = mxa_range_of(&t, &sequence, 0);
    CHECK(range.low == 20 - 127, "low is %d, want -107", range.low);

    mxt_case("tokens not in use do not count");
    const mxa_sequence shorter = {.length = TOKENS, .used = 0};
    range = mxa_range_of(&t, &shorter, 0);
    CHECK(range.low > range.high, "%d to %d, want none", range.low, range.high);
}

static void test_usual(void)
{
    const mxa_range plain = {-12, 4}, tiny = {-101, 0}, huge = {0, 111}, small = {-60, -50};
    const mxa_range least = {-100, 110};

    mxt_case("what is usual");
    CHECK(mxa_range_usual(&plain, &plain, NULL), "plain forward");
    CHECK(mxa_range_usual(&least, &least, NULL), "the ends belong to it");
    CHECK(mxa_range_usual(&none, &none, &none), "nothing at all");
    CHECK(!mxa_range_usual(&tiny, &plain, NULL), "tiny q or k");
    CHECK(!mxa_range_usual(&plain, &huge, NULL), "huge v");
    CHECK(mxa_range_usual(&plain, &plain, &small), "small gradients");
    CHECK(!mxa_range_usual(&plain, &small, &small), "dO times V below 2^-100");
    CHECK(!mxa_range_usual(&small, &plain, &small), "dO times V times K below 2^-100");
    CHECK(!mxa_range_usual(&plain, &none, &tiny), "tiny dO");
}

int main(void)
{
    test_of();
    test_usual();
    return mxt_finish();
}
