/* product_integers_body.h: rows and columns of FP8 as 16-bit integers; AVX2.
 *
 * Within one step of 32 products the bits of an E4M3 row mostly lie within 14 of one another. Then
 * the row is integers times a power of two, and 16-bit multiply-adds give sums that nothing was cut
 * from. That is the model's sum wherever no term has bits below its cut, 25 places under the
 * largest one: known for sure from the last bits of row and column, four k's at a time, and from
 * the largest that their products could be. Elsewhere the largest product is looked for; then the
 * 32 products are cut one by one, or the block goes the way of product_body.h.
 *
 * unit: 2^unit is worth 1 of a line's integers. last: exponent of the last bit of an element that
 * is not 0. low: an element that is smaller than its integers' reach, in 2^-FINER units, added
 * apart. No sum passes 2^31: the norm of a line of integers is below 2^15.5 (Cauchy-Schwarz).
 * Conversions to FP32 are made in the processor's mode of rounding toward zero.
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
    UP = 1,              /* zeros at the end of sums that are taken away; accumulators below */
    TERM_LOG2 = 30,      /* 2^TERM_LOG2 are then added to them within 32 bits */
    LEAST_UNIT = -100,   /* of sums that become FP32 without a look; up to 0 */
    LARGE_LOG2 = 30,     /* sums beyond it are the general way's, */
    LEAST_FIELD = 27,    /* and where all terms are below it, */
    MOST_FIELD = 247,    /* or one beyond: as FP32's exponents */
    CODES = COLUMNS + 32 /* a line of codes: see STRIDE */
};

typedef struct low_element {
    int16_t k, integer; /* in finer units */
} low_element;

/* Lines of an operand, rows of A or columns of B, as integers. */
typedef struct operand {
    /* lines of these are multiples of 32 bytes, and start at such */
    _Alignas(64) int32_t pair[PAIRS][COLUMNS + LANES]; /* two k's of a line */
    const uint8_t *codes;                              /* by line: the caller's, or in `lines` */
    uint8_t lines[COLUMNS][COUNT], by_k[COUNT][CODES];
    int8_t last[GROUPS][CODES];                   /* above the line's unit */
    int32_t scale[COLUMNS], scaled_unit[COLUMNS]; /* unit + scale */
    uint32_t special[COLUMNS / BLOCK];            /* bits of lines that are not for integers */
    uint8_t lows[COLUMNS];
    low_element low[COLUMNS][MOST_LOW];
    int mantissa_bits;
} operand;

static const uint8_t *line_of(const operand *o, int line)
{
    return o->codes + line * COUNT;
}

/* One of B's low elements, in the place of its column and k among eight columns' pairs. */
typedef struct low_vector {
    int16_t pair[LANES][2];
    uint16_t column, k;
} low_vector;

/* B of a step, and what only B has. */
typedef struct integers {
    operand of;
    float finer[COLUMNS];          /* 2^-(scaled_unit - 127) */
    int least_unit, most_unit;     /* of scaled_unit */
    int8_t exponent[COUNT][CODES]; /* once `has_exponents` */
    int has_exponents;
    low_vector low_vector[MOST_LOWS]; /* by column */
    int lows;
    uint8_t has_low[COLUMNS / LANES];
} integers;

static __m256i load_ints(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

static void store_ints(void *at, __m256i x)
{
    _mm256_storeu_si256((__m256i *)at, x);
}

/* The largest byte, of bytes that are not negative. */
static int largest_byte(__m256i bytes)
{
    __m128i x = _mm_max_epu8(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    x = _mm_sub_epi8(_mm_set1_epi8((char)0xFF), x);
    x = _mm_min_epu8(x, _mm_srli_epi16(x, 8));
    return 0xFF - (_mm_cvtsi128_si32(_mm_minpos_epu16(x)) & 0xFF);
}

static int bias_of(int mantissa_bits)
{
    return mantissa_bits == 3 ? 7 : 15;
}

/* ------------------------------------------------------------------------------------------------
 * An operand, 32 lines at a time
 * --------------------------------------------------------------------------------------------- */

/* Thirty-two lines between codes and integers. Their bytes are in the order that unpacks turn into
 * eights of lines: see `in_eights`. */
typedef struct taken {
    __m256i base; /* field of the integers' unit, less 1 */
    __m256i low;  /* negative: some element is not 0 and below the integers */
} taken;

/* Fours of lines 0, 2, 4, 6 | 1, 3, 5, 7; and back. */
static __m256i in_eights(__m256i bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

static __m256i in_order(__m256i bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* A code's significand, and how many places it goes up: its field, at least 1, less base. */
typedef struct parts {
    __m256i code, significand, up;
} parts;

PRODUCT_INLINE parts take_apart(const operand *o, int j, int k, int mantissa_bits, taken *t)
{
    const __m256i one = _mm256_set1_epi8((char)(1 << mantissa_bits));
    parts p;
    p.code = in_eights(load_ints(&o->by_k[k][j]));
    const __m256i magnitude = _mm256_and_si256(p.code, _mm256_set1_epi8(0x7F));
    const __m256i field =
        _mm256_and_si256(p.code, _mm256_set1_epi8((char)(0x80 - (1 << mantissa_bits))));
    const __m256i above = _mm256_subs_epu8(field, one); /* of 0 and 1: 0 */
    p.significand = _mm256_sub_epi8(magnitude, above);
    p.up = _mm256_sub_epi8(_mm256_srli_epi16(above, mantissa_bits), t->base);
    const __m256i some = _mm256_cmpgt_epi8(magnitude, _mm256_setzero_si256());
    t->low = _mm256_or_si256(t->low, _mm256_and_si256(p.up, some));
    return p;
}

/* The last bit of elements, above the lines' units. Nothing's is far above, such that two of it fit
 * a byte. */
PRODUCT_INLINE __m256i last_of(const parts *p)
{
    const __m256i zeros =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(96, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0));
    const __m256i last = _mm256_add_epi8(p->up, _mm256_shuffle_epi8(zeros, p->significand));
    return _mm256_min_epi8(last, _mm256_set1_epi8(FAR8));
}

/* Integers of 16 lines and two k's: bytes of both are interleaved. 0 where one is low. */
PRODUCT_INLINE void to_integers(__m256i code, __m256i significand, __m256i up, __m256i out[2])
{
    const __m256i low_of_power = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, (char)128, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high_of_power = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 0));
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_shuffle_epi8(low_of_power, up);
    const __m256i high = _mm256_shuffle_epi8(high_of_power, up);
    const __m256i x = _mm256_mullo_epi16(_mm256_unpacklo_epi8(significand, zero),
                                         _mm256_unpacklo_epi8(low, high));
    const __m256i y = _mm256_mullo_epi16(_mm256_unpackhi_epi8(significand, zero),
                                         _mm256_unpackhi_epi8(low, high));
    out[0] = _mm256_sign_epi16(x, _mm256_unpacklo_epi8(zero, code));
    out[1] = _mm256_sign_epi16(y, _mm256_unpackhi_epi8(zero, code));
}

/* Lines j..j+31 with the units that t->base says. */
PRODUCT_INLINE void take_with_base(operand *o, int j, int mantissa_bits, taken *t)
{
    __m256i last = _mm256_set1_epi8(FAR8);
    t->low = _mm256_setzero_si256();
    for (int k = 0; k < COUNT; k += 2) {
        const parts p = take_apart(o, j, k, mantissa_bits, t);
        const parts q = take_apart(o, j, k + 1, mantissa_bits, t);
        __m256i integer[4];
        to_integers(_mm256_unpacklo_epi8(p.code, q.code),
                    _mm256_unpacklo_epi8(p.significand, q.significand),
                    _mm256_unpacklo_epi8(p.up, q.up), &integer[0]);
        to_integers(_mm256_unpackhi_epi8(p.code, q.code),
                    _mm256_unpackhi_epi8(p.significand, q.significand),
                    _mm256_unpackhi_epi8(p.up, q.up), &integer[2]);
        PRODUCT_UNROLL
        for (int v = 0; v < 4; v++) {
            store_ints(&o->pair[k / 2][j + v * LANES], integer[v]);
        }
        last = _mm256_min_epi8(last, _mm256_min_epi8(last_of(&p), last_of(&q)));
        if (k % GROUP == GROUP - 2) {
            store_ints(&o->last[k / GROUP][j], in_order(last));
            last = _mm256_set1_epi8(FAR8);
        }
    }
}

/* The low elements of a line; 0: more than there is room for, or one too small. */
static int take_lows(operand *o, int line, int base)
{
    const int mantissa_bits = o->mantissa_bits, hidden = 1 << mantissa_bits;
    const uint8_t *codes = line_of(o, line);
    const __m256i magnitudes = _mm256_and_si256(load_ints(codes), _mm256_set1_epi8(0x7F));
    const int least = base > 1 ? base << mantissa_bits : 0; /* the first that is not low */
    uint32_t rest = (uint32_t)_mm256_movemask_epi8(
        _mm256_and_si256(_mm256_cmpgt_epi8(magnitudes, _mm256_setzero_si256()),
                         _mm256_cmpgt_epi8(_mm256_set1_epi8((char)least), magnitudes)));
    int count = 0;
    for (; rest; rest &= rest - 1) {
        const int k = __builtin_ctz(rest), code = codes[k], magnitude = code & 0x7F;
        const int field = magnitude >> mantissa_bits, up = (field ? field : 1) - base;
        if (count == MOST_LOW || up < -FINER) {
            return 0;
        }
        const int integer = ((magnitude & (hidden - 1)) | (field ? hidden : 0)) << (up + FINER);
        o->low[line][count++] =
            (low_element){(int16_t)k, (int16_t)(code & 0x80 ? -integer : integer)};
    }
    o->lows[line] = (uint8_t)count;
    return 1;
}

/* Lines whose norm may be too large for sums of 32 bits: -1. `top` is a line's largest field in its
 * place of a code. Squares are looked up by the last two bits of the field below the top's and two
 * bits of mantissa, in eighths of the square of 2^(top + reach), rounded up; smaller elements count
 * as the least of the table. */
PRODUCT_INLINE __m256i large_lines(const operand *o, int j, int mantissa_bits, __m256i top)
{
    enum { MOST = 249 }; /* of such eighths: 2^26 * MOST/8, and low elements, are below 2^31 */
    const __m256i squares = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 1, 1, 1, 1, 1, 2, 2, 3, 4, 6, 8, 11, 16, 22, 29));
    const __m256i up = _mm256_set1_epi8((char)(3 << mantissa_bits));
    __m256i sum = _mm256_setzero_si256();
    for (int k = 0; k < COUNT; k++) {
        const __m256i magnitude =
            _mm256_and_si256(load_ints(&o->by_k[k][j]), _mm256_set1_epi8(0x7F));
        __m256i place = _mm256_subs_epu8(_mm256_adds_epu8(magnitude, up), top);
        if (mantissa_bits == 3) {
            place = _mm256_and_si256(_mm256_srli_epi16(place, 1), _mm256_set1_epi8(15));
        }
        sum = _mm256_adds_epu8(sum, _mm256_shuffle_epi8(squares, place));
    }
    return _mm256_cmpeq_epi8(_mm256_max_epu8(sum, _mm256_set1_epi8((char)(MOST + 1))), sum);
}

PRODUCT_INLINE void take_lines(operand *o, int j, int mantissa_bits)
{
    const int reach = mantissa_bits == 3 ? 10 : 11,
              special = mantissa_bits == 3 ? MXA_FP8_NAN : 0x7C;
    const __m256i one = _mm256_set1_epi8((char)(1 << mantissa_bits));
    __m256i top = _mm256_setzero_si256();
    for (int k = 0; k < COUNT; k++) {
        top = _mm256_max_epi8(top,
                              _mm256_and_si256(load_ints(&o->by_k[k][j]), _mm256_set1_epi8(0x7F)));
    }
    o->special[j / BLOCK] |= (uint32_t)_mm256_movemask_epi8(
        _mm256_cmpgt_epi8(top, _mm256_set1_epi8((char)(special - 1))));
    const __m256i field =
        _mm256_and_si256(top, _mm256_set1_epi8((char)(0x80 - (1 << mantissa_bits))));
    const __m256i above = _mm256_srli_epi16(_mm256_subs_epu8(field, one), mantissa_bits);
    const __m256i large = large_lines(o, j, mantissa_bits, field);
    taken t;
    t.base =
        in_eights(_mm256_sub_epi8(_mm256_sub_epi8(above, _mm256_set1_epi8((char)reach)), large));
    take_with_base(o, j, mantissa_bits, &t);
    int8_t base[BLOCK];
    store_ints(base, in_order(t.base));
    for (int l = 0; l < BLOCK; l++) {
        o->scaled_unit[j + l] =
            base[l] + 1 - bias_of(mantissa_bits) - mantissa_bits + o->scale[j + l];
    }
    memset(&o->lows[j], 0, BLOCK);
    for (uint32_t rest = (uint32_t)_mm256_movemask_epi8(in_order(t.low)); rest; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        if (!take_lows(o, j + l, base[l] + 1)) {
            o->special[j / BLOCK] |= 1U << l;
        }
    }
}

/* Lines of an operand whose codes are in `codes` and by_k. */
static void load_operand(operand *o, int lines, const uint8_t *scales, mxattn_dtype dtype)
{
    o->mantissa_bits = mxa_dtype_mantissa_bits(dtype);
    for (int j = 0; j < lines; j += BLOCK) {
        o->special[j / BLOCK] = 0;
        for (int l = 0; l < BLOCK; l++) {
            o->scale[j + l] = scales ? scales[j + l] : 127;
            o->special[j / BLOCK] |= (uint32_t)(o->scale[j + l] == MXA_SCALE_NAN) << l;
        }
        if (o->mantissa_bits == 3) {
            take_lines(o, j, 3);
        } else {
            take_lines(o, j, 2);
        }
    }
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

/* A's rows, and nothing to a multiple of a block. */
static void load_rows(const mxa_emu_product *p, operand *a)
{
    uint8_t scales[COLUMNS];
    const int lines = (p->m + BLOCK - 1) / BLOCK * BLOCK;
    a->codes = p->a;
    if (lines > p->m) {
        memset(a->lines, 0, sizeof a->lines);
        memcpy(a->lines, p->a, (size_t)p->m * COUNT);
        a->codes = a->lines[0];
    }
    for (int j = 0; j < lines; j += 16) {
        bytes_transpose_16(line_of(a, j), COUNT, &a->by_k[0][j], CODES);
        bytes_transpose_16(line_of(a, j) + 16, COUNT, &a->by_k[16][j], CODES);
    }
    if (p->scale_a) {
        memset(scales, 127, sizeof scales);
        memcpy(scales, p->scale_a, (size_t)p->m);
    }
    load_operand(a, lines, p->scale_a ? scales : NULL, p->step.a_type);
}

/* B's codes by column and by k. */
static void load_columns_of(const mxa_emu_product *p, operand *b)
{
    const uint8_t *from = p->b;
    b->codes = b->lines[0];
    for (int j = 0; j < p->n; j += 16) {
        for (int k = 0; k < COUNT; k += 16) {
            if (p->b_k == 1) {
                bytes_transpose_16(from + j * p->b_n + k, p->b_n, &b->by_k[k][j], CODES);
            } else {
                bytes_transpose_16(from + k * p->b_k + j, p->b_k, &b->lines[j][k], COUNT);
            }
        }
    }
    if (p->b_k == 1 && p->b_n == COUNT) {
        b->codes = p->b;
    }
    for (int j = 0; p->b_k == 1 && p->b_n != COUNT && j < p->n; j++) {
        memcpy(b->lines[j], from + j * p->b_n, COUNT);
    }
    for (int k = 0; p->b_k != 1 && k < COUNT; k++) {
        memcpy(b->by_k[k], from + k * p->b_k, (size_t)p->n);
    }
    load_operand(b, p->n, p->scale_b, p->step.b_type);
}

/* A column's low elements among its neighbours; 0: more than there is room for. */
static int place_lows(integers *b, int column)
{
    for (int i = 0; i < b->of.lows[column]; i++) {
        const low_element *from = &b->of.low[column][i];
        if (b->lows == MOST_LOWS) {
            return 0;
        }
        low_vector *to = &b->low_vector[b->lows++];
        *to = (low_vector){.column = (uint16_t)column, .k = (uint16_t)from->k};
        to->pair[column % LANES][from->k % 2] = from->integer;
        b->has_low[column / LANES] = 1;
    }
    return 1;
}

/* 0: more low elements than there is room for. */
static int load_integers(const mxa_emu_product *p, integers *b)
{
    load_columns_of(p, &b->of);
    memset(b->has_low, 0, sizeof b->has_low);
    b->lows = 0;
    b->has_exponents = 0;
    b->least_unit = 1000;
    b->most_unit = -1000;
    for (int j = 0; j < p->n; j++) {
        const int of = b->of.scaled_unit[j];
        const uint32_t bits = (uint32_t)(254 - of) << 23; /* 2^(127 - of) */
        memcpy(&b->finer[j], &bits, sizeof bits);
        if (b->of.special[j / BLOCK]) {
            continue;
        }
        b->least_unit = of < b->least_unit ? of : b->least_unit;
        b->most_unit = of > b->most_unit ? of : b->most_unit;
        if (b->of.lows[j] && !place_lows(b, j)) {
            return 0;
        }
    }
    return 1;
}

/* The exponents of all elements, for those who ask. */
static void load_exponents(const mxa_emu_product *p, integers *b)
{
    for (int k = 0; k < COUNT && !b->has_exponents; k++) {
        for (int j = 0; j < p->n; j += BLOCK) {
            store_ints(&b->exponent[k][j],
                       exponents_of(load_ints(&b->of.by_k[k][j]), b->of.mantissa_bits));
        }
    }
    b->has_exponents = 1;
}
