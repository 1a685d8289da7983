/* generate.h: text out of a trained network.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_GENERATE_H
#define TRAIN_LM_GENERATE_H

#include "model.h"

/* Prints a line for each of a few openings, continued by the network up to the end of the verse or
 * 140 characters. All lines grow together, as one jagged batch. */
void generate_lines(model *m, const text *t, uint64_t seed);

#endif
