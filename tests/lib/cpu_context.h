/* cpu_context.h: contexts for tests of the CPU backend's insides, one for each instruction set that
 * this machine has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_CPU_CONTEXT_H
#define MXT_CPU_CONTEXT_H

#include "backend.h"

enum { MXT_ISAS_MOST = 3 };

/* The sets this machine has, weakest first; returns how many. Starts a case for each, so that a
 * missing one is counted as skipped. */
int mxt_cpu_isas(uint32_t isas[MXT_ISAS_MOST]);

mxattn_context mxt_cpu_context(uint32_t isa, int32_t threads);

#endif
