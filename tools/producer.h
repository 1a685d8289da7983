/* producer.h: quantize and dequantize of host arrays on any backend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_PRODUCER_H
#define MXC_TOOLS_PRODUCER_H

#include "quantized.h"

typedef enum mxc_producer { MXC_QUANTIZE, MXC_DEQUANTIZE } mxc_producer;

/* Runs it with args' tensors and sequences, which hold host memory; on a backend with memory of its
 * own they are copied there and what was written comes back. q tells the sizes. */
void mxc_producer_run(const mxattn_context *context, mxc_producer what, const mxc_quantized *q,
                      const mxattn_quantize_args *args);

#endif
