/* grid.h: launches that overlap the kernel before them (PTX ISA 9.7.13.13, griddepcontrol).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_GRID_H
#define MXA_CUDA_DEV_GRID_H

#include "cuda/dev/dev.h"

#if defined(__CUDACC__)

/* Until the kernels before this one in its stream have ended and what they wrote is seen, where it
 * was launched with mxa_cuda_launch_early; else nothing. Every thread that reads or writes what
 * another kernel of the stream does calls it first, on every path: a kernel that ended without it
 * would let the next one start too early. */
MXA_DEVICE void grid_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next kernel may be started, if it was launched to, once every CTA has said this or ended. */
MXA_DEVICE void grid_release(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#else
#include "emu/grid.h"
#endif
#endif
