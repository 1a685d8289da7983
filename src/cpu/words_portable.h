/* words_portable.h: vectors of 16-bit words in plain C with GCC's vector extension, and what the
 * words_ vocabulary means. quantize_body.h is written in it.
 *
 * A word stands for an FP32 value: its upper half, with the lowest bit set when anything in the
 * lower half is (rounding to odd). That keeps all that later rounding to 3 or fewer mantissa bits
 * needs, and whether the mantissa exceeds 0x600000; so amax and codes come out exact.
 *
 *   WORDS_NAME(x)            x with the suffix of the instruction set
 *   words, wmask             WORDS_LANES unsigned words, conditions
 *   CHUNK_WORDS              vectors that hold 32 words
 *   words_from_f32, _bf16, _f16   WORDS_LANES elements
 *   words_subtract           saturates at 0
 *   words_shift_left, _right      by a constant below 16
 *   words_shift_lanes        each lane right by its own amount, below 16
 *   words_less(a, b)         words below 0x8000
 *   words_select(m, x, y)    x where m, else y
 *   words_largest            of all lanes
 *   words_pack(out, w)       the low bytes of CHUNK_WORDS vectors, all below 256: 32 bytes
 *   bytes_transpose(...)     32 x 32 bytes, rows `from_stride` and `to_stride` apart
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_WORDS_H
#define MXA_CPU_WORDS_H

#include <stdint.h>
#include <string.h>

#define WORDS_NAME(x) x##_portable
enum { WORDS_LANES = 8, CHUNK_WORDS = 4 };

typedef uint16_t words __attribute__((vector_size(16)));
typedef int16_t wmask __attribute__((vector_size(16)));
typedef uint32_t dwords __attribute__((vector_size(32)));
typedef float floats __attribute__((vector_size(32)));

static inline words words_load(const uint16_t *p)
{
    words x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void words_store(uint16_t *p, words x)
{
    memcpy(p, &x, sizeof x);
}

static inline words words_set(uint16_t x)
{
    return (words){x, x, x, x, x, x, x, x};
}

/* FP32 bits to their upper halves, rounded to odd. */
static inline words words_narrow(const dwords *x)
{
    dwords odd = *x >> 16 | ((*x & 0xFFFF) + 0xFFFF) >> 16;
    return __builtin_convertvector(odd, words);
}

static inline words words_from_f32(const float *p)
{
    dwords x;
    memcpy(&x, p, sizeof x);
    return words_narrow(&x);
}

static inline words words_from_bf16(const uint16_t *p)
{
    return words_load(p);
}

/* FP16's exponent and mantissa in FP32's place stand for the value times 2^-112; those of infinity
 * and NaN need an exponent of all ones. */
static inline words words_from_f16(const uint16_t *p)
{
    dwords x = __builtin_convertvector(words_load(p), dwords);
    dwords shifted = (x & 0x7FFF) << 13;
    floats value = (floats)shifted * 0x1p112F;
    dwords special = (dwords)(shifted >= 0x0F800000) & 0x7F800000;
    dwords bits = (dwords)value | special | (x & 0x8000) << 16;
    return words_narrow(&bits);
}

static inline words words_and(words a, words b)
{
    return a & b;
}

static inline words words_or(words a, words b)
{
    return a | b;
}

static inline words words_add(words a, words b)
{
    return a + b;
}

static inline words words_select(wmask m, words yes, words no)
{
    return (yes & (words)m) | (no & ~(words)m);
}

static inline words words_max(words a, words b)
{
    return words_select(a > b, a, b);
}

static inline words words_min(words a, words b)
{
    return words_select(a < b, a, b);
}

static inline words words_subtract(words a, words b)
{
    return (a - b) & (words)(a > b);
}

static inline words words_shift_left(words x, int n)
{
    return x << (uint16_t)n;
}

static inline words words_shift_right(words x, int n)
{
    return x >> (uint16_t)n;
}

static inline words words_shift_lanes(words x, words n)
{
    return x >> n;
}

static inline wmask words_less(words a, words b)
{
    return a < b;
}

static inline wmask wmask_and(wmask a, wmask b)
{
    return a & b;
}

static inline wmask wmask_or(wmask a, wmask b)
{
    return a | b;
}

static inline int wmask_any(wmask m)
{
    uint64_t half[2];
    memcpy(half, &m, sizeof half);
    return (half[0] | half[1]) != 0;
}

static inline uint16_t words_largest(words x)
{
    uint16_t largest = 0;
    for (int i = 0; i < WORDS_LANES; i++) {
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

static inline void words_pack(uint8_t *out, const words w[CHUNK_WORDS])
{
    for (int i = 0; i < CHUNK_WORDS; i++) {
        for (int j = 0; j < WORDS_LANES; j++) {
            out[i * WORDS_LANES + j] = (uint8_t)w[i][j];
        }
    }
}

static inline void bytes_transpose(const uint8_t *from, int64_t from_stride, uint8_t *to,
                                   int64_t to_stride)
{
    for (int64_t i = 0; i < 32; i++) {
        for (int64_t j = 0; j < 32; j++) {
            to[i * to_stride + j] = from[j * from_stride + i];
        }
    }
}

#endif
