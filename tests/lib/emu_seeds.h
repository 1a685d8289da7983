/* emu_seeds.h: attention on an emulated device under many schedules: no report, the same bits.
 *
 * What the results must be is said elsewhere (tests/emu/test_forward_sm90.c and others), at more
 * shapes and fewer seeds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_EMU_SEEDS_H
#define MXT_EMU_SEEDS_H

#include "mxattn/mxattn.h"

/* Seeds where the command line names none. A sanitizer is ten times slower. */
#if defined(__SANITIZE_ADDRESS__)
enum { MXT_SEEDS = 10 };
#else
enum { MXT_SEEDS = 100 };
#endif

typedef struct mxt_seeds_case {
    const char *name;
    int64_t seqlen_q, seqlen_k, heads, kv_heads, head_dim;
    int causal, jagged; /* jagged: three sequences of seqlen_q and seqlen_k, one of them empty;
                         * MXFP8 and BF16 operands then have row blocks, as with fewer than 32
                         * queries */
    mxattn_dtype operands, o;
    mxattn_intermediates intermediates; /* 0: E4M3 */
    double softcap;
    int sink, strict;
    int backward; /* 1: forward and backward */
} mxt_seeds_case;

/* MXATTN_TEST_SEEDS of the environment, else MXT_SEEDS. */
int mxt_seeds_default(void);

/* argv[1]: seeds (default mxt_seeds_default()); argv[2]: the beginning of a case's name. */
void mxt_seeds_run(mxattn_backend backend, const mxt_seeds_case *cases, int count, int argc,
                   char **argv);

/* Whether every kernel whose name begins with `prefix` has been launched by now. */
void mxt_seeds_covered(const char *prefix);

#endif
