/* bytes_transpose.h: bytes transposed by unpacks: 32 x 32 and 64 x 16 with AVX2, for words_avx2.h
 * and words_avx512.h (meanings: words_portable.h), and 16 x 16 with SSE2, for the emulator's
 * products.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_BYTES_TRANSPOSE_H
#define MXA_CPU_BYTES_TRANSPOSE_H

#include <immintrin.h>
#include <stdint.h>

/* 16 x 16. Each stage interleaves row i with row i + 8: the four bits of a byte's row number move
 * into its column number, one a stage, and after four stages row and column have changed places. */
static inline void bytes_transpose_16(const uint8_t *from, int64_t from_stride, uint8_t *to,
                                      int64_t to_stride)
{
    __m128i a[16], b[16];
    for (int i = 0; i < 16; i++) {
        a[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * from_stride));
    }
    for (int stage = 0; stage < 2; stage++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
            b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
        }
        for (int i = 0; i < 8; i++) {
            a[2 * i] = _mm_unpacklo_epi8(b[i], b[i + 8]);
            a[2 * i + 1] = _mm_unpackhi_epi8(b[i], b[i + 8]);
        }
    }
    for (int i = 0; i < 16; i++) {
        _mm_storeu_si128((__m128i *)(void *)(to + i * to_stride), a[i]);
    }
}

#if defined(__AVX2__)

/* 32 rows of 16 columns: row i and row i + 16 share a vector, and so do both halves of what becomes
 * a row. */
static inline void bytes_turn(const uint8_t *from, int64_t from_stride, __m256i a[16])
{
    __m256i b[16];
    for (int i = 0; i < 16; i++) {
        const uint8_t *upper = from + i * from_stride;
        a[i] = _mm256_loadu2_m128i((const __m128i *)(const void *)(upper + 16 * from_stride),
                                   (const __m128i *)(const void *)upper);
    }
    for (int stage = 0; stage < 2; stage++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = _mm256_unpacklo_epi8(a[i], a[i + 8]);
            b[2 * i + 1] = _mm256_unpackhi_epi8(a[i], a[i + 8]);
        }
        for (int i = 0; i < 8; i++) {
            a[2 * i] = _mm256_unpacklo_epi8(b[i], b[i + 8]);
            a[2 * i + 1] = _mm256_unpackhi_epi8(b[i], b[i + 8]);
        }
    }
}

/* 32 x 32. */
static inline void bytes_transpose(const uint8_t *from, int64_t from_stride, uint8_t *to,
                                   int64_t to_stride)
{
    for (int j = 0; j < 32; j += 16, from += 16, to += 16 * to_stride) {
        __m256i a[16];
        bytes_turn(from, from_stride, a);
        for (int i = 0; i < 16; i++) {
            _mm256_storeu_si256((__m256i *)(void *)(to + i * to_stride), a[i]);
        }
    }
}

static inline void bytes_transpose_lines(const uint8_t *from, int64_t from_stride, int64_t rows,
                                         int64_t width, uint8_t *to, int64_t to_stride)
{
    enum { ROWS_MOST = 256 };
    _Alignas(32) uint8_t lines[16][ROWS_MOST];
    for (int64_t j = 0; rows == 64 && j < width; j += 16, from += 16) {
        __m256i upper[16], lower[16];
        bytes_turn(from, from_stride, upper);
        bytes_turn(from + 32 * from_stride, from_stride, lower);
        for (int i = 0; i < 16; i++, to += to_stride) {
            _mm256_stream_si256((__m256i *)(void *)to, upper[i]);
            _mm256_stream_si256((__m256i *)(void *)(to + 32), lower[i]);
        }
    }
    for (int64_t j = 0; rows > 64 && j < width; j += 16, from += 16) {
        for (int64_t s = 0; s < rows; s += 32) {
            __m256i a[16];
            bytes_turn(from + s * from_stride, from_stride, a);
            for (int i = 0; i < 16; i++) {
                _mm256_store_si256((__m256i *)(void *)(lines[i] + s), a[i]);
            }
        }
        for (int i = 0; i < 16; i++, to += to_stride) {
            for (int64_t s = 0; s < rows; s += 32) {
                _mm256_stream_si256(
                    (__m256i *)(void *)(to + s),
                    _mm256_load_si256((const __m256i *)(const void *)(lines[i] + s)));
            }
        }
    }
}

static inline void bytes_copy_lines(const uint8_t *from, int64_t from_stride, int64_t rows,
                                    int64_t width, uint8_t *to, int64_t to_stride)
{
    for (int64_t i = 0; i < rows; i++, from += from_stride, to += to_stride) {
        for (int64_t j = 0; j < width; j += 32) {
            _mm256_stream_si256((__m256i *)(void *)(to + j),
                                _mm256_load_si256((const __m256i *)(const void *)(from + j)));
        }
    }
}

#endif

#endif
