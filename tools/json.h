/* json.h: cJSON, and how the command prints with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_JSON_H
#define MXC_TOOLS_JSON_H

#include "cjson/cJSON.h"

#include <stdio.h>

/* Prints a tree and a newline, and deletes it. Dies when memory is short. */
void mxc_json_print(cJSON *root, FILE *to);

#endif
