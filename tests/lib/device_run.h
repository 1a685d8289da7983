/* device_run.h: a forward of attention.h on a device: inputs copied there, outputs back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_DEVICE_RUN_H
#define MXT_DEVICE_RUN_H

#include "attention.h"

/* NULL when device 0 can be used; otherwise why not. */
const char *mxt_device_missing(void);

/* Runs a's problem (inference) on device 0 and writes a->o and a->lse. Outputs and workspace on
 * the device are 0xFF bytes before. prepared: operands prepared by a call of their own. */
mxattn_status mxt_device_forward(mxt_attention *a, int prepared);

#endif
