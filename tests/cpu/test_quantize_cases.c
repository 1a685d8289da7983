/* test_quantize_cases.c: the quantizer's cases from public reports, on every ISA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"
#include "cpu/operations.h"
#include "cpu_context.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "quantize_case.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static mxattn_context context; /* of the ISA under test */

static void name_case(const char *name)
{
    mxt_case("%s: %s", name, mxa_cpu_isa_name(context.isa));
}

/* One head: rows x cols of one type. */
static mxattn_tensor matrix(mxattn_dtype dtype, int64_t rows, int64_t cols, const void *data)
{
    mxattn_tensor t;
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    t.tags.dtype = dtype;
    t.ndim = 4;
    t.data = (void *)(uintptr_t)data;
    memcpy(t.shape, (int64_t[4]){1, rows, 1, cols}, sizeof t.shape);
    memcpy(t.stride, (int64_t[4]){rows * cols, cols, cols, 1}, sizeof t.stride);
    return t;
}

/* Quantizes a matrix with LINEAR scales on one axis; the payload and scales are the caller's. */
static void quantize(mxattn_tensor wide, mxattn_tags tags, mxattn_axis axis, uint8_t *payload,
                     uint8_t *scales)
{
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = wide;
    call.quantized = matrix(tags.dtype, wide.shape[1], wide.shape[3], payload);
    call.quantized.tags = tags;
    call.quantized.scales[axis].data = scales;
    call.batch = (mxa_batch){1, wide.shape[1], NULL, NULL};
    mxa_scale_extent extent = mxa_scales_extent(&call.batch, 1, wide.shape[3]);
    mxa_scales_resolve(&call.quantized.scales[axis], axis, &extent);
    CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
}

/* One row block of 32 FP32 values; what is not given is 0. */
typedef struct row_block {
    uint8_t codes[32];
    uint8_t scale;
} row_block;

static row_block quantize_row(const float *values, size_t count, mxattn_rounding rounding)
{
    float row[32] = {0};
    row_block out;
    memcpy(row, values, count * sizeof row[0]);
    memset(&out, 0xAA, sizeof out);
    quantize(matrix(MXATTN_F32, 1, 32, row),
             (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, rounding, 0}, MXATTN_HDIM, out.codes,
             &out.scale);
    return out;
}

#define ROW(rounding, ...)                                                                         \
    quantize_row((const float[]){__VA_ARGS__},                                                     \
                 sizeof((const float[]){__VA_ARGS__}) / sizeof(float), rounding)

static void expect_scale(row_block got, int scale)
{
    CHECK(got.scale == scale, "scale %d, want %d", got.scale, scale);
}

static void expect_code(row_block got, int i, int code)
{
    CHECK(got.codes[i] == code, "code %d is 0x%02X, want 0x%02X", i, got.codes[i], code);
}

static void b18_b19_short_arrays(void)
{
    static const int64_t shapes[][2] = {{384, 128}, {96, 64}, {1025, 512}};
    for (int i = 0; i < 3; i++) {
        mxt_quantize_spec spec;
        memset(&spec, 0, sizeof spec);
        spec.batch = 1;
        spec.lengths[0] = shapes[i][0];
        spec.heads = 1;
        spec.head_dim = shapes[i][1];
        spec.wide = MXATTN_F32;
        spec.tags.dtype = MXATTN_E4M3;
        spec.tags.block = i < 2 ? MXATTN_BLOCK_COLUMN : MXATTN_BLOCK_ROW;
        spec.layouts[0] = i < 2 ? MXT_NO_SCALES : MXATTN_LINEAR;
        spec.layouts[1] = i < 2 ? MXATTN_LINEAR : MXT_NO_SCALES;
        name_case(i < 2 ? "B18 column scales" : "B19 linear scales, 1025 x 512");
        mxt_quantize_case c;
        mxt_quantize_outputs want, got;
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_case_fill(&c, MXT_PERIOD251, 1);
        mxt_quantize_outputs_make(&want, &c);
        mxt_quantize_outputs_make(&got, &c);
        mxt_quantize_reference(&c, &want);
        mxa_quantize_call call = mxt_quantize_call_of(&c, &got);
        CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
        mxt_quantize_same(&got, &want);
        CHECK(i < 2 || got.bytes[1] == 1025 * 16, "array of %zu bytes", got.bytes[1]);
        mxt_quantize_outputs_free(&want);
        mxt_quantize_outputs_free(&got);
        mxt_quantize_case_free(&c);
    }
}

/* rows x cols elements of address space. All rows but the last are one piece of zeroed memory over
 * and over: large, and costs little. */
static char *map_rows(int64_t rows, int64_t row_bytes)
{
    const size_t piece = 32U << 20, bytes = (size_t)(rows * row_bytes);
    const size_t last = bytes - (size_t)row_bytes;
    int file = memfd_create("rows", 0);
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int good = file >= 0 && ftruncate(file, (off_t)piece) == 0 && at != MAP_FAILED;
    for (size_t i = 0; good && i < last; i += piece) {
        size_t size = last - i < piece ? last - i : piece;
        good = mmap(at + i, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
               MAP_FAILED;
    }
    good = good && mmap(at + last, (size_t)row_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    close(file);
    return good ? at : NULL;
}

static void b41_more_than_2_31_elements(void)
{
    const int64_t rows = 65537, cols = 32768, last = (rows - 1) * cols;
    name_case("B41 65537 x 32768");
#if defined(__SANITIZE_THREAD__)
    mxt_skip("ThreadSanitizer's shadow of 6 GiB does not fit in memory");
    return;
#endif
    char *wide = map_rows(rows, cols * 2);
    uint8_t *payload = (uint8_t *)map_rows(rows, cols);
    uint8_t *scales = malloc((size_t)(rows * cols / 32));
    if (!wide || !payload || !scales) {
        mxt_skip("not enough address space");
        return;
    }
    for (int64_t i = 0; i < cols; i++) {
        mxa_store(wide, MXATTN_BF16, last + i, 448);
    }
    memset(scales, 0xAA, (size_t)(rows * cols / 32));
    quantize(matrix(MXATTN_BF16, rows, cols, wide),
             (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0}, MXATTN_HDIM, payload,
             scales);
    int64_t wrong_scales = 0, wrong_codes = 0;
    for (int64_t i = 0; i < rows * cols / 32; i++) {
        wrong_scales += scales[i] != (i >= last / 32 ? 127 : 0);
    }
    for (int64_t i = 0; i < cols; i++) {
        wrong_codes += payload[last + i] != 0x7E;
    }
    CHECK(wrong_scales == 0, "%lld wrong scales", (long long)wrong_scales);
    CHECK(wrong_codes == 0, "%lld wrong codes in the last row", (long long)wrong_codes);
    munmap(wide, (size_t)(rows * cols * 2));
    munmap(payload, (size_t)(rows * cols));
    free(scales);
}

/* The second sequence begins at element 2^32; the first is all unused, so that it is not read. */
static void b43_offset_beyond_2_32(void)
{
    enum { FIRST = 1 << 20, LENGTH = 5, DIMS = 32, STRIDE = 4096 };
    static const int32_t cu[] = {0, FIRST, FIRST + LENGTH}, used[] = {0, LENGTH};
    name_case("B43 token 2^20 of stride 4096");
    const size_t bytes = ((size_t)(FIRST + LENGTH) * STRIDE) * sizeof(float);
    float *wide = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *payload = malloc((size_t)(FIRST + LENGTH) * DIMS);
    uint8_t *scales = malloc(FIRST + LENGTH);
    if (wide == MAP_FAILED || !payload || !scales) {
        mxt_skip("not enough address space");
        return;
    }
    for (int64_t s = 0; s < LENGTH; s++) {
        wide[(FIRST + s) * STRIDE + s] = ldexpf(448, (int)s);
    }
    memset(payload, 0xAA, (size_t)(FIRST + LENGTH) * DIMS);
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = matrix(MXATTN_F32, FIRST + LENGTH, DIMS, wide);
    call.wide.stride[1] = STRIDE;
    call.quantized = matrix(MXATTN_E4M3, FIRST + LENGTH, DIMS, payload);
    call.quantized.tags.block = MXATTN_BLOCK_ROW;
    call.quantized.scales[MXATTN_HDIM] = (mxattn_scales){scales, MXATTN_LINEAR, 0, 1, 1, 1, NULL};
    call.batch = (mxa_batch){2, 0, cu, used};
    CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
    for (int64_t s = 0; s < LENGTH; s++) {
        CHECK(scales[FIRST + s] == 127 + s, "scale of token %lld: %d", (long long)s,
              scales[FIRST + s]);
        CHECK(payload[(FIRST + s) * DIMS + s] == 0x7E, "code of token %lld", (long long)s);
    }
    CHECK(payload[0] == 0 && payload[FIRST * DIMS - 1] == 0, "unused tokens are 0");
    munmap(wide, bytes);
    free(payload);
    free(scales);
}

static void b44_many_sequences_or_heads(void)
{
    enum { MANY = 65536, DIMS = 32 };
    float *wide = malloc(MANY * DIMS * sizeof *wide);
    uint8_t *payload = malloc(MANY * DIMS), *scales = malloc(MANY);
    for (int64_t i = 0; i < MANY; i++) {
        for (int64_t d = 0; d < DIMS; d++) {
            wide[i * DIMS + d] = ldexpf(1, (int)(i % 100));
        }
    }
    for (int heads = 0; heads < 2; heads++) {
        name_case(heads ? "B44 65536 heads" : "B44 65536 sequences");
        mxa_quantize_call call;
        memset(&call, 0, sizeof call);
        call.wide = matrix(MXATTN_F32, 1, DIMS, wide);
        call.quantized = matrix(MXATTN_E4M3, 1, DIMS, payload);
        call.quantized.tags.block = MXATTN_BLOCK_ROW;
        call.wide.shape[heads ? 2 : 0] = call.quantized.shape[heads ? 2 : 0] = MANY;
        call.quantized.scales[MXATTN_HDIM] =
            (mxattn_scales){scales, MXATTN_LINEAR, 0, 1, 1, 1, NULL};
        call.batch = (mxa_batch){heads ? 1 : MANY, 1, NULL, NULL};
        memset(payload, 0xAA, MANY * DIMS);
        memset(scales, 0xAA, MANY);
        CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
        int wrong = 0;
        for (int64_t i = 0; i < MANY; i++) {
            wrong += scales[i] != 119 + i % 100 || payload[i * DIMS] != 0x78 ||
                     payload[i * DIMS + 31] != 0x78;
        }
        CHECK(wrong == 0, "%d wrong", wrong);
    }
    free(wide);
    free(payload);
    free(scales);
}

static void b61_b62_zeros(void)
{
    name_case("B61 a row of zeros, a row of ones");
    float x[2][64] = {{0}};
    uint8_t codes[2][64], scales[2][2];
    for (int i = 0; i < 64; i++) {
        x[1][i] = 1;
    }
    quantize(matrix(MXATTN_F32, 2, 64, x),
             (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0}, MXATTN_HDIM, codes[0],
             scales[0]);
    for (int i = 0; i < 64; i++) {
        CHECK(codes[0][i] == 0 && codes[1][i] == 0x78, "codes %d", i);
        CHECK(scales[0][i / 32] == 0 && scales[1][i / 32] == 119, "scales %d", i / 32);
    }
    name_case("B62 zeros, negative zeros, one tiny value");
    row_block got = ROW(MXATTN_RCEIL, 0, -0.0F, 1e-11F);
    expect_code(got, 0, 0);
    expect_code(got, 1, 0x80);
    CHECK(mxa_e4m3_to_f32(got.codes[2]) >= 224 && got.scale > 0, "1e-11: code 0x%02X scale %d",
          got.codes[2], got.scale);
    got = ROW(MXATTN_RCEIL, -0.0F, -0.0F);
    expect_code(got, 0, 0x80);
    expect_scale(got, 0);
}

static void b68_b79_extremes(void)
{
    name_case("B68 the smallest scale");
    row_block got = ROW(MXATTN_RCEIL, 0x1p-119F, 0x1p-149F, -0x1p-127F);
    expect_scale(got, 0);
    expect_code(got, 0, 0x78);
    expect_code(got, 1, 0);
    expect_code(got, 2, 0xB8);
    name_case("B79 NaN, infinity, the largest value");
    got = ROW(MXATTN_RCEIL, 1, NAN, -INFINITY);
    expect_scale(got, 0xFF);
    expect_code(got, 0, 0x7F);
    expect_code(got, 2, 0x7F);
    expect_code(got, 31, 0x7F);
    got = ROW(MXATTN_RCEIL, 0x1.fffffep127F, INFINITY, -INFINITY, -0.0F);
    expect_scale(got, 0xFE);
    expect_code(got, 0, 0x40);
    expect_code(got, 1, 0x7E);
    expect_code(got, 2, 0xFE);
    expect_code(got, 3, 0x80);
    got = ROW(MXATTN_RCEIL, 0x1.fffffep127F);
    expect_scale(got, 0xF7);
    expect_code(got, 0, 0x78);
}

static void b83_to_b88_scales(void)
{
    name_case("B83 floor clips, rceil does not");
    row_block got = ROW(MXATTN_FLOOR, 957, 960);
    expect_scale(got, 128);
    expect_code(got, 0, 0x7E);
    got = ROW(MXATTN_RCEIL, 957, 960);
    expect_scale(got, 129);
    expect_code(got, 0, 0x77);
    name_case("B84 modes by name");
    expect_scale(ROW(MXATTN_RCEIL, 150), 126);
    expect_scale(ROW(MXATTN_FLOOR, 150), 126);
    expect_scale(ROW(MXATTN_RCEIL, 448), 127);
    expect_scale(ROW(MXATTN_RCEIL, nextafterf(448, INFINITY)), 128);
    name_case("B86 next to a power of two");
    expect_scale(ROW(MXATTN_RCEIL, 448 * 0x1.000002p20F), 148);
    expect_scale(ROW(MXATTN_FLOOR, nextafterf(0x1p10F, 0)), 128);
    name_case("B87 scales below 1");
    expect_scale(ROW(MXATTN_RCEIL, 0.3F * 448), 126);
    expect_scale(ROW(MXATTN_FLOOR, 0.3F * 256), 125);
    for (int i = 0; i < 3; i++) {
        name_case("B88 1.5, 3, 6 from every type");
        static const float values[] = {1.5F, 3, 6};
        for (mxattn_dtype dtype = MXATTN_F32; dtype <= MXATTN_BF16; dtype++) {
            float memory[32] = {0};
            row_block block;
            mxa_store(memory, dtype, 0, values[i]);
            quantize(matrix(dtype, 1, 32, memory),
                     (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0}, MXATTN_HDIM,
                     block.codes, &block.scale);
            expect_scale(block, 119 + i);
            expect_code(block, 0, 0x7C);
        }
    }
}

static void b89_b90_codes(void)
{
    static const float ties[] = {448, 17,      19,      21,       23,       27,      29,       432,
                                 1,   1.0625F, 1.1875F, 0x1p-10F, 0x3p-10F, 0x1p-9F, -0x1p-10F};
    static const uint8_t codes[] = {0x7E, 0x58, 0x5A, 0x5A, 0x5C, 0x5E, 0x5E, 0x7E,
                                    0x38, 0x38, 0x3A, 0x00, 0x02, 0x01, 0x80};
    name_case("B89 ties under scale 1");
    row_block got = quantize_row(ties, sizeof ties / sizeof ties[0], MXATTN_RCEIL);
    expect_scale(got, 127);
    for (int i = 0; i < 15; i++) {
        expect_code(got, i, codes[i]);
    }
    name_case("B90 saturation under scale 1");
    got = ROW(MXATTN_FLOOR, 448, 464, 465, 511, -511);
    expect_scale(got, 127);
    for (int i = 0; i < 4; i++) {
        expect_code(got, i, 0x7E);
    }
    expect_code(got, 4, 0xFE);
}

static void b91_every_code(void)
{
    name_case("B91 decode every code");
    uint8_t codes[8][32], scales[8];
    float wide[8][32];
    for (int i = 0; i < 256; i++) {
        codes[i / 32][i % 32] = (uint8_t)i;
        scales[i / 32] = 127;
    }
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = matrix(MXATTN_F32, 8, 32, wide);
    call.quantized = matrix(MXATTN_E4M3, 8, 32, codes);
    call.quantized.tags.block = MXATTN_BLOCK_ROW;
    call.quantized.scales[MXATTN_HDIM] = (mxattn_scales){scales, MXATTN_LINEAR, 0, 1, 1, 1, NULL};
    call.batch = (mxa_batch){1, 8, NULL, NULL};
    CHECK_STATUS(MXATTN_OK, mxa_cpu_dequantize(&context, &call));
    for (int i = 0; i < 256; i++) {
        float got = wide[i / 32][i % 32], want = mxa_e4m3_to_f32((uint8_t)i);
        CHECK(memcmp(&got, &want, sizeof got) == 0, "code 0x%02X: %g, want %g", i, (double)got,
              (double)want);
    }
}

static void b102_square_scale_everywhere(void)
{
    name_case("B102 one scale for a whole square, in every place");
    static float x[64][64];
    uint8_t codes[64][64], hdim[64][2], turned[64][64];
    for (int i = 0; i < 64 * 64; i++) {
        x[i / 64][i % 64] = i / 64 < 32 && i % 64 >= 32 ? 448 : 1;
    }
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = matrix(MXATTN_F32, 64, 64, x);
    call.quantized = matrix(MXATTN_E4M3, 64, 64, codes);
    call.quantized.tags.block = MXATTN_BLOCK_SQUARE;
    call.quantized.scales[MXATTN_HDIM] = (mxattn_scales){hdim[0], MXATTN_LINEAR, 0, 2, 2, 1, NULL};
    call.transposed = matrix(MXATTN_E4M3, 64, 64, turned);
    memcpy(call.transposed.shape, (int64_t[4]){1, 1, 64, 64}, sizeof call.transposed.shape);
    memcpy(call.transposed.stride, (int64_t[4]){4096, 4096, 64, 1}, sizeof call.transposed.stride);
    call.batch = (mxa_batch){1, 64, NULL, NULL};
    CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
    for (int i = 0; i < 64; i++) {
        CHECK(hdim[i][1] == (i < 32 ? 127 : 119) && hdim[i][0] == 119, "row %d: %d %d", i,
              hdim[i][0], hdim[i][1]);
        for (int j = 0; j < 64; j++) {
            int want = i < 32 && j >= 32 ? 0x7E : 0x78;
            CHECK(codes[i][j] == want && turned[j][i] == want, "code (%d, %d)", i, j);
        }
    }
}

/* Padding of tiled scales: whatever lay there, the producer leaves 0; whatever lies there, a
 * consumer does not see it. */
static void b103_padding(void)
{
    name_case("B103 padding scales");
    mxt_quantize_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.jagged = 1;
    spec.batch = 3;
    memcpy(spec.lengths, (int64_t[3]){130, 1, 33}, 3 * sizeof(int64_t));
    spec.heads = 2;
    spec.head_dim = 72;
    spec.wide = MXATTN_F32;
    spec.tags = (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
    spec.layouts[0] = spec.layouts[1] = MXATTN_TILED;
    mxt_quantize_case c;
    mxt_quantize_outputs o;
    mxt_quantize_case_make(&c, &spec);
    mxt_quantize_case_fill(&c, MXT_GAUSSIAN, 7);
    mxt_quantize_outputs_make(&o, &c);
    mxa_quantize_call call = mxt_quantize_call_of(&c, &o);
    CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
    for (int axis = 0; axis < 2; axis++) {
        size_t used = 0, bytes = o.bytes[1 + axis];
        uint8_t *data = o.memory[1 + axis];
        for (size_t i = 0; i < bytes; i++) {
            used += data[i] != 0;
        }
        int64_t blocks = axis == 0 ? (130 + 1 + 33) * 3 : 72 * (5 + 1 + 2);
        CHECK((int64_t)used == 2 * blocks, "axis %d: %zu bytes are not 0, want %lld", axis, used,
              (long long)(2 * blocks));
        mxt_random random = {3};
        for (size_t i = 0; i < bytes; i++) {
            data[i] = data[i] ? data[i] : (uint8_t)mxt_random_u64(&random);
        }
    }
    float *before = malloc(c.wide_bytes);
    memcpy(before, c.wide.data, c.wide_bytes);
    CHECK_STATUS(MXATTN_OK, mxa_cpu_dequantize(&context, &call));
    for (size_t i = 0; i < c.wide_bytes / sizeof(float); i++) {
        float got = ((float *)c.wide.data)[i];
        CHECK(fabsf(got - before[i]) <= fabsf(before[i]) / 16 + 0x1p-10F, "element %zu: %g, was %g",
              i, (double)got, (double)before[i]);
    }
    free(before);
    mxt_quantize_outputs_free(&o);
    mxt_quantize_case_free(&c);
}

static void b107_empty_batches(void)
{
    static const int32_t cu[] = {0};
    for (int jagged = 0; jagged < 2; jagged++) {
        name_case("B107 no sequences, no data");
        mxa_quantize_call call;
        memset(&call, 0, sizeof call);
        call.wide = matrix(MXATTN_F32, jagged ? 0 : 64, 32, NULL);
        call.quantized = matrix(MXATTN_E4M3, jagged ? 0 : 64, 32, NULL);
        call.wide.shape[0] = call.quantized.shape[0] = jagged;
        call.quantized.tags.block = MXATTN_BLOCK_SQUARE;
        call.batch = (mxa_batch){0, jagged ? 0 : 64, jagged ? cu : NULL, NULL};
        CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
        CHECK_STATUS(MXATTN_OK, mxa_cpu_dequantize(&context, &call));
    }
}

/* Tiles of a large payload, which was written past the caches, equal those of small calls, which
 * are not. Rows of `wide` begin one element after the other. */
static void tiles_are_as_small(const mxa_quantize_call *large, int64_t rows)
{
    enum { SMALL = 64, DIMS_MOST = 192 };
    static uint8_t few[SMALL * DIMS_MOST];
    const int64_t dims = large->wide.shape[3];
    mxa_quantize_call small = *large;
    memset(&small.transposed, 0, sizeof small.transposed);
    small.quantized.data = few;
    small.wide.shape[1] = small.quantized.shape[1] = SMALL;
    small.batch = (mxa_batch){1, SMALL, NULL, NULL};
    for (int64_t row = 0; row + SMALL <= rows; row += 9 * SMALL) {
        small.wide.data = (char *)large->wide.data + row * mxa_dtype_bytes(large->wide.tags.dtype);
        CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &small));
        CHECK(memcmp(few, (uint8_t *)large->quantized.data + row * dims, (size_t)(SMALL * dims)) ==
                  0,
              "block %d, rows from %lld on", (int)large->quantized.tags.block, (long long)row);
    }
}

/* Codes below the smallest normal one, zeros among them, in a payload past the caches. */
static void large_with_small_codes(mxattn_dtype dtype, int64_t dims, int64_t rows)
{
    char *wide = malloc((size_t)((rows + dims) * mxa_dtype_bytes(dtype)));
    uint8_t *payload = NULL;
    name_case("a large payload with codes below the normal ones");
    CHECK(posix_memalign((void **)&payload, 64, (size_t)(rows * dims)) == 0, "memory");
    for (int64_t i = 0; i < rows + dims; i++) {
        mxa_store(wide, dtype, i, (float)(i * 7919 % 251 - 125) * (i % 1009 ? 1.0F : 0x1p-16F));
    }
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide = matrix(dtype, rows, dims, wide);
    call.wide.stride[1] = 1;
    call.quantized = matrix(MXATTN_E4M3, rows, dims, payload);
    call.batch = (mxa_batch){1, (int32_t)rows, NULL, NULL};
    const mxattn_block blocks[] = {MXATTN_BLOCK_ROW, MXATTN_BLOCK_SQUARE, MXATTN_BLOCK_COLUMN};
    for (int i = 0; i < 3; i++) {
        call.quantized.tags.block = blocks[i];
        CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
        tiles_are_as_small(&call, rows);
    }
    free(wide);
    free(payload);
}

/* More than is left in the caches: both payloads are written past them, the transposed one in
 * lines where it starts with one. The same bytes as those of a small call, tile by tile. */
static void large_and_transposed(void)
{
    enum { DIMS = 192, ROWS = 70037, FIRST = 64 * 1000 + 96, USED = FIRST - 70 };
    static int32_t cu_seqlens[] = {0, FIRST, FIRST + 37, ROWS}, seqused[] = {USED, 37, 5000};
    float *wide = malloc((ROWS + DIMS) * sizeof *wide);
    uint8_t *memory = NULL;
    const size_t bytes = (size_t)ROWS * DIMS, turned_row = 70080;
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    name_case("a large payload, transposed too");
    CHECK(posix_memalign((void **)&memory, 64, bytes + 64 + DIMS * turned_row) == 0, "memory");
    for (int i = 0; i < ROWS + DIMS; i++) {
        wide[i] = (float)(i * 7919 % 251 - 125) * (i % 83 ? 1.0F : 9e4F);
    }
    uint8_t *payload = memory, *turned = memory + (bytes + 63) / 64 * 64;
    call.wide = matrix(MXATTN_F32, ROWS, DIMS, wide);
    call.wide.stride[1] = 1;
    call.quantized = matrix(MXATTN_E4M3, ROWS, DIMS, payload);
    call.quantized.tags.block = MXATTN_BLOCK_SQUARE;
    call.transposed = matrix(MXATTN_E4M3, DIMS, ROWS, turned);
    memcpy(call.transposed.shape, (int64_t[4]){1, 1, DIMS, ROWS}, sizeof call.transposed.shape);
    memcpy(call.transposed.stride, (int64_t[4]){0, 0, (int64_t)turned_row, 1},
           sizeof call.transposed.stride);
    call.batch = (mxa_batch){3, 0, cu_seqlens, seqused};
    CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
    int64_t wrong = 0;
    for (int64_t row = 0; row < ROWS; row++) {
        for (int64_t d = 0; d < DIMS; d++) {
            wrong += turned[(size_t)d * turned_row + (size_t)row] != payload[row * DIMS + d];
        }
    }
    CHECK(wrong == 0, "%lld bytes differ from the payload's", (long long)wrong);
    tiles_are_as_small(&call, USED);
    free(wide);
    free(memory);
}

int main(void)
{
    uint32_t isas[MXT_ISAS_MOST];
    int count = mxt_cpu_isas(isas);
    for (int i = 0; i < count; i++) {
        context = mxt_cpu_context(isas[i], 2);
        b18_b19_short_arrays();
        b43_offset_beyond_2_32();
        b44_many_sequences_or_heads();
        b61_b62_zeros();
        b68_b79_extremes();
        b83_to_b88_scales();
        b89_b90_codes();
        b91_every_code();
        b102_square_scale_everywhere();
        b103_padding();
        b107_empty_batches();
        large_and_transposed();
        large_with_small_codes(MXATTN_F32, 192, 70400);
        large_with_small_codes(MXATTN_BF16, 128, 176000);
    }
    b41_more_than_2_31_elements(); /* seconds: on the strongest only */
    return mxt_finish();
}
