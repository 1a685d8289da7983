/* test_api_producers.c: every rule of quantize, dequantize, scales and merge.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_run.h"
#include "fill.h"
#include "mxattn/mxattn.h"
#include "report.h"

#include <math.h>
#include <string.h>

enum { T = 40, H = 2, D = 48, BYTES = 8192 };

/* A valid quantize call over a jagged (T, H, D) tensor of sequences of 5, 0 and 33 tokens. */
static struct {
    mxattn_quantize_args args;
    mxattn_scales_args scales;
    mxattn_states_merge_args merge;
    mxattn_tensor wide, quantized, transposed;
    mxattn_tensor o_a, lse_a, o_b, lse_b, o, lse;
    int32_t cu[4];
    float values[T * H * D], rows[T * H];
    _Alignas(256) unsigned char payload[BYTES], hdim[BYTES], seq[BYTES], turned[BYTES];
    float out[T * H * D], out_rows[T * H];
} call;

static void fresh(void)
{
    static const int32_t cu[4] = {0, 5, 5, 38};
    const int64_t shape[] = {T, H, D}, turned[] = {H, D, T}, rows[] = {H, T};
    memset(&call, 0, sizeof call);
    memcpy(call.cu, cu, sizeof cu);
    mxt_fill_nan(call.payload, BYTES);
    mxt_fill_nan(call.hdim, BYTES);
    mxt_fill_nan(call.seq, BYTES);
    mxt_fill_nan(call.turned, BYTES);
    mxt_fill_nan(call.out, sizeof call.out);
    mxt_fill_nan(call.out_rows, sizeof call.out_rows);
    mxattn_tensor_view(&call.wide, MXATTN_F32, call.values, 3, shape);
    mxattn_tensor_view(&call.quantized, MXATTN_E4M3, call.payload, 3, shape);
    mxattn_tensor_view(&call.transposed, MXATTN_E4M3, call.turned, 3, turned);
    call.quantized.tags.block = MXATTN_BLOCK_SQUARE;
    call.quantized.scales[MXATTN_HDIM].data = call.hdim;
    call.quantized.scales[MXATTN_SEQ].data = call.seq;
    call.quantized.scales[MXATTN_SEQ].layout = MXATTN_COMPACT;
    mxattn_quantize_args_init(&call.args);
    call.args.backend = MXATTN_BACKEND_REF;
    call.args.wide = &call.wide;
    call.args.quantized = &call.quantized;
    call.args.sequences.cu_seqlens = call.cu;
    call.args.sequences.batch = 3;
    mxattn_scales_args_init(&call.scales);
    call.scales.backend = MXATTN_BACKEND_REF;
    call.scales.from.data = call.payload;
    call.scales.to.data = call.hdim;
    call.scales.to.layout = MXATTN_TILED;
    call.scales.sequences = call.args.sequences;
    call.scales.seqlen = T;
    call.scales.heads = H;
    call.scales.head_dim = D;
    mxattn_states_merge_args_init(&call.merge);
    call.merge.backend = MXATTN_BACKEND_REF;
    mxattn_tensor_view(&call.o_a, MXATTN_F32, call.values, 3, shape);
    mxattn_tensor_view(&call.lse_a, MXATTN_F32, call.rows, 2, rows);
    mxattn_tensor_view(&call.o, MXATTN_F32, call.out, 3, shape);
    mxattn_tensor_view(&call.lse, MXATTN_F32, call.out_rows, 2, rows);
    call.o_b = call.o_a;
    call.lse_b = call.lse_a;
    call.merge.o_a = &call.o_a;
    call.merge.lse_a = &call.lse_a;
    call.merge.o_b = &call.o_b;
    call.merge.lse_b = &call.lse_b;
    call.merge.o = &call.o;
    call.merge.lse = &call.lse;
}

static int all_ones(const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != 0xFF)
            return 0;
    }
    return 1;
}

typedef enum { QUANTIZE, DEQUANTIZE, SCATTER, TRANSFORM, MERGE } operation;

static mxattn_status run(operation which)
{
    switch (which) {
    case QUANTIZE:
        return mxattn_quantize(NULL, &call.args);
    case DEQUANTIZE:
        return mxattn_dequantize(NULL, &call.args);
    case SCATTER:
        return mxattn_scales_scatter(NULL, &call.scales);
    case TRANSFORM:
        return mxattn_scales_transform(NULL, &call.scales);
    case MERGE:
        return mxattn_states_merge(NULL, &call.merge);
    }
    return MXATTN_OK;
}

static void refused(operation which, mxattn_status wanted, const char *needle, const char *rule,
                    const char *change)
{
    static const char *const names[] = {"quantize", "dequantize", "scatter", "transform", "merge"};
    mxt_case("%s: %s", names[which], change);
    const mxattn_status status = run(which);
    CHECK(status == wanted, "status is %s, not %s; \"%s\"", mxattn_status_name(status),
          mxattn_status_name(wanted), mxattn_last_error());
    CHECK(strstr(mxattn_last_error(), needle) && strstr(mxattn_last_error(), rule),
          "\"%s\" lacks \"%s\" or \"%s\"", mxattn_last_error(), needle, rule);
    CHECK(all_ones(call.payload, BYTES) && all_ones(call.hdim, BYTES) &&
              all_ones(call.seq, BYTES) && all_ones(call.turned, BYTES) &&
              all_ones(call.out, sizeof call.out) && all_ones(call.out_rows, sizeof call.out_rows),
          "an output was written");
}

#define REFUSED(which, wanted, needle, rule, ...)                                                  \
    do {                                                                                           \
        fresh();                                                                                   \
        __VA_ARGS__;                                                                               \
        refused(which, wanted, needle, rule, #__VA_ARGS__);                                        \
    } while (0)

#define ACCEPTED(which, ...)                                                                       \
    do {                                                                                           \
        fresh();                                                                                   \
        __VA_ARGS__;                                                                               \
        mxt_case("accepted: %s", #__VA_ARGS__);                                                    \
        CHECK_STATUS(MXATTN_OK, run(which));                                                       \
    } while (0)

static void test_quantize(void)
{
    ACCEPTED(QUANTIZE, call.args.transposed = &call.transposed);
    ACCEPTED(QUANTIZE, call.quantized.scales[MXATTN_SEQ].data = NULL);
    ACCEPTED(QUANTIZE, call.args.sequences = (mxattn_sequences){.batch = 1});
    REFUSED(QUANTIZE, MXATTN_ARGUMENT, "wide is NULL", "required", call.args.wide = NULL);
    REFUSED(QUANTIZE, MXATTN_DTYPE, "quantized.dtype is f32", "e4m3 or e5m2",
            call.quantized.tags = (mxattn_tags){.dtype = MXATTN_F32});
    REFUSED(QUANTIZE, MXATTN_DTYPE, "wide.dtype is e4m3", "f32, f16 or bf16",
            call.wide.tags = call.quantized.tags);
    REFUSED(QUANTIZE, MXATTN_LAYOUT, "quantized.block is none", "row, column or square",
            call.quantized.tags.block = MXATTN_BLOCK_NONE);
    REFUSED(QUANTIZE, MXATTN_SHAPE, "wide.shape[2] is 47", "must be 48", call.wide.shape[2] = 47);
    REFUSED(QUANTIZE, MXATTN_SHAPE, "quantized.ndim is 1", "2 to 4", call.quantized.ndim = 1);
    REFUSED(QUANTIZE, MXATTN_LAYOUT, "quantized.stride[1] is 10", "overlap",
            call.quantized.stride[1] = 10);
    REFUSED(QUANTIZE, MXATTN_ARGUMENT, "quantized.scales holds no data", "scale array",
            call.quantized.scales[0].data = call.quantized.scales[1].data = NULL);
    REFUSED(QUANTIZE, MXATTN_LAYOUT, "quantized.scales[hdim].strides[2] is 0", "overlap",
            call.quantized.scales[0].stride_row = 4, call.quantized.scales[0].stride_head = 2);
    /* Without tokens the default strides of tiles may be 0, and nothing can overlap. */
    ACCEPTED(QUANTIZE,
             (memset(call.cu, 0, sizeof call.cu),
              call.quantized.scales[0].layout = call.quantized.scales[1].layout = MXATTN_TILED));
    /* Then a scale array is of no bytes; one sequence of a token needs it. */
    static const mxattn_backend hosts[] = {MXATTN_BACKEND_REF, MXATTN_BACKEND_CPU};
    for (int i = 0; i < 2; i++) {
        for (int which = QUANTIZE; which <= TRANSFORM; which++)
            ACCEPTED((operation)which,
                     (memset(call.cu, 0, sizeof call.cu),
                      memset(call.quantized.scales, 0, sizeof call.quantized.scales),
                      call.scales.from.data = call.scales.to.data = NULL,
                      call.scales.to_axis = (mxattn_axis)(which == TRANSFORM),
                      call.scales.tags = call.quantized.tags,
                      call.scales.backend = call.args.backend = hosts[i]));
    }
    REFUSED(QUANTIZE, MXATTN_ARGUMENT, "quantized.scales holds no data", "square",
            memset(call.quantized.scales, 0, sizeof call.quantized.scales));
    REFUSED(QUANTIZE, MXATTN_ARGUMENT, "quantized.centre is NULL", "required",
            call.quantized.tags.flags = MXATTN_CENTRED);
    REFUSED(QUANTIZE, MXATTN_DTYPE, "transposed.dtype is e5m2", "e4m3",
            (call.args.transposed = &call.transposed, call.transposed.tags.dtype = MXATTN_E5M2));
    REFUSED(QUANTIZE, MXATTN_SHAPE, "transposed.shape[0] is 48", "(H, D, T)",
            (call.args.transposed = &call.transposed, call.transposed.shape[0] = 48));
    REFUSED(QUANTIZE, MXATTN_CU_SEQLENS, "cu_seqlens[3] is 41", "tokens (40)", call.cu[3] = 41);
    REFUSED(QUANTIZE, MXATTN_CU_SEQLENS, "seqused[0] is 6", "[0, 5]",
            call.args.sequences.seqused = (const int32_t[]){6, 0, 0});
    REFUSED(QUANTIZE, MXATTN_ARGUMENT, "sequences.batch is -1", "0 to",
            call.args.sequences.batch = -1);
    REFUSED(QUANTIZE, MXATTN_ARGUMENT, "sequences.batch is 3", "one sequence",
            call.args.sequences.cu_seqlens = NULL);
    REFUSED(DEQUANTIZE, MXATTN_ARGUMENT, "transposed is set", "only quantize",
            call.args.transposed = &call.transposed);
    if (mxt_device_missing(MXATTN_BACKEND_CUDA))
        REFUSED(QUANTIZE, MXATTN_NO_BACKEND, "backend is cuda", "",
                call.args.backend = MXATTN_BACKEND_CUDA);
}

static void test_scales(void)
{
    ACCEPTED(SCATTER, call.scales.seqlen = T);
    ACCEPTED(TRANSFORM, call.scales.to_axis = MXATTN_SEQ);
    REFUSED(SCATTER, MXATTN_ARGUMENT, "to_axis is 1", "one axis", call.scales.to_axis = MXATTN_SEQ);
    REFUSED(TRANSFORM, MXATTN_ARGUMENT, "to_axis is 0", "other", call.scales.heads = H);
    REFUSED(TRANSFORM, MXATTN_LAYOUT, "tags.block is row", "square",
            (call.scales.tags.block = MXATTN_BLOCK_ROW, call.scales.to_axis = MXATTN_SEQ));
    REFUSED(SCATTER, MXATTN_LAYOUT, "from.layout is tiled", "linear or compact",
            call.scales.from.layout = MXATTN_TILED);
    REFUSED(SCATTER, MXATTN_ARGUMENT, "to is NULL", "required", call.scales.to.data = NULL);
    REFUSED(SCATTER, MXATTN_ARGUMENT, "from_axis is 2", "HDIM (0)",
            call.scales.from_axis = (mxattn_axis)2);
    REFUSED(SCATTER, MXATTN_SHAPE, "heads is -1", "0 to", call.scales.heads = -1);
    REFUSED(SCATTER, MXATTN_DTYPE, "tags.dtype is bf16", "e4m3",
            call.scales.tags = (mxattn_tags){.dtype = MXATTN_BF16});
    REFUSED(SCATTER, MXATTN_CU_SEQLENS, "cu_seqlens[3] is 38", "tokens (37)",
            call.scales.seqlen = 37);
}

static void test_merge(void)
{
    ACCEPTED(MERGE, call.merge.lse = NULL);
    REFUSED(MERGE, MXATTN_ARGUMENT, "lse_b is NULL", "required", call.merge.lse_b = NULL);
    REFUSED(MERGE, MXATTN_SHAPE, "o_b.shape[0] is 39", "must be 40", call.o_b.shape[0] = 39);
    REFUSED(MERGE, MXATTN_SHAPE, "lse_a.shape[0] is 40", "(H, T)",
            (call.lse_a.shape[0] = 40, call.lse_a.shape[1] = 2));
    REFUSED(MERGE, MXATTN_DTYPE, "lse.dtype is bf16", "f32", call.lse.tags.dtype = MXATTN_BF16);
    REFUSED(MERGE, MXATTN_DTYPE, "o.dtype is e4m3", "f32, f16 or bf16",
            call.o.tags = call.quantized.tags);
    REFUSED(MERGE, MXATTN_LAYOUT, "o.stride[0] is 0", "overlap", call.o.stride[0] = 0);
}

static int64_t bytes_of(mxattn_block block, mxattn_axis axis, mxattn_scale_layout layout,
                        int64_t batch, int64_t seqlen, const int32_t *cu, int64_t heads,
                        int64_t head_dim)
{
    const mxattn_tags tags = {.dtype = MXATTN_E4M3, .block = block};
    int64_t bytes = -1;
    CHECK_STATUS(MXATTN_OK, mxattn_scales_bytes(&tags, axis, layout, batch, seqlen, cu, heads,
                                                head_dim, &bytes));
    return bytes;
}

static void test_scales_bytes(void)
{
    static const int32_t cu[] = {0, 5, 5, 38};
    const mxattn_tags row = {.dtype = MXATTN_E4M3, .block = MXATTN_BLOCK_ROW};
    int64_t bytes = 0;
    mxt_case("B40, B43: bytes of scale arrays, 64 bits wide");
    CHECK(bytes_of(MXATTN_BLOCK_ROW, MXATTN_HDIM, MXATTN_LINEAR, 2, 20, NULL, 3, 48) == 240, "row");
    CHECK(bytes_of(MXATTN_BLOCK_COLUMN, MXATTN_SEQ, MXATTN_LINEAR, 3, 0, cu, 2, 48) == 3 * 2 * 48,
          "column, jagged");
    CHECK(bytes_of(MXATTN_BLOCK_SQUARE, MXATTN_SEQ, MXATTN_COMPACT, 3, 0, cu, 2, 48) == 12,
          "compact");
    CHECK(bytes_of(MXATTN_BLOCK_SQUARE, MXATTN_HDIM, MXATTN_TILED, 3, 0, cu, 2, 48) == 2 * 2 * 512,
          "tiled");
    CHECK(bytes_of(MXATTN_BLOCK_ROW, MXATTN_HDIM, MXATTN_LINEAR, 1, 1 << 22, NULL, 512, 128) ==
              INT64_C(4) * 512 << 22,
          "2^22 tokens of 512 heads");
    mxt_case("bytes that are refused");
    CHECK_STATUS(MXATTN_LAYOUT,
                 mxattn_scales_bytes(&row, MXATTN_SEQ, MXATTN_LINEAR, 1, 8, NULL, 1, 32, &bytes));
    CHECK_STATUS(MXATTN_SHAPE,
                 mxattn_scales_bytes(&row, MXATTN_HDIM, MXATTN_LINEAR, -1, 8, NULL, 1, 32, &bytes));
    CHECK_STATUS(MXATTN_SHAPE, mxattn_scales_bytes(&row, MXATTN_HDIM, MXATTN_LINEAR, 1 << 30,
                                                   1 << 30, NULL, 1 << 30, 1 << 30, &bytes));
    CHECK_STATUS(MXATTN_CU_SEQLENS, mxattn_scales_bytes(&row, MXATTN_HDIM, MXATTN_LINEAR, 2, 0,
                                                        (const int32_t[]){0, 5, 4}, 1, 32, &bytes));
    CHECK_STATUS(MXATTN_ARGUMENT,
                 mxattn_scales_bytes(&row, MXATTN_HDIM, MXATTN_LINEAR, 1, 8, NULL, 1, 32, NULL));
    CHECK(bytes == 0, "bytes was written");
}

/* The mean of no token is 0, as where other sequences of the batch have tokens. */
static void test_empty(void)
{
    static float centre[4 * H * D];
    fresh();
    mxt_case("a centre without a token");
    mxt_fill_nan(centre, sizeof centre);
    memset(call.cu, 0, sizeof call.cu);
    call.quantized.tags.flags = MXATTN_CENTRED;
    call.quantized.centre = centre;
    call.wide.shape[0] = call.quantized.shape[0] = 0;
    CHECK_STATUS(MXATTN_OK, mxattn_quantize(NULL, &call.args));
    for (int i = 0; i < 4 * H * D; i++)
        CHECK(i < 3 * H * D ? centre[i] == 0.0F : isnan(centre[i]), "centre[%d] is %g", i,
              (double)centre[i]);
}

/* Sizes are refused or added up in a time that does not grow with them, and do not overflow. */
static void test_extremes(void)
{
    const int64_t most[] = {INT32_MAX, 20, H, D}, beyond[] = {INT32_MAX, INT64_C(1) << 62, 0, D};
    mxt_case("as many sequences as there can be");
    CHECK(bytes_of(MXATTN_BLOCK_SQUARE, MXATTN_SEQ, MXATTN_TILED, INT32_MAX, 2, NULL, 1, 1) ==
              INT64_C(512) * INT32_MAX,
          "tiled");
    fresh();
    call.args.sequences = (mxattn_sequences){0};
    mxattn_tensor_view(&call.quantized, MXATTN_E4M3, call.payload, 4, most);
    call.quantized.tags.block = MXATTN_BLOCK_SQUARE;
    call.quantized.scales[MXATTN_HDIM].data = call.hdim;
    CHECK_STATUS(MXATTN_SHAPE, mxattn_quantize(NULL, &call.args));
    mxt_case("a size whose product would overflow in a tensor of nothing");
    mxattn_tensor_view(&call.quantized, MXATTN_E4M3, call.payload, 4, beyond);
    call.wide = call.quantized;
    call.wide.tags.dtype = MXATTN_F32;
    call.quantized.tags.block = MXATTN_BLOCK_SQUARE;
    CHECK_STATUS(MXATTN_SHAPE, mxattn_quantize(NULL, &call.args));
    CHECK(strstr(mxattn_last_error(), "2^56"), "%s", mxattn_last_error());
}

int main(void)
{
    test_empty();
    test_extremes();
    test_quantize();
    test_scales();
    test_merge();
    test_scales_bytes();
    return mxt_finish();
}
