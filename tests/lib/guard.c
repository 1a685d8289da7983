/* guard.c: guarded buffers by mmap and mprotect.
 *
 *   | no access | canary ... | buffer | canary < alignment | no access |      guard_end
 *   | no access | buffer | canary ...                      | no access |      guard_begin
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "guard.h"

#include "report.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xA5, MOST = 4096 };

typedef struct guarded {
    uint8_t *map; /* with both guard pages */
    size_t map_bytes;
    uint8_t *buffer;
    size_t bytes;
} guarded;

static guarded live[MOST];

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *guard_new(size_t bytes, size_t alignment, int at_end)
{
    size_t page = page_bytes();
    size_t inner = (bytes + alignment + page - 1) / page * page;
    guarded *slot = NULL;
    for (int i = 0; i < MOST && !slot; i++)
        if (!live[i].map)
            slot = &live[i];
    void *map = slot ? mmap(NULL, inner + 2 * page, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                     : MAP_FAILED;
    if (map == MAP_FAILED || mprotect((uint8_t *)map + page, inner, PROT_READ | PROT_WRITE) != 0) {
        (void)fprintf(stderr, "guard: no room for %zu bytes\n", bytes);
        abort();
    }
    slot->map = map;
    slot->map_bytes = inner + 2 * page;
    slot->bytes = bytes;
    size_t offset = at_end ? (inner - bytes) / alignment * alignment : 0;
    slot->buffer = slot->map + page + offset;
    memset(slot->map + page, CANARY, inner);
    memset(slot->buffer, 0xFF, bytes);
    return slot->buffer;
}

void *mxt_guard_end(size_t bytes)
{
    return guard_new(bytes, 1, 1);
}

void *mxt_guard_end_aligned(size_t bytes, size_t alignment)
{
    return guard_new(bytes, alignment, 1);
}

void *mxt_guard_begin(size_t bytes)
{
    return guard_new(bytes, 1, 0);
}

void *mxt_guard_sparse(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void mxt_guard_sparse_free(void *memory, size_t bytes)
{
    if (memory)
        (void)munmap(memory, bytes);
}

static guarded *find(const void *memory)
{
    for (int i = 0; i < MOST; i++)
        if (live[i].map && live[i].buffer == memory)
            return &live[i];
    (void)fprintf(stderr, "guard: %p is not a live buffer\n", memory);
    abort();
}

void mxt_guard_read_only(void *memory)
{
    const guarded *g = find(memory);
    size_t page = page_bytes();
    if (mprotect(g->map + page, g->map_bytes - 2 * page, PROT_READ) != 0)
        abort();
}

void mxt_guard_free(void *memory)
{
    if (!memory)
        return;
    guarded *g = find(memory);
    size_t page = page_bytes();
    const uint8_t *end = g->map + g->map_bytes - page;
    for (const uint8_t *p = g->map + page; p < end; p++) {
        if (p == g->buffer)
            p += g->bytes;
        if (p < end && *p != CANARY) {
            CHECK(0, "a write %td bytes from the start of a buffer of %zu", p - g->buffer,
                  g->bytes);
            break;
        }
    }
    (void)munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}
