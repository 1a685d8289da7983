/* validate_sequences.c: cumulative lengths and seqused, which must be right before anything is
 * addressed through them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "status.h"
#include "validate.h"

#include <stdio.h>

static mxattn_status check_offsets(const mxa_batch *batch, int64_t total, int64_t max_seqlen,
                                   const char *side)
{
    const int32_t *cu = batch->cu_seqlens;
    if (cu[0] != 0)
        return mxa_fail(MXATTN_CU_SEQLENS, "cu_seqlens%s[0] is %d; it must be 0", side, (int)cu[0]);
    for (int64_t b = 0; b < batch->batch; b++) {
        const long long next = (long long)b + 1;
        const int64_t length = (int64_t)cu[b + 1] - cu[b];
        if (length < 0)
            return mxa_fail(MXATTN_CU_SEQLENS,
                            "cu_seqlens%s[%lld] is %d; it must not be less than the entry before "
                            "it (%d)",
                            side, next, (int)cu[b + 1], (int)cu[b]);
        if (cu[b + 1] > total)
            return mxa_fail(MXATTN_CU_SEQLENS,
                            "cu_seqlens%s[%lld] is %d; it must not pass the tensor's tokens (%lld)",
                            side, next, (int)cu[b + 1], (long long)total);
        if (max_seqlen >= 0 && length > max_seqlen)
            return mxa_fail(MXATTN_CU_SEQLENS,
                            "cu_seqlens%s[%lld] is %d; sequence %lld has %lld tokens and "
                            "max_seqlen%s is %lld",
                            side, next, (int)cu[b + 1], (long long)b, (long long)length, side,
                            (long long)max_seqlen);
    }
    return MXATTN_OK;
}

mxattn_status mxa_check_batch(const mxa_batch *batch, int64_t total, int64_t max_seqlen,
                              const char *side)
{
    char name[MXA_NAME_BYTES];
    mxattn_status status = MXATTN_OK;
    if (batch->cu_seqlens) {
        mxa_name_join(name, "cu_seqlens", side);
        status = mxa_check_array(name, batch->cu_seqlens, sizeof(int32_t), 1);
        if (!status)
            status = check_offsets(batch, total, max_seqlen, side);
    }
    if (status || !batch->seqused)
        return status;
    mxa_name_join(name, "seqused", side);
    status = mxa_check_array(name, batch->seqused, sizeof(int32_t), 1);
    for (int64_t b = 0; !status && b < batch->batch; b++) {
        const int64_t length = batch->cu_seqlens
                                   ? (int64_t)batch->cu_seqlens[b + 1] - batch->cu_seqlens[b]
                                   : batch->seqlen;
        if (batch->seqused[b] < 0 || batch->seqused[b] > length)
            status = mxa_fail(MXATTN_CU_SEQLENS,
                              "seqused%s[%lld] is %d; it must lie in [0, %lld], the length of its "
                              "sequence",
                              side, (long long)b, (int)batch->seqused[b], (long long)length);
    }
    return status;
}

/* What of the lengths the host sees: host copies on a device, which may be missing. */
static mxattn_status look(const mxattn_sequences *sequences, int on_device, int64_t tokens,
                          mxa_taken_batch *taken)
{
    mxa_batch *seen = &taken->seen;
    *seen = taken->batch;
    if (!on_device)
        return mxa_check_batch(seen, tokens, -1, "");
    mxattn_status status = mxa_check_array("cu_seqlens", seen->cu_seqlens, sizeof(int32_t), 0);
    if (!status)
        status = mxa_check_array("seqused", seen->seqused, sizeof(int32_t), 0);
    taken->unseen = seen->cu_seqlens && !sequences->host_cu_seqlens;
    seen->cu_seqlens = seen->cu_seqlens ? sequences->host_cu_seqlens : NULL;
    seen->seqused = seen->seqused ? sequences->host_seqused : NULL;
    if (taken->unseen)
        *seen = (mxa_batch){.batch = 1, .seqlen = tokens};
    return status ? status : mxa_check_batch(seen, tokens, -1, "");
}

static mxattn_status take(const mxattn_sequences *sequences, int on_device, int jagged,
                          int64_t dense_batch, int64_t tokens, mxa_taken_batch *taken)
{
    mxa_batch *batch = &taken->batch;
    *taken = (mxa_taken_batch){.unseen = 0};
    *batch = (mxa_batch){.batch = dense_batch, .seqlen = tokens, .seqused = sequences->seqused};
    if (sequences->cu_seqlens && !jagged)
        return mxa_fail(MXATTN_ARGUMENT, "sequences.cu_seqlens is set; a dense (B, S, H, D) tensor "
                                         "takes none");
    if (jagged && (sequences->batch < 0 || sequences->batch > MXA_MAX_COUNT))
        return mxa_fail(MXATTN_ARGUMENT, "sequences.batch is %lld; it must be 0 to %lld",
                        (long long)sequences->batch, (long long)MXA_MAX_COUNT);
    if (jagged && !sequences->cu_seqlens && sequences->batch > 1)
        return mxa_fail(MXATTN_ARGUMENT,
                        "sequences.batch is %lld and cu_seqlens is NULL; without cu_seqlens there "
                        "is one sequence",
                        (long long)sequences->batch);
    if (sequences->cu_seqlens) {
        batch->batch = sequences->batch;
        batch->seqlen = 0;
        batch->cu_seqlens = sequences->cu_seqlens;
    }
    return look(sequences, on_device, tokens, taken);
}

mxattn_status mxa_take_sequences(const mxattn_sequences *sequences, int jagged, int64_t dense_batch,
                                 int64_t tokens, mxa_batch *batch)
{
    mxa_taken_batch taken;
    mxattn_status status = take(sequences, 0, jagged, dense_batch, tokens, &taken);
    *batch = taken.batch;
    return status;
}

mxattn_status mxa_take_sequences_of(const mxa_backend *backend, const mxattn_sequences *sequences,
                                    int jagged, int64_t dense_batch, int64_t tokens,
                                    mxa_taken_batch *taken)
{
    return take(sequences, backend->on_device, jagged, dense_batch, tokens, taken);
}
