/* data.h: text to tokens, tokens to passages, passages to jagged batches.
 *
 * A token is one character. The text holds a verse a line and an empty line between chapters. A
 * passage is 1 to 4 verses of one chapter, line ends included: from the line end before it, the
 * network predicts each character of the passage and its last line end. Every 25th chapter is
 * kept for validation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TRAIN_LM_DATA_H
#define TRAIN_LM_DATA_H

#include "attention.h"
#include "random.h"

enum { MAX_PASSAGE = 512, VERSES_PER_PASSAGE = 4, VALIDATION_EVERY = 25 };

/* targets are tokens[start .. start+length-1], inputs the same one place earlier. */
typedef struct passage {
    int start, length;
} passage;

typedef struct passage_list {
    passage *list;
    int count, tokens;
} passage_list;

typedef struct text {
    int *tokens; /* begins with a line end */
    int count;
    int vocabulary;
    char symbol[256];  /* token -> character */
    int token_of[256]; /* character -> token, -1 where the text does not have it */
    passage_list train, validation;
    int hidden; /* -1; or the token that stands for hidden ones, which are then what is predicted */
} text;

/* Ends the program with a sentence where the file cannot be used. The seed chooses how many verses
 * make each passage. */
text *text_load(const char *path, uint64_t seed);
void text_destroy(text *t);

/* Histories of users' choices instead (histories.c). */
text *histories_create(uint64_t seed);
/* The validation loss, in nats a hidden item, of one who knows how they were made. */
double histories_floor(const text *t, uint64_t seed);
void passages_add(passage_list *p, int start, int length);

/* Passages packed one after another, without padding. */
typedef struct batch {
    jagged sequences;
    int max_tokens;
    int *input, *target, *position; /* (max_tokens); target -1: nothing is predicted there */
    int targets;                    /* tokens that have one */
    int32_t *cu_seqlens;
} batch;

batch batch_create(int max_tokens);
void batch_destroy(batch *b);
void batch_clear(batch *b);
/* Appends a sequence. Returns 0, and appends nothing, where it does not fit. target may be NULL. */
int batch_append(batch *b, const int *input, const int *target, int length);

/* Hands out passages in an order shuffled anew each time all were used. */
typedef struct sampler {
    const text *source;
    passage *order;
    int count, next;
    random_state random;
} sampler;

sampler sampler_create(const text *source, uint64_t seed);
void sampler_destroy(sampler *s);
/* Fills b with the next passages, as many as fit. */
void sampler_fill(sampler *s, batch *b);

/* Fills b with validation passages from number `first` on; returns the number of the next. */
int validation_fill(const text *t, batch *b, int first);

/* What the network sees of a validation passage where tokens are hidden, and what it is asked (-1:
 * nothing); each of the passage's length. */
void validation_hide(const text *t, int number, int *input, int *target);

/* Cross entropy on the validation passages, in nats a token, of a bigram model counted on the
 * training passages: P(b | a) = (count(a b) + 0.1) / (count(a) + 0.1 * vocabulary). */
double bigram_cross_entropy(const text *t);

#endif
