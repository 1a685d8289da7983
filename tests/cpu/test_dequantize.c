/* test_dequantize.c: the fast dequantizer equals mxa_dequantize_tensor, byte for byte, on every
 * ISA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"
#include "cpu/operations.h"
#include "cpu_context.h"
#include "guard.h"
#include "mx/element.h"
#include "mx/tensor.h"
#include "quantize_case.h"
#include "report.h"

#include <string.h>

static uint32_t isas[MXT_ISAS_MOST];
static int isa_count;

static void fill_random(void *memory, size_t bytes, mxt_random *random)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)memory)[i] = (uint8_t)mxt_random_u64(random);
    }
}

/* Payload, scales and centre of any bytes at all: every code under every scale. */
static void any_bytes(mxt_quantize_outputs *o, mxt_random *random)
{
    fill_random(o->memory[0], o->bytes[0], random);
    uint64_t state = random->state;
    for (int axis = 0; axis < 2; axis++) {
        random->state = state;
        fill_random(o->memory[1 + axis], o->bytes[1 + axis], random);
    }
    float *centre = o->memory[4];
    for (size_t i = 0; i < o->bytes[4] / sizeof(float); i++) {
        uint32_t bits = (uint32_t)mxt_random_u64(random);
        memcpy(&centre[i], &bits, sizeof bits);
    }
}

static mxattn_tensor wide_copy(const mxt_quantize_case *c, mxattn_dtype dtype)
{
    mxattn_tensor wide = c->wide;
    wide.tags.dtype = dtype;
    size_t bytes = c->wide_bytes / (size_t)mxa_dtype_bytes(c->wide.tags.dtype) *
                   (size_t)mxa_dtype_bytes(dtype);
    wide.data = mxt_guard_end(bytes);
    return wide;
}

static size_t wide_bytes(const mxt_quantize_case *c, mxattn_dtype dtype)
{
    return c->wide_bytes / (size_t)mxa_dtype_bytes(c->wide.tags.dtype) *
           (size_t)mxa_dtype_bytes(dtype);
}

static void check(const mxt_quantize_case *c, const mxt_quantize_outputs *o, uint64_t seed)
{
    for (mxattn_dtype dtype = MXATTN_F32; dtype <= MXATTN_BF16; dtype++) {
        mxattn_tensor want = wide_copy(c, dtype);
        mxa_dequantize_tensor(&o->quantized, &want, &c->batch);
        for (int i = 0; i < isa_count; i++) {
            mxt_case("dequantize %s to %s, seed %llu, %s", mxa_cpu_isa_name(isas[i]),
                     mxa_dtype_name(dtype), (unsigned long long)seed,
                     mxt_quantize_spec_text(&c->spec));
            mxattn_context context = mxt_cpu_context(isas[i], 2);
            mxattn_tensor got = wide_copy(c, dtype);
            mxa_quantize_call call = mxt_quantize_call_of(c, o);
            call.wide = got;
            CHECK_STATUS(MXATTN_OK, mxa_cpu_dequantize(&context, &call));
            const uint8_t *a = got.data, *b = want.data;
            size_t bytes = wide_bytes(c, dtype), at = 0;
            while (at < bytes && a[at] == b[at]) {
                at++;
            }
            if (at < bytes) {
                CHECK(0, "byte %zu of %zu: got 0x%02X, want 0x%02X", at, bytes, a[at], b[at]);
            }
            mxt_guard_free(got.data);
        }
        mxt_guard_free(want.data);
    }
}

int main(void)
{
    isa_count = mxt_cpu_isas(isas);
    for (uint64_t seed = 1; seed <= 150; seed++) {
        mxt_random random = {seed};
        mxt_quantize_spec spec = mxt_quantize_spec_random(&random);
        mxt_quantize_case c;
        mxt_quantize_outputs o;
        spec.transposed = 0;
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_outputs_make(&o, &c);
        if (seed % 2) {
            any_bytes(&o, &random);
        } else {
            mxt_quantize_case_fill(&c, (mxt_kind)(seed / 2 % MXT_KINDS), seed);
            mxt_quantize_reference(&c, &o);
        }
        check(&c, &o, seed);
        mxt_quantize_outputs_free(&o);
        mxt_quantize_case_free(&c);
    }
    return mxt_finish();
}
