/* fpenv.h: IEEE arithmetic inside a task, whatever the thread that runs it has set.
 *
 * Flush-to-zero, denormals-are-zero and the rounding mode of a host program must not show in the
 * bits of a result. Enter and leave around a call of a function in another file, so that the
 * compiler cannot move arithmetic across.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_FPENV_H
#define MXA_CPU_FPENV_H

#if defined(__SSE2__)

#include <xmmintrin.h>

typedef unsigned mxa_fpenv;

static inline mxa_fpenv mxa_fpenv_enter(void)
{
    mxa_fpenv before = _mm_getcsr();
    _mm_setcsr(0x1F80); /* nearest even, subnormals kept, no traps */
    return before;
}

static inline void mxa_fpenv_leave(mxa_fpenv before)
{
    _mm_setcsr(before);
}

#else

typedef int mxa_fpenv;

static inline mxa_fpenv mxa_fpenv_enter(void)
{
    return 0;
}

static inline void mxa_fpenv_leave(mxa_fpenv before)
{
    (void)before;
}

#endif

#endif
