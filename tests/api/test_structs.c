/* test_structs.c: structs of older and newer versions, and defaults.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "report.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* A problem as a newer header would have it. */
typedef struct {
    mxattn_attention_problem known;
    int64_t later[2];
} newer_problem;

static void test_defaults(void)
{
    mxattn_attention_problem problem;
    mxattn_attention_args args;
    mxattn_context_options options;
    mxattn_rmsnorm_quantize_args norm;
    mxt_case("defaults");
    memset(&problem, 0xA5, sizeof problem);
    mxattn_attention_problem_init(&problem);
    CHECK(problem.struct_size == sizeof problem, "struct_size is %zu", problem.struct_size);
    CHECK(problem.batch == 1 && problem.heads == 0, "batch %lld, heads %lld",
          (long long)problem.batch, (long long)problem.heads);
    CHECK(isnan(problem.softmax_scale), "softmax_scale is %g", problem.softmax_scale);
    CHECK(problem.window[0] == -1 && problem.window[1] == -1, "window is not {-1, -1}");
    CHECK(problem.dq_scale_log2 == MXATTN_DQ_SCALE_AUTO, "dq_scale_log2 is not AUTO");
    CHECK(problem.q.dtype == MXATTN_E4M3 && problem.q.block == MXATTN_BLOCK_SQUARE, "q tags");
    CHECK(problem.o.dtype == MXATTN_BF16 && problem.o.block == MXATTN_BLOCK_NONE, "o tags");
    CHECK(problem.dout.dtype == MXATTN_BF16 && problem.dout.block == MXATTN_BLOCK_SQUARE,
          "dout tags");
    mxattn_attention_args_init(&args);
    CHECK(args.batch == -1, "args.batch is %lld", (long long)args.batch);
    mxattn_context_options_init(&options);
    CHECK(options.isa_mask == MXATTN_ISA_ALL, "isa_mask is 0x%x", (unsigned)options.isa_mask);
    mxattn_rmsnorm_quantize_args_init(&norm);
    CHECK(norm.eps == 1e-6, "eps is %g", norm.eps);
}

static void test_init_sizes(void)
{
    unsigned char bytes[sizeof(newer_problem) + 16];
    const size_t part = offsetof(mxattn_attention_problem, softcap);
    newer_problem *newer = (newer_problem *)(void *)bytes;
    mxt_case("init writes what the caller's struct has room for");
    memset(bytes, 0xA5, sizeof bytes);
    mxattn_attention_problem_init_sized(&newer->known, part);
    CHECK(bytes[part] == 0xA5, "an older program's memory was overwritten");
    CHECK(isnan(newer->known.softmax_scale), "the older program's defaults are missing");
    memset(bytes, 0xA5, sizeof bytes);
    mxattn_attention_problem_init_sized(&newer->known, sizeof *newer);
    CHECK(newer->later[0] == 0 && newer->later[1] == 0, "the newer fields are not zero");
    CHECK(bytes[sizeof *newer] == 0xA5, "memory past the struct was overwritten");
    CHECK(newer->known.struct_size == sizeof *newer, "struct_size is not the caller's");
}

static void test_view(void)
{
    float data[24];
    mxattn_tensor tensor[2];
    memset(tensor, 0xA5, sizeof tensor);
    mxt_case("tensor_view is contiguous and stays within the caller's struct");
    mxattn_tensor_view(&tensor[0], MXATTN_F32, data, 3, (const int64_t[]){2, 3, 4});
    CHECK(tensor[0].stride[0] == 12 && tensor[0].stride[1] == 4 && tensor[0].stride[2] == 1,
          "strides %lld %lld %lld", (long long)tensor[0].stride[0], (long long)tensor[0].stride[1],
          (long long)tensor[0].stride[2]);
    CHECK(tensor[0].shape[0] == 2 && tensor[0].shape[3] == 0, "shape");
    CHECK(*(unsigned char *)&tensor[1] == 0xA5, "memory past the tensor was overwritten");
    mxattn_tensor_view(&tensor[0], MXATTN_F32, data, 7, (const int64_t[]){2, 3, 4});
    CHECK(tensor[0].ndim == 7, "a bad ndim must survive, for the call to refuse");
}

static void test_read(void)
{
    newer_problem newer;
    mxattn_attention_problem older;
    mxattn_plan *plan = NULL;
    mxt_attention_call call;
    mxt_attention_call_init(&call, MXATTN_BACKEND_REF, MXATTN_DENSE);

    mxt_case("a newer struct: zero tail accepted, set tail refused");
    memset(&newer, 0, sizeof newer);
    newer.known = call.problem;
    newer.known.struct_size = sizeof newer;
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &newer.known, &plan));
    mxattn_plan_destroy(plan);
    newer.later[1] = 1;
    CHECK_STATUS(MXATTN_VERSION_MISMATCH, mxattn_plan_create(NULL, &newer.known, &plan));
    CHECK(strstr(mxattn_last_error(), "problem.struct_size"), "\"%s\"", mxattn_last_error());

    mxt_case("an older struct: missing fields have their defaults");
    older = call.problem;
    memset((char *)&older + offsetof(mxattn_attention_problem, q), 0xA5,
           sizeof older - offsetof(mxattn_attention_problem, q));
    older.struct_size = offsetof(mxattn_attention_problem, q);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(NULL, &older, &plan));
    mxattn_plan_destroy(plan);

    mxt_case("a struct that no _init touched");
    older.struct_size = 0;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_plan_create(NULL, &older, &plan));
    CHECK(strstr(mxattn_last_error(), "_init"), "\"%s\"", mxattn_last_error());
    older.struct_size = (size_t)-1;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_plan_create(NULL, &older, &plan));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_plan_create(NULL, NULL, &plan));

    mxt_case("a tensor of another version");
    call.q.struct_size = 4;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_attention_forward_once(NULL, &call.problem, &call.args));
    CHECK(strstr(mxattn_last_error(), "q.struct_size is 4"), "\"%s\"", mxattn_last_error());
    CHECK(mxt_attention_call_untouched(&call), "an output was written");
    mxt_attention_call_free(&call);
}

static void test_write(void)
{
    struct {
        mxattn_backend_info info;
        int64_t later;
    } newer;
    mxattn_backend_info info;
    mxt_case("structs that the library fills");
    memset(&newer, 0xA5, sizeof newer);
    mxattn_backend_info_init_sized(&newer.info, sizeof newer);
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, MXATTN_BACKEND_REF, &newer.info));
    CHECK(newer.later == 0 && newer.info.struct_size == sizeof newer, "a newer struct's tail");
    memset(&info, 0xA5, sizeof info);
    mxattn_backend_info_init_sized(&info, offsetof(mxattn_backend_info, devices));
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, MXATTN_BACKEND_REF, &info));
    CHECK(strcmp(info.name, "ref") == 0, "name is %s", info.name);
    CHECK(*(unsigned char *)&info.devices == 0xA5, "an older struct was overrun");
}

int main(void)
{
    test_defaults();
    test_init_sizes();
    test_view();
    test_read();
    test_write();
    return mxt_finish();
}
