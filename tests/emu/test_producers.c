/* test_producers.c: the GPU's producers on the emulator: the same bytes as their meanings, and no
 * race, no stray access.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/producers_launch.h"
#include "emu/launch.h"
#include "emu_seeds.h"
#include "producer_cases.h"
#include "report.h"

#include <stdlib.h>

/* Of the device whose kernels run. */
static int arch = 90;
static uint64_t seed; /* every launch has another one */

/* Runs one launch; errors of the emulator are failures of the case. */
static mxattn_status run(const mxa_producer_launch *launch, const mxt_memory *memory, int count)
{
    const char *name = mxa_kernel_entry_on(launch->kernel, arch);
    const mxa_emu_kernel *kernel = mxa_emu_kernel_find(name);
    mxa_emu_options options;
    mxa_emu_result result;
    const int grid[3] = {(int)launch->grid[0], (int)launch->grid[1], (int)launch->grid[2]};
    if (grid[0] * grid[1] == 0 || !CHECK(kernel != NULL, "no kernel %s", name)) {
        return MXATTN_OK;
    }
    mxa_emu_options_init(&options);
    options.seed = ++seed;
    for (int i = 0; i < count; i++) {
        (void)mxa_emu_memory_add(memory[i].at, memory[i].bytes);
    }
    const int errors = mxa_emu_launch(kernel, grid, (int)launch->threads,
                                      (uint32_t)mxa_kernel_shared_bytes(launch->kernel),
                                      &launch->params, &options, &result);
    CHECK(errors == 0, "%s: %s", name, result.text ? result.text : "?");
    mxa_emu_result_free(&result);
    for (int i = 0; i < count; i++) {
        mxa_emu_memory_remove(memory[i].at);
    }
    return MXATTN_OK;
}

static mxattn_status quantize(const mxa_quantize_call *call, const mxt_memory *memory, int count)
{
    mxa_producer_launch launches[2];
    int n = 0;
    mxattn_status status = mxa_launch_of_quantize(call, launches, &n);
    for (int i = 0; i < n && !status; i++) {
        status = run(&launches[i], memory, count);
    }
    return status;
}

static mxattn_status dequantize(const mxa_quantize_call *call, const mxt_memory *memory, int count)
{
    mxa_producer_launch launch;
    mxattn_status status = mxa_launch_of_dequantize(call, &launch);
    return status ? status : run(&launch, memory, count);
}

static mxattn_status scales(const mxa_scales_call *call, const mxt_memory *memory, int count)
{
    mxa_producer_launch launch;
    mxattn_status status = mxa_launch_of_scales(call, &launch);
    return status ? status : run(&launch, memory, count);
}

static mxattn_status merge(const mxa_merge_call *call, const mxt_memory *memory, int count)
{
    mxa_producer_launch launch;
    mxattn_status status = mxa_launch_of_merge(call, &launch);
    return status ? status : run(&launch, memory, count);
}

/* With a word on the command line, the cases that begin with it; with a number too, so many seeds.
 */
int main(int argc, char **argv)
{
    const mxt_producer_runner runner = {quantize, dequantize, scales, merge,
                                        argc > 2 ? atoi(argv[2]) : mxt_seeds_default()};
    mxt_producer_cases(&runner, argc > 1 ? argv[1] : NULL);
    arch = 100; /* its own quantizer; the rest is the same */
    mxt_producer_cases(&runner, argc > 1 ? argv[1] : "quantize");
    return mxt_finish();
}
