/* backward_wide.cu: instances of the Hopper backward for head dims beyond 128:
 * docs/kernels/hopper_backward.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "cuda/dev/wgmma.h"
#include "cuda/sm90/backward_columns.h"
#include "cuda/sm90/backward_params.h"
#include "cuda/sm90/backward_tile.h"

#define BACKWARD_NAME    mxa_sm90_backward_e4m3_64x64_d256
#define BACKWARD_SOFTCAP 0
#include "cuda/sm90/backward_wide_body.h"

#define BACKWARD_NAME    mxa_sm90_backward_e4m3_64x64_d256_softcap
#define BACKWARD_SOFTCAP 1
#include "cuda/sm90/backward_wide_body.h"
