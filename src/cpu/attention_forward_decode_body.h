/* attention_forward_decode_body.h: forward of sequences with few queries: keys are shared out.
 *
 * A tile of 16 lanes or less would leave most of a register tile idle and one task for all keys of
 * a head. Here a task takes MXA_PART_KEYS keys of one sequence, for all heads, and leaves a partial
 * result for each lane: m, l and unnormalised O. Rows of k and v are decoded once, into the first
 * cache, and every lane reads them there. The parts are joined in order; since m is an integer,
 * joining rescales by exact powers of two.
 *
 * WHY all heads in one task: in (tokens, heads, dims) the rows of one head lie far apart; taken
 * together the heads read memory from one end to the other.
 *
 *   load     q rows once a call; k and v rows STEP_KEYS at a time
 *   scores   s = q.k of STEP_KEYS keys for each lane, softcap, mask
 *   softmax  integer row maximum, P rounded, row sums of unrounded P
 *   values   O = alpha * O + P V
 *   finish   parts joined into a tile, which attention_forward_body.h finishes
 *
 * Scratch of a worker, FP32: k, v [STEP_KEYS][D rounded up to 32], s [STEP_KEYS] of each lane.
 *
 * Included by attention_forward_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

enum {
    STEP_KEYS = 32,
    DECODE_LANES = TILE_LANES < 16 ? TILE_LANES : 16,
    DOT_KEYS = VEC_LANES, /* whose sums are in registers at a time */
    SUM_VECTORS = 8       /* vectors of O in registers at a time */
};

/* One part under way, of kv head t->kv_head. */
typedef struct part {
    const tile *t;
    int64_t dims, dims_v; /* rounded up to 32 */
    float *k, *v, *s;
    const float *q;   /* (lanes, dims) */
    float *m, *l, *o; /* the result: (lanes), (lanes), (lanes, dims_v) */
} part;

/* Places the scratch of a part; returns its bytes. */
static int64_t part_place(part *p, unsigned char *base, int64_t head_dim, int64_t head_dim_v)
{
    int64_t at = 0;

    p->dims = mxa_round_up(head_dim, MXA_BLOCK);
    p->dims_v = mxa_round_up(head_dim_v, MXA_BLOCK);
    p->k = carve(base, &at, STEP_KEYS * p->dims);
    p->v = carve(base, &at, STEP_KEYS * p->dims_v);
    p->s = carve(base, &at, DECODE_LANES * STEP_KEYS);
    return at;
}

/* Sets t up for all lanes of a sequence and its first kv head. */
static void part_tile(tile *t, const mxa_forward_job *job, int64_t b, int32_t worker)
{
    *t = (tile){.job = job, .b = b};
    tile_place(t, job->scratch + worker * job->scratch_bytes, job->problem->head_dim,
               job->problem->head_dim_v);
    t->lanes = job->sequences_q[b].used * job->group;
    load_lanes(t);
}

static float *part_q(const part *p)
{
    const mxa_forward_job *job = p->t->job;

    return job->parts_q +
           (p->t->b * job->problem->kv_heads + p->t->kv_head) * job->lanes_most * p->dims;
}

/* Where part `index` of the tile's sequence and kv head leaves its result. */
static void part_result(part *p, int64_t index)
{
    const mxa_forward_job *job = p->t->job;
    const int64_t most = mxa_forward_part_floats(job->lanes_most, job->problem->head_dim_v);

    p->m = job->parts +
           ((job->first_part[p->t->b] + index) * job->problem->kv_heads + p->t->kv_head) * most;
    p->l = p->m + p->t->lanes;
    p->o = p->l + p->t->lanes;
}

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

static void part_load_q(const part *p)
{
    const tile *t = p->t;
    const mxa_forward_job *job = t->job;

    for (int64_t lane = 0; lane < t->lanes; lane++) {
        float *row = part_q(p) + lane * p->dims;
        mxa_operand operand;
        operand_reader reader;

        mxa_operand_open(&operand, &job->q, &job->sequences_q[t->b], t->b, lane_head(t, lane));
        operand_read(&reader, &operand);
        operand_row(&reader, lane_row(t, lane), row);
        for (int64_t d = 0; d < p->dims; d++)
            row[d] *= job->q_factor;
    }
}

/* Takes NaN and infinite elements out of the rows of V: a lane that does not see them must not meet
 * them as 0 * NaN. part_values_special adds them where they are seen. */
static void part_load_hide_special(const part *p, int64_t count)
{
    for (int64_t i = 0; i < count * p->dims_v; i++)
        if (!isfinite(p->v[i]))
            p->v[i] = 0.0f;
}

/* Asks for the codes of all heads of keys [first, end) ahead of their use. */
static void part_load_ahead(const mxattn_tensor *tensor, const mxa_sequence *sequence,
                            int64_t first, int64_t end)
{
    const uint8_t *base = (const uint8_t *)tensor->data + sequence->outer * tensor->stride[0];

    for (int64_t token = sequence->first + first; token < sequence->first + end; token++)
        for (int64_t head = 0; head < tensor->shape[2]; head++)
            for (int64_t d = 0; d < tensor->shape[3]; d += 64)
                vec_prefetch(base + token * tensor->stride[1] + head * tensor->stride[2] + d);
}

/* ------------------------------------------------------------------------------------------------
 * scores
 * --------------------------------------------------------------------------------------------- */

/* DOT_KEYS scores of one lane. */
static VEC_NOINLINE void part_dot(const float *q, const float *k, int64_t dims, float *s)
{
    vec sum[DOT_KEYS];

    VEC_UNROLL
    for (int i = 0; i < DOT_KEYS; i++)
        sum[i] = vec_set(0.0f);
    for (int64_t d = 0; d < dims; d += VEC_LANES) {
        const vec row = vec_load(q + d);

        VEC_UNROLL
        for (int i = 0; i < DOT_KEYS; i++)
            sum[i] = vec_fma(row, vec_load(k + i * dims + d), sum[i]);
    }
    vec_transpose(sum);
    for (int step = 1; step < DOT_KEYS; step *= 2)
        VEC_UNROLL
    for (int i = 0; i < DOT_KEYS; i += 2 * step)
        sum[i] = vec_add(sum[i], sum[i + step]);
    vec_store(s, sum[0]);
}

/* In log2 units, with what a lane does not see at -inf; returns the largest. */
static float part_scores(const part *p, int64_t lane, int64_t first_key)
{
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const mxa_forward_job *job = p->t->job;
    const float cap = job->softcap_log2;
    const int32_t low = p->t->low[lane], high = p->t->high[lane];
    const int whole = low <= first_key && first_key + STEP_KEYS <= high;
    float *s = p->s + lane * STEP_KEYS;
    vec most = vec_set(-INFINITY);

    for (int64_t key = 0; key < STEP_KEYS; key += VEC_LANES) {
        vec x;

        part_dot(p->q + lane * p->dims, p->k + key * p->dims, p->dims, s + key);
        x = vec_mul(vec_load(s + key), vec_set(job->scale_log2 / (cap > 0.0f ? cap : 1.0f)));
        if (cap > 0.0f)
            x = vec_mul(vec_set(cap), vec_tanh(x));
        if (!whole) {
            const ivec place = ivec_add(ivec_load(count), ivec_set((int32_t)(first_key + key)));

            x = vec_select(mask_and(ivec_less(place, ivec_set(high)),
                                    ivec_less(ivec_set(low), ivec_add(place, ivec_set(1)))),
                           x, vec_set(-INFINITY));
        }
        most = vec_max(most, x);
        vec_store(s + key, x);
    }
    return vec_highest(most);
}

/* ------------------------------------------------------------------------------------------------
 * softmax
 * --------------------------------------------------------------------------------------------- */

/* Raises m, turns scores into P and adds to l; returns alpha = 2^(m_old - m). */
static float part_softmax(const part *p, int64_t lane, float highest)
{
    const float before = p->m[lane];
    const float now = ceilf(highest) > before ? ceilf(highest) : before;
    const float used = now > -INFINITY ? now : 0.0f;
    const float alpha = exp2f(before - used);
    float *s = p->s + lane * STEP_KEYS;
    vec sum = vec_set(0.0f);

    for (int64_t key = 0; key < STEP_KEYS; key += VEC_LANES) {
        vec x = vec_exp2(vec_sub(vec_load(s + key), vec_set(used)));

        sum = vec_add(sum, x);
        vec_store(s + key, p->t->job->e4m3 ? vec_round_e4m3(x) : vec_round_bf16(x));
    }
    p->m[lane] = now;
    p->l[lane] = p->l[lane] * alpha + vec_total(sum);
    return alpha;
}

/* ------------------------------------------------------------------------------------------------
 * values
 * --------------------------------------------------------------------------------------------- */

/* `vectors` vectors of one lane's O; a constant where this is inlined. */
VEC_INLINE void part_values_some(const float *s, const float *v, int64_t step, float alpha,
                                 float *o, int vectors)
{
    vec sum[SUM_VECTORS];

    VEC_UNROLL
    for (int i = 0; i < vectors; i++)
        sum[i] = vec_mul(vec_load(o + i * VEC_LANES), vec_set(alpha));
    for (int64_t key = 0; key < STEP_KEYS; key++) {
        const vec weight = vec_set(s[key]);

        VEC_UNROLL
        for (int i = 0; i < vectors; i++)
            sum[i] = vec_fma(weight, vec_load(v + key * step + i * VEC_LANES), sum[i]);
    }
    VEC_UNROLL
    for (int i = 0; i < vectors; i++)
        vec_store(o + i * VEC_LANES, sum[i]);
}

static VEC_NOINLINE void part_values(const part *p, int64_t lane, float alpha)
{
    const float *s = p->s + lane * STEP_KEYS;
    float *o = p->o + lane * p->dims_v;
    int64_t d = 0;

    for (; d + SUM_VECTORS * VEC_LANES <= p->dims_v; d += SUM_VECTORS * VEC_LANES)
        part_values_some(s, p->v + d, p->dims_v, alpha, o + d, SUM_VECTORS);
    for (; d < p->dims_v; d += VEC_LANES)
        part_values_some(s, p->v + d, p->dims_v, alpha, o + d, 1);
}

/* What part_load_hide_special took out of keys [first, first+count). */
static void part_values_special(const part *p, operand_reader *v, int64_t first, int64_t count)
{
    float row[MXA_DIMS_MOST];

    for (int64_t key = first; key < first + count; key++) {
        if (!operand_row(v, key, row))
            continue;
        for (int64_t d = 0; d < v->operand->dims; d++)
            for (int64_t lane = 0; !isfinite(row[d]) && lane < p->t->lanes; lane++)
                if (p->t->low[lane] <= key && key < p->t->high[lane])
                    p->o[lane * p->dims_v + d] += row[d];
    }
}

/* ------------------------------------------------------------------------------------------------
 * a part
 * --------------------------------------------------------------------------------------------- */

/* Keys [first, first+count) of the sequence; rows up to STEP_KEYS are zero. */
static void part_step(const part *p, int64_t first, int64_t count)
{
    float alpha[DECODE_LANES];
    operand_reader k, v;

    operand_read(&k, &p->t->k_operand);
    operand_read(&v, &p->t->v_operand);
    operand_rows(&k, first, count, p->k, p->dims);
    memset(p->k + count * p->dims, 0, (size_t)((STEP_KEYS - count) * p->dims) * sizeof(float));
    for (int64_t lane = 0; lane < p->t->lanes; lane++)
        alpha[lane] = part_softmax(p, lane, part_scores(p, lane, first));
    const int special = operand_rows(&v, first, count, p->v, p->dims_v);
    if (special)
        part_load_hide_special(p, count);
    memset(p->v + count * p->dims_v, 0, (size_t)((STEP_KEYS - count) * p->dims_v) * sizeof(float));
    for (int64_t lane = 0; lane < p->t->lanes; lane++)
        part_values(p, lane, alpha[lane]);
    if (special)
        part_values_special(p, &v, first, count);
}

/* Task: kv head task % kv_heads of sequence task / kv_heads: q decoded. */
static void decode_start_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_forward_job *job = arg;
    const int64_t b = task / job->problem->kv_heads;
    tile t;
    part p = {.t = &t, .dims = mxa_round_up(job->problem->head_dim, MXA_BLOCK)};

    if (job->first_part[b + 1] == job->first_part[b])
        return;
    part_tile(&t, job, b, worker);
    t.kv_head = task % job->problem->kv_heads;
    part_load_q(&p);
}

/* Task: part task - first_part[b] of sequence b. */
static void decode_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_forward_job *job = arg;
    const int64_t b = find_sequence(job->first_part, job->batch, task),
                  kv_heads = job->problem->kv_heads;
    const int64_t index = task - job->first_part[b], first = index * MXA_PART_KEYS;
    const mxa_sequence *keys = &job->sequences_k[b];
    tile t;
    part p = {.t = &t};

    part_tile(&t, job, b, worker);
    part_place(&p, job->scratch + worker * job->scratch_bytes + job->part_scratch,
               job->problem->head_dim, job->problem->head_dim_v);
    for (t.kv_head = 0; t.kv_head < kv_heads; t.kv_head++) {
        part_result(&p, index);
        for (int64_t lane = 0; lane < t.lanes; lane++)
            p.m[lane] = lane_start(&t, lane);
        memset(p.l, 0, (size_t)(t.lanes * (1 + p.dims_v)) * sizeof(float));
    }
    const group_range seen = lane_range(&t, 0, t.lanes);
    const int64_t end = seen.high < first + MXA_PART_KEYS ? seen.high : first + MXA_PART_KEYS;
    for (int64_t key = first > seen.low ? first : seen.low / STEP_KEYS * STEP_KEYS; key < end;
         key += STEP_KEYS) {
        const int64_t next = key + STEP_KEYS, next_end = next + STEP_KEYS;

        part_load_ahead(&job->k, keys, next, next_end < keys->used ? next_end : keys->used);
        part_load_ahead(&job->v, keys, next, next_end < keys->used ? next_end : keys->used);
        for (t.kv_head = 0; t.kv_head < kv_heads; t.kv_head++) {
            mxa_operand_open(&t.k_operand, &job->k, keys, b, t.kv_head);
            mxa_operand_open(&t.v_operand, &job->v, keys, b, t.kv_head);
            part_result(&p, index);
            p.q = part_q(&p);
            part_step(&p, key, end - key < STEP_KEYS ? end - key : STEP_KEYS);
        }
    }
}

/* Adds a part of one lane to the tile. m is an integer or -inf. */
static void join_lane(const tile *t, int64_t lane, const part *from, float m)
{
    const float *o = from->o + lane * from->dims_v;

    if (from->m[lane] == -INFINITY && from->l[lane] == 0.0f)
        return;
    const float share = from->m[lane] == m ? 1.0f : exp2f(from->m[lane] - m);
    t->l[lane] += from->l[lane] * share;
    for (int64_t d = 0; d < t->job->problem->head_dim_v; d++)
        t->o[d * TILE_LANES + lane] += o[d] * share;
}

/* Task: kv head task % kv_heads of sequence task / kv_heads: its parts joined. */
static void decode_finish_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_forward_job *job = arg;
    const int64_t b = task / job->problem->kv_heads;
    const int64_t parts = job->first_part[b + 1] - job->first_part[b];
    tile t;
    part p = {.t = &t, .dims_v = mxa_round_up(job->problem->head_dim_v, MXA_BLOCK)};

    if (parts == 0)
        return;
    part_tile(&t, job, b, worker);
    t.kv_head = task % job->problem->kv_heads;
    for (int64_t lane = 0; lane < t.lanes; lane++)
        t.m[lane] = lane_start(&t, lane);
    for (int64_t i = 0; i < parts; i++) {
        part_result(&p, i);
        for (int64_t lane = 0; lane < t.lanes; lane++)
            t.m[lane] = p.m[lane] > t.m[lane] ? p.m[lane] : t.m[lane];
    }
    for (int64_t i = 0; i < parts; i++) {
        part_result(&p, i);
        for (int64_t lane = 0; lane < t.lanes; lane++)
            join_lane(&t, lane, &p, t.m[lane]);
    }
    finish(&t);
}
