/* softmax.c: rows of softmax for the baselines, portable.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define MXC_SOFTMAX_NAME mxc_softmax_portable
#include "softmax_body.h"

const mxc_softmax *mxc_softmax_best(void)
{
#if defined(MXA_BUILD_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return &mxc_softmax_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &mxc_softmax_avx2;
#endif
    return &mxc_softmax_portable;
}
