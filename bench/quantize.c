/* quantize.c: quantization, verified, then timed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"
#include "device_time.h"
#include "error.h"
#include "fill.h"
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

static const int64_t memory_limit = (int64_t)1 << 30;

/* One copy of the buffers. */
typedef struct buffers {
    void *wide;
    uint8_t *payload, *scales[2];
} buffers;

typedef struct timed {
    const mxc_bench *bench;
    mxattn_tags tags;
    mxattn_dtype wide;
    int64_t count; /* elements */
    size_t scale_bytes[2];
    int on_device;
    buffers host;        /* on a device: what was read, and what came back */
    int32_t *cu_seqlens; /* where the sets are */
    buffers *set;
} timed;

static void quantize(const mxc_bench *b, const timed *t, const buffers *set, mxattn_backend backend)
{
    const mxc_sizes *s = b->sizes;
    mxattn_tensor wide, quantized;
    mxattn_quantize_args args;
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim, (mxattn_tags){.dtype = t->wide}, set->wide,
                   &wide);
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim, t->tags, set->payload, &quantized);
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        quantized.scales[axis].data = set->scales[axis];
    mxattn_quantize_args_init(&args);
    args.backend = backend;
    args.wide = &wide;
    args.quantized = &quantized;
    args.sequences.cu_seqlens = backend == MXATTN_BACKEND_REF ? s->cu_seqlens : t->cu_seqlens;
    args.sequences.batch = s->batch;
    mxc_need(mxattn_quantize(backend == MXATTN_BACKEND_REF ? b->checker : b->context, &args));
}

static void run(void *memory, int set)
{
    const timed *t = memory;
    quantize(t->bench, t, &t->set[set], t->bench->options->backend);
}

static size_t wide_bytes(const timed *t)
{
    return (size_t)t->count * (t->wide == MXATTN_F32 ? 4 : 2);
}

static buffers make_buffers(const timed *t)
{
    buffers set = {.payload = mxc_tool_alloc((size_t)t->count)};
    set.wide = mxc_tool_alloc(wide_bytes(t));
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (t->scale_bytes[axis])
            set.scales[axis] = mxc_tool_alloc(t->scale_bytes[axis]);
    return set;
}

static void free_buffers(const buffers *set)
{
    free(set->wide);
    free(set->payload);
    free(set->scales[MXATTN_HDIM]);
    free(set->scales[MXATTN_SEQ]);
}

static void fill(const timed *t, const buffers *set)
{
    const mxc_sizes *s = t->bench->sizes;
    float *values =
        t->wide == MXATTN_F32 ? set->wide : mxc_tool_alloc((size_t)t->count * sizeof *values);
    mxc_fill(MXC_DATA_GAUSSIAN, t->bench->options->seed, 1, s->total_q, s->heads, s->head_dim,
             values);
    if (values == set->wide)
        return;
    for (int64_t i = 0; i < t->count; i++)
        ((uint16_t *)set->wide)[i] = mxc_bf16(values[i]);
    free(values);
}

/* A copy of `from` on the device, and back. */
static buffers place_buffers(const timed *t, const buffers *from)
{
    buffers set = {.wide = mxc_device_memory(from->wide, wide_bytes(t)),
                   .payload = mxc_device_memory(NULL, (size_t)t->count)};
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (t->scale_bytes[axis])
            set.scales[axis] = mxc_device_memory(NULL, t->scale_bytes[axis]);
    return set;
}

static void fetch_buffers(const timed *t)
{
    mxc_device_fetch(t->host.payload, t->set[0].payload, (size_t)t->count);
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (t->scale_bytes[axis])
            mxc_device_fetch(t->host.scales[axis], t->set[0].scales[axis], t->scale_bytes[axis]);
}

static void release_buffers(const timed *t, const buffers *set)
{
    mxc_device_release(set->wide);
    mxc_device_release(set->payload);
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (t->scale_bytes[axis])
            mxc_device_release(set->scales[axis]);
}

/* The reference writes the same bytes. */
static void verify(const timed *t)
{
    buffers right = make_buffers(t);
    memcpy(right.wide, t->host.wide, wide_bytes(t));
    quantize(t->bench, t, &right, MXATTN_BACKEND_REF);
    int differs = memcmp(right.payload, t->host.payload, (size_t)t->count) != 0;
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++)
        if (t->scale_bytes[axis])
            differs |= memcmp(right.scales[axis], t->host.scales[axis], t->scale_bytes[axis]) != 0;
    free_buffers(&right);
    if (differs)
        mxc_die("quantized bytes differ from the reference's; nothing is timed");
}

static void set_scale_bytes(timed *t)
{
    const mxc_sizes *s = t->bench->sizes;
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        int has = t->tags.block == MXATTN_BLOCK_SQUARE ||
                  t->tags.block == (axis == MXATTN_HDIM ? MXATTN_BLOCK_ROW : MXATTN_BLOCK_COLUMN);
        int64_t bytes = 0;
        if (has)
            mxc_need(mxattn_scales_bytes(&t->tags, (mxattn_axis)axis, MXATTN_LINEAR, s->batch,
                                         s->seqlen_q, s->cu_seqlens, s->heads, s->head_dim,
                                         &bytes));
        t->scale_bytes[axis] = (size_t)bytes;
    }
}

/* All sets, with the same input; the first one's output verified. */
static int make_sets(timed *t, int64_t bytes)
{
    const mxc_sizes *s = t->bench->sizes;
    const int sets = mxc_rotation_sets(bytes, memory_limit);
    t->set = mxc_tool_alloc((size_t)sets * sizeof *t->set);
    t->host = make_buffers(t);
    fill(t, &t->host);
    t->cu_seqlens = s->cu_seqlens;
    if (t->on_device && s->cu_seqlens)
        t->cu_seqlens =
            mxc_device_memory(s->cu_seqlens, (size_t)(s->batch + 1) * sizeof *s->cu_seqlens);
    for (int i = 0; i < sets; i++) {
        if (t->on_device) {
            t->set[i] = place_buffers(t, &t->host);
        } else if (i == 0) {
            t->set[i] = t->host;
        } else {
            t->set[i] = make_buffers(t);
            memcpy(t->set[i].wide, t->host.wide, wide_bytes(t));
        }
    }
    run(t, 0);
    if (t->on_device)
        fetch_buffers(t);
    verify(t);
    return sets;
}

static void release(timed *t, int sets)
{
    for (int i = 0; i < sets; i++) {
        if (t->on_device)
            release_buffers(t, &t->set[i]);
        else
            free_buffers(&t->set[i]);
    }
    if (t->on_device) {
        free_buffers(&t->host);
        if (t->cu_seqlens)
            mxc_device_release(t->cu_seqlens);
    }
    free(t->set);
}

void mxc_bench_quantize(mxc_bench *b, mxattn_dtype wide, mxattn_block block)
{
    static const char *const blocks[] = {"none", "row", "column", "square"};
    const mxc_sizes *s = b->sizes;
    timed t = {.bench = b,
               .wide = wide,
               .tags = {.dtype = MXATTN_E4M3, .block = block, .rounding = b->options->rounding},
               .count = s->total_q * s->heads * s->head_dim,
               .on_device = mxc_bench_on_device(b->options->backend)};
    set_scale_bytes(&t);
    const int64_t bytes =
        (int64_t)wide_bytes(&t) + t.count + (int64_t)(t.scale_bytes[0] + t.scale_bytes[1]);
    const int sets = make_sets(&t, bytes);
    mxattn_attention_problem problem;
    mxattn_backend_info info;
    mxattn_backend_info_init(&info);
    mxc_options_problem(b->options, MXATTN_E4M3, &problem);
    mxc_need(mxattn_backend_query(b->context,
                                  problem.backend ? problem.backend : MXATTN_BACKEND_CPU, &info));
    mxc_bench_row row = {.op = "quantize",
                         .operands = wide == MXATTN_F32 ? "f32" : "bf16",
                         .block = blocks[block],
                         .backend = info.name,
                         .kernel = "quantize",
                         .isa = info.isa_name,
                         .bytes = (double)bytes};
    if (t.on_device) {
        row.ceiling = mxc_device_copy_ceiling();
        row.timing = mxc_device_time(run, &t, sets);
    } else {
        mxc_limit limit = mxc_copy_limit(b->threads);
        mxc_work works[2] = {{.run = run, .arg = &t, .sets = sets}, limit.work};
        mxc_time_turns(works, 2, b->min_seconds);
        row.timing = works[0].timing;
        row.ceiling = mxc_limit_ceiling(&limit, &works[1]);
        row.share = row.bytes / limit.amount * mxc_time_over(&works[1], &works[0]);
        mxc_works_free(works, 2);
        mxc_limit_free(&limit);
    }
    mxc_bench_report(b, &problem, &row);
    release(&t, sets);
}
