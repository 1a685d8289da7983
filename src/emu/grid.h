/* grid.h: the emulator's body of cuda/dev/grid.h: a launch begins when the one before has ended, so
 * that there is nothing to wait for. NOTE: a wait that a kernel lacks is not found here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMU_GRID_H
#define MXA_EMU_GRID_H

#include "emu/dev.h"

MXA_DEVICE void grid_wait(void)
{
}

MXA_DEVICE void grid_release(void)
{
}

#endif
