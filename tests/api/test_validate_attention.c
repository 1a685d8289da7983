/* test_validate_attention.c: every rule of a run: one argument spoilt, one status, one sentence, no
 * output touched.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "report.h"

#include <string.h>

typedef enum { FORWARD, BACKWARD } direction;

static mxt_attention_call call;
static mxattn_format format = MXATTN_DENSE;

static mxattn_status run(direction which)
{
    mxattn_plan *plan = NULL;
    mxattn_status status = mxattn_plan_create(NULL, &call.problem, &plan);
    if (!status)
        status = which == FORWARD ? mxattn_attention_forward(plan, &call.args)
                                  : mxattn_attention_backward(plan, &call.args);
    mxattn_plan_destroy(plan);
    return status;
}

static void refused(direction which, mxattn_status wanted, const char *needle, const char *rule,
                    const char *change)
{
    mxt_case("%s %s: %s", format == MXATTN_JAGGED ? "jagged" : "dense",
             which == FORWARD ? "forward" : "backward", change);
    const mxattn_status status = run(which);
    CHECK(status == wanted, "status is %s, not %s; \"%s\"", mxattn_status_name(status),
          mxattn_status_name(wanted), mxattn_last_error());
    CHECK(strstr(mxattn_last_error(), needle) && strstr(mxattn_last_error(), rule),
          "\"%s\" lacks \"%s\" or \"%s\"", mxattn_last_error(), needle, rule);
    CHECK(mxt_attention_call_untouched(&call), "an output was written");
    mxt_attention_call_free(&call);
}

static void accepted(direction which, const char *change)
{
    mxt_case("%s %s: %s", format == MXATTN_JAGGED ? "jagged" : "dense",
             which == FORWARD ? "forward" : "backward", change);
    const mxattn_status status = run(which);
    CHECK(status == MXATTN_OK, "status is %s: %s", mxattn_status_name(status), mxattn_last_error());
    mxt_attention_call_free(&call);
}

#define REFUSED(which, wanted, needle, rule, ...)                                                  \
    do {                                                                                           \
        mxt_attention_call_init(&call, MXATTN_BACKEND_REF, format);                                \
        __VA_ARGS__;                                                                               \
        refused(which, wanted, needle, rule, #__VA_ARGS__);                                        \
    } while (0)

#define ACCEPTED(which, ...)                                                                       \
    do {                                                                                           \
        mxt_attention_call_init(&call, MXATTN_BACKEND_REF, format);                                \
        __VA_ARGS__;                                                                               \
        accepted(which, #__VA_ARGS__);                                                             \
    } while (0)

static void test_presence(void)
{
    REFUSED(FORWARD, MXATTN_ARGUMENT, "q is NULL", "required", call.args.q = NULL);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "v is NULL", "required", call.args.v = NULL);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "o is NULL", "required", call.args.o = NULL);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "k.data is NULL", "required", call.k.data = NULL);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "q.scales holds no data", "scale array",
            call.q.scales[0].data = NULL);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "sink is NULL", "required", call.problem.has_sink = 1);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "sink is set", "has_sink is 0", call.args.sink = call.sink);
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "dsink is set", "has_sink is 0",
            call.args.dsink = call.dsink);
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "dout is NULL", "required", call.args.dout = NULL);
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "dk is NULL", "required", call.args.dk = NULL);
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "lse is NULL", "without saved", call.args.lse = NULL);
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "o is NULL", "required", call.args.o = NULL);
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "mode is INFERENCE", "TRAINING",
            call.problem.mode = MXATTN_INFERENCE);
    ACCEPTED(FORWARD, call.args.lse = NULL);
    ACCEPTED(BACKWARD, call.args.dlse = NULL);
}

static void test_shapes(void)
{
    REFUSED(FORWARD, MXATTN_SHAPE, "q.ndim is 3", "must be 4", call.q.ndim = 3);
    REFUSED(FORWARD, MXATTN_SHAPE, "q.shape[1] is 41", "max_seqlen_q is 40", call.q.shape[1] = 41);
    REFUSED(FORWARD, MXATTN_SHAPE, "q.shape[0] is 3", "the plan's batch, 2", call.q.shape[0] = 3);
    REFUSED(FORWARD, MXATTN_SHAPE, "k.shape[0] is 1", "must be 2", call.k.shape[0] = 1);
    REFUSED(FORWARD, MXATTN_SHAPE, "k.shape[2] is 4", "must be 2", call.k.shape[2] = 4);
    REFUSED(FORWARD, MXATTN_SHAPE, "v.shape[1] is 69", "must be 70", call.v.shape[1] = 69);
    REFUSED(FORWARD, MXATTN_SHAPE, "v.shape[3] is 32", "must be 16", call.v.shape[3] = 32);
    REFUSED(FORWARD, MXATTN_SHAPE, "o.shape[3] is 32", "must be 16", call.o.shape[3] = 32);
    REFUSED(FORWARD, MXATTN_SHAPE, "q.shape[1] is -1", "negative", call.q.shape[1] = -1);
    REFUSED(FORWARD, MXATTN_SHAPE, "lse.shape[1] is 40", "(B, H, S)",
            (call.lse.shape[1] = 40, call.lse.shape[2] = 4));
    REFUSED(FORWARD, MXATTN_SHAPE, "args.batch is 1", "q.shape[0] says 2", call.args.batch = 1);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "cu_seqlens_q is set", "dense",
            call.args.cu_seqlens_q = call.cu_q);
    REFUSED(BACKWARD, MXATTN_SHAPE, "dq.shape[2] is 2", "must be 4", call.dq.shape[2] = 2);
    REFUSED(BACKWARD, MXATTN_SHAPE, "dlse.ndim is 2", "must be 3", call.dlse.ndim = 2);
    ACCEPTED(FORWARD, call.args.batch = 2);
}

static void test_tags(void)
{
    REFUSED(FORWARD, MXATTN_DTYPE, "q.dtype is e5m2", "takes e4m3",
            call.q.tags.dtype = MXATTN_E5M2);
    REFUSED(FORWARD, MXATTN_LAYOUT, "k.block is row", "takes square",
            call.k.tags.block = MXATTN_BLOCK_ROW);
    REFUSED(FORWARD, MXATTN_LAYOUT, "v.rounding is 1", "takes 0",
            call.v.tags.rounding = MXATTN_FLOOR);
    REFUSED(FORWARD, MXATTN_LAYOUT, "v.flags is 0x1", "takes 0x0",
            call.v.tags.flags = MXATTN_FOLDED);
    REFUSED(FORWARD, MXATTN_DTYPE, "o.dtype is f32", "takes bf16", call.o.tags.dtype = MXATTN_F32);
    REFUSED(FORWARD, MXATTN_DTYPE, "lse.dtype is f16", "takes f32",
            call.lse.tags.dtype = MXATTN_F16);
    REFUSED(FORWARD, MXATTN_LAYOUT, "v.centre is set", "MXATTN_CENTRED", call.v.centre = call.sink);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "v.centre is NULL", "required",
            call.problem.v.flags = call.v.tags.flags = MXATTN_CENTRED);
    REFUSED(FORWARD, MXATTN_LAYOUT, "o.scales is set", "not block-scaled",
            call.o.scales[0].data = call.q.scales[0].data);
}

static void test_strides(void)
{
    /* Case B33: the last dimension's stride. */
    REFUSED(FORWARD, MXATTN_LAYOUT, "v.stride[3] is 70", "stride is 1", call.v.stride[3] = 70);
    REFUSED(FORWARD, MXATTN_LAYOUT, "q.stride[1] is -128", "negative", call.q.stride[1] = -128);
    REFUSED(FORWARD, MXATTN_LAYOUT, "k.stride[0]", "64-bit", call.k.stride[0] = INT64_MAX);
    REFUSED(FORWARD, MXATTN_LAYOUT, "o.stride[1] is 32", "overlap", call.o.stride[1] = 32);
    REFUSED(FORWARD, MXATTN_LAYOUT, "o.stride[0] is 0", "overlap", call.o.stride[0] = 0);
    REFUSED(FORWARD, MXATTN_LAYOUT, "lse.stride[2] is 0", "overlap", call.lse.stride[2] = 0);
    REFUSED(BACKWARD, MXATTN_LAYOUT, "dv.stride[2] is 8", "overlap", call.dv.stride[2] = 8);
    ACCEPTED(FORWARD, call.q.stride[0] = 0);
    /* LSE as (S, H) rows: any strides. */
    ACCEPTED(FORWARD, (call.lse.stride[1] = 1, call.lse.stride[2] = 4));
    ACCEPTED(FORWARD, (call.problem.batch = 2,
                       call.q.shape[0] = call.k.shape[0] = call.v.shape[0] = call.o.shape[0] =
                           call.lse.shape[0] = 1,
                       call.o.stride[0] = -7));
}

static void test_scales(void)
{
    REFUSED(FORWARD, MXATTN_LAYOUT, "q.scales[hdim].layout is 3", "mxattn_scale_layout",
            call.q.scales[0].layout = (mxattn_scale_layout)3);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "q.scales[hdim].reserved is 1", "must be 0",
            call.q.scales[0].reserved = 1);
    REFUSED(FORWARD, MXATTN_LAYOUT, "q.scales[hdim].strides[1] is -4", "negative",
            call.q.scales[0].stride_row = -4);
    REFUSED(FORWARD, MXATTN_LAYOUT, "q.scales[hdim].cu_scale is set", "linear",
            call.q.scales[0].cu_scale = call.cu_q);
    REFUSED(FORWARD, MXATTN_LAYOUT, "k.scales[hdim].cu_scale[1] is 3", "multiple of 128",
            (call.k.scales[0].layout = MXATTN_TILED, call.k.scales[0].cu_scale = call.cu_k));
    REFUSED(FORWARD, MXATTN_LAYOUT, "q.scales[seq] is a linear array", "row blocks",
            (call.problem.q.block = call.q.tags.block = MXATTN_BLOCK_ROW,
             call.q.scales[1] = call.q.scales[0]));
    REFUSED(FORWARD, MXATTN_LAYOUT, "k.scales[hdim] is a compact array", "row blocks",
            (call.problem.k.block = call.k.tags.block = MXATTN_BLOCK_ROW,
             call.k.scales[0].layout = MXATTN_COMPACT));
    ACCEPTED(FORWARD, call.q.scales[0].layout = MXATTN_COMPACT);
}

static void test_memory(void)
{
    REFUSED(FORWARD, MXATTN_WORKSPACE, "workspace is NULL", "the plan needs",
            call.args.workspace = NULL);
    REFUSED(FORWARD, MXATTN_WORKSPACE, "workspace_bytes is 7", "the plan needs",
            call.args.workspace_bytes = 7);
    REFUSED(BACKWARD, MXATTN_ALIGNMENT, "workspace is 0x", "multiple of 256",
            (call.args.workspace = (char *)call.workspace + 64, call.args.workspace_bytes -= 64));
    REFUSED(FORWARD, MXATTN_ALIGNMENT, "o.data is 0x", "multiple of 2",
            call.o.data = (char *)call.o.data + 1);
    REFUSED(FORWARD, MXATTN_ALIGNMENT, "saved is 0x", "multiple of 256",
            call.args.saved = (char *)call.workspace + 8);
    REFUSED(BACKWARD, MXATTN_ALIGNMENT, "dsink is 0x", "multiple of 4",
            (call.problem.has_sink = 1, call.args.sink = call.sink,
             call.args.dsink = (float *)((char *)call.dsink + 1)));
    REFUSED(FORWARD, MXATTN_WORKSPACE, "saved is NULL", "e4m3",
            (call.problem.o.dtype = call.o.tags.dtype = MXATTN_E4M3,
             call.problem.o.block = call.o.tags.block = MXATTN_BLOCK_ROW,
             call.o.scales[0].data = call.q.scales[0].data));
    REFUSED(BACKWARD, MXATTN_WORKSPACE, "saved is NULL", "e4m3",
            (call.problem.o.dtype = MXATTN_E4M3, call.problem.o.block = MXATTN_BLOCK_ROW));
}

/* A row-block q with a column partner: read by backward, not by forward. */
static void pair(mxattn_tensor *q_seq)
{
    call.problem.q.block = call.q.tags.block = MXATTN_BLOCK_ROW;
    call.problem.q_seq = call.problem.q;
    call.problem.q_seq.block = MXATTN_BLOCK_COLUMN;
    *q_seq = call.q;
    q_seq->tags.block = MXATTN_BLOCK_COLUMN;
    q_seq->scales[MXATTN_SEQ] = q_seq->scales[MXATTN_HDIM];
    q_seq->scales[MXATTN_SEQ].data = call.workspace; /* bytes enough */
    q_seq->scales[MXATTN_HDIM].data = NULL;
    call.args.q_seq = q_seq;
}

static void test_partners(void)
{
    mxattn_tensor q_seq;
    ACCEPTED(FORWARD, (pair(&q_seq), call.args.q_seq = NULL));
    REFUSED(BACKWARD, MXATTN_ARGUMENT, "q_seq is NULL", "required",
            (pair(&q_seq), call.args.q_seq = NULL));
    REFUSED(BACKWARD, MXATTN_LAYOUT, "q_seq.block is row", "takes column",
            (pair(&q_seq), q_seq.tags.block = MXATTN_BLOCK_ROW));
    REFUSED(BACKWARD, MXATTN_LAYOUT, "q_seq.scales[hdim] is a linear array", "column blocks",
            (pair(&q_seq), q_seq.scales[MXATTN_HDIM] = q_seq.scales[MXATTN_SEQ]));
}

/* Where everything is checked on the host, the device status word says so. */
static void test_device_status(void)
{
    uint32_t word = 7;
    ACCEPTED(FORWARD, call.args.device_status = &word);
    CHECK(word == 0, "the word is %u after a run", (unsigned)word);
    word = 7;
    REFUSED(FORWARD, MXATTN_ARGUMENT, "q is NULL", "required",
            (call.args.device_status = &word, call.args.q = NULL));
    CHECK(word == 7, "a refused call wrote the word");
    REFUSED(FORWARD, MXATTN_ALIGNMENT, "device_status is 0x", "multiple of 4",
            call.args.device_status = (uint32_t *)((char *)call.workspace + 2));
}

/* Backends that want no prepared copies need none made. */
static void test_prepare(void)
{
    mxattn_plan *plan = NULL;
    mxt_attention_call_init(&call, MXATTN_BACKEND_REF, format);
    mxt_case("prepare");
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &call.problem, &plan));
    CHECK_STATUS(MXATTN_OK, mxattn_prepare(plan, &call.args));
    call.args.v = NULL;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_prepare(plan, &call.args));
    mxattn_plan_destroy(plan);
    mxt_attention_call_free(&call);
}

static void test_jagged(void)
{
    format = MXATTN_JAGGED;
    /* Cases B28, B36, B37, B104: offsets. */
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "cu_seqlens_q[0] is 1", "must be 0", call.cu_q[0] = 1);
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "cu_seqlens_k[2] is 2", "the entry before it (3)",
            call.cu_k[2] = 2);
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "cu_seqlens_q[3] is 43", "tensor's tokens (42)",
            (call.cu_q[3] = 43, call.problem.max_seqlen_q = 50));
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "cu_seqlens_q[3] is -5", "entry before", call.cu_q[3] = -5);
    REFUSED(BACKWARD, MXATTN_CU_SEQLENS, "sequence 2 has 50 tokens", "max_seqlen_k is 49",
            call.problem.max_seqlen_k = 49);
    REFUSED(FORWARD, MXATTN_ARGUMENT, "cu_seqlens_k is NULL", "jagged",
            call.args.cu_seqlens_k = NULL);
    REFUSED(FORWARD, MXATTN_ALIGNMENT, "cu_seqlens_q is 0x", "multiple of 4",
            call.args.cu_seqlens_q = (int32_t *)((char *)call.cu_q + 1));
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "seqused_k[1] is 18", "[0, 17]",
            (call.cu_q[0] = 0, call.args.seqused_k = (const int32_t[]){3, 18, 0}));
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "seqused_q[0] is -1", "[0, 5]",
            call.args.seqused_q = (const int32_t[]){-1, 0, 0});
    REFUSED(FORWARD, MXATTN_SHAPE, "args.batch is 4", "the plan's batch, 3", call.args.batch = 4);
    REFUSED(FORWARD, MXATTN_SHAPE, "args.batch is -2", "0 to", call.args.batch = -2);
    REFUSED(FORWARD, MXATTN_SHAPE, "q.shape[0] is 42", "total_q is 41", call.problem.total_q = 41);
    REFUSED(FORWARD, MXATTN_SHAPE, "q.ndim is 4", "must be 3", call.q.ndim = 4);
    ACCEPTED(FORWARD, call.args.batch = 2);
    ACCEPTED(BACKWARD, call.problem.max_seqlen_k = 1000);
    ACCEPTED(FORWARD, call.args.seqused_k = (const int32_t[]){0, 17, 1});
    format = MXATTN_DENSE;
    REFUSED(FORWARD, MXATTN_CU_SEQLENS, "seqused_k[1] is 71", "[0, 70]",
            call.args.seqused_k = (const int32_t[]){70, 71});
}

int main(void)
{
    test_presence();
    test_shapes();
    test_tags();
    test_strides();
    test_scales();
    test_memory();
    test_partners();
    test_device_status();
    test_prepare();
    test_jagged();
    mxt_case("NULL plan and args");
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_attention_forward(NULL, &call.args));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_plan_query(NULL, NULL));
    return mxt_finish();
}
