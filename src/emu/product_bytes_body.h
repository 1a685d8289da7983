/* product_bytes_body.h: products of FP8 on Blackwell's tensor cores in integers of 16 bits; AVX2.
 *
 * What they are, and when they give the model's sum: product_integers_body.h. Four rows of A at a
 * time: sums of integers; outputs that nothing is cut from; of the blocks that are left, largest
 * exponents, then each output is aligned, added to its accumulator and rounded. Included by
 * product_body.h, whose vectors and general way it uses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/product_integers_body.h"

/* ------------------------------------------------------------------------------------------------
 * Four rows: sums of integers, last bits, what low elements add
 * --------------------------------------------------------------------------------------------- */

/* What is asked of a row of A only now and then. */
typedef struct row_exponents {
    int32_t exponent[COUNT]; /* the same in all four bytes */
    int is_there;
} row_exponents;

typedef struct four_rows {
    _Alignas(64) int32_t sum[ROWS][COLUMNS];
    int8_t largest[ROWS][COLUMNS + 32];
    int8_t spare[ROWS][COLUMNS]; /* zeros below the last bit of any product, in units; or less */
    int32_t low[ROWS][COLUMNS];
    uint32_t meets[ROWS][COLUMNS / BLOCK]; /* bits of columns where two low elements meet */
    int8_t limit[ROWS][COLUMNS]; /* bits that an accumulator may have; below 26: not exact */
    uint8_t is_left[ROWS][COLUMNS / BLOCK]; /* 1: a block of outputs that is not done yet */
    const operand *a;
    int first; /* the first of the rows in a */
    row_exponents row[ROWS];
} four_rows;

static int is_special(const four_rows *four, int r)
{
    const int i = four->first + r;
    return (int)(four->a->special[i / BLOCK] >> (i % BLOCK) & 1);
}

/* What a row does not add where it is special. */
static int lows_of(const four_rows *four, int r)
{
    return is_special(four, r) ? 0 : four->a->lows[four->first + r];
}

#define MULTIPLY_ADD(sum, x, y) _mm256_add_epi32(sum, _mm256_madd_epi16(x, y))

/* WHY by name, and kept: gcc has an array of eight accumulators in memory, and would make all
 * products before the sums, with too few registers for both. */
#define FOUR_STEP(r)                                                                               \
    do {                                                                                           \
        __m256i x = _mm256_set1_epi32(at[r]);                                                      \
        PRODUCT_KEEP(x);                                                                           \
        s##r##0 = MULTIPLY_ADD(s##r##0, x, y0);                                                    \
        PRODUCT_KEEP(s##r##0);                                                                     \
        s##r##1 = MULTIPLY_ADD(s##r##1, x, y1);                                                    \
        PRODUCT_KEEP(s##r##1);                                                                     \
    } while (0)
#define FOUR_STORE(r)                                                                              \
    do {                                                                                           \
        store_ints(&four->sum[r][j], s##r##0);                                                     \
        store_ints(&four->sum[r][j + LANES], s##r##1);                                             \
    } while (0)

static void sum_integers(const integers *b, int n, four_rows *four)
{
    for (int j = 0; j < n; j += 2 * LANES) {
        const __m256i zero = _mm256_setzero_si256();
        __m256i s00 = zero, s10 = zero, s20 = zero, s30 = zero;
        __m256i s01 = zero, s11 = zero, s21 = zero, s31 = zero;
        PRODUCT_UNROLL
        for (int k = 0; k < PAIRS; k++) {
            const int32_t *at = &four->a->pair[k][four->first];
            __m256i y0 = load_ints(&b->of.pair[k][j]), y1 = load_ints(&b->of.pair[k][j + LANES]);
            PRODUCT_KEEP(y0);
            PRODUCT_KEEP(y1);
            FOUR_STEP(0);
            FOUR_STEP(1);
            FOUR_STEP(2);
            FOUR_STEP(3);
        }
        FOUR_STORE(0);
        FOUR_STORE(1);
        FOUR_STORE(2);
        FOUR_STORE(3);
    }
}

/* Spare of an output: zeros below the last bit of any product, in units; or less. */
static void find_spare(const integers *b, int n, four_rows *four)
{
    for (int r = 0; r < ROWS; r++) {
        __m256i x[GROUPS];
        PRODUCT_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            x[g] = _mm256_set1_epi8(four->a->last[g][four->first + r]);
        }
        for (int j = 0; j < n; j += 32) {
            __m256i least = _mm256_set1_epi8(2 * FAR8);
            PRODUCT_UNROLL
            for (int g = 0; g < GROUPS; g++) {
                least =
                    _mm256_min_epi8(least, _mm256_adds_epi8(x[g], load_ints(&b->of.last[g][j])));
            }
            const __m256i limit = _mm256_adds_epi8(least, _mm256_set1_epi8(26 - UP));
            store_ints(&four->spare[r][j], least);
            store_ints(&four->limit[r][j], _mm256_min_epi8(limit, _mm256_set1_epi8(TERM_LOG2)));
        }
    }
}

/* Low sums of eight columns: whole units go to the others. */
PRODUCT_INLINE void carry(four_rows *four, int r, int j, __m256i low)
{
    int32_t *to = &four->sum[r][j];
    store_ints(to, _mm256_add_epi32(load_ints(to), _mm256_srai_epi32(low, FINER)));
    store_ints(&four->low[r][j], _mm256_and_si256(low, _mm256_set1_epi32((1 << FINER) - 1)));
}

/* B's low elements with the rows' others. Of rows that have low ones too, low sums are left as they
 * are. */
static void add_lows_of_b(const integers *b, const int *lows, four_rows *four)
{
    for (int i = 0; i < b->lows;) {
        const int first = b->low_vector[i].column / LANES * LANES;
        __m256i low[ROWS] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                             _mm256_setzero_si256()};
        for (; i < b->lows && b->low_vector[i].column < first + LANES; i++) {
            const low_vector *l = &b->low_vector[i];
            const int32_t *a = &four->a->pair[l->k / 2][four->first];
            const __m256i y = load_ints(l->pair);
            PRODUCT_UNROLL
            for (int r = 0; r < ROWS; r++) {
                low[r] = MULTIPLY_ADD(low[r], _mm256_set1_epi32(a[r]), y);
            }
        }
        PRODUCT_UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (lows[r]) {
                store_ints(&four->low[r][first], low[r]);
            } else {
                carry(four, r, first, low[r]);
            }
        }
    }
}

/* A row's low elements with all columns. Where two low ones meet, their product is too small for
 * these units: left out, and told. */
static void add_lows_of_a(const integers *b, int n, int lows, four_rows *four, int r)
{
    const low_element *element = four->a->low[four->first + r];
    __m256i x[MOST_LOW];
    for (int i = 0; i < lows; i++) {
        const int k = element[i].k;
        x[i] = _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)element[i].integer << (k % 2 * 16)));
        for (int l = 0; l < b->lows; l++) {
            const int column = b->low_vector[l].column;
            four->meets[r][column / BLOCK] |= (uint32_t)(b->low_vector[l].k == k) << column % BLOCK;
        }
    }
    for (int j = 0; j < n; j += LANES) {
        __m256i low = b->has_low[j / LANES] ? load_ints(&four->low[r][j]) : _mm256_setzero_si256();
        for (int i = 0; i < lows; i++) {
            low = MULTIPLY_ADD(low, x[i], load_ints(&b->of.pair[element[i].k / 2][j]));
        }
        carry(four, r, j, low);
    }
}

/* Products with a low factor; of eight columns without any, in a row without, nothing is said. */
static void add_lows(const integers *b, int n, four_rows *four)
{
    int lows[ROWS];
    for (int r = 0; r < ROWS; r++) {
        lows[r] = lows_of(four, r);
    }
    memset(four->meets, 0, sizeof four->meets);
    add_lows_of_b(b, lows, four);
    for (int r = 0; r < ROWS; r++) {
        if (lows[r]) {
            add_lows_of_a(b, n, lows[r], four, r);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * Outputs that nothing is cut from
 * --------------------------------------------------------------------------------------------- */

/* A row's outputs on their way, in units of 2^UP of their own. */
typedef struct exact_row {
    __m256 finer; /* 2^-(unit + UP) */
    __m256i large;
    __m256 odd;
} exact_row;

/* Eight outputs; where `large` or `odd` then is not 0, they are not exact. */
PRODUCT_INLINE __m256 exact_eight(const integers *b, const four_rows *four, int r, int j,
                                  const uint32_t *c, exact_row *all)
{
    const __m256 finer = _mm256_mul_ps(all->finer, _mm256_loadu_ps(&b->finer[j]));
    const __m256i unit = _mm256_sub_epi32(_mm256_set1_epi32(254 << 23), _mm256_castps_si256(finer));
    __m256i sum = load_ints(&four->sum[r][j]);
    sum = _mm256_srai_epi32(sum, UP);
    if (c) {
        const __m256 own = _mm256_mul_ps(_mm256_loadu_ps((const float *)(const void *)c), finer);
        const __m256i term = _mm256_cvttps_epi32(own);
        const __m256i limit = _mm256_cvtepi8_epi32(
            _mm_loadl_epi64((const __m128i *)(const void *)&four->limit[r][j]));
        const __m256 back = _mm256_cvtepi32_ps(term);
        all->odd = _mm256_or_ps(all->odd, _mm256_cmp_ps(own, back, _CMP_NEQ_UQ));
        all->large = _mm256_or_si256(all->large, _mm256_srlv_epi32(_mm256_abs_epi32(term), limit));
        sum = _mm256_add_epi32(sum, term);
    }
    return _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_castsi256_ps(unit));
}

/* A block of a row; 0: something may be cut, d stays. c may be d, or NULL for zeros. */
PRODUCT_INLINE int exact_block(const integers *b, const four_rows *four, int r, int j, __m256 finer,
                               const uint32_t *c, uint32_t *d)
{
    __m256 x[BLOCK / LANES];
    exact_row all = {finer, _mm256_setzero_si256(), _mm256_setzero_ps()};
    PRODUCT_UNROLL
    for (int v = 0; v < BLOCK / LANES; v++) {
        const int at = v * LANES;
        x[v] = exact_eight(b, four, r, j + at, c ? c + at : c, &all);
    }
    const __m256i any_of = _mm256_or_si256(all.large, _mm256_castps_si256(all.odd));
    if (!_mm256_testz_si256(any_of, any_of)) {
        return 0;
    }
    PRODUCT_UNROLL
    for (int v = 0; v < BLOCK / LANES; v++) {
        _mm256_storeu_ps((float *)(void *)&d[v * LANES], x[v]);
    }
    return 1;
}

static uint32_t mask_of(__m256i x)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x));
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

/* Column j of row r, its 32 products cut each; 0: none needs to be (unless `wrong`), *d stays. Its
 * largest exponent is one of normal numbers. */
static int cut_one(const integers *b, const four_rows *four, int r, int j, int wrong, uint32_t c,
                   uint32_t *d)
{
    const int a_bits = four->a->mantissa_bits, b_bits = b->of.mantissa_bits;
    const uint8_t *a = line_of(four->a, four->first + r);
    const int scale = b->of.scale[j] + four->a->scale[four->first + r] - 254,
              field = (int)(c >> 23 & 0xFF);
    const int own = field - 127, products = four->largest[r][j] + scale;
    const int largest = four->largest[r][j] < LEAST8 || products < own ? own : products;
    const __m256i last = _mm256_add_epi8(last_bits(load_ints(a), a_bits),
                                         last_bits(load_ints(line_of(&b->of, j)), b_bits));
    const int at = largest - scale - FRACTION; /* the cut; fits: not above 2*FAR8 */
    if (!wrong && at > -128 && at <= 2 * FAR8 &&
        !_mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8((char)at), last))) {
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
            const __m256 x = _mm256_mul_ps(eight_values(a + k, a_bits),
                                           eight_values(line_of(&b->of, j) + k, b_bits));
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

/* A block that has some outputs that may be cut, or are not exact for another reason: those alone
 * are cut, product by product. 0: they are too many, or one may leave FP32's normal numbers; d
 * stays. */
static __attribute__((noinline)) int exact_but_some(const integers *b, four_rows *four, int r,
                                                    int j, __m256 finer, const uint32_t *c,
                                                    uint32_t *d)
{
    uint32_t x[BLOCK], result[MOST_CUT];
    const __m256i short_of = _mm256_cmpgt_epi8(_mm256_set1_epi8(26), load_ints(&four->limit[r][j]));
    uint32_t others = (uint32_t)_mm256_movemask_epi8(short_of) | four->meets[r][j / BLOCK];
    for (int v = 0; v < BLOCK; v += LANES) {
        const __m256i zero = _mm256_setzero_si256();
        exact_row all = {finer, zero, _mm256_setzero_ps()};
        _mm256_storeu_ps((float *)(void *)&x[v],
                         exact_eight(b, four, r, j + v, c ? c + v : c, &all));
        const uint32_t fit = mask_of(_mm256_cmpeq_epi32(all.large, zero));
        others |= ((fit ^ 0xFF) | (uint32_t)_mm256_movemask_ps(all.odd)) << v;
    }
    if (__builtin_popcount(others) > MOST_CUT) {
        return 0;
    }
    const __m256i top_bits = _mm256_set1_epi8((char)0x80);
    const int line = four->first + r;
    const __m256i a = exponents_of(load_ints(line_of(four->a, line)), four->a->mantissa_bits);
    int count = 0;
    for (uint32_t rest = others; rest; rest &= rest - 1, count++) {
        const int l = __builtin_ctz(rest);
        const uint32_t own = c ? c[l] : 0;
        const __m256i e = exponents_of(load_ints(line_of(&b->of, j + l)), b->of.mantissa_bits);
        const int top = largest_byte(_mm256_xor_si256(_mm256_add_epi8(a, e), top_bits)) - 128;
        const int field = top + b->of.scale[j + l] + four->a->scale[line] - 127;
        const int own_field = (int)(own >> 23 & 0xFF);
        const int largest = top < LEAST8 || field < own_field ? own_field : field;
        if (largest < LEAST_FIELD || largest > MOST_FIELD) {
            return 0;
        }
        four->largest[r][j + l] = (int8_t)top;
        (void)cut_one(b, four, r, j + l, 1, own, &result[count]);
    }
    memcpy(d, x, sizeof x);
    for (int i = 0; i < count; i++, others &= others - 1) {
        d[__builtin_ctz(others)] = result[i];
    }
    return 1;
}

/* Outputs of a row that nothing is cut from; returns whether blocks are left, and which.
 *
 * An element's exponent is at most its unit + 13, so that no product has a bit above unit + 26, and
 * the cut of the products is at unit + 1 or below. Products that all are multiples of 2^UP units
 * lose nothing to it, nor does an accumulator that is such a multiple. One that is larger than all
 * products moves the cut up, beyond their last bits only where it has more than spare + 26 bits. */
PRODUCT_INLINE int exact_outputs(int n, const integers *b, four_rows *four, int r, int accumulate,
                                 uint32_t *d)
{
    const int unit = four->a->scaled_unit[four->first + r], least = unit + b->least_unit - 254;
    const int fits = !is_special(four, r) && unit > 0 && unit < 250 && b->least_unit > 0 &&
                     b->most_unit < 254 && least >= LEAST_UNIT && unit + b->most_unit - 254 <= -UP;
    const __m256 finer =
        _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)((uint32_t)(254 - UP - unit) << 23)));
    int left = 0;
    for (int j = 0; j < n; j += BLOCK) {
        const int at = j / BLOCK;
        const __m256i limit = load_ints(&four->limit[r][j]);
        const __m256i short_of = _mm256_cmpgt_epi8(_mm256_set1_epi8(26), limit);
        const uint32_t *c = accumulate ? d + j : NULL;
        const int all = !four->meets[r][at] && _mm256_testz_si256(short_of, short_of);
        const int done = fits && !b->of.special[at] &&
                         ((all && exact_block(b, four, r, j, finer, c, d + j)) ||
                          exact_but_some(b, four, r, j, finer, c, d + j));
        four->is_left[r][at] = (uint8_t)!done;
        left |= !done;
    }
    return left;
}

/* All that can be done so, of four rows; returns whether anything is left. */
static int finish_exactly(const mxa_emu_product *p, const integers *b, four_rows *four, int i)
{
    int left = 0;
    for (int r = 0; r < ROWS; r++) {
        uint32_t *d = p->d + (i + r) * p->stride;
        left |= p->accumulate ? exact_outputs(p->n, b, four, r, 1, d)
                              : exact_outputs(p->n, b, four, r, 0, d);
    }
    return left;
}

/* ------------------------------------------------------------------------------------------------
 * Outputs that may be cut
 * --------------------------------------------------------------------------------------------- */

/* x * 2^up; what is cut off is zero, or not used. */
static __m256i shift_both(__m256i x, __m256i up)
{
    const __m256i left = _mm256_max_epi32(up, _mm256_setzero_si256());
    return _mm256_srav_epi32(_mm256_sllv_epi32(x, left), _mm256_sub_epi32(left, up));
}

/* Eight outputs of a row on their way. Exponents are FP32's fields: biased by 127. An accumulator
 * of zero or below FP32's normal numbers counts as field 0: that only matters where nothing is
 * larger than LEAST_FIELD, and such sums go the general way. */
typedef struct outputs {
    __m256i largest, up; /* largest exponent; 2^up units of the cut are one of the integers */
    __m256i exact;       /* negative: some of the products may have to be cut */
    __m256i sum;
} outputs;

/* nothing: 0 where the caller knows that no output's products are all zero. */
PRODUCT_INLINE outputs sum_eight(const integers *b, const four_rows *four, int r, int j,
                                 const uint32_t *c, int nothing)
{
    const int line = four->first + r;
    outputs o;
    const __m256i e =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&four->largest[r][j]));
    __m256i products =
        _mm256_add_epi32(e, _mm256_add_epi32(load_ints(&b->of.scale[j]),
                                             _mm256_set1_epi32(four->a->scale[line] - 127)));
    if (nothing) {
        products = _mm256_blendv_epi8(products, _mm256_set1_epi32(NONE),
                                      _mm256_cmpgt_epi32(_mm256_set1_epi32(LEAST8), e));
    }
    const __m256i bits = load_ints(c), own = _mm256_srli_epi32(_mm256_slli_epi32(bits, 1), 24);
    o.largest = _mm256_max_epi32(products, own);
    const __m256i to_cut = _mm256_sub_epi32(_mm256_set1_epi32(127 + FRACTION + 127), o.largest);
    const __m256i term = _mm256_cvttps_epi32(_mm256_mul_ps(
        _mm256_castsi256_ps(bits), _mm256_castsi256_ps(_mm256_slli_epi32(to_cut, 23))));
    const int unit = four->a->scaled_unit[line] - 3 * 127;
    o.up = _mm256_add_epi32(
        to_cut, _mm256_add_epi32(load_ints(&b->of.scaled_unit[j]), _mm256_set1_epi32(unit)));
    o.exact = _mm256_add_epi32(o.up, _mm256_cvtepi8_epi32(_mm_loadl_epi64(
                                         (const __m128i *)(const void *)&four->spare[r][j])));
    o.sum = _mm256_add_epi32(shift_both(load_ints(&four->sum[r][j]), o.up), term);
    if (lows_of(four, r) || b->has_low[j / LANES]) {
        const __m256i finer = _mm256_sub_epi32(o.up, _mm256_set1_epi32(FINER));
        o.sum = _mm256_add_epi32(o.sum, shift_both(load_ints(&four->low[r][j]), finer));
    }
    return o;
}

PRODUCT_INLINE __m256i result_of(const outputs *o)
{
    const __m256i unit =
        _mm256_slli_epi32(_mm256_sub_epi32(o->largest, _mm256_set1_epi32(FRACTION)), 23);
    return _mm256_castps_si256(
        _mm256_mul_ps(_mm256_cvtepi32_ps(o->sum), _mm256_castsi256_ps(unit)));
}

/* Columns j..j+31 of row r to d; returns how many were looked at one by one, -1: they need the
 * general way. */
static int finish_carefully(const integers *b, const four_rows *four, int r, int j,
                            const uint32_t *c, uint32_t *d)
{
    uint32_t cuts = 0, large = 0, other = 0;
    for (int v = 0; v < BLOCK; v += LANES) {
        const outputs o = sum_eight(b, four, r, j + v, c + v, 1);
        const __m256i zero = _mm256_setzero_si256(), up = _mm256_max_epi32(o.up, zero);
        const __m256i most = _mm256_srlv_epi32(_mm256_set1_epi32(1 << LARGE_LOG2), up);
        const __m256i sum = _mm256_abs_epi32(load_ints(&four->sum[r][j + v]));
        const __m256i nil = _mm256_cmpeq_epi32(o.sum, zero);
        const __m256i no_c = _mm256_cmpeq_epi32(_mm256_slli_epi32(load_ints(c + v), 1), zero);
        const __m256i none = _mm256_andnot_si256(o.exact, _mm256_and_si256(nil, no_c));
        const __m256i high = _mm256_cmpgt_epi32(o.largest, _mm256_set1_epi32(MOST_FIELD));
        const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(LEAST_FIELD), o.largest);
        cuts |= mask_of(o.exact) << v;
        large |= mask_of(_mm256_cmpgt_epi32(sum, most)) << v;
        other |= mask_of(_mm256_or_si256(high, _mm256_andnot_si256(none, low)));
        store_ints(&d[v], _mm256_andnot_si256(nil, result_of(&o)));
    }
    const uint32_t wrong = large | four->meets[r][j / BLOCK];
    cuts |= wrong;
    if (other || __builtin_popcount(cuts) > MOST_INEXACT) {
        return -1;
    }
    const int looks = __builtin_popcount(cuts);
    int cut = 0;
    for (; cuts && cut <= MOST_CUT; cuts &= cuts - 1) {
        const int l = __builtin_ctz(cuts);
        cut += cut_one(b, four, r, j + l, (int)(wrong >> l & 1), c[l], &d[l]);
    }
    return cut <= MOST_CUT ? looks : -1;
}

/* What a block's outputs have in common. */
typedef struct extremes {
    __m256i sums, exact, most, least; /* bits of sums, their largest exponents */
} extremes;

PRODUCT_INLINE __m256i finish_eight(const integers *b, const four_rows *four, int r, int j,
                                    const uint32_t *c, extremes *all)
{
    const outputs o = sum_eight(b, four, r, j, c, 0);
    all->sums = _mm256_or_si256(all->sums, _mm256_abs_epi32(o.sum));
    all->exact = _mm256_or_si256(all->exact, o.exact);
    all->most = _mm256_max_epi32(all->most, o.largest);
    all->least = _mm256_min_epi32(all->least, o.largest);
    return result_of(&o);
}

/* The same, where all is as it mostly is; 0 when it is not, d stays. c may be d. */
PRODUCT_INLINE int finish_quickly(const integers *b, const four_rows *four, int r, int j,
                                  const uint32_t *c, uint32_t *d)
{
    enum { SAFE = 1 << 28 }; /* WHY: up to it, 32-bit sums have not wrapped (all terms: 2^32) */
    const __m256i zero = _mm256_setzero_si256(), e = load_ints(&four->largest[r][j]);
    if (four->meets[r][j / BLOCK] ||
        _mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8(LEAST8), e))) {
        return 0;
    }
    extremes all = {zero, zero, zero, _mm256_set1_epi32(MOST_FIELD)};
    const __m256i result0 = finish_eight(b, four, r, j, c, &all);
    const __m256i result1 = finish_eight(b, four, r, j + LANES, c + LANES, &all);
    const __m256i result2 = finish_eight(b, four, r, j + 2 * LANES, c + 2 * LANES, &all);
    const __m256i result3 = finish_eight(b, four, r, j + 3 * LANES, c + 3 * LANES, &all);
    const __m256i large = _mm256_cmpgt_epi32(all.sums, _mm256_set1_epi32(SAFE - 1));
    const __m256i range =
        _mm256_or_si256(_mm256_cmpgt_epi32(all.most, _mm256_set1_epi32(MOST_FIELD)),
                        _mm256_cmpgt_epi32(_mm256_set1_epi32(LEAST_FIELD), all.least));
    const __m256i signs = _mm256_or_si256(all.exact, all.sums); /* sums: abs of -2^31 */
    if (mask_of(_mm256_or_si256(_mm256_or_si256(large, range), signs))) {
        return 0;
    }
    store_ints(&d[0], result0);
    store_ints(&d[LANES], result1);
    store_ints(&d[2 * LANES], result2);
    store_ints(&d[3 * LANES], result3);
    return 1;
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

static void load_row_exponents(four_rows *four, int r)
{
    int8_t e[COUNT];
    row_exponents *a = &four->row[r];
    store_ints(e,
               exponents_of(load_ints(line_of(four->a, four->first + r)), four->a->mantissa_bits));
    for (int k = 0; k < COUNT; k += 8) {
        __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&e[k]));
        store_ints(&a->exponent[k], _mm256_mullo_epi32(x, _mm256_set1_epi32(0x01010101)));
    }
    a->is_there = 1;
}

/* What the other ways need, of a block. */
static void look_closer(const mxa_emu_product *p, integers *b, four_rows *four, int r, int j)
{
    row_exponents *a = &four->row[r];
    load_exponents(p, b);
    if (!a->is_there) {
        load_row_exponents(four, r);
    }
    __m256i even = _mm256_set1_epi8(-127), odd = even;
    PRODUCT_UNROLL
    for (int k = 0; k < COUNT; k += 2) {
        const __m256i x0 = _mm256_set1_epi32(a->exponent[k]);
        const __m256i x1 = _mm256_set1_epi32(a->exponent[k + 1]);
        even = _mm256_max_epi8(even, _mm256_add_epi8(x0, load_ints(&b->exponent[k][j])));
        odd = _mm256_max_epi8(odd, _mm256_add_epi8(x1, load_ints(&b->exponent[k + 1][j])));
    }
    store_ints(&four->largest[r][j], _mm256_max_epi8(even, odd));
}

/* WHY noinline: nothing may move out of the mode of rounding that it is called in. */
static __attribute__((noinline)) void all_rows(const mxa_emu_product *p, operand *a, integers *b,
                                               four_rows *four, columns *general)
{
    static const uint32_t zeros[BLOCK];
    general_way way;
    way.rule = rules_of(p);
    way.b = general;
    way.b_loaded = 0;
    way.a_row = -1;
    load_rows(p, a);
    four->a = a;
    for (int i = 0, trouble = 0; i < p->m; i += ROWS) {
        const int hopeless = trouble * BLOCK > TROUBLE * (i + ROWS) * p->n;
        four->first = i;
        for (int r = 0; r < ROWS; r++) {
            four->row[r].is_there = 0;
        }
        if (!hopeless) {
            sum_integers(b, p->n, four);
            find_spare(b, p->n, four);
            add_lows(b, p->n, four);
            if (!finish_exactly(p, b, four, i)) {
                continue;
            }
        }
        for (int r = 0; r < ROWS; r++) {
            uint32_t *d = p->d + (i + r) * p->stride;
            const int fit = !hopeless && !is_special(four, r);
            for (int j = 0; j < p->n; j += BLOCK) {
                uint32_t result[BLOCK];
                if (!hopeless && !four->is_left[r][j / BLOCK]) {
                    continue;
                }
                const uint32_t *c = p->accumulate ? d + j : zeros;
                const int fits = fit && !b->of.special[j / BLOCK];
                if (fits) {
                    look_closer(p, b, four, r, j);
                }
                if (fits && finish_quickly(b, four, r, j, c, d + j)) {
                    continue;
                }
                const int looks = fits ? finish_carefully(b, four, r, j, c, result) : -1;
                if (looks < 0) {
                    block_in_general(p, &way, i + r, j, c, result);
                }
                trouble += looks < 0 ? GENERAL : looks;
                memcpy(d + j, result, sizeof result);
            }
        }
    }
}

/* 0: not a product for this way. */
static int product_bytes(const mxa_emu_product *p, columns *general)
{
    static _Thread_local operand a;
    static _Thread_local integers b;
    static _Thread_local four_rows four;
    if (p->step.core != MXA_TENSOR_CORE_BLACKWELL || p->step.count != COUNT || p->f16 ||
        p->n % BLOCK || p->m % ROWS || (p->b_k != 1 && p->b_n != 1) || !load_integers(p, &b)) {
        return 0;
    }
    operand *a_at = &a;
    integers *b_at = &b;
    four_rows *four_at = &four;
    PRODUCT_FORGET(a_at);
    PRODUCT_FORGET(b_at);
    PRODUCT_FORGET(four_at);
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | _MM_ROUND_TOWARD_ZERO);
    all_rows(p, a_at, b_at, four_at, general);
    _mm_setcsr(mode);
    return 1;
}
