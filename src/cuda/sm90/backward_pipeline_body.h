/* backward_pipeline_body.h: the pipeline of steps and tiles of both Hopper backwards; part of
 * backward_body.h and backward_wide_body.h, which define sizes and the memory map (STAGES, AT_*).
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#define BACKWARD_PASTE2(a, b) a##_##b
#define BACKWARD_PASTE(a, b)  BACKWARD_PASTE2(a, b)
#define BACKWARD(name)        BACKWARD_PASTE(BACKWARD_NAME, name)

/* Powers of two: of steps, since a writer may be STAGES + W steps behind the producer; of tiles,
 * since the producer finds the next one while this one's last steps and the one before's end are
 * worked on. */
#define RING  8
#define TILES 4

/* Whether S and dP are FP16 in tiles that allow it. */
#define BACKWARD_HALF (!BACKWARD_SOFTCAP)

/* WHY again: no register is free for it. */
#define BACKWARD_LANE (dev_thread_again() & 31)

/* Where in a record a thread's terms of rows are: in one for FP16, in one for FP32. */
#define BACKWARD_HALF_OF(lane)  (MXA_BACKWARD_HALF_ROW * (uint32_t)((lane)&3))
#define BACKWARD_TERMS_OF(lane) (MXA_BACKWARD_RECORD_ROW * (uint32_t)((lane)&3))

#define STAGE_AT(s)  (shared + AT_STAGES + (uint32_t)(s)*STAGE_BYTES)
#define RECORD_AT(s) (shared + AT_RECORDS + (uint32_t)(s)*MXA_BACKWARD_RECORD)
#define STEP_AT(i)   (shared + AT_STEPS + (uint32_t)((i) & (RING - 1)) * BACKWARD_STEP_BYTES)
#define TILE_AT(i)   (shared + AT_TILES + (uint32_t)((i) & (TILES - 1)) * BACKWARD_TILE_BYTES)
#define FULL(s)      (shared + AT_BARRIERS + 8 * (uint32_t)(s))
#define EMPTY(s)     (shared + AT_BARRIERS + 8 * (uint32_t)(STAGES + (s)))
#define KV_FULL      (shared + AT_BARRIERS + 8 * (2 * STAGES))
#define KV_EMPTY     (shared + AT_BARRIERS + 8 * (2 * STAGES + 1))
#define KT_FULL      (shared + AT_BARRIERS + 8 * (2 * STAGES + 2))
#define KT_EMPTY     (shared + AT_BARRIERS + 8 * (2 * STAGES + 3))

/* A stage of the pipeline of steps. */
typedef struct BACKWARD(place) {
    int step, stage;   /* steps so far in this CTA; stage = step % STAGES */
    uint32_t parity;   /* of the stage's barriers */
    mxa_shared record; /* RECORD_AT(stage), of BACKWARD_RECORD */
} BACKWARD(place);

MXA_DEVICE void BACKWARD(advance)(BACKWARD(place) * place)
{
    place->step++;
    place->record += MXA_BACKWARD_RECORD;
    if (++place->stage == STAGES) {
        place->stage = 0;
        place->record -= STAGES * MXA_BACKWARD_RECORD;
        place->parity ^= 1;
    }
}

/* Where the record of block `block` is, for the loop that takes the tile; *bytes: its size. */
MXA_DEVICE mxa_global BACKWARD(find_record)(const mxa_backward_params *params, mxa_shared tile,
                                            uint64_t block, uint32_t *bytes)
{
    const mxa_global record = params->q_records + block * MXA_BACKWARD_RECORDS;
    const int half = BACKWARD_HALF &&
                     !(dev_load_shared_u32(tile + BACKWARD_TILE_RANGE + 12) & BACKWARD_TILE_FAR);
    *bytes = half ? MXA_BACKWARD_HALF : MXA_BACKWARD_RECORD;
    return half ? record + MXA_BACKWARD_RECORD : record;
}
