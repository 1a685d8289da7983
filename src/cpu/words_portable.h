/* words_portable.h: vectors of 16-bit words in plain C with GCC's vector extension, and what the
 * words_ vocabulary means. quantize_body.h is written in it.
 *
 * A word stands for an FP32 value: its upper half, with the lowest bit set when anything in the
 * lower half is (rounding to odd). That keeps all that later rounding to 3 or fewer mantissa bits
 * needs, and whether the mantissa exceeds 0x600000; so amax and codes come out exact.
 *
 * A cut word is the upper half alone, on the understanding that something was lost: a half then
 * always goes up, and 0x60 exceeds 0x600000. Of a value with nothing in its lower half it is one
 * less where that would be wrong. Cheaper to make and to round, enough for normal codes; what else
 * there is needs FP32 again.
 *
 *   WORDS_NAME(x)            x with the suffix of the instruction set
 *   words, wmask             WORDS_LANES unsigned words, conditions
 *   CHUNK_WORDS              vectors that hold 32 words
 *   TURN_BLOCKS              blocks of 32 tokens that leave at once where a large payload is
 *                            transposed too: 8 is faster on Zen 3, 2 on a Xeon with AVX-512
 *   words_from_f32, _f16(p, mixed)   WORDS_LANES elements; mixed: in an order of their own, which
 *                            codes_signed ends
 *   words_subtract           saturates at 0
 *   words_shift_left, _right      by a constant below 16
 *   words_shift_lanes        each lane right by its own amount, below 16
 *   words_shift_signed       right by a constant, sign bits coming in
 *   words_pairs(p)           lanes 2i and 2i+1 hold the halves of *p
 *   words_add_bit(x, w, n)   x + bit n of w
 *   words_less(a, b)         words below 0x8000
 *   words_any(x)             1 when one is not 0
 *   words_select(m, x, y)    x where m, else y
 *   words_largest            of all lanes
 *   words_pack(out, w)       the low bytes of CHUNK_WORDS vectors, all below 256: 32 bytes
 *   words_fold(w)            of each of the 4 chunks in w[4 * CHUNK_WORDS] a quarter of a vector
 *                            whose largest word is the chunk's
 *   words_fold_chunks(c)     the same of a vector for each chunk, c[4]
 *   words_maxima(p, out)     the largest word of each of 32 chunks, in order, out of 8 such vectors
 *                            at p; out[CHUNK_WORDS]
 *   words_store_twice(p, x)  each word in both halves of a uint32_t
 *   codes                    2 * WORDS_LANES bytes, in an order of their own
 *   codes_join(a, b)         of signed words, saturated to [0, 255]
 *   codes_any_below(x, n)    1 when one is; n > 0
 *   codes_signed(x, a, b, mixed)   x with the signs of the words a, b it came from, in order
 *   codes_load(p)            codes in order
 *   codes_store(out, x, stream)   stream: past the caches, out aligned to 2 * WORDS_LANES
 *   codes_drain()            orders streamed stores before all later ones
 *   bytes_transpose(...)     32 x 32 bytes, rows `from_stride` and `to_stride` apart
 *   bytes_transpose_lines    rows (a multiple of 64, at most 256) of `columns` bytes, a multiple of
 *                            32; each column becomes lines (64 bytes, aligned), which leave past
 *                            the caches
 *   bytes_copy_lines         rows of `columns` bytes, a multiple of 64, likewise
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_WORDS_H
#define MXA_CPU_WORDS_H

#include <stdint.h>
#include <string.h>

#define WORDS_NAME(x) x##_portable
enum { WORDS_LANES = 8, CHUNK_WORDS = 4, TURN_BLOCKS = 2 };

typedef uint16_t words __attribute__((vector_size(16)));
typedef int16_t wmask __attribute__((vector_size(16)));
typedef uint32_t dwords __attribute__((vector_size(32)));
typedef float floats __attribute__((vector_size(32)));
typedef uint8_t codes __attribute__((vector_size(16)));
typedef uint8_t half_codes __attribute__((vector_size(8)));

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

static inline words words_from_f32(const float *p, int mixed)
{
    dwords x;
    (void)mixed;
    memcpy(&x, p, sizeof x);
    return words_narrow(&x);
}

/* FP16's exponent and mantissa in FP32's place stand for the value times 2^-112; those of infinity
 * and NaN need an exponent of all ones. */
static inline words words_from_f16(const uint16_t *p, int mixed)
{
    (void)mixed;
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

static inline words words_xor(words a, words b)
{
    return a ^ b;
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

static inline words words_shift_signed(words x, int n)
{
    typedef int16_t signed_words __attribute__((vector_size(16)));
    return (words)((signed_words)x >> (int16_t)n);
}

static inline words words_add_bit(words x, words w, int n)
{
    return x + (w >> (uint16_t)n & 1);
}

static inline words words_pairs(const uint32_t *p)
{
    words x;
    const uint32_t pairs[4] = {*p, *p, *p, *p};
    memcpy(&x, pairs, sizeof x);
    return x;
}

static inline wmask words_less(words a, words b)
{
    return a < b;
}

static inline int words_any(words x)
{
    uint64_t half[2];
    memcpy(half, &x, sizeof half);
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
        const half_codes low = __builtin_convertvector(w[i], half_codes);
        memcpy(out + i * WORDS_LANES, &low, sizeof low);
    }
}

static inline words words_fold_chunks(const words largest[4])
{
    words folded;
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < 2; i++) {
            const uint16_t a = largest[c][i], b = largest[c][i + 2], x = largest[c][i + 4],
                           y = largest[c][i + 6];
            const uint16_t ab = a > b ? a : b, xy = x > y ? x : y;
            folded[2 * c + i] = ab > xy ? ab : xy;
        }
    }
    return folded;
}

static inline words words_fold(const words *w)
{
    words largest[4];
    for (int c = 0; c < 4; c++) {
        largest[c] = w[c * CHUNK_WORDS];
        for (int i = 1; i < CHUNK_WORDS; i++) {
            largest[c] = words_max(largest[c], w[c * CHUNK_WORDS + i]);
        }
    }
    return words_fold_chunks(largest);
}

static inline void words_maxima(const uint16_t *p, words *out)
{
    for (int i = 0; i < 4; i++) {
        dwords pairs;
        memcpy(&pairs, p + 2 * i * WORDS_LANES, sizeof pairs);
        out[i] = words_max(__builtin_convertvector(pairs, words),
                           __builtin_convertvector(pairs >> 16, words));
    }
}

static inline void words_store_twice(uint32_t *p, words x)
{
    const dwords wide = __builtin_convertvector(x, dwords), twice = wide | wide << 16;
    memcpy(p, &twice, sizeof twice);
}

static inline codes codes_set(uint8_t x)
{
    return (codes){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

static inline half_codes half_codes_from(words x)
{
    x &= ~((words)((x >> 15) != 0));
    return __builtin_convertvector(words_min(x, words_set(255)), half_codes);
}

static inline codes codes_both(half_codes a, half_codes b)
{
    codes both;
    memcpy(&both, &a, sizeof a);
    memcpy((char *)&both + sizeof a, &b, sizeof b);
    return both;
}

static inline codes codes_join(words a, words b)
{
    return codes_both(half_codes_from(a), half_codes_from(b));
}

static inline codes codes_min(codes a, codes b)
{
    codes less = (codes)(a < b);
    return (a & less) | (b & ~less);
}

static inline int codes_any_below(codes x, uint8_t n)
{
    uint64_t half[2];
    codes below = (codes)(x < codes_set(n));
    memcpy(half, &below, sizeof half);
    return (half[0] | half[1]) != 0;
}

static inline codes codes_signed(codes x, words a, words b, int mixed)
{
    (void)mixed;
    codes signs = codes_both(__builtin_convertvector(a >> 8 & 0x80, half_codes),
                             __builtin_convertvector(b >> 8 & 0x80, half_codes));
    return x | signs;
}

static inline codes codes_load(const uint8_t *p)
{
    codes x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void codes_store(uint8_t *out, codes x, int stream)
{
    (void)stream;
    memcpy(out, &x, sizeof x);
}

static inline void codes_drain(void)
{
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

static inline void bytes_transpose_lines(const uint8_t *from, int64_t from_stride, int64_t rows,
                                         int64_t columns, uint8_t *to, int64_t to_stride)
{
    for (int64_t row = 0; row < rows; row += 32)
        for (int64_t j = 0; j < columns; j += 32)
            bytes_transpose(from + row * from_stride + j, from_stride, to + j * to_stride + row,
                            to_stride);
}

static inline void bytes_copy_lines(const uint8_t *from, int64_t from_stride, int64_t rows,
                                    int64_t columns, uint8_t *to, int64_t to_stride)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * to_stride, from + i * from_stride, (size_t)columns);
    }
}

#endif
