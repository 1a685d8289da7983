/* scale_units_portable.c: units of tiled scales for any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define UNITS_NAME(x) x##_portable

#include "cpu/scale_units_body.h"
