/* test_scales.c: scale arrays: which are legal, their sizes, every byte's place, padding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/scales.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

static void legal(void)
{
    static const int want[4][2][3] = {
        /* hdim: linear, compact, tiled; seq */
        [MXATTN_BLOCK_NONE] = {{0, 0, 0}, {0, 0, 0}},
        [MXATTN_BLOCK_ROW] = {{1, 0, 1}, {0, 0, 0}},
        [MXATTN_BLOCK_COLUMN] = {{0, 0, 0}, {1, 0, 1}},
        [MXATTN_BLOCK_SQUARE] = {{1, 1, 1}, {1, 1, 1}},
    };
    mxt_case("legal arrays");
    for (int block = 0; block < 4; block++) {
        for (int axis = 0; axis < 2; axis++) {
            for (int layout = 0; layout < 3; layout++) {
                mxattn_tags tags = {MXATTN_E4M3, (mxattn_block)block, MXATTN_RCEIL, 0};
                int got = mxa_scales_legal(&tags, (mxattn_axis)axis, (mxattn_scale_layout)layout);
                CHECK(!got == !want[block][axis][layout], "block %d axis %d layout %d", block, axis,
                      layout);
            }
        }
    }
    mxattn_tags square = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
    CHECK(!mxa_scales_legal(&square, MXATTN_HDIM, (mxattn_scale_layout)3), "unknown layout");
    CHECK(
        !mxa_scales_legal(&(mxattn_tags){.block = MXATTN_BLOCK_ROW}, (mxattn_axis)2, MXATTN_LINEAR),
        "unknown axis");
}

static void sizes(void)
{
    static const int32_t cu[] = {0, 33, 33, 1025};
    const mxa_batch batch = {3, 0, cu, NULL};
    mxa_scale_extent extent = mxa_scales_extent(&batch, 3, 136);
    mxt_case("sizes of lengths 33 0 992, 3 heads of 136");
    CHECK(extent.tokens == 1025 && extent.blocks == 33 && extent.tiled_rows == 128 + 1024,
          "extent %lld %lld %lld", (long long)extent.tokens, (long long)extent.blocks,
          (long long)extent.tiled_rows);
    static const int64_t want[2][3] = {
        {1025 * 3 * 5, 33 * 3 * 5, 3 * 9 * 2 * 512},
        {33 * 3 * 136, 33 * 3 * 5, 3 * 2 * 9 * 512},
    };
    for (int axis = 0; axis < 2; axis++) {
        for (int layout = 0; layout < 3; layout++) {
            int64_t got = mxa_scales_size((mxattn_axis)axis, (mxattn_scale_layout)layout, &extent);
            CHECK(got == want[axis][layout], "axis %d layout %d: got %lld, want %lld", axis, layout,
                  (long long)got, (long long)want[axis][layout]);
        }
    }
}

/* The layouts of mxattn.h written again, from coordinates to a byte of a contiguous array. */
static int64_t expected(int axis, int layout, const mxa_scale_extent *extent,
                        const mxa_sequence *seq, int64_t s, int64_t head, int64_t d)
{
    int64_t blocks_d = (extent->head_dim + 31) / 32;
    if (layout == MXATTN_COMPACT) {
        return ((seq->block + s / 32) * extent->heads + head) * blocks_d + d / 32;
    }
    if (layout == MXATTN_LINEAR) {
        return axis == MXATTN_HDIM
                   ? ((seq->token + s) * extent->heads + head) * blocks_d + d / 32
                   : ((seq->block + s / 32) * extent->heads + head) * extent->head_dim + d;
    }
    int64_t row = axis == MXATTN_HDIM ? seq->tiled_row + s : d;
    int64_t block = axis == MXATTN_HDIM ? d / 32 : (seq->tiled_row + s) / 32;
    int64_t token_tiles = extent->tiled_rows / 128, dim_tiles = (extent->head_dim + 127) / 128;
    int64_t row_tiles = axis == MXATTN_HDIM ? token_tiles : dim_tiles;
    int64_t block_tiles = axis == MXATTN_HDIM ? dim_tiles : token_tiles;
    /* A unit is 32 x 4 x 4 bytes: row within 32, 32-row group, block. */
    int64_t unit = (head * row_tiles + row / 128) * block_tiles + block / 4;
    return ((unit * 32 + row % 32) * 4 + row / 32 % 4) * 4 + block % 4;
}

static void offsets(void)
{
    static const int32_t cu[] = {0, 129, 129, 130, 290};
    const mxa_batch batch = {4, 0, cu, NULL};
    mxa_scale_extent extent = mxa_scales_extent(&batch, 2, 168);
    mxa_sequence table[5];
    mxa_sequence_table(&batch, table);
    for (int axis = 0; axis < 2; axis++) {
        for (int layout = 0; layout < 3; layout++) {
            mxt_case("offsets, axis %d layout %d", axis, layout);
            mxattn_scales scales = {.layout = (mxattn_scale_layout)layout};
            mxa_scales_resolve(&scales, (mxattn_axis)axis, &extent);
            int64_t size = mxa_scales_size((mxattn_axis)axis, (mxattn_scale_layout)layout, &extent);
            for (int b = 0; b < 4; b++) {
                for (int64_t s = 0; s < table[b].length; s++) {
                    for (int64_t at = 0; at < 2 * 168; at++) {
                        int64_t head = at / 168, d = at % 168;
                        int64_t got =
                            mxa_scales_offset(&scales, (mxattn_axis)axis, &table[b], b, s, head, d);
                        int64_t want = expected(axis, layout, &extent, &table[b], s, head, d);
                        CHECK(got == want && got >= 0 && got < size,
                              "sequence %d token %lld head %lld d %lld: got %lld, want %lld", b,
                              (long long)s, (long long)head, (long long)d, (long long)got,
                              (long long)want);
                    }
                }
            }
        }
    }
}

static void tiled_by_hand(void)
{
    mxt_case("a tiled unit by hand");
    mxattn_scales scales = {
        .layout = MXATTN_TILED, .stride_head = 100, .stride_row = 10, .stride_k = 1};
    static const int32_t cu_scale[] = {0, 256, 640};
    static const mxa_sequence seq = {0, 5, 5, 200, 200, 1, 128};
    static const int64_t rows[][4] = {
        /* token, head, d, byte */
        {0, 0, 0, 0},      {1, 0, 0, 16},
        {31, 0, 0, 496},   {32, 0, 0, 4},
        {127, 0, 0, 508},  {0, 0, 32, 1},
        {0, 0, 127, 3},    {0, 0, 128, 512},
        {128, 0, 0, 5120}, {129, 1, 96, 56323 + 16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int given = 0; given < 2; given++) {
            scales.cu_scale = given ? cu_scale : NULL;
            int64_t base = given ? 2 * 10 * 512 : 1 * 10 * 512;
            int64_t got = mxa_scales_offset(&scales, MXATTN_HDIM, &seq, 1, rows[i][0], rows[i][1],
                                            rows[i][2]);
            CHECK(got == base + rows[i][3], "token %lld head %lld d %lld: got %lld, want %lld",
                  (long long)rows[i][0], (long long)rows[i][1], (long long)rows[i][2],
                  (long long)got, (long long)(base + rows[i][3]));
        }
    }
}

/* Strides of the caller's are left alone; a head's units are cleared and no others. */
static void clear(void)
{
    static const int32_t cu_scale[] = {0, 384, 512};
    static const mxa_sequence seq = {0, 0, 0, 129, 129, 0, 0};
    enum { BYTES = 32 * 512 };
    uint8_t *data = malloc(BYTES);
    for (int axis = 0; axis < 2; axis++) {
        mxt_case("clear, axis %d", axis);
        mxattn_scales scales = {data, MXATTN_TILED, 0, 16, axis ? 4 : 2, axis ? 1 : 1, NULL};
        mxa_scale_extent extent = {129, 5, 256, 2, 136};
        mxattn_scales before = scales;
        mxa_scales_resolve(&scales, (mxattn_axis)axis, &extent);
        CHECK(memcmp(&before, &scales, sizeof scales) == 0, "strides changed");
        for (int given = 0; given < 2; given++) {
            scales.cu_scale = given ? cu_scale : NULL;
            memset(data, 0xAA, BYTES);
            mxa_scales_clear(&scales, (mxattn_axis)axis, &seq, 0, 1, 136);
            for (int at = 0; at < BYTES; at++) {
                int unit = at / 512 - 16;
                int token_tile = axis ? unit % 4 : unit / 2, dim_tile = axis ? unit / 4 : unit % 2;
                int inside = unit >= 0 && token_tile < (given ? 3 : 2) && dim_tile < 2;
                CHECK(data[at] == (inside ? 0 : 0xAA), "byte %d of unit %d, cu_scale %d", at % 512,
                      at / 512, given);
            }
        }
    }
    free(data);
}

/* The example of docs/format.md, section 4. */
static void documented_example(void)
{
    static const int32_t cu[] = {0, 33, 33, 103};
    static const int64_t want[2][3] = {{443, 23, 1670}, {574, 23, 1641}};
    const mxa_batch batch = {3, 0, cu, NULL};
    mxa_scale_extent extent = mxa_scales_extent(&batch, 2, 72);
    mxa_sequence table[4];
    mxa_sequence_table(&batch, table);
    mxt_case("docs/format.md: token 40 of sequence 2, head 1, dim 70");
    for (int axis = 0; axis < 2; axis++) {
        for (int layout = 0; layout < 3; layout++) {
            mxattn_scales scales = {.layout = (mxattn_scale_layout)layout};
            mxa_scales_resolve(&scales, (mxattn_axis)axis, &extent);
            int64_t got = mxa_scales_offset(&scales, (mxattn_axis)axis, &table[2], 2, 40, 1, 70);
            CHECK(got == want[axis][layout], "axis %d layout %d: got %lld, want %lld", axis, layout,
                  (long long)got, (long long)want[axis][layout]);
        }
    }
}

int main(void)
{
    legal();
    sizes();
    offsets();
    tiled_by_hand();
    clear();
    documented_example();
    return mxt_finish();
}
