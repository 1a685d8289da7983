/* matrix.h: a tensor for tests of the fused producers: wide or MXFP8, dense rows or jagged, with
 * any scale layouts and gaps between rows, between guard pages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_MATRIX_H
#define MXT_MATRIX_H

#include "fill.h"
#include "mxattn/mxattn.h"

typedef struct mxt_matrix {
    mxattn_tensor t;
    void *memory;
    size_t bytes, scale_bytes[2];
} mxt_matrix;

enum { MXT_ABSENT = -1 };

/* Memory is 0xFF. layouts: by axis, mxattn_scale_layout or MXT_ABSENT. gap: unused elements between
 * the rows of a token. */
void mxt_matrix_make(mxt_matrix *m, mxattn_tags tags, const int layouts[2], int32_t ndim,
                     const int64_t *shape, int64_t gap, const mxattn_sequences *sequences);
void mxt_matrix_free(mxt_matrix *m);

/* E4M3 or E5M2 in random blocks among the `blocks` (a mask of 1 << mxattn_block), random layouts.
 */
void mxt_matrix_make_random(mxt_matrix *m, mxt_random *random, int blocks, int32_t ndim,
                            const int64_t *shape, const mxattn_sequences *sequences);

/* Quantizes (with ref) or rounds values of this kind. */
void mxt_matrix_fill(mxt_matrix *m, mxt_kind kind, uint64_t seed,
                     const mxattn_sequences *sequences);

/* The same tensor in memory of its own, 0xFF again. */
void mxt_matrix_like(mxt_matrix *m, const mxt_matrix *other);

/* Reports the first byte that differs, in payload or scales. Wide NaNs count as equal. */
int mxt_matrix_same(const char *what, const mxt_matrix *got, const mxt_matrix *want);

/* Relative RMS of the elements of two tensors of one wide type; gaps are skipped. */
double mxt_matrix_distance(const mxt_matrix *got, const mxt_matrix *want);

/* The value of an element of a wide tensor at an element offset. */
double mxt_matrix_wide(const mxt_matrix *m, int64_t offset);

#endif
