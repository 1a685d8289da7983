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
    mxa_emu_meet_warp("tcgen05.alloc (address)", store_address, columns, &r, site);
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

/* The access as checked: first lane, halves of quarters; 0: reported. */
static int check(const mxa_emu_warp *warp, uint32_t at, int shape, mxa_emu_site site,
                 uint32_t *halves)
{
    const uint32_t quarter = (uint32_t)warp->index % 4, lane = at >> 16;
    const int upper = shape != MXA_EMU_32X32B && lane == 32 * quarter + 16;
    if (lane != 32 * quarter && !upper) {
        mxa_emu_error(13, "wrong quarter of tensor memory", site, 0,
                      "lane %u; warp %d reaches lanes %u to %u", lane, warp->index, 32 * quarter,
                      32 * quarter + 31);
        return 0;
    }
    *halves = (shape == MXA_EMU_32X32B ? 3u : upper ? 2u : 1u) << (2 * quarter);
    return 1;
}

/* Whether a lane gives the address that the first one gave. */
static int agree(uint32_t at, uint32_t first, mxa_emu_site site)
{
    if (at != first) {
        mxa_emu_error(0, "lanes give tensor memory different addresses", site, 0, "%08x and %08x",
                      first, at);
    }
    return at == first;
}

/* memcpy of words, mostly a multiple of eight. WHY: a call for them takes longer than they do. */
static inline void copy_words(uint32_t *to, const uint32_t *from, uint32_t count)
{
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        memcpy(to + i, from + i, 8 * sizeof *to);
    }
    for (; i < count; i++) {
        to[i] = from[i];
    }
}

/* Between registers of a lane and tensor memory, from (lane, column) on; to_registers: a load. */
static void move(mxa_emu_cta *cta, int shape, int t, uint32_t *registers, uint32_t count,
                 uint32_t first_lane, uint32_t first_column, int to_registers)
{
    if (shape == MXA_EMU_32X32B && first_column + count <= MXA_EMU_TMEM_COLUMNS) {
        uint32_t *row = &cta->tmem[first_lane + (uint32_t)t][first_column];
        copy_words(to_registers ? registers : row, to_registers ? row : registers, count);
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

static void deliver(const mxa_emu_warp *warp, const mxa_emu_late_load *late)
{
    for (int i = 0; i < MXA_EMU_LANES && !late->refused; i++) {
        move(warp->cta, late->shape, i, late->registers[i], (uint32_t)late->count, late->at >> 16,
             late->at & 0xFFFF, 1);
    }
}

static void issue_load(mxa_emu_meeting *meeting, mxa_emu_late_load *late)
{
    mxa_emu_warp *warp = meeting->warp;
    uint32_t halves;
    late->site = warp->load_site = meeting->site;
    if (late->refused || !check(warp, late->at, late->shape, meeting->site, &halves)) {
        late->refused = 1;
        return;
    }
    const mxa_emu_access as = mxa_emu_issue(&warp->load, MXA_EMU_LOAD, meeting->site);
    mxa_emu_check_tmem(warp->cta, &as, halves, late->at & 0xFFFF,
                       columns_of(late->shape, late->count), 0);
}

static void load_late(mxa_emu_meeting *meeting)
{
    mxa_emu_warp *warp = meeting->warp;
    issue_load(meeting, &warp->late[warp->late_loads++]);
}

/* Without poison, lanes may not run ahead: what they load is theirs on return. */
static void load_now(mxa_emu_meeting *meeting)
{
    mxa_emu_late_load late = *(const mxa_emu_late_load *)meeting->lane[0];
    for (int i = 1; i < MXA_EMU_LANES; i++) {
        const mxa_emu_late_load *other = meeting->lane[i];
        late.refused |= !agree(other->at, late.at, meeting->site);
        late.registers[i] = other->registers[i];
    }
    issue_load(meeting, &late);
    deliver(meeting->warp, &late);
}

void mxa_emu_tmem_load(uint32_t *registers, uint32_t at, int shape, int count)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    const uint64_t key = (uint64_t)shape << 16 | (uint64_t)count;
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (!mxa_emu_now->options.late_loads || thread->late == MXA_EMU_LATE_LOADS) {
        mxa_emu_late_load late = {.at = at, .shape = shape, .count = count};
        late.registers[thread->lane] = registers;
        mxa_emu_meet_warp("tcgen05.ld", load_now, key, &late, site);
        return;
    }
    mxa_emu_meeting *meeting = mxa_emu_leave_begin("tcgen05.ld", load_late, key, site);
    mxa_emu_late_load *late = &thread->warp->late[thread->late++];
    if (meeting->come == 0) {
        late->at = at;
        late->shape = shape;
        late->count = count;
        late->refused = 0;
    }
    late->refused |= !agree(at, late->at, site);
    late->registers[thread->lane] = registers;
    for (int r = 0; r < count; r++) {
        registers[r] = MXA_EMU_POISON;
    }
    mxa_emu_leave_end(meeting);
}

/* Registers that no longer hold poison were written by the kernel. */
static int touched(const mxa_emu_late_load *late)
{
    int count = 0;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        for (int r = 0; r < late->count; r++) {
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
        deliver(warp, late);
    }
    warp->late_loads = 0;
    warp->load_waited = warp->load.issued;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        meeting->first[i].late = 0;
        mxa_emu_learn_tensor(&meeting->first[i], warp->load.component, warp->load_waited);
        if (!mxa_emu_now->options.strict_fences) {
            mxa_emu_learn(&meeting->first[i], warp->load.component, warp->load_waited);
        }
    }
}

typedef struct store_op {
    mxa_emu_op base;
    int shape, count, refused;
    uint32_t at;
    uint32_t value[]; /* [32][count] */
} store_op;

static void land(mxa_emu_op *op)
{
    store_op *s = (store_op *)op;
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        move(op->cta, s->shape, i, s->value + i * s->count, (uint32_t)s->count, s->at >> 16,
             s->at & 0xFFFF, 0);
    }
}

static void store(mxa_emu_meeting *meeting)
{
    store_op *s = meeting->left;
    mxa_emu_warp *warp = meeting->warp;
    uint32_t halves;
    if (s->refused || !check(warp, s->at, s->shape, meeting->site, &halves)) {
        mxa_emu_free(s);
        return;
    }
    const mxa_emu_access as = mxa_emu_issue(&warp->store, MXA_EMU_STORE, meeting->site);
    mxa_emu_check_tmem(warp->cta, &as, halves, s->at & 0xFFFF, columns_of(s->shape, s->count), 1);
    s->base.issued_at = mxa_emu_now->step;
    mxa_emu_push(&warp->store, &s->base, &as);
}

void mxa_emu_tmem_store(uint32_t at, const uint32_t *registers, int shape, int count)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    const size_t bytes = (size_t)count * sizeof(uint32_t);
    mxa_emu_meeting *meeting =
        mxa_emu_leave_begin("tcgen05.st", store, (uint64_t)shape << 16 | (uint64_t)count, site);
    store_op *s = meeting->left;
    if (meeting->come == 0) {
        meeting->left = s = mxa_emu_op_new(sizeof *s + MXA_EMU_LANES * bytes, land);
        s->shape = shape;
        s->count = count;
        s->at = at;
    }
    s->refused |= !agree(at, s->at, site);
    copy_words(s->value + mxa_emu_now->thread->lane * count, registers, (uint32_t)count);
    mxa_emu_leave_end(meeting);
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
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    mxa_emu_meet_warp("tcgen05.wait::ld", wait_load, 0, NULL, site);
}

void mxa_emu_tmem_wait_store(void)
{
    const mxa_emu_site site = MXA_EMU_MEETING_SITE();
    mxa_emu_leave("tcgen05.wait::st", wait_store, site);
}
