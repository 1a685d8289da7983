/* product_body.h: a product of tensor-core steps, columns in vectors; included once per ISA.
 *
 * PRODUCT_BYTES is a vector's size, PRODUCT_NAME the function's name.
 *
 * An output's largest exponent is a maximum of sums, over k, of A's and B's exponents in small
 * integers. A product of two elements is exact in FP32 (bytes) or FP64 (halves), and so is that
 * times 2^(F - largest exponent); a conversion to integer then truncates as the model does, and
 * integers add exactly: |term| < 4 * 2^25, so that 16 of them stay below 2^31. What does not fit
 * this (NaN, infinity, results outside FP32's normal numbers) goes to mxa_emu_product_row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/product.h"
#include "mx/e8m0.h"
#include "mx/element.h"

#include <string.h>

enum {
    COLUMNS = MXA_EMU_PRODUCT_COLUMNS,
    COUNT = MXA_EMU_PRODUCT_COUNT,
    BLOCK = 32,    /* columns worked on together */
    HALF_SUM = 16, /* terms of one 32-bit sum */
    /* WHY longer: rows of a power of two bytes meet in a few sets of the cache */
    STRIDE = COLUMNS + 32,
    NONE = -100000 /* no exponent: nothing but zeros */
};

#define PRODUCT_UNROLL _Pragma("GCC unroll 16")
/* WHY: a block has two callers, and out of line it takes twice the time. */
#define PRODUCT_INLINE static inline __attribute__((always_inline))
/* WHY: gcc knows which variable a pointer comes from, and would find the address of thread-local
 * memory again in each block, by a call that no vector register survives. */
#define PRODUCT_FORGET(pointer) __asm__("" : "+r"(pointer))
/* WHY: gcc reads a vector that has two uses from memory twice. */
#define PRODUCT_KEEP(vector) __asm__("" : "+x"(vector))
#ifndef PRODUCT_MAX8
#define PRODUCT_MAX8(a, b)  SELECT((a) > (b), a, b)
#define PRODUCT_MAX16(a, b) SELECT((a) > (b), a, b)
#define PRODUCT_MAX32(a, b) SELECT((a) > (b), a, b)
#define PRODUCT_MIN32(a, b) SELECT((a) < (b), a, b)
#define PRODUCT_F64(ints)   __builtin_convertvector(ints, doubles)
#define PRODUCT_I64(ints)   __builtin_convertvector(ints, int64s)
#define PRODUCT_F16(floats) f16_codes(floats)
#endif
/* a where a mask of integers is -1, b where it is 0. */
#define SELECT(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))

/* WHY no wider than the machine's own: gcc takes wider ones apart into scalars. */
#define VECTOR(type, bytes, name)                                                                  \
    typedef type name __attribute__((vector_size(bytes), aligned(sizeof(type)), may_alias))
VECTOR(float, PRODUCT_BYTES, floats);
VECTOR(double, PRODUCT_BYTES, doubles);
VECTOR(int32_t, PRODUCT_BYTES, ints);
VECTOR(int32_t, PRODUCT_BYTES / 2, half_ints);
VECTOR(float, PRODUCT_BYTES / 2, half_floats);
VECTOR(int64_t, PRODUCT_BYTES, int64s);
VECTOR(int8_t, PRODUCT_BYTES, int8s);
VECTOR(int16_t, PRODUCT_BYTES, int16s);

#ifndef PRODUCT_HAS_F16
static ints f16_codes(floats x)
{
    ints codes;
    for (int i = 0; i < PRODUCT_BYTES / 4; i++) {
        codes[i] = mxa_f16_from_f32(x[i]);
    }
    return codes;
}
#endif

/* Exponents given to zero, and what sums without one lie above: -28 for bytes, -252 for halves. */
enum { ZERO8 = -64, LEAST8 = -32, ZERO16 = -2000, LEAST16 = -1000 };

/* B as vectors want it: [k][column], zero beyond n. */
typedef struct columns {
    int special[COLUMNS / BLOCK]; /* a NaN or an infinity in this block */
    int32_t scale[COLUMNS];
    int8_t exponent8[COUNT][STRIDE];
    float value8[COUNT][STRIDE];
    int16_t exponent16[HALF_SUM][STRIDE];
    double value16[HALF_SUM][STRIDE];
} columns;

/* One row of A. */
typedef struct row {
    int special;
    int32_t scale;
    int8_t exponent8[COUNT];
    float value8[COUNT];
    int16_t exponent16[HALF_SUM];
    double value16[HALF_SUM];
} row;

/* `count` codes of a type of halves, `step` apart; returns 1 when one is NaN or infinite. */
static int decode_halves(const uint16_t *code, int step, int count, mxattn_dtype dtype,
                         int16_t *exponent, double *value)
{
    const int mantissa_bits = mxa_dtype_mantissa_bits(dtype);
    const uint32_t one = 1U << mantissa_bits, infinity = mxa_dtype_infinity(dtype);
    const int bias = dtype == MXATTN_BF16 ? 127 : 15;
    int special = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t bits = code[i * step], magnitude = bits & 0x7FFF;
        const uint32_t field = magnitude >> mantissa_bits;
        const int32_t significand = (int32_t)((magnitude & (one - 1)) | (field ? one : 0));
        const int e = (field ? (int)field : 1) - bias;
        const uint64_t power_bits = (uint64_t)(e - mantissa_bits + 1023) << 52;
        double power;
        memcpy(&power, &power_bits, sizeof power);
        exponent[i] = (int16_t)(significand ? e : ZERO16);
        value[i] = (double)(bits > magnitude ? -significand : significand) * power;
        special |= magnitude >= infinity;
    }
    return special;
}

/* BLOCK codes of a type of bytes at once; returns 1 when one of them is NaN or infinite.
 * mantissa_bits is 3 or 2. A code's magnitude, moved to where FP32 has exponent and mantissa, is
 * the value times a power of two, subnormal numbers included. */
static int decode_bytes(const uint8_t *code, int mantissa_bits, int8_t *exponent, float *value)
{
    enum { LANES = PRODUCT_BYTES / 4 };
    const int bias = mantissa_bits == 3 ? 7 : 15;
    const int8_t special = mantissa_bits == 3 ? MXA_FP8_NAN : 0x7C;
    const float power = mantissa_bits == 3 ? 0x1p120F : 0x1p112F;
    int8s specials = {0};
    for (int i = 0; i < BLOCK; i += PRODUCT_BYTES) {
        const int8s magnitude = *(const int8s *)&code[i] & 0x7F;
        const int8s field = mantissa_bits == 3 ? magnitude >> 3 : magnitude >> 2;
        const int8s e = field - (field == 0) - (int8_t)bias;
        *(int8s *)&exponent[i] = SELECT(magnitude == 0, (int8s){0} + (int8_t)ZERO8, e);
        specials |= magnitude >= special;
    }
    for (int i = 0; i < BLOCK; i++) {
        const uint32_t bits =
            (uint32_t)(code[i] & 0x7F) << (23 - mantissa_bits) | (uint32_t)(code[i] >> 7) << 31;
        float x;
        memcpy(&x, &bits, sizeof x);
        value[i] = x * power;
    }
    int any = 0;
    for (int i = 0; i < PRODUCT_BYTES; i++) {
        any |= specials[i];
    }
    return any != 0;
}

/* `count` bytes, `step` apart, then zeros. */
static void gather(uint8_t *code, const uint8_t *at, int step, int count)
{
    if (count < BLOCK) {
        memset(code, 0, BLOCK);
    }
    PRODUCT_UNROLL
    for (int i = 0; i < count; i++, at += step) {
        code[i] = *at;
    }
}

static void load_columns(const mxa_emu_product *p, columns *b)
{
    const int mantissa_bits = mxa_dtype_mantissa_bits(p->step.b_type);
    for (int j = 0; j < p->n; j += BLOCK) {
        const int left = p->n - j < BLOCK ? p->n - j : BLOCK;
        int special = 0;
        for (int i = 0; i < BLOCK; i++) {
            b->scale[j + i] = p->scale_b && i < left ? p->scale_b[j + i] : 127;
            special |= b->scale[j + i] == MXA_SCALE_NAN;
        }
        for (int k = 0; k < p->step.count; k++) {
            const int64_t from = (int64_t)j * p->b_n + (int64_t)k * p->b_k;
            if (p->step.count == COUNT) {
                const uint8_t *at = (const uint8_t *)p->b + from;
                uint8_t code[BLOCK];
                gather(code, at, p->b_n, left);
                special |= decode_bytes(code, mantissa_bits, &b->exponent8[k][j], &b->value8[k][j]);
            } else {
                memset(&b->exponent16[k][j], 0, BLOCK * sizeof(int16_t));
                memset(&b->value16[k][j], 0, BLOCK * sizeof(double));
                special |= decode_halves((const uint16_t *)p->b + from, p->b_n, left,
                                         p->step.b_type, &b->exponent16[k][j], &b->value16[k][j]);
            }
        }
        b->special[j / BLOCK] = special;
    }
}

static void load_row(const mxa_emu_product *p, int i, row *a)
{
    a->scale = p->scale_a ? p->scale_a[i] : 127;
    a->special = a->scale == MXA_SCALE_NAN;
    if (p->step.count == COUNT) {
        a->special |=
            decode_bytes((const uint8_t *)p->a + i * COUNT, mxa_dtype_mantissa_bits(p->step.a_type),
                         a->exponent8, a->value8);
        return;
    }
    a->special |= decode_halves((const uint16_t *)p->a + i * HALF_SUM, 1, HALF_SUM, p->step.a_type,
                                a->exponent16, a->value16);
}

/* Largest sum of exponents of each column of a block. */
PRODUCT_INLINE void largest8(const columns *b, const row *a, int first, int32_t *largest)
{
    enum { LANES = PRODUCT_BYTES };
    for (int j = 0; j < BLOCK; j += LANES) {
        int8s top = (int8s){0} - (int8_t)127;
        PRODUCT_UNROLL
        for (int k = 0; k < COUNT; k++) {
            const int8s e = *(const int8s *)&b->exponent8[k][first + j] + a->exponent8[k];
            top = PRODUCT_MAX8(top, e);
        }
        for (int i = 0; i < LANES; i++) {
            largest[j + i] = top[i];
        }
    }
}

static void largest16(const columns *b, const row *a, int first, int32_t *largest)
{
    enum { LANES = PRODUCT_BYTES / 2 };
    for (int j = 0; j < BLOCK; j += LANES) {
        int16s top = (int16s){0} - (int16_t)32000;
        for (int k = 0; k < HALF_SUM; k++) {
            const int16s e = *(const int16s *)&b->exponent16[k][first + j] + a->exponent16[k];
            top = PRODUCT_MAX16(top, e);
        }
        for (int i = 0; i < LANES; i++) {
            largest[j + i] = top[i];
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * One row's block
 * --------------------------------------------------------------------------------------------- */

enum { VECTORS = BLOCK / (PRODUCT_BYTES / 4) };

/* What a product's blocks have in common. */
typedef struct rules {
    int fraction, kept; /* bits of terms, of FP32 results */
    int32_t least;      /* sums of exponents below it are of zeros */
    int32_t low, high;  /* limits of powers: beyond them are zeros, or terms cut to nothing */
    int mantissa_bits, field_mask, bias, sign_shift; /* of accumulators */
} rules;

static rules rules_of(const mxa_emu_product *p)
{
    rules r = {mxa_tensor_core_fraction_bits(p->step.core),
               mxa_tensor_core_result_bits(p->step.core),
               LEAST8,
               -126,
               100,
               23,
               0xFF,
               127,
               0};
    if (p->step.count == HALF_SUM) {
        r.least = LEAST16;
        r.low = -1022;
        r.high = 1000;
    }
    if (p->f16) {
        r.mantissa_bits = 10;
        r.field_mask = 0x1F;
        r.bias = 15;
        r.sign_shift = 16;
    }
    return r;
}

/* A block between its steps; sums are in units of 2^(largest - fraction). */
typedef struct block {
    ints largest[VECTORS]; /* exponent; NONE: all terms are zero */
    ints power[VECTORS];   /* 2^power makes that unit of a product */
    ints c[VECTORS];       /* the accumulators' terms */
    ints sum[2][VECTORS];  /* the products' */
    ints special;          /* not 0 where an accumulator is NaN or infinite */
} block;

PRODUCT_INLINE int any(ints x)
{
    int32_t all = 0;
    for (int i = 0; i < PRODUCT_BYTES / 4; i++) {
        all |= x[i];
    }
    return all != 0;
}

/* From the products' largest exponents, scales apart, and the accumulators. */
PRODUCT_INLINE void align(const rules *r, const int32_t *exponents, const int32_t *scale_b,
                          int scale_a, const uint32_t *c, block *t)
{
    const int32_t one = 1 << r->mantissa_bits;
    const int up = 25 - r->mantissa_bits;
    t->special = (ints){0};
    for (int v = 0; v < VECTORS; v++) {
        const ints e = ((const ints *)exponents)[v];
        const ints scale = ((const ints *)scale_b)[v] + (scale_a - 254);
        const ints products = SELECT(e < r->least, (ints){0} + NONE, e + scale);
        const ints bits = ((const ints *)c)[v];
        const ints field = (bits >> r->mantissa_bits) & r->field_mask;
        const ints significand = (bits & (one - 1)) | ((field != 0) & one);
        const ints exponent = field - (field == 0) - r->bias;
        const ints own = SELECT(significand == 0, (ints){0} + NONE, exponent);
        const ints largest = PRODUCT_MAX32(products, own);
        const ints shift = PRODUCT_MIN32(largest - own + (25 - r->fraction), (ints){0} + 31);
        const ints cut = (significand << up) >> shift;
        const ints sign = (bits << r->sign_shift) >> 31;
        const ints power = scale + r->fraction - largest;
        t->special |= field == r->field_mask;
        t->largest[v] = largest;
        t->c[v] = (cut ^ sign) - sign;
        t->power[v] = PRODUCT_MIN32(PRODUCT_MAX32(power, (ints){0} + r->low), (ints){0} + r->high);
    }
}

PRODUCT_INLINE void sums8(const columns *b, const row *a, int column, block *t)
{
    floats factor[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        factor[v] = (floats)((t->power[v] + 127) << 23);
    }
    for (int half = 0; half < 2; half++) {
        ints sum[VECTORS] = {{0}};
        PRODUCT_UNROLL
        for (int k = 0; k < HALF_SUM; k++) {
            const floats x = a->value8[half * HALF_SUM + k] - (floats){0};
            const floats *y = (const floats *)&b->value8[half * HALF_SUM + k][column];
            for (int v = 0; v < VECTORS; v++) {
                sum[v] += __builtin_convertvector(x * y[v] * factor[v], ints);
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            t->sum[half][v] = sum[v];
        }
    }
}

static void sums16(const columns *b, const row *a, int column, block *t)
{
    enum { LANES = PRODUCT_BYTES / 8, TOGETHER = 4 };
    half_ints *sums = (half_ints *)t->sum[0];
    const half_ints *power = (const half_ints *)t->power;
    for (int j = 0; j < BLOCK / LANES; j += TOGETHER) {
        doubles factor[TOGETHER];
        half_ints sum[TOGETHER] = {{0}};
        for (int v = 0; v < TOGETHER; v++) {
            factor[v] = (doubles)((PRODUCT_I64(power[j + v]) + 1023) << 52);
        }
        PRODUCT_UNROLL
        for (int k = 0; k < HALF_SUM; k++) {
            const doubles x = a->value16[k] - (doubles){0};
            const doubles *y = (const doubles *)&b->value16[k][column + j * LANES];
            for (int v = 0; v < TOGETHER; v++) {
                sum[v] += __builtin_convertvector(x * y[v] * factor[v], half_ints);
            }
        }
        for (int v = 0; v < TOGETHER; v++) {
            sums[j + v] = sum[v];
        }
    }
    memset(t->sum[1], 0, sizeof t->sum[1]);
}

/* Sums that may be beyond 2^31 to FP32, toward zero; 0: one is neither a normal number nor zero. */
static int results_large(const rules *r, const block *t, uint32_t *d)
{
    enum { LANES = PRODUCT_BYTES / 8 };
    const int64_t keep = (int64_t)(~(uint64_t)0 << (52 - r->kept));
    const int64_t least = (int64_t)(1023 - 126) << 52, most = (int64_t)(1023 + 127) << 52;
    const half_ints *s0 = (const half_ints *)t->sum[0], *s1 = (const half_ints *)t->sum[1];
    const half_ints *c = (const half_ints *)t->c, *largest = (const half_ints *)t->largest;
    int64s rare = {0};
    for (int v = 0; v < BLOCK / LANES; v++) {
        const doubles sum = PRODUCT_F64(s0[v]) + PRODUCT_F64(s1[v]) + PRODUCT_F64(c[v]);
        const int64s unit = PRODUCT_I64(largest[v]) - r->fraction;
        const int64s some = sum != 0, bits = (int64s)sum + (unit << 52);
        const int64s exponent = bits & ((int64_t)0x7FF << 52);
        rare |= some & ((exponent < least) | (exponent > most));
        const doubles cut = (doubles)(bits & some & keep);
        *(half_floats *)&d[v * LANES] = __builtin_convertvector(cut, half_floats);
    }
    int64_t all = 0;
    for (int i = 0; i < LANES; i++) {
        all |= rare[i];
    }
    return all == 0;
}

/* Sums to FP32, toward zero; 0: one is neither a normal number nor zero. A conversion to FP32
 * rounds to nearest; where it went up, the code before it is the one toward zero. */
PRODUCT_INLINE int results_f32(const rules *r, const block *t, uint32_t *d)
{
    const int32_t keep = (int32_t)(~(uint32_t)0 << (23 - r->kept));
    ints rare = {0}, large = {0};
    for (int v = 0; v < VECTORS; v++) {
        const ints s0 = t->sum[0][v], s1 = t->sum[1][v], sum = s0 + s1 + t->c[v];
        large |= ((s0 ^ (s0 >> 31)) | (s1 ^ (s1 >> 31))) >> 29;
        const ints sign = sum >> 31, magnitude = (sum ^ sign) - sign, some = magnitude != 0;
        const floats nearest = __builtin_convertvector(magnitude, floats);
        const ints up = __builtin_convertvector(nearest, ints) > magnitude;
        const ints bits = ((ints)nearest + up) & keep, unit = t->largest[v] - r->fraction;
        const ints field = (bits >> 23) + unit;
        rare |= some & ((field < 1) | (field > 254));
        *(ints *)&d[v * (PRODUCT_BYTES / 4)] = ((bits + (unit << 23)) & some) | (sign << 31);
    }
    if (!any(rare | large | t->special)) {
        return 1;
    }
    return any(large) && !any(t->special) && results_large(r, t, d);
}

/* Sums to FP16, nearest even. They have few bits, so that FP32 holds them exactly. */
static void results_f16(const rules *r, const block *t, uint32_t *d)
{
    for (int v = 0; v < VECTORS; v++) {
        const ints sum = t->sum[0][v] + t->sum[1][v] + t->c[v];
        const ints unit = t->largest[v] - r->fraction;
        const floats power = (floats)(PRODUCT_MAX32(unit + 127, (ints){0} + 1) << 23);
        *(ints *)&d[v * (PRODUCT_BYTES / 4)] =
            PRODUCT_F16(__builtin_convertvector(sum, floats) * power);
    }
}

/* One row's block of accumulators c, from `column` on, to d: 1 when done, 0 when it needs the
 * model.
 */
PRODUCT_INLINE int row_block(const mxa_emu_product *p, const rules *r, const columns *b,
                             const row *a, int column, const uint32_t *c, uint32_t *d)
{
    const int bytes = p->step.count == COUNT;
    int32_t exponents[BLOCK];
    block t;
    if (bytes) {
        largest8(b, a, column, exponents);
    } else {
        largest16(b, a, column, exponents);
    }
    align(r, exponents, &b->scale[column], a->scale, c, &t);
    if (bytes) {
        sums8(b, a, column, &t);
    } else {
        sums16(b, a, column, &t);
    }
    if (p->f16) {
        results_f16(r, &t, d);
        return !any(t.special);
    }
    return results_f32(r, &t, d);
}

#if defined(PRODUCT_INTEGERS)
#include "emu/product_bytes_body.h"
#endif

void PRODUCT_NAME(const mxa_emu_product *p)
{
    static _Thread_local columns storage; /* WHY static: a fiber's stack is small */
    columns *b = &storage;
    PRODUCT_FORGET(b);
    static const uint32_t zeros[BLOCK];
    const mxa_tensor_core core = p->step.core;
    const int count = p->step.count;
    if (core == MXA_TENSOR_CORE_EXACT || (p->f16 && core != MXA_TENSOR_CORE_HOPPER_FP8) ||
        (count != COUNT && count != HALF_SUM)) {
        mxa_emu_product_scalar(p);
        return;
    }
#if defined(PRODUCT_INTEGERS)
    if (product_bytes(p, b)) {
        return;
    }
#endif
    const rules r = rules_of(p);
    load_columns(p, b);
    for (int i = 0; i < p->m; i++) {
        uint32_t *d = p->d + i * p->stride;
        row a;
        load_row(p, i, &a);
        for (int j = 0; j < p->n; j += BLOCK) {
            const int left = p->n - j < BLOCK ? p->n - j : BLOCK;
            uint32_t c[BLOCK], result[BLOCK];
            const uint32_t *from = p->accumulate ? d + j : zeros;
            for (int l = 0; left < BLOCK && l < BLOCK; l++) { /* a short block has a copy */
                c[l] = l < left ? from[l] : 0;
            }
            if (a.special || b->special[j / BLOCK] ||
                !row_block(p, &r, b, &a, j, left < BLOCK ? c : from, result)) {
                mxa_emu_product_row(p, i, j, j + left);
                continue;
            }
            if (left == BLOCK) {
                for (int l = 0; l < BLOCK; l += PRODUCT_BYTES / 4) {
                    *(ints *)&d[j + l] = *(const ints *)&result[l];
                }
            } else {
                memcpy(d + j, result, (size_t)left * sizeof *d);
            }
        }
    }
}
