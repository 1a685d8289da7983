/* histories.c: made-up histories of what users chose, for a sequence recommender.
 *
 * 96 items in 6 kinds. A user has a taste for two kinds. Each choice is, seven times in ten,
 * what usually follows the one before (a fixed successor within the kind), else an item of the kind
 * at hand, popular ones more often; now and then the user turns to the other kind. Lengths have a
 * long tail: a log-normal with median 24, from 4 to 512. One history in 25 is kept for validation.
 *
 * The network sees a history with a fifth of its items hidden and says what they are: both
 * neighbours tell, so attention looks both ways.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "data.h"

#include <stdlib.h>

enum {
    USERS = 4000,
    KINDS = 6,
    KIND_ITEMS = 16,
    ITEMS = KINDS * KIND_ITEMS,
    START = ITEMS,
    HIDDEN
};

static int history_length(random_state *random)
{
    const double length = exp(3.18 + 0.9 * random_normal(random));
    return length < 4 ? 4 : length > MAX_PASSAGE ? MAX_PASSAGE : (int)length;
}

/* Item i of a kind as often as 1/(i+1). */
static int popular(random_state *random)
{
    const double u = random_uniform(random);
    const int i = (int)exp(u * log(KIND_ITEMS + 1.0)) - 1;
    return i < KIND_ITEMS ? i : KIND_ITEMS - 1;
}

/* Each item's successor within its kind: one round through all of them. */
static void make_successors(int successor[ITEMS], random_state *random)
{
    for (int kind = 0; kind < KINDS; kind++) {
        int order[KIND_ITEMS] = {0};
        for (int i = 0; i < KIND_ITEMS; i++) {
            const int j = random_below(random, i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int i = 0; i < KIND_ITEMS; i++)
            successor[kind * KIND_ITEMS + order[i]] =
                kind * KIND_ITEMS + order[(i + 1) % KIND_ITEMS];
    }
}

static void write_history(int *items, int length, const int successor[ITEMS], random_state *random)
{
    const int taste[2] = {random_below(random, KINDS), random_below(random, KINDS)};
    int which = 0, before = -1;
    for (int i = 0; i < length; i++) {
        if (random_uniform(random) < 0.05) {
            which = 1 - which;
            before = -1;
        }
        before = before >= 0 && random_uniform(random) < 0.7
                     ? successor[before]
                     : taste[which] * KIND_ITEMS + popular(random);
        items[i] = before;
    }
}

text *histories_create(uint64_t seed)
{
    text *t = allocate_zero(sizeof(*t));
    random_state random = {seed ^ 0x686973746F727900u};
    int successor[ITEMS];
    t->vocabulary = HIDDEN + 1;
    t->hidden = HIDDEN;
    t->tokens = allocate((size_t)USERS * (MAX_PASSAGE + 1) * sizeof(int));
    make_successors(successor, &random);
    for (int user = 0; user < USERS; user++) {
        const int length = history_length(&random);
        passage_list *list =
            user % VALIDATION_EVERY == VALIDATION_EVERY / 2 ? &t->validation : &t->train;
        t->tokens[t->count++] = START;
        write_history(t->tokens + t->count, length, successor, &random);
        passages_add(list, t->count, length);
        t->count += length;
    }
    return t;
}
