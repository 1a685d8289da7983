/* verify.h: results are compared with the model before anything is timed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_VERIFY_H
#define MXC_VERIFY_H

#include "tensors.h"

/* Compares a part of a call's results with the ref backend's model of that part: of the longest
 * sequence and the last kv head with its query heads, O, LSE and dQ of the last rows, which see all
 * keys, and dK and dV of the last keys, which all rows see. With square blocks a part must start at
 * a multiple of 32 tokens to have the same blocks. The model costs as many steps as a few rows of
 * attention, whatever the length. Dies, naming the result, where one is past its limit. */
void mxc_verify_attention(const mxattn_context *checker, const mxc_sizes *sizes,
                          const mxattn_attention_problem *problem, const mxattn_plan_info *info,
                          const mxc_tensor_set *set, int backward);

#endif
