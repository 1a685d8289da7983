/* wgmma.c: products of Hopper's warpgroups, asynchronous, with accumulators in registers.
 *
 * An accumulator in flight is a matrix of its own, known by the place of lane 0's registers: later
 * products of the same registers go on with it, and a wait that covers the last of them gives each
 * warp its fragments. Fences, commits and waits are a warp's; products a warpgroup's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/wgmma.h"

#include "emu/emu.h"
#include "emu/matrix.h"
#include "emu/product.h"

#include <string.h>

enum { ROWS = 64, ROW_BYTES = 32, WARPS = 4, MOST_N = 256, ACCUMULATORS = 6, ALL_WARPS = 15 };

/* An accumulator that some warp has not got back yet. */
typedef struct accumulator {
    uint32_t *registers[MXA_EMU_GROUP_LANES]; /* lane 0's is NULL: never used */
    int n, f16, count;                        /* registers of a lane */
    uint32_t last;                            /* clock of the last product */
    int delivered;                 /* bit w: warp w has its fragments; all four: not in flight */
    int goes_on;                   /* nobody has written the registers since they were delivered */
    mxa_emu_site site;             /* of the last product */
    uint32_t value[ROWS * MOST_N]; /* FP32, or FP16 in the low half; [row][n] */
} accumulator;

typedef struct state {
    accumulator accumulators[ACCUMULATORS];
    int fenced; /* bit w: warp w has fenced since it last got registers back */
} state;

static state *state_of(mxa_emu_warp *group)
{
    if (!group->wgmma_state) {
        group->wgmma_state = mxa_emu_alloc(sizeof(state));
    }
    return group->wgmma_state;
}

/* Where register r of a lane lies in D: row and column; packed pairs: of the low half. */
static void fragment(int lane, int r, int f16, int *row, int *column)
{
    const int pair = f16 ? r : r >> 1;
    *row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (pair & 1);
    *column = 8 * (pair >> 1) + 2 * (lane % 4) + (f16 ? 0 : r & 1);
}

static void take_registers(accumulator *d)
{
    for (int lane = 0; lane < MXA_EMU_GROUP_LANES; lane++) {
        for (int r = 0; r < d->count; r++) {
            const uint32_t x = d->registers[lane][r];
            int row, column;
            fragment(lane, r, d->f16, &row, &column);
            uint32_t *value = &d->value[row * d->n + column];
            if (d->f16) {
                value[0] = x & 0xFFFF;
                value[1] = x >> 16;
            } else {
                value[0] = x;
            }
        }
    }
}

static void give_registers(const accumulator *d, int warp)
{
    for (int lane = 32 * warp; lane < 32 * warp + 32; lane++) {
        for (int r = 0; r < d->count; r++) {
            int row, column;
            fragment(lane, r, d->f16, &row, &column);
            const uint32_t *value = &d->value[row * d->n + column];
            d->registers[lane][r] = d->f16 ? value[0] | value[1] << 16 : value[0];
        }
    }
}

static void poison(const accumulator *d)
{
    for (int lane = 0; lane < MXA_EMU_GROUP_LANES; lane++) {
        for (int r = 0; r < d->count; r++) {
            d->registers[lane][r] = MXA_EMU_POISON;
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * A product
 * --------------------------------------------------------------------------------------------- */

typedef struct lane {
    const mxa_emu_wgmma_kind *kind;
    uint32_t *d;
    const uint32_t *a_registers;
    uint64_t a, b;
} lane;

typedef struct product {
    mxa_emu_op base;
    mxa_emu_wgmma_kind kind;
    accumulator *d;
    int from_registers;
    mxa_emu_matrix a, b;
    unsigned char a_bytes[ROWS * ROW_BYTES]; /* from registers */
} product;

static int type_bytes(int type)
{
    return type == MXA_EMU_E4M3 || type == MXA_EMU_E5M2 ? 1 : 2;
}

static mxattn_dtype dtype_of(int type)
{
    static const mxattn_dtype dtypes[] = {MXATTN_E4M3, MXATTN_E5M2, MXATTN_F16, MXATTN_BF16};
    return dtypes[type];
}

/* rows x 32 bytes of A or B in shared memory, or, along x, K lines of all x. */
static void extent(const mxa_emu_matrix *m, int x, int element_bytes, uint32_t *rows,
                   uint32_t *bytes)
{
    *rows = (uint32_t)(m->along_x ? ROW_BYTES / element_bytes : x);
    *bytes = (uint32_t)(m->along_x ? x * element_bytes : ROW_BYTES);
}

static void run(mxa_emu_op *op)
{
    static _Thread_local unsigned char a[ROWS * ROW_BYTES], a_lines[ROWS * ROW_BYTES];
    static _Thread_local unsigned char b[MOST_N * ROW_BYTES];
    product *p = (product *)op;
    const int bytes = type_bytes(p->kind.a_type), count = ROW_BYTES / bytes;
    uint32_t rows, row_bytes;
    const void *from = p->a_bytes;
    if (!p->from_registers) {
        extent(&p->a, ROWS, bytes, &rows, &row_bytes);
        mxa_emu_matrix_read(&p->a, op->cta, rows, row_bytes, p->a.along_x ? a_lines : a);
        for (int m = 0; p->a.along_x && m < ROWS; m++) {
            for (int k = 0; k < count; k++) {
                memcpy(a + (m * count + k) * bytes, a_lines + (k * ROWS + m) * bytes,
                       (size_t)bytes);
            }
        }
        from = a;
    }
    extent(&p->b, p->kind.n, bytes, &rows, &row_bytes);
    mxa_emu_matrix_read(&p->b, op->cta, rows, row_bytes, b);
    mxa_tensor_core core = bytes == 1 ? MXA_TENSOR_CORE_HOPPER_FP8 : MXA_TENSOR_CORE_HOPPER_16;
    if (mxa_emu_now->options.exact_sums) {
        core = MXA_TENSOR_CORE_EXACT;
    }
    const mxa_emu_product tile = {{core, dtype_of(p->kind.a_type), dtype_of(p->kind.b_type), count},
                                  ROWS,
                                  p->kind.n,
                                  from,
                                  b,
                                  p->b.along_x ? 1 : count,
                                  p->b.along_x ? p->kind.n : 1,
                                  NULL,
                                  NULL,
                                  p->d->value,
                                  p->kind.n,
                                  p->kind.f16,
                                  p->kind.accumulate};
    mxa_emu_product_run(&tile);
}

/* Whether registers still hold what was delivered. */
static int is_unchanged(const accumulator *d, lane *const *lanes)
{
    for (int i = 0; i < MXA_EMU_GROUP_LANES; i++) {
        for (int r = 0; r < d->count; r++) {
            int row, column;
            fragment(i, r, d->f16, &row, &column);
            const uint32_t *value = &d->value[row * d->n + column];
            if (lanes[i]->d[r] != (d->f16 ? value[0] | value[1] << 16 : value[0])) {
                return 0;
            }
        }
    }
    return 1;
}

/* The accumulator in flight in these registers, or a new one. NULL: reported. */
static accumulator *accumulator_of(mxa_emu_meeting *meeting, const mxa_emu_wgmma_kind *kind)
{
    state *s = state_of(meeting->warp);
    lane *const *lanes = (lane *const *)meeting->lane;
    accumulator *unused = NULL, *same = NULL;
    for (int i = 0; i < ACCUMULATORS; i++) {
        accumulator *d = &s->accumulators[i];
        const int in_flight = d->registers[0] && d->delivered != ALL_WARPS;
        const int alike = d->n == kind->n && d->f16 == kind->f16;
        if (!in_flight) {
            unused = d;
            same = d->registers[0] == lanes[0]->d && alike ? d : same;
        } else if (d->registers[0] == lanes[0]->d) {
            if (d->delivered || !alike) {
                mxa_emu_error(0, "wgmma accumulator of another shape is in flight", meeting->site,
                              d->site, "wait for the products of these registers first");
                return NULL;
            }
            return d;
        }
    }
    if (!unused) {
        mxa_emu_error(0, "wgmma accumulators that nobody waits for", meeting->site, 0,
                      "%d are in flight", ACCUMULATORS);
        return NULL;
    }
    const int goes_on = kind->accumulate && same && is_unchanged(same, lanes);
    unused = same ? same : unused;
    unused->goes_on = goes_on;
    unused->n = kind->n;
    unused->f16 = kind->f16;
    unused->count = kind->n / (kind->f16 ? 4 : 2);
    unused->delivered = 0;
    unused->last = 0;
    for (int i = 0; i < MXA_EMU_GROUP_LANES; i++) {
        unused->registers[i] = lanes[i]->d;
    }
    if (kind->accumulate) {
        take_registers(unused);
    }
    if (mxa_emu_now->options.late_loads) {
        poison(unused);
    }
    return unused;
}

/* A from four registers of each lane: 8 bytes of a row for every k half. */
static void gather_a(product *p, lane *const *lanes)
{
    for (int i = 0; i < MXA_EMU_GROUP_LANES; i++) {
        for (int r = 0; r < 4; r++) {
            const int row = 16 * (i / 32) + i % 32 / 4 + 8 * (r & 1);
            memcpy(p->a_bytes + row * ROW_BYTES + 16 * (r >> 1) + 4 * (i % 4),
                   &lanes[i]->a_registers[r], 4);
        }
    }
}

static void issue(mxa_emu_meeting *meeting)
{
    lane *const *lanes = (lane *const *)meeting->lane;
    const mxa_emu_wgmma_kind *kind = lanes[0]->kind;
    const int bytes = type_bytes(kind->a_type);
    for (int i = 1; i < MXA_EMU_GROUP_LANES; i++) {
        if (lanes[i]->a != lanes[0]->a || lanes[i]->b != lanes[0]->b) {
            mxa_emu_error(0, "lanes give wgmma different descriptors", meeting->site, 0,
                          "lane %d of the warpgroup", i);
            return;
        }
    }
    product *p = mxa_emu_op_new(sizeof *p, run);
    p->kind = *kind;
    p->from_registers = lanes[0]->a_registers != NULL;
    if ((!p->from_registers &&
         !mxa_emu_matrix_decode(lanes[0]->a, 90, kind->a_along_m, &p->a, meeting->site)) ||
        !mxa_emu_matrix_decode(lanes[0]->b, 90, kind->b_along_n, &p->b, meeting->site) ||
        !(p->d = accumulator_of(meeting, kind))) {
        mxa_emu_free(p);
        return;
    }
    if (((p->d->last == 0 && !p->d->goes_on) || p->from_registers) &&
        state_of(meeting->warp)->fenced != ALL_WARPS) {
        mxa_emu_error(0, "wgmma without wgmma.fence", meeting->site, 0,
                      "registers of a product were accessed since the last fence; all four warps "
                      "must fence before it");
    }
    mxa_emu_pipe *pipe = &meeting->warp->wgmma;
    const mxa_emu_access as = mxa_emu_issue(pipe, MXA_EMU_WGMMA, meeting->site);
    const int rank = p->base.cta->rank;
    uint32_t rows, row_bytes;
    if (p->from_registers) {
        gather_a(p, lanes);
    } else {
        extent(&p->a, ROWS, bytes, &rows, &row_bytes);
        mxa_emu_matrix_check(&p->a, &as, rank, rows, row_bytes);
    }
    extent(&p->b, kind->n, bytes, &rows, &row_bytes);
    mxa_emu_matrix_check(&p->b, &as, rank, rows, row_bytes);
    p->d->last = as.clock;
    p->d->site = meeting->site;
    mxa_emu_push(pipe, &p->base, &as);
}

void mxa_emu_wgmma(const mxa_emu_wgmma_kind *kind, void *d, const uint32_t *a_registers, uint64_t a,
                   uint64_t b)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    lane mine = {kind, d, a_registers, a, b};
    mxa_emu_meet_warpgroup("wgmma.mma_async", issue, (uint64_t)(uintptr_t)kind + (a_registers != 0),
                           &mine, site);
}

/* ------------------------------------------------------------------------------------------------
 * Fence, commit, wait: of a warp
 * --------------------------------------------------------------------------------------------- */

static mxa_emu_warp *group_of(mxa_emu_warp *warp)
{
    return warp - warp->index % WARPS;
}

static void fence(mxa_emu_meeting *meeting)
{
    state_of(group_of(meeting->warp))->fenced |= 1 << meeting->warp->index % WARPS;
}

static void commit(mxa_emu_meeting *meeting)
{
    mxa_emu_warp *warp = meeting->warp;
    warp->wgmma_groups[warp->wgmma_committed++ % 64] = group_of(warp)->wgmma.issued;
}

/* Fragments of products up to `clock` to the registers of a warp. */
static void deliver(mxa_emu_meeting *meeting, uint32_t clock)
{
    state *s = state_of(group_of(meeting->warp));
    const int warp = meeting->warp->index % WARPS;
    for (int n = 0; n < ACCUMULATORS; n++) {
        accumulator *d = &s->accumulators[n];
        if (!d->registers[0] || d->last > clock || d->delivered >> warp & 1) {
            continue;
        }
        int touched = 0;
        for (int i = 0; mxa_emu_now->options.late_loads && i < 32; i++) {
            for (int r = 0; r < d->count; r++) {
                touched |= d->registers[32 * warp + i][r] != MXA_EMU_POISON;
            }
        }
        if (touched) {
            mxa_emu_error(0, "accumulator registers written before wgmma.wait_group", meeting->site,
                          d->site, "by warp %d of the warpgroup", warp);
        }
        give_registers(d, warp);
        s->fenced &= ~(1 << warp);
        d->delivered |= 1 << warp;
    }
}

static void wait(mxa_emu_meeting *meeting)
{
    mxa_emu_warp *warp = meeting->warp, *group = group_of(warp);
    const uint32_t pending = *(const uint32_t *)meeting->lane[0];
    if (warp->wgmma_committed <= pending) {
        return;
    }
    const uint32_t clock = warp->wgmma_groups[(warp->wgmma_committed - pending - 1) % 64];
    mxa_emu_drain(&group->wgmma, clock);
    deliver(meeting, clock);
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        mxa_emu_learn(&meeting->first[i], group->wgmma.component, clock);
    }
}

void mxa_emu_wgmma_fence(void)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    mxa_emu_meet_warp("wgmma.fence", fence, 0, NULL, site);
}

void mxa_emu_wgmma_commit(void)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    mxa_emu_meet_warp("wgmma.commit_group", commit, 0, NULL, site);
}

void mxa_emu_wgmma_wait(int pending)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    mxa_emu_meet_warp("wgmma.wait_group", wait, (uint64_t)pending, &pending, site);
}
