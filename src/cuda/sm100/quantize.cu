/* quantize.cu: the quantizer with Blackwell's instructions: a warp's maximum of magnitudes,
 * and conversion to E8M0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/common/tile.h"
#include "cuda/sm100/block.h"

#define QUANTIZE_ENTRY(name) mxa_sm100_quantize_##name

MXA_DEVICE uint32_t quantize_scale_byte(uint32_t amax, int e5m2, int floor_rule)
{
    return block_scale_byte(f32_bits(amax), e5m2, floor_rule);
}

MXA_DEVICE uint32_t quantize_warp_largest(float x)
{
    return bits_f32(warp_max_abs_nan_f32(x));
}

#include "cuda/common/quantize_body.h"
