/* test_quantize_grid.c: every combination that one call of quantize may ask for, once: blocks,
 * source types, all scale arrays of the block at once in each layout, centre, transposed payload,
 * jagged, q inside packed qkv. The reference's bytes on every instruction set.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operations.h"
#include "cpu_context.h"
#include "quantize_case.h"
#include "report.h"

#include <string.h>

static uint32_t isas[MXT_ISAS_MOST];
static int isa_count;

static mxt_quantize_spec spec_of(mxattn_block block, mxattn_dtype wide, int layout, int bits)
{
    const int hdim = block != MXATTN_BLOCK_COLUMN, seq = block != MXATTN_BLOCK_ROW;
    mxt_quantize_spec spec = {
        .jagged = bits >> 2 & 1,
        .batch = 3,
        .lengths = {45, 0, 70},
        .tail = bits >> 2 & 1 ? 3 : 0,
        .heads = 2,
        .head_dim = 96,
        .wide = wide,
        .tags = {.dtype = MXATTN_E4M3, .block = block},
        .layouts = {hdim ? layout : MXT_NO_SCALES, seq ? layout : MXT_NO_SCALES},
        .packed = bits >> 3 & 1,
        .transposed = bits >> 1 & 1};
    if (bits & 1)
        spec.tags.flags = MXATTN_CENTRED;
    return spec;
}

static void check(const mxt_quantize_spec *spec)
{
    mxt_quantize_case c;
    mxt_quantize_outputs want, got;
    mxt_case("%s", mxt_quantize_spec_text(spec));
    mxt_quantize_case_make(&c, spec);
    mxt_quantize_case_fill(&c, MXT_OUTLIER, 11);
    mxt_quantize_outputs_make(&want, &c);
    mxt_quantize_reference(&c, &want);
    for (int i = 0; i < isa_count; i++) {
        const mxattn_context context = mxt_cpu_context(isas[i], 2);
        mxt_quantize_outputs_make(&got, &c);
        const mxa_quantize_call call = mxt_quantize_call_of(&c, &got);
        CHECK_STATUS(MXATTN_OK, mxa_cpu_quantize(&context, &call));
        mxt_quantize_same(&got, &want);
        mxt_quantize_outputs_free(&got);
    }
    mxt_quantize_outputs_free(&want);
    mxt_quantize_case_free(&c);
}

int main(void)
{
    static const mxattn_dtype types[] = {MXATTN_F32, MXATTN_BF16, MXATTN_F16};
    isa_count = mxt_cpu_isas(isas);
    for (int block = MXATTN_BLOCK_ROW; block <= MXATTN_BLOCK_SQUARE; block++)
        for (int type = 0; type < 3; type++)
            for (int layout = MXATTN_LINEAR; layout <= MXATTN_TILED; layout++)
                for (int bits = 0; bits < 16; bits++) {
                    if (layout == MXATTN_COMPACT && block != MXATTN_BLOCK_SQUARE)
                        continue;
                    const mxt_quantize_spec spec =
                        spec_of((mxattn_block)block, types[type], layout, bits);
                    check(&spec);
                }
    return mxt_finish();
}
