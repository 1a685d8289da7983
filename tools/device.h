/* device.h: an attention run's memory on a GPU, for `--backend cuda`, or on an emulated one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_DEVICE_H
#define MXC_TOOLS_DEVICE_H

#include "run.h"

enum { MXC_DEVICE_MEMORIES = 24, MXC_DEVICE_TENSORS = 10 };

/* 1 for backends whose memory is their own. */
int mxc_on_device(mxattn_backend backend);

/* Copies on device 0 of what a run reads, and room there for what it writes. */
typedef struct mxc_device_copies {
    mxattn_backend backend;
    void *memory[MXC_DEVICE_MEMORIES];
    int count;
    mxattn_tensor tensors[MXC_DEVICE_TENSORS]; /* q, k, v, o, lse, dout, dlse, dq, dk, dv */
} mxc_device_copies;

/* Points args at copies of what they point at; workspace_bytes of workspace too, and saved_bytes of
 * what forward leaves for backward. Gradients where the problem's mode is TRAINING. */
void mxc_device_begin(mxc_device_copies *copies, mxattn_attention_args *args, const mxc_run *run,
                      size_t saved_bytes);

/* Waits, copies what was written back into the run's memory, and frees the copies. */
void mxc_device_end(mxc_device_copies *copies, const mxattn_attention_args *args,
                    const mxc_run *run);

#endif
