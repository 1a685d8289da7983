/* prepare_finish.h: what follows prepare_bf16.cu and prepare_codes.cu: the records, and the copy of
 * v again, less its mean, where a column of its (sequence, head) leans.
 *
 * A CTA takes every n-th item of 128 tokens of a head; the last one of a (sequence, head) corrects
 * its means and makes its records.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_FINISH_H
#define MXA_CUDA_SM90_PREPARE_FINISH_H

#include "cuda/sm90/prepare_columns.h"
#include "cuda/sm90/prepare_records.h"

/* An item of v again, less its mean; 1: it was its pair's last. Each kernel has its own. */
MXA_DEVICE int values_again(const mxa_prepare_all_params *all, mxa_shared shared, group_shape s,
                            const prepare_group *g, int head, int item);

/* All records but those of heads that lean. */
MXA_DEVICE void records_all(const mxa_prepare_finish_params *p, group_shape s, mxa_global leaning)
{
    const int groups = p->all.v.groups, rows = (groups + 31) / 32, step = dev_grid_x();
    MXA_NO_UNROLL
    for (int i = dev_block_x() + step * (dev_thread() / 32); i < rows * p->all.v.heads;
         i += step * group_threads(s) / 32) {
        const int head = i / rows;
        records_make(&p->records, head, 32 * (int64_t)(i - head * rows), groups, leaning);
    }
}

/* Those of one sequence and head. */
MXA_DEVICE void records_of_pair(const mxa_prepare_finish_params *p, group_shape s, int sequence,
                                int head)
{
    const mxa_gpu_batch *batch = &p->all.v.batch;
    int used, end = p->all.v.groups;
    const int first = sequence_row(batch, sequence, &used) / MXA_PREPARE_GROUP;
    if (sequence + 1 < batch->batch) {
        end = sequence_row(batch, sequence + 1, &used) / MXA_PREPARE_GROUP;
    }
    MXA_NO_UNROLL
    for (int i = first + 32 * (dev_thread() / 32); i < end; i += group_threads(s)) {
        records_make(&p->records, head, i, end, 0);
    }
}

MXA_DEVICE void prepare_finish(const mxa_prepare_finish_params *p, group_shape s)
{
    const mxa_prepare_params *v = &p->all.v;
    const int items = v->groups / 4 * v->heads;
    grid_dependency_wait();
    if (v->batch.status && dev_load_global_u32(v->batch.status)) {
        return;
    }
    const int some = dev_load_global_u32(p->all.leaning) != 0;
    records_all(p, s, some ? p->all.sums_made : 0);
    MXA_NO_UNROLL
    for (int i = dev_block_x(); some && i < items; i += dev_grid_x()) {
        const int item = i / v->heads, head = i - item * v->heads, number = group_number(s);
        prepare_group g;
        group_find(v, 4 * item + number, number, &g);
        const int sequence = g.place.sequence;
        if (pair_leans(p->all.sums_made, (uint64_t)(sequence * v->heads + head), g.place.used) &&
            values_again(&p->all, dev_shared(), s, &g, head, item)) {
            records_of_pair(p, s, sequence, head);
        }
        cta_sync();
    }
}

#define PREPARE_FINISH(name, dims, each, halves, ctas)                                             \
    MXA_KERNEL_MANY(name, 128 * (halves), ctas, mxa_prepare_finish_params, parameters)             \
    {                                                                                              \
        const group_shape shape = {dims, each, halves};                                            \
        prepare_finish(&parameters, shape);                                                        \
    }

#endif
