/* structs.c: defaults of every public struct, and how structs of other versions are met.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "structs.h"
#include "status.h"

#include <math.h>
#include <string.h>

/* Above any size a version will have; larger ones were never initialised. */
enum { LARGEST_STRUCT = 1 << 16 };

static mxattn_status read_size(const void *user, const char *name, size_t *size)
{
    if (!user)
        return mxa_fail(MXATTN_ARGUMENT, "%s is NULL; it is required", name);
    memcpy(size, user, sizeof *size);
    if (*size < sizeof *size || *size > LARGEST_STRUCT)
        return mxa_fail(MXATTN_ARGUMENT, "%s.struct_size is %zu; call the struct's _init first",
                        name, *size);
    return MXATTN_OK;
}

mxattn_status mxa_struct_read(void *copy, size_t known, const void *user, const char *name)
{
    size_t size = 0;
    mxattn_status status = read_size(user, name, &size);
    if (status)
        return status;
    const unsigned char *bytes = user;
    for (size_t i = known; i < size; i++) {
        if (bytes[i])
            return mxa_fail(MXATTN_VERSION_MISMATCH,
                            "%s.struct_size is %zu and byte %zu is set; version %s knows %zu bytes",
                            name, size, i, mxattn_version_string(), known);
    }
    memcpy(copy, user, size < known ? size : known);
    memcpy(copy, &known, sizeof known);
    return MXATTN_OK;
}

mxattn_status mxa_struct_write(void *user, const void *filled, size_t known, const char *name)
{
    size_t size = 0;
    mxattn_status status = read_size(user, name, &size);
    if (status)
        return status;
    memcpy(user, filled, size < known ? size : known);
    memcpy(user, &size, sizeof size);
    return MXATTN_OK;
}

/* Fills a caller's struct of struct_size bytes, which may be older or newer than the library's. */
static void init(void *user, size_t struct_size, const void *defaults, size_t known)
{
    if (!user || struct_size < sizeof struct_size)
        return;
    memset(user, 0, struct_size);
    memcpy(user, defaults, struct_size < known ? struct_size : known);
    memcpy(user, &struct_size, sizeof struct_size);
}

void mxattn_tensor_init_sized(mxattn_tensor *tensor, size_t struct_size)
{
    const mxattn_tensor defaults = {0};
    init(tensor, struct_size, &defaults, sizeof defaults);
}

void mxattn_tensor_view_sized(mxattn_tensor *tensor, size_t struct_size, mxattn_dtype dtype,
                              void *data, int32_t ndim, const int64_t *shape)
{
    mxattn_tensor view = {0};
    view.tags.dtype = dtype;
    view.ndim = ndim;
    view.data = data;
    uint64_t stride = 1; /* unsigned: sizes that overflow are found by the call that uses it */
    for (int32_t i = ndim <= 4 ? ndim - 1 : -1; i >= 0 && shape; i--) {
        view.shape[i] = shape[i];
        view.stride[i] = (int64_t)stride;
        stride *= (uint64_t)shape[i];
    }
    init(tensor, struct_size, &view, sizeof view);
}

void mxattn_context_options_init_sized(mxattn_context_options *options, size_t struct_size)
{
    const mxattn_context_options defaults = {.isa_mask = MXATTN_ISA_ALL};
    init(options, struct_size, &defaults, sizeof defaults);
}

void mxattn_backend_info_init_sized(mxattn_backend_info *info, size_t struct_size)
{
    const mxattn_backend_info defaults = {.name = "", .reason = "", .isa_name = "", .kernels = ""};
    init(info, struct_size, &defaults, sizeof defaults);
}

void mxattn_device_info_init_sized(mxattn_device_info *info, size_t struct_size)
{
    const mxattn_device_info defaults = {0};
    init(info, struct_size, &defaults, sizeof defaults);
}

void mxattn_attention_problem_init_sized(mxattn_attention_problem *problem, size_t struct_size)
{
    const mxattn_tags square = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0};
    const mxattn_tags bf16 = {MXATTN_BF16, MXATTN_BLOCK_NONE, MXATTN_RCEIL, 0};
    const mxattn_attention_problem defaults = {
        .batch = 1,
        .window = {-1, -1},
        .softmax_scale = NAN,
        .dq_scale_log2 = MXATTN_DQ_SCALE_AUTO,
        .q = square,
        .k = square,
        .v = square,
        .o = bf16,
        .dout = {MXATTN_BF16, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
        .dq = bf16,
        .dk = bf16,
        .dv = bf16,
    };
    init(problem, struct_size, &defaults, sizeof defaults);
}

void mxattn_plan_info_init_sized(mxattn_plan_info *info, size_t struct_size)
{
    const mxattn_plan_info defaults = {.kernel_forward = "", .kernel_backward = "", .isa_name = ""};
    init(info, struct_size, &defaults, sizeof defaults);
}

void mxattn_attention_args_init_sized(mxattn_attention_args *args, size_t struct_size)
{
    const mxattn_attention_args defaults = {.batch = -1};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_quantize_args_init_sized(mxattn_quantize_args *args, size_t struct_size)
{
    const mxattn_quantize_args defaults = {.sequences = {.batch = 1}};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_scales_args_init_sized(mxattn_scales_args *args, size_t struct_size)
{
    const mxattn_scales_args defaults = {
        .tags = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0}, .sequences = {.batch = 1}};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_rmsnorm_quantize_args_init_sized(mxattn_rmsnorm_quantize_args *args, size_t struct_size)
{
    const mxattn_rmsnorm_quantize_args defaults = {.eps = 1e-6, .sequences = {.batch = 1}};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_rmsnorm_backward_args_init_sized(mxattn_rmsnorm_backward_args *args, size_t struct_size)
{
    const mxattn_rmsnorm_backward_args defaults = {.sequences = {.batch = 1}};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_gemm_quantize_args_init_sized(mxattn_gemm_quantize_args *args, size_t struct_size)
{
    const mxattn_gemm_quantize_args defaults = {.norm_eps = 1e-6, .sequences = {.batch = 1}};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_states_merge_args_init_sized(mxattn_states_merge_args *args, size_t struct_size)
{
    const mxattn_states_merge_args defaults = {0};
    init(args, struct_size, &defaults, sizeof defaults);
}

void mxattn_emulator_options_init_sized(mxattn_emulator_options *options, size_t struct_size)
{
    const mxattn_emulator_options defaults = {.seed = 1, .checks = 1};
    init(options, struct_size, &defaults, sizeof defaults);
}

void mxattn_emulator_result_init_sized(mxattn_emulator_result *result, size_t struct_size)
{
    const mxattn_emulator_result defaults = {.report = ""};
    init(result, struct_size, &defaults, sizeof defaults);
}
