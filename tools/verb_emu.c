/* verb_emu.c: mxattn emu: a GPU kernel on the emulator, under many seeds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "fill.h"
#include "options.h"
#include "picture.h"
#include "run.h"
#include "sizes.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SEEDS = 0x100, KEY_STRICT, KEY_EXACT, KEY_TMEM, KEY_ROLES, CHILDREN = 3 };

typedef struct emu_options {
    int64_t seeds;
    int strict, exact;
    const char *tmem, *roles; /* paths of pictures; NULL: none */
} emu_options;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    mxc_parse_input *input = state->input;
    emu_options *own = input->own;
    switch (key) {
    case ARGP_KEY_INIT:
        mxc_parse_children(state, CHILDREN);
        return 0;
    case KEY_SEEDS:
        own->seeds = mxc_parse_int("--seeds", arg, 1, 1000000);
        return 0;
    case KEY_STRICT:
        own->strict = 1;
        return 0;
    case KEY_EXACT:
        own->exact = 1;
        return 0;
    case KEY_TMEM:
        own->tmem = arg;
        return 0;
    case KEY_ROLES:
        own->roles = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[CHILDREN + 1] = {{&mxc_argp_sizes, 0, NULL, 0},
                                                         {&mxc_argp_attention, 0, NULL, 0},
                                                         {&mxc_argp_run, 0, NULL, 0},
                                                         {0}};
static const struct argp_option own_options[] = {
    {"seeds", KEY_SEEDS, "N", 0, "Schedules to try (default 10)", 0},
    {"strict", KEY_STRICT, 0, 0,
     "Order that hardware keeps and the ISA does not promise counts as none", 0},
    {"exact", KEY_EXACT, 0, 0, "Tensor cores add without rounding", 0},
    {"tmem-svg", KEY_TMEM, "FILE", 0, "Draws tensor memory's columns over time", 0},
    {"roles-svg", KEY_ROLES, "FILE", 0, "Draws warps and asynchronous operations over time", 0},
    {0}};
static const struct argp argp = {
    .options = own_options,
    .parser = parse,
    .children = children,
    .doc = "Runs the forward of a GPU backend on the emulator with Gaussian data, under several "
           "seeds, and tells the hazards that it finds, whether all seeds gave the same bits, and "
           "the instructions it counted. Exit status 1 where it found something.\v"
           "Example: mxattn emu --backend emu-sm90 --seqlen 256 --head-dim 128 --seeds 20"};

typedef struct problem {
    mxc_run run;
    mxattn_status status;
    float *q, *k, *v, *o, *lse, *first;
    int64_t outputs, rows;
    double seconds, longest_seconds; /* of the fastest seed; 0: none yet */
} problem;

static float *filled(const mxc_options *options, uint64_t stream, int64_t rows, int64_t heads,
                     int64_t dim)
{
    float *values = mxc_tool_alloc((size_t)(rows * heads * dim) * sizeof *values);
    mxc_fill(MXC_DATA_GAUSSIAN, options->seed, stream, rows, heads, dim, values);
    return values;
}

static void prepare(problem *p, const mxc_options *options, const mxc_sizes *s)
{
    mxc_options_problem(options, MXATTN_F32, &p->run.problem);
    mxc_sizes_problem(s, &p->run.problem);
    mxattn_attention_problem *a = &p->run.problem;
    a->mode = MXATTN_INFERENCE;
    a->o.dtype = MXATTN_F32;
    p->outputs = s->total_q * s->heads * s->head_dim_v;
    p->rows = s->total_q * s->heads;
    p->q = filled(options, 1, s->total_q, s->heads, s->head_dim);
    p->k = filled(options, 2, s->total_k, s->kv_heads, s->head_dim);
    p->v = filled(options, 3, s->total_k, s->kv_heads, s->head_dim_v);
    p->o = mxc_tool_alloc((size_t)(p->outputs + p->rows) * sizeof *p->o);
    p->first = mxc_tool_alloc((size_t)(p->outputs + p->rows) * sizeof *p->first);
    p->lse = p->o + p->outputs;
    p->run.batch = s->batch;
    p->run.cu_seqlens_q = p->run.cu_seqlens_k = s->cu_seqlens;
    p->run.status = &p->status;
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim, a->q, p->q, &p->run.q);
    mxc_sizes_view(s, s->total_k, s->kv_heads, s->head_dim, a->k, p->k, &p->run.k);
    mxc_sizes_view(s, s->total_k, s->kv_heads, s->head_dim_v, a->v, p->v, &p->run.v);
    mxc_sizes_view(s, s->total_q, s->heads, s->head_dim_v, a->o, p->o, &p->run.o);
    mxc_sizes_view_lse(s, p->lse, &p->run.lse);
}

/* Runs one seed; 1 when it was clean. Keeps the fastest times. */
static int run_seed(problem *p, const mxattn_context *context, const emu_options *own,
                    uint64_t seed, int trace)
{
    mxattn_emulator_options options;
    mxattn_emulator_result result;
    mxattn_emulator_options_init(&options);
    options.seed = seed;
    options.strict = own->strict;
    options.exact = own->exact;
    options.trace = trace;
    mxc_need(mxattn_emulator_begin(&options));
    mxc_run_attention(context, &p->run);
    if (p->status && p->status != MXATTN_DEVICE)
        mxc_need(p->status);
    mxattn_emulator_result_init(&result);
    mxc_need(mxattn_emulator_query(&result));
    if (result.errors + result.warnings == 0 && p->status)
        mxc_need(p->status);
    if (p->seconds == 0 || result.longest_seconds < p->longest_seconds) {
        p->seconds = result.seconds;
        p->longest_seconds = result.longest_seconds;
    }
    if (result.errors + result.warnings) {
        (void)printf("seed %" PRIu64 ": %" PRId64 " errors, %" PRId64 " warnings, hazards", seed,
                     result.errors, result.warnings);
        for (int h = 0; h <= 20; h++) {
            if ((result.hazards | result.warned) >> h & 1)
                (void)printf(" %s%d", h ? "H" : "rule ", h);
        }
        (void)printf("\n");
    }
    return result.errors + result.warnings == 0;
}

static void print_counts(void)
{
    int64_t count;
    for (int64_t i = 0;; i++) {
        const char *name = mxattn_emulator_counted(i, &count);
        if (!name)
            return;
        (void)printf("  %-34s%" PRId64 "\n", name, count);
    }
}

static void draw(const emu_options *own)
{
    int64_t count;
    const mxattn_emulator_event *events = mxattn_emulator_events(&count);
    if (own->roles) {
        mxc_picture_roles(own->roles, events, count);
        (void)printf("%s drawn\n", own->roles);
    }
    if (own->tmem)
        (void)printf(mxc_picture_tmem(own->tmem, events, count)
                         ? "%s drawn\n"
                         : "%s not drawn: no kernel used tensor memory\n",
                     own->tmem);
}

int mxc_verb_emu(int argc, char **argv)
{
    emu_options own = {.seeds = 10};
    mxc_options options;
    mxc_sizes sizes;
    problem p;
    memset(&p, 0, sizeof p);
    mxc_options_init(&options);
    options.backend = MXATTN_BACKEND_EMU_SM100;
    mxc_parse(&argp, argc, argv, &options, &own);
    if (options.backend < MXATTN_BACKEND_EMU_SM90)
        mxc_die("--backend must be emu-sm90 or emu-sm100 (the default)");
    mxc_sizes_resolve(&options, &sizes);
    prepare(&p, &options, &sizes);
    mxattn_context *context = mxc_run_context(&options, 1);
    int64_t dirty = 0, others = 0;
    char *report = NULL;
    for (int64_t i = 0; i < own.seeds; i++) {
        const int trace = i == 0 && (own.tmem || own.roles);
        const int clean = run_seed(&p, context, &own, options.seed + (uint64_t)i, trace);
        if (!clean && !report) {
            mxattn_emulator_result result;
            mxattn_emulator_result_init(&result);
            mxc_need(mxattn_emulator_query(&result));
            report = strdup(result.report);
        }
        if (i == 0) {
            (void)printf("instructions (loads, stores and shuffles by thread or warp, of all "
                         "launches):\n");
            print_counts();
            draw(&own);
            memcpy(p.first, p.o, (size_t)(p.outputs + p.rows) * sizeof *p.o);
        }
        dirty += !clean;
        others += clean && memcmp(p.first, p.o, (size_t)(p.outputs + p.rows) * sizeof *p.o) != 0;
    }
    if (report)
        (void)printf("%s", report);
    (void)printf("fastest seed: %.2f ms of CPU in the longest launch, %.2f ms in all\n",
                 p.longest_seconds * 1e3, p.seconds * 1e3);
    (void)printf("%" PRId64 " seeds from %" PRIu64 ": %" PRId64 " with a report, %" PRId64
                 " with other bits than the first\n",
                 own.seeds, options.seed, dirty, others);
    free(report);
    free(p.q);
    free(p.k);
    free(p.v);
    free(p.o);
    free(p.first);
    free(sizes.cu_seqlens);
    mxattn_context_destroy(context);
    return dirty || others ? MXC_EXIT_THRESHOLD : MXC_EXIT_OK;
}
