/* dispatch.c: which instruction sets this machine and this build have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/dispatch.h"

#include "mxattn/mxattn.h"

#if defined(MXA_BUILD_AVX2) /* every other one stands on it */

#include <cpuid.h>
#if defined(MXA_BUILD_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

#if defined(MXA_BUILD_AMX)
/* AMX for BF16, and Linux's leave to use it: a process asks once for all its threads, before the
 * first instruction, since the registers' 8 KiB enlarge what a signal saves. */
static int has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned tile_and_bf16 = 1u << 24 | 1u << 22;
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (edx & tile_and_bf16) == tile_and_bf16 &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

static uint32_t detect(void)
{
    uint32_t isa = 0;

    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        isa |= MXATTN_ISA_AVX2;
#if defined(MXA_BUILD_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= MXATTN_ISA_AVX512;
#endif
#if defined(MXA_BUILD_AVX512BF16)
    if (__builtin_cpu_supports("avx512bf16"))
        isa |= MXATTN_ISA_AVX512_BF16;
    if (__builtin_cpu_supports("avx512vbmi"))
        isa |= MXATTN_ISA_AVX512_VBMI;
#endif
#if defined(MXA_BUILD_AMX)
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") && has_amx())
        isa |= MXATTN_ISA_AMX_BF16;
#endif
    return isa;
}

int mxa_cpu_is_intel(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") != 0;
}

#else

static uint32_t detect(void)
{
    return 0;
}

int mxa_cpu_is_intel(void)
{
    return 0;
}

#endif

uint32_t mxa_cpu_isa_close(uint32_t isa)
{
    uint32_t closed = isa & (MXATTN_ISA_AVX2 | MXATTN_ISA_AVX512 | MXATTN_ISA_AVX512_BF16 |
                             MXATTN_ISA_AVX512_VBMI | MXATTN_ISA_AMX_BF16);

    if (!(closed & MXATTN_ISA_AVX2))
        closed = 0;
    if (!(closed & MXATTN_ISA_AVX512))
        closed &= MXATTN_ISA_AVX2;
    return closed | MXATTN_ISA_PORTABLE;
}

uint32_t mxa_cpu_isa(void)
{
    return mxa_cpu_isa_close(detect());
}

uint32_t mxa_cpu_isa_default(uint32_t isa, int is_intel)
{
    return is_intel ? isa & ~(uint32_t)MXATTN_ISA_AVX512_BF16 : isa;
}

const char *mxa_cpu_isa_name(uint32_t isa)
{
    if (isa & MXATTN_ISA_AMX_BF16)
        return "amx";
    if ((isa & MXATTN_ISA_AVX512_BF16) && (isa & MXATTN_ISA_AVX512_VBMI))
        return "avx512bf16";
    if (isa & MXATTN_ISA_AVX512)
        return "avx512";
    if (isa & MXATTN_ISA_AVX2)
        return "avx2";
    return "portable";
}
