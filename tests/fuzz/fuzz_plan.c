/* fuzz_plan.c: any bytes as a problem: plan creation never crashes or hangs, every refusal has a
 * sentence, every plan answers its queries, and nothing stays allocated.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "input.h"

#include "mxattn/mxattn.h"

#include <math.h>

enum { STRUCT_BYTES = 1024, PLAN_BYTES = 65536 };

static int64_t live_allocations;

static void *counting_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    FUZZ_REQUIRE(bytes <= PLAN_BYTES, "an allocation of %zu bytes", bytes);
    void *memory = NULL;
    size_t least = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    if (posix_memalign(&memory, least, bytes) != 0)
        return NULL;
    live_allocations++;
    return memory;
}

static void counting_free(void *user, void *memory)
{
    (void)user;
    live_allocations -= memory != NULL;
    free(memory);
}

static mxattn_tags take_tags(fuzz_input *input, mxattn_tags tags)
{
    uint8_t kind = fuzz_u8(input);
    if (kind < 128) /* the default */
        return tags;
    tags.dtype = (mxattn_dtype)(kind % 8);
    tags.block = (mxattn_block)fuzz_range(input, 0, 4);
    tags.rounding = (mxattn_rounding)fuzz_range(input, 0, 2);
    tags.flags = (uint32_t)fuzz_range(input, 0, 15);
    return tags;
}

static double take_double(fuzz_input *input, double usual)
{
    double x = usual;
    if (fuzz_u8(input) >= 192)
        fuzz_bytes(input, &x, sizeof x);
    return x;
}

/* Field by field, each mostly legal: whole checks are passed, and the deep ones reached. */
static void take_problem(fuzz_input *input, mxattn_attention_problem *p)
{
    mxattn_attention_problem_init(p);
    p->backend = (mxattn_backend)fuzz_range(input, 0, 4);
    p->device = (int32_t)(fuzz_u8(input) >= 250);
    p->mode = (mxattn_mode)fuzz_range(input, 0, 2);
    p->format = (mxattn_format)fuzz_range(input, 0, 2);
    p->precision = (mxattn_precision)(fuzz_u8(input) % 64 / 21);
    p->batch = fuzz_size(input);
    p->total_q = fuzz_size(input);
    p->total_k = fuzz_size(input);
    p->max_seqlen_q = fuzz_size(input);
    p->max_seqlen_k = fuzz_size(input);
    p->kv_heads = fuzz_size(input);
    p->heads = fuzz_u8(input) < 200 ? p->kv_heads : fuzz_size(input);
    p->head_dim = fuzz_size(input);
    p->head_dim_v = fuzz_u8(input) < 200 ? 0 : fuzz_size(input);
    p->causal = (int32_t)fuzz_range(input, 0, 1);
    p->alignment = (mxattn_alignment)fuzz_range(input, 0, 2);
    p->window[0] = fuzz_u8(input) < 128 ? -1 : fuzz_size(input);
    p->window[1] = fuzz_u8(input) < 128 ? -1 : fuzz_size(input);
    p->softmax_scale = take_double(input, p->softmax_scale);
    p->softcap = take_double(input, 0);
    p->has_sink = (int32_t)fuzz_range(input, 0, 1);
    p->causal_strict = (int32_t)(fuzz_u8(input) >= 192);
    p->deterministic = (int32_t)fuzz_range(input, 0, 1);
    p->intermediates = (mxattn_intermediates)fuzz_range(input, 0, 3);
    p->dq_reduce = (mxattn_dq_reduce)fuzz_range(input, 0, 3);
    p->dq_scale_log2 = fuzz_u8(input) < 192 ? MXATTN_DQ_SCALE_AUTO : fuzz_i32(input);
    mxattn_tags *tags[] = {&p->q, &p->k,    &p->v,  &p->q_seq, &p->k_seq, &p->v_seq,
                           &p->o, &p->dout, &p->dq, &p->dk,    &p->dv};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        *tags[i] = take_tags(input, *tags[i]);
}

static void require_good_plan(const mxattn_plan *plan)
{
    mxattn_plan_info info;
    mxattn_plan_info_init(&info);
    FUZZ_REQUIRE(mxattn_plan_query(plan, &info) == MXATTN_OK, "query: %s", mxattn_last_error());
    FUZZ_REQUIRE(info.kernel_forward && info.kernel_forward[0], "no kernel name");
    FUZZ_REQUIRE(info.workspace_forward_bytes >= 0 && info.workspace_backward_bytes >= 0 &&
                     info.saved_bytes >= 0 && info.prepared_bytes >= 0,
                 "negative size");
    FUZZ_REQUIRE(info.intermediates != MXATTN_INTERMEDIATES_AUTO &&
                     info.dq_reduce != MXATTN_DQ_REDUCE_AUTO && info.backend != MXATTN_BACKEND_AUTO,
                 "a plan left a choice open");
    FUZZ_REQUIRE(isfinite(info.softmax_scale), "softmax_scale is not finite");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    mxattn_context_options options;
    mxattn_context_options_init(&options);
    options.threads = 1;
    options.alloc = counting_alloc;
    options.free = counting_free;
    mxattn_context *context = NULL;
    FUZZ_REQUIRE(mxattn_context_create(&options, &context) == MXATTN_OK, "context: %s",
                 mxattn_last_error());

    /* A caller's promise holds even here: struct_size bytes are readable. */
    _Alignas(16) unsigned char memory[STRUCT_BYTES] = {0};
    mxattn_attention_problem *problem = (void *)memory;
    uint8_t kind = fuzz_u8(&input);
    if (kind < 32) {
        fuzz_bytes(&input, memory, sizeof memory);
        if (problem->struct_size > sizeof memory)
            problem->struct_size %= sizeof memory + 1;
    } else {
        take_problem(&input, problem);
        if (kind < 40) /* a newer struct, its unknown tail zero or not */
            problem->struct_size += (size_t)fuzz_range(&input, 0, 64);
        if (kind < 36)
            memory[sizeof *problem + 3] = fuzz_u8(&input);
    }

    mxattn_plan *plan = NULL;
    mxattn_status status = mxattn_plan_create(context, problem, &plan);
    if (status == MXATTN_OK) {
        FUZZ_REQUIRE(plan != NULL, "MXATTN_OK without a plan");
        require_good_plan(plan);
    } else {
        FUZZ_REQUIRE(plan == NULL, "a plan despite %s", mxattn_status_name(status));
        FUZZ_REQUIRE(mxattn_last_error()[0], "%s without a sentence", mxattn_status_name(status));
        FUZZ_REQUIRE(strcmp(mxattn_status_name(status), "MXATTN_?") != 0, "status %d", status);
    }
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
    FUZZ_REQUIRE(live_allocations == 0, "%lld allocations left", (long long)live_allocations);
    return 0;
}
