/* dev.h: the emulator's body of cuda/dev/dev.h: kernels as C11, special registers, names.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_DEV_H
#define MXA_EMU_DEV_H

#include "emu/site.h"

#include <stddef.h>
#include <stdint.h>

/* WHY always_inline: addr2line then shows the whole chain of stages, at every level of
 * optimization. */
#define MXA_DEVICE static inline __attribute__((always_inline, unused))
#define MXA_UNROLL
#define MXA_NO_UNROLL
#define MXA_STATIC_ASSERT _Static_assert

/* A kernel as a launch finds it. */
typedef struct mxa_emu_kernel {
    const char *name;
    void (*thread)(const void *parameters); /* one thread's run */
    size_t parameter_bytes;
    int threads; /* most a CTA may have */
    int cluster;
} mxa_emu_kernel;

/* All kernels of a program are found through the section that their pointers lie in. */
#define MXA_EMU_DEFINE_KERNEL(name, most, size, type, parameters)                                  \
    static void name(const type parameters);                                                       \
    static void name##_thread(const void *from)                                                    \
    {                                                                                              \
        name(*(const type *)from);                                                                 \
    }                                                                                              \
    static const mxa_emu_kernel name##_kernel = {#name, name##_thread, sizeof(type), most, size};  \
    static const mxa_emu_kernel *const name##_entry                                                \
        __attribute__((section("mxa_emu_kernels"), used)) = &name##_kernel;                        \
    static void name(const type parameters)

#define MXA_KERNEL(name, threads, type, parameters)                                                \
    MXA_EMU_DEFINE_KERNEL(name, threads, 1, type, parameters)
#define MXA_KERNEL_SMALL(name, threads, type, parameters)                                          \
    MXA_EMU_DEFINE_KERNEL(name, threads, 1, type, parameters)
#define MXA_KERNEL_MANY(name, threads, ctas, type, parameters)                                     \
    MXA_EMU_DEFINE_KERNEL(name, threads, 1, type, parameters)
#define MXA_KERNEL_CLUSTER(name, threads, cluster, type, parameters)                               \
    MXA_EMU_DEFINE_KERNEL(name, threads, cluster, type, parameters)

MXA_EMU_ENTRY void mxa_emu_role(const char *name);
MXA_EMU_ENTRY void mxa_emu_region(uint32_t at, uint32_t bytes, const char *name, int index);
MXA_EMU_ENTRY void mxa_emu_tensor_region(uint32_t column, uint32_t columns, const char *name,
                                         int index);
MXA_EMU_ENTRY void mxa_emu_barrier_name(uint32_t barrier, const char *name, int index,
                                        const char *arrives, const char *waits);

#define dev_role(name)                        mxa_emu_role(name)
#define dev_region(at, bytes, name, index)    mxa_emu_region(at, bytes, name, index)
#define dev_tensor_region(at, n, name, index) mxa_emu_tensor_region(at, n, name, index)
#define dev_barrier(at, name, index, a, w)    mxa_emu_barrier_name(at, name, index, a, w)

int mxa_emu_thread_index(void);
int mxa_emu_thread_count(void);
int mxa_emu_block(int axis);
int mxa_emu_grid(int axis);
uint32_t mxa_emu_dynamic_shared(void);

MXA_DEVICE int dev_thread(void)
{
    return mxa_emu_thread_index();
}
MXA_DEVICE int dev_thread_again(void)
{
    return mxa_emu_thread_index();
}
MXA_DEVICE int dev_threads(void)
{
    return mxa_emu_thread_count();
}
MXA_DEVICE int dev_block_x(void)
{
    return mxa_emu_block(0);
}
MXA_DEVICE int dev_block_y(void)
{
    return mxa_emu_block(1);
}
MXA_DEVICE int dev_block_z(void)
{
    return mxa_emu_block(2);
}
MXA_DEVICE int dev_grid_x(void)
{
    return mxa_emu_grid(0);
}

MXA_DEVICE void hold_u32(uint32_t *x)
{
    (void)x;
}

MXA_DEVICE uint32_t dev_shared(void)
{
    return mxa_emu_dynamic_shared();
}

#endif
