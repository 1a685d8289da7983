/* backward_make_body.h: S, dP, P and dS of one step; part of backward_body.h and
 * backward_wide_body.h, which issue the products (scores, dprobs).
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* In FP16; returns the step's flags. */
MXA_DEVICE uint32_t BACKWARD(make_half)(const mxa_backward_params *params, mxa_shared shared,
                                        BACKWARD(own) * own, const BACKWARD(place) * place,
                                        uint32_t *p, uint32_t *units, uint32_t *ds)
{
    const mxa_shared record = BACKWARD_RECORD(place), words = STEP_AT(place->step);
    uint32_t s[16], dp[16];
    wgmma_fence();
    BACKWARD(scores_half)(shared, own, place, s);
    BACKWARD(dprobs_half)(shared, own, place, dp);
    const uint32_t flags = dev_load_shared_u32(words + BACKWARD_STEP_FLAGS);
    BACKWARD(terms) terms;
    BACKWARD(read_terms)(own, record, &terms);
    wgmma_wait(1);
    wgmma_hold_u32(s, 16);
    if (!(flags & (BACKWARD_MASKED | BACKWARD_MEAN))) {
        BACKWARD(both)(params, own, 0, flags, record, words, &terms, s, dp, p, units, ds);
    } else {
        BACKWARD(both)(params, own, 1, flags, record, words, &terms, s, dp, p, units, ds);
    }
    return flags;
}

/* The same in FP32, for every tile. */
MXA_DEVICE uint32_t BACKWARD(make)(const mxa_backward_params *params, mxa_shared shared,
                                   BACKWARD(own) * own, int far, const BACKWARD(place) * place,
                                   uint32_t *p, uint32_t *units, uint32_t *ds)
{
    const mxa_shared record = BACKWARD_RECORD(place), words = STEP_AT(place->step);
    float s[32], dp[32];
    wgmma_fence();
    BACKWARD(scores)(shared, own, place, s);
#if BACKWARD_APART
    uint32_t held[16];
    const uint32_t flags = dev_load_shared_u32(words + BACKWARD_STEP_FLAGS);
    BACKWARD(probs)(params, own, far, flags, record, words, s, p);
    MXA_UNROLL
    for (int i = 0; i < 16; i++) {
        held[i] = bf16x2_from_f32x2(s[2 * i], s[2 * i + 1]);
        hold_u32(&held[i]);
    }
    wgmma_fence();
    BACKWARD(dprobs)(shared, own, place, dp);
    BACKWARD(dscores)(own, record, held, dp, units, ds);
#else
    BACKWARD(dprobs)(shared, own, place, dp);
    const uint32_t flags = dev_load_shared_u32(words + BACKWARD_STEP_FLAGS);
    BACKWARD(probs)(params, own, far, flags, record, words, s, p);
    BACKWARD(dscores)(own, record, s, dp, units, ds);
#endif
    return flags;
}
