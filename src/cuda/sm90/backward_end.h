/* backward_end.h: ends an instance of a Hopper backward: what its body and backward.cu defined is
 * defined no more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#undef BACKWARD_PASTE2
#undef BACKWARD_PASTE
#undef BACKWARD
#undef TILE_Q
#undef WARPGROUPS
#undef KEYS
#undef TILE_K
#undef CONSUMER_REGISTERS
#undef PRODUCER_REGISTERS
#undef DS_AT
#undef KV_BYTES
#undef Q_BYTES
#undef STAGE_BYTES
#undef STAGES
#undef RING
#undef TILES
#undef DS_BYTES
#undef KEYS_BYTES
#undef STAGING_BYTES
#undef ACCUMULATORS
#undef BACKWARD_LANE
#undef BACKWARD_WIDTH
#undef BACKWARD_FIRST_DIM
#undef BACKWARD_OWN_STAGING
#undef BACKWARD_SUMS_HEAD
#undef AT_K
#undef AT_V
#undef AT_KT
#undef AT_STAGES
#undef AT_DS
#undef AT_STAGING
#undef AT_RECORDS
#undef AT_STEPS
#undef AT_TILES
#undef AT_BARRIERS
#undef AT_END
#undef SHARED_BYTES
#undef STAGE_AT
#undef RECORD_AT
#undef STEP_AT
#undef TILE_AT
#undef FULL
#undef EMPTY
#undef KV_FULL
#undef KV_EMPTY
#undef DS_FULL
#undef DS_EMPTY
#undef DQ_FULL
#undef DQ_EMPTY
#undef KT_FULL
#undef KT_EMPTY
#undef STAGING_AT
#undef BACKWARD_MMA_KEYS
#undef BACKWARD_MMA_Q_FIRST
#undef BACKWARD_MMA_Q
#undef BACKWARD_NAME
#undef BACKWARD_D
#undef BACKWARD_SOFTCAP
#undef BACKWARD_WARPGROUPS
#undef PART
#undef BOX_BYTES
