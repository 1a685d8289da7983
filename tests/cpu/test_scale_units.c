/* test_scale_units.c: units of tiled scales against their drawing in docs/format.md, stored in both
 * ways; and arrays so large that stores pass by the caches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operations.h"
#include "cpu/scale_units.h"
#include "cpu_context.h"
#include "guard.h"
#include "mx/scales.h"
#include "report.h"

#include <string.h>

enum { TOKENS = 128, BLOCK = 32 };

static uint8_t pattern(int64_t i)
{
    return (uint8_t)(i * 37 % 251);
}

static int64_t place(int64_t row, int64_t block)
{
    return row % BLOCK * MXA_UNIT_ROW + row / BLOCK * MXA_UNIT_BLOCKS + block;
}

static void check_unit(const uint8_t *unit, int64_t row, int64_t block, uint8_t want)
{
    CHECK(unit[place(row, block)] == want, "row %lld, block %lld: %02x, not %02x", (long long)row,
          (long long)block, unit[place(row, block)], want);
}

static void test_tokens(const mxa_unit_kernels *units, int width, int stream)
{
    enum { ROW = 52 }; /* no multiple of 16 */
    uint8_t *from = mxt_guard_end((TOKENS - 1) * ROW + 4 * (size_t)width);
    uint8_t *memory = mxt_guard_end_aligned(8 * MXA_UNIT_BYTES, 32), *to[8];
    mxt_case("units of tokens, %d bytes a group, stream %d", width, stream);
    for (int64_t i = 0; i < (TOKENS - 1) * ROW + 4 * width; i++)
        from[i] = pattern(i);
    for (int u = 0; u < 8; u++)
        to[u] = memory + (7 - u) * MXA_UNIT_BYTES;
    mxa_unit_queue queue = {.some = 0};
    for (int u = 0; u < 8; u += 4) /* the first four leave with the second */
        units->of_tokens(to + u, from, ROW, width, from, ROW, stream ? &queue : NULL);
    units->leave(&queue);
    for (int u = 0; u < 8; u++)
        for (int64_t t = 0; t < TOKENS; t++)
            for (int64_t k = 0; k < MXA_UNIT_BLOCKS; k++)
                check_unit(to[u], t, k, k < width ? pattern(t * ROW + u % 4 * width + k) : 0);
    mxt_guard_free(from);
    mxt_guard_free(memory);
}

static void test_dims(const mxa_unit_kernels *units, int stream)
{
    uint8_t *from = mxt_guard_end(4 * TOKENS), *unit = mxt_guard_end_aligned(MXA_UNIT_BYTES, 32);
    const uint8_t *rows[4];
    mxt_case("a unit of dims, stream %d", stream);
    for (int64_t i = 0; i < 4 * TOKENS; i++)
        from[i] = pattern(i);
    for (int k = 0; k < 4; k++)
        rows[k] = from + (k * 5 + 2) % 4 * TOKENS;
    units->of_dims(unit, rows, stream);
    for (int64_t d = 0; d < TOKENS; d++)
        for (int64_t k = 0; k < 4; k++)
            check_unit(unit, d, k, rows[k][d]);
    for (int turned = 0; turned < 2; turned++) {
        enum { STEP = 7 };
        const mxa_unit_run run = {.to = unit,
                                  .from = from,
                                  .count = 1,
                                  .group_step = STEP,
                                  .turned = turned,
                                  .stream = stream};
        units->repeat(&run);
        for (int i = 0; i < MXA_UNIT_BYTES; i++) {
            const int g = i % MXA_UNIT_ROW / 4, k = i % 4;
            const uint8_t want = from[turned ? k * STEP + g : g * STEP + k];
            CHECK(unit[i] == want, "repeated, turned %d: byte %d is %02x, not %02x", turned, i,
                  unit[i], want);
        }
    }
    mxt_guard_free(from);
    mxt_guard_free(unit);
}

/* 34 MB, the last tile of tokens short and one head more than units go in fours. */
static void test_large(mxattn_scale_layout layout, mxattn_axis from_axis, mxattn_axis to_axis)
{
    enum { LENGTH = 65600, HEADS = 129, DIMS = 128, CHUNKS = DIMS / BLOCK };
    mxattn_context context = mxt_cpu_context(MXATTN_ISA_ALL, 2);
    mxa_scales_call call;
    memset(&call, 0, sizeof call);
    mxt_case("%d bytes, layout %d, axis %d to %d", LENGTH * HEADS * CHUNKS, (int)layout,
             (int)from_axis, (int)to_axis);
    call.tags.block =
        from_axis == to_axis && layout == MXATTN_LINEAR ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_SQUARE;
    call.from_axis = from_axis;
    call.to_axis = to_axis;
    call.from.layout = layout;
    call.to.layout = MXATTN_TILED;
    call.batch = (mxa_batch){.batch = 1, .seqlen = LENGTH};
    call.heads = HEADS;
    call.head_dim = DIMS;
    const mxa_scale_extent extent = mxa_scales_extent(&call.batch, HEADS, DIMS);
    const int64_t from_bytes = mxa_scales_size(from_axis, layout, &extent);
    const int64_t to_bytes = mxa_scales_size(to_axis, MXATTN_TILED, &extent);
    call.from.data = mxt_guard_end((size_t)from_bytes);
    call.to.data = mxt_guard_end_aligned((size_t)to_bytes, 32);
    mxa_scales_resolve(&call.from, from_axis, &extent);
    mxa_scales_resolve(&call.to, to_axis, &extent);
    for (int64_t i = 0; i < from_bytes; i++)
        call.from.data[i] = layout == MXATTN_TILED
                                ? pattern(i / MXA_UNIT_BYTES * MXA_UNIT_ROW + i % MXA_UNIT_ROW)
                                : pattern(i);
    CHECK_STATUS(MXATTN_OK, from_axis == to_axis ? mxa_cpu_scales_scatter(&context, &call)
                                                 : mxa_cpu_scales_transform(&context, &call));
    const mxa_sequence sequence = {.length = LENGTH, .used = LENGTH};
    int64_t wrong = 0;
    for (int64_t head = 0; head < HEADS; head++)
        for (int64_t s = 0; s < LENGTH; s += s < 256 || s > LENGTH - 256 ? 1 : 61)
            for (int64_t d = 0; d < DIMS; d += 8) {
                const int64_t from = mxa_scales_offset(&call.from, from_axis, &sequence, 0,
                                                       from_axis == to_axis ? s : s / 32 * 32, head,
                                                       from_axis == to_axis ? d : d / 32 * 32);
                const int64_t to = mxa_scales_offset(&call.to, to_axis, &sequence, 0, s, head, d);
                wrong += call.to.data[to] != call.from.data[from];
            }
    CHECK(wrong == 0, "%lld bytes are wrong", (long long)wrong);
    for (int64_t head = 0; to_axis == MXATTN_HDIM && head < HEADS; head++) {
        const int64_t unit = (head + 1) * call.to.stride_head - 1;
        for (int64_t row = LENGTH % TOKENS; row < TOKENS; row++)
            CHECK(call.to.data[unit * MXA_UNIT_BYTES + place(row, 0)] == 0,
                  "head %lld: padding of row %lld", (long long)head, (long long)row);
    }
    mxt_guard_free(call.from.data);
    mxt_guard_free(call.to.data);
}

int main(void)
{
    uint32_t isas[MXT_ISAS_MOST];
    const int count = mxt_cpu_isas(isas);
    for (int i = 0; i < 2 * count; i++) {
        const mxa_unit_kernels *units = mxa_unit_kernels_for(isas[i / 2]);
        const int stream = i % 2;
        test_tokens(units, 4, stream);
        test_tokens(units, 2, stream);
        test_dims(units, stream);
    }
    test_large(MXATTN_LINEAR, MXATTN_HDIM, MXATTN_HDIM);
    test_large(MXATTN_COMPACT, MXATTN_HDIM, MXATTN_HDIM);
    test_large(MXATTN_TILED, MXATTN_HDIM, MXATTN_SEQ);
    return mxt_finish();
}
