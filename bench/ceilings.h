/* ceilings.h: what this machine can do at most, measured in the same run as the kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_CEILINGS_H
#define MXC_CEILINGS_H

#include "timing.h"

#include <stdint.h>

typedef struct mxc_ceiling {
    const char *name;  /* "fp32 fma, 8 wide" */
    double per_second; /* floating-point operations, or bytes read and written */
} mxc_ceiling;

/* A ceiling as a piece of work that takes turns with what it limits, on as many threads. */
typedef struct mxc_limit {
    const char *name;
    int counts_flops; /* else bytes */
    double amount;    /* of that, in one run */
    mxc_work work;
} mxc_limit;

/* Multiply-adds of the instruction set a kernel uses: BF16 matrix products for "amx", BF16 dot
 * products for "avx512bf16", FP32 multiply-adds for the others. isa as in mxattn_plan_info. About
 * `seconds` long. */
mxc_limit mxc_arithmetic_limit(const char *isa, int32_t threads, double seconds);

/* Copying memory that is in no cache: memcpy or stores past the caches, whichever is faster. */
mxc_limit mxc_copy_limit(int32_t threads);

/* Copying half of `bytes` to the other half over and over, on one thread. */
mxc_limit mxc_cached_copy_limit(int64_t bytes);

/* Reading memory that is in no cache. */
mxc_limit mxc_read_limit(int32_t threads);

/* Writing it: memset or stores past the caches, whichever is faster; no zeros, which some machines
 * write at twice the rate of all else. */
mxc_limit mxc_fill_limit(int32_t threads);

void mxc_limit_free(mxc_limit *limit);

/* What the turns in `work`, the limit's own, found. */
mxc_ceiling mxc_limit_ceiling(const mxc_limit *limit, const mxc_work *work);

/* The loops: each does `steps` rounds of MXC_PEAK_CHAINS independent multiply-adds and returns
 * something that depends on all. flops_per_step: operations of one round. */
enum { MXC_PEAK_CHAINS = 12, MXC_PEAK_AMX_STEPS = 16 };
float mxc_peak_portable(int64_t steps);
float mxc_peak_avx2(int64_t steps);
float mxc_peak_avx512(int64_t steps);
float mxc_peak_avx512bf16(int64_t steps);
float mxc_peak_amx(int64_t steps); /* four products in MXC_PEAK_AMX_STEPS */

#endif
