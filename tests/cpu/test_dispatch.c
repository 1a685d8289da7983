/* test_dispatch.c: which instruction sets a context uses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"
#include "mxattn/mxattn.h"
#include "report.h"

#include <string.h>

enum {
    FP32 = MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2 | MXATTN_ISA_AVX512,
    ALL = FP32 | MXATTN_ISA_AVX512_BF16 | MXATTN_ISA_AVX512_VBMI
};

static uint32_t isa_of(uint32_t mask)
{
    mxattn_context *context;
    mxattn_context_options options;
    mxattn_backend_info info;

    mxattn_context_options_init(&options);
    mxattn_backend_info_init(&info);
    options.isa_mask = mask;
    CHECK_STATUS(mxattn_context_create(&options, &context), MXATTN_OK);
    CHECK_STATUS(mxattn_backend_query(context, MXATTN_BACKEND_CPU, &info), MXATTN_OK);
    mxattn_context_destroy(context);
    return info.isa;
}

int main(void)
{
    const uint32_t machine = mxa_cpu_isa();

    mxt_case("foundations");
    CHECK(mxa_cpu_isa_close(MXATTN_ISA_AVX512) == MXATTN_ISA_PORTABLE, "AVX-512 without AVX2");
    CHECK(mxa_cpu_isa_close(ALL & ~(uint32_t)MXATTN_ISA_AVX512) ==
              (MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2),
          "BF16 without AVX-512");
    CHECK(mxa_cpu_isa_close(MXATTN_ISA_AVX2 | MXATTN_ISA_AMX_BF16) ==
              (MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2),
          "AMX without AVX-512");
    mxt_case("default");
    CHECK(mxa_cpu_isa_default(ALL, 0) == ALL, "BF16 dot products are left out");
    CHECK(strcmp(mxa_cpu_isa_name(mxa_cpu_isa_default(ALL, 1)), "avx512") == 0,
          "slow BF16 dot products are chosen");
    CHECK(strcmp(mxa_cpu_isa_name(mxa_cpu_isa_default(ALL | MXATTN_ISA_AMX_BF16, 1)), "amx") == 0,
          "AMX is left out");
    CHECK(isa_of(MXATTN_ISA_ALL) == mxa_cpu_isa_default(machine, mxa_cpu_is_intel()),
          "a context has other instruction sets");
    mxt_case("named");
    CHECK(isa_of(ALL) == (machine & ALL), "a mask that names all of them gets others");
    return mxt_finish();
}
