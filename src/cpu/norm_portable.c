/* norm_portable.c: rows divided and quantized at once, for any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_wide_portable.h"
#include "cpu/words_portable.h"

#include "cpu/norm_body.h"
