/* softmax_avx2.c: rows of softmax for the baselines, avx2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define MXC_SOFTMAX_NAME mxc_softmax_avx2
#include "softmax_body.h"
