/* prepare_all.cu: Hopper's private copies of BF16 v, and of q and k where prepare_rows.cu does not
 * make them, for head dims of 64, 128 and 256; what follows them; and again of an E4M3 v that
 * leans.
 *
 * Formula and layouts: sm90/forward_params.h, docs/kernels/hopper_preparation.md. The bytes are
 * those of prepare.cu, which takes any operands.
 *
 * A CTA takes one item, 128 tokens of one head:
 *   sums     columns of v added up; the last item of a (sequence, head) makes the mean
 *   values   v's copy, once the mean is there
 *   q, k     the copy of q or k
 * Items are numbered kv head by kv head, sums of a head before the values of the head before it, so
 * that v is read the second time while L2 still holds it. A CTA draws its number when it starts,
 * and waits for lower numbers only: those have all started, so it cannot wait for ever.
 *
 * A warp takes two blocks of 32 tokens by 32 dims. Lane 4q+j has dims 8j.. of tokens t + {0, 1, 8,
 * 9}, t = 16*(q/4) + 2*(q%4): a quad's codes of one dim are a word of v's copy. Values stay packed
 * as they were read and are widened whenever they are looked at. WHY: 128 bytes of loads in flight
 * a thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/cluster.h"
#include "cuda/sm90/prepare_records.h"
#include "cuda/sm90/prepare_rows_item.h"
#include "cuda/sm90/prepare_values_item.h"

/* What item `number` is, and where, into shared memory: for each kv head (or `together`) sums,
 * values of the head before (its own where v has no mean), q, k. One thread. */
MXA_DEVICE void item_find(const mxa_prepare_all_params *all, mxa_shared to, int number)
{
    const int has_mean = all->v.mean != 0, heads = all->v.heads, group = all->q.heads / heads;
    const int side = all->only_v ? all->together : 1; /* kv heads at a time */
    const int chunks = all->v.groups / 4 * side, q_items = (all->q.groups + 3) / 4;
    const int sums = has_mean ? chunks : 0;
    const int each = sums + chunks + (all->only_v ? 0 : group * q_items + chunks);
    int head = number / each * side, item = number - number / each * each;
    int kind = ITEM_SUMS;
    if (item >= sums) {
        item -= sums;
        kind = ITEM_VALUES;
        if (item < chunks) {
            head -= has_mean ? side : 0;
        } else if (item < chunks + group * q_items) {
            kind = ITEM_Q;
            item -= chunks;
            head = head * group + item / q_items;
            item %= q_items;
        } else {
            kind = ITEM_K;
            item -= chunks + group * q_items;
        }
    }
    if (kind <= ITEM_VALUES) {
        head += item % side;
        item /= side;
    }
    if (head < 0 || (kind <= ITEM_VALUES && head >= heads)) {
        kind = ITEM_NONE; /* the first head has no head before it, the last none behind */
    }
    mxa_u32x4 words = {(uint32_t)kind, (uint32_t)head, (uint32_t)item, 0};
    dev_store_shared_u32x4(to, words);
    if (kind < ITEM_NONE) {
        load_place place;
        load_find(&all->q.batch, kind != ITEM_Q, 128 * item, &place);
        place_store(to + 16, &place);
    }
}

MXA_DEVICE void prepare_all(const mxa_prepare_all_params *all, int dims)
{
    const mxa_shared shared = dev_shared(), at = shared + AT_ITEM;
    const mxa_gpu_batch *batch = &all->q.batch;
    grid_dependency_wait();
    grid_dependency_launch();
    if (batch->status && dev_load_global_u32(batch->status)) {
        return;
    }
    if (dev_thread_again() == 0) {
        item_find(all, at, (int)dev_fetch_add_global_u32(all->items_begun, 1));
    }
    cta_sync();
    const mxa_u32x4 words = dev_load_shared_u32x4(at);
    const int kind = (int)words.x, head = (int)words.y, item = (int)words.z;
    if (kind == ITEM_SUMS) {
        sums_item(all, shared, at + 16, dims, head, item);
    } else if (kind == ITEM_VALUES) {
        values_item(all, shared, at + 16, MXA_GPU_BF16, dims, head, item);
    } else if (kind != ITEM_NONE) {
        rows_item(kind == ITEM_Q ? &all->q : &all->k, shared, at + 16, dims, head, item);
    }
}

#define PREPARE_ALL(name, dims, ctas)                                                              \
    MXA_KERNEL_MANY(name, 2 * (dims), ctas, mxa_prepare_all_params, parameters)                    \
    {                                                                                              \
        prepare_all(&parameters, dims);                                                            \
    }

PREPARE_ALL(mxa_sm90_prepare_bf16_d64, 64, 8)
PREPARE_ALL(mxa_sm90_prepare_bf16_d128, 128, 4)
PREPARE_ALL(mxa_sm90_prepare_bf16_d256, 256, 1)

/* What a BF16 v's copy is off is taken from the means. A CTA takes every n-th (sequence, head). */
MXA_DEVICE void means_correct(const mxa_prepare_params *v, int dims)
{
    const int pairs = v->batch.batch * v->heads, d = dev_thread_again();
    MXA_NO_UNROLL
    for (int pair = dev_block_x(); pair < pairs; pair += dev_grid_x()) {
        int used;
        const int sequence = pair / v->heads, head = pair - sequence * v->heads;
        const int row = sequence_row(&v->batch, sequence, &used);
        const float sum = column_sum(v, dev_shared(), dims, head, row / MXA_PREPARE_CHUNK,
                                     (used + MXA_PREPARE_CHUNK - 1) / MXA_PREPARE_CHUNK);
        const mxa_global to = v->mean + 4 * ((uint64_t)pair * (uint64_t)dims + (uint64_t)d);
        if (d < dims) {
            dev_store_global_f32(
                to, column_correction(dev_load_global_f32(to), column_mean(sum, used)));
        }
    }
}

/* After a BF16 v's copy: its means corrected, and the records. */
MXA_DEVICE void prepare_finish(const mxa_prepare_finish_params *p, int dims)
{
    const mxa_prepare_params *v = &p->all.v;
    const int rows = (v->groups + 31) / 32, warps = dims / 16;
    grid_dependency_wait();
    if (v->batch.status && dev_load_global_u32(v->batch.status)) {
        return;
    }
    means_correct(v, dims);
    MXA_NO_UNROLL
    for (int i = dev_block_x() + dev_grid_x() * (dev_thread() / 32); i < rows * v->heads;
         i += warps * dev_grid_x()) {
        const int head = i / rows;
        records_make(&p->records, head, 32 * (int64_t)(i - head * rows), v->groups);
    }
}

#define PREPARE_FINISH(name, dims, ctas)                                                           \
    MXA_KERNEL_MANY(name, 2 * (dims), ctas, mxa_prepare_finish_params, parameters)                 \
    {                                                                                              \
        prepare_finish(&parameters, dims);                                                         \
    }

PREPARE_FINISH(mxa_sm90_prepare_finish_d64, 64, 8)
PREPARE_FINISH(mxa_sm90_prepare_finish_d128, 128, 4)
PREPARE_FINISH(mxa_sm90_prepare_finish_d256, 256, 2)

/* After prepare_codes.cu: an E4M3 v again, where a column of its (sequence, head) leans. A CTA
 * takes every n-th item of 128 tokens, heads fastest. */
MXA_DEVICE void prepare_leaning(const mxa_prepare_all_params *all, int dims)
{
    const mxa_shared shared = dev_shared(), at = shared + AT_ITEM;
    const int heads = all->v.heads, items = all->v.groups / 4 * heads;
    grid_dependency_launch();
    grid_dependency_wait();
    if ((all->v.batch.status && dev_load_global_u32(all->v.batch.status)) ||
        !dev_load_global_u32(all->leaning)) {
        return;
    }
    MXA_NO_UNROLL
    for (int i = dev_block_x(); i < items; i += dev_grid_x()) {
        const int item = i / heads, head = i - item * heads;
        cta_sync();
        if (dev_thread_again() == 0) {
            load_place place;
            load_find(&all->v.batch, 1, MXA_PREPARE_CHUNK * item, &place);
            place_store(at + 16, &place);
        }
        cta_sync();
        const values_place place = values_find(&all->v, at + 16, head);
        if (dev_load_global_u32(all->sums_made + 4 * (uint64_t)place.pair) > place.chunks) {
            values_item(all, shared, at + 16, MXA_GPU_E4M3, dims, head, item);
        }
    }
}

#define PREPARE_LEANING(name, dims, ctas)                                                          \
    MXA_KERNEL_MANY(name, 2 * (dims), ctas, mxa_prepare_all_params, parameters)                    \
    {                                                                                              \
        prepare_leaning(&parameters, dims);                                                        \
    }

PREPARE_LEANING(mxa_sm90_prepare_leaning_d64, 64, 4)
PREPARE_LEANING(mxa_sm90_prepare_leaning_d128, 128, 2)
PREPARE_LEANING(mxa_sm90_prepare_leaning_d256, 256, 1)
