/* emulator.h: what the front door asks of the emulator (src/emu), where the build has it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_EMULATOR_H
#define MXA_EMULATOR_H

#include "mxattn/mxattn.h"

/* Settings of this thread's next launches; forgets what came of earlier ones. */
mxattn_status mxa_emu_begin(const mxattn_emulator_options *options);

/* What came of them so far; strings and events belong to the thread's session. */
void mxa_emu_sum(mxattn_emulator_result *result);
const char *mxa_emu_counted(int64_t i, int64_t *count);
const mxattn_emulator_event *mxa_emu_events(int64_t *count);

#endif
