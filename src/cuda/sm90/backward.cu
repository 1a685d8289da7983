/* backward.cu: instances of the Hopper backward: docs/kernels/hopper_backward.md.
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

#define BACKWARD_NAME       mxa_sm90_backward_e4m3_64x128_d128
#define BACKWARD_D          128
#define BACKWARD_SOFTCAP    0
#define BACKWARD_WARPGROUPS MXA_BACKWARD_WARPGROUPS(128, 0)
#include "cuda/sm90/backward_body.h"

#define BACKWARD_NAME       mxa_sm90_backward_e4m3_64x128_d128_softcap
#define BACKWARD_D          128
#define BACKWARD_SOFTCAP    1
#define BACKWARD_WARPGROUPS MXA_BACKWARD_WARPGROUPS(128, 1)
#include "cuda/sm90/backward_body.h"

#define BACKWARD_NAME       mxa_sm90_backward_e4m3_64x192_d64
#define BACKWARD_D          64
#define BACKWARD_SOFTCAP    0
#define BACKWARD_WARPGROUPS MXA_BACKWARD_WARPGROUPS(64, 0)
#include "cuda/sm90/backward_body.h"

#define BACKWARD_NAME       mxa_sm90_backward_e4m3_64x128_d64_softcap
#define BACKWARD_D          64
#define BACKWARD_SOFTCAP    1
#define BACKWARD_WARPGROUPS MXA_BACKWARD_WARPGROUPS(64, 1)
#include "cuda/sm90/backward_body.h"
