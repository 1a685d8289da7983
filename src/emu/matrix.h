/* matrix.h: operands of tensor cores in shared memory: descriptors, layouts, swizzles.
 *
 * Canonical layouts (PTX ISA 9.7.15.5.1.2, 9.7.16.3). x is a row of A or a column of B, W the
 * swizzle's width in bytes, T elements 16 bytes:
 *   along K, swizzled   (x/8)*stride + (x%8)*W + k
 *   along K, none       (x/8)*stride + (x%8)*16 + (k/T)*leading + k%T
 *   along x, swizzled   (k/8)*stride + (k%8)*W + (x/W)*leading + x%W
 *   along x, none       (x/T)*stride + (k/8)*leading + (k%8)*16 + x%T
 * with x (along x) and k (along K) in bytes. A swizzle moves the 16-byte unit u of an address's
 * 128-byte line to u ^ ((address >> 7) & (W/16 - 1)).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_MATRIX_H
#define MXA_EMU_MATRIX_H

#include "emu/emu.h"

typedef struct mxa_emu_matrix {
    uint32_t start;   /* address without a CTA's rank */
    uint32_t leading; /* bytes */
    uint32_t stride;
    uint32_t swizzle; /* W: 128, 64, 32; 0: none */
    int along_x;      /* stored along x: transposed, MN-major */
} mxa_emu_matrix;

/* A descriptor of this arch (90 or 100) bit by bit. What the ISA refuses is reported (H14): 0. */
int mxa_emu_matrix_decode(uint64_t descriptor, int arch, int along_x, mxa_emu_matrix *matrix,
                          mxa_emu_site site);

/* Address of byte k of row x (along K), or of byte x of line k (along x). */
uint32_t mxa_emu_matrix_address(const mxa_emu_matrix *matrix, uint32_t x, uint32_t k);

/* `rows` x of `bytes` bytes along K (a multiple of 16); along x: `rows` k of `bytes` bytes of x. */
void mxa_emu_matrix_check(const mxa_emu_matrix *matrix, const mxa_emu_access *as, int rank,
                          uint32_t rows, uint32_t bytes);
/* The same bytes to out[row][bytes], unswizzled. They were checked to lie within the CTA. */
void mxa_emu_matrix_read(const mxa_emu_matrix *matrix, const mxa_emu_cta *cta, uint32_t rows,
                         uint32_t bytes, unsigned char *out);

#endif
