/* dispatch.h: which instruction sets this machine and this build have, and their names.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_DISPATCH_H
#define MXA_CPU_DISPATCH_H

#include <stdint.h>

/* MXATTN_ISA_ bits, MXATTN_ISA_PORTABLE always among them. A bit is set only together with those
 * it builds on. */
uint32_t mxa_cpu_isa(void);

/* Drops the bits of a mask whose foundations are missing (AVX-512 without AVX2 and the like) and
 * adds MXATTN_ISA_PORTABLE. */
uint32_t mxa_cpu_isa_close(uint32_t isa);

/* Of a machine's, those to use where the caller named none. WHY without AVX-512 BF16 on Intel: its
 * VDPBF16PS takes two cycles where two fused multiply-adds take one (Sapphire and Emerald Rapids),
 * so FP32 is twice as fast there. */
uint32_t mxa_cpu_isa_default(uint32_t isa, int is_intel);
int mxa_cpu_is_intel(void);

/* "portable", "avx2", "avx512", "avx512bf16" or "amx": the strongest of a mask. */
const char *mxa_cpu_isa_name(uint32_t isa);

#endif
