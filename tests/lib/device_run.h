/* device_run.h: forward and backward of attention.h on a device: inputs copied there, outputs back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_DEVICE_RUN_H
#define MXT_DEVICE_RUN_H

#include "attention.h"

/* NULL when device 0 of the backend can be used; otherwise why not. */
const char *mxt_device_missing(mxattn_backend backend);

/* How a forward is given to the device. */
typedef struct mxt_device_options {
    int prepared;          /* operands prepared by a call of their own */
    mxattn_dtype operands; /* F32; BF16 or F16 (values that are exact there); E4M3: quantized before
                            * the call */
    mxattn_dtype o;        /* F32, BF16 or F16 */
    mxattn_backend backend; /* 0: CUDA */
} mxt_device_options;

/* And a forward with its backward. */
typedef struct mxt_device_training {
    mxt_device_options forward;
    mxattn_dtype dout;      /* as operands */
    mxattn_dtype gradients; /* F32, BF16, F16, or E4M3 in square blocks */
    int without_saved;      /* backward from O and LSE */
} mxt_device_training;

/* Runs a's problem (inference, its intermediates) on device 0 and writes a->o and a->lse. Outputs
 * and workspace on the device are 0xFF bytes before. */
mxattn_status mxt_device_forward(mxt_attention *a, const mxt_device_options *options);

/* Runs a's problem as training, forward and then backward, and writes a->o, a->lse, the gradients
 * and a->dsink. */
mxattn_status mxt_device_backward(mxt_attention *a, const mxt_device_training *options);

#endif
