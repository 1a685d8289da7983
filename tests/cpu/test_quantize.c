/* test_quantize.c: the fast quantizer equals mxa_quantize_tensor, byte for byte, on every ISA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"
#include "cpu/operations.h"
#include "cpu_context.h"
#include "mx/e8m0.h"
#include "mx/element.h"
#include "quantize_case.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t isas[MXT_ISAS_MOST];
static int isa_count;

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
    for (int i = 0; i < isa_count; i++) {
        for (int32_t threads = 1; threads <= 2; threads++) {
            mxt_case("%s: %s %d threads, seed %llu, %s, %s", name, mxa_cpu_isa_name(isas[i]),
                     (int)threads, (unsigned long long)seed, mxt_kind_name(kind),
                     mxt_quantize_spec_text(spec));
            mxattn_context context = mxt_cpu_context(isas[i], threads);
            mxt_quantize_outputs got;
            mxt_quantize_outputs_make(&got, &c);
            mxa_quantize_call call = mxt_quantize_call_of(&c, &got);
            CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
            mxt_quantize_same(&got, &want);
            mxt_quantize_outputs_free(&got);
        }
    }
    mxt_quantize_outputs_free(&want);
    mxt_quantize_case_free(&c);
}

static void random_specs(void)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
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
