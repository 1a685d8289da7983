/* forward.cu: instances of the Hopper forward. The host's list of them is in forward.c, that of the
 * kernels in device.c: docs/kernels/hopper_forward.md.
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
#include "cuda/sm90/forward_finish.h"
#include "cuda/sm90/forward_params.h"
#include "cuda/sm90/forward_softmax.h"
#include "cuda/sm90/forward_tile.h"

#define FORWARD_F16  1
#define FORWARD_F32  2
#define FORWARD_BF16 3

#define FORWARD_NAME       mxa_sm90_forward_e4m3_192x128_d128
#define FORWARD_D          128
#define FORWARD_SCORES     FORWARD_F16
#define FORWARD_CONSUMERS  3
#define FORWARD_TILE_K     128
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n128_f32
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_e4m3_128x128_d128
#define FORWARD_D          128
#define FORWARD_SCORES     FORWARD_F32
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     128
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n128_f32
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_bf16_128x64_d128
#define FORWARD_D          128
#define FORWARD_SCORES     FORWARD_BF16
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     64
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n128_bf16
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_e4m3_256x128_d64
#define FORWARD_D          64
#define FORWARD_SCORES     FORWARD_F16
#define FORWARD_CONSUMERS  4
#define FORWARD_TILE_K     128
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n64_f32
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_e4m3_128x128_d64
#define FORWARD_D          64
#define FORWARD_SCORES     FORWARD_F32
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     128
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n64_f32
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_bf16_128x64_d64
#define FORWARD_D          64
#define FORWARD_SCORES     FORWARD_BF16
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     64
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n64_bf16
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_e4m3_128x128_d256
#define FORWARD_D          256
#define FORWARD_SCORES     FORWARD_F16
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     128
#define FORWARD_STAGES     2
#define FORWARD_MMA_VALUES wgmma_rs_m64n256_f32
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_e4m3_128x64_d256
#define FORWARD_D          256
#define FORWARD_SCORES     FORWARD_F32
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     64
#define FORWARD_STAGES     4
#define FORWARD_MMA_VALUES wgmma_rs_m64n256_f32
#include "cuda/sm90/forward_body.h"

#define FORWARD_NAME       mxa_sm90_forward_bf16_128x64_d256
#define FORWARD_D          256
#define FORWARD_SCORES     FORWARD_BF16
#define FORWARD_CONSUMERS  2
#define FORWARD_TILE_K     64
#define FORWARD_STAGES     2
#define FORWARD_MMA_VALUES wgmma_rs_m64n256_bf16
#include "cuda/sm90/forward_body.h"
