/* dequantize_portable.c: the dequantizer's kernel for any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_portable.h"

#include "cpu/dequantize_body.h"
