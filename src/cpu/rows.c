/* rows.c: which row kernels an instruction set has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/rows.h"

const mxa_row_kernels *mxa_row_kernels_for(uint32_t isa)
{
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        return &mxa_row_kernels_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return &mxa_row_kernels_avx2;
#endif
    (void)isa;
    return &mxa_row_kernels_portable;
}
