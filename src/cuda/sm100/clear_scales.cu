/* clear_scales.cu: scales of an FP8 O for tokens beyond seqused: 0, as for a block of zeros.
 *
 * The forward writes whole tiles of 128 rows that hold a query that counts; what a sequence has
 * storage for beyond them, tiled padding included, is written here. Payload: common/clear.cu.
 *
 * One CTA a sequence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/operand.h"
#include "cuda/dev/memory.h"
#include "cuda/sm100/forward_params.h"

MXA_DEVICE int clear_ceil(int n, int unit)
{
    return (n + unit - 1) / unit;
}

/* `rows` rows from `first` on, of `width` bytes each, of every head. */
MXA_DEVICE void clear_bytes(const mxa_sm100_clear_params *params, const mxa_sm100_out_scales *to,
                            int64_t first, int rows, int width)
{
    const int64_t of_head = (int64_t)rows * width;
    for (int64_t i = dev_thread(); i < params->heads * of_head; i += dev_threads()) {
        const int64_t head = i / of_head, row = i % of_head / width, k = i % width;
        dev_store_global_u8(
            to->data + (uint64_t)(head * to->head + (first + row) * to->row + k * to->k), 0);
    }
}

/* `tiles` units of 128 rows from `first` on, of every head; step: units from one to the next. */
MXA_DEVICE void clear_units(const mxa_sm100_clear_params *params, const mxa_sm100_out_scales *to,
                            int64_t step, int first, int tiles)
{
    const mxa_u32x4 zero = {0, 0, 0, 0};
    const int64_t of_head = (int64_t)tiles * (MXA_SM100_UNIT / 16);
    for (int64_t i = dev_thread(); i < params->heads * of_head; i += dev_threads()) {
        const int64_t head = i / of_head, tile = i % of_head / (MXA_SM100_UNIT / 16);
        const int64_t unit = head * to->head + (first + tile) * step;
        dev_store_global_u32x4(
            to->data + (uint64_t)(MXA_SM100_UNIT * unit + 16 * (i % (MXA_SM100_UNIT / 16))), zero);
    }
}

MXA_KERNEL_SMALL(mxa_sm100_clear_scales, 128, mxa_sm100_clear_params, parameters)
{
    const mxa_sm100_clear_params *params = &parameters;
    const mxa_global record = params->batch.sequences + 64 * (uint64_t)dev_block_x();
    if (dev_load_global_u32(params->batch.status)) {
        return;
    }
    const int used = dev_load_global_i32(record + 8), length = dev_load_global_i32(record + 12);
    const mxa_u32x4 rows = dev_load_global_u32x4(record + 32);
    const mxa_u32x4 numbers = dev_load_global_u32x4(record + 48);
    MXA_UNROLL
    for (int axis = 0; axis < 2; axis++) {
        const mxa_sm100_out_scales *to = &params->scales[axis];
        const int compact = to->layout == MXA_GPU_COMPACT;
        const int groups = params->head_dim / 32, width = axis && !compact ? 32 * groups : groups;
        if (to->data == 0) {
            continue;
        }
        if (to->layout == MXA_GPU_TILED) {
            const int first =
                to->cu ? dev_load_global_i32(to->cu + 4 * (uint64_t)dev_block_x()) : (int)numbers.z;
            const int done = clear_ceil(used, 128), all = clear_ceil(length, 128);
            clear_units(params, to, axis ? to->k : to->row, first / 128 + done, all - done);
        } else if (compact || axis) {
            const int done = clear_ceil(used, 32), all = clear_ceil(length, 32);
            clear_bytes(params, to, (int64_t)(int)numbers.x + done, all - done, width);
        } else {
            const int whole = clear_ceil(used, 128) * 128, done = whole < length ? whole : length;
            clear_bytes(params, to, (int64_t)(int)rows.z + done, length - done, width);
        }
    }
}
