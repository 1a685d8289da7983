/* attention_backward_dscores_body.h: P and dS of a tile, from scores and dprobs, in one pass.
 *
 * Both are read once in FP32 and leave as what the gradients read. FP32 kernels keep them in place;
 * where a unit is two BF16 they are joined across two rows (dK, dV) and along a row (dQ), and FP32
 * is stored only where somebody asks for it.
 * Included by attention_backward_body.h, after its types.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_ATTENTION_BACKWARD_DSCORES_BODY_H
#define MXA_CPU_ATTENTION_BACKWARD_DSCORES_BODY_H

enum { PAIR = 2 * VEC_LANES /* keys at a time */ };

/* x, at most 0: P is at most 1, however coarse LSE is where scores are huge. A NaN stays one. */
VEC_INLINE vec at_most_0(vec x)
{
    return vec_min(vec_set(0.0f), x);
}

/* What the scores of one row are turned into P with. */
typedef struct row_constants {
    vec minus_lse2, rest, minus_delta;
    int far, low, high;
} row_constants;

typedef struct logit_constants {
    vec factor, cap_log2;
    int capped, e4m3;
} logit_constants;

/* x, a score, as the logarithm of P; *slope: the softcap's. Of a far row, whose LSE leaves FP32 no
 * room for its fraction, the logit is rounded as forward rounds it, its distance to the row's
 * maximum is exact, and the rest comes off last. */
VEC_INLINE vec log_prob(const logit_constants *logit, const row_constants *row, vec x, vec *slope)
{
    vec factor = logit->factor;

    if (logit->capped) {
        x = vec_tanh(vec_mul(x, factor));
        *slope = vec_sub(vec_set(1.0f), vec_mul(x, x));
        factor = logit->cap_log2;
    }
    if (row->far)
        return vec_sub(at_most_0(vec_add(vec_mul(x, factor), row->minus_lse2)), row->rest);
    return at_most_0(vec_fma(x, factor, row->minus_lse2));
}

/* x where a row sees the key, else 0; key: of lane 0. */
VEC_INLINE vec seen_only(vec x, ivec key, int low, int high)
{
    const vec zero = vec_set(0.0f);

    x = vec_select(ivec_less(key, ivec_set(low)), zero, x);
    return vec_select(ivec_less(key, ivec_set(high)), x, zero);
}

VEC_INLINE ivec lane_numbers(void)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return ivec_load(numbers);
}

/* P of a vector of scores; *kept: as the gradients take it, where unit_join rounds to BF16 if
 * UNIT_ROUNDS says so. plain: a constant; no softcap, no far row, BF16. */
VEC_INLINE vec probs(const logit_constants *logit, const row_constants *row, vec x, int plain,
                     vec *kept, vec *slope)
{
    x = plain ? at_most_0(vec_fma(x, logit->factor, row->minus_lse2))
              : log_prob(logit, row, x, slope);
    if (UNIT_ROUNDS || (!plain && logit->e4m3)) {
        const vec p = vec_exp2(x);

        *kept = !plain && logit->e4m3 ? vec_round_e4m3(p) : p;
        return p;
    }
    return vec_exp2_rounded(x, kept);
}

/* P and dS of PAIR keys from j on of row r, 0 where masked. plain: as in probs, and every key is
 * seen. */
VEC_INLINE void dscores_of(const space *s, const logit_constants *logit, const row_constants *row,
                           int r, int j, int plain, vec kept[2], vec ds[2])
{
    VEC_UNROLL
    for (int h = 0; h < 2; h++) {
        const int64_t at = r * STEP + j + h * VEC_LANES;
        vec slope = vec_set(1.0f);
        const vec p = probs(logit, row, vec_load(s->p + at), plain, &kept[h], &slope);

        ds[h] = vec_mul(p, vec_add(vec_load(s->ds + at), row->minus_delta));
        if (plain)
            continue;
        const ivec key = ivec_add(lane_numbers(), ivec_set(j + h * VEC_LANES));

        if (logit->capped)
            ds[h] = vec_mul(ds[h], slope);
        kept[h] = seen_only(kept[h], key, row->low, row->high);
        ds[h] = seen_only(ds[h], key, row->low, row->high);
    }
}

/* Stores PAIR keys of UNIT_DEPTH rows: as FP32 rounded to BF16 (floats), and as units. */
VEC_INLINE void dscores_store(const space *s, int r, int j, int floats, vec (*p)[2], vec (*ds)[2])
{
    VEC_UNROLL
    for (int h = 0; h < 2; h++) {
        vec p_part[UNIT_DEPTH], ds_part[UNIT_DEPTH];
        const int64_t at = r / UNIT_DEPTH * STEP + j + h * VEC_LANES;

        VEC_UNROLL
        for (int i = 0; i < UNIT_DEPTH; i++) {
            p_part[i] = p[i][h];
            ds_part[i] = ds[i][h];
            if (floats) {
                vec_store(s->p + (r + i) * STEP + j + h * VEC_LANES, p[i][h]);
                vec_store(s->ds + (r + i) * STEP + j + h * VEC_LANES, ds[i][h]);
            }
        }
        if (UNIT_DEPTH > 1) {
            unit_store(s->p_units + at, unit_join(p_part));
            unit_store(s->ds_units + at, unit_join(ds_part));
        }
    }
    VEC_UNROLL
    for (int i = 0; UNIT_DEPTH > 1 && i < UNIT_DEPTH; i++)
        unit_store(s->ds_rows + (r + i) * (STEP / UNIT_DEPTH) + j / UNIT_DEPTH, unit_pack(ds[i]));
}

/* UNIT_DEPTH rows from r on, all keys; floats: P and dS are wanted in FP32 too. */
static VEC_NOINLINE void probs_dscores_rows(const space *s, const logit_constants *logit,
                                            const row_constants *row, int r, int width, int floats)
{
    int usual = !logit->capped && !logit->e4m3;
    int first = row[0].low, last = row[0].high, low = first, high = last;

    for (int i = 0; i < UNIT_DEPTH; i++) {
        usual &= !row[i].far;
        first = row[i].low < first ? row[i].low : first;
        last = row[i].high > last ? row[i].high : last;
        low = row[i].low > low ? row[i].low : low;
        high = row[i].high < high ? row[i].high : high;
    }
    for (int j = 0; j < width; j += PAIR) {
        vec p[UNIT_DEPTH][2], ds[UNIT_DEPTH][2];
        const int plain = usual && low <= j && j + PAIR <= high;

        if (j + PAIR <= first || j >= last) {
            for (int i = 0; i < UNIT_DEPTH; i++)
                p[i][0] = p[i][1] = ds[i][0] = ds[i][1] = vec_set(0.0f);
        } else if (plain) {
            VEC_UNROLL
            for (int i = 0; i < UNIT_DEPTH; i++)
                dscores_of(s, logit, &row[i], r + i, j, 1, p[i], ds[i]);
        } else {
            for (int i = 0; i < UNIT_DEPTH; i++)
                dscores_of(s, logit, &row[i], r + i, j, 0, p[i], ds[i]);
        }
        for (int i = 0; floats && !logit->e4m3 && i < UNIT_DEPTH; i++)
            for (int h = 0; h < 2; h++) {
                p[i][h] = UNIT_ROUNDS ? vec_round_bf16(p[i][h]) : p[i][h];
                ds[i][h] = vec_round_bf16(ds[i][h]);
            }
        dscores_store(s, r, j, floats, p, ds);
    }
}

/* Rounds a block of 32 queries and 32 keys to E4M3 under one scale, in place. Masked elements are 0
 * and stay so, also where the scale is NaN. */
static void round_block(float *ds, const int *low, const int *high, int key)
{
    vec most = vec_set(0.0f);
    float lanes[VEC_LANES];
    uint32_t amax_bits = 0;

    for (int r = 0; r < MXA_BLOCK; r++)
        for (int j = 0; j < MXA_BLOCK; j += VEC_LANES) {
            const vec x = vec_abs(vec_load(ds + r * STEP + j));

            most = vec_select(ivec_less(vec_bits(most), vec_bits(x)), x, most);
        }
    vec_store(lanes, most);
    for (int l = 0; l < VEC_LANES; l++) {
        uint32_t bits;

        memcpy(&bits, &lanes[l], sizeof(bits));
        amax_bits = bits > amax_bits ? bits : amax_bits;
    }
    if (amax_bits == 0)
        return;

    /* vec_round_e4m3 rounds at 2^-8. Both factors are exact, and so is the product back. */
    const uint8_t scale = mxa_e8m0_from_amax(amax_bits, MXATTN_E4M3, MXATTN_RCEIL);
    const vec down = vec_set(scale == MXA_SCALE_NAN ? mxa_e8m0_to_f32(scale)
                                                    : mxa_e8m0_to_f32((uint8_t)(254 - scale)));
    const vec up = vec_set(mxa_e8m0_to_f32(scale));

    for (int r = 0; r < MXA_BLOCK; r++)
        for (int j = 0; j < MXA_BLOCK; j += VEC_LANES) {
            const vec x = vec_mul(vec_mul(vec_load(ds + r * STEP + j), down), vec_set(0x1p-8f));
            const vec y = vec_mul(vec_mul(vec_round_e4m3(x), vec_set(0x1p8f)), up);
            const ivec keys = ivec_add(lane_numbers(), ivec_set(key + j));

            vec_store(ds + r * STEP + j, seen_only(y, keys, low[r], high[r]));
        }
}

/* dS of all rows to E4M3, and both as units again. */
static void dscores_e4m3(const space *s, tile_rows *rows, int width)
{
    const int whole = (int)mxa_round_up(rows->count, MXA_BLOCK);

    for (int r = rows->padded; r < whole; r++) {
        memset(s->ds + r * STEP, 0, (size_t)width * sizeof(float));
        rows->low[r] = rows->high[r] = 0;
    }
    for (int r = 0; r < whole; r += MXA_BLOCK)
        for (int j = 0; j < width; j += MXA_BLOCK)
            round_block(s->ds + r * STEP + j, rows->low + r, rows->high + r, j);
    for (int r = 0; UNIT_DEPTH > 1 && r < rows->padded; r += UNIT_DEPTH)
        for (int j = 0; j < width; j += PAIR) {
            vec p[UNIT_DEPTH][2], ds[UNIT_DEPTH][2];

            for (int i = 0; i < UNIT_DEPTH; i++)
                for (int h = 0; h < 2; h++) {
                    p[i][h] = vec_load(s->p + (r + i) * STEP + j + h * VEC_LANES);
                    ds[i][h] = vec_load(s->ds + (r + i) * STEP + j + h * VEC_LANES);
                }
            dscores_store(s, r, j, 0, p, ds);
        }
}

/* P and dS of all rows, padding included, as operands of the gradients. */
static void dscores(const mxa_backward_job *job, const space *s, tile_rows *rows,
                    const tile_keys *keys)
{
    const double scale = job->problem->softmax_scale, cap = job->problem->softcap;
    const logit_constants logit = {
        .factor = vec_set((float)(cap > 0 ? scale / cap : scale * log2_e)),
        .cap_log2 = vec_set((float)(cap * log2_e)),
        .capped = cap > 0,
        .e4m3 = job->e4m3,
    };
    const int width = (int)mxa_round_up(keys->count, MXA_BLOCK);
    /* FP32 is what add_special and round_block read, and the units of FP32 kernels. */
    const int floats = UNIT_DEPTH == 1 || job->e4m3 || rows->special || keys->special;

    for (int r = 0; r < rows->padded; r += UNIT_DEPTH) {
        row_constants row[UNIT_DEPTH];

        for (int i = 0; i < UNIT_DEPTH; i++) {
            const int real = r + i < rows->count ? r + i : rows->count - 1;

            row[i] = (row_constants){
                .minus_lse2 = vec_set(-rows->lse2[real]),
                .rest = vec_set(rows->rest[real]),
                .minus_delta = vec_set(-rows->delta[real]),
                .far = fabsf(rows->lse2[real]) > MXA_SAVED_FAR,
                .low = rows->low[r + i],
                .high = rows->high[r + i],
            };
        }
        probs_dscores_rows(s, &logit, row, r, width, floats);
    }
    if (job->e4m3)
        dscores_e4m3(s, rows, width);
    for (int u = 0; MATRIX_UNITS > 1 && u < rows->padded / UNIT_DEPTH; u += VEC_LANES) {
        units_transpose(s->p_units + u * STEP, STEP, width, s->p_keys + u, KEY_STEP);
        units_transpose(s->ds_units + u * STEP, STEP, width, s->ds_keys + u, KEY_STEP);
    }
}

#endif
