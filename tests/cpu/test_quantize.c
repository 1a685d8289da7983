/* test_quantize.c: the fast quantizer equals mxa_quantize_tensor, byte for byte, on every ISA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"
#include "cpu/operations.h"
#include "cpu_context.h"
#include "quantize_case.h"
#include "report.h"

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

/* Runs one spec on every ISA. */
static void check_spec(const char *name, const mxt_quantize_spec *spec, mxt_kind kind,
                       uint64_t seed)
{
    mxt_quantize_case c;
    mxt_quantize_outputs want;
    mxt_quantize_case_make(&c, spec);
    mxt_quantize_case_fill(&c, kind, seed);
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
        check_spec("random", &spec, (mxt_kind)(seed % MXT_KINDS), seed);
    }
}

int main(void)
{
    isa_count = mxt_cpu_isas(isas);
    random_specs();
    return mxt_finish();
}
