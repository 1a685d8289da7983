/* test_context.c: contexts, their memory and log; backends and devices.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attention_call.h"
#include "device_run.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

/* An allocator that counts, and refuses from the n-th request on. */
typedef struct {
    int requests, alive, refuse_from;
    size_t alignment;
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t alignment)
{
    counter *count = user;
    void *memory = NULL;
    count->alignment = alignment;
    if (count->requests++ >= count->refuse_from)
        return NULL;
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes))
        return NULL;
    memset(memory, 0xA5, bytes);
    count->alive++;
    return memory;
}

static void counted_free(void *user, void *memory)
{
    ((counter *)user)->alive--;
    free(memory);
}

static mxattn_context_options counted_options(counter *count)
{
    mxattn_context_options options;
    mxattn_context_options_init(&options);
    options.alloc = counted_alloc;
    options.free = counted_free;
    options.alloc_user = count;
    return options;
}

static void refused(mxattn_context_options options, const char *needle)
{
    mxattn_context *context = NULL;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_context_create(&options, &context));
    CHECK(strstr(mxattn_last_error(), needle), "\"%s\" lacks \"%s\"", mxattn_last_error(), needle);
    CHECK(context == NULL, "context was written");
}

static void test_options(void)
{
    mxattn_context_options options;
    mxt_case("options that are refused");
    mxattn_context_options_init(&options);
    options.threads = -1;
    refused(options, "threads is -1");
    options.threads = 5000;
    refused(options, "threads is 5000");
    mxattn_context_options_init(&options);
    options.isa_mask = MXATTN_ISA_AVX2;
    refused(options, "isa_mask is 0x2");
    mxattn_context_options_init(&options);
    options.alloc = counted_alloc;
    refused(options, "free is NULL");
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_context_create(NULL, NULL));
}

static void test_query(void)
{
    mxattn_context_options options;
    mxattn_context *context = NULL;
    mxattn_backend_info info;
    mxt_case("threads and instruction sets of a context");
    mxattn_context_options_init(&options);
    options.threads = 3;
    options.isa_mask = MXATTN_ISA_PORTABLE;
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    mxattn_backend_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(context, MXATTN_BACKEND_CPU, &info));
    CHECK(info.threads == 3, "threads is %d", (int)info.threads);
    CHECK(info.isa == MXATTN_ISA_PORTABLE, "isa is 0x%x", (unsigned)info.isa);
    CHECK(strcmp(info.isa_name, "portable") == 0, "isa_name is %s", info.isa_name);
    CHECK(info.available == 1 && info.reason[0] == '\0', "cpu is missing: %s", info.reason);
    mxattn_context_destroy(context);
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, MXATTN_BACKEND_CPU, &info));
    CHECK(info.threads >= 1, "the default context has %d threads", (int)info.threads);

    mxt_case("a backend that is missing is described; AUTO and unknown ones are refused");
    CHECK_STATUS(MXATTN_OK, mxattn_backend_query(NULL, MXATTN_BACKEND_CUDA, &info));
    CHECK(info.available == 0 && info.reason[0] != '\0', "cuda is there, or no reason given");
    CHECK(strcmp(info.name, "cuda") == 0, "name is %s", info.name);
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_backend_query(NULL, MXATTN_BACKEND_AUTO, &info));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_backend_query(NULL, (mxattn_backend)6, &info));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_backend_query(NULL, MXATTN_BACKEND_CPU, NULL));
}

static void test_devices(void)
{
    mxattn_device_info info;
    void *memory = NULL, *stream = &info;
    int64_t value = 42;
    mxt_case("the host as a device");
    mxattn_device_info_init(&info);
    CHECK_STATUS(MXATTN_OK, mxattn_device_query(NULL, MXATTN_BACKEND_CPU, 0, &info));
    CHECK(info.name[0] && info.arch == 0 && info.memory_bytes > 0, "%s, arch %d", info.name,
          (int)info.arch);
    CHECK_STATUS(MXATTN_OK, mxattn_device_alloc(NULL, MXATTN_BACKEND_REF, 0, 8, &memory));
    CHECK((uintptr_t)memory % 256 == 0, "%p is not aligned to 256", memory);
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_REF, 0, memory, &value, 8));
    CHECK(*(int64_t *)memory == 42, "copied %lld", (long long)*(int64_t *)memory);
    CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, MXATTN_BACKEND_REF, 0, memory));
    CHECK_STATUS(MXATTN_OK, mxattn_device_free(NULL, MXATTN_BACKEND_REF, 0, NULL));
    CHECK_STATUS(MXATTN_OK, mxattn_device_stream_create(NULL, MXATTN_BACKEND_CPU, 0, &stream));
    CHECK(stream == NULL, "a host stream is not NULL");
    CHECK_STATUS(MXATTN_OK, mxattn_device_synchronise(NULL, MXATTN_BACKEND_CPU, 0, stream));
    CHECK_STATUS(MXATTN_OK, mxattn_device_stream_destroy(NULL, MXATTN_BACKEND_CPU, 0, stream));

    mxt_case("device calls that are refused");
    CHECK_STATUS(MXATTN_NO_BACKEND, mxattn_device_query(NULL, MXATTN_BACKEND_CPU, 1, &info));
    if (mxt_device_missing(MXATTN_BACKEND_CUDA))
        CHECK_STATUS(MXATTN_NO_BACKEND,
                     mxattn_device_alloc(NULL, MXATTN_BACKEND_CUDA, 0, 8, &memory));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_device_alloc(NULL, MXATTN_BACKEND_CPU, 0, 8, NULL));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_device_copy(NULL, MXATTN_BACKEND_CPU, 0, NULL, &value, 8));
    CHECK_STATUS(MXATTN_OK, mxattn_device_copy(NULL, MXATTN_BACKEND_CPU, 0, NULL, NULL, 0));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_device_stream_create(NULL, MXATTN_BACKEND_CPU, 0, NULL));
}

static void test_memory(mxattn_backend backend)
{
    counter count = {.refuse_from = 0};
    mxattn_context_options options = counted_options(&count);
    mxattn_context *context = NULL;
    mxattn_plan *plan = NULL;
    mxt_attention_call call;
    mxt_attention_call_init(&call, backend, MXATTN_DENSE);

    mxt_case("no memory for a context, backend %d", (int)backend);
    CHECK_STATUS(MXATTN_MEMORY, mxattn_context_create(&options, &context));
    CHECK(context == NULL && count.alive == 0, "something was made");

    mxt_case("a plan is one allocation, a run is none, backend %d", (int)backend);
    count = (counter){.refuse_from = 1000};
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    CHECK(count.requests == 1, "a context took %d allocations", count.requests);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(context, &call.problem, &plan));
    CHECK(count.requests == 2, "a plan took %d allocations", count.requests - 1);
    CHECK_STATUS(MXATTN_OK, mxattn_attention_forward(plan, &call.args));
    CHECK(count.requests == 2, "a run allocated");
    mxattn_plan_destroy(plan);
    CHECK(count.alive == 1, "a plan leaks");

    mxt_case("no memory for a plan, then for the workspace of _once");
    count.refuse_from = count.requests;
    plan = NULL;
    CHECK_STATUS(MXATTN_MEMORY, mxattn_plan_create(context, &call.problem, &plan));
    CHECK(plan == NULL, "plan was written");
    count.refuse_from = count.requests + 1;
    CHECK_STATUS(MXATTN_MEMORY, mxattn_attention_forward_once(context, &call.problem, &call.args));
    CHECK(count.alive == 1, "%d blocks leak", count.alive - 1);

    mxt_case("a problem that is refused leaves no memory behind");
    count.refuse_from = 1000;
    call.problem.dq_reduce = MXATTN_DQ_REDUCE_FP32;
    call.problem.dq_scale_log2 = 3;
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_plan_create(context, &call.problem, &plan));
    CHECK(count.alive == 1, "%d blocks leak", count.alive - 1);
    mxattn_context_destroy(context);
    mxattn_context_destroy(NULL);
    mxattn_plan_destroy(NULL);
    CHECK(count.alive == 0, "the context leaks");
    mxt_attention_call_free(&call);
}

static void keep(void *user, mxattn_log_level level, const char *sentence)
{
    char *kept = user;
    kept[0] = (char)('0' + (int)level);
    (void)strncpy(kept + 1, sentence, 198);
}

static void test_log(void)
{
    char kept[200] = "";
    mxattn_context_options options;
    mxattn_context *context = NULL;
    mxattn_plan *plan = NULL;
    mxt_attention_call call;
    mxt_attention_call_init(&call, MXATTN_BACKEND_REF, MXATTN_DENSE);
    mxt_case("the log tells of a context and of a plan's kernels");
    mxattn_context_options_init(&options);
    options.threads = 2;
    options.log = keep;
    options.log_user = kept;
    CHECK_STATUS(MXATTN_OK, mxattn_context_create(&options, &context));
    CHECK(strncmp(kept, "2context: 2 threads", 19) == 0, "\"%s\"", kept);
    CHECK_STATUS(MXATTN_OK, mxattn_plan_create(context, &call.problem, &plan));
    CHECK(strncmp(kept, "3plan: mxa_ref_", 15) == 0, "\"%s\"", kept);
    mxattn_plan_destroy(plan);
    mxattn_context_destroy(context);
    mxt_attention_call_free(&call);
}

int main(void)
{
    test_options();
    test_query();
    test_devices();
    test_memory(MXATTN_BACKEND_REF);
    test_memory(MXATTN_BACKEND_CPU);
    test_log();
    return mxt_finish();
}
