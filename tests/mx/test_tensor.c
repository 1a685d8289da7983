/* test_tensor.c: quantizing a batch is quantizing each of its sequences alone; values of tensors.
 * What one sequence gives is compared with another implementation in test_formats.py.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/tensor.h"

#include "mx/e8m0.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "quantize_case.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sequence b of a case as a case of its own: one dense sequence, contiguous, used tokens only
 * filled, LINEAR scales on every axis its block has. */
static void alone(const mxt_quantize_case *c, const mxa_sequence *seq, mxt_quantize_case *one)
{
    mxt_quantize_spec spec = c->spec;
    spec.jagged = 0;
    spec.batch = 1;
    spec.lengths[0] = seq->length;
    spec.has_used = 1;
    spec.used[0] = seq->used;
    spec.packed = spec.apart = spec.given_rows = spec.transposed = 0;
    for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
        spec.layouts[axis] =
            mxa_scales_legal(&spec.tags, axis, MXATTN_LINEAR) ? MXATTN_LINEAR : MXT_NO_SCALES;
    }
    mxt_quantize_case_make(one, &spec);
    mxa_sequence first = {.length = seq->length};
    for (int64_t at = 0; at < seq->used * spec.heads * spec.head_dim; at++) {
        int64_t d = at % spec.head_dim, head = at / spec.head_dim % spec.heads;
        int64_t s = at / spec.head_dim / spec.heads;
        float x = mxa_load(c->wide.data, spec.wide, mxa_tensor_index(&c->wide, seq, s, head, d));
        mxa_store(one->wide.data, spec.wide, mxa_tensor_index(&one->wide, &first, s, head, d), x);
    }
}

/* Payload, every scale array and centre of sequence b against the sequence alone. */
static void check_sequence(const mxt_quantize_case *c, const mxt_quantize_outputs *o,
                           const mxa_sequence *seq, int64_t b)
{
    mxt_quantize_case one;
    mxt_quantize_outputs want;
    alone(c, seq, &one);
    mxt_quantize_outputs_make(&want, &one);
    mxt_quantize_reference(&one, &want);
    const mxa_sequence first = {.length = seq->length, .used = seq->used};
    int64_t heads = c->spec.heads, dims = c->spec.head_dim;
    const uint8_t *got_payload = o->quantized.data, *want_payload = want.quantized.data;
    for (int64_t at = 0; at < seq->length * heads * dims; at++) {
        int64_t d = at % dims, head = at / dims % heads, s = at / dims / heads;
        int got = got_payload[mxa_tensor_index(&o->quantized, seq, s, head, d)];
        int expected = want_payload[mxa_tensor_index(&want.quantized, &first, s, head, d)];
        CHECK(got == expected && (s < seq->used || got == 0),
              "sequence %lld token %lld head %lld d %lld: code 0x%02X, alone 0x%02X", (long long)b,
              (long long)s, (long long)head, (long long)d, got, expected);
        for (mxattn_axis axis = MXATTN_HDIM; axis <= MXATTN_SEQ; axis++) {
            const mxattn_scales *mine = &o->quantized.scales[axis];
            const mxattn_scales *its = &want.quantized.scales[axis];
            if (mine->data) {
                int scale = mine->data[mxa_scales_offset(mine, axis, seq, b, s, head, d)];
                int other = its->data[mxa_scales_offset(its, axis, &first, 0, s, head, d)];
                CHECK(scale == other, "sequence %lld token %lld head %lld d %lld: scale %d, %d",
                      (long long)b, (long long)s, (long long)head, (long long)d, scale, other);
            }
        }
    }
    if (c->spec.tags.flags & MXATTN_CENTRED) {
        CHECK(memcmp(o->quantized.centre + b * heads * dims, want.quantized.centre,
                     (size_t)(heads * dims) * sizeof(float)) == 0,
              "centre of sequence %lld", (long long)b);
    }
    mxt_quantize_outputs_free(&want);
    mxt_quantize_case_free(&one);
}

static void batches(void)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        mxt_random random = {seed * 77};
        mxt_quantize_spec spec = mxt_quantize_spec_random(&random);
        mxt_case("batch, seed %llu, %s", (unsigned long long)seed, mxt_quantize_spec_text(&spec));
        mxt_quantize_case c;
        mxt_quantize_outputs o;
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_case_fill(&c, (mxt_kind)(seed % MXT_KINDS), seed);
        mxt_quantize_outputs_make(&o, &c);
        mxt_quantize_reference(&c, &o);
        mxa_sequence seq;
        memset(&seq, 0, sizeof seq);
        for (int64_t b = 0; b < spec.batch; b++) {
            mxa_sequence_next(&c.batch, b, &seq);
            check_sequence(&c, &o, &seq, b);
        }
        const mxa_sequence start = {0};
        for (int64_t row = spec.jagged ? c.cu_seqlens[spec.batch] : o.quantized.shape[1];
             row < o.quantized.shape[1]; row++) {
            for (int64_t d = 0; d < spec.head_dim; d++) {
                int64_t index = mxa_tensor_index(&o.quantized, &start, row, 0, d);
                CHECK(((uint8_t *)o.quantized.data)[index] == 0, "row %lld of no sequence",
                      (long long)row);
            }
        }
        mxt_quantize_outputs_free(&o);
        mxt_quantize_case_free(&c);
    }
}

static void values(void)
{
    mxt_case("value with a centre, finite or not");
    uint8_t codes[3] = {0x38, 0xB8, 0x7E}, scales[1] = {128};
    float centre[3] = {0.25F, NAN, -INFINITY}, wide[3];
    mxattn_tensor t = {.tags = {MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, MXATTN_CENTRED},
                       .ndim = 4,
                       .data = codes,
                       .shape = {1, 1, 1, 3},
                       .stride = {3, 3, 3, 1},
                       .centre = centre};
    t.scales[MXATTN_HDIM] = (mxattn_scales){scales, MXATTN_LINEAR, 0, 1, 1, 1, NULL};
    static const double want[3] = {2.25, -2, 896}, bare[3] = {2, -2, 896};
    const mxa_sequence seq = {.length = 1, .used = 1};
    mxattn_tensor w = {.tags = {.dtype = MXATTN_F32},
                       .ndim = 4,
                       .data = wide,
                       .shape = {1, 1, 1, 3},
                       .stride = {3, 3, 3, 1}};
    mxa_dequantize_tensor(&t, &w, &(mxa_batch){1, 1, NULL, NULL});
    for (int d = 0; d < 3; d++) {
        CHECK(mxa_tensor_value(&t, &seq, 0, 0, 0, d) == want[d], "value %d", d);
        CHECK(mxa_tensor_value_uncentred(&t, &seq, 0, 0, 0, d) == bare[d], "bare value %d", d);
        CHECK((double)wide[d] == want[d], "dequantized %d", d);
        CHECK(mxa_tensor_value(&w, &seq, 0, 0, 0, d) == want[d], "wide value %d", d);
    }
}

static void b43_index(void)
{
    mxt_case("B43 element offset 2^32");
    const mxattn_tensor t = {
        .ndim = 4, .shape = {1, (1 << 20) + 1, 1, 32}, .stride = {0, 4096, 32, 1}};
    const mxa_sequence seq = {.first = 1 << 20};
    CHECK(mxa_tensor_index(&t, &seq, 0, 0, 7) == ((int64_t)1 << 32) + 7, "index");
    mxattn_scales tiled = {.layout = MXATTN_TILED, .stride_head = 1 << 24, .stride_row = 1};
    CHECK(mxa_scales_offset(&tiled, MXATTN_HDIM, &(mxa_sequence){0}, 0, 0, 1 << 10, 0) ==
              (int64_t)512 << 34,
          "scale offset");
}

int main(void)
{
    batches();
    values();
    b43_index();
    return mxt_finish();
}
