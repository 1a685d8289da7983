/* turn.h: bytes turned over in registers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_COMMON_TURN_H
#define MXA_CUDA_COMMON_TURN_H

#include "cuda/dev/math.h"

/* Four words of four bytes, turned: byte i of word j becomes byte j of word i. */
MXA_DEVICE void turn_bytes(uint32_t *w)
{
    const uint32_t a = permute_bytes(w[0], w[1], 0x5140), b = permute_bytes(w[2], w[3], 0x5140);
    const uint32_t c = permute_bytes(w[0], w[1], 0x7362), d = permute_bytes(w[2], w[3], 0x7362);
    w[0] = permute_bytes(a, b, 0x5410);
    w[1] = permute_bytes(a, b, 0x7632);
    w[2] = permute_bytes(c, d, 0x5410);
    w[3] = permute_bytes(c, d, 0x7632);
}

#endif
