/* ceilings_avx512bf16.c: BF16 dot products, 16 wide, of two each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ceilings.h"

#include <immintrin.h>

float mxc_peak_avx512bf16(int64_t steps)
{
    __m512 sums[MXC_PEAK_CHAINS];
    __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
    for (int i = 0; i < MXC_PEAK_CHAINS; i++)
        sums[i] = _mm512_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
#pragma GCC unroll 12
        for (int i = 0; i < MXC_PEAK_CHAINS; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], pairs, pairs);
    }
    for (int i = 1; i < MXC_PEAK_CHAINS; i++)
        sums[0] = _mm512_add_ps(sums[0], sums[i]);
    return _mm512_cvtss_f32(sums[0]);
}
