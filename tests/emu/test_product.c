/* test_product.c: fast tensor-core products against the scalar model, bit for bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/product.h"
#include "fill.h"
#include "mx/element.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { M = 128, N = 256, K = 32 };

typedef struct tile {
    uint16_t a[M * K], b[N * K]; /* used as bytes where the type is one */
    uint8_t scale_a[M], scale_b[N];
    uint32_t d[M * N], want[M * N];
} tile;

static void (*const ways[])(const mxa_emu_product *) = {
    mxa_emu_product_portable,
#if defined(MXA_BUILD_AVX2)
    mxa_emu_product_avx2,
#endif
};
static const char *const way_names[] = {"portable", "avx2"};

static int runs(size_t way)
{
#if defined(MXA_BUILD_AVX2)
    return way == 0 || __builtin_cpu_supports("avx2");
#else
    return way == 0;
#endif
}

/* GAUSSIAN: of two deviations, 40 apart; QUANTIZED: of one, as a quantizer leaves them; COHERENT:
 * products near each other and of one sign, so that sums pass 2^31 units */
typedef enum code_kind {
    GAUSSIAN,
    ANY_CODE,
    SMALL,
    WITH_NAN,
    COHERENT,
    QUANTIZED,
    KINDS
} code_kind;
static const char *const kind_names[] = {"gaussian", "any code", "small",
                                         "with NaN", "coherent", "quantized"};

static void fill_codes(mxt_random *random, void *codes, int count, mxattn_dtype dtype,
                       code_kind kind)
{
    const int bytes = mxa_dtype_bytes(dtype);
    for (int i = 0; i < count; i++) {
        uint64_t u = mxt_random_u64(random);
        uint16_t code = (uint16_t)u;
        if (kind == GAUSSIAN) {
            mxa_store(&code, dtype, 0, (float)mxt_random_gaussian(random) * (u & 64 ? 40 : 1));
        } else if (kind == QUANTIZED) {
            const float x = (float)mxt_random_gaussian(random) * 120;
            mxa_store(&code, dtype, 0, x > 448 ? 448 : x < -448 ? -448 : x);
        } else if (kind == COHERENT) {
            mxa_store(&code, dtype, 0, 1.8F + (float)(u % 4) * 0.02F);
        } else if (kind == SMALL) { /* zeros and the smallest numbers */
            code = (uint16_t)(u & (bytes == 1 ? 0x87 : 0x80FF) & (u & 256 ? 0xFFFF : 0));
        }
        const uint16_t sign = bytes == 1 ? 0x80 : 0x8000;
        const uint16_t infinity = (uint16_t)mxa_dtype_infinity(dtype);
        const uint16_t magnitude = (uint16_t)(code & (sign - 1));
        if (kind != WITH_NAN && magnitude >= (infinity ? infinity : 0x7F)) {
            code = (uint16_t)(code & ~0x44U); /* below NaN and infinity in every type */
            code = bytes == 2 ? (uint16_t)(code & 0xBBFF) : code;
        }
        if (bytes == 1) {
            ((uint8_t *)codes)[i] = (uint8_t)code;
        } else {
            ((uint16_t *)codes)[i] = code;
        }
    }
}

static void fill_accumulators(mxt_random *random, uint32_t *d, int count, int f16, code_kind kind)
{
    for (int i = 0; i < count; i++) {
        const uint64_t u = mxt_random_u64(random);
        uint32_t code = (uint32_t)u;
        if (kind == GAUSSIAN || kind == QUANTIZED || kind == COHERENT || (u >> 60) < 4) {
            const float x =
                (float)mxt_random_gaussian(random) * (kind == COHERENT ? 1.0F : 1000.0F);
            memcpy(&code, &x, sizeof code);
            code = f16 ? mxa_f16_from_f32(x) : code;
        }
        code = f16 ? code & 0xFFFF : code;
        if (kind != WITH_NAN) {
            code &= f16 && (code & 0x7C00) == 0x7C00            ? 0xBFFFU
                    : !f16 && (code & 0x7F800000) == 0x7F800000 ? 0xBFFFFFFF
                                                                : 0xFFFFFFFF;
        }
        d[i] = (u >> 56 & 15) == 0 ? 0 : code;
    }
}

typedef struct step_case {
    mxa_tensor_core_step step;
    int f16, scaled;
} step_case;

static const step_case cases[] = {
    {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_E4M3, MXATTN_E4M3, 32}, 0, 1},
    {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_E5M2, MXATTN_E4M3, 32}, 0, 1},
    {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_E4M3, MXATTN_E5M2, 32}, 0, 0},
    {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_BF16, MXATTN_BF16, 16}, 0, 0},
    {{MXA_TENSOR_CORE_BLACKWELL, MXATTN_F16, MXATTN_F16, 16}, 1, 0},
    {{MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E4M3, MXATTN_E4M3, 32}, 0, 0},
    {{MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E4M3, MXATTN_E4M3, 32}, 1, 0},
    {{MXA_TENSOR_CORE_HOPPER_FP8, MXATTN_E5M2, MXATTN_E5M2, 32}, 1, 0},
    {{MXA_TENSOR_CORE_HOPPER_16, MXATTN_BF16, MXATTN_BF16, 16}, 0, 0},
    {{MXA_TENSOR_CORE_HOPPER_16, MXATTN_F16, MXATTN_F16, 16}, 0, 0},
    {{MXA_TENSOR_CORE_EXACT, MXATTN_E4M3, MXATTN_E4M3, 32}, 0, 1},
};

static void random_tiles(void)
{
    static const int columns[] = {8, 40, 64, 256};
    tile *t = malloc(sizeof *t);
    mxt_random random = {21};
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        if (!runs(way)) {
            mxt_case("%s", way_names[way]);
            mxt_skip("this machine has no %s", way_names[way]);
            continue;
        }
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            for (int kind = 0; kind < KINDS; kind++) {
                const step_case *c = &cases[i];
                const int n = columns[(i + (size_t)kind) % 4], m = 24, k = c->step.count;
                const int by_rows = kind & 1;
                mxt_case("%s: core %d, %s by %s, %s, N %d", way_names[way], (int)c->step.core,
                         mxa_dtype_name(c->step.a_type), mxa_dtype_name(c->step.b_type),
                         kind_names[kind], n);
                fill_codes(&random, t->a, m * k, c->step.a_type, (code_kind)kind);
                fill_codes(&random, t->b, n * k, c->step.b_type, (code_kind)kind);
                /* NaN seldom, so that the rest of the tile is looked at too */
                for (int j = 0; j < N; j++) {
                    const int spread = kind == GAUSSIAN || kind == QUANTIZED ? 4
                                       : kind == COHERENT                    ? 0
                                                                             : 120;
                    t->scale_a[j % M] =
                        (uint8_t)mxt_random_int(&random, 127 - spread, 127 + spread);
                    t->scale_b[j] = (uint8_t)mxt_random_int(&random, 127 - spread, 127 + spread);
                }
                t->scale_a[3] = 0;
                t->scale_b[5] = 254;
                t->scale_b[6] = kind == WITH_NAN ? 255 : 0;
                fill_accumulators(&random, t->d, m * n, c->f16, (code_kind)kind);
                memcpy(t->want, t->d, sizeof t->d);
                mxa_emu_product p = {c->step,
                                     m,
                                     n,
                                     t->a,
                                     t->b,
                                     by_rows ? 1 : k,
                                     by_rows ? n : 1,
                                     c->scaled ? t->scale_a : NULL,
                                     c->scaled ? t->scale_b : NULL,
                                     t->want,
                                     n,
                                     c->f16,
                                     kind != SMALL || way == 0};
                mxa_emu_product_scalar(&p);
                p.d = t->d;
                ways[way](&p);
                int wrong = 0;
                for (int j = 0; j < m * n && wrong < 3; j++) {
                    wrong += !CHECK(t->d[j] == t->want[j], "(%d, %d): got %08x, want %08x", j / n,
                                    j % n, t->d[j], t->want[j]);
                }
            }
        }
    }
    free(t);
}

/* A number of one of several distributions: even, of two deviations, positive over many binades,
 * with zeros, near each other, with few that are small, powers of two, far from zero, all codes. */
static float number_of(mxt_random *random, int kind)
{
    const uint64_t u = mxt_random_u64(random);
    const float x = (float)mxt_random_gaussian(random);
    switch (kind) {
    case 0:
        return x * 120;
    case 1:
        return x * (u & 64 ? 40 : 1);
    case 2:
        return ldexpf(256, -(int)(3 * x * x));
    case 3:
        return u & 7 ? 0 : x * 50;
    case 4:
        return 1.8F + (float)(u % 4) * 0.02F;
    case 5:
        return x * (u & 31 ? 100 : 0.05F);
    case 6:
        return ldexpf(u & 1 ? 1.75F : -1.75F, (int)(u >> 8) % 8);
    case 7:
        return 300 + x * 30;
    default:
        return ldexpf((u >> 40 & 1 ? 1.0F : -1.0F) * (1 + (float)(u % 8) / 8),
                      (int)(u >> 10) % 18 - 9);
    }
}

static void fill_numbers(mxt_random *random, uint8_t *codes, int count, mxattn_dtype dtype)
{
    const int kind = (int)mxt_random_int(random, 0, 8);
    for (int i = 0; i < count; i++) {
        const float x = number_of(random, kind);
        mxa_store(codes, dtype, i, x > 448 ? 448 : x < -448 ? -448 : x);
    }
}

/* Blackwell's FP8 of any two distributions, rows and columns of zeros among them, accumulators from
 * none over any code to far above the products. */
static void mixed_tiles(void)
{
    static const float accumulators[] = {0, 1e-3F, 1e3F, 1e5F, 1e9F};
    enum { ROUNDS = 150, ROWS = 16, STEPS = 2 };
    tile *t = malloc(sizeof *t);
    mxt_random random = {23};
    for (int round = 0; round < ROUNDS; round++) {
        const mxattn_dtype a_type = mxt_random_u64(&random) & 3 ? MXATTN_E4M3 : MXATTN_E5M2;
        const mxattn_dtype b_type = mxt_random_u64(&random) & 3 ? MXATTN_E4M3 : MXATTN_E5M2;
        const int n = 32 * (int)mxt_random_int(&random, 1, 5), along_n = round & 1;
        const int spread = (int)(mxt_random_int(&random, 0, 3) * mxt_random_int(&random, 0, 40));
        const int own = (int)mxt_random_int(&random, 0, 5);
        mxt_case("mixed, round %d: %s by %s, N %d, accumulators %d", round, mxa_dtype_name(a_type),
                 mxa_dtype_name(b_type), n, own);
        fill_numbers(&random, (uint8_t *)t->a, ROWS * K, a_type);
        fill_numbers(&random, (uint8_t *)t->b, n * K, b_type);
        memset((uint8_t *)t->a + mxt_random_int(&random, 0, 2 * ROWS) / 2 * K, 0, K);
        for (int j = 0; j < N; j++) {
            t->scale_a[j % M] = (uint8_t)(127 + mxt_random_int(&random, -spread, spread));
            t->scale_b[j] = (uint8_t)(127 + mxt_random_int(&random, -spread, spread));
        }
        for (int i = 0; i < ROWS * n; i++) {
            const float x = (float)mxt_random_gaussian(&random) * (own < 5 ? accumulators[own] : 0);
            const uint32_t any = (uint32_t)mxt_random_u64(&random);
            memcpy(&t->d[i], own < 5 ? (const void *)&x : &any, sizeof any);
        }
        mxa_emu_product p = {{MXA_TENSOR_CORE_BLACKWELL, a_type, b_type, K},
                             ROWS,
                             n,
                             t->a,
                             t->b,
                             along_n ? 1 : K,
                             along_n ? n : 1,
                             t->scale_a,
                             t->scale_b,
                             t->d,
                             n,
                             0,
                             round % 4 != 0};
        for (int step = 0; step < STEPS; step++) {
            const size_t bytes = (size_t)(ROWS * n) * sizeof t->d[0];
            memcpy(t->want, t->d, bytes);
            p.d = t->want;
            mxa_emu_product_scalar(&p);
            p.d = t->d;
            mxa_emu_product_run(&p);
            int wrong = 0;
            for (int i = 0; i < ROWS * n && wrong < 3; i++) {
                wrong += !CHECK(t->d[i] == t->want[i], "step %d (%d, %d): got %08x, want %08x",
                                step, i / n, i % n, t->d[i], t->want[i]);
            }
            memcpy(t->d, t->want, bytes);
        }
    }
    free(t);
}

/* 128x128x128 in steps. With --time: microseconds of this thread. */
static double time_of(const mxa_emu_product *p, uint32_t *d, size_t bytes)
{
    double best = 1e9;
    for (int round = 0; round < 40; round++) {
        struct timespec from, to;
        memset(d, 0, bytes);
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        for (int k = 0; k < 128; k += p->step.count) {
            mxa_emu_product_run(p);
        }
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        const double us =
            (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) * 1e-3;
        best = us < best ? us : best;
    }
    return best;
}

static void timing(void)
{
    tile *t = malloc(sizeof *t);
    mxt_random random = {22};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const step_case *c = &cases[i];
        if (c->step.core == MXA_TENSOR_CORE_EXACT || (c->f16 && c->step.count == 16)) {
            continue;
        }
        for (int wide = 0; wide < 2; wide++) {
            fill_codes(&random, t->a, M * K, c->step.a_type, wide ? GAUSSIAN : QUANTIZED);
            fill_codes(&random, t->b, 128 * K, c->step.b_type, wide ? GAUSSIAN : QUANTIZED);
            memset(t->scale_a, 127, sizeof t->scale_a);
            memset(t->scale_b, 127, sizeof t->scale_b);
            const mxa_emu_product p = {c->step,
                                       M,
                                       128,
                                       t->a,
                                       t->b,
                                       c->step.count,
                                       1,
                                       c->scaled ? t->scale_a : NULL,
                                       c->scaled ? t->scale_b : NULL,
                                       t->d,
                                       128,
                                       c->f16,
                                       1};
            (void)printf("core %d, %s by %s%s, %s: %.0f us\n", (int)c->step.core,
                         mxa_dtype_name(c->step.a_type), mxa_dtype_name(c->step.b_type),
                         c->f16 ? ", FP16" : "", kind_names[wide ? GAUSSIAN : QUANTIZED],
                         time_of(&p, t->d, sizeof t->d));
        }
    }
    free(t);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        timing();
        return 0;
    }
    random_tiles();
    mixed_tiles();
    return mxt_finish();
}
