/* fuzz_quantize.c: any data, shape and tags: every backend and ISA gives the same status, and when
 * it is 0 the same payload, scale and centre bytes and the same values back. Nothing is written
 * beyond an array's bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "input.h"

#include "fill.h"
#include "guard.h"
#include "mxattn/mxattn.h"

enum { MOST_TOKENS = 80, MOST_HEADS = 2, MOST_DIM = 72, MOST_BATCH = 3 };
enum { MOST_ELEMENTS = MOST_TOKENS * MOST_HEADS * MOST_DIM };

/* What is quantized, the same for every backend. */
typedef struct subject {
    mxattn_dtype wide_dtype;
    mxattn_tags tags;
    int64_t batch, tokens, heads, head_dim; /* tokens: of the whole batch */
    int jagged;
    int32_t cu[MOST_BATCH + 1], used[MOST_BATCH];
    int has_used;
    int present[2]; /* scale arrays, by axis */
    mxattn_scale_layout layout[2];
    float data[MOST_ELEMENTS]; /* the wide elements' bytes */
} subject;

/* What one backend made of it. */
typedef struct result {
    mxattn_status status, back_status;
    uint8_t *payload, *scales[2];
    size_t payload_bytes, scales_bytes[2];
    float *centre, *back;
    size_t centre_bytes, back_bytes;
} result;

static void take_batch(fuzz_input *input, subject *s)
{
    s->jagged = (int)fuzz_range(input, 0, 1);
    s->batch = fuzz_range(input, 1, MOST_BATCH);
    int64_t each = fuzz_range(input, 0, MOST_TOKENS / MOST_BATCH);
    for (int64_t b = 0; b < s->batch; b++) {
        int64_t length = s->jagged ? fuzz_range(input, 0, MOST_TOKENS / MOST_BATCH) : each;
        s->cu[b + 1] = s->cu[b] + (int32_t)length;
    }
    s->tokens = s->cu[s->batch];
    s->has_used = fuzz_u8(input) >= 160;
    for (int64_t b = 0; b < s->batch; b++)
        s->used[b] = (int32_t)fuzz_range(input, 0, s->cu[b + 1] - s->cu[b]);
}

static void take_subject(fuzz_input *input, subject *s)
{
    static const mxattn_dtype wide[] = {MXATTN_F32, MXATTN_BF16, MXATTN_F16};
    memset(s, 0, sizeof *s);
    s->wide_dtype = wide[fuzz_range(input, 0, 2)];
    s->tags.dtype = fuzz_range(input, 0, 3) ? MXATTN_E4M3 : MXATTN_E5M2;
    s->tags.block = (mxattn_block)fuzz_range(input, 1, 3);
    s->tags.rounding = (mxattn_rounding)fuzz_range(input, 0, 1);
    s->tags.flags = fuzz_u8(input) < 128 ? 0 : (uint32_t)fuzz_range(input, 0, 7);
    for (int axis = 0; axis < 2; axis++) {
        s->layout[axis] = (mxattn_scale_layout)fuzz_range(input, 0, 2);
        s->present[axis] = fuzz_u8(input) < 224;
    }
    s->heads = fuzz_range(input, 1, MOST_HEADS);
    s->head_dim = fuzz_range(input, 1, MOST_DIM);
    take_batch(input, s);

    int64_t count = s->tokens * s->heads * s->head_dim;
    uint8_t kind = fuzz_u8(input);
    mxt_fill_f32(s->data, s->tokens * s->heads, s->head_dim, (mxt_kind)(kind % MXT_KINDS), kind);
    size_t bytes = (size_t)count * (s->wide_dtype == MXATTN_F32 ? 4 : 2);
    fuzz_bytes(input, s->data, bytes < input->size ? bytes : input->size);
}

static mxattn_tensor view(const subject *s, mxattn_dtype dtype, void *data)
{
    mxattn_tensor tensor;
    if (s->jagged)
        mxattn_tensor_view(&tensor, dtype, data, 3,
                           (const int64_t[]){s->tokens, s->heads, s->head_dim});
    else
        mxattn_tensor_view(
            &tensor, dtype, data, 4,
            (const int64_t[]){s->batch, s->tokens / s->batch, s->heads, s->head_dim});
    return tensor;
}

static void scales_new(const subject *s, mxattn_tensor *quantized, result *r)
{
    for (int axis = 0; axis < 2; axis++) {
        int64_t bytes = 0;
        mxattn_status status =
            mxattn_scales_bytes(&s->tags, (mxattn_axis)axis, s->layout[axis], s->batch,
                                s->jagged ? 0 : s->tokens / s->batch, s->jagged ? s->cu : NULL,
                                s->heads, s->head_dim, &bytes);
        if (!s->present[axis] || status != MXATTN_OK)
            continue;
        r->scales_bytes[axis] = (size_t)bytes;
        r->scales[axis] = mxt_guard_end((size_t)bytes);
        quantized->scales[axis].data = r->scales[axis];
        quantized->scales[axis].layout = s->layout[axis];
    }
}

static result run(const subject *s, const mxattn_context *context, mxattn_backend backend)
{
    result r = {0};
    int64_t count = s->tokens * s->heads * s->head_dim;
    size_t wide_bytes = (size_t)count * (s->wide_dtype == MXATTN_F32 ? 4 : 2);
    void *input = mxt_guard_end(wide_bytes);
    memcpy(input, s->data, wide_bytes);
    mxt_guard_read_only(input);
    r.payload_bytes = (size_t)count;
    r.payload = mxt_guard_end(r.payload_bytes);
    r.centre_bytes = (size_t)(s->batch * s->heads * s->head_dim) * sizeof *r.centre;
    r.centre = mxt_guard_end(r.centre_bytes);
    r.back_bytes = (size_t)count * sizeof *r.back;
    r.back = mxt_guard_end(r.back_bytes);

    mxattn_tensor wide = view(s, s->wide_dtype, input);
    mxattn_tensor quantized = view(s, s->tags.dtype, r.payload);
    quantized.tags = s->tags;
    quantized.centre = s->tags.flags & MXATTN_CENTRED ? r.centre : NULL;
    scales_new(s, &quantized, &r);
    mxattn_quantize_args args;
    mxattn_quantize_args_init(&args);
    args.backend = backend;
    args.wide = &wide;
    args.quantized = &quantized;
    if (s->jagged) {
        args.sequences.cu_seqlens = s->cu;
        args.sequences.batch = s->batch;
    }
    args.sequences.seqused = s->has_used ? s->used : NULL;
    r.status = mxattn_quantize(context, &args);
    FUZZ_REQUIRE(r.status == MXATTN_OK || mxattn_last_error()[0], "no sentence");
    if (r.status == MXATTN_OK) {
        mxattn_tensor back = view(s, MXATTN_F32, r.back);
        args.wide = &back;
        r.back_status = mxattn_dequantize(context, &args);
    }
    mxt_guard_free(input);
    return r;
}

static void result_free(result *r)
{
    mxt_guard_free(r->payload);
    mxt_guard_free(r->scales[0]);
    mxt_guard_free(r->scales[1]);
    mxt_guard_free(r->centre);
    mxt_guard_free(r->back);
}

static void require_equal(const result *got, const result *want, const char *who)
{
    FUZZ_REQUIRE(got->status == want->status, "%s: status %d, ref %d: %s", who, got->status,
                 want->status, mxattn_last_error());
    FUZZ_REQUIRE(got->back_status == want->back_status, "%s: dequantize", who);
    FUZZ_REQUIRE(!memcmp(got->payload, want->payload, want->payload_bytes), "%s: payload", who);
    for (int axis = 0; axis < 2; axis++)
        FUZZ_REQUIRE(!want->scales[axis] ||
                         !memcmp(got->scales[axis], want->scales[axis], want->scales_bytes[axis]),
                     "%s: scales %d", who, axis);
    FUZZ_REQUIRE(!memcmp(got->centre, want->centre, want->centre_bytes), "%s: centre", who);
    FUZZ_REQUIRE(!memcmp(got->back, want->back, want->back_bytes), "%s: dequantized", who);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t masks[] = {MXATTN_ISA_PORTABLE, MXATTN_ISA_PORTABLE | MXATTN_ISA_AVX2,
                                     MXATTN_ISA_ALL};
    static mxattn_context *contexts[3];
    for (int i = 0; i < 3 && !contexts[i]; i++) {
        mxattn_context_options options;
        mxattn_context_options_init(&options);
        options.threads = 1;
        options.isa_mask = masks[i];
        FUZZ_REQUIRE(mxattn_context_create(&options, &contexts[i]) == MXATTN_OK, "context: %s",
                     mxattn_last_error());
    }
    fuzz_input input = {data, size};
    static subject s;
    take_subject(&input, &s);
    result want = run(&s, contexts[0], MXATTN_BACKEND_REF);
    for (int i = 0; i < 3; i++) {
        result got = run(&s, contexts[i], MXATTN_BACKEND_CPU);
        require_equal(&got, &want, i == 0 ? "portable" : i == 1 ? "avx2" : "all");
        result_free(&got);
    }
    result_free(&want);
    return 0;
}
