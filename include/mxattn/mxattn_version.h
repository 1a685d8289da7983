/* mxattn_version.h: the one place a version is written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXATTN_VERSION_H
#define MXATTN_VERSION_H

#define MXATTN_VERSION_MAJOR 0
#define MXATTN_VERSION_MINOR 1
#define MXATTN_VERSION_PATCH 0

/* One number that orders versions: 0.1.0 is 100, 1.2.3 is 10203. */
#define MXATTN_VERSION                                                                             \
    (MXATTN_VERSION_MAJOR * 10000 + MXATTN_VERSION_MINOR * 100 + MXATTN_VERSION_PATCH)

#endif
