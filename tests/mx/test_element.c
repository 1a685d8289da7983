/* test_element.c: element types: the cases from public reports, tags, and typed loads and stores.
 * test_formats.py holds the exhaustive comparison with another implementation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <string.h>

typedef struct pair {
    float x;
    uint8_t code;
} pair;

static void b89_ties_of_e4m3(void)
{
    static const pair pairs[] = {
        {17, 0x58},    {19, 0x5A},   {21, 0x5A},  {23, 0x5C},      {27, 0x5E},      {29, 0x5E},
        {432, 0x7E},   {464, 0x7E},  {1, 0x38},   {1.0625F, 0x38}, {1.1875F, 0x3A}, {0x1p-10F, 0},
        {0x3p-10F, 2}, {0x1p-9F, 1}, {-17, 0xD8}, {-0.0F, 0x80},
    };
    mxt_case("B89 ties of E4M3");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        uint8_t got = mxa_e4m3_from_f32(pairs[i].x);
        CHECK(got == pairs[i].code, "%g: got 0x%02X, want 0x%02X", (double)pairs[i].x, got,
              pairs[i].code);
        CHECK(mxa_e4m3_from_f64((double)pairs[i].x) == pairs[i].code, "from float64: %g",
              (double)pairs[i].x);
    }
}

static void b90_saturates(void)
{
    static const pair pairs[] = {{448, 0x7E},      {464, 0x7E},       {465, 0x7E},
                                 {1000, 0x7E},     {-1000, 0xFE},     {3e10F, 0x7E},
                                 {INFINITY, 0x7E}, {-INFINITY, 0xFE}, {NAN, 0x7F}};
    mxt_case("B90 E4M3 saturates");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        uint8_t got = mxa_e4m3_from_f32(pairs[i].x);
        CHECK(got == pairs[i].code, "%g: got 0x%02X", (double)pairs[i].x, got);
    }
}

static void b91_special_codes(void)
{
    mxt_case("B91 0x80 is -0, 0x7F and 0xFF are NaN");
    CHECK(mxa_e4m3_to_f32(0x80) == 0 && signbit(mxa_e4m3_to_f32(0x80)), "0x80");
    CHECK(isnan(mxa_e4m3_to_f32(0x7F)) && isnan(mxa_e4m3_to_f32(0xFF)), "0x7F, 0xFF");
    CHECK(mxa_e4m3_to_f32(0x7E) == 448.0F && mxa_e4m3_to_f32(0xFE) == -448.0F, "0x7E, 0xFE");
}

static void dtypes(void)
{
    static const struct {
        mxattn_dtype dtype;
        int bytes, fp8, wide;
        const char *name;
    } rows[] = {{MXATTN_DTYPE_NONE, 0, 0, 0, "none"}, {MXATTN_F32, 4, 0, 1, "f32"},
                {MXATTN_F16, 2, 0, 1, "f16"},         {MXATTN_BF16, 2, 0, 1, "bf16"},
                {MXATTN_E4M3, 1, 1, 0, "e4m3"},       {MXATTN_E5M2, 1, 1, 0, "e5m2"},
                {(mxattn_dtype)77, 0, 0, 0, "?"}};
    mxt_case("element types");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mxattn_dtype dtype = rows[i].dtype;
        CHECK(mxa_dtype_bytes(dtype) == rows[i].bytes, "bytes of %d", (int)dtype);
        CHECK(!mxa_dtype_is_fp8(dtype) == !rows[i].fp8, "fp8 of %d", (int)dtype);
        CHECK(!mxa_dtype_is_wide(dtype) == !rows[i].wide, "wide of %d", (int)dtype);
        CHECK(strcmp(mxa_dtype_name(dtype), rows[i].name) == 0, "name of %d", (int)dtype);
    }
}

static void loads_and_stores(void)
{
    mxt_case("typed loads and stores");
    for (int dtype = MXATTN_F32; dtype <= MXATTN_E5M2; dtype++) {
        unsigned char memory[4 * 4];
        memset(memory, 0xEE, sizeof memory);
        for (int i = 1; i < 3; i++) {
            mxa_store(memory, (mxattn_dtype)dtype, i, i == 1 ? -1.5F : 0.25F);
        }
        CHECK(mxa_load(memory, (mxattn_dtype)dtype, 1) == -1.5F, "dtype %d", dtype);
        CHECK(mxa_load(memory, (mxattn_dtype)dtype, 2) == 0.25F, "dtype %d", dtype);
        int bytes = mxa_dtype_bytes((mxattn_dtype)dtype);
        CHECK(memory[bytes - 1] == 0xEE, "dtype %d wrote before its element", dtype);
        CHECK(bytes == 4 || memory[3 * bytes] == 0xEE, "dtype %d wrote behind", dtype);
    }
}

static void nan_payloads(void)
{
    mxt_case("a NaN stays quiet, with sign and top bits of its payload");
    uint32_t bits = 0xFF812345;
    float x;
    memcpy(&x, &bits, sizeof x);
    CHECK(mxa_bf16_from_f32(x) == 0xFFC1, "bf16 0x%04X", mxa_bf16_from_f32(x));
    CHECK(mxa_f16_from_f32(x) == 0xFE09, "f16 0x%04X", mxa_f16_from_f32(x));
    CHECK(mxa_e4m3_from_f32(x) == 0xFF, "e4m3 0x%02X", mxa_e4m3_from_f32(x));
}

int main(void)
{
    b89_ties_of_e4m3();
    b90_saturates();
    b91_special_codes();
    dtypes();
    loads_and_stores();
    nan_payloads();
    return mxt_finish();
}
