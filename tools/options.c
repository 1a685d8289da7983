/* options.c: the options that verbs share, as argp children.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "options.h"

#include "error.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys start where no short option can be; each group has a range of its own. */
enum {
    KEY_BATCH = 0x200,
    KEY_SEQLEN,
    KEY_SEQLEN_Q,
    KEY_SEQLEN_K,
    KEY_LENGTHS,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    KEY_HEAD_DIM_V,
    KEY_SEED,
    KEY_CAUSAL,
    KEY_CAUSAL_TOP_LEFT,
    KEY_CAUSAL_STRICT,
    KEY_WINDOW,
    KEY_BLOCK,
    KEY_ROUNDING,
    KEY_INTERMEDIATES,
    KEY_SOFTMAX_SCALE,
    KEY_SOFTCAP,
    KEY_CENTRE,
    KEY_PRECISION,
    KEY_DQ_REDUCE,
    KEY_DQ_SCALE_LOG2,
    KEY_DETERMINISTIC,
    KEY_BACKEND,
    KEY_THREADS,
    KEY_ISA
};

enum { MAX_SIZE = 1 << 30, MAX_THREADS = 4096 };

void mxc_options_init(mxc_options *options)
{
    *options = (mxc_options){.seed = 1,
                             .window = {-1, -1},
                             .softmax_scale = (double)NAN,
                             .precision = "mxfp8",
                             .dq_scale_log2 = MXATTN_DQ_SCALE_AUTO};
}

int64_t mxc_parse_int(const char *option, const char *text, int64_t low, int64_t high)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text))
        mxc_die("%s is '%s'; a whole number is needed", option, text);
    if (errno || value < low || value > high)
        mxc_die("%s is %s; it must be from %lld to %lld", option, text, (long long)low,
                (long long)high);
    return value;
}

double mxc_parse_real(const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || !isfinite(value))
        mxc_die("%s is '%s'; a finite number is needed", option, text);
    return value;
}

int mxc_parse_choice(const char *option, const char *text, const char *const *choices)
{
    char list[256];
    size_t n = 0;
    for (int i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0)
            return i;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s",
                              i == 0           ? ""
                              : choices[i + 1] ? ", "
                                               : " or ",
                              choices[i]);
    }
    mxc_die("%s is '%s'; it must be %s", option, text, list);
}

/* "L,R": two numbers of at least -1. */
static void parse_window(const char *text, int64_t window[2])
{
    char left[32];
    const char *comma = strchr(text, ',');
    size_t n = comma ? (size_t)(comma - text) : 0;
    if (!comma || n >= sizeof left)
        mxc_die("--window is '%s'; it must be L,R: the keys left and right of the diagonal, -1 for "
                "all",
                text);
    memcpy(left, text, n);
    left[n] = 0;
    window[0] = mxc_parse_int("--window's left side", left, -1, MAX_SIZE);
    window[1] = mxc_parse_int("--window's right side", comma + 1, -1, MAX_SIZE);
}

static mxattn_rounding parse_rounding(const char *text)
{
    static const char *const choices[] = {"rceil", "floor", NULL};
    return mxc_parse_choice("--rounding", text, choices) == 0 ? MXATTN_RCEIL : MXATTN_FLOOR;
}

static error_t parse_size(int key, char *arg, struct argp_state *state)
{
    mxc_options *o = state->input;
    switch (key) {
    case KEY_BATCH:
        o->batch = mxc_parse_int("--batch", arg, 1, MAX_SIZE);
        return 0;
    case KEY_SEQLEN:
        o->seqlen = mxc_parse_int("--seqlen", arg, 1, MAX_SIZE);
        return 0;
    case KEY_SEQLEN_Q:
        o->seqlen_q = mxc_parse_int("--seqlen-q", arg, 1, MAX_SIZE);
        return 0;
    case KEY_SEQLEN_K:
        o->seqlen_k = mxc_parse_int("--seqlen-k", arg, 1, MAX_SIZE);
        return 0;
    case KEY_LENGTHS:
        o->lengths = arg;
        return 0;
    case KEY_HEADS:
        o->heads = mxc_parse_int("--heads", arg, 1, MAX_SIZE);
        return 0;
    case KEY_KV_HEADS:
        o->kv_heads = mxc_parse_int("--kv-heads", arg, 1, MAX_SIZE);
        return 0;
    case KEY_HEAD_DIM:
        o->head_dim = mxc_parse_int("--head-dim", arg, 1, MAX_SIZE);
        return 0;
    case KEY_HEAD_DIM_V:
        o->head_dim_v = mxc_parse_int("--head-dim-v", arg, 1, MAX_SIZE);
        return 0;
    case KEY_SEED:
        o->seed = (uint64_t)mxc_parse_int("--seed", arg, 0, INT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_attention(int key, char *arg, struct argp_state *state)
{
    static const char *const blocks[] = {"square", "row", "folded", NULL};
    static const char *const intermediates[] = {"auto", "bf16", "e4m3", NULL};
    static const char *const precisions[] = {"mxfp8", "model", "f64", NULL};
    mxc_options *o = state->input;
    switch (key) {
    case KEY_CAUSAL:
        o->causal = 1;
        return 0;
    case KEY_CAUSAL_TOP_LEFT:
        o->top_left = 1;
        return 0;
    case KEY_CAUSAL_STRICT:
        o->causal_strict = 1;
        return 0;
    case KEY_WINDOW:
        parse_window(arg, o->window);
        return 0;
    case KEY_BLOCK:
        o->block = blocks[mxc_parse_choice("--block", arg, blocks)];
        return 0;
    case KEY_ROUNDING:
        o->rounding = parse_rounding(arg);
        return 0;
    case KEY_INTERMEDIATES: /* the order of the enum */
        o->intermediates =
            (mxattn_intermediates)mxc_parse_choice("--intermediates", arg, intermediates);
        return 0;
    case KEY_SOFTMAX_SCALE:
        o->softmax_scale = mxc_parse_real("--softmax-scale", arg);
        return 0;
    case KEY_SOFTCAP:
        o->softcap = mxc_parse_real("--softcap", arg);
        return 0;
    case KEY_CENTRE:
        o->centre = 1;
        return 0;
    case KEY_PRECISION:
        o->precision = precisions[mxc_parse_choice("--precision", arg, precisions)];
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_gradient(int key, char *arg, struct argp_state *state)
{
    static const char *const reduces[] = {"auto", "fp16", "fp32", NULL};
    mxc_options *o = state->input;
    switch (key) {
    case KEY_DQ_REDUCE: /* the order of the enum */
        o->dq_reduce = (mxattn_dq_reduce)mxc_parse_choice("--dq-reduce", arg, reduces);
        return 0;
    case KEY_DQ_SCALE_LOG2:
        o->dq_scale_log2 = strcmp(arg, "auto") == 0
                               ? MXATTN_DQ_SCALE_AUTO
                               : (int32_t)mxc_parse_int("--dq-scale-log2", arg, -1000, 1000);
        return 0;
    case KEY_DETERMINISTIC:
        o->deterministic = 1;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_run(int key, char *arg, struct argp_state *state)
{
    static const char *const backends[] = {"auto",     "ref",       "cpu", "cuda",
                                           "emu-sm90", "emu-sm100", NULL};
    static const char *const isas[] = {"portable", "avx2", "avx512", "avx512bf16", "amx", NULL};
    mxc_options *o = state->input;
    switch (key) {
    case KEY_BACKEND: /* the order of the enum */
        o->backend = (mxattn_backend)mxc_parse_choice("--backend", arg, backends);
        return 0;
    case KEY_THREADS:
        o->threads = (int32_t)mxc_parse_int("--threads", arg, 1, MAX_THREADS);
        return 0;
    case KEY_ISA:
        o->isa = isas[mxc_parse_choice("--isa", arg, isas)];
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_rounding_only(int key, char *arg, struct argp_state *state)
{
    if (key != KEY_ROUNDING)
        return ARGP_ERR_UNKNOWN;
    ((mxc_options *)state->input)->rounding = parse_rounding(arg);
    return 0;
}

static const struct argp_option size_options[] = {
    {0, 0, 0, 0, "Sizes:", 1},
    {"batch", KEY_BATCH, "B", 0, "Sequences (default 1)", 0},
    {"seqlen", KEY_SEQLEN, "S", 0, "Tokens of each, queries and keys alike (default 1024)", 0},
    {"seqlen-q", KEY_SEQLEN_Q, "S", 0, "Queries of each", 0},
    {"seqlen-k", KEY_SEQLEN_K, "S", 0, "Keys of each", 0},
    {"lengths", KEY_LENGTHS, "LIST", 0,
     "A jagged batch: 5,17,300, or lognormal:LO:HI for --batch lengths drawn from LO to HI", 0},
    {"heads", KEY_HEADS, "H", 0, "Query heads (default: as many as --kv-heads, or 8)", 0},
    {"kv-heads", KEY_KV_HEADS, "H", 0, "Key and value heads (default: as many as query heads)", 0},
    {"head-dim", KEY_HEAD_DIM, "D", 0, "Dimensions of q and k (default 128)", 0},
    {"head-dim-v", KEY_HEAD_DIM_V, "D", 0, "Dimensions of v (default: those of q and k)", 0},
    {"seed", KEY_SEED, "N", 0, "Of the random data (default 1)", 0},
    {0}};

static const struct argp_option attention_options[] = {
    {0, 0, 0, 0, "Attention:", 2},
    {"causal", KEY_CAUSAL, 0, 0, "Keys beyond the diagonal are masked; it ends bottom right", 0},
    {"causal-strict", KEY_CAUSAL_STRICT, 0, 0,
     "No bit of a row depends on later tokens (with a causal mask and row blocks)", 0},
    {"window", KEY_WINDOW, "L,R", 0, "Keys left and right of the diagonal, inclusive; -1: all", 0},
    {"block", KEY_BLOCK, "X", 0, "square, row or folded (default square; row with --causal-strict)",
     0},
    {"rounding", KEY_ROUNDING, "X", 0, "rceil or floor (default rceil)", 0},
    {"intermediates", KEY_INTERMEDIATES, "X", 0, "auto, bf16 or e4m3 (default auto)", 0},
    {0}};

static const struct argp_option operand_options[] = {
    {"causal-top-left", KEY_CAUSAL_TOP_LEFT, 0, 0, "The same, but it starts top left", 2},
    {"softmax-scale", KEY_SOFTMAX_SCALE, "X", 0, "Factor of q.k (default 1/sqrt(head_dim))", 0},
    {"softcap", KEY_SOFTCAP, "X", 0, "Scores become X*tanh(score/X) (default: off)", 0},
    {"centre", KEY_CENTRE, 0, 0, "Subtract the mean of v before it is quantized", 0},
    {"precision", KEY_PRECISION, "X", 0,
     "mxfp8: the kernels; model: float64 that rounds where they round; f64: float64 (default "
     "mxfp8)",
     0},
    {0}};

static const struct argp_option gradient_options[] = {
    {0, 0, 0, 0, "Gradients:", 3},
    {"dq-reduce", KEY_DQ_REDUCE, "X", 0, "Partial dQ are added in: auto, fp16 or fp32", 0},
    {"dq-scale-log2", KEY_DQ_SCALE_LOG2, "N", 0, "Exponent of dQ in fp16: auto or a number", 0},
    {"deterministic", KEY_DETERMINISTIC, 0, 0, "Equal bits from run to run", 0},
    {0}};

static const struct argp_option run_options[] = {
    {0, 0, 0, 0, "Where it runs:", 4},
    {"backend", KEY_BACKEND, "X", 0,
     "auto, cpu, cuda, ref, or the kernels for a GPU on an emulator: emu-sm90, emu-sm100 (default "
     "auto: the CPU)",
     0},
    {"threads", KEY_THREADS, "N", 0, "Threads (default: as many as there are processors)", 0},
    {"isa", KEY_ISA, "X", 0,
     "Newest instruction set used: portable, avx2, avx512, avx512bf16 or amx", 0},
    {0}};

static const struct argp_option rounding_options[] = {
    {"rounding", KEY_ROUNDING, "X", 0, "rceil or floor (default rceil)", 0}, {0}};

const struct argp mxc_argp_sizes = {.options = size_options, .parser = parse_size};
const struct argp mxc_argp_attention = {.options = attention_options, .parser = parse_attention};
const struct argp mxc_argp_operands = {.options = operand_options, .parser = parse_attention};
const struct argp mxc_argp_gradient = {.options = gradient_options, .parser = parse_gradient};
const struct argp mxc_argp_run = {.options = run_options, .parser = parse_run};
const struct argp mxc_argp_rounding = {.options = rounding_options, .parser = parse_rounding_only};

void mxc_parse_children(struct argp_state *state, int children)
{
    const mxc_parse_input *input = state->input;
    for (int i = 0; i < children; i++)
        state->child_inputs[i] = input->options;
}

/* Finds the long option `name` (n characters; or it begins so) of an argp or its children. */
static const struct argp_option *find_option(const struct argp *argp, const char *name, size_t n,
                                             int whole)
{
    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->name && strncmp(o->name, name, n) == 0 && (!whole || strlen(o->name) == n))
            return o;
    for (const struct argp_child *child = argp->children; child && child->argp; child++) {
        const struct argp_option *o = find_option(child->argp, name, n, whole);
        if (o)
            return o;
    }
    return NULL;
}

/* argp does not tell which argument it refused: finds the first that is none of its options, or
 * has a value too many or too few, and says so. */
static _Noreturn void refuse_argument(const struct argp *argp, int argc, char **argv)
{
    int at = 1;
    for (; at < argc - 1; at++) {
        const char *arg = argv[at], *name = arg + 2;
        if (arg[0] != '-' || arg[1] == '\0')
            continue;
        if (arg[1] != '-')
            break;
        size_t n = strcspn(name, "=");
        const struct argp_option *option = find_option(argp, name, n, 1);
        if (!option)
            option = find_option(argp, name, n, 0);
        if (!option || (!option->arg && name[n] == '='))
            break;
        at += option->arg && name[n] != '=';
    }
    const char *arg = argv[at < argc ? at : argc - 1], *name = arg + strspn(arg, "-");
    size_t n = strcspn(name, "=");
    const struct argp_option *option = find_option(argp, name, n, 1);
    if (option && option->arg)
        mxc_die("option --%s lacks its value %s; see %s --help", option->name, option->arg,
                argv[0]);
    if (option)
        mxc_die("option --%s takes no value; see %s --help", option->name, argv[0]);
    mxc_die("option '%.*s' is not one of this verb; see %s --help", (int)(n + (size_t)(name - arg)),
            arg, argv[0]);
}

void mxc_parse(const struct argp *argp, int argc, char **argv, mxc_options *options, void *input)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            argp_help(argp, stdout,
                      ARGP_HELP_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG | ARGP_HELP_POST_DOC,
                      argv[0]);
            exit(MXC_EXIT_OK);
        }
        if (strcmp(argv[i], "--usage") == 0) {
            argp_help(argp, stdout, ARGP_HELP_USAGE, argv[0]);
            exit(MXC_EXIT_OK);
        }
    }
    mxc_parse_input all = {options, input};
    int next = argc;
    if (argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, &next, &all) != 0)
        refuse_argument(argp, argc, argv);
    if (next < argc)
        mxc_die("argument '%s' is one too many; see %s --help", argv[next], argv[0]);
}

static mxattn_tags operand_tags(const mxc_options *o, mxattn_dtype wide)
{
    const char *block = o->block ? o->block : o->causal_strict ? "row" : "square";
    mxattn_tags tags = {.dtype = wide, .block = MXATTN_BLOCK_SQUARE, .rounding = o->rounding};
    if (strcmp(block, "row") == 0)
        tags.block = MXATTN_BLOCK_ROW;
    if (strcmp(block, "folded") == 0)
        tags.flags = MXATTN_FOLDED;
    if (strcmp(o->precision, "f64") == 0)
        tags = (mxattn_tags){.dtype = wide};
    return tags;
}

void mxc_options_problem(const mxc_options *o, mxattn_dtype wide, mxattn_attention_problem *problem)
{
    mxattn_attention_problem_init(problem);
    int block_scaled = strcmp(o->precision, "f64") != 0,
        in_ref = strcmp(o->precision, "mxfp8") != 0;
    if (in_ref && o->backend != MXATTN_BACKEND_AUTO && o->backend != MXATTN_BACKEND_REF)
        mxc_die(
            "--precision %s is computed by the ref backend alone; --backend must be auto or ref",
            o->precision);
    if (o->causal && o->top_left)
        mxc_die("--causal and --causal-top-left are both given; one alignment must be chosen");
    problem->backend = in_ref ? MXATTN_BACKEND_REF : o->backend;
    problem->precision = !block_scaled                        ? MXATTN_PRECISION_F64
                         : strcmp(o->precision, "model") == 0 ? MXATTN_PRECISION_MODEL
                                                              : MXATTN_PRECISION_MXFP8;
    problem->causal = o->causal || o->top_left;
    problem->alignment = o->top_left ? MXATTN_TOP_LEFT : MXATTN_BOTTOM_RIGHT;
    problem->window[0] = o->window[0];
    problem->window[1] = o->window[1];
    problem->softmax_scale = o->softmax_scale;
    problem->softcap = o->softcap;
    problem->causal_strict = o->causal_strict && block_scaled; /* float64 is strict anyhow */
    problem->deterministic = o->deterministic;
    problem->intermediates = o->intermediates;
    problem->dq_reduce = o->dq_reduce;
    problem->dq_scale_log2 = o->dq_scale_log2;
    problem->q = problem->k = problem->v = problem->dout = operand_tags(o, wide);
    if (o->centre && block_scaled)
        problem->v.flags |= MXATTN_CENTRED;
    problem->o = (mxattn_tags){.dtype = MXATTN_F32};
    problem->dq = problem->dk = problem->dv = problem->o;
}
