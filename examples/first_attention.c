/* first_attention.c: attention in MXFP8 in one call, from float32 arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <mxattn/mxattn.h>

#include <stdio.h>

enum { B = 1, S = 128, H = 4, D = 64 };
static float q[B * S * H * D], k[B * S * H * D], v[B * S * H * D], o[B * S * H * D];

int main(void)
{
    const int64_t shape[] = {B, S, H, D};
    for (int i = 0; i < B * S * H * D; i++) {
        q[i] = (float)(i % 7 - 3);
        k[i] = (float)(i % 5 - 2);
        v[i] = (float)(i % 3);
    }
    mxattn_tensor tq, tk, tv, to;
    mxattn_tensor_view(&tq, MXATTN_F32, q, 4, shape);
    mxattn_tensor_view(&tk, MXATTN_F32, k, 4, shape);
    mxattn_tensor_view(&tv, MXATTN_F32, v, 4, shape);
    mxattn_tensor_view(&to, MXATTN_F32, o, 4, shape);

    mxattn_attention_problem problem; /* the defaults: MXFP8 in square blocks, on the CPU */
    mxattn_attention_problem_init(&problem);
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_F32; /* quantized by the call */
    problem.o.dtype = MXATTN_F32;
    problem.causal = 1;

    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &tq, args.k = &tk, args.v = &tv, args.o = &to;
    if (mxattn_attention_forward_once(NULL, &problem, &args) != MXATTN_OK) {
        (void)fprintf(stderr, "%s\n", mxattn_last_error());
        return 1;
    }
    (void)printf("o[0] = %g, o[last] = %g\n", (double)o[0], (double)o[B * S * H * D - 1]);
    return 0;
}
