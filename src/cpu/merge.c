/* merge.c: merging two attention results over disjoint sets of keys.
 *
 * Meaning: src/ref/states_merge.c, equalled bit for bit: float64, the larger LSE taken out first,
 * so that nothing overflows; a side of weight 0 (LSE -inf, or far below) is not read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/fpenv.h"
#include "cpu/operations.h"
#include "cpu/parallel.h"
#include "mx/element.h"

#include <math.h>
#include <string.h>

enum { TASK_ROWS = 64, CHUNK = 64 };

typedef struct row {
    int64_t b, s, head;
} row;

typedef struct shares {
    double a, b, lse;
} shares;

static int64_t o_index(const mxattn_tensor *o, row r)
{
    return r.b * o->stride[0] + r.s * o->stride[1] + r.head * o->stride[2];
}

static float *lse_at(const mxattn_tensor *lse, row r)
{
    return (float *)lse->data + r.b * lse->stride[0] + r.head * lse->stride[1] +
           r.s * lse->stride[2];
}

static shares shares_of(double lse_a, double lse_b)
{
    if (lse_b == -INFINITY && !isnan(lse_a)) {
        return (shares){lse_a == -INFINITY ? 0 : 1, 0, lse_a};
    }
    if (lse_a == -INFINITY && !isnan(lse_b)) {
        return (shares){0, 1, lse_b};
    }
    double most = lse_a > lse_b ? lse_a : lse_b;
    double a = exp(lse_a - most), b = exp(lse_b - most);
    return (shares){a / (a + b), b / (a + b), most + log(a + b)};
}

/* sum += share * elements [index, index + count) */
static void add_share(double sum[CHUNK], double share, const mxattn_tensor *o, int64_t index,
                      int64_t count)
{
    if (share == 0) {
        return;
    }
    float x[CHUNK];
    if (o->tags.dtype == MXATTN_F32) {
        memcpy(x, (const float *)o->data + index, (size_t)count * sizeof x[0]);
    } else {
        for (int64_t i = 0; i < count; i++) {
            x[i] = mxa_load(o->data, o->tags.dtype, index + i);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        sum[i] += share * (double)x[i];
    }
}

static void merge_row(const mxa_merge_call *call, row r)
{
    shares share = shares_of((double)*lse_at(&call->lse_a, r), (double)*lse_at(&call->lse_b, r));
    int64_t a = o_index(&call->o_a, r), b = o_index(&call->o_b, r), to = o_index(&call->o, r);
    int64_t dims = call->o.shape[3];
    for (int64_t d = 0; d < dims; d += CHUNK) {
        int64_t count = dims - d < CHUNK ? dims - d : CHUNK;
        double sum[CHUNK] = {0};
        add_share(sum, share.a, &call->o_a, a + d, count);
        add_share(sum, share.b, &call->o_b, b + d, count);
        for (int64_t i = 0; i < count; i++) {
            mxa_store(call->o.data, call->o.tags.dtype, to + d + i, (float)sum[i]);
        }
    }
    if (call->lse.ndim) {
        *lse_at(&call->lse, r) = (float)share.lse;
    }
}

static void merge_task(void *arg, int64_t task, int32_t worker)
{
    (void)worker;
    const mxa_merge_call *call = arg;
    int64_t tokens = call->o.shape[1], heads = call->o.shape[2];
    int64_t end = call->o.shape[0] * tokens * heads;
    mxa_fpenv before = mxa_fpenv_enter();
    for (int64_t i = task * TASK_ROWS; i < (task + 1) * TASK_ROWS && i < end; i++) {
        merge_row(call, (row){i / heads / tokens, i / heads % tokens, i % heads});
    }
    mxa_fpenv_leave(before);
}

mxattn_status mxa_cpu_states_merge(const mxattn_context *context, const mxa_merge_call *call)
{
    mxa_merge_call copy = *call;
    int64_t rows = call->o.shape[0] * call->o.shape[1] * call->o.shape[2];
    mxa_parallel_for(context, (rows + TASK_ROWS - 1) / TASK_ROWS, merge_task, &copy);
    return MXATTN_OK;
}
