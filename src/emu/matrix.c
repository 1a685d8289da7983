/* matrix.c: operands of tensor cores in shared memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/matrix.h"

#include "emu/map.h"
#include "emu/stale.h"

#include <string.h>

static uint64_t bits(uint64_t x, int from, int to)
{
    return x >> from & (((uint64_t)1 << (to - from + 1)) - 1);
}

static int refuse(uint64_t descriptor, const char *what, mxa_emu_site site)
{
    mxa_emu_error(14, "matrix descriptor that the ISA refuses", site, 0, "0x%016llx: %s",
                  (unsigned long long)descriptor, what);
    return 0;
}

int mxa_emu_matrix_decode(uint64_t descriptor, int arch, int along_x, mxa_emu_matrix *matrix,
                          mxa_emu_site site)
{
    static const uint32_t hopper[] = {0, 128, 64, 32};
    static const uint32_t blackwell[] = {0, 1, 128, 1, 64, 1, 32, 1}; /* 1: none of ours */
    matrix->start = (uint32_t)bits(descriptor, 0, 13) << 4;
    matrix->leading = (uint32_t)bits(descriptor, 16, 29) << 4;
    matrix->stride = (uint32_t)bits(descriptor, 32, 45) << 4;
    matrix->along_x = along_x;
    if (bits(descriptor, 14, 15) || bits(descriptor, 30, 31)) {
        return refuse(descriptor, "bits 14-15 and 30-31 must be 0", site);
    }
    if (bits(descriptor, 49, 51)) {
        return refuse(descriptor, "a base offset (bits 49-51): start the pattern aligned", site);
    }
    if (arch == 90) {
        matrix->swizzle = hopper[bits(descriptor, 62, 63)];
        if (bits(descriptor, 46, 48) || bits(descriptor, 52, 61)) {
            return refuse(descriptor, "bits 46-48 and 52-61 must be 0 on Hopper", site);
        }
    } else {
        matrix->swizzle = blackwell[bits(descriptor, 61, 63)];
        if (bits(descriptor, 46, 48) != 1) {
            return refuse(descriptor, "bits 46-48 must be 1 on Blackwell", site);
        }
        if (bits(descriptor, 52, 60)) {
            return refuse(descriptor, "bits 52-60 must be 0 on sm_100", site);
        }
        if (matrix->swizzle == 1) {
            return refuse(descriptor, "swizzle (bits 61-63) must be 0, 2, 4 or 6", site);
        }
    }
    const uint32_t pattern = 8 * matrix->swizzle;
    if (pattern && (matrix->start % pattern >= matrix->swizzle || matrix->stride % pattern)) {
        return refuse(descriptor,
                      "the swizzle's pattern must start at a multiple of 8 rows (base offset 0)",
                      site);
    }
    return 1;
}

/* Byte b of line i; `next` bytes on the layout continues `leading` further. */
static uint32_t linear(const mxa_emu_matrix *m, uint32_t x, uint32_t k)
{
    if (m->swizzle) {
        const uint32_t line = m->along_x ? k : x, byte = m->along_x ? x : k;
        const uint32_t chunk = m->along_x ? byte / m->swizzle : 0;
        return m->start + line / 8 * m->stride + line % 8 * m->swizzle + chunk * m->leading + byte -
               chunk * m->swizzle;
    }
    if (m->along_x) {
        return m->start + x / 16 * m->stride + k / 8 * m->leading + k % 8 * 16 + x % 16;
    }
    return m->start + x / 8 * m->stride + x % 8 * 16 + k / 16 * m->leading + k % 16;
}

uint32_t mxa_emu_matrix_address(const mxa_emu_matrix *matrix, uint32_t x, uint32_t k)
{
    const uint32_t width = matrix->swizzle;
    const int pattern = width == 128  ? 3
                        : width == 64 ? 2
                                      : width == 32; /* as tensor maps say it */
    return mxa_emu_swizzle(linear(matrix, x, k), pattern);
}

enum { PERIOD = 8, CHUNK = 16, MOST_CHUNKS = 32 };

/* Where the chunks of a row of mxa_emu_matrix_check lie: eight rows further all is `step` further,
 * since a stride is a multiple of the swizzle's pattern. */
typedef struct chunks {
    uint32_t at[PERIOD][MOST_CHUNKS], step;
} chunks;

static void find_chunks(const mxa_emu_matrix *m, uint32_t rows, uint32_t bytes, chunks *c)
{
    for (uint32_t row = 0; row < PERIOD && row < rows; row++) {
        for (uint32_t byte = 0; byte < bytes; byte += CHUNK) {
            c->at[row][byte / CHUNK] = m->along_x ? mxa_emu_matrix_address(m, byte, row)
                                                  : mxa_emu_matrix_address(m, row, byte);
        }
    }
    c->step = m->along_x && !m->swizzle ? m->leading : m->stride;
}

void mxa_emu_matrix_check(const mxa_emu_matrix *m, const mxa_emu_access *as, int rank,
                          uint32_t rows, uint32_t bytes)
{
    chunks c;
    find_chunks(m, rows, bytes, &c);
    const uint32_t where = (uint32_t)rank << MXA_EMU_RANK_SHIFT;
    uint32_t block = 0;
    uint64_t units = 0; /* of the block, gathered while accesses stay in it */
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t chunk = 0; chunk < bytes / CHUNK; chunk++) {
            const uint32_t address = c.at[row % PERIOD][chunk] + row / PERIOD * c.step;
            const uint32_t in = address / 1024 * 1024;
            if (units && in != block) {
                mxa_emu_check_units(as, where + block, units, 0);
                units = 0;
            }
            block = in;
            units |= (uint64_t)1 << address % 1024 / 16;
        }
    }
    mxa_emu_check_units(as, where + block, units, 0);
}

void mxa_emu_matrix_read(const mxa_emu_matrix *m, const mxa_emu_cta *cta, uint32_t rows,
                         uint32_t bytes, unsigned char *out)
{
    chunks c;
    find_chunks(m, rows, bytes, &c);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t chunk = 0; chunk < bytes / CHUNK; chunk++) {
            const uint32_t from =
                c.at[row % PERIOD][chunk] + row / PERIOD * c.step - MXA_EMU_SHARED_BASE;
            unsigned char *to = out + (size_t)row * bytes + (size_t)chunk * CHUNK;
            if (from <= MXA_EMU_SHARED_BYTES - CHUNK) {
                memcpy(to, cta->shared + from, CHUNK);
                if (cta->stale_units) {
                    mxa_emu_stale_serve(cta, from, to);
                }
            } else {
                memset(to, 0xFF, CHUNK); /* reported when it was issued */
            }
        }
    }
}
