/* attention_forward_decode_wide_body.h: usual E4M3 blocks as in
 * attention_forward_decode_codes_body.h, for so many lanes that they fill vectors.
 *
 * Decoding is little of the work then. Runs of codes times their scales go to memory once, where
 * single elements are broadcast to vectors of lanes: S^T = K Q^T and O^T = V^T P^T, without sums
 * across a vector. LANES is VEC_LANES or twice as many.
 *
 *   k      [D / RUN_CODES][STEP_KEYS][RUN_CODES], WIDE_RUN apart: every stride is a constant;
 *          K, then V
 *   q, o   [D][LANES]   in the order of the runs
 *   s      [STEP_KEYS][LANES]
 *
 * SPDX-License-Identifier: Apache-2.0
 */

enum {
    WIDE_SUMS = 12,  /* in registers at a time */
    WIDE_VECTORS = 2 /* of lanes at most */
};

/* A run of each of STEP_KEYS rows, from dimension d on, times the factors of its blocks. */
VEC_INLINE void wide_expand_run(const code_rows *rows, int64_t d, const float *factors, float *out,
                                int asks, run_flags *nans)
{
    const int64_t step = rows->step, next = rows->next, far_step = rows->ask.key_step;
    const uint8_t *codes = rows->codes + d;
    uintptr_t far = rows->ask.from + (uintptr_t)d;
    run_flags seen = *nans;

    for (int64_t key = 0; key < STEP_KEYS; key++, out += RUN_CODES, codes += step) {
        const run of_key = run_load(codes, &seen);
        vec x[RUN_VECTORS];

        if (asks) {
            vec_prefetch_second((const void *)far);
            vec_prefetch((const void *)((uintptr_t)codes + (uintptr_t)next));
            far += (uintptr_t)far_step;
        }
        VEC_UNROLL
        for (int i = 0; i < RUN_VECTORS; i++)
            x[i] =
                vec_mul(run_vector(of_key, i), vec_set(factors[i % RUN_BLOCKS * STEP_KEYS + key]));
        VEC_UNROLL
        for (int i = 0; i < RUN_VECTORS; i++)
            vec_store(out + i * VEC_LANES, x[i]);
    }
    *nans = seen;
}

static VEC_NOINLINE void wide_expand(const part *p, const code_rows *rows, int64_t width,
                                     run_flags *nans)
{
    for (int64_t d = 0; d < width; d += RUN_CODES) {
        const float *factors = p->factors + d / MXA_BLOCK * STEP_KEYS;
        float *out = p->k + d / RUN_CODES * WIDE_RUN;

        if (d % LINE == 0)
            wide_expand_run(rows, d, factors, out, 1, nans);
        else
            wide_expand_run(rows, d, factors, out, 0, nans);
    }
}

/* sum[i][j] += a[i*a_row + k*a_step] * b[k][j] over `count` k, b of n vectors; constants where this
 * is inlined: m, n, a_row and a_step. */
VEC_INLINE void wide_tile(vec *sum, int m, int n, const float *a, int a_row, int a_step,
                          const float *b, int64_t count)
{
    for (int64_t k = 0; k < count; k++, a += a_step, b += n * VEC_LANES) {
        vec lanes[WIDE_VECTORS];

        VEC_UNROLL
        for (int j = 0; j < n; j++)
            lanes[j] = vec_load(b + j * VEC_LANES);
        VEC_UNROLL
        for (int i = 0; i < m; i++) {
            const vec row = vec_set(a[i * a_row]);

            VEC_UNROLL
            for (int j = 0; j < n; j++)
                sum[i * n + j] = vec_fma(row, lanes[j], sum[i * n + j]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * scores
 * --------------------------------------------------------------------------------------------- */

/* The dot products of m keys from `key` on. */
VEC_INLINE void wide_dots_some(const part *p, const float *q, int64_t width, int key, int m, int n)
{
    vec sum[WIDE_SUMS];

    VEC_UNROLL
    for (int i = 0; i < m * n; i++)
        sum[i] = vec_set(0.0f);
    for (int64_t d = 0; d < width; d += RUN_CODES)
        wide_tile(sum, m, n, p->k + d / RUN_CODES * WIDE_RUN + key * RUN_CODES, RUN_CODES, 1,
                  q + d * n * VEC_LANES, RUN_CODES);
    VEC_UNROLL
    for (int i = 0; i < m * n; i++)
        vec_store(p->s + key * n * VEC_LANES + i * VEC_LANES, sum[i]);
}

VEC_INLINE void wide_dots(const part *p, const float *q, int64_t width, int n)
{
    const int most = WIDE_SUMS / n, rest = STEP_KEYS % most;
    int key = 0;

    for (; key + most <= STEP_KEYS; key += most)
        wide_dots_some(p, q, width, key, most, n);
    wide_dots_some(p, q, width, key, rest, n);
}

/* ------------------------------------------------------------------------------------------------
 * softmax
 * --------------------------------------------------------------------------------------------- */

/* Dot products of vector j of the lanes to log2 units, with what a lane does not see at -inf;
 * returns the largest of each lane. */
VEC_INLINE vec wide_adjust(const part *p, int64_t first_key, int64_t count, int n, int j)
{
    const mxa_forward_job *job = p->t->job;
    const float cap = job->softcap_log2;
    const vec scale = vec_set(job->scale_log2 / (cap > 0.0f ? cap : 1.0f));
    const int whole = p->seen.full_low <= first_key && first_key + STEP_KEYS <= p->seen.full_high;
    const ivec low = ivec_load(p->t->low + j * VEC_LANES);
    const ivec high = ivec_load(p->t->high + j * VEC_LANES);
    float *s = p->s + j * VEC_LANES;
    vec most = vec_set(-INFINITY);

    for (int64_t key = 0; key < count; key++, s += n * VEC_LANES) {
        vec x = vec_mul(vec_load(s), scale);

        if (cap > 0.0f)
            x = vec_mul(vec_set(cap), vec_tanh(x));
        if (!whole) {
            const ivec place = ivec_set((int32_t)(first_key + key));

            x = vec_select(
                mask_and(ivec_less(place, high), ivec_less(low, ivec_add(place, ivec_set(1)))), x,
                vec_set(-INFINITY));
        }
        most = vec_max(x, most);
        vec_store(s, x);
    }
    return most;
}

/* Raises m, turns scores into P and adds to l; returns alpha = 2^(m_old - m). */
VEC_INLINE vec wide_softmax(const part *p, int64_t first_key, int64_t count, int n, int j)
{
    const vec most = wide_adjust(p, first_key, count, n, j);
    const vec before = vec_load(p->m + j * VEC_LANES);
    const vec now = vec_max(vec_ceil(most), before);
    const vec used = vec_select(vec_less(vec_set(-INFINITY), now), now, vec_set(0.0f));
    const vec alpha = vec_exp2(vec_sub(before, used));
    const int e4m3 = p->t->job->e4m3;
    float *s = p->s + j * VEC_LANES;
    vec sum = vec_set(0.0f);

    for (int64_t key = 0; key < count; key++, s += n * VEC_LANES) {
        vec rounded;

        sum = vec_add(sum, softmax_p(vec_sub(vec_load(s), used), e4m3, 0, &rounded));
        vec_store(s, rounded);
    }
    vec_store(p->m + j * VEC_LANES, now);
    vec_store(p->l + j * VEC_LANES, vec_fma(vec_load(p->l + j * VEC_LANES), alpha, sum));
    return alpha;
}

/* ------------------------------------------------------------------------------------------------
 * values
 * --------------------------------------------------------------------------------------------- */

/* O^T = alpha O^T + V^T P^T for m dimensions from `d` of a run on. */
VEC_INLINE void wide_values_some(const float *v, const float *s, const vec *alpha, int64_t count,
                                 float *o, int d, int m, int n)
{
    vec sum[WIDE_SUMS];

    o += d * n * VEC_LANES;
    VEC_UNROLL
    for (int i = 0; i < m * n; i++)
        sum[i] = vec_mul(vec_load(o + i * VEC_LANES), alpha[i % n]);
    wide_tile(sum, m, n, v + d, 1, RUN_CODES, s, count);
    VEC_UNROLL
    for (int i = 0; i < m * n; i++)
        vec_store(o + i * VEC_LANES, sum[i]);
}

VEC_INLINE void wide_values(const part *p, const vec *alpha, int64_t width, int64_t count, int n)
{
    const int most = WIDE_SUMS / n, rest = RUN_CODES % most;

    for (int64_t at = 0; at < width; at += RUN_CODES) {
        const float *v = p->k + at / RUN_CODES * WIDE_RUN;
        float *o = p->o + at * n * VEC_LANES;
        int d = 0;

        for (; d + most <= RUN_CODES; d += most)
            wide_values_some(v, p->s, alpha, count, o, d, most, n);
        wide_values_some(v, p->s, alpha, count, o, d, rest, n);
    }
}

/* ------------------------------------------------------------------------------------------------
 * a step
 * --------------------------------------------------------------------------------------------- */

_Static_assert(STEP_KEYS % WIDE_SUMS != 0 && STEP_KEYS % (WIDE_SUMS / 2) != 0, "a rest is left");
_Static_assert(RUN_CODES % WIDE_SUMS != 0 && RUN_CODES % (WIDE_SUMS / 2) != 0, "here too");

/* Of n vectors of lanes: both halves of a step. */
#define DEFINE_WIDE(n)                                                                             \
    static VEC_NOINLINE void wide_dots_##n(const part *p, int64_t width)                           \
    {                                                                                              \
        wide_dots(p, p->q + p->q_turned, width, n);                                                \
    }                                                                                              \
    static VEC_NOINLINE void wide_values_##n(const part *p, int64_t first_key, int64_t width,      \
                                             int64_t count)                                        \
    {                                                                                              \
        vec alpha[n];                                                                              \
                                                                                                   \
        for (int j = 0; j < (n); j++)                                                              \
            alpha[j] = wide_softmax(p, first_key, count, n, j);                                    \
        wide_values(p, alpha, width, count, n);                                                    \
    }

DEFINE_WIDE(1)
#if !defined(VEC_SIXTEEN)
DEFINE_WIDE(2)
#endif

static int wide_step(const part *p, int64_t first, int64_t count)
{
    const mxattn_attention_problem *problem = p->t->job->problem;
    const int64_t width = mxa_round_up(problem->head_dim, RUN_CODES);
    const int64_t width_v = mxa_round_up(problem->head_dim_v, RUN_CODES);
    const mxa_operand *k = &p->t->k_operand, *v = &p->t->v_operand;
    run_flags nans = run_flags_none();
    code_rows rows = codes_open(p, k, first, count, p->k_next, &p->k_ask);

    if (!codes_factors(k, first, count, 0, p->factors))
        return 0;
    wide_expand(p, &rows, width, &nans);
    rows = codes_open(p, v, first, count, p->v_next, &p->v_ask);
    if (run_flags_any(nans))
        return 0;
#if !defined(VEC_SIXTEEN)
    if (p->t->lanes > VEC_LANES)
        wide_dots_2(p, width);
    else
#endif
        wide_dots_1(p, width);
    if (!codes_factors(v, first, count, 1, p->factors))
        return 0;
    wide_expand(p, &rows, width_v, &nans);
    if (run_flags_any(nans))
        return 0;
#if !defined(VEC_SIXTEEN)
    if (p->t->lanes > VEC_LANES)
        wide_values_2(p, first, width_v, count);
    else
#endif
        wide_values_1(p, first, width_v, count);
    return 1;
}
