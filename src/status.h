/* status.h: how a fault is reported: a status, and one sentence kept per thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_STATUS_H
#define MXA_STATUS_H

#include "mxattn/mxattn.h"

#if defined(__GNUC__)
#define MXA_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define MXA_PRINTF(f, a)
#endif

/* Keeps the sentence for mxattn_last_error and returns status:
 *     return mxa_fail(MXATTN_SHAPE, "heads is %lld; it must be a multiple of kv_heads (%lld)",
 * ...); Every sentence names the argument, its value and the rule. */
mxattn_status mxa_fail(mxattn_status status, const char *format, ...) MXA_PRINTF(2, 3);

/* A device status word: bits 0..5 a fault, bit 6 set when the call has one side only, bit 7 when
 * the fault is on the side of k, bits 8..31 the number of the sequence (at most 0xffffff). 0: no
 * fault.
 */
enum {
    MXA_FAULT_CU_START = 1,  /* cu_seqlens[0] is not 0 */
    MXA_FAULT_CU_ORDER = 2,  /* a negative length */
    MXA_FAULT_CU_TOTAL = 3,  /* ends past the tensor */
    MXA_FAULT_CU_LENGTH = 4, /* longer than max_seqlen */
    MXA_FAULT_SEQUSED = 5,   /* seqused outside [0, length] */
    MXA_FAULT_CU_SCALE = 6,  /* cu_scale not multiples of 128, or no room for a sequence */
    MXA_FAULT_PLAIN = 0x40,  /* of a call whose sequences have no side */
    MXA_FAULT_SIDE_K = 0x80
};

#endif
