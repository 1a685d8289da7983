/* map.h: tensor maps as the emulator encodes them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_MAP_H
#define MXA_EMU_MAP_H

#include <stdint.h>

enum { MXA_EMU_MAP_RANK = 5 };

typedef struct mxa_emu_map {
    uint32_t magic;
    uint8_t type, rank, swizzle, element_bytes;
    uint64_t address;
    uint64_t stride[MXA_EMU_MAP_RANK - 1]; /* bytes, of dimensions 1.. */
    uint32_t size[MXA_EMU_MAP_RANK];       /* elements less one */
    uint16_t box[MXA_EMU_MAP_RANK];
} mxa_emu_map;

/* The driver's cuTensorMapEncodeTiled: same arguments, same rules; 0, or CUDA_ERROR_INVALID_VALUE.
 * `map` is 128 bytes, aligned to 64. */
int mxa_emu_map_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                       const uint64_t *strides_bytes, const uint32_t *box,
                       const uint32_t *element_strides, int interleave, int swizzle,
                       int l2_promotion, int fill);

/* NULL, or what is wrong with it. */
const char *mxa_emu_map_decode(const void *map, mxa_emu_map *decoded);

/* Byte address in shared memory where a swizzle (its code in a map) puts what belongs at `at`. */
uint32_t mxa_emu_swizzle(uint32_t at, int swizzle);

#endif
