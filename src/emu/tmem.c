/* tmem.c: tensor memory: allocation, loads and stores of warps.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/tmem.h"

#include "emu/emu.h"
#include "emu/tensor.h"

#include <string.h>

mxa_emu_tensor *mxa_emu_tensor_of(mxa_emu_cta *cta)
{
    if (!cta->tensor_state) {
        cta->tensor_state = mxa_emu_alloc(sizeof(mxa_emu_tensor));
    }
    return cta->tensor_state;
}

mxa_emu_cta *mxa_emu_peer(mxa_emu_cta *cta, mxa_emu_site site)
{
    if (mxa_emu_now->cluster != 2) {
        mxa_emu_error(0, "cta_group::2 without a pair of CTAs", site, 0, "the cluster has %d",
                      mxa_emu_now->cluster);
        return NULL;
    }
    return mxa_emu_now->ctas[cta->rank ^ 1];
}

void mxa_emu_tensor_group(mxa_emu_cta *cta, int group, mxa_emu_site site)
{
    mxa_emu_tensor *t = mxa_emu_tensor_of(cta);
    if (t->group && t->group != group) {
        mxa_emu_error(0, "cta_group::1 and cta_group::2 in one kernel", site, 0,
                      "earlier operations used cta_group::%d", t->group);
    }
    t->group = group;
}

/* ------------------------------------------------------------------------------------------------
 * Allocation
 * --------------------------------------------------------------------------------------------- */

static int fits(const mxa_emu_tensor *t, int unit, int units)
{
    int fit = unit + units <= MXA_EMU_ALLOC_UNITS;
    for (int i = unit; fit && i < unit + units; i++) {
        fit = !t->taken[i];
    }
    return fit;
}

/* A unit where `columns` are free in t (and in `other`), any of them; -1: none. */
static int find(const mxa_emu_tensor *t, const mxa_emu_tensor *other, uint32_t columns)
{
    const int units = (int)columns / MXA_EMU_ALLOC_UNIT;
    int found = -1;
    uint32_t count = 0;
    for (int unit = 0; unit < MXA_EMU_ALLOC_UNITS; unit++) {
        if (fits(t, unit, units) && (!other || fits(other, unit, units)) &&
            mxa_emu_random(++count) == 0) {
            found = unit;
        }
    }
    return found;
}

static void take(mxa_emu_cta *cta, int unit, uint32_t columns)
{
    mxa_emu_tensor *t = mxa_emu_tensor_of(cta);
    t->size[unit] = (uint16_t)columns;
    memset(&t->taken[unit], 1, columns / MXA_EMU_ALLOC_UNIT);
    t->last_size = columns;
    t->given = (uint32_t)unit * MXA_EMU_ALLOC_UNIT + 1;
    mxa_emu_tmem_allocated(cta, (uint32_t)unit * MXA_EMU_ALLOC_UNIT, columns);
}

typedef struct request {
    uint32_t slot, columns;
    int pair;
} request;

/* The rules; 0: broken and reported. */
static int check_request(mxa_emu_cta *cta, const request *r, mxa_emu_site site)
{
    const mxa_emu_tensor *t = mxa_emu_tensor_of(cta);
    mxa_emu_tensor_group(cta, r->pair ? 2 : 1, site);
    if (r->columns < 32 || r->columns > 512 || (r->columns & (r->columns - 1))) {
        mxa_emu_error(0, "tcgen05.alloc of a size that is none", site, 0,
                      "%u columns; a power of two from 32 to 512", r->columns);
        return 0;
    }
    if (t->relinquished) {
        mxa_emu_error(0, "tcgen05.alloc after relinquish_alloc_permit", site, 0, "%u columns",
                      r->columns);
        return 0;
    }
    if (t->last_size && r->columns > t->last_size) {
        mxa_emu_error(0, "tcgen05.alloc larger than the one before", site, 0,
                      "%u columns after %u; sizes must not increase", r->columns, t->last_size);
        return 0;
    }
    return 1;
}

/* Asks; `given` tells when it has been served. */
static void ask(mxa_emu_meeting *meeting)
{
    const request *r = meeting->lane[0];
    mxa_emu_cta *cta = meeting->warp->cta;
    mxa_emu_tensor *t = mxa_emu_tensor_of(cta);
    if (!check_request(cta, r, meeting->site) || (r->pair && !mxa_emu_peer(cta, meeting->site))) {
        mxa_emu_abort();
    }
    if (t->wanted) {
        mxa_emu_error(0, "two warps of a CTA in tcgen05.alloc at once", meeting->site, t->wanted_at,
                      "%u columns", r->columns);
        mxa_emu_abort();
    }
    t->wanted = r->columns;
    t->wanted_at = meeting->site;
    t->given = 0;
}

/* Serves the CTA, or the pair when both have asked. */
static int served(void *argument)
{
    mxa_emu_cta *cta = argument;
    mxa_emu_tensor *t = mxa_emu_tensor_of(cta), *other = NULL;
    if (t->given) {
        return 1;
    }
    if (t->group == 2) {
        mxa_emu_cta *peer = mxa_emu_now->ctas[cta->rank ^ 1];
        other = mxa_emu_tensor_of(peer);
        if (other->wanted != t->wanted || other->given) {
            return 0;
        }
        const int unit = find(t, other, t->wanted);
        if (unit >= 0) {
            take(cta, unit, t->wanted);
            take(peer, unit, t->wanted);
        }
        return unit >= 0;
    }
    const int unit = find(t, NULL, t->wanted);
    if (unit >= 0) {
        take(cta, unit, t->wanted);
    }
    return unit >= 0;
}

static void store_address(mxa_emu_meeting *meeting)
{
    const request *r = meeting->lane[0];
    mxa_emu_tensor *t = mxa_emu_tensor_of(meeting->warp->cta);
    const uint32_t address = t->given - 1;
    mxa_emu_access as = mxa_emu_generic(meeting->site);
    as.kind = MXA_EMU_ALLOC;
    mxa_emu_check_shared(&as, r->slot, 4, 1);
    unsigned char *at = mxa_emu_shared(r->slot, 4, meeting->site);
    if (at) {
        memcpy(at, &address, 4);
    }
    t->wanted = 0;
}

void mxa_emu_tmem_alloc(uint32_t slot, uint32_t columns, int pair)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    request r = {slot, columns, pair};
    mxa_emu_meet_warp("tcgen05.alloc", ask, columns, &r, site);
    mxa_emu_until(served, mxa_emu_now->thread->cta, "tcgen05.alloc", site);
    mxa_emu_meet_warp("tcgen05.alloc", store_address, columns, &r, site);
}

static void relinquish(mxa_emu_meeting *meeting)
{
    mxa_emu_tensor_of(meeting->warp->cta)->relinquished = 1;
}

void mxa_emu_tmem_relinquish(int pair)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_meet_warp("tcgen05.relinquish_alloc_permit", relinquish, (uint64_t)pair, NULL, site);
}

/* Loads and stores that no wait has seen. */
static int unwaited(const mxa_emu_cta *cta)
{
    int count = 0;
    for (int w = 0; w < cta->warps; w++) {
        const mxa_emu_warp *warp = &cta->warp[w];
        count += warp->load.issued != warp->load_waited;
        count += warp->store.issued != warp->store_waited;
    }
    return count;
}

static void release(mxa_emu_meeting *meeting)
{
    const request *r = meeting->lane[0];
    mxa_emu_cta *cta = meeting->warp->cta;
    mxa_emu_tensor *t = mxa_emu_tensor_of(cta);
    mxa_emu_tensor_group(cta, r->pair ? 2 : 1, meeting->site);
    const uint32_t unit = r->slot / MXA_EMU_ALLOC_UNIT;
    if (r->slot % MXA_EMU_ALLOC_UNIT || unit >= MXA_EMU_ALLOC_UNITS ||
        t->size[unit] != r->columns || r->columns == 0) {
        mxa_emu_error(13, "tcgen05.dealloc of what was not allocated", meeting->site, 0,
                      "%u columns from %u on", r->columns, r->slot);
        return;
    }
    if (mxa_emu_tensor_pending(cta) || unwaited(cta)) {
        mxa_emu_error(
            18, "tcgen05.dealloc while operations are under way", meeting->site, 0,
            "%d products, copies or commits, %d warps with loads or stores not waited for",
            mxa_emu_tensor_pending(cta), unwaited(cta));
    }
    t->size[unit] = 0;
    memset(&t->taken[unit], 0, r->columns / MXA_EMU_ALLOC_UNIT);
    mxa_emu_tmem_freed(cta, r->slot, r->columns);
}

void mxa_emu_tmem_free(uint32_t at, uint32_t columns, int pair)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    request r = {at, columns, pair};
    mxa_emu_meet_warp("tcgen05.dealloc", release, (uint64_t)at << 16 | columns, &r, site);
}

/* ------------------------------------------------------------------------------------------------
 * Loads and stores
 * --------------------------------------------------------------------------------------------- */

/* Register r of lane t: lane and column, from the address on. PTX ISA 9.7.16.2.3. */
static void place(int shape, int t, int r, int *lane, int *column)
{
    switch (shape) {
    case MXA_EMU_16X64B:
        *lane = 8 * (t & 1) + (t >> 2);
        *column = 2 * r + (t >> 1 & 1);
        return;
    case MXA_EMU_16X128B:
        *lane = (t >> 2) + 8 * (r & 1);
        *column = (t & 3) + 4 * (r >> 1);
        return;
    case MXA_EMU_16X256B:
        *lane = (t >> 2) + 8 * (r >> 1 & 1);
        *column = 2 * (t & 3) + (r & 1) + 8 * (r >> 2);
        return;
    default:
        *lane = t;
        *column = r;
        return;
    }
}

/* Columns of an access: lanes hold count registers of 32 lanes, or of 16. */
static uint32_t columns_of(int shape, int count)
{
    return (uint32_t)(shape == MXA_EMU_32X32B ? count : 2 * count);
}

typedef struct transfer {
    uint32_t at;
    uint32_t *registers;    /* of a load */
    const uint32_t *source; /* of a store */
    int shape, count;
} transfer;

/* The access as checked: first lane, halves of quarters; 0: reported. */
static int check(const mxa_emu_meeting *meeting, uint32_t *lane, uint32_t *halves)
{
    const transfer *t = meeting->lane[0];
    const uint32_t quarter = (uint32_t)meeting->warp->index % 4;
    *lane = t->at >> 16;
    for (int i = 1; i < MXA_EMU_LANES; i++) {
        if (((const transfer *)meeting->lane[i])->at != t->at) {
            mxa_emu_error(0, "lanes give tensor memory different addresses", meeting->site, 0,
                          "%08x and %08x", t->at, ((const transfer *)meeting->lane[i])->at);
            return 0;
        }
    }
    const int upper = t->shape != MXA_EMU_32X32B && *lane == 32 * quarter + 16;
    if (*lane != 32 * quarter && !upper) {
        mxa_emu_error(13, "wrong quarter of tensor memory", meeting->site, 0,
                      "lane %u; warp %d reaches lanes %u to %u", *lane, meeting->warp->index,
                      32 * quarter, 32 * quarter + 31);
        return 0;
    }
    *halves = (t->shape == MXA_EMU_32X32B ? 3u : upper ? 2u : 1u) << (2 * quarter);
    return 1;
}

/* Between registers of a lane and tensor memory, from (lane, column) on; to_registers: a load. */
static void move(mxa_emu_cta *cta, int shape, int t, uint32_t *registers, uint32_t count,
                 uint32_t first_lane, uint32_t first_column, int to_registers)
{
    if (shape == MXA_EMU_32X32B && first_column + count <= MXA_EMU_TMEM_COLUMNS) {
        uint32_t *row = &cta->tmem[first_lane + (uint32_t)t][first_column];
        memcpy(to_registers ? registers : row, to_registers ? row : registers, count * sizeof *row);
        return;
    }
    for (uint32_t r = 0; r < count; r++) {
        int lane, column;
        place(shape, t, (int)r, &lane, &column);
        uint32_t *cell = &cta->tmem[(uint32_t)lane + first_lane]
                                   [((uint32_t)column + first_column) & (MXA_EMU_TMEM_COLUMNS - 1)];
        if (to_registers) {
            registers[r] = *cell;
        } else {
            *cell = registers[r];
        }
    }
}

static void deliver(const mxa_emu_warp *warp, const mxa_emu_late_load *late, int shape)
{
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        move(warp->cta, shape, i, late->registers[i], late->count, late->lane & 127, late->column,
             1);
    }
}

static void load(mxa_emu_meeting *meeting)
{
    const transfer *t = meeting->lane[0];
    mxa_emu_warp *warp = meeting->warp;
    uint32_t lane, halves;
    if (!check(meeting, &lane, &halves)) {
        return;
    }
    const mxa_emu_access as = mxa_emu_issue(&warp->load, MXA_EMU_LOAD, meeting->site);
    mxa_emu_check_tmem(warp->cta, &as, halves, t->at & 0xFFFF, columns_of(t->shape, t->count), 0);
    warp->load_site = meeting->site;
    mxa_emu_late_load late = {.count = (uint32_t)t->count,
                              .column = t->at & 0xFFFF,
                              .lane = lane | (uint32_t)t->shape << 8,
                              .site = meeting->site};
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        late.registers[i] = ((const transfer *)meeting->lane[i])->registers;
    }
    if (!mxa_emu_now->options.late_loads || warp->late_loads == MXA_EMU_LATE_LOADS) {
        deliver(warp, &late, t->shape);
        return;
    }
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        for (int r = 0; r < t->count; r++) {
            late.registers[i][r] = MXA_EMU_POISON;
        }
    }
    warp->late[warp->late_loads++] = late;
}

void mxa_emu_tmem_load(uint32_t *registers, uint32_t at, int shape, int count)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    transfer t = {at, registers, NULL, shape, count};
    mxa_emu_meet_warp("tcgen05.ld", load, (uint64_t)shape << 16 | (uint64_t)count, &t, site);
}

/* Registers that no longer hold poison were written by the kernel. */
static int touched(const mxa_emu_late_load *late)
{
    int count = 0;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        for (uint32_t r = 0; r < late->count; r++) {
            count += late->registers[i][r] != MXA_EMU_POISON;
        }
    }
    return count;
}

static void wait_load(mxa_emu_meeting *meeting)
{
    mxa_emu_warp *warp = meeting->warp;
    for (int i = 0; i < warp->late_loads; i++) {
        const mxa_emu_late_load *late = &warp->late[i];
        if (touched(late)) {
            mxa_emu_error(3, "registers of a tcgen05.ld written before wait::ld", meeting->site,
                          late->site, "%d of them", touched(late));
        }
        deliver(warp, late, (int)(late->lane >> 8));
    }
    warp->late_loads = 0;
    warp->load_waited = warp->load.issued;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        mxa_emu_learn_tensor(&meeting->first[i], warp->load.component, warp->load_waited);
        if (!mxa_emu_now->options.strict_fences) {
            mxa_emu_learn(&meeting->first[i], warp->load.component, warp->load_waited);
        }
    }
}

typedef struct store_op {
    mxa_emu_op base;
    int shape, count;
    uint32_t lane, column;
    uint32_t value[]; /* [32][count] */
} store_op;

static void land(mxa_emu_op *op)
{
    store_op *s = (store_op *)op;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        move(op->cta, s->shape, i, s->value + i * s->count, (uint32_t)s->count, s->lane, s->column,
             0);
    }
}

static void store(mxa_emu_meeting *meeting)
{
    const transfer *t = meeting->lane[0];
    mxa_emu_warp *warp = meeting->warp;
    uint32_t lane, halves;
    if (!check(meeting, &lane, &halves)) {
        return;
    }
    const mxa_emu_access as = mxa_emu_issue(&warp->store, MXA_EMU_STORE, meeting->site);
    mxa_emu_check_tmem(warp->cta, &as, halves, t->at & 0xFFFF, columns_of(t->shape, t->count), 1);
    const size_t bytes = (size_t)t->count * sizeof(uint32_t);
    store_op *s = mxa_emu_op_new(sizeof *s + MXA_EMU_LANES * bytes, land);
    s->shape = t->shape;
    s->count = t->count;
    s->lane = lane;
    s->column = t->at & 0xFFFF;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        memcpy(s->value + i * t->count, ((const transfer *)meeting->lane[i])->source, bytes);
    }
    mxa_emu_push(&warp->store, &s->base, &as);
}

void mxa_emu_tmem_store(uint32_t at, const uint32_t *registers, int shape, int count)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    transfer t = {at, NULL, registers, shape, count};
    mxa_emu_meet_warp("tcgen05.st", store, (uint64_t)shape << 16 | (uint64_t)count, &t, site);
}

static void wait_store(mxa_emu_meeting *meeting)
{
    mxa_emu_warp *warp = meeting->warp;
    mxa_emu_drain(&warp->store, warp->store.issued);
    warp->store_waited = warp->store.issued;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        mxa_emu_learn_tensor(&meeting->first[i], warp->store.component, warp->store_waited);
        if (!mxa_emu_now->options.strict_fences) {
            mxa_emu_learn(&meeting->first[i], warp->store.component, warp->store_waited);
        }
    }
}

void mxa_emu_tmem_wait_load(void)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_meet_warp("tcgen05.wait::ld", wait_load, 0, NULL, site);
}

void mxa_emu_tmem_wait_store(void)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_meet_warp("tcgen05.wait::st", wait_store, 0, NULL, site);
}
