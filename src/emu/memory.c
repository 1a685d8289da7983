/* memory.c: loads, stores and atomics of threads, and which global memory there is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/memory.h"

#include "emu/engine.h"
#include "emu/overlap.h"
#include "emu/shadow.h"
#include "emu/stale.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* memcpy of what one instruction moves. WHY: a call for a few bytes takes longer than they do. */
static inline void move(void *to, const void *from, uint32_t bytes)
{
    switch (bytes) {
    case 4:
        memcpy(to, from, 4);
        return;
    case 8:
        memcpy(to, from, 8);
        return;
    case 16:
        memcpy(to, from, 16);
        return;
    default:
        memcpy(to, from, bytes);
        return;
    }
}

/* ---- global memory ---- */

typedef struct range {
    uint64_t at, bytes;
} range;

static struct {
    pthread_mutex_t lock;
    range *ranges; /* in order */
    size_t count, room;
    atomic_uint changes; /* what a thread remembers of the list is stale after one */
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The first range that starts beyond `at`. */
static size_t find(uint64_t at)
{
    size_t low = 0, high = known.count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (known.ranges[middle].at <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int mxa_emu_memory_add(const void *memory, size_t bytes)
{
    (void)pthread_mutex_lock(&known.lock);
    if (known.count == known.room) {
        const size_t room = known.room ? 2 * known.room : 64;
        range *grown = mxa_emu_alloc(room * sizeof *grown);
        if (!grown) {
            (void)pthread_mutex_unlock(&known.lock);
            return 0;
        }
        if (known.count) {
            memcpy(grown, known.ranges, known.count * sizeof *grown);
        }
        mxa_emu_free(known.ranges);
        known.ranges = grown;
        known.room = room;
    }
    const uint64_t at = (uint64_t)(uintptr_t)memory;
    const size_t i = find(at);
    memmove(known.ranges + i + 1, known.ranges + i, (known.count - i) * sizeof *known.ranges);
    known.ranges[i].at = at;
    known.ranges[i].bytes = bytes;
    known.count++;
    atomic_fetch_add(&known.changes, 1);
    (void)pthread_mutex_unlock(&known.lock);
    return 1;
}

void mxa_emu_memory_remove(const void *memory)
{
    (void)pthread_mutex_lock(&known.lock);
    const size_t i = find((uint64_t)(uintptr_t)memory);
    if (i > 0 && known.ranges[i - 1].at == (uint64_t)(uintptr_t)memory) {
        known.count--;
        atomic_fetch_add(&known.changes, 1);
        memmove(known.ranges + i - 1, known.ranges + i,
                (known.count - (i - 1)) * sizeof *known.ranges);
    }
    (void)pthread_mutex_unlock(&known.lock);
}

int mxa_emu_memory_holds(uint64_t at, uint64_t bytes)
{
    static _Thread_local range last;
    static _Thread_local unsigned last_change;
    const unsigned change = atomic_load(&known.changes);
    if (change == last_change && at >= last.at && at - last.at + bytes <= last.bytes) {
        return 1;
    }
    (void)pthread_mutex_lock(&known.lock);
    const size_t i = find(at);
    int holds = known.count == 0;
    if (i > 0 && at - known.ranges[i - 1].at + bytes <= known.ranges[i - 1].bytes) {
        holds = 1;
        last = known.ranges[i - 1];
        last_change = change;
    }
    (void)pthread_mutex_unlock(&known.lock);
    return holds;
}

/* 0: reported. Vectors and words are aligned to their size. */
static int check_global(uint64_t at, uint32_t bytes, const char *what, mxa_emu_site site)
{
    char text[96];
    if (at % bytes == 0 && mxa_emu_memory_holds(at, bytes)) {
        return 1;
    }
    mxa_emu_error(0, at % bytes ? "misaligned global access" : "global access out of bounds", site,
                  0, "%s of %u bytes at 0x%llx by %s", what, bytes, (unsigned long long)at,
                  mxa_emu_thread_text(mxa_emu_now->thread->component, text, sizeof text));
    return 0;
}

static void *pointer(uint64_t at)
{
    return (void *)(uintptr_t)at;
}

void mxa_emu_load_global(void *to, uint64_t at, uint32_t bytes)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_now->hot[MXA_EMU_HOT_LOAD_GLOBAL]++;
    if (!check_global(at, bytes, "load", site)) {
        memset(to, 0xFF, bytes);
        return;
    }
    move(to, pointer(at), bytes);
    if (mxa_emu_overlaps()) {
        mxa_emu_overlap_read(at, to, bytes, mxa_emu_overlap_early(), site);
    }
}

void mxa_emu_store_global(uint64_t at, const void *from, uint32_t bytes)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_now->hot[MXA_EMU_HOT_STORE_GLOBAL]++;
    if (check_global(at, bytes, "store", site) &&
        (!mxa_emu_overlaps() || mxa_emu_overlap_write(at, bytes, mxa_emu_overlap_early(), site))) {
        move(pointer(at), from, bytes);
    }
}

uint32_t mxa_emu_atomic_global(int operation, uint64_t at, uint32_t x)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_count("atom.global");
    uint32_t old = 0, next;
    if (!check_global(at, 4, "atomic", site)) {
        return 0;
    }
    mxa_emu_pause(); /* the order of atomics is anyone's */
    memcpy(&old, pointer(at), 4);
    if (mxa_emu_overlaps()) {
        mxa_emu_overlap_read(at, &old, 4, mxa_emu_overlap_early(), site);
        (void)mxa_emu_overlap_write(at, 4, mxa_emu_overlap_early(), site);
    }
    if (operation == MXA_EMU_ATOMIC_ADD) {
        next = old + x;
    } else if (operation == MXA_EMU_ATOMIC_MAX) {
        next = x > old ? x : old;
    } else {
        float a, b;
        memcpy(&a, &old, 4);
        memcpy(&b, &x, 4);
        a += b;
        memcpy(&next, &a, 4);
    }
    memcpy(pointer(at), &next, 4);
    return old;
}

/* ---- shared memory ---- */

mxa_emu_cta *mxa_emu_cta_of(uint32_t address)
{
    const uint32_t rank = address >> MXA_EMU_RANK_SHIFT;
    return rank < (uint32_t)mxa_emu_now->cluster ? mxa_emu_now->ctas[rank] : NULL;
}

unsigned char *mxa_emu_shared(uint32_t address, uint32_t bytes, mxa_emu_site site)
{
    const mxa_emu_cta *cta = mxa_emu_cta_of(address);
    const uint32_t at = address & ((1u << MXA_EMU_RANK_SHIFT) - 1);
    if (cta && at >= cta->shared_base && at <= cta->shared_end && cta->shared_end - at >= bytes) {
        return cta->shared + (at - MXA_EMU_SHARED_BASE);
    }
    mxa_emu_error(0, "shared access out of bounds", site, 0,
                  "%u bytes at 0x%x; the CTA has 0x%x to 0x%x", bytes, address,
                  cta ? cta->shared_base : 0, cta ? cta->shared_end : 0);
    return NULL;
}

mxa_emu_access mxa_emu_generic(mxa_emu_site site)
{
    mxa_emu_access as = {0};
    mxa_emu_set_generic(&as, mxa_emu_now->thread, site);
    return as;
}

/* Own memory that is not as it mostly is: refused, or looked at in full. */
static __attribute__((noinline)) unsigned char *own_shared_in_full(mxa_emu_site site, uint32_t at,
                                                                   uint32_t bytes, int write)
{
    const mxa_emu_access as = mxa_emu_generic(site);
    if (at % bytes) {
        mxa_emu_error(0, "misaligned shared access", site, 0, "%u bytes at 0x%x", bytes, at);
        return NULL;
    }
    if (at >> MXA_EMU_RANK_SHIFT != (uint32_t)mxa_emu_now->thread->cta->rank) {
        mxa_emu_error(0, "another CTA's shared memory", site, 0, "0x%x", at);
        return NULL;
    }
    unsigned char *memory = mxa_emu_shared(at, bytes, site);
    if (memory) {
        mxa_emu_check_own(&as, at, bytes, write);
    }
    return memory;
}

static inline unsigned char *own_shared(uint32_t at, uint32_t bytes, int write, mxa_emu_site site)
{
    const mxa_emu *emu = mxa_emu_now;
    const mxa_emu_thread *thread = emu->thread;
    mxa_emu_cta *cta = thread->cta;
    const uint32_t offset = at - ((uint32_t)cta->rank << MXA_EMU_RANK_SHIFT) - MXA_EMU_SHARED_BASE;
    const uint32_t first = cta->shared_base - MXA_EMU_SHARED_BASE,
                   end = cta->shared_end - MXA_EMU_SHARED_BASE;
    unsigned char *memory = cta->shared + offset;
    if (offset % bytes || offset < first || offset >= end || end - offset < bytes ||
        !(emu->options.checks && mxa_emu_own_in_order(thread, site, offset, bytes, write))) {
        memory = own_shared_in_full(site, at, bytes, write);
    }
    if (memory && write && emu->options.checks) {
        move(cta->before + (memory - cta->shared), memory, bytes);
    }
    return memory;
}

void mxa_emu_load_shared(void *to, uint32_t at, uint32_t bytes)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_now->hot[MXA_EMU_HOT_LOAD_SHARED]++;
    const unsigned char *from = own_shared(at, bytes, 0, site);
    if (from) {
        move(to, from, bytes);
    } else {
        memset(to, 0xFF, bytes);
    }
}

void mxa_emu_store_shared(uint32_t at, const void *from, uint32_t bytes)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    mxa_emu_now->hot[MXA_EMU_HOT_STORE_SHARED]++;
    unsigned char *to = own_shared(at, bytes, 1, site);
    if (to) {
        move(to, from, bytes);
    }
}

/* stmatrix: what a lane brings, and the row it is to store. */
typedef struct matrix_lane {
    uint32_t v[4];
    uint16_t row[8];
} matrix_lane;

/* Unit j of row r, transposed, is row j, column r of the matrix: lane 4*j + r/2 has it. */
static void turn_matrices(mxa_emu_meeting *meeting)
{
    for (int i = 0; i < MXA_EMU_LANES; i++) {
        matrix_lane *to = meeting->lane[i];
        const int r = i % 8;
        for (int j = 0; j < 8; j++) {
            const matrix_lane *from = meeting->lane[4 * j + r / 2];
            to->row[j] = (uint16_t)(from->v[i / 8] >> (16 * (r & 1)));
        }
    }
}

void mxa_emu_store_matrices(uint32_t at, const uint32_t *v)
{
    const mxa_emu_site site = MXA_EMU_SITE();
    matrix_lane lane;
    memcpy(lane.v, v, sizeof lane.v);
    mxa_emu_meet_warp("stmatrix", turn_matrices, 0, &lane, site);
    unsigned char *to = own_shared(at, sizeof lane.row, 1, site);
    if (to) {
        memcpy(to, lane.row, sizeof lane.row);
    }
}

/* Atomics of one word do not race with one another: they take turns, and each sees the last. */
uint32_t mxa_emu_add_shared(uint32_t at, uint32_t x)
{
    mxa_emu_count("atom.shared");
    const mxa_emu_site site = MXA_EMU_SITE();
    unsigned char *word = mxa_emu_shared(at, 4, site);
    uint32_t old = 0;
    if (!word || at % 4) {
        return 0;
    }
    mxa_emu_pause();
    mxa_emu_access as = mxa_emu_generic(site);
    as.kind = MXA_EMU_ATOMIC;
    mxa_emu_check_shared(&as, at, 4, 1);
    mxa_emu_cta *cta = mxa_emu_cta_of(at);
    mxa_emu_stale_keep(cta, (uint32_t)(word - cta->shared), 4);
    memcpy(&old, word, 4);
    const uint32_t next = old + x;
    memcpy(word, &next, 4);
    return old;
}
