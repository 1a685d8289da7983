/* scale_units.h: units of tiled scales, 512 bytes each, put together in vector registers.
 *
 * Row r of a unit is 16 bytes: four groups of four, which docs/format.md draws. With `stream` set,
 * stores pass by the caches: for arrays that no cache would hold, whose lines would otherwise be
 * read before they are written. `to` is then a multiple of 32. Such stores are ordered by the
 * locked instruction with which a worker asks for its next task (parallel.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CPU_SCALE_UNITS_H
#define MXA_CPU_SCALE_UNITS_H

#include <stdint.h>

enum { MXA_UNIT_BYTES = 512, MXA_UNIT_BLOCKS = 4, MXA_UNIT_ROW = 16 };

/* Asks for memory that need not be there. WHY into the second level: stores that pass by the caches
 * wait in the buffers through which the first level is filled. */
static inline void mxa_unit_prefetch(const uint8_t *from, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)ahead), 0, 2);
}

/* `count` units, `to_step` bytes apart, each from a source of its own, `from_step` bytes apart. */
typedef struct mxa_unit_run {
    uint8_t *to;
    const uint8_t *from;
    int64_t to_step, from_step, count;
    int64_t group_step;
    int turned;
    int64_t ahead; /* bytes from a source to what is asked for with it */
    int stream;
} mxa_unit_run;

/* Four units that are put together while the four before them leave past the caches. WHY: while
 * nothing is written the way to memory lies idle, and while nothing is read the one from there. */
typedef struct mxa_unit_queue {
    _Alignas(64) uint8_t units[2][4][MXA_UNIT_BYTES];
    uint8_t *to[4]; /* where the last four go */
    int last;       /* which half they lie in */
    int some;       /* 0: none are waiting */
} mxa_unit_queue;

typedef struct mxa_unit_kernels {
    /* All 32 rows of a unit alike: group g has the four bytes at source + g*group_step, or, turned,
     * byte g of each of those four groups. */
    void (*repeat)(const mxa_unit_run *run);
    /* Four units at once, of 128 tokens: token t has the `width` bytes (4 or 2; the rest of a group
     * is 0) for unit u at from + t*token_bytes + u*width. 32 times, ask_step bytes apart, memory is
     * asked for from `ask` on: reads of what comes next go on between the stores. queue NULL:
     * through the caches. */
    void (*of_tokens)(uint8_t *const to[4], const uint8_t *from, int64_t token_bytes, int width,
                      const uint8_t *ask, int64_t ask_step, mxa_unit_queue *queue);
    /* Units that wait leave. */
    void (*leave)(mxa_unit_queue *queue);
    /* One unit of 128 dims: block k of 32 tokens has one byte for each, in order, at from[k]. */
    void (*of_dims)(uint8_t *to, const uint8_t *const from[4], int stream);
} mxa_unit_kernels;

const mxa_unit_kernels *mxa_unit_kernels_for(uint32_t isa);

extern const mxa_unit_kernels mxa_unit_kernels_portable;
extern const mxa_unit_kernels mxa_unit_kernels_avx2;

#endif
