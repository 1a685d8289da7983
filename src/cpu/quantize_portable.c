/* quantize_portable.c: the quantizer's kernels for any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/words_portable.h"

#include "cpu/quantize_body.h"
