/* map.c: see map.h. Rules: cuTensorMapEncodeTiled in the CUDA driver's reference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/map.h"

#include "cuda/dev/map.h"

#include <string.h>

enum { MAGIC = 0x4D584D50, INVALID_VALUE = 1, MOST_BOX = 256 };

_Static_assert(sizeof(mxa_emu_map) <= sizeof(mxa_device_map), "fits into what a kernel passes on");

/* Bytes of an element of CUtensorMapDataType: u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16. */
static const uint8_t element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};

int mxa_emu_map_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                       const uint64_t *strides_bytes, const uint32_t *box,
                       const uint32_t *element_strides, int interleave, int swizzle,
                       int l2_promotion, int fill)
{
    mxa_emu_map m;
    memset(&m, 0, sizeof m);
    const uint64_t at = (uint64_t)(uintptr_t)address;
    if (!map || (uintptr_t)map % 64 || type < 0 || type >= (int)sizeof element_bytes || rank < 1 ||
        rank > MXA_EMU_MAP_RANK || at == 0 || at % 16 || interleave != 0 || swizzle < 0 ||
        swizzle > 3 || l2_promotion < 0 || l2_promotion > 3 || fill != 0) {
        return INVALID_VALUE;
    }
    const uint32_t bytes = element_bytes[type];
    for (uint32_t i = 0; i < rank; i++) {
        if (sizes[i] == 0 || sizes[i] > (uint64_t)1 << 32 || box[i] == 0 || box[i] > MOST_BOX ||
            element_strides[i] != 1) {
            return INVALID_VALUE;
        }
        m.size[i] = (uint32_t)(sizes[i] - 1);
        m.box[i] = (uint16_t)box[i];
    }
    for (uint32_t i = 0; i + 1 < rank; i++) {
        /* In any order: (B, H, S, D) seen as (B, S, H, D), a dimension of one element. */
        if (strides_bytes[i] % 16 || strides_bytes[i] >= (uint64_t)1 << 40) {
            return INVALID_VALUE;
        }
        m.stride[i] = strides_bytes[i];
    }
    const uint32_t row = box[0] * bytes;
    if (row % 16 || (swizzle && row > 16u << swizzle)) {
        return INVALID_VALUE;
    }
    m.magic = MAGIC;
    m.type = (uint8_t)type;
    m.rank = (uint8_t)rank;
    m.swizzle = (uint8_t)swizzle;
    m.element_bytes = (uint8_t)bytes;
    m.address = at;
    memset(map, 0, sizeof(mxa_device_map));
    memcpy(map, &m, sizeof m);
    return 0;
}

const char *mxa_emu_map_decode(const void *map, mxa_emu_map *decoded)
{
    if ((uintptr_t)map % 64) {
        return "not aligned to 64 bytes";
    }
    memcpy(decoded, map, sizeof *decoded);
    if (decoded->magic != MAGIC) {
        return "not a tensor map";
    }
    if (decoded->swizzle && decoded->box[0] * decoded->element_bytes != 16 << decoded->swizzle) {
        return "a swizzled box whose rows are narrower than the swizzle";
    }
    return NULL;
}

uint32_t mxa_emu_swizzle(uint32_t at, int swizzle)
{
    static const uint32_t mask[] = {0, 0x10, 0x30, 0x70};
    return at ^ (at >> 3 & mask[swizzle]);
}
