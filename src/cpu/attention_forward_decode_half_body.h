/* attention_forward_decode_half_body.h: few queries whose keys and values have usual E4M3 blocks.
 *
 * With one to four lanes, decoding is most of the work. Here it is three operations for each vector
 * of codes: E4M3 is binary16 shifted right by one, so codes are kept in 16 bits, even and odd ones
 * apart, and widened by the load that the multiply-adds need anyway. K is multiplied by its block's
 * scale, in V the scale goes into P, once a block. q and O have the order of the halves; O is
 * put right at the end of a part.
 *
 * A block that is unusual (operand_body.h), of another type or with scales of another layout sends
 * the head's whole part to the other functions of attention_forward_decode_body.h, which includes
 * this file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

enum {
    BLOCK_VECTORS = MXA_BLOCK / VEC_LANES,
    HALF_SUMS = VEC_LANES == 16 ? 16 : 8, /* vectors of O in registers at a time */
    SMALL_SCALE = 64                      /* 2^-63 */
};

/* Where vector i of block b lies among the halves of a row. */
VEC_INLINE int64_t half_place(int64_t b, int i)
{
    const int64_t each = MXA_BLOCK / 2, of_group = HALF_CODES / MXA_BLOCK;
    const int64_t base = b / of_group * HALF_CODES + b % of_group * each;

    return base + i * VEC_LANES / each * (HALF_CODES / 2) + i * VEC_LANES % each;
}

static inline int half_lanes(int64_t lanes)
{
    return lanes <= HALF_LANES_MOST && (lanes & (lanes - 1)) == 0;
}

/* 32 codes of which none is other than +-0. */
static int half_is_zero(const uint8_t *codes, int64_t count)
{
    uint8_t any = 0;

    for (int64_t i = 0; i < count && i < MXA_BLOCK; i++)
        any |= codes[i] & 0x7f;
    return any == 0;
}

/* Factors of one row's blocks; *most becomes the largest scale so far. values: factors will meet P,
 * and must not be so small that their product is below FP32's normal range, where some machines are
 * slow: a block of zeros may have any other. Returns 0 where another one is that small. */
VEC_INLINE int half_factors(const mxa_operand *operand, const uint8_t *codes, const uint8_t *scales,
                            int values, float *factors, uint32_t *most)
{
    const int64_t dims = operand->dims, blocks = (dims + MXA_BLOCK - 1) / MXA_BLOCK;
    uint32_t least = 255;

    for (int64_t b = 0; b < blocks; b++) {
        const uint32_t scale = scales[b * operand->scale_k], bits = (scale + 8) << 23;

        memcpy(&factors[b], &bits, sizeof(bits));
        *most = scale > *most ? scale : *most;
        least = scale < least ? scale : least;
    }
    if (!values || least >= SMALL_SCALE)
        return 1;
    for (int64_t b = 0; b < blocks; b++) {
        if (scales[b * operand->scale_k] >= SMALL_SCALE)
            continue;
        if (!half_is_zero(codes + b * MXA_BLOCK, dims - b * MXA_BLOCK))
            return 0;
        factors[b] = 1.0f;
    }
    return 1;
}

/* Rows of tokens [first, first+count) and a factor for each block, zeros up to STEP_KEYS rows.
 * Returns 0 when one is not usual. Asks for the rows of the next step. */
static VEC_NOINLINE int half_rows(const mxa_operand *operand, int64_t first, int64_t count,
                                  int values, uint16_t *out, float *factors)
{
    const int64_t dims = operand->dims, width = mxa_round_up(dims, HALF_CODES);
    const int64_t blocks = width / MXA_BLOCK, whole = dims / HALF_CODES * HALF_CODES;
    half_flags largest = half_flags_none();
    uint32_t most = 0;
    int usual = 1;

    if (operand->dtype != MXATTN_E4M3 || operand->axis != MXATTN_HDIM || !operand->scale_first)
        return 0;
    for (int64_t t = 0; t < count; t++, out += width, factors += blocks) {
        const int64_t token = first + t;
        const uint8_t *codes = operand->payload + token * operand->token_stride;
        const uint8_t *scales = operand->scale_first + token / MXA_BLOCK * operand->scale_block +
                                token % MXA_BLOCK * operand->scale_token;

        for (int64_t d = 0; d < whole; d += HALF_CODES) {
            if (d % 64 == 0)
                vec_prefetch(codes + STEP_KEYS * operand->token_stride + d);
            halves_from_e4m3(codes + d, out + d, &largest);
        }
        if (whole < dims) {
            uint8_t some[HALF_CODES] = {0};

            memcpy(some, codes + whole, (size_t)(dims - whole));
            halves_from_e4m3(some, out + whole, &largest);
            for (int64_t b = (dims + MXA_BLOCK - 1) / MXA_BLOCK; b < blocks; b++)
                factors[b] = 1.0f;
        }
        usual &= half_factors(operand, codes, scales, values, factors, &most);
    }
    if (count < STEP_KEYS) {
        memset(out, 0, (size_t)((STEP_KEYS - count) * width) * sizeof(*out));
        memset(factors, 0, (size_t)((STEP_KEYS - count) * blocks) * sizeof(*factors));
    }
    return usual && !scale_is_unusual((uint8_t)most, MXATTN_E4M3) && !half_flags_any(largest);
}

/* STEP_KEYS dot products of each lane. */
VEC_INLINE void half_dots_of(const part *p, int lanes)
{
    const int keys = VEC_LANES / lanes;
    const int64_t width = mxa_round_up(p->t->job->problem->head_dim, HALF_CODES);
    const int64_t blocks = width / MXA_BLOCK;
    const float *q = p->q + p->q_step / 2;

    for (int64_t first = 0; first < STEP_KEYS; first += keys) {
        const uint16_t *k = p->k_half + first * width;
        const float *factors = p->k_factors + first * blocks;
        vec sum[VEC_LANES];
        float totals[VEC_LANES];

        VEC_UNROLL
        for (int i = 0; i < VEC_LANES; i++)
            sum[i] = vec_set(0.0f);
        for (int64_t b = 0; b < blocks; b++)
            VEC_UNROLL
        for (int i = 0; i < BLOCK_VECTORS; i++) {
            const int64_t at = half_place(b, i);

            VEC_UNROLL
            for (int key = 0; key < keys; key++) {
                const vec x = vec_mul(vec_from_half(k + key * width + at),
                                      vec_set(factors[key * blocks + b]));

                VEC_UNROLL
                for (int lane = 0; lane < lanes; lane++)
                    sum[lane * keys + key] =
                        vec_fma(x, vec_load(q + lane * p->q_step + at), sum[lane * keys + key]);
            }
        }
        vec_store(totals, vec_sums(sum));
        for (int lane = 0; lane < lanes; lane++)
            memcpy(p->s + lane * STEP_KEYS + first, totals + lane * keys,
                   (size_t)keys * sizeof(float));
    }
}

static VEC_NOINLINE void half_dots_1(const part *p)
{
    half_dots_of(p, 1);
}

static VEC_NOINLINE void half_dots_2(const part *p)
{
    half_dots_of(p, 2);
}

static VEC_NOINLINE void half_dots_4(const part *p)
{
    half_dots_of(p, HALF_LANES_MOST);
}

/* O = alpha * O + P V for `count` blocks of dimensions from block b on. */
VEC_INLINE void half_values_of(const part *p, const float *alpha, int lanes, int64_t b, int count)
{
    const int64_t width = mxa_round_up(p->t->job->problem->head_dim_v, HALF_CODES);
    const int64_t blocks = width / MXA_BLOCK;
    vec sum[HALF_SUMS];

    VEC_UNROLL
    for (int i = 0; i < lanes * count * BLOCK_VECTORS; i++) {
        const int lane = i / (count * BLOCK_VECTORS), rest = i % (count * BLOCK_VECTORS);
        const int64_t at = half_place(b + rest / BLOCK_VECTORS, rest % BLOCK_VECTORS);

        sum[i] = vec_mul(vec_load(p->o + lane * p->o_step + at), vec_set(alpha[lane]));
    }
    for (int64_t key = 0; key < STEP_KEYS; key++) {
        const uint16_t *v = p->v_half + key * width;

        VEC_UNROLL
        for (int i = 0; i < count * BLOCK_VECTORS; i++) {
            const int block = i / BLOCK_VECTORS;
            const vec x = vec_from_half(v + half_place(b + block, i % BLOCK_VECTORS));

            VEC_UNROLL
            for (int lane = 0; lane < lanes; lane++) {
                const float weight = p->weights[(lane * STEP_KEYS + key) * blocks + b + block];
                vec *to = &sum[lane * count * BLOCK_VECTORS + i];

                *to = vec_fma(vec_set(weight), x, *to);
            }
        }
    }
    VEC_UNROLL
    for (int i = 0; i < lanes * count * BLOCK_VECTORS; i++) {
        const int lane = i / (count * BLOCK_VECTORS), rest = i % (count * BLOCK_VECTORS);

        vec_store(p->o + lane * p->o_step +
                      half_place(b + rest / BLOCK_VECTORS, rest % BLOCK_VECTORS),
                  sum[i]);
    }
}

VEC_INLINE void half_values_all(const part *p, const float *alpha, int lanes)
{
    enum { MOST = HALF_CODES / MXA_BLOCK * 2 };
    const int64_t blocks = mxa_round_up(p->t->job->problem->head_dim_v, HALF_CODES) / MXA_BLOCK;
    const int room = HALF_SUMS / (BLOCK_VECTORS * lanes), count = room < MOST ? room : MOST;
    int64_t b = 0;

    for (; b + count <= blocks; b += count)
        half_values_of(p, alpha, lanes, b, count);
    for (; b < blocks; b++)
        half_values_of(p, alpha, lanes, b, 1);
}

static VEC_NOINLINE void half_values_1(const part *p, const float *alpha)
{
    half_values_all(p, alpha, 1);
}

static VEC_NOINLINE void half_values_2(const part *p, const float *alpha)
{
    half_values_all(p, alpha, 2);
}

static VEC_NOINLINE void half_values_4(const part *p, const float *alpha)
{
    half_values_all(p, alpha, HALF_LANES_MOST);
}

/* Keys [first, first+count); 0: something is unusual, and O, l and m mean nothing. */
static int half_step(const part *p, int64_t first, int64_t count)
{
    const int64_t lanes = p->t->lanes;
    const int64_t blocks = mxa_round_up(p->t->job->problem->head_dim_v, HALF_CODES) / MXA_BLOCK;
    float alpha[HALF_LANES_MOST];

    if (!half_rows(&p->t->k_operand, first, count, 0, p->k_half, p->k_factors) ||
        !half_rows(&p->t->v_operand, first, count, 1, p->v_half, p->v_factors))
        return 0;
    (lanes == 1 ? half_dots_1 : lanes == 2 ? half_dots_2 : half_dots_4)(p);
    for (int64_t lane = 0; lane < lanes; lane++) {
        const float *weight = p->s + lane * STEP_KEYS;

        alpha[lane] = part_softmax(p, lane, part_adjust(p, lane, first));
        for (int64_t key = 0; key < STEP_KEYS; key++)
            for (int64_t b = 0; b < blocks; b++)
                p->weights[(lane * STEP_KEYS + key) * blocks + b] =
                    weight[key] * p->v_factors[key * blocks + b];
    }
    (lanes == 1 ? half_values_1 : lanes == 2 ? half_values_2 : half_values_4)(p, alpha);
    return 1;
}

/* O of a part in the order of dimensions. */
static void half_finish(const part *p)
{
    const int64_t dims = p->t->job->problem->head_dim_v;
    float turned[MXA_DIMS_MOST];

    for (int64_t lane = 0; lane < p->t->lanes; lane++) {
        float *o = p->o + lane * p->o_step;

        for (int64_t d = 0; d < dims; d++)
            turned[d] = o[half_place_of(d)];
        memcpy(o, turned, (size_t)dims * sizeof(float));
    }
}
