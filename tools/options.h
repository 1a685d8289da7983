/* options.h: the options that verbs share, as argp children.
 *
 *   sizes      --batch --seqlen ... --lengths --heads ... --seed     plan, check, bench
 *   attention  --causal --window --block --intermediates ...         plan, check, bench, forward,
 *                                                                    backward
 *   gradient   --dq-reduce --dq-scale-log2 --deterministic           plan, check, bench, backward
 *   run        --backend --threads --isa                             all that compute
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_TOOLS_OPTIONS_H
#define MXC_TOOLS_OPTIONS_H

#include "mxattn/mxattn.h"

#include <argp.h>

typedef struct mxc_options {
    /* sizes; 0 where not given */
    int64_t batch, seqlen, seqlen_q, seqlen_k;
    const char *lengths;
    int64_t heads, kv_heads, head_dim, head_dim_v;
    uint64_t seed;
    /* attention */
    int causal, top_left, causal_strict, centre;
    int64_t window[2];
    double softmax_scale, softcap;
    const char *block; /* NULL: square, or row with causal_strict */
    mxattn_rounding rounding;
    mxattn_intermediates intermediates;
    const char *precision; /* "mxfp8", "model", "f64" */
    /* gradient */
    mxattn_dq_reduce dq_reduce;
    int32_t dq_scale_log2;
    int deterministic;
    /* run */
    mxattn_backend backend;
    int32_t threads; /* 0: as many as there are processors */
    const char *isa; /* NULL: the best */
} mxc_options;

void mxc_options_init(mxc_options *options);

/* Children for a verb's argp; each takes a mxc_options as its input. */
extern const struct argp mxc_argp_sizes, mxc_argp_attention, mxc_argp_gradient, mxc_argp_run;
/* --precision and --softmax-scale, --softcap, --causal-top-left, --centre: forward, backward. */
extern const struct argp mxc_argp_operands;
/* --rounding alone, for quantize. */
extern const struct argp mxc_argp_rounding;

/* Parses a verb's arguments: prints help and exits for --help or --usage, refuses an option that is
 * unknown or lacks its value. options goes to every child, input to the verb's own parser. */
void mxc_parse(const struct argp *argp, int argc, char **argv, mxc_options *options, void *input);

/* For parsers: the verb's own input, and the hand-over to children. */
typedef struct mxc_parse_input {
    mxc_options *options;
    void *own;
} mxc_parse_input;
void mxc_parse_children(struct argp_state *state, int children);

/* Values. Each dies with a sentence naming option where text is not as it must be. */
int64_t mxc_parse_int(const char *option, const char *text, int64_t low, int64_t high);
double mxc_parse_real(const char *option, const char *text);
int mxc_parse_choice(const char *option, const char *text, const char *const *choices);

/* A problem with the options' choices; sizes and the tags' element types are the caller's. q, k and
 * v have block tags unless precision is f64. */
void mxc_options_problem(const mxc_options *options, mxattn_dtype wide,
                         mxattn_attention_problem *problem);

#endif
