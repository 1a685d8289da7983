/* json.c: cJSON, and how the command prints with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "json.h"

#include "error.h"

#include <stdlib.h>

void mxc_json_print(cJSON *root, FILE *to)
{
    char *text = cJSON_Print(root);
    if (!text)
        mxc_die("out of memory for the JSON text");
    (void)fprintf(to, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
}
