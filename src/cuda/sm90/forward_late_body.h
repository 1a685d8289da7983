/* forward_late_body.h: the Hopper forward's loop for blocks that are seen whole, once every row has
 * a maximum; part of forward_body.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* The scores and the P of such a block, the values of the one before it; t: this thread's sums.
 * Returns whether some P may be too large: then mend must follow. */
MXA_DEVICE int FORWARD(late)(mxa_shared shared, const forward_own *own, mxa_shared q, int step,
                             FORWARD(state) * x, float *o, forward_rows *rows, float *t)
{
    const int leader = (dev_thread() & 31) == 0;
    const mxa_shared record = RECORDS(STAGE(step));
    const uint32_t max[2] = {f16x2_from_f32(rows->m[0]), f16x2_from_f32(rows->m[1])};
    uint32_t sum[2] = {0, 0};
    FORWARD(issue)(shared, q, step, x, o);
#if !VALUES_LATE
    FORWARD(values)(o, x->p, V_AT(shared, STAGE(step - 1)));
#endif
    FORWARD(factors)(own, record, x->scale);
    mxa_u32x2 v = forward_shift_f16(record, 0);
#if VALUES_LATE
    wgmma_wait(0);
    FORWARD_HOLD_SCORES(x->s);
    FORWARD(values)(o, x->p, V_AT(shared, STAGE(step - 1)));
#else
    wgmma_wait(1);
    FORWARD_HOLD_SCORES(x->s);
#endif
    MXA_UNROLL
    for (int g = 0; g < 4; g++) {
        const mxa_u32x2 now = v;
        if (g < 3) {
            v = forward_shift_f16(record, g + 1);
        }
        const int without = CUBICS == 2 ? 0xC0 : CUBICS == 1 ? 0x40 << (g & 1) : 0;
        forward_exps_mixed_f16(x->s + 8 * g, without, x->scale[g], max, now, g == 0, sum);
        forward_codes_f16(x->s + 8 * g);
    }
    wgmma_wait(0);
    wgmma_hold_u32(x->p, P_REGISTERS);
    wgmma_hold_f32(o, ACCUMULATORS);
    forward_sums_f16(sum, t);
    FORWARD(pack)(x->s, x->p);
    const int raised = forward_beyond_f16(t);
    if (!raised) {
        forward_add_f16(rows, t);
    }
    warp_sync(); /* every lane has read its records */
    if (leader) {
        mbarrier_arrive(V_EMPTY(STAGE(step - 1)));
    }
    if (leader && !raised) {
        mbarrier_arrive(K_EMPTY(STAGE(step)));
    }
    return raised;
}

/* The rest of such a block. WHY apart: the loop is short, and nothing lies in between. */
MXA_DEVICE void FORWARD(mend)(const mxa_forward_params *params, mxa_shared shared,
                              const forward_own *own, int step, FORWARD(state) * x, float *o,
                              forward_rows *rows, float *t)
{
    rows->raised = 1;
    FORWARD(mend_codes)(params, own, RECORDS(STAGE(step)), x->s, rows, t);
    forward_add_f16(rows, t);
    warp_sync(); /* every lane has read its records */
    if ((dev_thread() & 31) == 0) {
        mbarrier_arrive(K_EMPTY(STAGE(step)));
    }
    FORWARD(rescale)(o, rows);
    FORWARD(pack)(x->s, x->p);
}
