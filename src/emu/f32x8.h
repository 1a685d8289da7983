/* f32x8.h: the emulator's body of cuda/dev/f32x8.h, in vectors of eight.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_F32X8_H
#define MXA_EMU_F32X8_H

#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"

#if defined(MXA_EMU_F32X2)

typedef struct mxa_f32x8 {
    __m256 all;
} mxa_f32x8;

MXA_DEVICE mxa_f32x2 f32x8_pair(mxa_f32x8 x, int i)
{
    const __m128 half = i < 2 ? _mm256_castps256_ps128(x.all) : _mm256_extractf128_ps(x.all, 1);
    return (mxa_f32x2){i % 2 ? _mm_movehl_ps(half, half) : half};
}

MXA_DEVICE mxa_f32x8 f32x8_from(mxa_f32x2 a, mxa_f32x2 b, mxa_f32x2 c, mxa_f32x2 d)
{
    return (mxa_f32x8){
        _mm256_set_m128(_mm_movelh_ps(c.both, d.both), _mm_movelh_ps(a.both, b.both))};
}

MXA_DEVICE mxa_f32x8 f32x8_bits(const uint32_t *x)
{
    return (mxa_f32x8){_mm256_loadu_ps((const float *)(const void *)x)};
}

MXA_DEVICE mxa_f32x8 fma_f32x8(mxa_f32x8 a, mxa_f32x2 b, mxa_f32x2 c)
{
    const __m256d y = _mm256_broadcastsd_pd(_mm_castps_pd(b.both));
    const __m256d z = _mm256_broadcastsd_pd(_mm_castps_pd(c.both));
    return (mxa_f32x8){_mm256_fmadd_ps(a.all, _mm256_castpd_ps(y), _mm256_castpd_ps(z))};
}

/* mxa_emu_power of four, that are not beyond 2^10; a NaN stays one. */
MXA_DEVICE __m128 mxa_emu_power_x4(__m128 x)
{
    int64_t i[4];
    const __m256d wide = _mm256_cvtps_pd(x), shift = _mm256_set1_pd(0x1.8p44);
    const __m256d nearest = _mm256_add_pd(wide, shift);
    const __m256d r = _mm256_mul_pd(_mm256_sub_pd(wide, _mm256_sub_pd(nearest, shift)),
                                    _mm256_set1_pd(0x1.62e42fefa39efp-1));
    _mm256_storeu_si256((__m256i *)(void *)i, _mm256_castpd_si256(nearest));
    const __m256d root = _mm256_set_pd(mxa_emu_roots[i[3] & 255], mxa_emu_roots[i[2] & 255],
                                       mxa_emu_roots[i[1] & 255], mxa_emu_roots[i[0] & 255]);
    const __m256d high =
        _mm256_add_pd(_mm256_set1_pd(0.5),
                      _mm256_mul_pd(r, _mm256_add_pd(_mm256_set1_pd(1.0 / 6),
                                                     _mm256_mul_pd(r, _mm256_set1_pd(1.0 / 24)))));
    const __m256d y = _mm256_add_pd(
        root, _mm256_mul_pd(root, _mm256_add_pd(r, _mm256_mul_pd(_mm256_mul_pd(r, r), high))));
    const __m256i up = _mm256_slli_epi64(_mm256_srli_epi64(_mm256_castpd_si256(nearest), 8), 52);
    return _mm256_cvtpd_ps(_mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(y), up)));
}

/* exp2_approx of eight. What is beyond 2^8 is as if at it: 0, or infinite. */
MXA_DEVICE mxa_f32x8 exp2_approx_f32x8(mxa_f32x8 x)
{
    if (atomic_load_explicit(&mxa_emu_approximate_threads, memory_order_relaxed)) {
        float y[8];
        _mm256_storeu_ps(y, x.all);
        for (int i = 0; i < 8; i++) {
            y[i] = exp2_approx(y[i]);
        }
        return (mxa_f32x8){_mm256_loadu_ps(y)};
    }
    const __m256 most = _mm256_set1_ps(256), least = _mm256_set1_ps(-256);
    const __m256 in = _mm256_max_ps(least, _mm256_min_ps(most, x.all)); /* a NaN: the second */
    const __m256 y = _mm256_set_m128(mxa_emu_power_x4(_mm256_extractf128_ps(in, 1)),
                                     mxa_emu_power_x4(_mm256_castps256_ps128(in)));
    const __m256 normal = _mm256_cmp_ps(y, _mm256_set1_ps(0x1p-126F), _CMP_GE_OQ);
    const __m256 nan = _mm256_castsi256_ps(
        _mm256_srli_epi32(_mm256_castps_si256(_mm256_cmp_ps(x.all, x.all, _CMP_UNORD_Q)), 1));
    return (mxa_f32x8){_mm256_or_ps(_mm256_and_ps(y, normal), nan)};
}

/* Without zeros and a NaN, the machine's maximum is max_nan_f32. */
MXA_DEVICE float max_nan_f32x32(const uint32_t *x)
{
    const __m256 a = f32x8_bits(x).all, b = f32x8_bits(x + 8).all;
    const __m256 c = f32x8_bits(x + 16).all, d = f32x8_bits(x + 24).all;
    const __m256 nan =
        _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q), _mm256_cmp_ps(c, d, _CMP_UNORD_Q));
    const __m256 eight = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    float most = _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    if (most == 0 || _mm256_movemask_ps(nan)) {
        most = f32_bits(x[0]);
        for (int i = 1; i < 32; i++) {
            most = max_nan_f32(most, f32_bits(x[i]));
        }
    }
    return most;
}

/* mxa_emu_fp8 of eight, to E4M3: see mxa_emu_fp8x4. */
MXA_DEVICE void e4m3x8_from_f32x8(mxa_f32x8 x, uint32_t *to)
{
    enum { CUT = 20, STEP = (-6 - 3 + 23 + 127) << 23 };
    const __m256i bits = _mm256_castps_si256(x.all);
    const __m256i u = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i step = _mm256_set1_epi32(STEP);
    const __m256i small = _mm256_sub_epi32(
        _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(u), _mm256_castsi256_ps(step))),
        step);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, CUT), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(
        _mm256_add_epi32(u, _mm256_set1_epi32((1 << (CUT - 1)) - 1 - (120 << 23))), odd);
    const __m256i normal =
        _mm256_min_epi32(_mm256_srai_epi32(rounded, CUT), _mm256_set1_epi32(0x7E));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((-6 + 127) << 23), u);
    const __m256i is_nan = _mm256_cmpgt_epi32(u, _mm256_set1_epi32(0x7F800000));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const __m256i number = _mm256_or_si256(_mm256_blendv_epi8(normal, small, is_small), sign);
    const __m256i code = _mm256_blendv_epi8(number, _mm256_set1_epi32(0x7F), is_nan);
    const __m256i bytes = _mm256_shuffle_epi8(code, _mm256_set1_epi32(0x0C080400));
    to[0] = (uint32_t)_mm256_cvtsi256_si32(bytes);
    to[1] = (uint32_t)_mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));
}

#endif
#endif
