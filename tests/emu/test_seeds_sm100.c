/* test_seeds_sm100.c: the Blackwell kernels under many schedules; S <= 256.
 *
 * Arguments: seeds (default 100), the beginning of a case's name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu_seeds.h"
#include "report.h"

#define F32  MXATTN_F32
#define BF16 MXATTN_BF16
#define WIDE MXATTN_INTERMEDIATES_BF16

/* clang-format off */
static const mxt_seeds_case cases[] = {
    {"d128", 256, 256, 1, 1, 128, 0, 0, F32, F32, 0, 0, 0, 0, 0},
    {"d128 bf16 causal group", 129, 256, 2, 1, 128, 1, 0, BF16, BF16, 0, 0, 1, 0, 0},
    {"d128 jagged", 97, 230, 1, 1, 128, 1, 1, F32, F32, 0, 0, 0, 0, 0},
    {"d64", 256, 256, 1, 1, 64, 0, 0, F32, F32, 0, 0, 0, 0, 0},
    {"d64 softcap", 128, 200, 1, 1, 64, 1, 0, F32, F32, 0, 15.0, 0, 0, 0},
    {"d64 wide", 128, 128, 1, 1, 64, 0, 0, F32, F32, WIDE, 0, 0, 0, 0},
    {"d128 wide", 128, 256, 1, 1, 128, 1, 0, F32, F32, WIDE, 0, 0, 0, 0},
};
/* clang-format on */

int main(int argc, char **argv)
{
    mxt_seeds_run(MXATTN_BACKEND_EMU_SM100, cases, sizeof cases / sizeof cases[0], argc, argv);
    if (argc <= 2) {
        mxt_seeds_covered("mxa_sm100_forward");
        mxt_seeds_covered("mxa_sm100_prepare");
    }
    return mxt_finish();
}
