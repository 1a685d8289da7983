/* clear.cu: rows of outputs that belong to no sequence: O (or a gradient) becomes 0, LSE -inf.
 *
 * One CTA 32 tokens, a lane each: most are inside a sequence and only looked up. WHY not a CTA a
 * token: 16,384 of them took 25 microseconds to find that there was nothing to do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/clear_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"

/* 1 when token `token` of the tensor is one that counts. */
MXA_DEVICE int clear_used(const mxa_clear_params *params, int token)
{
    mxa_global record = params->batch.sequences + (params->is_k_side ? 16 : 0);
    if (params->seqlen) {
        int used = dev_load_global_i32(record + 64 * (uint64_t)(token / params->seqlen) + 8);
        return token % params->seqlen < used;
    }
    /* The last sequence that starts at or before the token. */
    int low = 0, high = params->batch.batch - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (dev_load_global_i32(record + 64 * (uint64_t)middle + 4) <= token) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    record += 64 * (uint64_t)low;
    return token - dev_load_global_i32(record + 4) < dev_load_global_i32(record + 8);
}

/* All threads. */
MXA_DEVICE void clear_token(const mxa_clear_params *params, int token)
{
    int64_t outer = params->seqlen ? token / params->seqlen : 0;
    int64_t position = params->seqlen ? token % params->seqlen : token;
    for (int i = dev_thread(); i < params->heads * params->head_dim; i += dev_threads()) {
        uint64_t at = (uint64_t)(outer * params->o_batch + position * params->o_token +
                                 i / params->head_dim * params->o_head + i % params->head_dim);
        if (params->o_type == MXA_GPU_F32) {
            dev_store_global_u32(params->o + 4 * at, 0);
        } else if (params->o_type >= MXA_GPU_E4M3) {
            dev_store_global_u8(params->o + at, 0);
        } else {
            dev_store_global_u16(params->o + 2 * at, 0);
        }
    }
    for (int h = dev_thread(); params->lse && h < params->heads; h += dev_threads()) {
        uint64_t at = (uint64_t)(outer * params->lse_batch + position * params->lse_token +
                                 h * params->lse_head);
        dev_store_global_u32(params->lse + 4 * at, 0xFF800000u);
    }
}

/* The tokens of one warp's lanes; the CTA's threads clear each of them together. */
MXA_DEVICE void clear_tokens(const mxa_clear_params *params)
{
    const int first = MXA_CLEAR_TOKENS * dev_block_x(), token = first + (dev_thread() & 31);
    uint32_t bits = warp_ballot(token < params->tokens && !clear_used(params, token));
    for (int i = 0; bits; i++, bits >>= 1) {
        if (bits & 1) {
            clear_token(params, first + i);
        }
    }
}

/* Launched early or not: the kernel before makes nothing that this one reads, and is waited for at
 * the end, for the sake of those that come after. */
MXA_KERNEL_SMALL(mxa_clear_rows, 128, mxa_clear_params, parameters)
{
    const mxa_clear_params *params = &parameters;
    grid_dependency_launch();
    const uint32_t status = dev_load_global_u32(params->batch.status);
    if (params->caller_status && dev_block_x() == 0 && dev_thread() == 0) {
        dev_store_global_u32(params->caller_status, status);
    }
    if (!status) {
        clear_tokens(params);
    }
    grid_dependency_wait();
}
