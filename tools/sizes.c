/* sizes.c: the shape that SHAPE-OPTIONS ask for, with every default resolved.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "sizes.h"

#include "error.h"
#include "fill.h"
#include "run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LENGTH = 1 << 30 };

/* Text up to a separator, as a number; *text moves behind the separator. */
static int64_t next_number(const char **text, char separator, const char *what)
{
    char digits[32];
    const char *end = strchr(*text, separator);
    size_t n = end ? (size_t)(end - *text) : strlen(*text);
    if (n >= sizeof digits)
        n = sizeof digits - 1;
    memcpy(digits, *text, n);
    digits[n] = 0;
    *text = end ? end + 1 : NULL;
    return mxc_parse_int(what, digits, 0, MAX_LENGTH);
}

static void append(mxc_sizes *sizes, int64_t length)
{
    int32_t *grown = realloc(sizes->cu_seqlens, ((size_t)sizes->batch + 2) * sizeof *grown);
    if (!grown)
        mxc_die("out of memory for --lengths");
    sizes->cu_seqlens = grown;
    if (sizes->batch == 0)
        grown[0] = 0;
    if (grown[sizes->batch] + length > INT32_MAX)
        mxc_die("--lengths come to more than %d tokens, which cu_seqlens cannot hold", INT32_MAX);
    grown[sizes->batch + 1] = (int32_t)(grown[sizes->batch] + length);
    sizes->batch++;
}

/* "lognormal:LO:HI": lengths whose logarithm is normal around the middle of ln LO and ln HI; two
 * deviations reach either end, and what lies beyond is drawn in. */
static void draw_lengths(const mxc_options *o, const char *range, mxc_sizes *sizes)
{
    const char *at = range;
    int64_t low = next_number(&at, ':', "--lengths' lower end");
    int64_t high = at ? next_number(&at, ':', "--lengths' upper end") : 0;
    if (at || low < 1 || high < low)
        mxc_die("--lengths is 'lognormal:%s'; it must be lognormal:LO:HI with 1 <= LO <= HI",
                range);
    mxc_random random;
    mxc_random_init(&random, o->seed, 0);
    double from = log((double)low), to = log((double)high);
    for (int64_t b = 0; b < (o->batch ? o->batch : 8); b++) {
        double drawn = exp((from + to) / 2 + mxc_random_normal(&random) * (to - from) / 4);
        append(sizes, (int64_t)fmin(fmax(round(drawn), (double)low), (double)high));
    }
}

static void resolve_lengths(const mxc_options *o, mxc_sizes *sizes)
{
    static const char lognormal[] = "lognormal:";
    if (o->seqlen || o->seqlen_q || o->seqlen_k)
        mxc_die("--lengths is %s beside --seqlen; a batch is either jagged or dense", o->lengths);
    if (strncmp(o->lengths, lognormal, sizeof lognormal - 1) == 0) {
        draw_lengths(o, o->lengths + sizeof lognormal - 1, sizes);
    } else {
        for (const char *at = o->lengths; at;)
            append(sizes, next_number(&at, ',', "--lengths' element"));
        if (o->batch && o->batch != sizes->batch)
            mxc_die("--batch is %" PRId64 " beside %" PRId64 " --lengths; leave it out or equal",
                    o->batch, sizes->batch);
    }
    sizes->total_q = sizes->total_k = sizes->cu_seqlens[sizes->batch];
    sizes->seqlen_q = sizes->seqlen_k = mxc_longest(sizes->cu_seqlens, sizes->batch);
}

void mxc_sizes_resolve(const mxc_options *o, mxc_sizes *sizes)
{
    enum { DEFAULT_SEQLEN = 1024, DEFAULT_HEADS = 8, DEFAULT_HEAD_DIM = 128 };
    *sizes = (mxc_sizes){0};
    if (o->lengths) {
        resolve_lengths(o, sizes);
    } else {
        int64_t both = o->seqlen ? o->seqlen : DEFAULT_SEQLEN;
        if (o->seqlen && (o->seqlen_q || o->seqlen_k))
            mxc_die("--seqlen is %" PRId64 " beside --seqlen-q or --seqlen-k; give either", both);
        sizes->batch = o->batch ? o->batch : 1;
        sizes->seqlen_q = o->seqlen_q ? o->seqlen_q : o->seqlen_k ? o->seqlen_k : both;
        sizes->seqlen_k = o->seqlen_k ? o->seqlen_k : o->seqlen_q ? o->seqlen_q : both;
        sizes->total_q = sizes->batch * sizes->seqlen_q;
        sizes->total_k = sizes->batch * sizes->seqlen_k;
    }
    sizes->heads = o->heads ? o->heads : o->kv_heads ? o->kv_heads : DEFAULT_HEADS;
    sizes->kv_heads = o->kv_heads ? o->kv_heads : sizes->heads;
    sizes->head_dim = o->head_dim ? o->head_dim : DEFAULT_HEAD_DIM;
    sizes->head_dim_v = o->head_dim_v ? o->head_dim_v : sizes->head_dim;
}

void mxc_sizes_problem(const mxc_sizes *sizes, mxattn_attention_problem *problem)
{
    problem->format = sizes->cu_seqlens ? MXATTN_JAGGED : MXATTN_DENSE;
    problem->batch = sizes->batch;
    problem->total_q = sizes->total_q;
    problem->total_k = sizes->total_k;
    problem->max_seqlen_q = sizes->seqlen_q;
    problem->max_seqlen_k = sizes->seqlen_k;
    problem->heads = sizes->heads;
    problem->kv_heads = sizes->kv_heads;
    problem->head_dim = sizes->head_dim;
    problem->head_dim_v = sizes->head_dim_v;
}

void mxc_sizes_view(const mxc_sizes *sizes, int64_t total, int64_t heads, int64_t dim,
                    mxattn_tags tags, void *data, mxattn_tensor *tensor)
{
    if (sizes->cu_seqlens)
        mxattn_tensor_view(tensor, tags.dtype, data, 3, (int64_t[]){total, heads, dim});
    else
        mxattn_tensor_view(tensor, tags.dtype, data, 4,
                           (int64_t[]){sizes->batch, total / sizes->batch, heads, dim});
    tensor->tags = tags;
}

void mxc_sizes_view_lse(const mxc_sizes *sizes, float *data, mxattn_tensor *tensor)
{
    if (sizes->cu_seqlens)
        mxattn_tensor_view(tensor, MXATTN_F32, data, 2, (int64_t[]){sizes->heads, sizes->total_q});
    else
        mxattn_tensor_view(tensor, MXATTN_F32, data, 3,
                           (int64_t[]){sizes->batch, sizes->heads, sizes->seqlen_q});
}

void mxc_sizes_describe(const mxc_sizes *sizes, const mxattn_attention_problem *problem, char *text,
                        size_t text_size)
{
    int n;
    if (sizes->cu_seqlens)
        n = snprintf(text, text_size, "B%" PRId64 " T%" PRId64 " longest %" PRId64, sizes->batch,
                     sizes->total_q, sizes->seqlen_q);
    else
        n = snprintf(text, text_size, "B%" PRId64 " Sq%" PRId64 " Sk%" PRId64, sizes->batch,
                     sizes->seqlen_q, sizes->seqlen_k);
    n += snprintf(text + n, text_size - (size_t)n, " Hq%" PRId64 " Hkv%" PRId64 " D%" PRId64,
                  sizes->heads, sizes->kv_heads, sizes->head_dim);
    if (sizes->head_dim_v != sizes->head_dim)
        n += snprintf(text + n, text_size - (size_t)n, " Dv%" PRId64, sizes->head_dim_v);
    if (problem->causal)
        n += snprintf(text + n, text_size - (size_t)n, " causal%s",
                      problem->causal_strict ? "_strict" : "");
    if (problem->window[0] >= 0 || problem->window[1] >= 0)
        (void)snprintf(text + n, text_size - (size_t)n, " window %" PRId64 ",%" PRId64,
                       problem->window[0], problem->window[1]);
}

/* Visible pairs of one sequence. */
static double pairs(int64_t sq, int64_t sk, const mxattn_attention_problem *problem)
{
    double sum = 0;
    int64_t right = problem->causal ? 0 : problem->window[1], left = problem->window[0];
    int64_t shift = problem->alignment == MXATTN_BOTTOM_RIGHT ? sk - sq : 0;
    if (right < 0 && left < 0)
        return (double)sq * (double)sk;
    for (int64_t i = 0; i < sq; i++) {
        int64_t first = left < 0 ? 0 : i + shift - left,
                last = right < 0 ? sk - 1 : i + shift + right;
        first = first < 0 ? 0 : first;
        last = last > sk - 1 ? sk - 1 : last;
        sum += last >= first ? (double)(last - first + 1) : 0;
    }
    return sum;
}

double mxc_sizes_visible_pairs(const mxc_sizes *sizes, const mxattn_attention_problem *problem)
{
    double sum = 0;
    if (!sizes->cu_seqlens)
        return (double)sizes->batch * pairs(sizes->seqlen_q, sizes->seqlen_k, problem);
    for (int64_t b = 0; b < sizes->batch; b++) {
        int64_t length = sizes->cu_seqlens[b + 1] - sizes->cu_seqlens[b];
        sum += pairs(length, length, problem);
    }
    return sum;
}
