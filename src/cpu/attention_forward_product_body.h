/* attention_forward_product_body.h: the register tiles of forward: TILE_M keys of S^T, TILE_M
 * dimensions of O^T.
 *
 * WHY VEC_NOINLINE: the register allocation of these loops must not depend on what surrounds them.
 * Included by attention_forward_body.h, after a vec_*.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ATTENTION_FORWARD_PRODUCT_BODY_H
#define MXA_CPU_ATTENTION_FORWARD_PRODUCT_BODY_H

#include "cpu/vec_tile.h"

#if defined(VEC_MATRIX)
/* A matrix product takes all lanes: from is 0, end TILE_N. */
static void scores_tile(int from, int end, const unit *k, int64_t k_step, const unit *q,
                        int64_t units, float *s, float *highest)
{
    (void)from;
    (void)end;
    matrix_product(s, TILE_LANES, 0, k, k_step, q, TILE_LANES, units);
    VEC_UNROLL
    for (int j = 0; j < TILE_N; j++) {
        const float *column = s + j * VEC_LANES;
        vec most[2] = {vec_load(highest + j * VEC_LANES), vec_set(-INFINITY)};

        for (int i = 0; i < TILE_M; i++)
            most[i % 2] = vec_max(most[i % 2], vec_load(column + i * TILE_LANES));
        vec_store(highest + j * VEC_LANES, vec_max(most[0], most[1]));
    }
}
#else
/* TILE_M keys for the vectors [from, end): their rows of S^T, and the column maxima so far. */
VEC_INLINE void scores_tile_of(int from, int end, const unit *k, int64_t k_step, const unit *q,
                               int64_t units, float *s, float *highest)
{
    tile_sum sum;

    tile_zero(sum);
    tile_dot_rows(sum, TILE_M, from, end, k, k_step, q, TILE_LANES, units);
    VEC_UNROLL
    for (int i = 0; i < TILE_M; i++)
        VEC_UNROLL
    for (int j = from; j < end; j++)
        vec_store(s + i * TILE_LANES + j * VEC_LANES, sum[i][j]);
    VEC_UNROLL
    for (int j = from; j < end; j++) {
        vec most = vec_load(highest + j * VEC_LANES);

        VEC_UNROLL
        for (int i = 0; i < TILE_M; i++)
            most = vec_max(most, sum[i][j]);
        vec_store(highest + j * VEC_LANES, most);
    }
}

#define DEFINE_SCORES_TILE(name, from, end)                                                        \
    static VEC_NOINLINE void scores_tile_##name(const unit *k, int64_t k_step, const unit *q,      \
                                                int64_t units, float *s, float *highest)           \
    {                                                                                              \
        scores_tile_of(from, end, k, k_step, q, units, s, highest);                                \
    }

DEFINE_SCORES_TILE(all, 0, TILE_N)
DEFINE_SCORES_TILE(last_two, TILE_N - 2, TILE_N)
DEFINE_SCORES_TILE(last, TILE_N - 1, TILE_N)
DEFINE_SCORES_TILE(first, 0, 1)
DEFINE_SCORES_TILE(first_two, 0, 2)

_Static_assert(TILE_N <= 4, "the last one, the last two, or all vectors: of four in pairs");

static void scores_tile(int from, int end, const unit *k, int64_t k_step, const unit *q,
                        int64_t units, float *s, float *highest)
{
    if (end == 1)
        scores_tile_first(k, k_step, q, units, s, highest);
    else if (end < TILE_N)
        scores_tile_first_two(k, k_step, q, units, s, highest);
    else if (from == 0)
        scores_tile_all(k, k_step, q, units, s, highest);
    else if (from == TILE_N - 1)
        scores_tile_last(k, k_step, q, units, s, highest);
    else
        scores_tile_last_two(k, k_step, q, units, s, highest);
}
#endif

/* alpha: the factor of what O is already, or NULL for 1; keep: 0 where O is nothing yet. */
#if defined(VEC_MATRIX)
static void values_tile(int end, const unit *v, int64_t v_step, const unit *p, const int64_t *units,
                        const float *alpha, int keep, float *o)
{
    (void)end;
    for (int i = 0; alpha && keep && i < TILE_M; i++)
        VEC_UNROLL
    for (int j = 0; j < TILE_N; j++) {
        float *at = o + i * TILE_LANES + j * VEC_LANES;

        vec_store(at, vec_mul(vec_load(at), vec_load(alpha + j * VEC_LANES)));
    }
    matrix_product(o, TILE_LANES, keep, v, v_step, p, TILE_LANES, units[TILE_N - 1]);
}
#else
/* TILE_M dimensions of O^T, of the first `end` vectors; vector j is contracted over units[j]. */
VEC_INLINE void values_tile_of(int end, const unit *v, const unit *p, const int64_t *units,
                               const float *alpha, int keep, float *o)
{
    tile_sum sum;
    int64_t done = 0;

    VEC_UNROLL
    for (int i = 0; i < TILE_M; i++)
        VEC_UNROLL
    for (int j = 0; j < end; j++)
        sum[i][j] = keep ? vec_load(o + i * TILE_LANES + j * VEC_LANES) : vec_set(0.0f);
    if (alpha)
        VEC_UNROLL
    for (int j = 0; j < end; j++) {
        const vec factor = vec_load(alpha + j * VEC_LANES);

        VEC_UNROLL
        for (int i = 0; i < TILE_M; i++)
            sum[i][j] = vec_mul(sum[i][j], factor);
    }
    VEC_UNROLL
    for (int from = 0; from < end; from++) {
        tile_dot_columns(sum, TILE_M, from, end, v + done * TILE_M, TILE_M, p + done * TILE_LANES,
                         TILE_LANES, units[from] - done);
        done = units[from];
    }
    VEC_UNROLL
    for (int i = 0; i < TILE_M; i++)
        VEC_UNROLL
    for (int j = 0; j < end; j++)
        vec_store(o + i * TILE_LANES + j * VEC_LANES, sum[i][j]);
}

#define DEFINE_VALUES_TILE(name, end)                                                              \
    static VEC_NOINLINE void values_tile_##name(const unit *v, const unit *p,                      \
                                                const int64_t *units, const float *alpha,          \
                                                int keep, float *o)                                \
    {                                                                                              \
        values_tile_of(end, v, p, units, alpha, keep, o);                                          \
    }

DEFINE_VALUES_TILE(all, TILE_N)
DEFINE_VALUES_TILE(first, 1)
DEFINE_VALUES_TILE(first_two, 2)

static void values_tile(int end, const unit *v, int64_t v_step, const unit *p, const int64_t *units,
                        const float *alpha, int keep, float *o)
{
    (void)v_step;
    if (end == 1)
        values_tile_first(v, p, units, alpha, keep, o);
    else if (end < TILE_N)
        values_tile_first_two(v, p, units, alpha, keep, o);
    else
        values_tile_all(v, p, units, alpha, keep, o);
}
#endif

#endif
