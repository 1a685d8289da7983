/* forms.c: see forms.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/forms.h"

/* As in sm90/forward.cu. */
static const mxa_forward_form forms[] = {
    {MXA_KERNEL_FORWARD_F16_D64, MXA_FORM_F16, 64, 256, 128, 4},
    {MXA_KERNEL_FORWARD_F16_D128, MXA_FORM_F16, 128, 192, 128, 4},
    {MXA_KERNEL_FORWARD_F16_D256, MXA_FORM_F16, 256, 128, 128, 2},
    {MXA_KERNEL_FORWARD_F32_D64, MXA_FORM_F32, 64, 128, 128, 4},
    {MXA_KERNEL_FORWARD_F32_D128, MXA_FORM_F32, 128, 128, 128, 4},
    {MXA_KERNEL_FORWARD_F32_D256, MXA_FORM_F32, 256, 128, 64, 4},
    {MXA_KERNEL_FORWARD_BF16_D64, MXA_FORM_BF16, 64, 128, 64, 4},
    {MXA_KERNEL_FORWARD_BF16_D128, MXA_FORM_BF16, 128, 128, 64, 4},
    {MXA_KERNEL_FORWARD_BF16_D256, MXA_FORM_BF16, 256, 128, 64, 2},
};

enum { FORMS = sizeof forms / sizeof forms[0] };

const mxa_forward_form *mxa_forward_form_find(int64_t head_dim, int64_t head_dim_v,
                                              mxa_form_kind kind)
{
    for (int i = 0; i < FORMS; i++) {
        if (forms[i].kind == kind && forms[i].head_dim >= head_dim &&
            forms[i].head_dim >= head_dim_v) {
            return &forms[i];
        }
    }
    return NULL;
}

unsigned mxa_forward_form_threads(const mxa_forward_form *form)
{
    return 128 + 2 * (unsigned)form->tile_q; /* a producer, and a warpgroup for 64 queries */
}

/* SHARED_BYTES of sm90/forward_body.h. */
int mxa_forward_shared_bytes(mxa_kernel kernel)
{
    for (int i = 0; i < FORMS; i++) {
        const mxa_forward_form *f = &forms[i];
        if (f->kernel == kernel) {
            const int bf16 = f->kind == MXA_FORM_BF16, tile_bytes = 1584;
            const int block =
                f->tile_k * f->head_dim * (bf16 ? 3 : 2) + f->tile_k / 32 * (bf16 ? 144 : 16);
            return 2 * (f->tile_q * f->head_dim + tile_bytes) + f->stages * block +
                   8 * (4 + 4 * f->stages) + 1024;
        }
    }
    return 0;
}
