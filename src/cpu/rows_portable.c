/* rows_portable.c: arithmetic on rows for any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/vec_wide_portable.h"

#include "cpu/rows_body.h"
