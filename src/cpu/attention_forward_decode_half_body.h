/* attention_forward_decode_half_body.h: few queries whose keys and values have usual E4M3 blocks.
 *
 * With few lanes, decoding is most of the work. Here it is three operations for each vector of
 * codes: E4M3 is binary16 shifted right by one, so codes are kept in 16 bits, even and odd ones
 * apart, and widened by the load that the multiply-adds need anyway. Scales become factors, 32 keys
 * at a time: of K they multiply a block's sum, or what is shared by many lanes; of V they go into
 * P. q and O have the order of the halves; O is put right at the end of a part.
 *
 * Lanes are filled up to a power of two with rows of zeros, and taken LANES at a time, at most
 * VEC_LANES: a vector of scores then holds LANES lanes of VEC_LANES / LANES keys, and maxima, sums
 * and exponentials need no loop over lanes. m and l of a group of lanes are such a vector too.
 *
 *   halves   [D / HALF_CODES][STEP_KEYS][HALF_CODES]   every stride is a constant
 *   factors  [D / 32][STEP_KEYS]
 *   s        [STEP_KEYS][LANES] of each group
 *   weights  [D / 32][STEP_KEYS][LANES], of the group under way
 *
 * A block that is unusual (operand_body.h), of another type or with scales of another layout sends
 * the head's whole part to the other functions of attention_forward_decode_body.h, which includes
 * this file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

enum {
    HALF_VECTORS = HALF_CODES / VEC_LANES, /* of HALF_CODES codes of a row */
    HALF_BLOCKS = HALF_CODES / MXA_BLOCK,  /* vector i of them is of block i % HALF_BLOCKS */
    HALF_ROW = STEP_KEYS * HALF_CODES,     /* from HALF_CODES codes of a row to the next */
    SMALL_SCALE = 64,                      /* 2^-63 */
    SCALES_OF_WORD = 4,
    ABSENT_SCALES = 0x7f7f7f7f
};

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

/* `groups` times HALF_CODES codes of each of `count` rows; asks for the rows `next` bytes on. */
VEC_INLINE void half_codes(const part *p, const ask *a, int64_t next, const mxa_operand *operand,
                           int64_t first, int64_t count, int64_t groups, half_flags *largest)
{
    const uint8_t *codes = operand->payload + first * operand->token_stride;
    uint16_t *out = p->half;

    for (int64_t t = 0; t < count; t++, codes += operand->token_stride, out += HALF_CODES) {
        ask_lines(a, 0, t, 1);
        for (int64_t c = 0; c < groups * HALF_CODES; c += 64)
            vec_prefetch((const void *)((uintptr_t)codes + (uintptr_t)(next + c)));
        VEC_UNROLL
        for (int64_t c = 0; c < groups; c++)
            halves_from_e4m3(codes + c * HALF_CODES, out + c * HALF_ROW, largest);
    }
}

/* Rows of tokens [first, first+count), zeros behind. Returns 0 when one holds a NaN. */
static VEC_NOINLINE int half_rows(const part *p, const ask *a, int64_t next,
                                  const mxa_operand *operand, int64_t first, int64_t count)
{
    uint16_t *const out = p->half;
    const int64_t dims = operand->dims, whole = dims / HALF_CODES, rest = dims % HALF_CODES;
    half_flags largest = half_flags_none();

    for (int64_t c = 0; count < STEP_KEYS && c * HALF_CODES < dims; c++)
        memset(out + c * HALF_ROW + count * HALF_CODES, 0,
               (size_t)((STEP_KEYS - count) * HALF_CODES) * sizeof(*out));
    if (whole == 128 / HALF_CODES)
        half_codes(p, a, next, operand, first, count, 128 / HALF_CODES, &largest);
    else
        half_codes(p, a, next, operand, first, count, whole, &largest);
    for (int64_t t = 0; rest && t < count; t++) {
        uint8_t some[HALF_CODES] = {0};

        memcpy(some, operand->payload + (first + t) * operand->token_stride + whole * HALF_CODES,
               (size_t)rest);
        halves_from_e4m3(some, out + whole * HALF_ROW + t * HALF_CODES, &largest);
    }
    return !half_flags_any(largest);
}

/* 32 codes of which none is other than +-0. */
static int half_is_zero(const uint8_t *codes, int64_t count)
{
    uint8_t any = 0;

    for (int64_t i = 0; i < count && i < MXA_BLOCK; i++)
        any |= codes[i] & 0x7f;
    return any == 0;
}

/* The factors of blocks of V whose scales are small: of zeros, any other; 0 where one is not of
 * zeros. */
static VEC_NOINLINE int half_factors_small(const mxa_operand *operand, const uint8_t *scales,
                                           int64_t first, int64_t count, float *factors)
{
    const int64_t dims = operand->dims;

    for (int64_t t = 0; t < count; t++, scales += operand->scale_token)
        for (int64_t b = 0; b * MXA_BLOCK < dims; b++) {
            const uint8_t *codes =
                operand->payload + (first + t) * operand->token_stride + b * MXA_BLOCK;

            if (scales[b * operand->scale_k] >= SMALL_SCALE)
                continue;
            if (!half_is_zero(codes, dims - b * MXA_BLOCK))
                return 0;
            factors[b * STEP_KEYS + t] = 1.0f;
        }
    return 1;
}

/* The scale bytes of rows, those of SCALES_OF_WORD blocks in a word. */
VEC_INLINE void half_scales(const mxa_operand *operand, const uint8_t *scales, int64_t count,
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

/* 2^8 times the scale of each block of STEP_KEYS rows from `first` on, which a block starts with.
 * values: factors will meet P, and must not be so small that their product is below FP32's normal
 * range, where some machines are slow. Returns 0 when a block is not usual. */
static VEC_NOINLINE int half_factors(const mxa_operand *operand, int64_t first, int64_t count,
                                     int values, float *factors)
{
    const int64_t width = mxa_round_up(operand->dims, HALF_CODES);
    const uint8_t *scales = operand->scale_first + first / MXA_BLOCK * operand->scale_block;
    ivec large = ivec_set(0), small = ivec_set(0);

    const int same = operand->scale_token == 0; /* as of square blocks */

    for (int64_t b = 0; b * MXA_BLOCK < width; b += SCALES_OF_WORD) {
        uint32_t words[STEP_KEYS];
        vec factor[SCALES_OF_WORD];

        half_scales(operand, scales, same ? 1 : count, b, words);
        for (int64_t t = 0; t < STEP_KEYS; t += VEC_LANES) {
            const ivec word = same ? ivec_set((int32_t)words[0])
                                   : ivec_load((const int32_t *)(const void *)words + t);

            if (t == 0 || !same)
                VEC_UNROLL
            for (int i = 0; i < SCALES_OF_WORD; i++) {
                const ivec scale = ivec_and(ivec_shr(word, 8 * i), ivec_set(0xff));

                large = ivec_or(large, ivec_add(scale, ivec_set(9))); /* beyond 246: bit 8 */
                small = ivec_or(small, ivec_add(scale, ivec_set(-SMALL_SCALE)));
                factor[i] = vec_from_bits(ivec_shl(ivec_add(scale, ivec_set(8)), 23));
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
    return half_factors_small(operand, scales, first, count, factors);
}

static int half_is_usual(const mxa_operand *operand)
{
    return operand->dtype == MXATTN_E4M3 && operand->axis == MXATTN_HDIM && operand->scale_first;
}

/* ------------------------------------------------------------------------------------------------
 * scores
 * --------------------------------------------------------------------------------------------- */

/* Adds HALF_CODES products of each of VEC_LANES / lanes keys to their sums, key*lanes + lane. WHY
 * two ways: with one or two lanes a multiplication by the factor is saved for all but one of a
 * block's vectors; with more there are more sums than vectors. */
VEC_INLINE void half_dots_some(const uint16_t *k, const float *factors, const float *q,
                               int64_t q_step, int lanes, vec sum[VEC_LANES])
{
    enum { BLOCK_SUMS = 4 };
    const int keys = VEC_LANES / lanes, some = BLOCK_SUMS / lanes > 1 ? BLOCK_SUMS / lanes : 1;

    if (lanes > 2) {
        VEC_UNROLL
        for (int i = 0; i < HALF_VECTORS; i++)
            VEC_UNROLL
        for (int key = 0; key < keys; key++) {
            const vec x = vec_mul(vec_from_half(k + key * HALF_CODES + i * VEC_LANES),
                                  vec_set(factors[i % HALF_BLOCKS * STEP_KEYS + key]));

            VEC_UNROLL
            for (int lane = 0; lane < lanes; lane++) {
                vec *to = &sum[key * lanes + lane];

                *to = vec_fma(x, vec_load(q + lane * q_step + i * VEC_LANES), *to);
            }
        }
        return;
    }
    VEC_UNROLL
    for (int at = 0; at < HALF_BLOCKS * keys; at += some) {
        const int block = at / keys, first = at % keys;
        vec of_block[BLOCK_SUMS];

        VEC_UNROLL
        for (int i = 0; i < some * lanes; i++)
            of_block[i] = vec_set(0.0f);
        VEC_UNROLL
        for (int i = block; i < HALF_VECTORS; i += HALF_BLOCKS)
            VEC_UNROLL
        for (int key = 0; key < some; key++) {
            const vec x = vec_from_half(k + (first + key) * HALF_CODES + i * VEC_LANES);

            VEC_UNROLL
            for (int lane = 0; lane < lanes; lane++)
                of_block[key * lanes + lane] = vec_fma(
                    x, vec_load(q + lane * q_step + i * VEC_LANES), of_block[key * lanes + lane]);
        }
        VEC_UNROLL
        for (int i = 0; i < some * lanes; i++) {
            const vec factor = vec_set(factors[block * STEP_KEYS + first + i / lanes]);

            sum[first * lanes + i] = vec_fma(of_block[i], factor, sum[first * lanes + i]);
        }
    }
}

/* The dot products of `count` keys with a group of lanes. */
VEC_INLINE void half_dots(const part *p, const float *q, int64_t count, int lanes, float *s)
{
    const int keys = VEC_LANES / lanes;
    const int64_t dims = p->t->job->problem->head_dim;

    for (int64_t first = 0; first < count; first += keys) {
        const uint16_t *k = p->half + first * HALF_CODES;
        const float *factors = p->factors + first;
        vec sum[VEC_LANES];

        ask_lines(&p->k_ask, 1, first, keys);
        VEC_UNROLL
        for (int i = 0; i < VEC_LANES; i++)
            sum[i] = vec_set(0.0f);
        for (int64_t d = 0; d < dims; d += HALF_CODES) {
            half_dots_some(k, factors, q + d, p->q_step, lanes, sum);
            k += HALF_ROW;
            factors += HALF_BLOCKS * STEP_KEYS;
        }
        vec_store(s + first * lanes, vec_sums(sum));
    }
}

/* ------------------------------------------------------------------------------------------------
 * softmax
 * --------------------------------------------------------------------------------------------- */

/* Dot products of keys from `first_key` on to log2 units, with what a lane does not see at -inf;
 * returns the largest of each lane. */
VEC_INLINE vec half_adjust(const part *p, int64_t group, int64_t first_key, int64_t count,
                           int lanes, float *s)
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
                low[l] = p->t->low[group * lanes + l % lanes];
                high[l] = p->t->high[group * lanes + l % lanes];
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
VEC_INLINE vec half_softmax(const part *p, int64_t group, int64_t first_key, int64_t count,
                            int lanes, float *s)
{
    const int64_t dims = p->t->job->problem->head_dim_v;
    const vec most = half_adjust(p, group, first_key, count, lanes, s);
    const vec before = vec_load(p->m + group * VEC_LANES);
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
    vec_store(p->m + group * VEC_LANES, now);
    vec_store(p->l + group * VEC_LANES, vec_fma(vec_load(p->l + group * VEC_LANES), alpha, sum));
    return alpha;
}

/* ------------------------------------------------------------------------------------------------
 * values
 * --------------------------------------------------------------------------------------------- */

/* O = alpha * O + P V for `some` of `lanes` lanes and for `vectors` vectors of a row of O, of
 * VEC_LANES each in the order of the halves, from vector `first` on. */
VEC_INLINE void half_values_some(const part *p, float *o, const float *alpha, const float *weights,
                                 int64_t count, int lanes, int some, int64_t first, int vectors,
                                 int asks)
{
    const uint16_t *v =
        p->half + first / HALF_VECTORS * HALF_ROW + first % HALF_VECTORS * VEC_LANES;
    const int odd = (int)(first % HALF_BLOCKS);
    vec sum[HALF_SUMS];

    weights += first / HALF_VECTORS * HALF_BLOCKS * STEP_KEYS * lanes;
    o += first * VEC_LANES;
    VEC_UNROLL
    for (int i = 0; i < some * vectors; i++)
        sum[i] = vec_mul(vec_load(o + i / vectors * p->o_step + i % vectors * VEC_LANES),
                         vec_set(alpha[i / vectors]));
    for (int64_t key = 0; key < count; key++, v += HALF_CODES, weights += lanes) {
        vec x[HALF_SUMS];

        if (asks)
            ask_lines(&p->v_ask, 1, key, 1);
        VEC_UNROLL
        for (int i = 0; i < vectors; i++)
            x[i] = vec_from_half(v + i / HALF_VECTORS * HALF_ROW + i % HALF_VECTORS * VEC_LANES);
        VEC_UNROLL
        for (int i = 0; i < some * vectors; i++) {
            const int lane = i / vectors, at = i % vectors;
            const int block = at / HALF_VECTORS * HALF_BLOCKS + (odd + at) % HALF_BLOCKS;

            sum[i] = vec_fma(vec_set(weights[block * STEP_KEYS * lanes + lane]), x[at], sum[i]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < some * vectors; i++)
        vec_store(o + i / vectors * p->o_step + i % vectors * VEC_LANES, sum[i]);
}

/* WHY some lanes at a time: two vectors that share what is broadcast are worth widening V twice. */
VEC_INLINE void half_values(const part *p, float *o, const float *alpha, int64_t count, int lanes)
{
    enum { VECTORS_MOST = 2 * HALF_VECTORS, SOME_MOST = HALF_SUMS / 2 };
    const int64_t all = mxa_round_up(p->t->job->problem->head_dim_v, HALF_CODES) / VEC_LANES;
    const int some = lanes < SOME_MOST ? lanes : SOME_MOST, room = HALF_SUMS / some;
    const int vectors = room < VECTORS_MOST ? room : VECTORS_MOST;
    const int rest = vectors < HALF_VECTORS ? vectors : HALF_VECTORS; /* of which `all` consists */

    for (int lane = 0; lane < lanes; lane += some) {
        float *const to = o + lane * p->o_step;
        int64_t first = 0;

        for (; first + vectors <= all; first += vectors)
            half_values_some(p, to, alpha + lane, p->weights + lane, count, lanes, some, first,
                             vectors, lane == 0 && first == 0);
        if (first < all)
            half_values_some(p, to, alpha + lane, p->weights + lane, count, lanes, some, first,
                             rest, 0);
    }
}

/* ------------------------------------------------------------------------------------------------
 * a step
 * --------------------------------------------------------------------------------------------- */

/* For each number of lanes that a group may have: both halves of a step, before and behind the
 * decoding of V. */
#define DEFINE_LANES(lanes)                                                                        \
    static VEC_NOINLINE void half_dots_##lanes(const part *p, int64_t group, int64_t count)        \
    {                                                                                              \
        half_dots(p, p->q + p->q_half + group * (lanes)*p->q_step, count, lanes,                   \
                  p->s + group * (lanes)*STEP_KEYS);                                               \
    }                                                                                              \
    static VEC_NOINLINE void half_values_##lanes(const part *p, int64_t group, int64_t first_key,  \
                                                 int64_t count)                                    \
    {                                                                                              \
        float alpha[VEC_LANES];                                                                    \
                                                                                                   \
        vec_store(alpha, half_softmax(p, group, first_key, count, lanes,                           \
                                      p->s + group * (lanes)*STEP_KEYS));                          \
        half_values(p, p->o + group * (lanes)*p->o_step, alpha, count, lanes);                     \
    }

DEFINE_LANES(1)
DEFINE_LANES(2)
DEFINE_LANES(4)
DEFINE_LANES(8)
#if defined(VEC_SIXTEEN)
DEFINE_LANES(16)
#endif

typedef struct half_kernels {
    void (*dots)(const part *p, int64_t group, int64_t count);
    void (*values)(const part *p, int64_t group, int64_t first_key, int64_t count);
} half_kernels;

/* Of 2^i lanes. */
static const half_kernels half_kernels_of[] = {
    {half_dots_1, half_values_1},   {half_dots_2, half_values_2},
    {half_dots_4, half_values_4},   {half_dots_8, half_values_8},
#if defined(VEC_SIXTEEN)
    {half_dots_16, half_values_16},
#endif
};

/* Keys [first, first+count); 0: something is unusual, and O, l and m mean nothing. */
static int half_step(const part *p, int64_t first, int64_t count)
{
    const int64_t padded = mxa_forward_lanes_padded(p->t->lanes);
    const int64_t lanes = padded < VEC_LANES ? padded : VEC_LANES;
    const half_kernels *kernels = &half_kernels_of[__builtin_ctzll((uint64_t)lanes)];
    const mxa_operand *k = &p->t->k_operand, *v = &p->t->v_operand;

    if (!half_rows(p, &p->k_ask, p->k_next, k, first, count) ||
        !half_factors(k, first, count, 0, p->factors))
        return 0;
    for (int64_t group = 0; group * lanes < padded; group++)
        kernels->dots(p, group, count);
    if (!half_rows(p, &p->v_ask, p->v_next, v, first, count) ||
        !half_factors(v, first, count, 1, p->factors))
        return 0;
    for (int64_t group = 0; group * lanes < padded; group++)
        kernels->values(p, group, first, count);
    return 1;
}

/* m and l before a part's first key: of each group a vector in which its lanes are repeated. */
static void half_start(const part *p)
{
    const int64_t padded = mxa_forward_lanes_padded(p->t->lanes);
    const int64_t lanes = padded < VEC_LANES ? padded : VEC_LANES;

    for (int64_t i = 0; i < padded / lanes * VEC_LANES; i++) {
        const int64_t lane = i / VEC_LANES * lanes + i % lanes;

        p->m[i] = lane_start(p->t, lane < p->t->lanes ? lane : p->t->lanes - 1);
        p->l[i] = 0.0f;
    }
}

/* O of a part in the order of dimensions. Lane i's m and l lie at i already. */
static void half_finish(const part *p)
{
    enum { HALF = HALF_CODES / 2 };

    for (int64_t lane = 0; lane < p->t->lanes; lane++)
        for (int64_t d = 0; d < p->dims_v; d += HALF_CODES) {
            float *o = p->o + lane * p->o_step + d, turned[HALF_CODES];

            for (int i = 0; i < HALF; i++) {
                turned[2 * i] = o[i];
                turned[2 * i + 1] = o[HALF + i];
            }
            memcpy(o, turned, sizeof(turned));
        }
}
