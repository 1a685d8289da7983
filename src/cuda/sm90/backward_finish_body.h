/* backward_finish_body.h: dK and dV of a tile to memory; part of backward_body.h and
 * backward_wide_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* The share of dV that the means of dO make, one head of the group after another. */
MXA_DEVICE void BACKWARD(add_means)(const mxa_backward_params *params, const BACKWARD(own) * own,
                                    float *dv)
{
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const mxa_u32x4 place = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_PLACE);
    const uint32_t any =
        dev_load_shared_u32(own->tile + BACKWARD_TILE_RANGE + 12) & ~BACKWARD_TILE_FAR;
    for (int h = 0; (int)counts.x > 0 && any && h < params->group; h++) {
        const uint64_t head = (uint64_t)place.x * (uint64_t)params->group + (uint64_t)h;
        const uint64_t pair = (uint64_t)counts.w * (uint64_t)params->heads + head;
        if (!dev_load_global_u32(params->mean_used + 4 * pair)) {
            continue;
        }
        const uint64_t row = (uint64_t)place.y + (uint64_t)(16 * own->warp + (BACKWARD_LANE >> 2));
        const uint64_t mine = BACKWARD_SUMS_HEAD(params, own, place.x, h);
        const mxa_global sums = params->column_sums + 4 * (mine * (uint64_t)params->k_rows + row);
        const float sum[2] = {dev_load_global_f32(sums), dev_load_global_f32(sums + 32)};
        const mxa_global mean =
            params->mean + 4 * (pair * BACKWARD_D + (uint64_t)BACKWARD_FIRST_DIM(own) +
                                8 * (uint64_t)(BACKWARD_LANE & 3));
        MXA_UNROLL
        for (int i = 0; i < ACCUMULATORS / 8; i++) { /* four dimensions, dv's of both rows */
            const mxa_u32x4 m =
                dev_load_global_u32x4(mean + (uint64_t)(128 * (i >> 1) + 16 * (i & 1)));
            MXA_UNROLL
            for (int r = 0; r < 2; r++) {
                float *x = dv + 8 * i + 2 * r;
                x[0] = fma_rn(sum[r], f32_bits(m.x), x[0]);
                x[1] = fma_rn(sum[r], f32_bits(m.y), x[1]);
                x[4] = fma_rn(sum[r], f32_bits(m.z), x[4]);
                x[5] = fma_rn(sum[r], f32_bits(m.w), x[5]);
            }
        }
    }
}

/* finish: 16 keys of dK or dV to memory. */
MXA_DEVICE void BACKWARD(finish)(mxa_global to, int64_t token_bytes, int rows, int dims, int type,
                                 float *x)
{
    const int d = 8 * (BACKWARD_LANE & 3), row = BACKWARD_LANE >> 2;
    const int bytes = type == MXA_GPU_F32 ? 4 : 2;
    to += (uint64_t)(row * token_bytes + d * bytes);
    MXA_UNROLL
    for (int r = 0; r < 2; r++, to += (uint64_t)(8 * token_bytes)) {
        MXA_UNROLL
        for (int block = 0; block < ACCUMULATORS / 16; block++) {
            if (row + 8 * r < rows && d + 32 * block < dims) {
                float eight[8];
                backward_eight(x, block, r, eight);
                backward_store_eight(to + (uint64_t)(32 * bytes * block), type, eight);
            }
        }
    }
}

MXA_DEVICE void BACKWARD(finish_as)(mxa_global to, int64_t token, int rows, int dims, int type,
                                    float *x)
{
    wgmma_hold_f32(x, ACCUMULATORS); /* WHY: else what the branches do to them is done before */
    if (type == MXA_GPU_BF16) {
        BACKWARD(finish)(to, 2 * token, rows, dims, MXA_GPU_BF16, x);
    } else if (type == MXA_GPU_F16) {
        BACKWARD(finish)(to, 2 * token, rows, dims, MXA_GPU_F16, x);
    } else {
        BACKWARD(finish)(to, 4 * token, rows, dims, MXA_GPU_F32, x);
    }
}

/* finish: dK and dV of this warp's 16 keys. */
MXA_DEVICE void BACKWARD(finish_keys)(const mxa_backward_params *params, const BACKWARD(own) * own,
                                      float dk_factor, float dv_factor, float *dk, float *dv)
{
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const mxa_u32x4 place = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_PLACE);
    const int first = (int)counts.y + 16 * own->warp, rows = (int)counts.z - first;
    const int64_t outer = (int)place.z, token = (int)place.w + (int64_t)first;
    const int64_t head = (int)place.x;
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        dv[i] = mul_rn(dv[i], dv_factor);
    }
    BACKWARD(add_means)(params, own, dv);
    BACKWARD(finish_as)
    (params->dv + (uint64_t)((params->dv_type == MXA_GPU_F32 ? 4 : 2) *
                             (outer * params->dv_batch + token * params->dv_token +
                              head * params->dv_head + BACKWARD_FIRST_DIM(own))),
     params->dv_token, rows, params->head_dim_v - BACKWARD_FIRST_DIM(own), params->dv_type, dv);
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        dk[i] = mul_rn(dk[i], dk_factor);
    }
    BACKWARD(finish_as)
    (params->dk + (uint64_t)((params->dk_type == MXA_GPU_F32 ? 4 : 2) *
                             (outer * params->dk_batch + token * params->dk_token +
                              head * params->dk_head + BACKWARD_FIRST_DIM(own))),
     params->dk_token, rows, params->head_dim - BACKWARD_FIRST_DIM(own), params->dk_type, dk);
    warp_sync(); /* WHY: else ptxas takes lanes for apart from here on, and spills */
}
