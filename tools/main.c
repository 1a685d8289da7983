/* main.c: the mxattn command: finds the verb and hands it its arguments.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "verbs.h"

#include "mxattn/mxattn.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} verbs[] = {
    {"info", mxc_verb_info, "version, backends, instruction sets, threads, kernels"},
    {"plan", mxc_verb_plan, "which kernel would run a shape, and the memory it needs"},
    {"quantize", mxc_verb_quantize, "a .npy array to an MXFP8 payload and its scales"},
    {"dequantize", mxc_verb_dequantize, "and back"},
    {"forward", mxc_verb_forward, "attention of .npy arrays"},
    {"backward", mxc_verb_backward, "its gradients"},
    {"check", mxc_verb_check, "the error of MXFP8 attention, against thresholds"},
    {"bench", mxc_verb_bench, "its speed, beside what the machine can do"},
    {"emu", mxc_verb_emu, "a GPU kernel on the emulator, under many schedules"},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void print_help(FILE *to)
{
    (void)fprintf(to, "Usage: mxattn VERB [OPTION...]\n"
                      "MXFP8 attention, forward and backward, dense and jagged.\n\n");
    for (int i = 0; i < VERBS; i++)
        (void)fprintf(to, "  %-12s%s\n", verbs[i].name, verbs[i].what);
    (void)fprintf(to, "\nmxattn VERB --help tells a verb's options; mxattn --version the version.\n"
                      "Exit status: 0; 1 where check is past a threshold or emu found something; 2 "
                      "where something was "
                      "refused.\n");
}

int main(int argc, char **argv)
{
    static char name[64];
    if (argc < 2)
        mxc_die("a verb is missing; mxattn --help lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return MXC_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("mxattn %s\n", mxattn_version_string());
        return MXC_EXIT_OK;
    }
    for (int i = 0; i < VERBS; i++) {
        if (strcmp(argv[1], verbs[i].name) != 0)
            continue;
        (void)snprintf(name, sizeof name, "mxattn %s", verbs[i].name);
        mxc_error_name(name);
        argv[1] = name;
        int status = verbs[i].run(argc - 1, argv + 1);
        if (fflush(stdout) != 0 || ferror(stdout))
            mxc_die("standard output cannot be written");
        return status;
    }
    mxc_die("verb '%s' is unknown; mxattn --help lists them", argv[1]);
}
