/* softmax_avx512.c: rows of softmax for the baselines, avx512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define MXC_SOFTMAX_NAME mxc_softmax_avx512
#include "softmax_body.h"
