/* test_seeds_backward_sm90.c: the Hopper backward's kernels under many schedules; S <= 256.
 *
 * Arguments: seeds (default 100), the beginning of a case's name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu_seeds.h"
#include "report.h"

#define F32  MXATTN_F32
#define BF16 MXATTN_BF16

/* clang-format off */
static const mxt_seeds_case cases[] = {
    {"d64", 128, 128, 1, 1, 64, 0, 0, F32, F32, 0, 0, 0, 0, 1},
    {"d64 causal, softcap, sink", 66, 130, 1, 1, 64, 1, 0, F32, F32, 0, 3.0, 1, 0, 1},
    {"d64 bf16 group", 64, 128, 2, 1, 64, 0, 0, BF16, BF16, 0, 0, 0, 0, 1},
    {"d128", 192, 256, 1, 1, 128, 0, 0, F32, F32, 0, 0, 0, 0, 1},
    {"d128 bf16 causal", 129, 128, 1, 1, 128, 1, 0, BF16, BF16, 0, 0, 0, 0, 1},
    {"d128 softcap", 64, 128, 1, 1, 128, 0, 0, F32, F32, 0, 3.0, 0, 0, 1},
    {"d128 jagged", 97, 230, 1, 1, 128, 1, 1, F32, F32, 0, 0, 0, 0, 1},
    {"d256 bf16", 128, 64, 1, 1, 256, 0, 0, BF16, BF16, 0, 0, 0, 0, 1},
    {"d256 softcap", 64, 64, 1, 1, 256, 0, 0, F32, F32, 0, 3.0, 0, 0, 1},
};
/* clang-format on */

int main(int argc, char **argv)
{
    mxt_seeds_run(MXATTN_BACKEND_EMU_SM90, cases, sizeof cases / sizeof cases[0], argc, argv);
    if (argc <= 2) {
        mxt_seeds_covered("mxa_sm90_backward");
        mxt_seeds_covered("mxa_schedule");
    }
    return mxt_finish();
}
