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
        mxa_global mean =
            params->mean + 4 * (pair * BACKWARD_D + (uint64_t)BACKWARD_FIRST_DIM(own) +
                                2 * (uint64_t)(BACKWARD_LANE & 3));
        MXA_UNROLL
        for (int i = 0; i < ACCUMULATORS / 4; i++) {
            mxa_u32x2 x = dev_load_global_u32x2(mean + 32 * (uint64_t)i);
            MXA_UNROLL
            for (int r = 0; r < 2; r++) {
                dv[4 * i + 2 * r] = fma_rn(sum[r], f32_bits(x.x), dv[4 * i + 2 * r]);
                dv[4 * i + 2 * r + 1] = fma_rn(sum[r], f32_bits(x.y), dv[4 * i + 2 * r + 1]);
            }
        }
    }
}

/* finish: 16 keys of dK or dV to memory. A warp stages BACKWARD_WIDTH bytes of each row at a time,
 * the 16-byte units permuted by the row, and stores 16 bytes a lane. */
MXA_DEVICE void BACKWARD(finish)(mxa_shared stage, mxa_global to, int64_t token_bytes, int rows,
                                 int dims, int type, const float *x)
{
    enum { UNITS = BACKWARD_WIDTH / 16 };
    const int bytes = type == MXA_GPU_F32 ? 4 : 2, c = BACKWARD_LANE & 3, g = BACKWARD_LANE >> 2;
    const int row = BACKWARD_LANE / UNITS, unit = BACKWARD_LANE % UNITS;
    MXA_UNROLL
    for (int pass = 0; pass < bytes; pass++) {
        const int columns = BACKWARD_WIDTH / bytes;
        warp_sync();
        MXA_UNROLL
        for (int k = 0; k < columns / 8; k++) {
            const int i = pass * (columns / 8) + k;
            MXA_UNROLL
            for (int r = 0; r < 2; r++) {
                const float a = x[4 * i + 2 * r], b = x[4 * i + 2 * r + 1];
                const int at = g + 8 * r, turn = at / (8 / UNITS) & (UNITS - 1);
                const mxa_shared staged = stage + (uint32_t)(at * BACKWARD_WIDTH);
                if (type == MXA_GPU_F32) {
                    dev_store_shared_u32x2(
                        staged + (uint32_t)(((2 * k + (c >> 1)) ^ turn) * 16 + 8 * (c & 1)),
                        bits_f32(a), bits_f32(b));
                } else {
                    dev_store_shared_u32(staged + (uint32_t)((k ^ turn) * 16 + 4 * c),
                                         type == MXA_GPU_BF16 ? bf16x2_from_f32x2(a, b)
                                                              : f16x2_from_f32x2(a, b));
                }
            }
        }
        warp_sync();
        MXA_UNROLL
        for (int i = 0; i < UNITS / 2; i++) {
            const int at = row + 32 / UNITS * i, turn = at / (8 / UNITS) & (UNITS - 1);
            if (at < rows && pass * BACKWARD_WIDTH + 16 * unit < dims * bytes) {
                dev_store_global_u32x4(
                    to + (uint64_t)(at * token_bytes + pass * BACKWARD_WIDTH + 16 * unit),
                    dev_load_shared_u32x4(stage +
                                          (uint32_t)(at * BACKWARD_WIDTH + (unit ^ turn) * 16)));
            }
        }
    }
}

MXA_DEVICE void BACKWARD(finish_as)(mxa_shared stage, mxa_global to, int64_t token, int rows,
                                    int dims, int type, const float *x)
{
    if (type == MXA_GPU_BF16) {
        BACKWARD(finish)(stage, to, 2 * token, rows, dims, MXA_GPU_BF16, x);
    } else if (type == MXA_GPU_F16) {
        BACKWARD(finish)(stage, to, 2 * token, rows, dims, MXA_GPU_F16, x);
    } else {
        BACKWARD(finish)(stage, to, 4 * token, rows, dims, MXA_GPU_F32, x);
    }
}

/* finish: dK and dV of this warp's 16 keys. */
MXA_DEVICE void BACKWARD(finish_keys)(const mxa_backward_params *params, mxa_shared shared,
                                      const BACKWARD(own) * own, float dk_factor, float dv_factor,
                                      float *dk, float *dv)
{
    const mxa_u32x4 counts = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_STEPS);
    const mxa_u32x4 place = dev_load_shared_u32x4(own->tile + BACKWARD_TILE_PLACE);
    /* Where this warp staged dQ, so that no other warp's stores come in between. */
    const mxa_shared stage = BACKWARD_OWN_STAGING(params, own);
    const int first = (int)counts.y + 16 * own->warp, rows = (int)counts.z - first;
    const int64_t outer = (int)place.z, token = (int)place.w + (int64_t)first;
    const int64_t head = (int)place.x;
    MXA_UNROLL
    for (int i = 0; i < ACCUMULATORS; i++) {
        dk[i] = mul_rn(dk[i], dk_factor);
        dv[i] = mul_rn(dv[i], dv_factor);
    }
    BACKWARD(add_means)(params, own, dv);
    BACKWARD(finish_as)
    (stage,
     params->dv + (uint64_t)((params->dv_type == MXA_GPU_F32 ? 4 : 2) *
                             (outer * params->dv_batch + token * params->dv_token +
                              head * params->dv_head + BACKWARD_FIRST_DIM(own))),
     params->dv_token, rows, params->head_dim_v - BACKWARD_FIRST_DIM(own), params->dv_type, dv);
    BACKWARD(finish_as)
    (stage,
     params->dk + (uint64_t)((params->dk_type == MXA_GPU_F32 ? 4 : 2) *
                             (outer * params->dk_batch + token * params->dk_token +
                              head * params->dk_head + BACKWARD_FIRST_DIM(own))),
     params->dk_token, rows, params->head_dim - BACKWARD_FIRST_DIM(own), params->dk_type, dk);
    warp_sync();
}
