/* product_integers_body.h: rows and columns of FP8 as 16-bit integers; AVX2.
 *
 * Within one step of 32 products the bits of an E4M3 row mostly lie within 14 of one another. Then
 * the row is integers times a power of two, and 16-bit multiply-adds give sums that nothing was cut
 * from. That is the model's sum wherever no term has bits below its cut, 25 places under the
 * largest one: known for sure from the last bits of row and column, four k's at a time, and from
 * the largest that their products could be. Elsewhere the largest product is looked for; then the
 * 32 products are cut one by one, or the block goes the way of product_body.h. unit    2^unit is
 * worth 1 of a row's or column's integers last    exponent of the last bit of an element that is
 * not 0 low     an element that is smaller than its integers' reach: 2^-FINER units, added apart No
 * sum passes 2^31: an integer row's norm is below 2^15.5 (Cauchy-Schwarz). Conversions to FP32 are
 * made in the processor's mode of rounding toward zero.
 *
 * Included by product_bytes_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/bytes_transpose.h"

#include <immintrin.h>

enum {
    ROWS = 4,  /* worked on together */
    LANES = 8, /* integers of a vector */
    PAIRS = COUNT / 2,
    FRACTION = 25,
    FINER = 10,     /* a row's smallest elements are above 2^-10 of its units */
    MOST_LOWS = 64, /* of B; beyond, the general way is as fast */
    MOST_LOW = 6,   /* of a row or column, so that their sums stay below 2^31 */
    MOST_INEXACT = 16,
    MOST_CUT = 8, /* outputs of a block cut one by one */
    TROUBLE = 3,  /* a block's outputs looked at, in the mean, beyond which it is faster; */
    GENERAL = 8,  /* what a block that went it counts */
    GROUP = 4,    /* k's whose last bits have one minimum */
    GROUPS = COUNT / GROUP,
    FAR8 = 63,           /* last bit of nothing; twice it fits a byte */
    UP = 2,              /* zeros at the end of sums that are taken away; accumulators below */
    TERM_LOG2 = 30,      /* 2^TERM_LOG2 are then added to them within 32 bits */
    LEAST_UNIT = -100,   /* of sums that become FP32 without a look; up to 0 */
    LARGE_LOG2 = 30,     /* sums beyond it are the general way's, */
    LEAST_FIELD = 27,    /* and where all terms are below it, */
    MOST_FIELD = 247,    /* or one beyond: as FP32's exponents */
    CODES = COLUMNS + 32 /* a line of codes: see STRIDE */
};

/* 32 codes, taken apart. */
typedef struct taken {
    __m256i code;
    __m256i integer[2]; /* k in the order of _mm256_unpacklo, _mm256_unpackhi */
    int unit;
    uint32_t low; /* bit k: not in the integers */
    int base;     /* field of the integers' unit */
    int special;  /* a NaN or an infinity */
} taken;

typedef struct low_element {
    int16_t column, k; /* k in the order of the integers */
    int16_t integer;   /* in finer units */
} low_element;

/* One of B's, in the place of its column and k among eight columns' pairs. */
typedef struct low_vector {
    int16_t pair[LANES][2];
    uint16_t first, k; /* the columns; its pair of k's */
    int is_next;       /* there was one for these columns before */
} low_vector;

/* B of a step. */
typedef struct integers {
    /* lines of these are multiples of 32 bytes, and start at such */
    _Alignas(64) int32_t pair[PAIRS][COLUMNS + LANES];
    int32_t scale[COLUMNS], scaled_unit[COLUMNS]; /* unit + scale */
    uint8_t by_column[COLUMNS][COUNT], by_k[COUNT][CODES];
    int8_t exponent[COUNT][CODES]; /* once `has_exponents` */
    int8_t last[GROUPS][CODES];    /* above the column's unit */
    float finer[COLUMNS];          /* 2^-(scaled_unit - 127) */
    int least_unit, most_unit;     /* of scaled_unit */
    int special[COLUMNS / BLOCK], has_exponents;
    low_element low[MOST_LOWS + MOST_LOW]; /* by column */
    low_vector low_vector[MOST_LOWS + MOST_LOW];
    int lows;
    uint8_t has_low[COLUMNS / LANES];
} integers;

/* One row of A. */
typedef struct integer_row {
    int32_t pair[PAIRS], last[GROUPS]; /* last: the same in all four bytes, as exponent */
    int32_t exponent[COUNT];           /* once asked for */
    uint8_t code[COUNT];
    int unit, scale, has_exponents, special, lows;
    low_element low[MOST_LOW];
} integer_row;

static __m256i load_ints(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

static int bias_of(int mantissa_bits)
{
    return mantissa_bits == 3 ? 7 : 15;
}

/* The largest byte, of bytes that are not negative. */
static int largest_byte(__m256i bytes)
{
    __m128i x = _mm_max_epu8(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    x = _mm_sub_epi8(_mm_set1_epi8((char)0xFF), x);
    x = _mm_min_epu8(x, _mm_srli_epi16(x, 8));
    return 0xFF - (_mm_cvtsi128_si32(_mm_minpos_epu16(x)) & 0xFF);
}

/* significand * 2^(field - base), signed; 0 where that is not an integer. `reach` above base is
 * most. */
static void to_integers(taken *t, __m256i significand, __m256i field, int base)
{
    const __m256i low_of_power = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, (char)128, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high_of_power = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 0));
    const __m256i zero = _mm256_setzero_si256(),
                  up = _mm256_sub_epi8(field, _mm256_set1_epi8((char)base));
    const __m256i low = _mm256_shuffle_epi8(low_of_power, up);
    const __m256i high = _mm256_shuffle_epi8(high_of_power, up);
    const __m256i sign = _mm256_cmpgt_epi8(zero, t->code);
    __m256i s[2] = {_mm256_unpacklo_epi8(sign, sign), _mm256_unpackhi_epi8(sign, sign)};
    __m256i x[2] = {_mm256_mullo_epi16(_mm256_unpacklo_epi8(significand, zero),
                                       _mm256_unpacklo_epi8(low, high)),
                    _mm256_mullo_epi16(_mm256_unpackhi_epi8(significand, zero),
                                       _mm256_unpackhi_epi8(low, high))};
    for (int h = 0; h < 2; h++) {
        t->integer[h] = _mm256_sub_epi16(_mm256_xor_si256(x[h], s[h]), s[h]);
    }
}

/* Whether the norm is too large for sums of 32 bits. */
static int is_large(const taken *t)
{
    float squares = 0;
    for (int h = 0; h < 2; h++) {
        const __m256 two = _mm256_cvtepi32_ps(_mm256_madd_epi16(t->integer[h], t->integer[h]));
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        squares += _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
    return squares > 2.1e9F;
}

static void take_codes(taken *t, const uint8_t *code, int mantissa_bits)
{
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi8(1);
    const int bias = bias_of(mantissa_bits), reach = mantissa_bits == 3 ? 10 : 11;
    t->code = _mm256_loadu_si256((const __m256i *)(const void *)code);
    const __m256i magnitude = _mm256_and_si256(t->code, _mm256_set1_epi8(0x7F));
    const __m256i nothing = _mm256_cmpeq_epi8(magnitude, zero);
    const __m256i field = _mm256_and_si256(_mm256_srli_epi16(magnitude, mantissa_bits),
                                           _mm256_set1_epi8((char)(0x7F >> mantissa_bits)));
    const __m256i is_normal = _mm256_cmpgt_epi8(field, zero);
    const __m256i at_least_1 = _mm256_max_epi8(field, one);
    const __m256i hidden =
        _mm256_and_si256(is_normal, _mm256_set1_epi8((char)(1 << mantissa_bits)));
    const __m256i significand = _mm256_or_si256(
        hidden, _mm256_and_si256(magnitude, _mm256_set1_epi8((char)((1 << mantissa_bits) - 1))));
    const int special = mantissa_bits == 3 ? MXA_FP8_NAN : 0x7C;
    t->special = _mm256_movemask_epi8(
                     _mm256_cmpgt_epi8(magnitude, _mm256_set1_epi8((char)(special - 1)))) != 0;
    int base = largest_byte(_mm256_andnot_si256(nothing, at_least_1)) - reach;
    to_integers(t, significand, at_least_1, base);
    if (is_large(t)) {
        to_integers(t, significand, at_least_1, ++base);
    }
    t->low = (uint32_t)_mm256_movemask_epi8(
        _mm256_andnot_si256(nothing, _mm256_cmpgt_epi8(_mm256_set1_epi8((char)base), at_least_1)));
    t->base = base;
    t->unit = base - bias - mantissa_bits;
}

/* The low elements of 32 codes; MOST_LOW + 1: more than that, or one too small. */
static int take_lows(const taken *t, const uint8_t *code, int mantissa_bits, int column,
                     low_element *low)
{
    static const uint8_t order[4] = {0, 2, 1, 3}; /* of eights, in unpacklo and unpackhi */
    int count = 0;
    for (uint32_t rest = t->low; rest; rest &= rest - 1) {
        const int k = __builtin_ctz(rest),
                  field = code[k] >> mantissa_bits & (0x7F >> mantissa_bits);
        const int up = (field ? field : 1) - t->base + FINER;
        const int significand =
            (code[k] & ((1 << mantissa_bits) - 1)) | (field ? 1 << mantissa_bits : 0);
        if (count == MOST_LOW || up < 0) {
            return MOST_LOW + 1;
        }
        low[count].column = (int16_t)column;
        low[count].k = (int16_t)(order[k / 8] * 8 + k % 8);
        low[count++].integer = (int16_t)(code[k] & 0x80 ? -(significand << up) : significand << up);
    }
    return count;
}

/* Exponents of codes, ZERO8 for zero. */
static __m256i exponents_of(__m256i code, int mantissa_bits)
{
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi8(0x7F));
    const __m256i field = _mm256_and_si256(_mm256_srli_epi16(magnitude, mantissa_bits),
                                           _mm256_set1_epi8((char)(0x7F >> mantissa_bits)));
    const __m256i e = _mm256_sub_epi8(_mm256_max_epi8(field, _mm256_set1_epi8(1)),
                                      _mm256_set1_epi8((char)bias_of(mantissa_bits)));
    return _mm256_blendv_epi8(e, _mm256_set1_epi8(ZERO8),
                              _mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()));
}

/* Exponents of the last bits of codes, FAR8 for zero. */
static __m256i last_bits(__m256i code, int mantissa_bits)
{
    /* zeros below the last bit of a mantissa, less its bits; of 0: below the hidden bit */
    const __m256i zeros = _mm256_broadcastsi128_si256(
        mantissa_bits == 3 ? _mm_setr_epi8(0, -3, -2, -3, -1, -3, -2, -3, 0, 0, 0, 0, 0, 0, 0, 0)
                           : _mm_setr_epi8(0, -2, -1, -2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i mantissa =
        _mm256_and_si256(code, _mm256_set1_epi8((char)((1 << mantissa_bits) - 1)));
    const __m256i e = exponents_of(code, mantissa_bits);
    return _mm256_blendv_epi8(_mm256_add_epi8(e, _mm256_shuffle_epi8(zeros, mantissa)),
                              _mm256_set1_epi8(FAR8),
                              _mm256_cmpeq_epi8(e, _mm256_set1_epi8(ZERO8)));
}

/* Last bits in units; nothing's is far above, such that two of it fit a byte. */
static __m256i above_unit(__m256i last, __m256i unit)
{
    return _mm256_min_epi8(_mm256_subs_epi8(last, unit), _mm256_set1_epi8(FAR8));
}

/* B's codes by column and by k. */
static void arrange(const mxa_emu_product *p, integers *b)
{
    const uint8_t *from = p->b;
    for (int j = 0; j < p->n; j += 16) {
        for (int k = 0; k < COUNT; k += 16) {
            if (p->b_k == 1) {
                bytes_transpose_16(from + j * p->b_n + k, p->b_n, &b->by_k[k][j], CODES);
            } else {
                bytes_transpose_16(from + k * p->b_k + j, p->b_k, &b->by_column[j][k], COUNT);
            }
        }
    }
    for (int j = 0; p->b_k == 1 && j < p->n; j++) {
        memcpy(b->by_column[j], from + j * p->b_n, COUNT);
    }
    for (int k = 0; p->b_k != 1 && k < COUNT; k++) {
        memcpy(b->by_k[k], from + k * p->b_k, (size_t)p->n);
    }
}

/* Of 32 columns: last bits, and what their units have in common. */
static void load_block(integers *b, int j, int mantissa_bits, __m256i unit)
{
    for (int g = 0; g < GROUPS; g++) {
        __m256i last = _mm256_set1_epi8(FAR8);
        for (int k = g * GROUP; k < (g + 1) * GROUP; k++) {
            last = _mm256_min_epi8(last, last_bits(load_ints(&b->by_k[k][j]), mantissa_bits));
        }
        _mm256_storeu_si256((__m256i *)(void *)&b->last[g][j], above_unit(last, unit));
    }
    for (int l = j; l < j + BLOCK && !b->special[j / BLOCK]; l++) {
        const int of = b->scaled_unit[l];
        const int32_t bits = (254 - of) << 23; /* 2^(127 - of) */
        b->least_unit = of < b->least_unit ? of : b->least_unit;
        b->most_unit = of > b->most_unit ? of : b->most_unit;
        memcpy(&b->finer[l], &bits, sizeof bits);
    }
}

/* 0: more low elements than there is room for. */
static int load_integers(const mxa_emu_product *p, integers *b)
{
    int8_t unit8[COLUMNS];
    const int mantissa_bits = mxa_dtype_mantissa_bits(p->step.b_type);
    arrange(p, b);
    memset(b->special, 0, sizeof b->special);
    memset(b->has_low, 0, sizeof b->has_low);
    b->lows = 0;
    b->has_exponents = 0;
    b->least_unit = 1000;
    b->most_unit = -1000;
    for (int j = 0; j < p->n; j++) {
        taken t;
        int32_t pair[PAIRS];
        take_codes(&t, b->by_column[j], mantissa_bits);
        memcpy(pair, t.integer, sizeof pair);
        for (int i = 0; i < PAIRS; i++) {
            b->pair[i][j] = pair[i];
        }
        unit8[j] = (int8_t)t.unit;
        b->scale[j] = p->scale_b ? p->scale_b[j] : 127;
        b->scaled_unit[j] = t.unit + b->scale[j];
        b->special[j / BLOCK] |= t.special | (b->scale[j] == MXA_SCALE_NAN);
        if (t.low) {
            const int lows = take_lows(&t, b->by_column[j], mantissa_bits, j, &b->low[b->lows]);
            if (lows > MOST_LOW || b->lows + lows > MOST_LOWS) {
                return 0;
            }
            for (int i = b->lows; i < b->lows + lows; i++) {
                const int k = b->low[i].k, first = j / LANES * LANES;
                b->low_vector[i] = (low_vector){.first = (uint16_t)first,
                                                .k = (uint16_t)(k / 2),
                                                .is_next = b->has_low[j / LANES]};
                b->low_vector[i].pair[j % LANES][k % 2] = b->low[i].integer;
                b->has_low[j / LANES] = 1;
            }
            b->lows += lows;
        }
    }
    for (int j = 0; j < p->n; j += BLOCK) {
        load_block(b, j, mantissa_bits, load_ints(&unit8[j]));
    }
    return 1;
}

static void load_integer_row(const mxa_emu_product *p, int i, integer_row *a)
{
    const int mantissa_bits = mxa_dtype_mantissa_bits(p->step.a_type);
    taken t;
    const uint8_t *code = (const uint8_t *)p->a + i * COUNT;
    take_codes(&t, code, mantissa_bits);
    memcpy(a->code, code, COUNT);
    memcpy(a->pair, t.integer, sizeof a->pair);
    __m256i last = last_bits(t.code, mantissa_bits);
    last = above_unit(last, _mm256_set1_epi8((char)t.unit));
    last = _mm256_min_epi8(last, _mm256_srli_epi32(last, 16));
    last = _mm256_min_epi8(last, _mm256_srli_epi32(last, 8));
    int8_t least[COUNT];
    _mm256_storeu_si256((__m256i *)(void *)least, last);
    for (int g = 0; g < GROUPS; g++) {
        a->last[g] = (uint8_t)least[g * GROUP] * 0x01010101;
    }
    a->unit = t.unit;
    a->has_exponents = 0;
    a->lows = t.low ? take_lows(&t, code, mantissa_bits, 0, a->low) : 0;
    a->scale = p->scale_a ? p->scale_a[i] : 127;
    a->special = t.special || a->scale == MXA_SCALE_NAN || a->lows > MOST_LOW;
    a->lows = a->special ? 0 : a->lows;
}

/* The exponents of all elements, for those who ask. */
static void load_exponents(const mxa_emu_product *p, integers *b)
{
    const int mantissa_bits = mxa_dtype_mantissa_bits(p->step.b_type);
    for (int k = 0; k < COUNT && !b->has_exponents; k++) {
        for (int j = 0; j < p->n; j += BLOCK) {
            _mm256_storeu_si256((__m256i *)(void *)&b->exponent[k][j],
                                exponents_of(load_ints(&b->by_k[k][j]), mantissa_bits));
        }
    }
    b->has_exponents = 1;
}

static void load_row_exponents(const mxa_emu_product *p, integer_row *a)
{
    int8_t e[COUNT];
    _mm256_storeu_si256((__m256i *)(void *)e,
                        exponents_of(load_ints(a->code), mxa_dtype_mantissa_bits(p->step.a_type)));
    for (int k = 0; k < COUNT; k += 8) {
        __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&e[k]));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x01010101));
        _mm256_storeu_si256((__m256i *)(void *)&a->exponent[k], x);
    }
    a->has_exponents = 1;
}
