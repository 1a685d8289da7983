/* context.h: the context a call runs in, and its memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CONTEXT_H
#define MXA_CONTEXT_H

#include "backend.h"

/* context itself, or the process-wide one where it is NULL. */
const mxattn_context *mxa_context_or_default(const mxattn_context *context);

/* Memory from the context's allocator; NULL when there is none. alignment is a power of two. */
void *mxa_alloc(const mxattn_context *context, size_t bytes, size_t alignment);
void mxa_free(const mxattn_context *context, void *memory);

#endif
