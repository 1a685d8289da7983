/* consumer.c: a program of somebody else, built against the installed library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <mxattn/mxattn.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    if (mxattn_version() != MXATTN_VERSION) {
        printf("library %d, header %d\n", (int)mxattn_version(), MXATTN_VERSION);
        return 1;
    }

    /* Four equal keys: O is the mean of V, here 2.5. */
    float q[32] = {0}, k[4 * 32] = {0}, v[4 * 32], o[32];
    for (int i = 0; i < 4 * 32; i++)
        v[i] = (float)(i / 32 + 1);
    mxattn_attention_problem problem;
    mxattn_attention_problem_init(&problem);
    problem.heads = problem.kv_heads = 1;
    problem.head_dim = 32;
    problem.q.dtype = problem.k.dtype = problem.v.dtype = MXATTN_F32; /* quantized in the call */
    problem.o.dtype = MXATTN_F32;

    mxattn_tensor tq, tk, tv, to;
    mxattn_tensor_view(&tq, MXATTN_F32, q, 4, (const int64_t[]){1, 1, 1, 32});
    mxattn_tensor_view(&tk, MXATTN_F32, k, 4, (const int64_t[]){1, 4, 1, 32});
    mxattn_tensor_view(&tv, MXATTN_F32, v, 4, (const int64_t[]){1, 4, 1, 32});
    mxattn_tensor_view(&to, MXATTN_F32, o, 4, (const int64_t[]){1, 1, 1, 32});
    tq.tags = problem.q;
    tk.tags = problem.k;
    tv.tags = problem.v;
    mxattn_attention_args args;
    mxattn_attention_args_init(&args);
    args.q = &tq;
    args.k = &tk;
    args.v = &tv;
    args.o = &to;
    if (mxattn_attention_forward_once(NULL, &problem, &args) != MXATTN_OK) {
        printf("%s\n", mxattn_last_error());
        return 1;
    }
    for (int i = 0; i < 32; i++) {
        if (o[i] != 2.5f) {
            printf("o[%d] = %g, want 2.5\n", i, (double)o[i]);
            return 1;
        }
    }
    printf("mxattn %s\n", mxattn_version_string());
    return 0;
}
