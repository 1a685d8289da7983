/* ceilings.h: what this machine can do at most, measured in the same run as the kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_CEILINGS_H
#define MXC_CEILINGS_H

#include <stdint.h>

typedef struct mxc_ceiling {
    const char *name;  /* "fp32 fma, avx2" */
    double per_second; /* floating-point operations, or bytes read and written */
} mxc_ceiling;

/* Multiply-adds of the instruction set a kernel uses: BF16 matrix products for "amx", BF16 dot
 * products for "avx512bf16", FP32 multiply-adds for the others. isa as in mxattn_plan_info.
 * Measured once per isa and process. */
mxc_ceiling mxc_arithmetic_ceiling(const char *isa, int32_t threads);

/* Copying memory that is in no cache: memcpy or stores past the caches, whichever is faster.
 * Measured once per process and number of threads. */
mxc_ceiling mxc_copy_ceiling(int32_t threads);

/* Copying half of `bytes` to the other half over and over, on one thread. Measured at each call. */
mxc_ceiling mxc_cached_copy_ceiling(int64_t bytes);

/* Reading memory that is in no cache. Measured once per process. */
mxc_ceiling mxc_read_ceiling(int32_t threads);

/* The loops: each does `steps` rounds of MXC_PEAK_CHAINS independent multiply-adds and returns
 * something that depends on all. flops_per_step: operations of one round. */
enum { MXC_PEAK_CHAINS = 12, MXC_PEAK_AMX_STEPS = 16 };
float mxc_peak_portable(int64_t steps);
float mxc_peak_avx2(int64_t steps);
float mxc_peak_avx512(int64_t steps);
float mxc_peak_avx512bf16(int64_t steps);
float mxc_peak_amx(int64_t steps); /* four products in MXC_PEAK_AMX_STEPS */

#endif
