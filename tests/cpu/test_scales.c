/* test_scales.c: scatter and transform give the bytes that quantizing into the target layout gives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/operations.h"
#include "cpu_context.h"
#include "guard.h"
#include "mx/scales.h"
#include "quantize_case.h"
#include "report.h"

#include <string.h>

/* A scale array of the case in another arrangement, 0xFF-filled; spec.layouts are not used. */
typedef struct array {
    mxattn_scales scales;
    size_t bytes;
} array;

static array make_array(const mxt_quantize_case *c, mxattn_axis axis, mxattn_scale_layout layout)
{
    array a;
    memset(&a, 0, sizeof a);
    mxa_scale_extent extent = mxa_scales_extent(&c->batch, c->spec.heads, c->spec.head_dim);
    a.scales.layout = layout;
    if (layout == MXATTN_TILED && c->spec.given_rows) {
        a.scales.cu_scale = c->cu_scale;
        extent.tiled_rows = c->cu_scale[c->spec.batch];
    }
    mxa_scales_resolve(&a.scales, axis, &extent);
    a.bytes = (size_t)mxa_scales_size(axis, layout, &extent);
    a.scales.data = mxt_guard_end(a.bytes);
    return a;
}

/* Quantizes the case by its meaning, with this one array. */
static void quantize_into(const mxt_quantize_case *c, mxattn_axis axis, array *a)
{
    mxt_quantize_spec spec = c->spec;
    spec.layouts[0] = spec.layouts[1] = MXT_NO_SCALES;
    mxt_quantize_case bare = *c;
    bare.spec = spec;
    mxt_quantize_outputs o;
    mxt_quantize_outputs_make(&o, &bare);
    o.quantized.scales[axis] = a->scales;
    mxt_quantize_reference(&bare, &o);
    mxt_quantize_outputs_free(&o);
}

static void check(const mxt_quantize_case *c, const mxattn_context *context, mxattn_axis from_axis,
                  mxattn_scale_layout from_layout, mxattn_axis to_axis,
                  mxattn_scale_layout to_layout)
{
    mxt_case("scales axis %d layout %d to axis %d layout %d, %s", (int)from_axis, (int)from_layout,
             (int)to_axis, (int)to_layout, mxt_quantize_spec_text(&c->spec));
    array from = make_array(c, from_axis, from_layout);
    array want = make_array(c, to_axis, to_layout), got = make_array(c, to_axis, to_layout);
    quantize_into(c, from_axis, &from);
    quantize_into(c, to_axis, &want);
    mxt_guard_read_only(from.scales.data);
    mxa_scales_call call;
    memset(&call, 0, sizeof call);
    call.tags = c->spec.tags;
    call.from_axis = from_axis;
    call.to_axis = to_axis;
    call.from = from.scales;
    call.to = got.scales;
    call.batch = c->batch;
    call.heads = c->spec.heads;
    call.head_dim = c->spec.head_dim;
    mxattn_status status = from_axis == to_axis ? mxa_cpu_scales_scatter(context, &call)
                                                : mxa_cpu_scales_transform(context, &call);
    CHECK_STATUS(MXATTN_OK, status);
    CHECK(memcmp(got.scales.data, want.scales.data, want.bytes) == 0, "bytes differ");
    mxt_guard_free(from.scales.data);
    mxt_guard_free(want.scales.data);
    mxt_guard_free(got.scales.data);
}

int main(void)
{
    mxattn_context context = mxt_cpu_context(MXATTN_ISA_PORTABLE, 2);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        mxt_random random = {seed};
        mxt_quantize_spec spec = mxt_quantize_spec_random(&random);
        mxt_quantize_case c;
        spec.apart = 0;
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_case_fill(&c, MXT_LONG_TAIL, seed);
        for (int at = 0; at < 36; at++) {
            mxattn_axis from_axis = (mxattn_axis)(at % 2), to_axis = (mxattn_axis)(at / 2 % 2);
            mxattn_scale_layout from = (mxattn_scale_layout)(at / 4 % 3);
            mxattn_scale_layout to = (mxattn_scale_layout)(at / 12);
            if (mxa_scales_legal(&spec.tags, from_axis, from) &&
                mxa_scales_legal(&spec.tags, to_axis, to)) {
                check(&c, &context, from_axis, from, to_axis, to);
            }
        }
        mxt_quantize_case_free(&c);
    }
    return mxt_finish();
}
