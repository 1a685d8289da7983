/* options.c: what the command line of train_lm says.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: train_lm [options]\n"
    "Trains a small causal transformer on text, once for each kind of attention, from the same\n"
    "seed, and compares the validation losses.\n"
    "  --attention LIST   kinds, by commas: float32, mxfp8, mxfp8-all (every activation in\n"
    "                     MXFP8), none (default float32,mxfp8)\n"
    "  --task NAME        text: the next character; recommend: hidden items of made-up histories,\n"
    "                     without a causal mask (default text)\n"
    "  --backend NAME     of the mxattn library for mxfp8 and mxfp8-all: auto, cpu, ref; for "
    "mxfp8\n"
    "                     also cuda and emu-sm90 (default auto)\n"
    "  --variant NAME     of MXFP8: floor (scales rounded down), fp16-dq (dQ summed in FP16 times\n"
    "                     2^12), pairs (mxfp8 alone: q, k, v in 1x32 and 32x1 blocks); see\n"
    "                     docs/numerics.md (default none)\n"
    "  --steps N          optimizer steps of each training (default 600; recommend 2400)\n"
    "  --batch-tokens N   most tokens of a step (default 1024)\n"
    "  --width N          of the network, a multiple of 64, the head size (default 128)\n"
    "  --layers N         (default 4; recommend 2)\n"
    "  --learning-rate X  at its peak (default 0.003; recommend 0.012)\n"
    "  --seed N           (default 1)\n"
    "  --threads N        (default 0: as many as processors)\n"
    "  --text FILE        a verse a line, empty line between chapters (default\n"
    "                     examples/data/kjv.txt)\n"
    "  --out DIR          where loss_KIND.csv goes (default build/demo)\n";

const char *attention_kind_name(enum attention_kind kind)
{
    static const char *const names[] = {"float32", "mxfp8", "mxfp8-all", "none"};
    return names[kind];
}

static void refuse(const char *option, const char *value, const char *rule)
{
    fprintf(stderr, "train_lm: --%s is '%s'; it must be %s\n", option, value, rule);
    exit(2);
}

static int64_t read_integer(const char *option, const char *value, int64_t low, int64_t high)
{
    char *end, rule[80];
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno || end == value || *end || number < low || number > high) {
        snprintf(rule, sizeof(rule), "an integer from %lld to %lld", (long long)low,
                 (long long)high);
        refuse(option, value, rule);
    }
    return number;
}

static double read_rate(const char *option, const char *value)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number > 0.0 && number <= 1.0))
        refuse(option, value, "a number above 0 and at most 1");
    return number;
}

/* The kind whose name is the first `length` characters of text; ATTENTION_KINDS if none. */
static enum attention_kind find_kind(const char *text, size_t length)
{
    enum attention_kind kind = ATTENTION_FLOAT32;
    for (; kind < ATTENTION_KINDS; kind++) {
        const char *name = attention_kind_name(kind);
        if (strlen(name) == length && strncmp(text, name, length) == 0)
            break;
    }
    return kind;
}

static void read_runs(options *o, const char *value)
{
    o->run_count = 0;
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, ",");
        enum attention_kind kind = find_kind(at, length);
        int repeated = 0;
        for (int i = 0; i < o->run_count; i++)
            repeated |= o->runs[i] == kind;
        if (kind == ATTENTION_KINDS || repeated)
            refuse("attention", value,
                   "a list of float32, mxfp8, mxfp8-all and none, by commas, each at most once");
        o->runs[o->run_count++] = kind;
        at += length;
        if (*at == '\0')
            return;
    }
}

static int read_task(const char *value)
{
    if (strcmp(value, "text") != 0 && strcmp(value, "recommend") != 0)
        refuse("task", value, "text or recommend");
    return strcmp(value, "recommend") == 0;
}

static mxfp8_variant read_variant(const char *value)
{
    static const char *const names[VARIANTS] = {"none", "floor", "fp16-dq", "pairs"};
    for (int i = 0; i < VARIANTS; i++)
        if (strcmp(value, names[i]) == 0)
            return (mxfp8_variant)i;
    refuse("variant", value, "none, floor, fp16-dq or pairs");
    return VARIANT_NONE;
}

/* What was not given and depends on the task. */
static void complete(options *o)
{
    o->steps = o->steps ? o->steps : o->recommend ? 2400 : 600;
    o->layers = o->layers ? o->layers : o->recommend ? 2 : 4;
    o->learning_rate = o->learning_rate > 0.0 ? o->learning_rate : o->recommend ? 0.012 : 0.003;
}

/* What no single option can say. */
static void check_together(const options *o)
{
    for (int i = 0; i < o->run_count; i++)
        if (o->runs[i] == ATTENTION_MXFP8_ALL && o->variant == VARIANT_PAIRS)
            refuse("variant", "pairs", "another for mxfp8-all, whose producers write one payload");
}

options options_read(int argc, char **argv)
{
    static const struct option names[] = {{"attention", required_argument, NULL, 'a'},
                                          {"task", required_argument, NULL, 'k'},
                                          {"backend", required_argument, NULL, 'b'},
                                          {"variant", required_argument, NULL, 'v'},
                                          {"steps", required_argument, NULL, 's'},
                                          {"batch-tokens", required_argument, NULL, 't'},
                                          {"width", required_argument, NULL, 'w'},
                                          {"layers", required_argument, NULL, 'l'},
                                          {"learning-rate", required_argument, NULL, 'r'},
                                          {"seed", required_argument, NULL, 'S'},
                                          {"threads", required_argument, NULL, 'T'},
                                          {"text", required_argument, NULL, 'x'},
                                          {"out", required_argument, NULL, 'o'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    options o = {.runs = {ATTENTION_FLOAT32, ATTENTION_MXFP8},
                 .run_count = 2,
                 .batch_tokens = 1024,
                 .width = 128,
                 .seed = 1,
                 .text = "examples/data/kjv.txt",
                 .out = "build/demo",
                 .backend = "auto"};
    int which, index = 0;
    while ((which = getopt_long(argc, argv, "", names, &index)) != -1) {
        const char *name = names[index].name;
        if (which == 'a')
            read_runs(&o, optarg);
        else if (which == 'k')
            o.recommend = read_task(optarg);
        else if (which == 'b')
            o.backend = optarg;
        else if (which == 'v')
            o.variant = read_variant(optarg);
        else if (which == 's')
            o.steps = (int)read_integer(name, optarg, 1, 10000000);
        else if (which == 't')
            o.batch_tokens = (int)read_integer(name, optarg, 512, 1 << 20);
        else if (which == 'w')
            o.width = (int)read_integer(name, optarg, 64, 4096);
        else if (which == 'l')
            o.layers = (int)read_integer(name, optarg, 1, 16);
        else if (which == 'r')
            o.learning_rate = read_rate(name, optarg);
        else if (which == 'S')
            o.seed = (uint64_t)read_integer(name, optarg, 0, INT64_MAX);
        else if (which == 'T')
            o.threads = (int)read_integer(name, optarg, 0, 1024);
        else if (which == 'x')
            o.text = optarg;
        else if (which == 'o')
            o.out = optarg;
        else if (which == 'h')
            exit(fputs(help, stdout) < 0);
        else
            exit(2); /* getopt_long has said why */
        if (which == 'w' && o.width % 64 != 0)
            refuse(name, optarg, "a multiple of 64, the head size");
    }
    if (optind < argc) {
        fprintf(stderr, "train_lm: '%s' is not an option; train_lm --help lists them\n",
                argv[optind]);
        exit(2);
    }
    complete(&o);
    check_together(&o);
    return o;
}
