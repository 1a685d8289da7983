/* structs.h: how public structs of any version are read and written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_STRUCTS_H
#define MXA_STRUCTS_H

#include "mxattn/mxattn.h"

/* Lays a caller's struct over *copy, which holds the defaults and `known` bytes. Both begin with
 * struct_size. NULL and sizes that no _init set: ARGUMENT; an unknown tail that is not zero:
 * VERSION_MISMATCH. `name` is the argument in the sentence. */
mxattn_status mxa_struct_read(void *copy, size_t known, const void *user, const char *name);

/* The other way round, for structs the library fills: writes what the caller's has room for. */
mxattn_status mxa_struct_write(void *user, const void *filled, size_t known, const char *name);

#endif
