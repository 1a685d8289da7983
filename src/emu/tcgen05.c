/* tcgen05.c: Blackwell's tensor cores: instruction descriptors, copies, products, commits.
 *
 * A product's operands are checked when it is issued and read when it runs. Row m of D lies in lane
 * m (M = 64: lane 32*(m/16) + m%16, or 16 further), column n in column n. A pair of CTAs has M =
 * 256: each holds 128 rows of A and D, half of B's columns, scales of its own rows of A and of all
 * columns of B.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/tcgen05.h"

#include "emu/emu.h"
#include "emu/matrix.h"
#include "emu/product.h"
#include "emu/tensor.h"

#include <string.h>

enum { ROWS = 128, ROW_BYTES = 32, MOST_N = 256, A_COLUMNS = ROW_BYTES / 4, ALL = 0xFF };

/* ------------------------------------------------------------------------------------------------
 * Fences and commits
 * --------------------------------------------------------------------------------------------- */

void mxa_emu_tcgen05_fence_before(void)
{
    mxa_emu_fence_in_turn(1, MXA_EMU_MEETING_SITE());
}

void mxa_emu_tcgen05_fence_after(void)
{
    mxa_emu_fence_in_turn(0, MXA_EMU_MEETING_SITE());
}

typedef struct commit_op {
    mxa_emu_op base;
    uint32_t barrier;
    mxa_emu_release release;
} commit_op;

static void arrive(mxa_emu_op *op)
{
    commit_op *c = (commit_op *)op;
    mxa_emu_mbarrier_arrive_from(op, c->barrier, &c->release);
}

void mxa_emu_tcgen05_commit(uint32_t barrier, uint32_t mask, int pair)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    const uint32_t offset = barrier & ((1u << MXA_EMU_RANK_SHIFT) - 1);
    mxa_emu_tensor_group(thread->cta, pair ? 2 : 1, site);
    if (pair && (mask == 0 || mask >> mxa_emu_now->cluster)) {
        mxa_emu_error(0, "tcgen05.commit to a CTA that is not there", site, 0,
                      "mask 0x%x, cluster of %d", mask, mxa_emu_now->cluster);
        return;
    }
    mxa_emu_fence_publish(thread);
    for (uint32_t rank = 0; rank < (uint32_t)mxa_emu_now->cluster; rank++) {
        if (pair ? mask >> rank & 1 : rank == (uint32_t)thread->cta->rank) {
            mxa_emu_pipe *pipe = mxa_emu_tensor_pipe();
            const mxa_emu_access as = mxa_emu_issue(pipe, MXA_EMU_COMMIT, site);
            commit_op *c = mxa_emu_op_new(sizeof *c, arrive);
            c->barrier = offset | rank << MXA_EMU_RANK_SHIFT;
            c->release = mxa_emu_release_take();
            mxa_emu_push(pipe, &c->base, &as);
        }
    }
    mxa_emu_pause();
}

/* ------------------------------------------------------------------------------------------------
 * Copies: rows of shared memory to columns, word j of a row to column j (PTX ISA 9.7.16.9.2)
 * --------------------------------------------------------------------------------------------- */

typedef struct copy_shape {
    uint8_t rows, columns;
    uint8_t halves; /* lanes that are written, as mxa_emu_check_tmem takes them */
} copy_shape;

static const copy_shape copy_shapes[] = {
    [MXA_EMU_COPY_32X128B_WARPX4] = {32, 4, ALL}, [MXA_EMU_COPY_64X128B_02_13] = {64, 4, ALL},
    [MXA_EMU_COPY_64X128B_01_23] = {64, 4, ALL},  [MXA_EMU_COPY_128X128B] = {128, 4, ALL},
    [MXA_EMU_COPY_128X256B] = {128, 8, ALL},      [MXA_EMU_COPY_4X256B] = {4, 8, 0x55},
};

/* The row that goes to a lane; -1: none. */
static int copied_row(int shape, int lane)
{
    switch (shape) {
    case MXA_EMU_COPY_32X128B_WARPX4:
        return lane % 32;
    case MXA_EMU_COPY_64X128B_02_13:
        return lane % 64;
    case MXA_EMU_COPY_64X128B_01_23:
        return lane / 64 * 32 + lane % 32;
    case MXA_EMU_COPY_4X256B:
        return lane % 32 ? -1 : lane / 32;
    default:
        return lane;
    }
}

typedef struct copy_op {
    mxa_emu_op base;
    mxa_emu_cta *target[2];
    mxa_emu_matrix from;
    uint32_t column;
    int shape;
} copy_op;

static void copy(mxa_emu_op *op)
{
    const copy_op *c = (const copy_op *)op;
    const uint32_t rows = copy_shapes[c->shape].rows, bytes = copy_shapes[c->shape].columns * 4u;
    for (int t = 0; t < 2 && c->target[t]; t++) {
        static _Thread_local unsigned char from[ROWS * ROW_BYTES];
        mxa_emu_matrix_read(&c->from, c->target[t], rows, bytes, from);
        for (int lane = 0; lane < MXA_EMU_TMEM_LANES; lane++) {
            const int row = copied_row(c->shape, lane);
            if (row >= 0) {
                uint32_t *to = &c->target[t]->tmem[lane][c->column];
                if (bytes == 16) { /* WHY apart: the call takes longer than such a copy */
                    memcpy(to, from + (uint32_t)row * 16, 16);
                } else {
                    memcpy(to, from + (uint32_t)row * bytes, bytes);
                }
            }
        }
    }
}

void mxa_emu_tcgen05_copy(uint32_t to, uint64_t from, int shape, int pair)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    const copy_shape *s = &copy_shapes[shape];
    mxa_emu_cta *cta = mxa_emu_now->thread->cta, *peer = NULL;
    mxa_emu_matrix matrix;
    mxa_emu_tensor_group(cta, pair ? 2 : 1, site);
    if (!mxa_emu_matrix_decode(from, 100, 0, &matrix, site) ||
        (pair && !(peer = mxa_emu_peer(cta, site)))) {
        return;
    }
    if (matrix.swizzle || to >> 16) {
        mxa_emu_error(matrix.swizzle ? 14 : 13, "tcgen05.cp", site, 0,
                      matrix.swizzle ? "its source has no swizzle (%u bytes)"
                                     : "it starts at lane 0, not at lane %u",
                      matrix.swizzle ? matrix.swizzle : to >> 16);
        return;
    }
    mxa_emu_pipe *pipe = mxa_emu_tensor_pipe();
    const mxa_emu_access as = mxa_emu_issue(pipe, MXA_EMU_COPY, site);
    copy_op *c = mxa_emu_op_new(sizeof *c, copy);
    c->target[0] = cta;
    c->target[1] = peer;
    c->from = matrix;
    c->column = to;
    c->shape = shape;
    for (int t = 0; t < 2 && c->target[t]; t++) {
        mxa_emu_matrix_check(&matrix, &as, c->target[t]->rank, s->rows, s->columns * 4u);
        mxa_emu_check_tmem(c->target[t], &as, s->halves, to, s->columns, 1);
    }
    if (to + s->columns > MXA_EMU_TMEM_COLUMNS) {
        mxa_emu_free(c); /* reported */
        return;
    }
    mxa_emu_push(pipe, &c->base, &as);
    mxa_emu_pause();
}

/* ------------------------------------------------------------------------------------------------
 * Instruction descriptors (PTX ISA 9.7.16.4.2)
 * --------------------------------------------------------------------------------------------- */

typedef struct instruction {
    mxattn_dtype a_type, b_type;
    int m, n, f16;
    int a_along_m, b_along_n;
    int scale_a, scale_b; /* bytes of the scale words */
} instruction;

static uint32_t field(uint32_t bits, int from, int to)
{
    return bits >> from & ((1u << (to - from + 1)) - 1);
}

static int refuse(uint32_t bits, const char *what, mxa_emu_site site)
{
    mxa_emu_error(15, "instruction descriptor that the ISA refuses", site, 0, "0x%08x: %s", bits,
                  what);
    return 0;
}

/* Fields of all kinds. */
static int decode_common(uint32_t bits, const mxa_emu_tcgen05 *p, instruction *i, mxa_emu_site site)
{
    const uint32_t a = field(bits, 7, 9), b = field(bits, 10, 12);
    const int halves = p->kind == MXA_EMU_KIND_F16;
    if (a > 1 || b > 1) {
        return refuse(bits,
                      halves ? "kind::f16 has F16 (0) and BF16 (1) only"
                             : "types other than E4M3 (0) and E5M2 (1) are not emulated",
                      site);
    }
    if (halves && a != b) {
        return refuse(bits, "kind::f16 multiplies equal types", site);
    }
    i->a_type = halves ? (a ? MXATTN_BF16 : MXATTN_F16) : a ? MXATTN_E5M2 : MXATTN_E4M3;
    i->b_type = halves ? i->a_type : b ? MXATTN_E5M2 : MXATTN_E4M3;
    if (field(bits, 0, 3) || field(bits, 6, 6)) {
        return refuse(bits, "bits 0-3 and 6 must be 0 (sparse products are not emulated)", site);
    }
    if (field(bits, 13, 14)) {
        return refuse(bits, "negation (bits 13-14) is not emulated", site);
    }
    i->a_along_m = (int)field(bits, 15, 15);
    i->b_along_n = (int)field(bits, 16, 16);
    i->n = (int)field(bits, 17, 22) * 8;
    i->m = (int)field(bits, 24, 28) * 16;
    if (i->n < 8 || i->n > MOST_N || (p->pair && i->n % 16)) {
        return refuse(bits, "N is 8 to 256 by 8; of a pair by 16", site);
    }
    if (!halves && i->b_along_n && i->n % (p->pair ? 32 : 16)) {
        return refuse(bits, "B of 8 bits along N: N by 16; of a pair by 32", site);
    }
    if (p->a_in_tensor && i->a_along_m) {
        return refuse(bits, "A in tensor memory lies along K (bit 15)", site);
    }
    return 1;
}

static int decode(const mxa_emu_tcgen05 *p, instruction *i, mxa_emu_site site)
{
    const uint32_t bits = p->instruction;
    if (!decode_common(bits, p, i, site)) {
        return 0;
    }
    if (p->kind == MXA_EMU_KIND_MXF8F6F4) {
        i->f16 = 0;
        i->scale_b = (int)field(bits, 4, 5);
        i->scale_a = (int)field(bits, 29, 30);
        if (!field(bits, 23, 23)) {
            return refuse(bits, "kind::mxf8f6f4 has UE8M0 scales (bit 23)", site);
        }
        if (field(bits, 24, 26) || field(bits, 31, 31)) {
            return refuse(bits, "bits 24-26 and 31 must be 0", site);
        }
        if (i->m != (p->pair ? 256 : 128)) {
            return refuse(bits, "M of a block-scaled product is 128; of a pair 256", site);
        }
        return 1;
    }
    i->f16 = field(bits, 4, 5) == 0;
    i->scale_a = i->scale_b = 0;
    if (field(bits, 4, 5) > 1 || (i->f16 && i->a_type == MXATTN_BF16)) {
        return refuse(bits, "D (bits 4-5) is F32 (1); F16 (0) not with BF16 operands", site);
    }
    if (field(bits, 23, 23) || field(bits, 29, 31)) {
        return refuse(bits, "bits 23 and 29-31 must be 0", site);
    }
    if (p->pair ? i->m != 256 : i->m != 64 && i->m != 128) {
        return refuse(bits, "M is 64 or 128; of a pair 256 (128 is not emulated)", site);
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------
 * Products
 * --------------------------------------------------------------------------------------------- */

typedef struct product {
    mxa_emu_op base;
    mxa_emu_tcgen05 given;
    instruction instruction;
    mxa_emu_cta *ctas[2]; /* those of the pair, by rank; [1] NULL: one CTA */
    mxa_emu_matrix a, b;
    uint32_t d_lane, d_column, a_column, scale_a, scale_b;
} product;

static int element_bytes(const instruction *i)
{
    return i->a_type == MXATTN_E4M3 || i->a_type == MXATTN_E5M2 ? 1 : 2;
}

/* rows x 32 bytes of an operand, or, along x, K lines of all x. */
static void extent(const mxa_emu_matrix *m, int x, int bytes, uint32_t *rows, uint32_t *row_bytes)
{
    *rows = (uint32_t)(m->along_x ? ROW_BYTES / bytes : x);
    *row_bytes = (uint32_t)(m->along_x ? x * bytes : ROW_BYTES);
}

static int ctas_of(const product *p)
{
    return p->ctas[1] ? 2 : 1;
}

/* Rows of A and D, columns of B, that one CTA holds. */
static int own_rows(const product *p)
{
    return p->instruction.m / ctas_of(p);
}

static int own_columns(const product *p)
{
    return p->instruction.n / ctas_of(p);
}

/* Operands to [x][k] (b: [n][k] or, along n, [k][n] with `n` columns), from one CTA. */
static void read_a(const product *p, const mxa_emu_cta *cta, unsigned char *a)
{
    static _Thread_local unsigned char lines[ROWS * ROW_BYTES];
    const int bytes = element_bytes(&p->instruction), count = ROW_BYTES / bytes;
    const int rows = own_rows(p);
    if (p->given.a_in_tensor) {
        for (int m = 0; m < rows; m++) {
            const uint32_t lane =
                rows == 64 ? (uint32_t)(32 * (m / 16) + m % 16) + p->d_lane : (uint32_t)m;
            memcpy(a + m * ROW_BYTES, &cta->tmem[lane][p->a_column], ROW_BYTES);
        }
        return;
    }
    uint32_t line_count, line_bytes;
    extent(&p->a, rows, bytes, &line_count, &line_bytes);
    mxa_emu_matrix_read(&p->a, cta, line_count, line_bytes, p->a.along_x ? lines : a);
    for (int m = 0; p->a.along_x && m < rows; m++) {
        for (int k = 0; k < count; k++) {
            memcpy(a + (m * count + k) * bytes, lines + (k * rows + m) * bytes, (size_t)bytes);
        }
    }
}

static void read_b(const product *p, unsigned char *b)
{
    static _Thread_local unsigned char half[MOST_N * ROW_BYTES];
    const int bytes = element_bytes(&p->instruction), columns = own_columns(p);
    uint32_t rows, row_bytes;
    extent(&p->b, columns, bytes, &rows, &row_bytes);
    if (!p->b.along_x || ctas_of(p) == 1) {
        for (int c = 0; c < ctas_of(p); c++) {
            mxa_emu_matrix_read(&p->b, p->ctas[c], rows, row_bytes,
                                b + (size_t)(c * columns) * ROW_BYTES);
        }
        return;
    }
    for (int c = 0; c < 2; c++) { /* lines of K, half of each from either CTA */
        mxa_emu_matrix_read(&p->b, p->ctas[c], rows, row_bytes, half);
        for (uint32_t k = 0; k < rows; k++) {
            memcpy(b + (2 * k + (uint32_t)c) * row_bytes, half + k * row_bytes, row_bytes);
        }
    }
}

/* Scales of `count` rows from the words at `column`; their copies in the four quarters must agree.
 */
static void read_scales(const product *p, const mxa_emu_cta *cta, uint32_t column, int byte,
                        int count, uint8_t *scales)
{
    uint32_t differ = 0;
    for (int lane = 0; lane < 32; lane++) {
        uint32_t at = column;
        for (int x = lane; x < count; x += 32, at++) {
            const uint32_t word = cta->tmem[lane][at];
            scales[x] = (uint8_t)(word >> (8 * byte));
            for (int quarter = 1; quarter < 4; quarter++) {
                differ |= cta->tmem[32 * quarter + lane][at] ^ word;
            }
        }
    }
    if (differ >> (8 * byte) & 0xFF) {
        mxa_emu_error(0, "scales differ between the quarters of tensor memory", p->base.as.site, 0,
                      "columns %u to %u, byte %d", column, column + (uint32_t)(count - 1) / 32,
                      byte);
    }
}

static void run(mxa_emu_op *op)
{
    static _Thread_local unsigned char a[ROWS * ROW_BYTES], b[MOST_N * ROW_BYTES];
    const product *p = (const product *)op;
    const instruction *i = &p->instruction;
    const int count = ROW_BYTES / element_bytes(i), rows = own_rows(p);
    const int scaled = p->given.kind == MXA_EMU_KIND_MXF8F6F4;
    uint8_t scale_a[ROWS], scale_b[MOST_N];
    read_b(p, b);
    for (int c = 0; c < ctas_of(p); c++) {
        mxa_emu_cta *cta = p->ctas[c];
        read_a(p, cta, a);
        if (scaled) {
            read_scales(p, cta, p->scale_a, i->scale_a, rows, scale_a);
            read_scales(p, cta, p->scale_b, i->scale_b, i->n, scale_b);
        }
        const mxa_tensor_core core =
            mxa_emu_now->options.exact_sums ? MXA_TENSOR_CORE_EXACT : MXA_TENSOR_CORE_BLACKWELL;
        mxa_emu_product tile = {{core, i->a_type, i->b_type, count},
                                rows,
                                i->n,
                                a,
                                b,
                                i->b_along_n ? 1 : count,
                                i->b_along_n ? i->n : 1,
                                scaled ? scale_a : NULL,
                                scaled ? scale_b : NULL,
                                &cta->tmem[0][p->d_column],
                                MXA_EMU_TMEM_COLUMNS,
                                i->f16,
                                p->given.accumulate != 0};
        if (rows == 128) {
            mxa_emu_product_run(&tile);
            continue;
        }
        tile.m = 16;
        for (int part = 0; part < 4; part++) { /* M = 64: 16 rows in each quarter */
            tile.a = a + 16 * part * ROW_BYTES;
            tile.d = &cta->tmem[32 * (uint32_t)part + p->d_lane][p->d_column];
            mxa_emu_product_run(&tile);
        }
    }
}

static int overlap(uint32_t a, uint32_t a_columns, uint32_t b, uint32_t b_columns)
{
    return a < b + b_columns && b < a + a_columns;
}

/* Addresses in tensor memory: lanes, and that columns do not overlap; 0: reported. */
static int decode_tensor(product *p, mxa_emu_site site)
{
    const mxa_emu_tcgen05 *g = &p->given;
    const int scaled = g->kind == MXA_EMU_KIND_MXF8F6F4, small = own_rows(p) == 64;
    const uint32_t n = (uint32_t)p->instruction.n;
    p->d_lane = g->d >> 16;
    p->d_column = g->d & 0xFFFF;
    p->a_column = g->a_in_tensor ? (uint32_t)g->a & 0xFFFF : 0;
    p->scale_a = g->scale_a & 0xFFFF;
    p->scale_b = g->scale_b & 0xFFFF;
    const uint32_t a_lane = g->a_in_tensor ? (uint32_t)g->a >> 16 : p->d_lane;
    if ((p->d_lane && !(small && p->d_lane == 16)) || a_lane != p->d_lane ||
        (scaled && (g->scale_a >> 16 || g->scale_b >> 16))) {
        mxa_emu_error(13, "lane of a product's address in tensor memory", site, 0,
                      "D 0x%08x, A 0x%08x, scales 0x%08x and 0x%08x: lane 0 (M = 64: 0 or 16, the "
                      "same for A)",
                      g->d, g->a_in_tensor ? (uint32_t)g->a : 0, g->scale_a, g->scale_b);
        return 0;
    }
    const uint32_t scale_columns = (n + 31) / 32;
    if ((g->a_in_tensor && overlap(p->d_column, n, p->a_column, A_COLUMNS)) ||
        (scaled && (overlap(p->d_column, n, p->scale_a, ROWS / 32) ||
                    overlap(p->d_column, n, p->scale_b, scale_columns)))) {
        mxa_emu_error(13, "operands of a product overlap in tensor memory", site, 0,
                      "D %u to %u, A from %u, scales from %u and %u", p->d_column,
                      p->d_column + n - 1, p->a_column, p->scale_a, p->scale_b);
        return 0;
    }
    return p->d_column + n <= MXA_EMU_TMEM_COLUMNS && p->a_column + A_COLUMNS <= 512 &&
           p->scale_a + ROWS / 32 <= 512 && p->scale_b + scale_columns <= 512;
}

/* All that the product will touch, in every CTA of it. */
static void check(const product *p, const mxa_emu_access *as)
{
    const mxa_emu_tcgen05 *g = &p->given;
    const int bytes = element_bytes(&p->instruction);
    const uint32_t n = (uint32_t)p->instruction.n;
    const uint32_t halves = own_rows(p) == 128 ? ALL : p->d_lane ? 0xAA : 0x55;
    mxa_emu_access d = *as;
    d.kind = MXA_EMU_ACCUMULATE;
    for (int c = 0; c < ctas_of(p); c++) {
        uint32_t rows, row_bytes;
        if (g->a_in_tensor) {
            mxa_emu_check_tmem(p->ctas[c], as, halves, p->a_column, A_COLUMNS, 0);
        } else {
            extent(&p->a, own_rows(p), bytes, &rows, &row_bytes);
            mxa_emu_matrix_check(&p->a, as, p->ctas[c]->rank, rows, row_bytes);
        }
        extent(&p->b, own_columns(p), bytes, &rows, &row_bytes);
        mxa_emu_matrix_check(&p->b, as, p->ctas[c]->rank, rows, row_bytes);
        if (g->kind == MXA_EMU_KIND_MXF8F6F4) {
            mxa_emu_check_tmem(p->ctas[c], as, ALL, p->scale_a, ROWS / 32, 0);
            mxa_emu_check_tmem(p->ctas[c], as, ALL, p->scale_b, (n + 31) / 32, 0);
        }
        if (g->accumulate) {
            mxa_emu_check_tmem(p->ctas[c], &d, halves, p->d_column, n, 0);
        }
        mxa_emu_check_tmem(p->ctas[c], &d, halves, p->d_column, n, 1);
    }
}

/* The CTAs of a product; 0: reported. */
static int decode_ctas(product *p, mxa_emu_site site)
{
    mxa_emu_cta *cta = mxa_emu_now->thread->cta;
    mxa_emu_tensor_group(cta, p->given.pair ? 2 : 1, site);
    p->ctas[0] = cta;
    p->ctas[1] = NULL;
    if (!p->given.pair) {
        return 1;
    }
    if (cta->rank % 2) {
        mxa_emu_error(0, "a pair's product issued by its odd CTA", site, 0,
                      "the even one (rank %d) issues", cta->rank - 1);
        return 0;
    }
    return (p->ctas[1] = mxa_emu_peer(cta, site)) != NULL;
}

void mxa_emu_tcgen05_mma(const mxa_emu_tcgen05 *given)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    product *p = mxa_emu_op_new(sizeof *p, run);
    instruction *i = &p->instruction;
    p->given = *given;
    if (!decode(given, i, site) || !decode_ctas(p, site) ||
        (!given->a_in_tensor && !mxa_emu_matrix_decode(given->a, 100, i->a_along_m, &p->a, site)) ||
        !mxa_emu_matrix_decode(given->b, 100, i->b_along_n, &p->b, site)) {
        mxa_emu_free(p);
        return;
    }
    const int inside = decode_tensor(p, site);
    mxa_emu_pipe *pipe = mxa_emu_tensor_pipe();
    const mxa_emu_access as = mxa_emu_issue(pipe, MXA_EMU_MMA, site);
    check(p, &as);
    if (!inside) {
        mxa_emu_free(p);
        return;
    }
    mxa_emu_push(pipe, &p->base, &as);
    mxa_emu_pause();
}
