/* attention_backward_body.h: gradients of attention, one tile of keys at a time.
 *
 * Included once per instruction set, after a vec_*.h. A task of `keys` owns every splits-th tile of
 * 128 keys of one kv head and walks, for each, the q heads of the group and their queries, 64 at a
 * time (docs/math.md derives every step, src/ref/attention_backward.c is the slow form):
 *   load     k and v of the tile, as rows and as lanes; queries were loaded by the task `rows`
 *   scores   s_ij = q_i . k_j
 *   dprobs   dp_ij = dO_i . v_j, without the centre of v: it is in delta
 *   probs    p_ij = 2^(log2(e) * softcap(scale * s_ij) - LSE_i * log2(e)), and the softcap's slope
 *   dscores  ds_ij = p_ij * (dp_ij - delta_i) * slope_ij, 0 where masked, rounded; P rounded
 *   grads    dV_j += sum_i P_ij dO_i;  dK_j += sum_i ds_ij q_i;  dQ_i += sum_j ds_ij k_j
 *   finish   dK times scale; dK and dV stored
 * Queries are broadcast and keys are lanes, so the tile of keys is transposed once, and nothing is
 * inside the loop over queries. Masks are one interval of keys per row whose ends never decrease:
 * every product runs over the elements that some row of its register tile sees, the others are 0.
 *
 * INVARIANT: a masked element never meets a NaN or an infinity. Register tiles are TILE_M rows
 * high; where an operand holds such a value they are one row high and run over the elements seen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/attention_backward_product_body.h"
#include "cpu/attention_backward_rows_body.h"

enum {
    TILE_Q = MXA_BACKWARD_TILE_Q,
    TILE_K = MXA_BACKWARD_TILE_K,
    STEP = TILE_K + MXA_BACKWARD_PAD,                 /* of rows of keys in P, dS */
    KEY_STEP = TILE_Q / UNIT_DEPTH + MXA_BACKWARD_PAD /* of rows of queries, turned over */
};

_Static_assert(TILE_Q % MXA_BLOCK == 0 && TILE_K % MXA_BLOCK == 0, "tiles hold whole blocks");
_Static_assert(MXA_BLOCK % TILE_M == 0, "a register tile lies in one block of tokens");
_Static_assert(MXA_BLOCK % NARROW == 0, "dimensions are padded to whole register tiles");
_Static_assert(TILE_M % UNIT_DEPTH == 0, "padding rows complete units");

/* Scratch of one worker. */
typedef struct space {
    unit *k_lanes;            /* panels (units of D, panel_width): for scores */
    unit *v_lanes;            /* the same of v, for dprobs */
    unit *rows;               /* (TILE_K, units of a row): k, then v, before they become lanes */
    unit *k_units;            /* (TILE_K/UNIT_DEPTH, lane_units): for dQ */
    float *p, *ds;            /* (TILE_Q, STEP) */
    unit *p_units, *ds_units; /* (TILE_Q/UNIT_DEPTH, STEP): contracted over queries */
    unit *ds_rows;            /* (TILE_Q, STEP/UNIT_DEPTH): contracted over keys */
    /* For matrix products only. */
    unit *clean;            /* (TILE_K/UNIT_DEPTH, lane_units): what without_special leaves */
    unit *p_keys, *ds_keys; /* (TILE_K, KEY_STEP): p_units, ds_units turned over */
    float *dk, *dv;         /* (TILE_K, dims) */
    float *partial;         /* (TILE_Q, dims): dQ of one step, reduced in FP16 */
} space;

/* A tile of keys, and a tile of queries of one head before it. */
typedef struct tile_keys {
    int64_t b, kv_head, first;
    int count;
    int special; /* k holds a NaN or an infinity */
} tile_keys;

typedef struct tile_rows {
    int64_t head, first;
    int count; /* rows; up to the next multiple of TILE_M rows are zeros */
    int padded;
    int full;                      /* every row sees every key */
    int special;                   /* q or dO holds a NaN or an infinity */
    int low[TILE_Q], high[TILE_Q]; /* keys of the tile that a row sees */
    const unit *q_rows, *q_units, *dout_rows, *dout_units;
    const float *lse2, *delta, *rest;
    float *dq;
} tile_rows;

/* Carves scratch; returns its bytes. */
static int64_t carve(const mxattn_attention_problem *problem, void *scratch, space *s)
{
    const int64_t unit_bytes = (int64_t)sizeof(unit), float_bytes = (int64_t)sizeof(float);
    const int64_t dims = mxa_round_up(problem->head_dim, MXA_BLOCK);
    const int64_t dims_v = mxa_round_up(problem->head_dim_v, MXA_BLOCK);
    const int64_t most = dims > dims_v ? dims : dims_v;
    const int64_t tile = TILE_Q * STEP;
    mxa_arena at = {scratch, 0};

    s->k_lanes = mxa_arena_take(&at, TILE_K * units_along_dims(dims) * unit_bytes);
    s->v_lanes = mxa_arena_take(&at, TILE_K * units_along_dims(dims_v) * unit_bytes);
    s->rows = mxa_arena_take(&at, TILE_K * units_along_dims(most) * unit_bytes);
    s->k_units = mxa_arena_take(&at, TILE_K / UNIT_DEPTH * (dims + MXA_BACKWARD_PAD) * unit_bytes);
    s->p = mxa_arena_take(&at, tile * float_bytes);
    s->ds = mxa_arena_take(&at, tile * float_bytes);
    if (UNIT_DEPTH == 1) {
        s->p_units = (unit *)(void *)s->p;
        s->ds_units = s->ds_rows = (unit *)(void *)s->ds;
    } else {
        s->p_units = mxa_arena_take(&at, tile / UNIT_DEPTH * unit_bytes);
        s->ds_units = mxa_arena_take(&at, tile / UNIT_DEPTH * unit_bytes);
        s->ds_rows = mxa_arena_take(&at, tile / UNIT_DEPTH * unit_bytes);
    }
    const int64_t turned = MATRIX_UNITS > 1 ? TILE_K * KEY_STEP * unit_bytes : 0;
    s->clean = mxa_arena_take(
        &at, MATRIX_UNITS > 1 ? TILE_K / UNIT_DEPTH * (most + MXA_BACKWARD_PAD) * unit_bytes : 0);
    s->p_keys = mxa_arena_take(&at, turned);
    s->ds_keys = mxa_arena_take(&at, turned);
    s->dk = mxa_arena_take(&at, TILE_K * dims * float_bytes);
    s->dv = mxa_arena_take(&at, TILE_K * dims_v * float_bytes);
    s->partial = mxa_arena_take(&at, TILE_Q * dims * float_bytes);
    return at.used;
}

static int64_t scratch_bytes(const mxattn_attention_problem *problem)
{
    space s;

    return carve(problem, NULL, &s);
}

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

/* Rows of a tile of keys become panels of lanes. */
static void lanes_from_rows(const unit *rows, int64_t units, int64_t padded, unit *lanes)
{
    for (int64_t panel = 0, width; panel < padded; panel += width) {
        width = panel_width(padded - panel);
        for (int64_t key = panel; key < panel + width; key += VEC_LANES)
            units_transpose(rows + key * units, units, units, lanes + panel * units + key - panel,
                            width);
    }
}

static void load(const mxa_backward_job *job, const space *s, tile_keys *keys)
{
    const mxa_sequence *sequence = &job->sequences_k[keys->b];
    const int64_t padded = mxa_round_up(keys->count, MXA_BLOCK);
    const int64_t units = units_along_dims(job->problem->head_dim);
    const int64_t units_v = units_along_dims(job->problem->head_dim_v);
    const int partner = job->call->k_seq.ndim > 0;
    mxa_operand k, k_lanes, v;

    mxa_operand_open(&k, &job->k, sequence, keys->b, keys->kv_head);
    mxa_operand_open(&k_lanes, &job->k_lanes, sequence, keys->b, keys->kv_head);
    mxa_operand_open(&v, &job->v, sequence, keys->b, keys->kv_head);
    keys->special = load_tokens(&k, keys->first, keys->count, padded, s->rows, units,
                                partner ? NULL : s->k_units, job->sizes.lane_units);
    lanes_from_rows(s->rows, units, padded, s->k_lanes);
    load_tokens(&v, keys->first, keys->count, padded, s->rows, units_v, NULL, 0);
    lanes_from_rows(s->rows, units_v, padded, s->v_lanes);
    if (partner)
        keys->special = load_tokens(&k_lanes, keys->first, keys->count, padded, NULL, 0, s->k_units,
                                    job->sizes.lane_units);
    memset(s->dk, 0, (size_t)(padded * job->sizes.dims) * sizeof(float));
    memset(s->dv, 0, (size_t)(padded * job->sizes.dims_v) * sizeof(float));
}

/* Finds a tile of queries and its mask; 0 when no row sees a key of the tile. */
static int open_rows(const mxa_backward_job *job, const mxa_mask *mask, const tile_keys *keys,
                     int64_t split, tile_rows *rows)
{
    const mxa_backward_sizes *sizes = &job->sizes;
    const mxa_sequence *sequence = &job->sequences_q[keys->b];
    const int64_t left = sequence->used - rows->first;
    const int64_t block = sequence->block + rows->first / MXA_BLOCK;
    const int64_t row = rows->head * sizes->blocks_q * MXA_BLOCK + block * MXA_BLOCK;
    int seen = 0;

    rows->count = left < TILE_Q ? (int)left : TILE_Q;
    rows->padded = (int)mxa_round_up(rows->count, TILE_M);
    rows->full = 1;
    for (int r = 0; r < rows->padded; r++) {
        const mxa_interval interval = mxa_mask_row(mask, rows->first + r);
        const int64_t low = interval.low - keys->first, high = interval.high - keys->first;

        rows->low[r] = low < 0 ? 0 : low > keys->count ? keys->count : (int)low;
        rows->high[r] = high < 0 ? 0 : high > keys->count ? keys->count : (int)high;
        if (r >= rows->count)
            rows->low[r] = rows->high[r] = rows->high[rows->count - 1];
        else if (rows->low[r] > 0 || rows->high[r] < keys->count)
            rows->full = 0;
        seen |= rows->low[r] < rows->high[r];
    }
    rows->special = job->special[rows->head * sizes->blocks_q + block];
    if (rows->count > MXA_BLOCK)
        rows->special |= job->special[rows->head * sizes->blocks_q + block + 1];
    rows->q_rows = (const unit *)job->q_rows + row * sizes->row_units;
    rows->q_units = (const unit *)job->q_units + row / UNIT_DEPTH * sizes->lane_units;
    rows->dout_rows = (const unit *)job->dout_rows + row * sizes->row_units_v;
    rows->dout_units = (const unit *)job->dout_units + row / UNIT_DEPTH * sizes->lane_units_v;
    rows->lse2 = job->lse2 + row;
    rows->delta = job->delta + row;
    rows->rest = job->rest + row;
    rows->dq = job->dq_splits +
               (split * job->problem->heads * sizes->blocks_q * MXA_BLOCK + row) * sizes->dims;
    return seen;
}

/* ------------------------------------------------------------------------------------------------
 * scores, dprobs; dscores has a file of its own
 * --------------------------------------------------------------------------------------------- */

/* c_ij = a_i . b_j where row i or one of its register tile sees key j or one of its; b has `keys`
 * lanes. */
static void rows_times_keys(const tile_rows *rows, float *c, const unit *a, int64_t a_row,
                            const unit *lanes, int64_t keys, int64_t units, int64_t lane_units)
{
    const int last = rows->high[rows->padded - 1];

    for (int j = 0, width; j < last; j += width) {
        width = panel_width(keys - j);
        for (int r = 0; r < rows->padded; r += TILE_M)
            if (rows->low[r] < j + width && rows->high[r + TILE_M - 1] > j)
                product_rows(width, c + r * STEP + j, STEP, 0, a + r * a_row, a_row,
                             lanes + j * lane_units, width, units);
    }
}

static int64_t units_of(int64_t elements)
{
    return (elements + UNIT_DEPTH - 1) / UNIT_DEPTH;
}

static void scores(const mxa_backward_job *job, const space *s, const tile_rows *rows, int64_t keys)
{
    const int64_t dims = job->problem->head_dim;

    rows_times_keys(rows, s->p, rows->q_rows, job->sizes.row_units, s->k_lanes, keys,
                    units_of(dims), units_along_dims(dims));
}

static void dprobs(const mxa_backward_job *job, const space *s, const tile_rows *rows, int64_t keys)
{
    const int64_t dims = job->problem->head_dim_v;

    rows_times_keys(rows, s->ds, rows->dout_rows, job->sizes.row_units_v, s->v_lanes, keys,
                    units_of(dims), units_along_dims(dims));
}

#include "cpu/attention_backward_dscores_body.h"

/* ------------------------------------------------------------------------------------------------
 * grads
 * --------------------------------------------------------------------------------------------- */

/* Copies units with NaN and infinite elements at 0: matrix products run over masked elements too.
 */
static const unit *without_special(const unit *x, int64_t x_step, int64_t units, int64_t dims,
                                   unit *out)
{
    for (int64_t u = 0; u < units; u++)
        for (int64_t d = 0; d < dims; d++) {
            out[u * x_step + d] = x[u * x_step + d];
            for (int part = 0; part < UNIT_DEPTH; part++)
                if (!isfinite(unit_part(x[u * x_step + d], part)))
                    unit_clear(&out[u * x_step + d], part);
        }
    return out;
}

/* Adds weight * x for what without_special took out of rows [0, count) of x, to the elements that
 * see it. by_rows: x are queries and c are keys of the tile; else the other way round. */
static void add_special(const tile_rows *rows, int by_rows, const float *weights, const unit *x,
                        int64_t x_step, int count, float *c, int64_t dims)
{
    for (int i = 0; i < count; i++)
        for (int64_t d = 0; d < dims; d++) {
            const float value = unit_part(x[i / UNIT_DEPTH * x_step + d], i % UNIT_DEPTH);

            if (isfinite(value))
                continue;
            if (by_rows) {
                for (int j = rows->low[i]; j < rows->high[i]; j++)
                    c[j * dims + d] += weights[i * STEP + j] * value;
            } else {
                for (int r = 0; r < rows->count; r++)
                    if (rows->low[r] <= i && i < rows->high[r])
                        c[r * dims + d] += weights[r * STEP + i] * value;
            }
        }
}

/* grad_j += sum_i weights_ij x_i over the rows i that see key j. turned: the weights by keys, where
 * a matrix product reads them. */
static void grads_of_keys(const tile_rows *rows, int keys, const unit *weights, const unit *turned,
                          const unit *x, int64_t x_step, float *grad, int64_t dims)
{
    const int one_by_one = rows->special && MATRIX_UNITS == 1;
    const int height = one_by_one ? 1 : TILE_M;
    int first[TILE_K], end[TILE_K];
    int begin = 0, past = 0;

    for (int j = 0; j < keys; j += height) {
        while (begin < rows->count && rows->high[begin] <= j)
            begin++;
        while (past < rows->count && rows->low[past] < j + height)
            past++;
        first[j] = begin;
        end[j] = past;
    }
    for (int64_t d = 0, width; d < dims; d += width) {
        width = one_by_one ? NARROW : panel_width(dims - d);
        for (int j = 0; j < keys; j += height) {
            const int unit_first = first[j] / UNIT_DEPTH / MATRIX_UNITS * MATRIX_UNITS;
            float *c = grad + j * dims + d;

            if (first[j] >= end[j])
                continue;
            if (one_by_one)
                product_seen(c, 1, weights + j, STEP, x + d, x_step, first[j], end[j]);
            else if (MATRIX_UNITS > 1)
                product_rows((int)width, c, dims, 1, turned + j * KEY_STEP + unit_first, KEY_STEP,
                             x + unit_first * x_step + d, x_step, units_of(end[j]) - unit_first);
            else
                product_columns((int)width, c, dims, 1, weights + unit_first * STEP + j, STEP,
                                x + unit_first * x_step + d, x_step, units_of(end[j]) - unit_first);
        }
    }
}

/* dQ += partial * 2^e, product and sum rounded to FP16. */
static void add_f16(float *dq, const float *partial, int64_t count, int e)
{
    vec factor[2];

    power_of_two(e, factor);
    for (int64_t i = 0; i < count; i += VEC_LANES) {
        const vec x = vec_mul(vec_mul(vec_load(partial + i), factor[0]), factor[1]);

        vec_store(dq + i, round_f16(vec_add(vec_load(dq + i), round_f16(x))));
    }
}

/* dQ_i += sum_j ds_ij k_j over the keys j that row i sees. */
static void grads_of_rows(const mxa_backward_job *job, const space *s, const tile_rows *rows,
                          const tile_keys *keys)
{
    const int64_t dims = job->sizes.dims, step = job->sizes.lane_units;
    const int one_by_one = keys->special && MATRIX_UNITS == 1;
    const int height = one_by_one ? 1 : TILE_M;
    const int count = one_by_one ? rows->count : rows->padded;
    const unit *k_units = s->k_units;
    float *dq = job->fp16 ? s->partial : rows->dq;

    if (keys->special && MATRIX_UNITS > 1)
        k_units = without_special(k_units, step, mxa_round_up(keys->count, MXA_BLOCK) / UNIT_DEPTH,
                                  dims, s->clean);
    for (int64_t d = 0, width; d < dims; d += width) {
        width = one_by_one ? NARROW : panel_width(dims - d);
        for (int r = 0; r < count; r += height) {
            const unit *ds = s->ds_rows + r * (STEP / UNIT_DEPTH), *k = k_units + d;
            const int first = rows->low[r] / UNIT_DEPTH / MATRIX_UNITS * MATRIX_UNITS;
            float *c = dq + r * dims + d;

            if (one_by_one)
                product_seen(c, !job->fp16, ds, 1, k, step, rows->low[r], rows->high[r]);
            else
                product_rows((int)width, c, dims, !job->fp16, ds + first, STEP / UNIT_DEPTH,
                             k + first * step, step, units_of(rows->high[r + TILE_M - 1]) - first);
        }
    }
    if (keys->special && MATRIX_UNITS > 1)
        add_special(rows, 0, s->ds, s->k_units, step, keys->count, dq, dims);
    if (job->fp16)
        add_f16(rows->dq, dq, count * dims,
                job->exponent[keys->b * job->problem->heads + rows->head]);
}

static void grads(const mxa_backward_job *job, const space *s, const tile_rows *rows,
                  const tile_keys *keys)
{
    const mxa_backward_sizes *sizes = &job->sizes;
    const int clean = rows->special && MATRIX_UNITS > 1;
    /* Keys up to the next multiple of TILE_M have P = dS = 0. */
    const int count =
        rows->special && !clean ? keys->count : (int)mxa_round_up(keys->count, TILE_M);
    const unit *dout = rows->dout_units, *q = rows->q_units;

    if (clean)
        dout = without_special(dout, sizes->lane_units_v, rows->padded / UNIT_DEPTH, sizes->dims_v,
                               s->clean);
    grads_of_keys(rows, count, s->p_units, s->p_keys, dout, sizes->lane_units_v, s->dv,
                  sizes->dims_v);
    if (clean) {
        add_special(rows, 1, s->p, rows->dout_units, sizes->lane_units_v, rows->count, s->dv,
                    sizes->dims_v);
        q = without_special(q, sizes->lane_units, rows->padded / UNIT_DEPTH, sizes->dims, s->clean);
    }
    grads_of_keys(rows, count, s->ds_units, s->ds_keys, q, sizes->lane_units, s->dk, sizes->dims);
    if (clean)
        add_special(rows, 1, s->ds, rows->q_units, sizes->lane_units, rows->count, s->dk,
                    sizes->dims);
    grads_of_rows(job, s, rows, keys);
}

/* ------------------------------------------------------------------------------------------------
 * finish, and the task
 * --------------------------------------------------------------------------------------------- */

static void finish(const mxa_backward_job *job, const space *s, const tile_keys *keys)
{
    const mxa_sequence *sequence = &job->sequences_k[keys->b];
    const vec scale = vec_set((float)job->problem->softmax_scale);

    for (int j = 0; j < keys->count; j++) {
        float *dk = s->dk + j * job->sizes.dims;

        for (int64_t d = 0; d < job->sizes.dims; d += VEC_LANES)
            vec_store(dk + d, vec_mul(vec_load(dk + d), scale));
        store_row(&job->dk, sequence, keys->first + j, keys->kv_head, dk);
        store_row(&job->dv, sequence, keys->first + j, keys->kv_head,
                  s->dv + j * job->sizes.dims_v);
    }
}

/* dQ of this split starts at 0. */
static void clear_dq(const mxa_backward_job *job, int64_t b, int64_t head, int64_t split)
{
    const mxa_sequence *sequence = &job->sequences_q[b];
    const int64_t rows = job->sizes.blocks_q * MXA_BLOCK;
    const int64_t row = (split * job->problem->heads + head) * rows + sequence->block * MXA_BLOCK;
    const int64_t count = mxa_round_up(sequence->used, MXA_BLOCK);

    memset(job->dq_splits + row * job->sizes.dims, 0,
           (size_t)(count * job->sizes.dims) * sizeof(float));
}

static void keys_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_backward_job *job = arg;
    const int64_t kv_heads = job->problem->kv_heads, split = task % job->sizes.splits;
    const int64_t unit_task = task / job->sizes.splits;
    tile_keys keys = {.b = job->order[unit_task / kv_heads], .kv_head = unit_task % kv_heads};
    const int64_t splits = mxa_backward_splits(job, keys.b);
    const int64_t used_q = job->sequences_q[keys.b].used, used_k = job->sequences_k[keys.b].used;
    const mxa_mask mask = mxa_mask_make(job->problem, used_q, used_k);
    const int64_t first_head = keys.kv_head * job->group;
    space s;

    if (split >= splits || mxa_backward_skips(job, keys.b))
        return;
    carve(job->problem, job->scratch + worker * job->sizes.scratch_bytes, &s);
    for (int64_t head = first_head; head < first_head + job->group; head++)
        clear_dq(job, keys.b, head, split);
    matrix_begin();
    for (keys.first = split * TILE_K; keys.first < used_k; keys.first += splits * TILE_K) {
        const int64_t left = used_k - keys.first;

        keys.count = left < TILE_K ? (int)left : TILE_K;
        const int64_t padded = mxa_round_up(keys.count, MXA_BLOCK);

        load(job, &s, &keys);
        for (int64_t head = first_head; head < first_head + job->group; head++)
            for (int64_t first = 0; first < used_q; first += TILE_Q) {
                tile_rows rows = {.head = head, .first = first};

                if (!open_rows(job, &mask, &keys, split, &rows))
                    continue;
                scores(job, &s, &rows, padded);
                dprobs(job, &s, &rows, padded);
                dscores(job, &s, &rows, &keys);
                grads(job, &s, &rows, &keys);
            }
        finish(job, &s, &keys);
    }
    matrix_end();
}

const mxa_backward_kernel VEC_NAME(mxa_backward) = {
    .isa = VEC_ISA,
    .flushes = VEC_FLUSHES,
    .unit_depth = UNIT_DEPTH,
    .scratch_bytes = scratch_bytes,
    .norms = norms_task,
    .rows = rows_task,
    .keys = keys_task,
    .finish = finish_task,
};
