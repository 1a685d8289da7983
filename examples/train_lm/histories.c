/* histories.c: made-up histories of what users chose, for a sequence recommender.
 *
 * 48 items in 6 kinds. A user has a taste for two kinds. Each choice is, seven times in ten,
 * what usually follows the one before (a fixed successor within the kind), else an item of the kind
 * at hand, popular ones more often; now and then the user turns to the other kind. Lengths have a
 * long tail: a log-normal with median 24, from 4 to 512. One history in 140 is kept for validation.
 *
 * The network sees a history with three items in ten hidden and says what they are: both
 * neighbours tell, so attention looks both ways. No network can do better than the probabilities
 * of the hidden items given the others, which the forward and backward recursions of a hidden
 * Markov model give exactly: histories_floor().
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "data.h"

#include <stdlib.h>
#include <string.h>

enum {
    USERS = 70000, /* the default training sees each history once at most */
    KEPT_EVERY = 140,
    KINDS = 6,
    KIND_ITEMS = 8,
    ITEMS = KINDS * KIND_ITEMS,
    START = ITEMS,
    HIDDEN
};

static const double TURN = 0.05, FOLLOW = 0.7; /* probabilities */

/* Each item's successor within its kind: one round through all of them. */
typedef struct catalogue {
    int successor[ITEMS];
} catalogue;

static int history_length(random_state *random)
{
    const double length = exp(3.18 + 0.9 * random_normal(random));
    return length < 4 ? 4 : length > MAX_PASSAGE ? MAX_PASSAGE : (int)length;
}

/* Item i of a kind about as often as 1/(i+1): see popularity(). */
static int popular(random_state *random)
{
    const double u = random_uniform(random);
    const int i = (int)exp(u * log(KIND_ITEMS + 1.0)) - 1;
    return i < KIND_ITEMS ? i : KIND_ITEMS - 1;
}

static double popularity(int i)
{
    return log((i + 2.0) / (i + 1.0)) / log(KIND_ITEMS + 1.0);
}

static catalogue catalogue_create(random_state *random)
{
    catalogue c;
    for (int kind = 0; kind < KINDS; kind++) {
        int order[KIND_ITEMS] = {0};
        for (int i = 0; i < KIND_ITEMS; i++) {
            const int j = random_below(random, i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int i = 0; i < KIND_ITEMS; i++)
            c.successor[kind * KIND_ITEMS + order[i]] =
                kind * KIND_ITEMS + order[(i + 1) % KIND_ITEMS];
    }
    return c;
}

static void write_history(int *items, int length, const catalogue *c, random_state *random)
{
    const int taste[2] = {random_below(random, KINDS), random_below(random, KINDS)};
    int which = 0, before = -1;
    for (int i = 0; i < length; i++) {
        if (random_uniform(random) < TURN) {
            which = 1 - which;
            before = -1;
        }
        before = before >= 0 && random_uniform(random) < FOLLOW
                     ? c->successor[before]
                     : taste[which] * KIND_ITEMS + popular(random);
        items[i] = before;
    }
}

static random_state histories_random(uint64_t seed)
{
    return (random_state){seed ^ 0x686973746F727900u};
}

text *histories_create(uint64_t seed)
{
    text *t = allocate_zero(sizeof(*t));
    random_state random = histories_random(seed);
    const catalogue c = catalogue_create(&random);
    t->vocabulary = HIDDEN + 1;
    t->hidden = HIDDEN;
    int *lengths = allocate(USERS * sizeof(int)), tokens = USERS;
    for (int user = 0; user < USERS; user++)
        tokens += lengths[user] = history_length(&random);
    t->tokens = allocate((size_t)tokens * sizeof(int));
    for (int user = 0; user < USERS; user++) {
        const int length = lengths[user];
        passage_list *list = user % KEPT_EVERY == KEPT_EVERY / 2 ? &t->validation : &t->train;
        t->tokens[t->count++] = START;
        write_history(t->tokens + t->count, length, &c, &random);
        passages_add(list, t->count, length);
        t->count += length;
    }
    free(lengths);
    return t;
}

/* ---- the least loss ------------------------------------------------------------------------- */

/* What a history's next choice depends on, for a user of two given tastes: which of them is at
 * hand, and the last item of it. */
typedef struct belief {
    double of[2][KIND_ITEMS];
} belief;

static double belief_sum(const belief *b)
{
    double sum = 0.0;
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < KIND_ITEMS; i++)
            sum += b->of[w][i];
    return sum;
}

static void belief_scale(belief *b, double factor)
{
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < KIND_ITEMS; i++)
            b->of[w][i] *= factor;
}

/* Drops what the item seen at this place rules out. */
static void belief_see(belief *b, int item, const int taste[2])
{
    if (item == HIDDEN)
        return;
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < KIND_ITEMS; i++)
            if (taste[w] * KIND_ITEMS + i != item)
                b->of[w][i] = 0.0;
}

/* Of the first choice, before anything is seen. */
static belief belief_first(void)
{
    belief b;
    for (int i = 0; i < KIND_ITEMS; i++) {
        b.of[0][i] = (1.0 - TURN) * popularity(i);
        b.of[1][i] = TURN * popularity(i);
    }
    return b;
}

/* From the choice before to this one: P(state) = sum over states before. */
static belief belief_forward(const belief *before, const catalogue *c, const int taste[2])
{
    belief b;
    for (int w = 0; w < 2; w++) {
        double stays = 0.0, turns = 0.0;
        for (int i = 0; i < KIND_ITEMS; i++) {
            stays += before->of[w][i];
            turns += before->of[1 - w][i];
        }
        const double anew = (1.0 - TURN) * (1.0 - FOLLOW) * stays + TURN * turns;
        for (int i = 0; i < KIND_ITEMS; i++)
            b.of[w][i] = anew * popularity(i);
        for (int i = 0; i < KIND_ITEMS; i++) {
            const int first = taste[w] * KIND_ITEMS;
            b.of[w][c->successor[first + i] - first] += (1.0 - TURN) * FOLLOW * before->of[w][i];
        }
    }
    return b;
}

/* From the choice after to this one: P(all later items | state). */
static belief belief_backward(const belief *after, const catalogue *c, const int taste[2])
{
    belief b;
    double anew[2] = {0.0, 0.0};
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < KIND_ITEMS; i++)
            anew[w] += popularity(i) * after->of[w][i];
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < KIND_ITEMS; i++) {
            const int first = taste[w] * KIND_ITEMS;
            b.of[w][i] = (1.0 - TURN) * (FOLLOW * after->of[w][c->successor[first + i] - first] +
                                         (1.0 - FOLLOW) * anew[w]) +
                         TURN * anew[1 - w];
        }
    return b;
}

/* Where a pair of tastes explains the items seen: adds P(tastes and what is seen) * P(the hidden
 * item | both), over *scale, to `right`, and the same summed over all items to `all`. */
typedef struct judgement {
    double right[MAX_PASSAGE], all[MAX_PASSAGE];
    double log_scale;
} judgement;

static void judge_tastes(judgement *j, const catalogue *c, const int taste[2], const int *input,
                         const int *target, int length)
{
    belief before[MAX_PASSAGE];
    double log_seen = 0.0;
    for (int i = 0; i < length; i++) {
        before[i] = i ? belief_forward(&before[i - 1], c, taste) : belief_first();
        belief_see(&before[i], input[i], taste);
        const double sum = belief_sum(&before[i]);
        if (sum == 0.0)
            return;
        belief_scale(&before[i], 1.0 / sum);
        log_seen += log(sum);
    }
    if (log_seen > j->log_scale) {
        const double factor = exp(j->log_scale - log_seen);
        for (int i = 0; i < length; i++) {
            j->right[i] *= factor;
            j->all[i] *= factor;
        }
        j->log_scale = log_seen;
    }
    const double weight = exp(log_seen - j->log_scale);
    belief after = {{{0.0}}};
    for (int i = length - 1; i >= 0; i--) {
        if (i + 1 < length) {
            belief_see(&after, input[i + 1], taste);
            after = belief_backward(&after, c, taste);
        } else {
            for (int k = 0; k < KIND_ITEMS; k++)
                after.of[0][k] = after.of[1][k] = 1.0;
        }
        belief_scale(&after, 1.0 / belief_sum(&after));
        belief both;
        for (int w = 0; w < 2; w++)
            for (int k = 0; k < KIND_ITEMS; k++)
                both.of[w][k] = before[i].of[w][k] * after.of[w][k];
        const double sum = belief_sum(&both);
        belief_see(&both, target[i] < 0 ? input[i] : target[i], taste);
        j->right[i] += weight * belief_sum(&both) / sum;
        j->all[i] += weight;
    }
}

double histories_floor(const text *t, uint64_t seed)
{
    random_state random = histories_random(seed);
    const catalogue c = catalogue_create(&random);
    double loss = 0.0;
    int targets = 0;
    for (int n = 0; n < t->validation.count; n++) {
        const passage p = t->validation.list[n];
        int input[MAX_PASSAGE], target[MAX_PASSAGE];
        static judgement j;
        memset(&j, 0, sizeof(j));
        j.log_scale = -INFINITY;
        validation_hide(t, n, input, target);
        for (int first = 0; first < KINDS; first++)
            for (int second = 0; second < KINDS; second++)
                judge_tastes(&j, &c, (const int[]){first, second}, input, target, p.length);
        for (int i = 0; i < p.length; i++)
            if (target[i] >= 0) {
                loss -= log(j.right[i] / j.all[i]);
                targets++;
            }
    }
    return loss / targets;
}
