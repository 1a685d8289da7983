/* producer_cases.h: the cases of a device's producers: quantize, dequantize, scatter, transform and
 * merge against their meanings, byte for byte, and batches that are malformed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_PRODUCER_CASES_H
#define MXT_PRODUCER_CASES_H

#include "backend.h"

#include <stddef.h>
#include <stdint.h>

/* Host memory that a run may touch. */
typedef struct mxt_memory {
    void *at;
    size_t bytes;
} mxt_memory;

enum { MXT_MEMORIES_MOST = 16 };

/* Who runs them. Calls hold host pointers into `memory`; afterwards it holds what was written. */
typedef struct mxt_producer_runner {
    mxattn_status (*quantize)(const mxa_quantize_call *call, const mxt_memory *memory, int count);
    mxattn_status (*dequantize)(const mxa_quantize_call *call, const mxt_memory *memory, int count);
    mxattn_status (*scales)(const mxa_scales_call *call, const mxt_memory *memory, int count);
    mxattn_status (*merge)(const mxa_merge_call *call, const mxt_memory *memory, int count);
    int seeds; /* random cases of each operation */
} mxt_producer_runner;

/* All cases, or those whose name begins with `word`. */
void mxt_producer_cases(const mxt_producer_runner *runner, const char *word);

#endif
