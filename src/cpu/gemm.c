/* gemm.c: the GEMM that quantizes, on the CPU.
 *
 * Meaning: ref/gemm.c. Every operand is decoded once. First B goes into panels in workspace. Then
 * each task takes up to kernel->rows rows of C, whole blocks of tokens, and some of its columns:
 * decodes its rows of A, and for one range of columns after the other multiplies (product), adds
 * the bias, activates, normalises, turns (epilogue), and stores or quantizes what lies in the
 * second cache (finish). C in FP32 never reaches memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/gemm.h"

#include "cpu/gemm_load.h"
#include "cpu/operand.h"
#include "cpu/operations.h"
#include "cpu/parallel.h"
#include "cpu/piece.h"
#include "mx/e8m0.h"
#include "mx/element.h"

#include <string.h>

enum {
    COLUMNS = 384, /* of C at once: a multiple of 128, with 64 and 128 to a head whole heads */
    PIECE_K = 128, /* of B decoded at once */
    ALIGNMENT = 256
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows [row, row_end) of C, from block `block` of sequence b. */
typedef struct row_group {
    int64_t row, row_end;
    int64_t b, block;
} row_group;

/* Sizes of a call; functions of its shape and instruction set alone. */
typedef struct sizes {
    int64_t parts;       /* of K */
    int64_t panels;      /* of B */
    int64_t panel_bytes; /* one panel of one part */
    int64_t part_bytes;  /* of A, in a worker's scratch */
    int64_t columns;     /* of C at once */
    int64_t c_row;       /* FP32 between its rows */
    int64_t groups_most;
    int64_t values_bytes, a_bytes, c_bytes; /* a worker's scratch */
} sizes;

typedef struct gemm_job {
    const mxa_gemm_call *call;
    const mxa_gemm_kernel *kernel;
    const mxa_row_kernels *rows;
    const mxa_quantize_kernels *quantize;
    mxa_gemm_source a, b, activated;
    mxa_sequence *table_c;
    row_group *groups;
    int64_t group_count, column_groups;
    int64_t group_rows; /* at most */
    sizes size;
    char *panels, *scratch;
} gemm_job;

/* One task's place in all that. */
typedef struct gemm_task {
    const row_group *group;
    float *values;
    char *a;
    float *c;
    int64_t n, n_end; /* columns at work */
    int64_t n_first;  /* the column that c begins with */
} gemm_task;

static const mxa_gemm_kernel *kernel_for(uint32_t isa)
{
#if defined(MXA_BUILD_AMX)
    if (isa & MXATTN_ISA_AMX_BF16)
        return &mxa_gemm_amx;
#endif
#if defined(MXA_BUILD_AVX512BF16)
    if ((isa & MXATTN_ISA_AVX512_BF16) && (isa & MXATTN_ISA_AVX512_VBMI))
        return &mxa_gemm_avx512bf16;
#endif
#if defined(MXA_BUILD_AVX512)
    if (isa & MXATTN_ISA_AVX512)
        return &mxa_gemm_avx512;
#endif
#if defined(MXA_BUILD_AVX2)
    if (isa & MXATTN_ISA_AVX2)
        return &mxa_gemm_avx2;
#endif
    (void)isa;
    return &mxa_gemm_portable;
}

/* 1 where all columns of a head are needed at once. */
static int needs_heads(const mxa_gemm_call *call)
{
    const uint32_t folded = MXATTN_FOLDED | MXATTN_FOLDED_TOKEN;
    return call->c.shape[2] > 1 || call->head_norm || call->rope.cosine ||
           (call->c.tags.flags & folded) != 0;
}

static sizes sizes_of(const mxa_gemm_call *call, const mxa_gemm_kernel *kernel)
{
    const int64_t dims = call->c.shape[3], word = (int64_t)sizeof(float);
    sizes s = {.parts = (call->k + kernel->part - 1) / kernel->part, .columns = COLUMNS};
    if (needs_heads(call))
        s.columns = dims >= COLUMNS ? dims : COLUMNS / dims * dims;
    s.columns = smaller(s.columns, call->n);
    s.panels = mxa_round_up(call->n, MXA_BLOCK) / kernel->panel;
    s.panel_bytes = (int64_t)kernel->part / kernel->depth * kernel->panel * word;
    s.part_bytes = (int64_t)kernel->rows * kernel->stride / kernel->depth * word;
    s.c_row = mxa_round_up(s.columns + 2 * kernel->panel, 32) + MXA_GEMM_PAD;
    s.groups_most = call->m / (MXA_BLOCK / 2) + call->batch_c.batch + 2;
    s.values_bytes = (int64_t)kernel->part * (kernel->rows + MXA_GEMM_PAD) * word;
    if (s.values_bytes < MXA_BLOCK * s.c_row * word)
        s.values_bytes = MXA_BLOCK * s.c_row * word;
    s.values_bytes = mxa_round_up(s.values_bytes, ALIGNMENT);
    s.a_bytes = mxa_round_up(s.parts * s.part_bytes, ALIGNMENT);
    s.c_bytes = mxa_round_up(kernel->rows * s.c_row * word, ALIGNMENT);
    return s;
}

/* Memory handed out of workspace; with base NULL only `used` counts. */
typedef struct arena {
    char *base;
    int64_t used;
} arena;

static void *take(arena *from, int64_t bytes)
{
    char *place = from->base ? from->base + from->used : NULL;
    from->used += mxa_round_up(bytes, ALIGNMENT);
    return place;
}

static gemm_job carve(const mxattn_context *context, const mxa_gemm_call *call, arena *from)
{
    const mxa_gemm_kernel *kernel = kernel_for(context->isa);
    const int64_t table = (int64_t)sizeof(mxa_sequence);
    gemm_job job = {.call = call,
                    .kernel = kernel,
                    .rows = mxa_row_kernels_for(context->isa),
                    .quantize = mxa_quantize_kernels_for(context->isa),
                    .size = sizes_of(call, kernel)};
    const mxa_gemm_source source = {.dequantize = mxa_dequantize_kernel_for(context->isa),
                                    .rows = job.rows};
    job.a = job.b = job.activated = source;
    job.a.tensor = &call->a;
    job.b.tensor = &call->b;
    job.activated.tensor = &call->activated;
    job.a.table = take(from, (call->batch_a.batch + 1) * table);
    job.b.table = take(from, (call->batch_b.batch + 1) * table);
    job.table_c = take(from, (call->batch_c.batch + 1) * table);
    job.a.batch = call->batch_a.batch;
    job.b.batch = call->batch_b.batch;
    job.activated.table = job.table_c;
    job.activated.batch = call->batch_c.batch;
    job.groups = take(from, job.size.groups_most * (int64_t)sizeof(row_group));
    job.panels = take(from, job.size.parts * job.size.panels * job.size.panel_bytes);
    job.scratch = take(from, (job.size.values_bytes + job.size.a_bytes + job.size.c_bytes) *
                                 mxa_parallel_workers(context));
    return job;
}

int64_t mxa_cpu_gemm_workspace(const mxattn_context *context, const mxa_gemm_call *call)
{
    arena count = {NULL, 0};
    (void)carve(context, call, &count);
    return count.used;
}

static int64_t over(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Time of `tasks` tasks of `rows` rows, with `ranges` ranges of columns between them. */
static int64_t cost_of(const gemm_job *job, int64_t rows, int64_t ranges, int64_t tasks)
{
    return mxa_round_up(rows, job->kernel->tile) * (job->kernel->range_cost * ranges + tasks);
}

/* When the last worker is done: C by groups of `rows` rows, each by `columns` groups of columns;
 * the rows left over come last, and go to workers who have nothing of the last round. */
static int64_t time_of(const gemm_job *job, int64_t workers, int64_t ranges, int64_t rows,
                       int64_t columns)
{
    const int64_t tasks = job->call->m / rows * columns, left = job->call->m % rows;
    const int64_t rounds = tasks / workers, idle = workers - tasks % workers;
    const int64_t most = cost_of(job, rows, over(ranges, columns), 1);
    const int64_t mean = cost_of(job, rows, ranges, columns) / columns;
    const int64_t short_task = cost_of(job, left, over(ranges, columns), 1);
    if (left == 0)
        return idle == workers ? (rounds - 1) * mean + most : rounds * mean + most;
    if (idle == workers)
        return rounds * mean + over(columns, workers) * short_task;
    const int64_t meanwhile = over(columns, idle) * short_task;
    return rounds * mean + (meanwhile > most ? meanwhile : most);
}

/* Rows of a group, and groups of columns: the least time. No bit of C depends on it.
 * WHY an eighth of a task is added: workers do not run at one speed. Two tasks for each of 16,
 * which fit to the last row, took 1.3 times as long as six (virtual cores of a Xeon). */
static void choose_tasks(gemm_job *job, int64_t workers, int64_t ranges)
{
    enum { WAIT_SHARE = 8 };
    int64_t least = INT64_MAX;
    for (int64_t rows = job->kernel->rows; rows >= MXA_GEMM_ROWS_LEAST; rows -= MXA_BLOCK) {
        for (int64_t columns = 1; columns <= ranges; columns++) {
            const int64_t task = cost_of(job, rows, over(ranges, columns), 1);
            const int64_t wait = workers > 1 ? task / WAIT_SHARE : 0;
            const int64_t time = time_of(job, workers, ranges, rows, columns) + wait;
            if (time < least) {
                least = time;
                job->group_rows = rows;
                job->column_groups = columns;
            }
        }
    }
}

/* Consecutive blocks of tokens while they fit. */
static void make_groups(gemm_job *job)
{
    const mxa_gemm_call *call = job->call;
    row_group *group = NULL;
    for (int64_t b = 0; b < call->batch_c.batch; b++) {
        const mxa_sequence *seq = &job->table_c[b];
        for (int64_t s = 0; s < seq->length; s += MXA_BLOCK) {
            const int64_t end = seq->first + smaller(s + MXA_BLOCK, seq->length);
            if (!group || end - group->row > job->group_rows) {
                group = &job->groups[job->group_count++];
                *group = (row_group){seq->first + s, end, b, s / MXA_BLOCK};
            }
            group->row_end = end;
        }
    }
}

/* ---- load: panels of B ------------------------------------------------------------------- */

static int64_t part_length(const gemm_job *job, int64_t part)
{
    const int64_t most = job->kernel->part;
    return smaller(most, job->call->k - part * most);
}

static char *scratch_of(const gemm_job *job, int32_t worker)
{
    return job->scratch + worker * (job->size.values_bytes + job->size.a_bytes + job->size.c_bytes);
}

static char *panel_at(const gemm_job *job, int64_t part, int64_t column)
{
    return job->panels +
           (part * job->size.panels + column / job->kernel->panel) * job->size.panel_bytes;
}

/* Panels are written to from afar: they are asked for while their values are decoded. */
static void ask_for_panels(const gemm_job *job, const char *panel, int64_t bytes)
{
    enum { LINE = 64 };
    for (int32_t n = 0; n < MXA_BLOCK; n += job->kernel->panel, panel += job->size.panel_bytes)
        for (int64_t at = 0; at < bytes; at += LINE)
            __builtin_prefetch(panel + at, 1);
}

/* 32 columns of one part, by pieces whose values fit the first cache. */
static void load_b(void *arg, int64_t task, int32_t worker)
{
    const gemm_job *job = arg;
    const mxa_gemm_call *call = job->call;
    const int64_t part = task % job->size.parts, n = task / job->size.parts * MXA_BLOCK;
    const int64_t count = smaller(call->n - n, MXA_BLOCK), end = part_length(job, part);
    const int64_t step_bytes = job->kernel->panel * (int64_t)sizeof(float) / job->kernel->depth;
    float *values = (void *)scratch_of(job, worker);
    for (int64_t at = 0; at < end; at += PIECE_K) {
        const int64_t k = part * job->kernel->part + at, length = smaller(PIECE_K, end - at);
        const int64_t padded = mxa_round_up(length, MXA_BLOCK);
        char *panel = panel_at(job, part, n) + at * step_bytes;
        mxa_gemm_codes codes;
        const int by_codes = job->kernel->pack_b_codes && !call->transpose_b &&
                             count == MXA_BLOCK && mxa_gemm_codes_of(&job->b, n, k, length, &codes);
        if (!by_codes || job->kernel->depth > 1) /* with a depth of 1 codes ask as they go */
            ask_for_panels(job, panel, padded * step_bytes);
        if (by_codes && job->kernel->pack_b_codes(&codes, length, panel, job->size.panel_bytes))
            continue;
        if (call->transpose_b) {
            mxa_gemm_load(&job->b, k, length, padded, n, count, MXA_BLOCK, values, MXA_BLOCK);
            job->kernel->pack_b_columns(values, MXA_BLOCK, padded, panel, job->size.panel_bytes);
        } else {
            mxa_gemm_load(&job->b, n, count, MXA_BLOCK, k, length, padded, values,
                          job->kernel->stride);
            job->kernel->pack_b(values, padded, panel, job->size.panel_bytes);
        }
    }
}

/* ---- load: rows of A --------------------------------------------------------------------- */

/* `length` columns of A from k on, as rows of units. */
static void load_rows(const gemm_job *job, const gemm_task *task, int64_t k, int64_t length,
                      char *units)
{
    const mxa_gemm_kernel *kernel = job->kernel;
    const int64_t row = task->group->row, rows = task->group->row_end - row;
    const int64_t padded = mxa_round_up(length, MXA_BLOCK);
    /* Rows beyond the last are multiplied too, and their sums ignored: up to a tile. */
    const int64_t tiled = mxa_round_up(rows, kernel->tile);
    if (kernel->depth == 1) { /* values are units */
        mxa_gemm_load(&job->a, row, rows, tiled, k, length, padded, (void *)units, kernel->stride);
        return;
    }
    for (int64_t r = 0; r < rows; r += MXA_BLOCK) {
        const int64_t here = smaller(rows - r, MXA_BLOCK), all = smaller(tiled - r, MXA_BLOCK);
        void *to = units + r * kernel->stride / kernel->depth * (int64_t)sizeof(float);
        mxa_gemm_codes codes;
        if (here == MXA_BLOCK && mxa_gemm_codes_of(&job->a, row + r, k, length, &codes) &&
            kernel->pack_a_codes(&codes, length, to))
            continue;
        mxa_gemm_load(&job->a, row + r, here, all, k, length, padded, task->values, kernel->stride);
        kernel->pack_a(task->values, all, padded, to);
    }
}

static void load_a(const gemm_job *job, const gemm_task *task)
{
    const mxa_gemm_call *call = job->call;
    const int64_t row = task->group->row, rows = task->group->row_end - row;
    const int64_t most = job->kernel->rows, stride = most + MXA_GEMM_PAD;
    for (int64_t part = 0; part < job->size.parts; part++) {
        const int64_t k = part * job->kernel->part, length = part_length(job, part);
        const int64_t padded = mxa_round_up(length, MXA_BLOCK);
        char *units = task->a + part * job->size.part_bytes;
        if (call->transpose_a) {
            mxa_gemm_load(&job->a, k, length, padded, row, rows, most, task->values, stride);
            job->kernel->pack_a_columns(task->values, stride, padded, units);
        } else {
            load_rows(job, task, k, length, units);
        }
    }
}

/* ---- product ----------------------------------------------------------------------------- */

static void product(const gemm_job *job, const gemm_task *task)
{
    const int64_t rows = task->group->row_end - task->group->row, panel = job->kernel->panel;
    if (job->size.parts == 0)
        memset(task->c, 0, (size_t)(rows * job->size.c_row) * sizeof(float));
    for (int64_t part = 0; part < job->size.parts; part++)
        for (int64_t n = task->n_first; n < task->n_end; n += panel)
            job->kernel->multiply(task->a + part * job->size.part_bytes, job->call->transpose_a,
                                  panel_at(job, part, n),
                                  mxa_round_up(part_length(job, part), MXA_BLOCK), rows,
                                  task->c + (n - task->n_first), job->size.c_row, part > 0);
}

/* ---- epilogue and finish ----------------------------------------------------------------- */

/* Columns [n, n_end) of the tokens of one block; c is their first element. */
typedef struct block_rows {
    mxa_block_at at;
    int64_t row; /* of C */
    int64_t tokens, used;
    float *c;
} block_rows;

static void activate(const gemm_job *job, const gemm_task *task, const block_rows *x)
{
    const mxa_gemm_call *call = job->call;
    const int64_t columns = task->n_end - task->n;
    const float *bias = call->bias ? call->bias + task->n : NULL;
    if (call->activated.ndim)
        mxa_gemm_load(&job->activated, x->row, x->used, x->used, task->n, columns, columns,
                      task->values, job->size.c_row);
    for (int64_t t = 0; t < x->used; t++) {
        float *c = x->c + t * job->size.c_row;
        if (call->activated.ndim)
            job->rows->activate_backward(c, bias, task->values + t * job->size.c_row,
                                         call->activation, columns);
        else if (bias || call->activation != MXATTN_ACTIVATION_NONE)
            job->rows->activate(c, bias, call->activation, columns);
    }
}

/* Divides by the root mean square of the head, and turns. */
static void normalise_head(const gemm_job *job, const block_rows *x, int64_t head, float *c)
{
    const mxa_gemm_call *call = job->call;
    const int64_t dims = call->c.shape[3];
    for (int64_t t = 0; t < x->tokens; t++, c += job->size.c_row) {
        mxa_rms_scale scale = {0};
        if (t < x->used && call->head_norm) {
            scale =
                mxa_rms_scale_of(job->rows->squares(c, MXATTN_F32, dims, 0), dims, call->norm_eps);
            job->rows->divide(c, MXATTN_F32, dims, &scale, call->norm_weight, c);
        }
        if (call->norm_rstd)
            call->norm_rstd[(x->row + t) * call->norm_heads + head] = scale.rstd;
        if (t < x->used)
            mxa_rows_rotate(job->rows, &call->rope, x->at.block * MXA_BLOCK + t, c);
    }
}

static void store_wide(const gemm_job *job, const mxa_piece *piece, const mxattn_tensor *to,
                       int accumulate)
{
    const mxa_sequence *seq = &piece->at->sequence;
    for (int64_t t = 0; t < piece->tokens; t++) {
        const int64_t s = piece->at->block * MXA_BLOCK + t;
        void *out = (void *)mxa_element_of(to, seq, s, piece->head, piece->dim);
        if (t < piece->used)
            job->rows->narrow(piece->values + t * piece->stride, piece->dims, to->tags.dtype, out,
                              accumulate);
        else if (!accumulate)
            memset(out, 0, (size_t)(piece->dims * mxa_dtype_bytes(to->tags.dtype)));
    }
}

static void finish_block(const gemm_job *job, const gemm_task *task, const block_rows *x)
{
    const mxa_gemm_call *call = job->call;
    const int64_t dims = call->c.shape[3];
    activate(job, task, x);
    for (int64_t n = task->n; n < task->n_end; n += dims - n % dims) {
        mxa_piece piece = {.at = &x->at,
                           .head = n / dims,
                           .tokens = x->tokens,
                           .used = x->used,
                           .dim = n % dims,
                           .dims = smaller(dims - n % dims, task->n_end - n),
                           .values = x->c + (n - task->n),
                           .stride = job->size.c_row};
        if (piece.head < call->norm_heads && (call->head_norm || call->rope.cosine))
            normalise_head(job, x, piece.head, piece.values);
        if (call->c_wide.ndim)
            store_wide(job, &piece, &call->c_wide, 0);
        if (mxa_dtype_is_fp8(call->c.tags.dtype))
            mxa_quantize_piece(job->quantize, &piece, &call->c);
        else
            store_wide(job, &piece, &call->c, call->accumulate);
    }
}

static void finish(const gemm_job *job, const gemm_task *task)
{
    const row_group *group = task->group;
    block_rows x = {.at = {.b = group->b, .block = group->block}, .row = group->row};
    while (x.row < group->row_end) {
        const mxa_sequence *seq = &job->table_c[x.at.b];
        const int64_t s = x.at.block * MXA_BLOCK;
        if (s >= seq->length) {
            x.at.b++;
            x.at.block = 0;
            continue;
        }
        x.at.sequence = *seq;
        x.tokens = smaller(MXA_BLOCK, seq->length - s);
        x.used = seq->used - s < 0 ? 0 : smaller(seq->used - s, x.tokens);
        x.c = task->c + (x.row - group->row) * job->size.c_row + (task->n - task->n_first);
        finish_block(job, task, &x);
        x.row += x.tokens;
        x.at.block++;
    }
}

static void run_task(void *arg, int64_t index, int32_t worker)
{
    const gemm_job *job = arg;
    const int64_t columns = job->size.columns, panel = job->kernel->panel;
    const int64_t ranges = (job->call->n + columns - 1) / columns;
    const int64_t group = index % job->column_groups;
    gemm_task task = {.group = &job->groups[index / job->column_groups],
                      .values = (void *)scratch_of(job, worker)};
    task.a = (char *)task.values + job->size.values_bytes;
    task.c = (void *)(task.a + job->size.a_bytes);
    load_a(job, &task);
    if (job->kernel->begin)
        job->kernel->begin();
    for (int64_t range = ranges * group / job->column_groups;
         range < ranges * (group + 1) / job->column_groups; range++) {
        task.n = range * columns;
        task.n_end = smaller(task.n + columns, job->call->n);
        task.n_first = task.n / panel * panel;
        product(job, &task);
        finish(job, &task);
    }
    if (job->kernel->end)
        job->kernel->end();
}

mxattn_status mxa_cpu_gemm_quantize(const mxattn_context *context, const mxa_gemm_call *call)
{
    arena from = {call->workspace, 0};
    gemm_job job = carve(context, call, &from);
    const int64_t ranges = (call->n + job.size.columns - 1) / job.size.columns;
    mxa_sequence_table(&call->batch_a, job.a.table);
    mxa_sequence_table(&call->batch_b, job.b.table);
    mxa_sequence_table(&call->batch_c, job.activated.table);
    choose_tasks(&job, mxa_parallel_workers(context), ranges);
    make_groups(&job);
    if (mxa_dtype_is_fp8(call->c.tags.dtype)) {
        const mxa_quantize_call begin = {.quantized = call->c, .batch = call->batch_c};
        mxa_quantize_begin(context, &begin);
    } else if (!call->accumulate) {
        mxa_clear_rows_behind(&call->c, &call->batch_c);
    }
    mxa_clear_rows_behind(&call->c_wide, &call->batch_c);
    if (call->norm_rstd && call->batch_c.cu_seqlens) {
        const int64_t first = job.table_c[call->batch_c.batch].token;
        memset(call->norm_rstd + first * call->norm_heads, 0,
               (size_t)((call->m - first) * call->norm_heads) * sizeof(float));
    }
    mxa_parallel_for(context, (call->n + MXA_BLOCK - 1) / MXA_BLOCK * job.size.parts, load_b, &job);
    mxa_parallel_for(context, job.group_count * job.column_groups, run_task, &job);
    return MXATTN_OK;
}
