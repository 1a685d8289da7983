/* ceilings_avx2.c: FP32 fused multiply-adds, 8 wide.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ceilings.h"

#include <immintrin.h>

float mxc_peak_avx2(int64_t steps)
{
    __m256 sums[MXC_PEAK_CHAINS], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < MXC_PEAK_CHAINS; i++)
        sums[i] = _mm256_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
#pragma GCC unroll 12
        for (int i = 0; i < MXC_PEAK_CHAINS; i++)
            sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
    }
    for (int i = 1; i < MXC_PEAK_CHAINS; i++)
        sums[0] = _mm256_add_ps(sums[0], sums[i]);
    return _mm256_cvtss_f32(sums[0]);
}
