/* quantize_case.h: one quantization with every freedom the contract gives: shapes, jagged batches,
 * seqused, strides, blocks, scale layouts, centre, transposed payload.
 *
 * Inputs and outputs lie between guard pages; bytes of a buffer that belong to no element are 0xFF,
 * and stay so. Make a case from a spec, fill its input, make two sets of outputs, run two
 * implementations, compare whole buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_QUANTIZE_CASE_H
#define MXT_QUANTIZE_CASE_H

#include "backend.h"
#include "fill.h"

#include <stddef.h>
#include <stdint.h>

enum { MXT_SEQUENCES_MOST = 8, MXT_NO_SCALES = -1 };

typedef struct mxt_quantize_spec {
    int jagged;
    int64_t batch;                       /* at most MXT_SEQUENCES_MOST */
    int64_t lengths[MXT_SEQUENCES_MOST]; /* dense: the first for all */
    int has_used;
    int64_t used[MXT_SEQUENCES_MOST];
    int64_t tail; /* jagged: rows behind the last sequence */
    int64_t heads, head_dim;
    mxattn_dtype wide;
    mxattn_tags tags;
    int layouts[2]; /* by axis: mxattn_scale_layout or MXT_NO_SCALES */
    int packed;     /* wide is q within packed qkv, payload rows have gaps */
    int apart;      /* scale strides of the caller's */
    int given_rows; /* cu_scale given, with room to spare */
    int transposed;
    int aligned; /* addresses and strides as GPUs need them: multiples of 16, tiled scales of 512 */
} mxt_quantize_spec;

typedef struct mxt_quantize_case {
    mxt_quantize_spec spec;
    int32_t cu_seqlens[MXT_SEQUENCES_MOST + 1];
    int32_t seqused[MXT_SEQUENCES_MOST];
    int32_t cu_scale[MXT_SEQUENCES_MOST + 1];
    mxa_batch batch;
    mxattn_tensor wide; /* normalised, as backends get it */
    size_t wide_bytes;
} mxt_quantize_case;

typedef struct mxt_quantize_outputs {
    mxattn_tensor quantized, transposed;
    void *memory[5]; /* payload, two scale arrays, transposed, centre; or NULL */
    size_t bytes[5];
} mxt_quantize_outputs;

/* A legal spec. tags.block NONE, lengths and so on are all chosen. */
mxt_quantize_spec mxt_quantize_spec_random(mxt_random *random);

/* One line that repeats a spec in a report. */
const char *mxt_quantize_spec_text(const mxt_quantize_spec *spec);

/* Input memory is 0xFF. Case and outputs point into themselves: they must not move. */
void mxt_quantize_case_make(mxt_quantize_case *c, const mxt_quantize_spec *spec);
void mxt_quantize_case_fill(mxt_quantize_case *c, mxt_kind kind, uint64_t seed);
void mxt_quantize_case_free(mxt_quantize_case *c);

void mxt_quantize_outputs_make(mxt_quantize_outputs *o, const mxt_quantize_case *c);
void mxt_quantize_outputs_free(mxt_quantize_outputs *o);

/* mxa_quantize_tensor, and its payload transposed one byte at a time. */
void mxt_quantize_reference(const mxt_quantize_case *c, mxt_quantize_outputs *o);

/* The call an implementation gets. */
mxa_quantize_call mxt_quantize_call_of(const mxt_quantize_case *c, const mxt_quantize_outputs *o);

/* 1 when all buffers have equal bytes; else reports the first difference. */
int mxt_quantize_same(const mxt_quantize_outputs *got, const mxt_quantize_outputs *want);

#endif
