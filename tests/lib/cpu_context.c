/* cpu_context.c: contexts for tests of the CPU backend's insides.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu_context.h"

#include "cpu/dispatch.h"
#include "report.h"

#include <string.h>

int mxt_cpu_isas(uint32_t isas[MXT_ISAS_MOST])
{
    static const uint32_t sets[MXT_ISAS_MOST] = {
        MXATTN_ISA_PORTABLE, MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2,
        MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2 | MXATTN_ISA_AVX512};
    int count = 0;
    for (int i = 0; i < MXT_ISAS_MOST; i++) {
        mxt_case("instruction set %s", mxa_cpu_isa_name(sets[i]));
        if ((mxa_cpu_isa() & sets[i]) == sets[i]) {
            isas[count++] = sets[i];
        } else {
            mxt_skip("this machine has no %s", mxa_cpu_isa_name(sets[i]));
        }
    }
    return count;
}

mxattn_context mxt_cpu_context(uint32_t isa, int32_t threads)
{
    mxattn_context context;
    memset(&context, 0, sizeof context);
    context.options.struct_size = sizeof context.options;
    context.options.threads = threads;
    context.isa = isa;
    return context;
}
