/* guard.h: buffers between unmapped pages, so that a stray read or write faults at once.
 *
 * Content is NaN-filled (0xFF). The bytes of the mapping that are not the buffer hold a canary,
 * checked by mxt_guard_free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_GUARD_H
#define MXT_GUARD_H

#include <stddef.h>

/* Ends where an unmapped page begins. */
void *mxt_guard_end(size_t bytes);

/* The same for memory that must be aligned: up to alignment-1 canary bytes lie between its end and
 * the page. alignment: a power of two, at most a page. */
void *mxt_guard_end_aligned(size_t bytes, size_t alignment);

/* Begins where an unmapped page ends. */
void *mxt_guard_begin(size_t bytes);

/* Zeros, of which only the touched pages exist: for element offsets beyond 2^31. NULL where the
 * address space has no room. */
void *mxt_guard_sparse(size_t bytes);
void mxt_guard_sparse_free(void *memory, size_t bytes);

/* From here on a write faults: for inputs. */
void mxt_guard_read_only(void *memory);

/* Checks the canaries (a failure is reported in the current case) and unmaps. NULL is allowed. */
void mxt_guard_free(void *memory);

#endif
