/* gemm_codes_body.h: E4M3 codes straight to units: of BF16 in panels of B and rows of A, of FP32 in
 * panels of B. The same values as by rows of FP32.
 *
 * Included by gemm_body.h where units are of BF16 and on AVX-512. By rows of FP32 on the others: 32
 * x 32 codes turned over as bytes, then decoded into panels, took as long on AVX2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_GEMM_CODES_BODY_H
#define MXA_CPU_GEMM_CODES_BODY_H

#include "cpu/gemm.h"
#include "mx/e8m0.h"

#if UNIT_IS_F32

#include "cpu/bytes_transpose.h"

/* By 32 x 32 codes, turned over as bytes. WHY lines of the panel are asked for one row ahead of the
 * other: 256 of them at once, before 128 rows are decoded, took a fifth longer (Skylake). */
static int pack_b_codes(const mxa_gemm_codes *from, int64_t k, char *units, int64_t panel_bytes)
{
    enum { CODES_LOG2 = 8 }; /* codes decode to 2^-8 of what they say */
    enum { AHEAD = MXA_BLOCK * PANEL };
    _Alignas(64) uint8_t turned[MXA_BLOCK][MXA_BLOCK];
    float *out = (float *)(void *)units;
    code_flags nans = code_flags_none();

    (void)panel_bytes; /* 32 columns are one */
    for (int64_t e = 0; e < k; e += MXA_BLOCK) {
        _Alignas(64) int32_t bits[MXA_BLOCK];

        for (int i = 0; i < MXA_BLOCK; i++)
            bits[i] = (from->scales[e / MXA_BLOCK][i] + CODES_LOG2) << 23;
        const vec low = vec_from_bits(ivec_load(bits));
        const vec high = vec_from_bits(ivec_load(bits + VEC_LANES));

        bytes_transpose(from->payload + e, from->stride, turned[0], MXA_BLOCK);
        for (int i = 0; i < MXA_BLOCK; i++, out += PANEL) {
            vec block[MXA_BLOCK / VEC_LANES];

            for (int j = 0; j < PANEL; j += VEC_LANES)
                __builtin_prefetch(out + AHEAD + j, 1);
            vec_block_from_e4m3(turned[i], block, &nans);
            vec_store(out, vec_mul(block[0], low));
            vec_store(out + VEC_LANES, vec_mul(block[1], high));
        }
    }
    return !code_flags_any(nans);
}

#else

/* 32 codes of each of VEC_LANES rows, from `row` and column e on, as a vector of units each.
 * Returns 0 where one is a NaN. */
VEC_INLINE int decode_rows(const mxa_gemm_codes *from, int64_t row, int64_t e, vec tile[VEC_LANES])
{
    const uint8_t *scale = &from->scales[e / MXA_BLOCK][row];
    unit_decoder decoder;

    unit_decoder_start(&decoder);
    unit_decoder_scale(&decoder, scale[0]);
    for (int l = 0; l < VEC_LANES; l++) {
        uvec decoded[1];
        if (l > 0 && scale[l] != scale[l - 1])
            unit_decoder_scale(&decoder, scale[l]);
        units_from_codes(&decoder, from->payload + (row + l) * from->stride + e, decoded);
        tile[l] = vec_from_bits(decoded[0]);
    }
    return !unit_decoder_special(&decoder);
}

static int pack_b_codes(const mxa_gemm_codes *from, int64_t k, char *units, int64_t panel_bytes)
{
    int plain = 1;

    for (int64_t n = 0; n < MXA_BLOCK; n += VEC_LANES)
        for (int64_t e = 0; e < k; e += MXA_BLOCK) {
            float *out = (float *)(void *)(units + n / PANEL * panel_bytes) + n % PANEL;
            vec tile[VEC_LANES];

            plain &= decode_rows(from, n, e, tile);
            vec_transpose(tile);
            for (int l = 0; l < VEC_LANES; l++)
                vec_store(out + (e / UNIT_DEPTH + l) * PANEL, tile[l]);
        }
    return plain;
}

static int pack_a_codes(const mxa_gemm_codes *from, int64_t k, void *units)
{
    int plain = 1;

    for (int64_t row = 0; row < MXA_BLOCK; row += VEC_LANES)
        for (int64_t e = 0; e < k; e += MXA_BLOCK) {
            vec tile[VEC_LANES];

            plain &= decode_rows(from, row, e, tile);
            for (int l = 0; l < VEC_LANES; l++)
                vec_store((float *)units + (row + l) * A_ROW + e / UNIT_DEPTH, tile[l]);
        }
    return plain;
}

#endif

#endif
