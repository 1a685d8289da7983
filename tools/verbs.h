/* verbs.h: the verbs of the command. Each takes its arguments, argv[0] being its full name ("mxattn
 * forward"), and returns an exit status.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_VERBS_H
#define MXC_TOOLS_VERBS_H

int mxc_verb_info(int argc, char **argv);
int mxc_verb_plan(int argc, char **argv);
int mxc_verb_quantize(int argc, char **argv);
int mxc_verb_dequantize(int argc, char **argv);
int mxc_verb_forward(int argc, char **argv);
int mxc_verb_backward(int argc, char **argv);
int mxc_verb_check(int argc, char **argv);
int mxc_verb_bench(int argc, char **argv);
int mxc_verb_emu(int argc, char **argv);

#endif
