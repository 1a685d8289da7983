/* verbs.h: the verbs of the command. Each takes its arguments, argv[0] being its full name ("mxattn
 * forward"), and returns an exit status.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_TOOLS_VERBS_H
#define MXA_TOOLS_VERBS_H

int mxa_verb_info(int argc, char **argv);
int mxa_verb_plan(int argc, char **argv);
int mxa_verb_quantize(int argc, char **argv);
int mxa_verb_dequantize(int argc, char **argv);
int mxa_verb_forward(int argc, char **argv);
int mxa_verb_backward(int argc, char **argv);

#endif
