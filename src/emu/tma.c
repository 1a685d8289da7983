/* tma.c: the bulk copy engine: boxes of tensor maps and plain rows, loads, stores and additions.
 *
 * A load lands in up to eight pieces, each at a moment of its own; a store reads at one moment and
 * writes at a later one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/tma.h"

#include "emu/engine.h"
#include "emu/map.h"
#include "emu/overlap.h"
#include "emu/stale.h"
#include "mx/element.h"

#include <string.h>

enum { PIECES = 8, TYPE_F16 = 6, TYPE_F32 = 7, TYPE_BF16 = 9, TYPE_U32 = 2, TYPE_S32 = 3 };

/* A run of rows of a box (or, rank 0, of bytes): between shared memory and global memory. */
typedef struct copy {
    mxa_emu_op op;
    mxa_emu_map map;
    int32_t at[MXA_EMU_MAP_RANK];
    uint32_t shared;     /* of the box's first byte */
    uint32_t first, end; /* rows of the box; rank 0: bytes */
    uint64_t global;     /* rank 0 */
    uint32_t barrier;
    int slot;      /* load: its component in engine->copies */
    int operation; /* store: 0, or the type added in, as in a map, plus one */
    int early;     /* of a dependent launch, before its wait: overlap.h */
} copy;

static uint32_t row_bytes(const copy *c)
{
    return (uint32_t)c->map.box[0] * c->map.element_bytes;
}

/* Global address of a box row, and how much of it lies inside: elements from *low to *high - 1. */
static uint64_t row_place(const copy *c, uint32_t row, int32_t *low, int32_t *high)
{
    uint64_t at = c->map.address;
    const int64_t width = c->map.box[0], size = (int64_t)c->map.size[0] + 1;
    const int64_t below = -(int64_t)c->at[0], above = size - c->at[0];
    *low = (int32_t)(below < 0 ? 0 : below > width ? width : below);
    *high = (int32_t)(above < *low ? *low : above > width ? width : above);
    for (int i = 1; i < c->map.rank; i++) {
        const int64_t x = (int64_t)c->at[i] + row % c->map.box[i];
        row /= c->map.box[i];
        if (x < 0 || x > (int64_t)c->map.size[i]) {
            *high = *low;
            return at;
        }
        at += (uint64_t)x * c->map.stride[i - 1];
    }
    return at + (uint64_t)((int64_t)c->at[0] + *low) * c->map.element_bytes;
}

static int in_bounds(const copy *c, uint64_t at, uint64_t bytes)
{
    if (mxa_emu_memory_holds(at, bytes)) {
        return 1;
    }
    mxa_emu_error(0, "copy out of global bounds", c->op.as.site, 0, "%llu bytes at 0x%llx",
                  (unsigned long long)bytes, (unsigned long long)at);
    return 0;
}

/* Byte `offset` of the box in shared memory; whole units of 16 bytes stay together. */
static unsigned char *box_byte(const copy *c, uint32_t offset)
{
    const uint32_t at = mxa_emu_swizzle(c->shared + offset, c->map.swizzle);
    return mxa_emu_cta_of(at)->shared +
           ((at & ((1u << MXA_EMU_RANK_SHIFT) - 1)) - MXA_EMU_SHARED_BASE);
}

static void load_row(const copy *c, uint32_t row)
{
    unsigned char line[4096]; /* 256 elements of at most 8 bytes, and to spare */
    int32_t low, high;
    const uint32_t width = row_bytes(c), bytes = c->map.element_bytes;
    const uint64_t from = row_place(c, row, &low, &high);
    memset(line, 0, width);
    if (high > low && in_bounds(c, from, (uint64_t)(high - low) * bytes)) {
        memcpy(line + (uint32_t)low * bytes, (const void *)(uintptr_t)from,
               (size_t)(high - low) * bytes);
        if (mxa_emu_overlaps()) {
            mxa_emu_overlap_read(from, line + (uint32_t)low * bytes, (uint64_t)(high - low) * bytes,
                                 c->early, c->op.as.site);
        }
    }
    for (uint32_t i = 0; i < width; i += 16) {
        memcpy(box_byte(c, row * width + i), line + i, 16);
    }
}

static void run_load(mxa_emu_op *op)
{
    const copy *c = (const copy *)(void *)op;
    uint32_t bytes = c->end - c->first;
    if (c->map.rank == 0) {
        if (in_bounds(c, c->global + c->first, bytes)) {
            unsigned char *to = box_byte(c, c->first);
            memcpy(to, (const void *)(uintptr_t)(c->global + c->first), bytes);
            if (mxa_emu_overlaps()) {
                mxa_emu_overlap_read(c->global + c->first, to, bytes, c->early, c->op.as.site);
            }
        }
    } else {
        for (uint32_t row = c->first; row < c->end; row++) {
            load_row(c, row);
        }
        bytes *= row_bytes(c);
    }
    mxa_emu_engine_now()->copies[c->slot].busy--;
    mxa_emu_mbarrier_complete(op, c->barrier, bytes);
}

/* Splits `units` (rows, or bytes in sixteens) into pieces that land on their own. */
static void issue_load(const copy *all, uint32_t units, uint32_t step, uint32_t bytes,
                       mxa_emu_site site)
{
    mxa_emu_engine *engine = mxa_emu_engine_now();
    const int slot = mxa_emu_copy_take();
    mxa_emu_count(mxa_emu_kind_name(MXA_EMU_TMA_LOAD));
    const mxa_emu_access as = {.clock = engine->copies[slot].clock,
                               .component = (uint16_t)(engine->copies_component + slot),
                               .thread = mxa_emu_now->thread->component,
                               .site = site,
                               .kind = MXA_EMU_TMA_LOAD};
    mxa_emu_check_shared(&as, all->shared, bytes, 1);
    const uint32_t pieces = units / step < PIECES ? units / step : PIECES;
    engine->copies[slot].busy = (int)pieces;
    for (uint32_t i = 0; i < pieces; i++) {
        copy *c = mxa_emu_op_new(sizeof *c, run_load);
        const mxa_emu_op op = c->op;
        *c = *all;
        c->op = op;
        c->op.as = as;
        c->early = mxa_emu_overlap_early();
        c->slot = slot;
        c->first = units / step * i / pieces * step;
        c->end = units / step * (i + 1) / pieces * step;
        mxa_emu_push_pool(&c->op);
    }
    mxa_emu_pause();
}

/* 0: reported. */
static int check_box(copy *c, const mxa_device_map *map, int rank, const int32_t *coordinate,
                     uint32_t shared, mxa_emu_site site, uint32_t *rows)
{
    const char *wrong = mxa_emu_map_decode(map, &c->map);
    if (!wrong && c->map.rank != rank) {
        wrong = "of another rank than the instruction";
    }
    if (wrong) {
        mxa_emu_error(0, "tensor map refused", site, 0, "the map is %s", wrong);
        return 0;
    }
    if (shared % 128) {
        mxa_emu_error(0, "box not aligned in shared memory", site, 0,
                      "0x%x; a multiple of 128 bytes", shared);
        return 0;
    }
    *rows = 1;
    for (int i = 0; i < rank; i++) {
        c->at[i] = coordinate[i];
        *rows *= i ? c->map.box[i] : 1;
    }
    c->shared = shared;
    return mxa_emu_shared(shared, *rows * row_bytes(c), site) != NULL;
}

void mxa_emu_tma_load(uint32_t to, const mxa_device_map *map, int rank, const int32_t *coordinate,
                      uint32_t barrier)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    copy all;
    uint32_t rows;
    memset(&all, 0, sizeof all);
    all.barrier = barrier;
    if (check_box(&all, map, rank, coordinate, to, site, &rows) &&
        mxa_emu_mbarrier_usable(barrier, site)) {
        issue_load(&all, rows, 1, rows * row_bytes(&all), site);
    }
}

static int check_bulk(uint32_t shared, uint64_t global, uint32_t bytes, mxa_emu_site site)
{
    if (shared % 16 || global % 16 || bytes % 16 || bytes == 0) {
        mxa_emu_error(0, "bulk copy not in sixteens", site, 0,
                      "shared 0x%x, global 0x%llx, %u bytes", shared, (unsigned long long)global,
                      bytes);
        return 0;
    }
    return mxa_emu_shared(shared, bytes, site) != NULL;
}

void mxa_emu_bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    copy all;
    memset(&all, 0, sizeof all);
    all.barrier = barrier;
    all.shared = to;
    all.global = from;
    if (check_bulk(to, from, bytes, site) && mxa_emu_mbarrier_usable(barrier, site)) {
        issue_load(&all, bytes, 16, bytes, site);
    }
}

/* ---- stores ---- */

/* The sum of two elements of a map's type, bit patterns; FP32 flushes subnormals. */
static void add_element(unsigned char *to, const unsigned char *from, int type)
{
    uint32_t a = 0, b = 0;
    if (type == TYPE_F16 || type == TYPE_BF16) {
        const mxattn_dtype dtype = type == TYPE_F16 ? MXATTN_F16 : MXATTN_BF16;
        mxa_store(to, dtype, 0, mxa_load(to, dtype, 0) + mxa_load(from, dtype, 0));
        return;
    }
    memcpy(&a, to, 4);
    memcpy(&b, from, 4);
    if (type == TYPE_F32) {
        float x, y;
        a = a & 0x7F800000u ? a : a & 0x80000000u;
        b = b & 0x7F800000u ? b : b & 0x80000000u;
        memcpy(&x, &a, 4);
        memcpy(&y, &b, 4);
        x += y;
        memcpy(&a, &x, 4);
        a = a & 0x7F800000u ? a : a & 0x80000000u;
    } else {
        a += b;
    }
    memcpy(to, &a, 4);
}

static void write_out(const copy *c, uint64_t to, const unsigned char *from, uint64_t bytes)
{
    if (bytes == 0 || !in_bounds(c, to, bytes)) {
        return;
    }
    if (mxa_emu_overlaps() && !mxa_emu_overlap_write(to, bytes, c->early, c->op.as.site)) {
        return;
    }
    unsigned char *at = (unsigned char *)(uintptr_t)to;
    if (c->operation == 0) {
        memcpy(at, from, bytes);
        return;
    }
    const int type = c->operation - 1;
    const uint64_t element = type == TYPE_F16 || type == TYPE_BF16 ? 2 : 4;
    for (uint64_t i = 0; i < bytes; i += element) {
        add_element(at + i, from + i, type);
    }
}

static void run_write(mxa_emu_op *op)
{
    const copy *c = (const copy *)(void *)op;
    const unsigned char *held = op->owned; /* what was read */
    if (c->map.rank == 0) {
        write_out(c, c->global, held, c->end);
    } else {
        const uint32_t width = row_bytes(c), bytes = c->map.element_bytes;
        for (uint32_t row = 0; row < c->end; row++) {
            int32_t low, high;
            const uint64_t to = row_place(c, row, &low, &high);
            write_out(c, to, held + row * width + (uint32_t)low * bytes,
                      (uint64_t)(high - low) * bytes);
        }
    }
}

/* Takes what shared memory holds now; it is written some time later. */
static void run_read(mxa_emu_op *op)
{
    const copy *c = (const copy *)(void *)op;
    const uint32_t bytes = c->map.rank ? c->end * row_bytes(c) : c->end;
    copy *later = mxa_emu_alloc(sizeof *later);
    *later = *c;
    later->op.run = run_write;
    unsigned char *held = mxa_emu_alloc(bytes);
    const mxa_emu_cta *cta = mxa_emu_cta_of(c->shared);
    for (uint32_t i = 0; i < bytes; i += 16) {
        const unsigned char *from = box_byte(c, i);
        memcpy(held + i, from, 16);
        if (cta->stale_units) {
            mxa_emu_stale_serve(cta, (uint32_t)(from - cta->shared), held + i);
        }
    }
    later->op.owned = held;
    mxa_emu_push_pool(&later->op);
}

static void issue_store(const copy *all, uint32_t bytes, mxa_emu_site site)
{
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (!thread->bulk_pipe) {
        thread->bulk_pipe = mxa_emu_pipe_on_demand(MXA_EMU_TMA_STORE);
    }
    const mxa_emu_access as = mxa_emu_issue(thread->bulk_pipe, MXA_EMU_TMA_STORE, site);
    mxa_emu_check_shared(&as, all->shared, bytes, 0);
    copy *c = mxa_emu_op_new(sizeof *c, run_read);
    const mxa_emu_op op = c->op;
    *c = *all;
    c->op = op;
    c->early = mxa_emu_overlap_early();
    mxa_emu_push(thread->bulk_pipe, &c->op, &as);
    mxa_emu_pause();
}

void mxa_emu_tma_store(const mxa_device_map *map, int rank, const int32_t *coordinate,
                       uint32_t from, int add)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    copy all;
    uint32_t rows;
    memset(&all, 0, sizeof all);
    if (!check_box(&all, map, rank, coordinate, from, site, &rows)) {
        return;
    }
    for (int i = 0; i < rank; i++) {
        if (coordinate[i] < 0) {
            mxa_emu_error(0, "store to a negative coordinate", site, 0, "coordinate %d is %d", i,
                          coordinate[i]);
            return;
        }
    }
    const int type = all.map.type;
    if (add && type != TYPE_F16 && type != TYPE_F32 && type != TYPE_BF16 && type != TYPE_U32 &&
        type != TYPE_S32) {
        mxa_emu_error(0, "reduction in a type that has none", site, 0, "type %d of the map", type);
        return;
    }
    all.operation = add ? type + 1 : 0;
    all.end = rows;
    issue_store(&all, rows * row_bytes(&all), site);
}

void mxa_emu_bulk_store(uint64_t to, uint32_t from, uint32_t bytes, int operation)
{
    static const int types[] = {[MXA_EMU_BULK_ADD_F32] = TYPE_F32 + 1,
                                [MXA_EMU_BULK_ADD_F16] = TYPE_F16 + 1,
                                [MXA_EMU_BULK_ADD_BF16] = TYPE_BF16 + 1};
    const mxa_emu_site site = MXA_EMU_SITE();
    copy all;
    memset(&all, 0, sizeof all);
    all.shared = from;
    all.global = to;
    all.end = bytes;
    all.operation = types[operation];
    if (check_bulk(from, to, bytes, site)) {
        issue_store(&all, bytes, site);
    }
}

void mxa_emu_bulk_commit(void)
{
    mxa_emu_settle();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    thread->bulk_groups[thread->bulk_committed++ % 16] =
        thread->bulk_pipe ? thread->bulk_pipe->issued : 0;
}

typedef struct written {
    uint16_t component;
    uint32_t clock;
} written;

static int is_write_of(const mxa_emu_op *op, const void *argument)
{
    const written *w = argument;
    return op->run == run_write && op->as.component == w->component && op->as.clock <= w->clock;
}

void mxa_emu_bulk_wait(int pending, int read_only)
{
    mxa_emu_settle();
    mxa_emu_thread *thread = mxa_emu_now->thread;
    if (thread->bulk_committed <= (uint32_t)pending || !thread->bulk_pipe) {
        return;
    }
    const uint32_t group = thread->bulk_committed - 1 - (uint32_t)pending;
    const uint32_t clock = thread->bulk_groups[group % 16];
    mxa_emu_drain(thread->bulk_pipe, clock);
    if (!read_only) {
        const written w = {thread->bulk_pipe->component, clock};
        mxa_emu_pool_drain(is_write_of, &w);
    }
    thread->bulk_read = clock > thread->bulk_read ? clock : thread->bulk_read;
    mxa_emu_learn(thread, thread->bulk_pipe->component, clock);
}

void mxa_emu_thread_ends(void)
{
    const mxa_emu_thread *thread = mxa_emu_now->thread;
    if (thread->bulk_pipe && thread->bulk_pipe->issued > thread->bulk_read) {
        char text[96];
        mxa_emu_error(19, "a thread ends with a bulk store not waited for", 0, 0,
                      "%s: bulk wait_group.read before the CTA's shared memory goes",
                      mxa_emu_thread_text(thread->component, text, sizeof text));
    }
}

void mxa_emu_prefetch_map(const mxa_device_map *map)
{
    mxa_emu_map decoded;
    const char *wrong = mxa_emu_map_decode(map, &decoded);
    if (wrong) {
        mxa_emu_error(0, "tensor map refused", MXA_EMU_SITE(), 0, "the map is %s", wrong);
    }
}

void mxa_emu_fence_async_shared(void)
{
    mxa_emu_settle();
    mxa_emu_fence_proxy(mxa_emu_now->thread);
}
