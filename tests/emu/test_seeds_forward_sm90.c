/* test_seeds_forward_sm90.c: the Hopper forward's kernels under many schedules; S <= 256.
 *
 * Arguments: seeds (default 100), the beginning of a case's name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu_seeds.h"
#include "report.h"

#define F32  MXATTN_F32
#define BF16 MXATTN_BF16
#define E4M3 MXATTN_E4M3
#define WIDE MXATTN_INTERMEDIATES_BF16

/* clang-format off */
static const mxt_seeds_case cases[] = {
    {"d64", 256, 256, 1, 1, 64, 0, 0, F32, F32, 0, 0, 0, 0, 0},
    {"d64 bf16 causal group", 65, 200, 2, 1, 64, 1, 0, BF16, BF16, 0, 0, 1, 0, 0},
    {"d128", 192, 256, 1, 1, 128, 0, 0, F32, F32, 0, 0, 0, 0, 0},
    {"d128 bf16 jagged causal", 97, 230, 1, 1, 128, 1, 1, BF16, BF16, 0, 0, 0, 0, 0},
    {"d128 softcap and sink", 64, 129, 1, 1, 128, 0, 0, F32, F32, 0, 15.0, 1, 0, 0},
    {"d96", 64, 96, 1, 1, 96, 0, 0, F32, F32, 0, 0, 0, 0, 0},
    {"d256", 130, 128, 1, 1, 256, 0, 0, F32, F32, 0, 0, 0, 0, 0},
    {"d64 wide", 64, 128, 1, 1, 64, 0, 0, F32, F32, WIDE, 0, 0, 0, 0},
    {"d128 wide", 128, 192, 1, 1, 128, 0, 0, F32, F32, WIDE, 0, 0, 0, 0},
    {"d256 wide", 64, 128, 1, 1, 256, 1, 0, F32, F32, WIDE, 0, 0, 0, 0},
    {"d64 e4m3", 64, 128, 1, 1, 64, 0, 0, E4M3, F32, 0, 0, 0, 0, 0},
    {"d128 e4m3 jagged", 97, 230, 1, 1, 128, 0, 1, E4M3, F32, 0, 0, 0, 0, 0},
    {"d256 e4m3", 64, 128, 1, 1, 256, 0, 0, E4M3, F32, 0, 0, 0, 0, 0},
    {"d256 bf16", 64, 128, 1, 1, 256, 1, 0, BF16, BF16, 0, 0, 0, 0, 0},
    {"strict", 128, 128, 1, 1, 128, 1, 0, F32, F32, WIDE, 0, 0, 1, 0},
    {"d64 e4m3 jagged", 34, 130, 1, 1, 64, 0, 1, E4M3, F32, 0, 0, 0, 0, 0},
    {"d128 e4m3", 32, 64, 1, 1, 128, 0, 0, E4M3, F32, 0, 0, 0, 0, 0},
    {"d128 bf16", 32, 64, 1, 1, 128, 0, 0, BF16, F32, 0, 0, 0, 0, 0},
    {"d64 bf16 row", 16, 64, 1, 1, 64, 0, 0, BF16, F32, 0, 0, 0, 0, 0},
    {"d256 bf16 row", 16, 64, 1, 1, 256, 0, 0, BF16, F32, 0, 0, 0, 0, 0},
    {"d256 e4m3 row", 16, 64, 1, 1, 256, 0, 0, E4M3, F32, 0, 0, 0, 0, 0},
};
/* clang-format on */

int main(int argc, char **argv)
{
    mxt_seeds_run(MXATTN_BACKEND_EMU_SM90, cases, sizeof cases / sizeof cases[0], argc, argv);
    if (argc <= 2) {
        mxt_seeds_covered("mxa_sm90_forward");
        mxt_seeds_covered("mxa_sm90_prepare");
    }
    return mxt_finish();
}
