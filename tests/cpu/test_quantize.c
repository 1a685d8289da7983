/* test_quantize.c: the fast quantizer equals mxa_quantize_tensor, byte for byte, on every ISA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"
#include "cpu/operations.h"
#include "cpu_context.h"
#include "quantize_case.h"
#include "report.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t isas[MXT_ISAS_MOST];
static int isa_count;

/* Flush-to-zero and denormals-are-zero of this thread, where the machine has them. */
static void set_flush(int on)
{
#if defined(__x86_64__)
    _mm_setcsr(on ? _mm_getcsr() | 0x8040 : _mm_getcsr() & ~0x8040U);
#else
    (void)on;
#endif
}

/* Fills 32 x 1 x 64 FP32 anew: the largest exponent is `exponent`, others lie up to 40 below, down
 * into the subnormals; mantissas are random, or ties. */
static void fill_below(mxt_quantize_case *c, int exponent, uint64_t seed)
{
    mxt_random random = {seed};
    for (int64_t i = 0; i < 32 * 64; i++) {
        uint64_t bits = mxt_random_u64(&random);
        int below = i % 64 == 0 ? 0 : (int)(bits >> 32) % 40 - 8;
        int field = exponent - (below < 0 ? 0 : below);
        uint32_t mantissa = (uint32_t)bits & 0x7FFFFF;
        mantissa = bits >> 63 ? mantissa & 0x780000 : mantissa;
        uint32_t value =
            (uint32_t)(field < 0 ? 0 : field) << 23 | mantissa | (uint32_t)(bits >> 62 & 1) << 31;
        memcpy((float *)c->wide.data + i, &value, sizeof value);
    }
}

/* Runs one spec on every ISA; exponent >= 0 chooses fill_below, -1 the kind. */
static void check_spec(const char *name, const mxt_quantize_spec *spec, mxt_kind kind, int exponent,
                       uint64_t seed)
{
    mxt_quantize_case c;
    mxt_quantize_outputs want;
    mxt_quantize_case_make(&c, spec);
    mxt_quantize_case_fill(&c, kind, seed);
    if (exponent >= 0) {
        fill_below(&c, exponent, seed);
    }
    mxt_quantize_outputs_make(&want, &c);
    mxt_quantize_reference(&c, &want);
    mxt_case("%s: reference, flushing, seed %llu, %s, %s", name, (unsigned long long)seed,
             mxt_kind_name(kind), mxt_quantize_spec_text(spec));
    mxt_quantize_outputs flushed;
    mxt_quantize_outputs_make(&flushed, &c);
    set_flush(1);
    mxt_quantize_reference(&c, &flushed);
    set_flush(0);
    mxt_quantize_same(&flushed, &want);
    mxt_quantize_outputs_free(&flushed);
    for (int i = 0; i < isa_count; i++) {
        for (int run = 0; run < 4; run++) {
            int32_t threads = 1 + run / 2;
            int flush = run % 2;
            mxt_case("%s: %s, %d threads, %sseed %llu, %s, %s", name, mxa_cpu_isa_name(isas[i]),
                     (int)threads, flush ? "flushing, " : "", (unsigned long long)seed,
                     mxt_kind_name(kind), mxt_quantize_spec_text(spec));
            mxattn_context context = mxt_cpu_context(isas[i], threads);
            mxt_quantize_outputs got;
            mxt_quantize_outputs_make(&got, &c);
            mxa_quantize_call call = mxt_quantize_call_of(&c, &got);
            set_flush(flush);
            mxattn_status status = mxa_cpu_quantize(&context, &call);
            set_flush(0);
            CHECK_STATUS(MXATTN_OK, status);
            mxt_quantize_same(&got, &want);
            mxt_quantize_outputs_free(&got);
        }
    }
    mxt_quantize_outputs_free(&want);
    mxt_quantize_case_free(&c);
}

static void random_specs(void)
{
    for (uint64_t seed = 1; seed <= 250; seed++) {
        mxt_random random = {seed};
        mxt_quantize_spec spec = mxt_quantize_spec_random(&random);
        check_spec("random", &spec, (mxt_kind)(seed % MXT_KINDS), -1, seed);
    }
}

static void every_exponent(void)
{
    for (int i = 0; i < 255; i++) {
        char name[32];
        snprintf(name, sizeof name, "exponent %d", i);
        mxt_quantize_spec spec;
        memset(&spec, 0, sizeof spec);
        spec.batch = 1;
        spec.lengths[0] = 32;
        spec.heads = 1;
        spec.head_dim = 64;
        spec.wide = MXATTN_F32;
        spec.tags.dtype = i % 2 ? MXATTN_E5M2 : MXATTN_E4M3;
        for (int block = MXATTN_BLOCK_ROW; block <= MXATTN_BLOCK_COLUMN; block++) {
            spec.tags.block = (mxattn_block)block;
            spec.layouts[0] = block == MXATTN_BLOCK_ROW ? MXATTN_LINEAR : MXT_NO_SCALES;
            spec.layouts[1] = block == MXATTN_BLOCK_ROW ? MXT_NO_SCALES : MXATTN_LINEAR;
            check_spec(name, &spec, MXT_GAUSSIAN, i, (uint64_t)i + 1);
            spec.tags.dtype = i % 2 ? MXATTN_E4M3 : MXATTN_E5M2;
        }
    }
}

int main(void)
{
    isa_count = mxt_cpu_isas(isas);
    random_specs();
    every_exponent();
    return mxt_finish();
}
