/* product_bytes_body.h: products of FP8 on Blackwell's tensor cores in integers of 16 bits; AVX2.
 *
 * What they are, and when they give the model's sum: product_integers_body.h. Four rows of A at a
 * time: sums of integers, largest exponents, then each output is aligned, added to its accumulator
 * and rounded. Included by product_body.h, whose vectors and general way it uses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/product_integers_body.h"

/* ------------------------------------------------------------------------------------------------
 * Four rows: sums of integers, largest exponents, what low elements add
 * --------------------------------------------------------------------------------------------- */

typedef struct four_rows {
    integer_row row[ROWS];
    int32_t sum[ROWS][COLUMNS];
    int8_t largest[ROWS][COLUMNS + 32];
    int32_t low[ROWS][COLUMNS];
} four_rows;

/* WHY by name: gcc keeps an array of eight accumulators in memory. */
#define EIGHT_BEGIN(value)                                                                         \
    __m256i s00 = (value), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00,       \
            s31 = s00
#define EIGHT_STEP(i_row, word, add)                                                               \
    do {                                                                                           \
        const __m256i x = _mm256_set1_epi32(four->row[i_row].word);                                \
        s##i_row##0 = add(s##i_row##0, x, b0);                                                     \
        s##i_row##1 = add(s##i_row##1, x, b1);                                                     \
    } while (0)
#define EIGHT_STEPS(word, add)                                                                     \
    EIGHT_STEP(0, word, add);                                                                      \
    EIGHT_STEP(1, word, add);                                                                      \
    EIGHT_STEP(2, word, add);                                                                      \
    EIGHT_STEP(3, word, add)
#define EIGHT_STORE(to, j, step)                                                                   \
    do {                                                                                           \
        const __m256i all[ROWS][2] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}};             \
        for (int r = 0; r < ROWS; r++) {                                                           \
            _mm256_storeu_si256((__m256i *)(void *)&(to)[r][j], all[r][0]);                        \
            _mm256_storeu_si256((__m256i *)(void *)&(to)[r][(j) + (step)], all[r][1]);             \
        }                                                                                          \
    } while (0)
#define MULTIPLY_ADD(sum, x, y) _mm256_add_epi32(sum, _mm256_madd_epi16(x, y))
#define LARGER_SUM(top, x, y)   _mm256_max_epi8(top, _mm256_add_epi8(x, y))

static void sum_integers(const integers *b, int n, four_rows *four)
{
    for (int j = 0; j < n; j += 2 * LANES) {
        EIGHT_BEGIN(_mm256_setzero_si256());
        for (int i = 0; i < PAIRS; i++) {
            const __m256i b0 = load_ints(&b->pair[i][j]), b1 = load_ints(&b->pair[i][j + LANES]);
            EIGHT_STEPS(pair[i], MULTIPLY_ADD);
        }
        EIGHT_STORE(four->sum, j, LANES);
    }
}

static void find_largest(const integers *b, int n, four_rows *four)
{
    for (int j = 0; j < n; j += 64) { /* beyond n: of stale lines, not used */
        EIGHT_BEGIN(_mm256_set1_epi8(-127));
        for (int k = 0; k < COUNT; k++) {
            const __m256i b0 = load_ints(&b->exponent[k][j]),
                          b1 = load_ints(&b->exponent[k][j + 32]);
            EIGHT_STEPS(exponent[k], LARGER_SUM);
        }
        EIGHT_STORE(four->largest, j, 32);
    }
}

/* Products with a low factor, of one row; of vectors without any nothing is said. 0: two low ones
 * meet, too small for these units. */
static int add_lows(const integers *b, int n, const integer_row *a, int32_t *low)
{
    const int16_t *integer = (const int16_t *)(const void *)a->pair;
    int meet = 0;
    for (int i = 0; i < b->lows; i++) {
        const int first = b->low[i].column / LANES * LANES;
        _mm256_storeu_si256((__m256i *)(void *)&low[first], _mm256_setzero_si256());
    }
    for (int i = 0; i < a->lows; i++) {
        const int k = a->low[i].k, shift = k % 2 * 16;
        const __m256i x =
            _mm256_set1_epi32((int32_t)((uint32_t)(a->low[i].integer & 0xFFFF) << shift));
        for (int j = 0; j < n; j += LANES) {
            __m256i *to = (__m256i *)(void *)&low[j];
            const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)&b->pair[k / 2][j]);
            const __m256i before = i ? _mm256_loadu_si256(to) : _mm256_setzero_si256();
            _mm256_storeu_si256(to, _mm256_add_epi32(before, _mm256_madd_epi16(x, y)));
        }
    }
    for (int i = 0; i < b->lows; i++) {
        const low_element *l = &b->low[i];
        low[l->column] += integer[l->k] * l->integer;
        for (int h = 0; h < a->lows; h++) {
            meet |= a->low[h].k == l->k;
        }
    }
    return !meet;
}

/* ------------------------------------------------------------------------------------------------
 * Outputs
 * --------------------------------------------------------------------------------------------- */

/* x * 2^up; what is cut off is zero, or not used. */
static __m256i shift_both(__m256i x, __m256i up)
{
    const __m256i left = _mm256_max_epi32(up, _mm256_setzero_si256());
    return _mm256_srav_epi32(_mm256_sllv_epi32(x, left), _mm256_sub_epi32(left, up));
}

/* 2^exponent */
static __m256 power_of(__m256i exponent)
{
    const __m256i field = _mm256_add_epi32(exponent, _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(field, 23));
}

/* Masks of outputs. */
typedef struct outcome {
    __m256i inexact, large; /* some of the products may have to be cut; too large a sum */
    __m256i other;          /* for the general way */
} outcome;

/* Columns j..j+7 of row r, whose accumulators are c. Exponents are relative to the scales'. An
 * accumulator of zero or below FP32's normal numbers counts as 2^-127 here: that only matters where
 * nothing is larger than 2^LOW_LOG2, and such sums go the general way. */
static inline __attribute__((always_inline)) outcome
finish_eight(const integers *b, const four_rows *four, int r, int j, const uint32_t *c, uint32_t *d)
{
    const integer_row *a = &four->row[r];
    const __m256i zero = _mm256_setzero_si256();
    const __m256i scale =
        _mm256_add_epi32(load_ints(&b->scale[j]), _mm256_set1_epi32(a->scale - 254));
    const __m256i e =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&four->largest[r][j]));
    const __m256i products = _mm256_blendv_epi8(e, _mm256_set1_epi32(NONE),
                                                _mm256_cmpgt_epi32(_mm256_set1_epi32(LEAST8), e));
    const __m256i bits = load_ints(c), field = _mm256_srli_epi32(_mm256_slli_epi32(bits, 1), 24);
    const __m256i own = _mm256_sub_epi32(field, _mm256_add_epi32(scale, _mm256_set1_epi32(127)));
    const __m256i cut_at =
        _mm256_sub_epi32(_mm256_max_epi32(products, own), _mm256_set1_epi32(FRACTION));
    const __m256i exponent = _mm256_add_epi32(cut_at, scale);
    const __m256i term = _mm256_cvttps_epi32(
        _mm256_mul_ps(_mm256_castsi256_ps(bits), power_of(_mm256_sub_epi32(zero, exponent))));
    const __m256i least = _mm256_add_epi32(load_ints(&b->least[j]), _mm256_set1_epi32(a->least));
    const __m256i unit = _mm256_add_epi32(load_ints(&b->unit[j]), _mm256_set1_epi32(a->unit));
    const __m256i up = _mm256_sub_epi32(unit, cut_at);
    const __m256i integer = load_ints(&four->sum[r][j]);
    const __m256i most =
        _mm256_srlv_epi32(_mm256_set1_epi32(1 << LARGE_LOG2), _mm256_max_epi32(up, zero));
    __m256i sum = _mm256_add_epi32(shift_both(integer, up), term);
    if (a->lows || b->has_low[j / LANES]) {
        const __m256i finer = _mm256_sub_epi32(up, _mm256_set1_epi32(FINER));
        sum = _mm256_add_epi32(sum, shift_both(load_ints(&four->low[r][j]), finer));
    }
    _mm256_storeu_ps((float *)(void *)d,
                     _mm256_mul_ps(_mm256_cvtepi32_ps(sum), power_of(exponent)));
    const __m256i high = _mm256_cmpgt_epi32(exponent, _mm256_set1_epi32(HIGH_LOG2 - FRACTION));
    const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(LOW_LOG2 - FRACTION), exponent);
    const __m256i inexact = _mm256_cmpgt_epi32(cut_at, least);
    const __m256i none = _mm256_andnot_si256(inexact, _mm256_cmpeq_epi32(sum, zero));
    return (outcome){inexact, _mm256_cmpgt_epi32(_mm256_abs_epi32(integer), most),
                     _mm256_or_si256(high, _mm256_andnot_si256(none, low))};
}

static __m256 eight_values(const uint8_t *code, int mantissa_bits)
{
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)code));
    const __m256i magnitude =
        _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x7F)), 23 - mantissa_bits);
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(x, 7), 31);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(magnitude, sign)),
                         _mm256_set1_ps(mantissa_bits == 3 ? 0x1p120F : 0x1p112F));
}

/* Column j of row r, its 32 products cut each; 0: none needs to be, *d stays. finish_eight found
 * its largest exponent to be one of normal numbers. */
static int cut_one(const mxa_emu_product *p, const integers *b, const four_rows *four, int r, int j,
                   int large, uint32_t c, uint32_t *d)
{
    const int a_bits = mxa_dtype_mantissa_bits(p->step.a_type);
    const int b_bits = mxa_dtype_mantissa_bits(p->step.b_type);
    const integer_row *a = &four->row[r];
    const int scale = b->scale[j] + a->scale - 254, field = (int)(c >> 23 & 0xFF);
    const int own = field - 127, products = four->largest[r][j] + scale;
    const int largest = four->largest[r][j] < LEAST8 || products < own ? own : products;
    const __m256i smallest = _mm256_add_epi8(load_ints(a->smallest), load_ints(b->smallest[j]));
    const int last = largest - scale - FRACTION + a_bits + b_bits; /* fits: not above 2*FAR8 */
    if (!large && last > -128 && last <= 2 * FAR8 &&
        !_mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8((char)last), smallest))) {
        return 0;
    }
    const int shift = largest - own < 31 ? largest - own : 31;
    const int cut = (int)(((c & 0x7FFFFF) | (field ? 1U << 23 : 0)) << 2 >> shift);
    const int up = scale - largest + FRACTION;
    const int power = up < -126 ? -126 : up > 100 ? 100 : up; /* beyond: nothing, or zeros */
    const __m256 factor = _mm256_castsi256_ps(_mm256_set1_epi32((power + 127) << 23));
    int64_t sum = c >> 31 ? -cut : cut;
    for (int half = 0; half < 2; half++) { /* 16 terms below 2^27 */
        __m256i terms = _mm256_setzero_si256();
        for (int k = half * HALF_SUM; k < (half + 1) * HALF_SUM; k += LANES) {
            const __m256 x = _mm256_mul_ps(eight_values(a->code + k, a_bits),
                                           eight_values(b->by_column[j] + k, b_bits));
            terms = _mm256_add_epi32(terms, _mm256_cvttps_epi32(_mm256_mul_ps(x, factor)));
        }
        __m128i four_terms =
            _mm_add_epi32(_mm256_castsi256_si128(terms), _mm256_extracti128_si256(terms, 1));
        four_terms = _mm_hadd_epi32(four_terms, four_terms);
        sum += _mm_cvtsi128_si32(_mm_hadd_epi32(four_terms, four_terms));
    }
    if (sum == 0) {
        *d = 0;
        return 1;
    }
    const uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    const int top = 63 - __builtin_clzll(magnitude);
    const uint64_t kept = top > 23 ? magnitude >> (top - 23) : magnitude << (23 - top);
    *d = (uint32_t)(kept & 0x7FFFFF) | (uint32_t)(top + largest - FRACTION + 127) << 23 |
         (sum < 0 ? 0x80000000U : 0);
    return 1;
}

static uint32_t mask_of(__m256i x)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x));
}

/* Columns j..j+31 of row r to d: 0 when they need the general way. */
static int finish_block(const mxa_emu_product *p, const integers *b, const four_rows *four, int r,
                        int j, const uint32_t *c, uint32_t *d)
{
    uint32_t cuts = 0, large = 0;
    __m256i other = _mm256_setzero_si256();
    PRODUCT_UNROLL
    for (int v = 0; v < BLOCK; v += LANES) {
        const outcome o = finish_eight(b, four, r, j + v, c + v, d + v);
        cuts |= mask_of(o.inexact) << v;
        large |= mask_of(o.large) << v;
        other = _mm256_or_si256(other, o.other);
    }
    if ((large & ~cuts) || __builtin_popcount(cuts) > MOST_INEXACT ||
        !_mm256_testz_si256(other, other)) {
        return 0;
    }
    int cut = 0;
    for (; cuts && cut <= MOST_CUT; cuts &= cuts - 1) {
        const int l = __builtin_ctz(cuts);
        cut += cut_one(p, b, four, r, j + l, large >> l & 1, c[l], &d[l]);
    }
    return cut <= MOST_CUT;
}

/* What the general way has loaded, when it was first needed. */
typedef struct general_way {
    rules rule;
    columns *b;
    row a;
    int b_loaded, a_row; /* a_row: whose row a is; -1: none's */
} general_way;

static void block_in_general(const mxa_emu_product *p, general_way *way, int i, int j,
                             const uint32_t *c, uint32_t *d)
{
    if (!way->b_loaded) {
        load_columns(p, way->b);
        way->b_loaded = 1;
    }
    if (way->a_row != i) {
        load_row(p, i, &way->a);
        way->a_row = i;
    }
    if (way->a.special || way->b->special[j / BLOCK] ||
        !row_block(p, &way->rule, way->b, &way->a, j, c, d)) {
        mxa_emu_product_row(p, i, j, j + BLOCK);
        memcpy(d, p->d + i * p->stride + j, BLOCK * sizeof *d);
    }
}

/* WHY noinline: nothing may move out of the mode of rounding that it is called in, and addresses of
 * thread-local memory are not found again and again. */
static __attribute__((noinline)) void all_rows(const mxa_emu_product *p, const integers *b,
                                               four_rows *four, columns *general)
{
    static const uint32_t zeros[BLOCK];
    general_way way;
    way.rule = rules_of(p);
    way.b = general;
    way.b_loaded = 0;
    way.a_row = -1;
    for (int i = 0, misfits = 0; i < p->m; i += ROWS) {
        const int hopeless = misfits * BLOCK > (i + ROWS) * p->n / 2;
        for (int r = 0; r < ROWS && !hopeless; r++) {
            load_integer_row(p, i + r, &four->row[r]);
        }
        if (!hopeless) {
            sum_integers(b, p->n, four);
            find_largest(b, p->n, four);
        }
        for (int r = 0; r < ROWS; r++) {
            uint32_t *d = p->d + (i + r) * p->stride;
            const int fit = !hopeless && !four->row[r].special &&
                            add_lows(b, p->n, &four->row[r], four->low[r]);
            for (int j = 0; j < p->n; j += BLOCK) {
                uint32_t result[BLOCK];
                const uint32_t *c = p->accumulate ? d + j : zeros;
                if (!fit || b->special[j / BLOCK] || !finish_block(p, b, four, r, j, c, result)) {
                    block_in_general(p, &way, i + r, j, c, result);
                    misfits++;
                }
                memcpy(d + j, result, sizeof result);
            }
        }
    }
}

/* 0: not a product for this way. */
static int product_bytes(const mxa_emu_product *p, columns *general)
{
    static _Thread_local integers b;
    static _Thread_local four_rows four;
    if (p->step.core != MXA_TENSOR_CORE_BLACKWELL || p->step.count != COUNT || p->f16 ||
        p->n % BLOCK || p->m % ROWS || (p->b_k != 1 && p->b_n != 1) || !load_integers(p, &b)) {
        return 0;
    }
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | _MM_ROUND_TOWARD_ZERO);
    all_rows(p, &b, &four, general);
    _mm_setcsr(mode);
    return 1;
}
