/* forward.cu: instances of the Blackwell forward. The list is read by the planner
 * (sm100_forward.c), the tests and the static report: docs/sm100.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tcgen05.h"
#include "cuda/dev/tma.h"
#include "cuda/sm100/forward_map.h"
#include "cuda/sm100/forward_params.h"
#include "cuda/sm100/forward_pipe.h"

#define FORWARD_NAME         mxa_sm100_forward_e4m3_256x128_d128
#define FORWARD_D            128
#define FORWARD_BF16         0
#define FORWARD_SHARED_BYTES 223232
#define FORWARD_TMEM_COLUMNS 512
#define FORWARD_MMA_PER_TILE 8
#include "cuda/sm100/forward_body.h"

#define FORWARD_NAME         mxa_sm100_forward_e4m3_256x128_d64
#define FORWARD_D            64
#define FORWARD_BF16         0
#define FORWARD_SHARED_BYTES 124928
#define FORWARD_TMEM_COLUMNS 512
#define FORWARD_MMA_PER_TILE 6
#include "cuda/sm100/forward_body.h"

#define FORWARD_NAME         mxa_sm100_forward_bf16_256x128_d128
#define FORWARD_D            128
#define FORWARD_BF16         1
#define FORWARD_SHARED_BYTES 223232
#define FORWARD_TMEM_COLUMNS 512
#define FORWARD_MMA_PER_TILE 12
#include "cuda/sm100/forward_body.h"

#define FORWARD_NAME         mxa_sm100_forward_bf16_256x128_d64
#define FORWARD_D            64
#define FORWARD_BF16         1
#define FORWARD_SHARED_BYTES 124928
#define FORWARD_TMEM_COLUMNS 512
#define FORWARD_MMA_PER_TILE 10
#include "cuda/sm100/forward_body.h"
