/* forward.cu: instances of the Hopper forward. The list is read by the planner (config.c), the
 * tests and the bench: docs/kernels.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/convert.h"
#include "cuda/dev/math.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "cuda/dev/wgmma.h"
#include "cuda/sm90/forward_params.h"
#include "cuda/sm90/forward_softmax.h"
#include "cuda/sm90/forward_tile.h"

#define FORWARD_NAME      mxa_sm90_forward_e4m3_192x128_d128
#define FORWARD_D         128
#define FORWARD_F16       1
#define FORWARD_CONSUMERS 3
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME      mxa_sm90_forward_e4m3_128x128_d128
#define FORWARD_D         128
#define FORWARD_F16       0
#define FORWARD_CONSUMERS 2
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME      mxa_sm90_forward_e4m3_192x128_d64
#define FORWARD_D         64
#define FORWARD_F16       1
#define FORWARD_CONSUMERS 3
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME      mxa_sm90_forward_e4m3_128x128_d64
#define FORWARD_D         64
#define FORWARD_F16       0
#define FORWARD_CONSUMERS 2
#include "cuda/sm90/forward_body.h"
