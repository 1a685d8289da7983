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
 * Scratch of a worker, FP32: k, v [STEP_KEYS][D rounded up to 32], s [STEP_KEYS] of each lane; and
 * what attention_forward_decode_codes_body.h needs.
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

#ifdef VEC_RUNS
enum {
    Q_LOG2 = -RUN_LOG2 / 2,
    WIDE_RUN = STEP_KEYS * RUN_CODES + 16 /* floats: from a run of a row to the next */
};
#endif

/* Memory that the next keys lie in, asked for in lines, next to a line of a key that is worked on.
 * WHY spread so: memory is never asked for more than it can hold open while nothing is computed. An
 * address, not a pointer: the last ones may lie behind the tensor. */
typedef struct ask {
    uintptr_t from;
    int64_t key_step;
} ask;

/* One part under way, of kv head t->kv_head. */
typedef struct part {
    const tile *t;
    int64_t dims, dims_v; /* rounded up to 32 */
    int64_t q_step, o_step;
    float *k, *v, *s;
    const float *q;   /* (lanes, q_step) */
    float *m, *l, *o; /* the result: (lanes), (lanes), (lanes, o_step) */
    float *slow;      /* 1: its keys need the slow way */
#ifdef VEC_RUNS
    group_range seen; /* by all lanes */
    int64_t q_turned; /* from q to the same as attention_forward_decode_codes_body.h wants it */
    uint8_t *codes;   /* what it works on */
    float *factors, *weights;
#endif
    ask k_ask, v_ask;
    int64_t k_next, v_next; /* from a row of this head to the same of the one that comes after it */
} part;

/* Places the scratch of a part; returns its bytes. */
static int64_t part_place(part *p, unsigned char *base, int64_t head_dim, int64_t head_dim_v)
{
    int64_t at = 0;

    p->dims = mxa_round_up(head_dim, MXA_BLOCK);
    p->dims_v = mxa_round_up(head_dim_v, MXA_BLOCK);
    p->v = carve(base, &at, STEP_KEYS * p->dims_v);
    p->s = carve(base, &at, DECODE_LANES * STEP_KEYS);
#ifdef VEC_RUNS
    const int64_t most = head_dim > head_dim_v ? head_dim : head_dim_v;
    const int64_t width = mxa_round_up(most, RUN_CODES);
    const int64_t blocks = mxa_round_up(most, 4 * MXA_BLOCK) / MXA_BLOCK;

    p->k = carve(base, &at, width / RUN_CODES * WIDE_RUN);
    p->codes = (uint8_t *)carve(base, &at, STEP_KEYS * width / (int64_t)sizeof(float));
    p->factors = carve(base, &at, STEP_KEYS * blocks + VEC_LANES);
    p->weights = carve(base, &at, VEC_LANES * STEP_KEYS * blocks);
#else
    p->k = carve(base, &at, STEP_KEYS * p->dims);
#endif
    return at;
}

/* Sets t up for all lanes of a sequence and its first kv head; not its O. */
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

    return job->parts_q + (p->t->b * job->problem->kv_heads + p->t->kv_head) *
                              mxa_forward_parts_q_floats(job->lanes_most, job->problem->head_dim);
}

/* Where part `index` of the tile's sequence and kv head leaves its result. */
static void part_result(part *p, int64_t index)
{
    const mxa_forward_job *job = p->t->job;
    const int64_t most = mxa_forward_part_floats(job->lanes_most, job->problem->head_dim_v);

    p->q_step = mxa_forward_q_step(job->problem->head_dim);
    p->o_step = mxa_forward_o_step(job->problem->head_dim_v);
    p->o = job->parts +
           ((job->first_part[p->t->b] + index) * job->problem->kv_heads + p->t->kv_head) * most;
    p->m = p->o + mxa_forward_lanes_padded(p->t->lanes) * p->o_step;
    p->l = p->m + MXA_DECODE_LANES_MOST;
    p->slow = p->l + MXA_DECODE_LANES_MOST;
}

/* ------------------------------------------------------------------------------------------------
 * load
 * --------------------------------------------------------------------------------------------- */

#ifdef VEC_RUNS
/* From q to the same as attention_forward_decode_codes_body.h wants it. */
static int64_t part_q_turned(const mxa_forward_job *job)
{
    return mxa_forward_lanes_padded(job->lanes_most) * mxa_forward_q_step(job->problem->head_dim);
}

/* The rows of q once more, as codes meet them: times 2^Q_LOG2, in the order of runs, zeros up to a
 * power of two of them; turned over where they fill vectors. Behind them 1 where one holds what a
 * product with a run might not keep, else 0. */
static void part_turn_q(const part *p)
{
    enum { LEAST = 77 << 23, MOST = 177 << 23 }; /* 2^-50, 2^50 */
    const mxa_forward_job *job = p->t->job;
    const int64_t step = mxa_forward_q_step(job->problem->head_dim);
    const int64_t padded = mxa_forward_lanes_padded(p->t->lanes);
    const int64_t lane_step = padded < VEC_LANES ? step : 1;
    const int64_t dim_step = padded < VEC_LANES ? 1 : padded;
    const float factor = ldexpf(1.0f, Q_LOG2);
    float *q = part_q(p), *turned = q + part_q_turned(job);
    uint32_t most = 0, least = UINT32_MAX;

    for (int64_t lane = 0; lane < padded; lane++) {
        float *row = q + lane * step;

        if (lane >= p->t->lanes)
            memset(row, 0, (size_t)step * sizeof(float));
        else
            memset(row + p->dims, 0, (size_t)(step - p->dims) * sizeof(float));
        for (int64_t d = 0; d < step; d += RUN_CODES)
            for (int i = 0; i < RUN_CODES; i++)
                turned[lane * lane_step + (d + i) * dim_step] = row[d + run_code(i)] * factor;
        for (int64_t d = 0; d < step; d++) {
            uint32_t bits;

            memcpy(&bits, &row[d], sizeof(bits));
            bits &= 0x7fffffff;
            most = bits > most ? bits : most;
            least = bits - 1 < least ? bits - 1 : least; /* 0 does not count */
        }
    }
    q[2 * part_q_turned(job)] = most > MOST || least < LEAST ? 1.0f : 0.0f;
}

/* 1 where part_turn_q found q far. */
static int part_is_far(const part *p)
{
    return part_q(p)[2 * part_q_turned(p->t->job)] != 0.0f;
}
#endif

static void part_load_q(const part *p)
{
    const tile *t = p->t;
    const mxa_forward_job *job = t->job;

    for (int64_t lane = 0; lane < t->lanes; lane++) {
        float *row = part_q(p) + lane * mxa_forward_q_step(job->problem->head_dim);
        mxa_operand operand;
        operand_reader reader;

        mxa_operand_open(&operand, &job->q, &job->sequences_q[t->b], t->b, lane_head(t, lane));
        operand_read(&reader, &operand);
        operand_row(&reader, lane_row(t, lane), row);
        for (int64_t d = 0; d < p->dims; d++)
            row[d] *= job->q_factor;
    }
#ifdef VEC_RUNS
    part_turn_q(p);
#endif
}

/* Takes NaN and infinite elements out of the rows of V: a lane that does not see them must not meet
 * them as 0 * NaN. part_values_special adds them where they are seen. */
static void part_load_hide_special(const part *p, int64_t count)
{
    for (int64_t i = 0; i < count * p->dims_v; i++)
        if (!isfinite(p->v[i]))
            p->v[i] = 0.0f;
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
    vec_store(s, vec_sums(sum));
}

/* Dot products to log2 units, with what a lane does not see at -inf; returns the largest. */
static float part_adjust(const part *p, int64_t lane, int64_t first_key)
{
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const mxa_forward_job *job = p->t->job;
    const float cap = job->softcap_log2;
    const int32_t low = p->t->low[lane], high = p->t->high[lane];
    const int whole = low <= first_key && first_key + STEP_KEYS <= high;
    float *s = p->s + lane * STEP_KEYS;
    vec most = vec_set(-INFINITY);

    for (int64_t key = 0; key < STEP_KEYS; key += VEC_LANES) {
        vec x = vec_mul(vec_load(s + key), vec_set(job->scale_log2 / (cap > 0.0f ? cap : 1.0f)));
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

static float part_scores(const part *p, int64_t lane, int64_t first_key)
{
    for (int64_t key = 0; key < STEP_KEYS; key += VEC_LANES)
        part_dot(p->q + lane * p->q_step, p->k + key * p->dims, p->dims,
                 p->s + lane * STEP_KEYS + key);
    return part_adjust(p, lane, first_key);
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
        const vec x = vec_sub(vec_load(s + key), vec_set(used));
        vec rounded;

        sum = vec_add(sum, softmax_p(x, p->t->job->e4m3, 0, &rounded));
        vec_store(s + key, rounded);
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
    float *o = p->o + lane * p->o_step;
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
                    p->o[lane * p->o_step + d] += row[d];
    }
}

#ifdef VEC_RUNS
#include "cpu/attention_forward_decode_codes_body.h"
#endif

/* ------------------------------------------------------------------------------------------------
 * a part
 * --------------------------------------------------------------------------------------------- */

/* The result of a part before its first key. */
static void part_start(const part *p, int slow)
{
    memset(p->o, 0, (size_t)(mxa_forward_lanes_padded(p->t->lanes) * p->o_step) * sizeof(float));
    memset(p->l, 0, MXA_DECODE_LANES_MOST * sizeof(float));
    p->slow[0] = slow ? 1.0f : 0.0f;
#ifdef VEC_RUNS
    if (!slow) {
        codes_start(p);
        return;
    }
#endif
    for (int64_t lane = 0; lane < p->t->lanes; lane++)
        p->m[lane] = lane_start(p->t, lane);
}

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

/* Keys [key, key+count), of which the part's first is `first`. */
static void part_advance(part *p, int64_t first, int64_t key, int64_t count)
{
#ifdef VEC_RUNS
    if (p->slow[0] == 0.0f) {
        if (codes_step(p, key, count))
            return;
        part_start(p, 1);
        for (; first < key; first += STEP_KEYS)
            part_step(p, first, STEP_KEYS);
    }
#endif
    (void)first;
    part_step(p, key, count);
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

/* Sets a part up before its first key: of kv head t->kv_head. */
static void part_begin(part *p, int64_t index)
{
    int slow = 1;

    part_result(p, index);
#ifdef VEC_RUNS
    slow = part_is_far(p) || !codes_is_usual(&p->t->k_operand) || !codes_is_usual(&p->t->v_operand);
#endif
    part_start(p, slow);
}

/* k and v of a head, and how far the next one's scales are. */
typedef struct part_heads {
    mxa_operand k, v;
    int64_t k_next, v_next;
} part_heads;

static int64_t scales_next(const mxa_operand *operand, const mxattn_tensor *tensor)
{
    mxa_operand next;

    if (!operand->scale_first || tensor->shape[2] == 1)
        return 0;
    mxa_operand_open(&next, tensor, operand->sequence, operand->b, operand->head + 1);
    return next.scale_first - operand->scale_first;
}

static void heads_open(part_heads *heads, const mxa_forward_job *job, int64_t b)
{
    mxa_operand_open(&heads->k, &job->k, &job->sequences_k[b], b, 0);
    mxa_operand_open(&heads->v, &job->v, &job->sequences_k[b], b, 0);
    heads->k_next = scales_next(&heads->k, &job->k);
    heads->v_next = scales_next(&heads->v, &job->v);
}

static void operand_move(mxa_operand *operand, int64_t payload, int64_t scales)
{
    operand->payload += payload;
    operand->head++;
    if (operand->scale_first)
        operand->scale_first += scales;
}

/* To the next kv head. */
static void heads_move(const part_heads *heads, tile *t)
{
    operand_move(&t->k_operand, t->job->k.stride[2], heads->k_next);
    operand_move(&t->v_operand, t->job->v.stride[2], heads->v_next);
    t->kv_head++;
}

static void heads_first(const part_heads *heads, tile *t)
{
    t->k_operand = heads->k;
    t->v_operand = heads->v;
    t->kv_head = 0;
}

/* A head's share of the STEP_KEYS rows of all heads from `first` on, in the order in which they
 * lie; of its own head where a token's heads do not follow the token before. */
static ask ask_of(const part *p, const mxa_operand *operand, const mxattn_tensor *tensor,
                  int64_t first)
{
    const tile *t = p->t;
    const int64_t heads = tensor->shape[2], dims = operand->dims, step = operand->token_stride;

    if (first >= t->job->sequences_k[t->b].used)
        return (ask){(uintptr_t)p->k, 0}; /* near already */
    if (operand->scale_first) /* a head's share of the scales, or all, where tokens have the same */
        vec_prefetch_second(operand->scale_first + first / MXA_BLOCK * operand->scale_block +
                            STEP_KEYS * t->kv_head / heads * operand->scale_token);
    const uintptr_t from = (uintptr_t)operand->payload + (uintptr_t)(first * step);
    if (step != heads * dims || tensor->stride[2] != dims)
        return (ask){from, step};
    return (ask){from + (uintptr_t)(t->kv_head * (STEP_KEYS - 1) * dims), dims};
}

/* Heads by turns. What is asked for while a head's keys are worked on: into the second cache, of
 * the keys from `ahead` on; into the first, these keys of the next head. */
static void ask_share(part *p, int64_t ahead)
{
    const mxa_forward_job *job = p->t->job;
    const mxa_operand *k = &p->t->k_operand, *v = &p->t->v_operand;
    const int64_t last = job->problem->kv_heads - 1;

    p->k_ask = ask_of(p, k, &job->k, ahead);
    p->v_ask = ask_of(p, v, &job->v, ahead);
    p->k_next = p->t->kv_head < last ? job->k.stride[2]
                                     : STEP_KEYS * k->token_stride - last * job->k.stride[2];
    p->v_next = p->t->kv_head < last ? job->v.stride[2]
                                     : STEP_KEYS * v->token_stride - last * job->v.stride[2];
}

#ifdef VEC_RUNS
/* Heads one after another: the keys after those from `key` on, or the next head's from `begin` on,
 * into both. */
static void ask_head(part *p, int64_t key, int64_t begin, int64_t end)
{
    const mxa_forward_job *job = p->t->job;
    const mxa_operand *k = &p->t->k_operand, *v = &p->t->v_operand;
    const int64_t left = key + STEP_KEYS < end, ahead = left ? STEP_KEYS : begin - key;

    p->k_next = ahead * k->token_stride + (left ? 0 : job->k.stride[2]);
    p->v_next = ahead * v->token_stride + (left ? 0 : job->v.stride[2]);
    p->k_ask = (ask){(uintptr_t)k->payload + (uintptr_t)(key * k->token_stride + p->k_next),
                     k->token_stride};
    p->v_ask = (ask){(uintptr_t)v->payload + (uintptr_t)(key * v->token_stride + p->v_next),
                     v->token_stride};
}
#endif

/* STEP_KEYS keys of a head from `key` on, of a part that is [begin, end). */
static void decode_step(part *p, int64_t index, int64_t key, int64_t begin, int64_t end)
{
    part_result(p, index);
    p->q = part_q(p);
    part_advance(p, begin, key, end - key < STEP_KEYS ? end - key : STEP_KEYS);
}

/* Task: part task - first_part[b] of sequence b. WHY heads by turns, but for many lanes: memory is
 * read from one end to the other then; but q and O of many lanes are much to move for 32 keys. */
static void decode_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_forward_job *job = arg;
    const int64_t b = find_sequence(job->first_part, job->batch, task),
                  kv_heads = job->problem->kv_heads;
    const int64_t index = task - job->first_part[b], first = index * MXA_PART_KEYS;
    part_heads heads;
    tile t;
    part p = {.t = &t};

    part_tile(&t, job, b, worker);
    part_place(&p, job->scratch + worker * job->scratch_bytes + job->part_scratch,
               job->problem->head_dim, job->problem->head_dim_v);
    heads_open(&heads, job, b);
    for (heads_first(&heads, &t); t.kv_head < kv_heads; heads_move(&heads, &t))
        part_begin(&p, index);
    const group_range seen = lane_range(&t, 0, t.lanes);
    const int64_t end = seen.high < first + MXA_PART_KEYS ? seen.high : first + MXA_PART_KEYS;
    const int64_t begin = first > seen.low ? first : seen.low / STEP_KEYS * STEP_KEYS;
#ifdef VEC_RUNS
    p.seen = seen;
    p.q_turned = part_q_turned(job);
    if (mxa_forward_lanes_padded(t.lanes) >= VEC_LANES) {
        for (heads_first(&heads, &t); t.kv_head < kv_heads; heads_move(&heads, &t))
            for (int64_t key = begin; key < end; key += STEP_KEYS) {
                ask_head(&p, key, begin, end);
                decode_step(&p, index, key, begin, end);
            }
        return;
    }
#endif
    for (int64_t key = begin; key < end; key += STEP_KEYS) {
        /* Behind this part's last keys: those of the part that this worker is likely to take. */
        const int64_t ahead =
            key + STEP_KEYS < end ? key + STEP_KEYS : first + job->workers * MXA_PART_KEYS;

        for (heads_first(&heads, &t); t.kv_head < kv_heads; heads_move(&heads, &t)) {
            ask_share(&p, ahead);
            decode_step(&p, index, key, begin, end);
        }
    }
}

static int saw_nothing(const part *from, int64_t lane)
{
    return from->m[lane] == -INFINITY && from->l[lane] == 0.0f;
}

/* Adds a part to the tile, whose m is known, or to sums in an order of their own. m is an integer
 * or -inf. WHY also where the share is 0: a NaN times it stays one. */
static void join(const tile *t, const part *from, float *sums)
{
    float share[MXA_DECODE_LANES_MOST] = {0};

    for (int64_t lane = 0; lane < t->lanes; lane++) {
        if (saw_nothing(from, lane))
            continue;
        share[lane] = from->m[lane] == t->m[lane] ? 1.0f : exp2f(from->m[lane] - t->m[lane]);
        t->l[lane] += from->l[lane] * share[lane];
    }
#ifdef VEC_RUNS
    if (from->slow[0] == 0.0f) {
        codes_join(t, from, share, sums);
        return;
    }
#endif
    (void)sums;
    for (int64_t lane = 0; lane < t->lanes; lane++)
        for (int64_t d = 0; !saw_nothing(from, lane) && d < t->job->problem->head_dim_v; d++)
            t->o[d * TILE_LANES + lane] += from->o[lane * from->o_step + d] * share[lane];
}

/* Task: kv head task % kv_heads of sequence task / kv_heads: its parts joined. */
static void decode_finish_task(void *arg, int64_t task, int32_t worker)
{
    const mxa_forward_job *job = arg;
    const int64_t b = task / job->problem->kv_heads;
    const int64_t parts = job->first_part[b + 1] - job->first_part[b];
    tile t;
    part p = {.t = &t};

    if (parts == 0)
        return;
    part_tile(&t, job, b, worker);
    part_place(&p, job->scratch + worker * job->scratch_bytes + job->part_scratch,
               job->problem->head_dim, job->problem->head_dim_v);
    t.kv_head = task % job->problem->kv_heads;
    clear_o(&t);
#ifdef VEC_RUNS
    const int64_t o_step = mxa_forward_o_step(job->problem->head_dim_v);

    memset(p.k, 0, (size_t)(mxa_forward_lanes_padded(t.lanes) * o_step) * sizeof(float));
#endif
    for (int64_t lane = 0; lane < t.lanes; lane++)
        t.m[lane] = lane_start(&t, lane);
    for (int64_t i = 0; i < parts; i++) {
        part_result(&p, i);
        for (int64_t lane = 0; lane < t.lanes; lane++)
            t.m[lane] = p.m[lane] > t.m[lane] ? p.m[lane] : t.m[lane];
    }
    for (int64_t i = 0; i < parts; i++) {
        part_result(&p, i);
        join(&t, &p, p.k);
    }
#ifdef VEC_RUNS
    codes_finish(&t, o_step, p.k);
#endif
    finish(&t);
}
