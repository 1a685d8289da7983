/* device_args.c: see device_args.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device_args.h"

#include "mx/element.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 64, TENSORS = 16, CANARY = 256, CANARY_BYTE = 0xA5 };

/* Arrays of one call on both sides. */
typedef struct mirror {
    mxattn_backend backend;
    mxattn_status status; /* of the first step that failed */
    struct {
        void *host; /* or NULL: scratch */
        unsigned char *device;
        size_t bytes;
        int written;
    } arrays[ARRAYS];
    int count;
    mxattn_tensor tensors[TENSORS]; /* as the device's call is given them */
    int tensor_count;
} mirror;

int mxt_on_device(mxattn_backend backend)
{
    return backend == MXATTN_BACKEND_CUDA || backend == MXATTN_BACKEND_EMU_SM90 ||
           backend == MXATTN_BACKEND_EMU_SM100;
}

void (*mxt_case_leave)(void);

void mxt_leave_where_lacking(mxattn_backend backend, mxattn_status status)
{
    if (mxt_on_device(backend) && mxt_case_leave &&
        (status == MXATTN_UNSUPPORTED || status == MXATTN_ALIGNMENT)) {
        mxt_skip("%s", mxattn_last_error());
        mxt_case_leave();
    }
}

/* The device's copy of `bytes` at host, NULL for none; scratch of 0xFF where host is NULL. */
static void *place(mirror *m, const void *host, size_t bytes, int written)
{
    for (int i = 0; host && i < m->count; i++) {
        if (m->arrays[i].host == host && m->arrays[i].bytes == bytes) {
            m->arrays[i].written |= written; /* outputs may be inputs */
            return m->arrays[i].device;
        }
    }
    if (m->status || (bytes == 0 && !host) ||
        !CHECK(m->count < ARRAYS, "more than %d arrays", ARRAYS)) {
        return NULL;
    }
    unsigned char *filled = malloc(bytes + CANARY);
    void *device = NULL;
    if (host) {
        memcpy(filled, host, bytes);
    } else {
        memset(filled, 0xFF, bytes);
    }
    memset(filled + bytes, CANARY_BYTE, CANARY);
    m->status = mxattn_device_alloc(NULL, m->backend, 0, bytes + CANARY, &device);
    if (!m->status) {
        memcpy(&m->arrays[m->count].host, &host, sizeof host);
        m->arrays[m->count].device = device;
        m->arrays[m->count].bytes = bytes;
        m->arrays[m->count].written = written;
        m->count++;
        m->status = mxattn_device_copy(NULL, m->backend, 0, device, filled, bytes + CANARY);
    }
    free(filled);
    return device;
}

static const int32_t *place_i32(mirror *m, const int32_t *host, int64_t count)
{
    return host ? place(m, host, (size_t)count * sizeof *host, 0) : NULL;
}

/* Bytes from a tensor's first element to its last. */
static size_t span(const mxattn_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] <= 0) {
            return 0;
        }
        last += (t->shape[i] - 1) * t->stride[i];
    }
    return (size_t)((last + 1) * mxa_dtype_bytes(t->tags.dtype));
}

/* A batch's lengths, for what scale arrays take. */
typedef struct lengths {
    const int32_t *cu;
    int64_t batch;
} lengths;

static void place_scales(mirror *m, mxattn_tensor *t, const lengths *of, int written)
{
    const int64_t batch = t->ndim == 4 ? t->shape[0] : of->cu ? of->batch : 1;
    const int64_t tokens = t->ndim > 2 ? t->shape[t->ndim - 3] : t->shape[0];
    const int64_t heads = t->ndim > 2 ? t->shape[t->ndim - 2] : 1, dim = t->shape[t->ndim - 1];
    for (int axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        mxattn_scales *scales = &t->scales[axis];
        int64_t bytes = 0;
        if (!scales->data) {
            continue;
        }
        CHECK_STATUS(MXATTN_OK, mxattn_scales_bytes(&t->tags, (mxattn_axis)axis, scales->layout,
                                                    batch, tokens, of->cu, heads, dim, &bytes));
        scales->data = place(m, scales->data, (size_t)bytes, written);
        scales->cu_scale = place_i32(m, scales->cu_scale, batch + 1);
    }
    if (t->centre) {
        t->centre = place(m, t->centre, (size_t)(batch * heads * dim) * sizeof(float), written);
    }
}

/* The tensor on the device; NULL for NULL. */
static const mxattn_tensor *place_tensor(mirror *m, const mxattn_tensor *host, const lengths *of,
                                         int written)
{
    if (!host || !CHECK(m->tensor_count < TENSORS, "more than %d tensors", TENSORS)) {
        return NULL;
    }
    mxattn_tensor *t = &m->tensors[m->tensor_count++];
    *t = *host;
    if (t->data) {
        t->data = place(m, t->data, span(host), written);
    }
    place_scales(m, t, of, written);
    return t;
}

/* Waits, looks behind each array, copies back what the call may have written, and frees. */
static mxattn_status take(mirror *m, const uint32_t *device_status)
{
    unsigned char behind[CANARY];
    uint32_t word = 0;
    if (!m->status) {
        m->status = mxattn_device_synchronise(NULL, m->backend, 0, NULL);
    }
    if (!m->status && device_status) {
        m->status = mxattn_device_copy(NULL, m->backend, 0, &word, device_status, sizeof word);
    }
    for (int i = 0; i < m->count; i++) {
        unsigned char *end = m->arrays[i].device + m->arrays[i].bytes;
        if (!m->status) {
            m->status = mxattn_device_copy(NULL, m->backend, 0, behind, end, CANARY);
        }
        for (int n = 0; n < CANARY && !m->status; n++) {
            if (!CHECK(behind[n] == CANARY_BYTE, "byte %d behind array %d of %zu bytes is written",
                       n, i, m->arrays[i].bytes)) {
                break;
            }
        }
        if (!m->status && m->arrays[i].written && m->arrays[i].host) {
            m->status = mxattn_device_copy(NULL, m->backend, 0, m->arrays[i].host,
                                           m->arrays[i].device, m->arrays[i].bytes);
        }
        (void)mxattn_device_free(NULL, m->backend, 0, m->arrays[i].device);
    }
    if (!m->status && word) {
        m->status = mxattn_device_status_check(word);
    }
    return m->status;
}

/* ---- attention ---- */

static mxattn_attention_args place_attention(mirror *m, const mxattn_plan *plan,
                                             const mxattn_attention_args *host, int backward)
{
    mxattn_attention_args args = *host;
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_query(plan, &info));
    const lengths q = {host->cu_seqlens_q, host->batch}, k = {host->cu_seqlens_k, host->batch};
    args.q = place_tensor(m, host->q, &q, 0);
    args.k = place_tensor(m, host->k, &k, 0);
    args.v = place_tensor(m, host->v, &k, 0);
    args.q_seq = place_tensor(m, host->q_seq, &q, 0);
    args.k_seq = place_tensor(m, host->k_seq, &k, 0);
    args.v_seq = place_tensor(m, host->v_seq, &k, 0);
    args.o = place_tensor(m, host->o, &q, !backward);
    args.lse = place_tensor(m, host->lse, &q, !backward);
    args.dout = place_tensor(m, host->dout, &q, 0);
    args.dlse = place_tensor(m, host->dlse, &q, 0);
    args.dq = place_tensor(m, host->dq, &q, 1);
    args.dk = place_tensor(m, host->dk, &k, 1);
    args.dv = place_tensor(m, host->dv, &k, 1);
    const size_t heads = host->q && host->q->ndim > 1
                             ? (size_t)host->q->shape[host->q->ndim - 2] * sizeof(float)
                             : 0;
    args.sink = host->sink ? place(m, host->sink, heads, 0) : NULL;
    args.dsink = host->dsink ? place(m, host->dsink, heads, 1) : NULL;
    args.cu_seqlens_q = place_i32(m, host->cu_seqlens_q, host->batch + 1);
    args.cu_seqlens_k = place_i32(m, host->cu_seqlens_k, host->batch + 1);
    const int64_t batch = host->batch >= 0 ? host->batch : host->q ? host->q->shape[0] : 0;
    args.seqused_q = place_i32(m, host->seqused_q, batch);
    args.seqused_k = place_i32(m, host->seqused_k, batch);
    args.saved = host->saved ? place(m, host->saved, (size_t)info.saved_bytes, !backward) : NULL;
    args.workspace = place(m, NULL, host->workspace_bytes, 0);
    if (host->q && span(host->q)) { /* a call with nothing to do writes nothing */
        args.device_status = place(m, NULL, sizeof(uint32_t), 0);
    }
    return args;
}

static mxattn_status run_attention(mxattn_backend backend, const mxattn_plan *plan,
                                   const mxattn_attention_args *host, int backward)
{
    mirror m;
    memset(&m, 0, sizeof m);
    m.backend = backend;
    const mxattn_attention_args args = place_attention(&m, plan, host, backward);
    if (!m.status) {
        m.status = backward ? mxattn_attention_backward(plan, &args)
                            : mxattn_attention_forward(plan, &args);
    }
    return take(&m, args.device_status);
}

mxattn_status mxt_device_run_forward(mxattn_backend backend, const mxattn_plan *plan,
                                     const mxattn_attention_args *args)
{
    return run_attention(backend, plan, args, 0);
}

mxattn_status mxt_device_run_backward(mxattn_backend backend, const mxattn_plan *plan,
                                      const mxattn_attention_args *args)
{
    return run_attention(backend, plan, args, 1);
}

/* ---- producers ---- */

static mxattn_status run_quantize(const mxattn_context *context, const mxattn_quantize_args *host,
                                  int back)
{
    mirror m;
    mxattn_quantize_args args = *host;
    memset(&m, 0, sizeof m);
    m.backend = host->backend;
    const lengths of = {host->sequences.cu_seqlens, host->sequences.batch};
    args.wide = place_tensor(&m, host->wide, &of, back);
    args.quantized = place_tensor(&m, host->quantized, &of, !back);
    args.transposed = place_tensor(&m, host->transposed, &of, 1);
    args.sequences.cu_seqlens = place_i32(&m, of.cu, of.batch + 1);
    args.sequences.seqused = place_i32(&m, host->sequences.seqused,
                                       of.cu        ? of.batch
                                       : host->wide ? host->wide->shape[0]
                                                    : 0);
    args.device_status = place(&m, NULL, sizeof(uint32_t), 0);
    if (!m.status) {
        m.status = back ? mxattn_dequantize(context, &args) : mxattn_quantize(context, &args);
    }
    return take(&m, args.device_status);
}

mxattn_status mxt_quantize(const mxattn_context *context, const mxattn_quantize_args *args)
{
    return mxt_on_device(args->backend) ? run_quantize(context, args, 0)
                                        : mxattn_quantize(context, args);
}

mxattn_status mxt_dequantize(const mxattn_context *context, const mxattn_quantize_args *args)
{
    return mxt_on_device(args->backend) ? run_quantize(context, args, 1)
                                        : mxattn_dequantize(context, args);
}

mxattn_status mxt_states_merge(const mxattn_context *context, const mxattn_states_merge_args *host)
{
    if (!mxt_on_device(host->backend)) {
        return mxattn_states_merge(context, host);
    }
    mirror m;
    mxattn_states_merge_args args = *host;
    const lengths none = {NULL, 0};
    memset(&m, 0, sizeof m);
    m.backend = host->backend;
    args.o_a = place_tensor(&m, host->o_a, &none, 0);
    args.o_b = place_tensor(&m, host->o_b, &none, 0);
    args.lse_a = place_tensor(&m, host->lse_a, &none, 0);
    args.lse_b = place_tensor(&m, host->lse_b, &none, 0);
    args.o = place_tensor(&m, host->o, &none, 1);
    args.lse = place_tensor(&m, host->lse, &none, 1);
    if (!m.status) {
        m.status = mxattn_states_merge(context, &args);
    }
    return take(&m, NULL);
}
