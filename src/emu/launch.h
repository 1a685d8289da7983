/* launch.h: starting a kernel on the emulator, and what came of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_LAUNCH_H
#define MXA_EMU_LAUNCH_H

#include "emu/dev.h"
#include "emu/emu.h"
#include "emu/trace.h"

typedef struct mxa_emu_result {
    int errors, warnings;
    uint32_t hazards; /* bit h: an error of hazard h (0: a rule of an instruction) */
    uint32_t warned;  /* the same for warnings */
    int deadlock;
    mxa_emu_tally tally; /* instructions by name */
    char *text;          /* the reports; NULL: none. mxa_emu_free */
} mxa_emu_result;

/* Runs all CTAs, with `parameters` as the kernel's only one. 0 when nothing was reported as an
 * error. Memory of global pointers is the host's (mxa_emu_memory_add). */
int mxa_emu_launch(const mxa_emu_kernel *kernel, const int grid[3], int threads,
                   uint32_t shared_bytes, const void *parameters, const mxa_emu_options *options,
                   mxa_emu_result *result);
/* The same, appending its events to a trace. */
int mxa_emu_launch_traced(const mxa_emu_kernel *kernel, const int grid[3], int threads,
                          uint32_t shared_bytes, const void *parameters,
                          const mxa_emu_options *options, struct mxa_emu_trace *trace,
                          mxa_emu_result *result);
void mxa_emu_result_free(mxa_emu_result *result);

/* The library's units of kernels, written by the build. */
extern const char *const mxa_emu_units[];

/* A kernel of this program by its name; NULL: there is none. */
const mxa_emu_kernel *mxa_emu_kernel_find(const char *name);

/* The i-th kernel of this program and how often this OS thread has launched it; NULL beyond the
 * last. For tests that claim to run all of them. */
const mxa_emu_kernel *mxa_emu_kernel_at(size_t i, int64_t *launches);

/* Memory that kernels may touch. Once there is any, all else is out of bounds. */
int mxa_emu_memory_add(const void *memory, size_t bytes); /* 0: no room in the list */
void mxa_emu_memory_remove(const void *memory);

#endif
