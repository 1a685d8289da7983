/* product_portable.c: products in vectors of 16 bytes, which every machine has in some form.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define PRODUCT_BYTES 16
#define PRODUCT_NAME  mxa_emu_product_portable
#include "emu/product_body.h"
