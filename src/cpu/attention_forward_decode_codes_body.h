/* attention_forward_decode_codes_body.h: few queries whose keys and values have usual E4M3 blocks.
 *
 * With few lanes, decoding is most of the work. Here a run of RUN_CODES codes becomes vectors in
 * registers, times 2^RUN_LOG2 and in an order of their own, and meets the lanes at once. Scales
 * become factors, 32 keys at a time: of K they multiply a block's sum, or what is shared by many
 * lanes; of V they go into P. q and O have the order of the vectors; O is put right where the parts
 * have been joined.
 *
 * What RUN_LOG2 takes away q and the factors of K, or those of V and the end, give back: each as
 * much as leaves what it meets in the middle of FP32's range.
 *
 * Lanes are filled up to a power of two with rows of zeros. A vector of scores holds LANES lanes of
 * VEC_LANES / LANES keys, so that maxima, sums and exponentials need no loop over lanes; m and l
 * are such vectors too. LANES is less than VEC_LANES: more are for
 * attention_forward_decode_wide_body.h.
 *
 *   factors  [D / 32][STEP_KEYS]
 *   s        [STEP_KEYS][LANES]
 *   weights  [D / 32][STEP_KEYS][LANES]
 *
 * A block that is unusual (operand_body.h), of another type or with scales of another layout sends
 * the head's whole part to the other functions of attention_forward_decode_body.h, which includes
 * this file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

enum {
    RUN_VECTORS = RUN_CODES / VEC_LANES,
    RUN_BLOCKS = RUN_CODES / MXA_BLOCK, /* vector i is of block i % RUN_BLOCKS of them */
    K_LOG2 = -RUN_LOG2 - Q_LOG2,
    V_LOG2 = -RUN_LOG2 * 3 / 4,
    O_LOG2 = -RUN_LOG2 - V_LOG2,
    SMALL_SCALE = 64, /* 2^-63 */
    LINE = 64,
    SCALES_OF_WORD = 4,
    ABSENT_SCALES = 0x7f7f7f7f
};

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

/* STEP_KEYS rows of codes, whole runs, and what is asked for while they are read. */
typedef struct code_rows {
    const uint8_t *codes;
    int64_t step;
    int64_t next; /* from a row to one that is read soon; 0: none */
    ask ask;
} code_rows;

/* Of keys further on, into the second cache. WHY not on AVX-512: two Intel cores were an eighth
 * slower for it with one query; the next head's lines, asked for into the first cache, lead their
 * own prefetcher far enough. */
VEC_INLINE void ask_far(uintptr_t at)
{
    if (VEC_LANES < 16)
        vec_prefetch_second((const void *)at);
}

/* Rows of tokens [first, first+count) where they are, or with zeros up to whole runs and STEP_KEYS
 * rows in memory of their own. */
static code_rows codes_open(const part *p, const mxa_operand *operand, int64_t first, int64_t count,
                            int64_t next, const ask *a)
{
    const int64_t dims = operand->dims, width = mxa_round_up(dims, RUN_CODES);
    const uint8_t *from = operand->payload + first * operand->token_stride;

    if (dims == width && count == STEP_KEYS)
        return (code_rows){from, operand->token_stride, next, *a};
    memset(p->codes, 0, (size_t)(STEP_KEYS * width));
    for (int64_t t = 0; t < count; t++)
        memcpy(p->codes + t * width, from + t * operand->token_stride, (size_t)dims);
    return (code_rows){p->codes, width, 0, *a};
}

/* 32 codes of which none is other than +-0. */
static int codes_is_zero(const uint8_t *codes, int64_t count)
{
    uint8_t any = 0;

    for (int64_t i = 0; i < count && i < MXA_BLOCK; i++)
        any |= codes[i] & 0x7f;
    return any == 0;
}

/* The factors of blocks of V whose scales are small: of zeros, any other; 0 where one is not of
 * zeros. */
static VEC_NOINLINE int codes_factors_small(const mxa_operand *operand, const uint8_t *scales,
                                            int64_t first, int64_t count, float *factors)
{
    const int64_t dims = operand->dims;

    for (int64_t t = 0; t < count; t++, scales += operand->scale_token)
        for (int64_t b = 0; b * MXA_BLOCK < dims; b++) {
            const uint8_t *codes =
                operand->payload + (first + t) * operand->token_stride + b * MXA_BLOCK;

            if (scales[b * operand->scale_k] >= SMALL_SCALE)
                continue;
            if (!codes_is_zero(codes, dims - b * MXA_BLOCK))
                return 0;
            factors[b * STEP_KEYS + t] = 1.0f;
        }
    return 1;
}

/* The scale bytes of rows, those of SCALES_OF_WORD blocks in a word. */
VEC_INLINE void codes_scales(const mxa_operand *operand, const uint8_t *scales, int64_t count,
                             int64_t first_block, uint32_t words[STEP_KEYS])
{
    const int64_t blocks = (operand->dims + MXA_BLOCK - 1) / MXA_BLOCK - first_block;

    scales += first_block * operand->scale_k;
    if (blocks >= SCALES_OF_WORD && operand->scale_k == 1) {
        for (int64_t t = 0; t < count; t++, scales += operand->scale_token)
            memcpy(&words[t], scales, SCALES_OF_WORD);
    } else {
        for (int64_t t = 0; t < count; t++, scales += operand->scale_token) {
            uint8_t bytes[SCALES_OF_WORD] = {0x7f, 0x7f, 0x7f, 0x7f};

            for (int64_t i = 0; i < blocks && i < SCALES_OF_WORD; i++)
                bytes[i] = scales[i * operand->scale_k];
            memcpy(&words[t], bytes, SCALES_OF_WORD);
        }
    }
    for (int64_t t = count; t < STEP_KEYS; t++)
        words[t] = ABSENT_SCALES;
}

/* The scale of each block of STEP_KEYS rows from `first` on, which a block starts with, times what
 * is to be given back. values: factors will meet P, and must not be so small that their product is
 * below FP32's normal range, where some machines are slow. Returns 0 when a block is not usual. */
static VEC_NOINLINE int codes_factors(const mxa_operand *operand, int64_t first, int64_t count,
                                      int values, float *factors)
{
    const int64_t width = mxa_round_up(operand->dims, RUN_CODES);
    const uint8_t *scales = operand->scale_first + first / MXA_BLOCK * operand->scale_block;
    ivec large = ivec_set(0), small = ivec_set(0);

    const int same = operand->scale_token == 0; /* as of square blocks */
    const int log2 = values ? V_LOG2 : K_LOG2;
    const ivec most = ivec_set(1 + (log2 > 8 ? log2 : 8)); /* 246 + 8 is the largest exponent */

    for (int64_t b = 0; b * MXA_BLOCK < width; b += SCALES_OF_WORD) {
        uint32_t words[STEP_KEYS];
        vec factor[SCALES_OF_WORD];

        codes_scales(operand, scales, same ? 1 : count, b, words);
        for (int64_t t = 0; t < STEP_KEYS; t += VEC_LANES) {
            const ivec word = same ? ivec_set((int32_t)words[0])
                                   : ivec_load((const int32_t *)(const void *)words + t);

            if (t == 0 || !same)
                VEC_UNROLL
            for (int i = 0; i < SCALES_OF_WORD; i++) {
                const ivec scale = ivec_and(ivec_shr(word, 8 * i), ivec_set(0xff));

                large = ivec_or(large, ivec_add(scale, most)); /* beyond: bit 8 */
                small = ivec_or(small, ivec_add(scale, ivec_set(-SMALL_SCALE)));
                factor[i] = vec_from_bits(ivec_shl(ivec_add(scale, ivec_set(log2)), 23));
            }
            VEC_UNROLL
            for (int i = 0; i < SCALES_OF_WORD; i++)
                vec_store(factors + (b + i) * STEP_KEYS + t, factor[i]);
        }
    }
    if (mask_any(ivec_less(ivec_set(0), ivec_and(large, ivec_set(0x100)))))
        return 0;
    if (!values || !mask_any(ivec_less(small, ivec_set(0))))
        return 1;
    return codes_factors_small(operand, scales, first, count, factors);
}

static int codes_is_usual(const mxa_operand *operand)
{
    return operand->dtype == MXATTN_E4M3 && operand->axis == MXATTN_HDIM && operand->scale_first;
}

/* ------------------------------------------------------------------------------------------------
 * scores
 * --------------------------------------------------------------------------------------------- */

/* Adds RUN_CODES products of a key with one or two lanes to their sums. WHY by blocks: a
 * multiplication by the factor is saved for all but one of a block's vectors. */
VEC_INLINE void codes_dot(run codes, const float *factors, const float *q, int64_t q_step,
                          int lanes, vec *sum)
{
    VEC_UNROLL
    for (int block = 0; block < RUN_BLOCKS; block++)
        VEC_UNROLL
    for (int lane = 0; lane < lanes; lane++) {
        const float *row = q + lane * q_step;
        vec of_block = vec_mul(run_vector(codes, block), vec_load(row + block * VEC_LANES));

        VEC_UNROLL
        for (int i = block + RUN_BLOCKS; i < RUN_VECTORS; i += RUN_BLOCKS)
            of_block = vec_fma(run_vector(codes, i), vec_load(row + i * VEC_LANES), of_block);
        sum[lane] = vec_fma(of_block, vec_set(factors[block * STEP_KEYS]), sum[lane]);
    }
}

/* The dot products of `count` keys with one or two lanes. width: a constant in the usual case. */
VEC_INLINE void codes_dots_keys(const part *p, const code_rows *rows, const float *q, int64_t width,
                                int64_t count, int lanes, float *s, run_flags *nans)
{
    const int keys = VEC_LANES / lanes;
    const int64_t q_step = p->q_step, next = rows->next;
    const uint8_t *codes = rows->codes;
    const float *factors = p->factors;
    uintptr_t far = rows->ask.from;
    run_flags seen = *nans;

    for (int64_t first = 0; first < count; first += keys) {
        vec sum[VEC_LANES];

        VEC_UNROLL
        for (int key = 0; key < keys; key++) {
            for (int64_t d = 0; d < width; d += LINE) {
                ask_far(far + (uintptr_t)d);
                vec_prefetch((const void *)((uintptr_t)(codes + d) + (uintptr_t)next));
            }
            VEC_UNROLL
            for (int lane = 0; lane < lanes; lane++)
                sum[key * lanes + lane] = vec_set(0.0f);
            VEC_UNROLL_TWICE
            for (int64_t d = 0; d < width; d += RUN_CODES)
                codes_dot(run_load(codes + d, &seen), factors + d / MXA_BLOCK * STEP_KEYS + key,
                          q + d, q_step, lanes, sum + key * lanes);
            codes += rows->step;
            far += (uintptr_t)rows->ask.key_step;
        }
        factors += keys;
        vec_store(s + first * lanes, vec_sums(sum));
    }
    *nans = seen;
}

VEC_INLINE void codes_dots_few(const part *p, const code_rows *rows, const float *q, int64_t width,
                               int64_t count, int lanes, float *s, run_flags *nans)
{
    if (width == 128)
        codes_dots_keys(p, rows, q, 128, count, lanes, s, nans);
    else
        codes_dots_keys(p, rows, q, width, count, lanes, s, nans);
}

/* The same with more lanes: there are more sums than vectors, and each row of q meets some keys. */
VEC_INLINE void codes_dots_many(const part *p, const code_rows *rows, const float *q, int64_t width,
                                int64_t count, int lanes, float *s, run_flags *nans)
{
    enum { KEYS_MOST = VEC_LANES / 4 };
    const int keys = VEC_LANES / lanes;
    const int64_t q_step = p->q_step, step = rows->step;
    const uint8_t *codes = rows->codes;
    const float *factors = p->factors;
    uintptr_t far = rows->ask.from;
    run_flags seen = *nans;

    for (int64_t first = 0; first < count; first += keys) {
        vec sum[VEC_LANES];

        for (int64_t d = 0; d < width; d += LINE)
            VEC_UNROLL
        for (int key = 0; key < keys; key++) {
            ask_far(far + (uintptr_t)(key * rows->ask.key_step + d));
            vec_prefetch(
                (const void *)((uintptr_t)(codes + key * step + d) + (uintptr_t)rows->next));
        }
        VEC_UNROLL
        for (int i = 0; i < VEC_LANES; i++)
            sum[i] = vec_set(0.0f);
        for (int64_t d = 0; d < width; d += RUN_CODES) {
            const float *const factor = factors + d / MXA_BLOCK * STEP_KEYS;
            run of_key[KEYS_MOST];

            VEC_UNROLL
            for (int key = 0; key < keys; key++)
                of_key[key] = run_load(codes + key * step + d, &seen);
            VEC_UNROLL
            for (int i = 0; i < RUN_VECTORS; i++) {
                vec x[KEYS_MOST];

                VEC_UNROLL
                for (int key = 0; key < keys; key++)
                    x[key] = vec_mul(run_vector(of_key[key], i),
                                     vec_set(factor[i % RUN_BLOCKS * STEP_KEYS + key]));
                VEC_UNROLL
                for (int lane = 0; lane < lanes; lane++) {
                    const vec row = vec_load(q + d + lane * q_step + i * VEC_LANES);

                    VEC_UNROLL
                    for (int key = 0; key < keys; key++)
                        sum[key * lanes + lane] = vec_fma(x[key], row, sum[key * lanes + lane]);
                }
            }
        }
        codes += keys * step;
        far += (uintptr_t)(keys * rows->ask.key_step);
        factors += keys;
        vec_store(s + first * lanes, vec_sums(sum));
    }
    *nans = seen;
}

/* ------------------------------------------------------------------------------------------------
 * softmax
 * --------------------------------------------------------------------------------------------- */

/* Dot products of keys from `first_key` on to log2 units, with what a lane does not see at -inf;
 * returns the largest of each lane. */
VEC_INLINE vec codes_adjust(const part *p, int64_t first_key, int64_t count, int lanes, float *s)
{
    const mxa_forward_job *job = p->t->job;
    const float cap = job->softcap_log2;
    const vec scale = vec_set(job->scale_log2 / (cap > 0.0f ? cap : 1.0f));
    const int whole = p->seen.full_low <= first_key && first_key + STEP_KEYS <= p->seen.full_high;
    vec most = vec_set(-INFINITY);

    for (int64_t i = 0; i < count * lanes; i += VEC_LANES) {
        vec x = vec_mul(vec_load(s + i), scale);

        if (cap > 0.0f)
            x = vec_mul(vec_set(cap), vec_tanh(x));
        if (!whole) {
            int32_t low[VEC_LANES], high[VEC_LANES], place[VEC_LANES];

            for (int l = 0; l < VEC_LANES; l++) {
                low[l] = p->t->low[l % lanes];
                high[l] = p->t->high[l % lanes];
                place[l] = (int32_t)(first_key + (i + l) / lanes);
            }
            x = vec_select(
                mask_and(ivec_less(ivec_load(place), ivec_load(high)),
                         ivec_less(ivec_load(low), ivec_add(ivec_load(place), ivec_set(1)))),
                x, vec_set(-INFINITY));
        }
        most = vec_max(x, most);
        vec_store(s + i, x);
    }
    for (int step = VEC_LANES / 2; step >= lanes; step /= 2)
        most = vec_max(most, vec_swap(most, step));
    return most;
}

/* Raises m, adds to l, and makes P times the factors of V; returns alpha = 2^(m_old - m). */
VEC_INLINE vec codes_softmax(const part *p, int64_t first_key, int64_t count, int lanes, float *s)
{
    const int64_t dims = p->t->job->problem->head_dim_v;
    const vec most = codes_adjust(p, first_key, count, lanes, s);
    const vec before = vec_load(p->m);
    const vec now = vec_max(vec_ceil(most), before);
    const vec used = vec_select(vec_less(vec_set(-INFINITY), now), now, vec_set(0.0f));
    const vec alpha = vec_exp2(vec_sub(before, used));
    vec sum = vec_set(0.0f);

    for (int64_t i = 0; i < count * lanes; i += VEC_LANES) {
        vec rounded;

        sum = vec_add(sum, softmax_p(vec_sub(vec_load(s + i), used), p->t->job->e4m3, 0, &rounded));
        for (int64_t b = 0; b * MXA_BLOCK < dims; b++)
            vec_store(p->weights + b * STEP_KEYS * lanes + i,
                      vec_mul(rounded, vec_repeat(p->factors + b * STEP_KEYS + i / lanes, lanes)));
    }
    for (int step = VEC_LANES / 2; step >= lanes; step /= 2)
        sum = vec_add(sum, vec_swap(sum, step));
    vec_store(p->m, now);
    vec_store(p->l, vec_fma(vec_load(p->l), alpha, sum));
    return alpha;
}

/* ------------------------------------------------------------------------------------------------
 * values
 * --------------------------------------------------------------------------------------------- */

/* O = alpha * O + P V for `some` of `lanes` lanes and `runs` runs of codes from dimension d on. */
VEC_INLINE void codes_values_some(const part *p, const code_rows *rows, int64_t d, int first,
                                  const float *alpha, int64_t count, int lanes, int some, int runs,
                                  run_flags *nans)
{
    const int vectors = runs * RUN_VECTORS, asks = first == 0 && d % LINE == 0;
    const int64_t step = rows->step, next = rows->next, far_step = rows->ask.key_step;
    const uint8_t *codes = rows->codes + d;
    const float *weights = p->weights + first + d / MXA_BLOCK * STEP_KEYS * lanes;
    float *const o = p->o + first * p->o_step + d;
    uintptr_t far = rows->ask.from + (uintptr_t)d;
    run_flags seen = *nans;
    vec sum[RUN_SUMS];

    VEC_UNROLL
    for (int i = 0; i < some * vectors; i++)
        sum[i] = vec_mul(vec_load(o + i / vectors * p->o_step + i % vectors * VEC_LANES),
                         vec_set(alpha[first + i / vectors]));
    for (int64_t key = 0; key < count; key++, weights += lanes) {
        if (asks)
            VEC_UNROLL
        for (int line = 0; line < runs * RUN_CODES; line += LINE) {
            ask_far(far + (uintptr_t)line);
            vec_prefetch((const void *)((uintptr_t)(codes + line) + (uintptr_t)next));
        }
        VEC_UNROLL
        for (int r = 0; r < runs; r++) {
            const run of_key = run_load(codes + r * RUN_CODES, &seen);

            VEC_UNROLL
            for (int i = 0; i < RUN_VECTORS; i++) {
                const vec x = run_vector(of_key, i);
                const int block = r * RUN_BLOCKS + i % RUN_BLOCKS;

                VEC_UNROLL
                for (int lane = 0; lane < some; lane++) {
                    vec *to = &sum[lane * vectors + r * RUN_VECTORS + i];

                    *to = vec_fma(vec_set(weights[block * STEP_KEYS * lanes + lane]), x, *to);
                }
            }
        }
        codes += step;
        far += (uintptr_t)far_step;
    }
    VEC_UNROLL
    for (int i = 0; i < some * vectors; i++)
        vec_store(o + i / vectors * p->o_step + i % vectors * VEC_LANES, sum[i]);
    *nans = seen;
}

/* WHY some lanes at a time: reading codes twice costs less than sums beyond the registers. */
VEC_INLINE void codes_values(const part *p, const code_rows *rows, const float *alpha,
                             int64_t width, int64_t count, int lanes, run_flags *nans)
{
    enum { LANES_MOST = RUN_SUMS / RUN_VECTORS };
    const int some = lanes < LANES_MOST ? lanes : LANES_MOST, runs = LANES_MOST / some;

    for (int lane = 0; lane < lanes; lane += some) {
        int64_t d = 0;

        for (; d + runs * RUN_CODES <= width; d += runs * RUN_CODES)
            codes_values_some(p, rows, d, lane, alpha, count, lanes, some, runs, nans);
        for (; runs > 1 && d < width; d += RUN_CODES)
            codes_values_some(p, rows, d, lane, alpha, count, lanes, some, 1, nans);
    }
}

/* ------------------------------------------------------------------------------------------------
 * a step
 * --------------------------------------------------------------------------------------------- */

#include "cpu/attention_forward_decode_wide_body.h"

/* For each number of lanes: both halves of a step. */
#define DEFINE_LANES(lanes, some)                                                                  \
    static VEC_NOINLINE void codes_dots_##lanes(const part *p, const code_rows *rows,              \
                                                int64_t count, run_flags *nans)                    \
    {                                                                                              \
        const int64_t width = mxa_round_up(p->t->job->problem->head_dim, RUN_CODES);               \
        const float *q = p->q + p->q_turned;                                                       \
                                                                                                   \
        codes_dots_##some(p, rows, q, width, count, lanes, p->s, nans);                            \
    }                                                                                              \
    static VEC_NOINLINE void codes_values_##lanes(                                                 \
        const part *p, const code_rows *rows, int64_t first_key, int64_t count, run_flags *nans)   \
    {                                                                                              \
        const int64_t width = mxa_round_up(p->t->job->problem->head_dim_v, RUN_CODES);             \
        float alpha[VEC_LANES];                                                                    \
                                                                                                   \
        vec_store(alpha, codes_softmax(p, first_key, count, lanes, p->s));                         \
        codes_values(p, rows, alpha, width, count, lanes, nans);                                   \
    }

DEFINE_LANES(1, few)
DEFINE_LANES(2, few)
DEFINE_LANES(4, many)
#if defined(VEC_SIXTEEN)
DEFINE_LANES(8, many)
#endif

typedef struct codes_kernels {
    void (*dots)(const part *p, const code_rows *rows, int64_t count, run_flags *nans);
    void (*values)(const part *p, const code_rows *rows, int64_t first_key, int64_t count,
                   run_flags *nans);
} codes_kernels;

/* Of 2^i lanes. */
static const codes_kernels codes_kernels_of[] = {
    {codes_dots_1, codes_values_1},
    {codes_dots_2, codes_values_2},
    {codes_dots_4, codes_values_4},
#if defined(VEC_SIXTEEN)
    {codes_dots_8, codes_values_8},
#endif
};

/* Keys [first, first+count); 0: something is unusual, and O, l and m mean nothing. */
static int codes_step(const part *p, int64_t first, int64_t count)
{
    const int64_t lanes = mxa_forward_lanes_padded(p->t->lanes);

    if (lanes >= VEC_LANES)
        return wide_step(p, first, count);
    const codes_kernels *kernels = &codes_kernels_of[__builtin_ctzll((uint64_t)lanes)];
    const mxa_operand *k = &p->t->k_operand, *v = &p->t->v_operand;
    run_flags nans = run_flags_none();
    code_rows rows = codes_open(p, k, first, count, p->k_next, &p->k_ask);

    if (!codes_factors(k, first, count, 0, p->factors))
        return 0;
    kernels->dots(p, &rows, count, &nans);
    rows = codes_open(p, v, first, count, p->v_next, &p->v_ask);
    if (run_flags_any(nans) || !codes_factors(v, first, count, 1, p->factors))
        return 0;
    kernels->values(p, &rows, first, count, &nans);
    return !run_flags_any(nans);
}

/* m and l before a part's first key: a vector in which the lanes are repeated, or vectors of them.
 */
static void codes_start(const part *p)
{
    const int64_t lanes = mxa_forward_lanes_padded(p->t->lanes);

    for (int64_t i = 0; i < VEC_LANES || i < lanes; i++) {
        const int64_t lane = i % lanes;

        p->m[i] = lane_start(p->t, lane < p->t->lanes ? lane : p->t->lanes - 1);
        p->l[i] = 0.0f;
    }
}

/* Adds a part to sums of the same order, each lane times its share. */
static void codes_join(const tile *t, const part *from, const float *share, float *sums)
{
    const int64_t lanes = mxa_forward_lanes_padded(t->lanes), count = lanes * from->o_step;
    const float *o = from->o;

    for (int64_t i = 0; i < count; i += VEC_LANES) {
        const vec by =
            lanes < VEC_LANES ? vec_set(share[i / from->o_step]) : vec_load(share + i % lanes);

        vec_store(sums + i, vec_fma(vec_load(o + i), by, vec_load(sums + i)));
    }
}

/* Adds such sums to the tile. */
static void codes_finish(const tile *t, int64_t o_step, const float *sums)
{
    const int64_t lanes = mxa_forward_lanes_padded(t->lanes), dims = t->job->problem->head_dim_v;
    const int64_t lane_step = lanes < VEC_LANES ? o_step : 1;
    const int64_t dim_step = lanes < VEC_LANES ? 1 : lanes;
    const float factor = ldexpf(1.0f, O_LOG2);

    for (int64_t first = 0; first < dims; first += RUN_CODES)
        for (int i = 0; i < RUN_CODES; i++) {
            float *to = t->o + (first + run_code(i)) * TILE_LANES;
            const float *from = sums + (first + i) * dim_step;

            for (int64_t lane = 0; first + run_code(i) < dims && lane < t->lanes; lane++)
                to[lane] += from[lane * lane_step] * factor;
        }
}
