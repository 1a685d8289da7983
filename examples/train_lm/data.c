/* data.c: text to tokens, tokens to passages, passages to jagged batches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *path, const char *why)
{
    fprintf(stderr, "train_lm: text %s: %s\n", path, why);
    exit(2);
}

/* The bytes of a file after one line end; *size counts both. */
static char *read_file(const char *path, int *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail(path, strerror(errno));
    size_t room = 1 << 20, used = 0;
    char *bytes = allocate(room + 1);
    bytes[used++] = '\n';
    size_t got;
    while ((got = fread(bytes + used, 1, room - used, file)) > 0) {
        used += got;
        if (used == room) {
            room *= 2;
            bytes = realloc(bytes, room + 1);
            if (!bytes)
                fail(path, "no memory for it");
        }
        if (used > 1 << 28)
            fail(path, "longer than 256 MiB");
    }
    if (ferror(file))
        fail(path, strerror(errno));
    fclose(file);
    if (bytes[used - 1] != '\n')
        bytes[used++] = '\n';
    *size = (int)used;
    return bytes;
}

static void tokenize(text *t, const char *bytes, int size)
{
    int seen[256] = {0};
    for (int i = 0; i < size; i++)
        seen[(unsigned char)bytes[i]] = 1;
    for (int c = 0; c < 256; c++) {
        t->token_of[c] = seen[c] ? t->vocabulary : -1;
        if (seen[c])
            t->symbol[t->vocabulary++] = (char)c;
    }
    t->count = size;
    t->tokens = allocate((size_t)size * sizeof(int));
    for (int i = 0; i < size; i++)
        t->tokens[i] = t->token_of[(unsigned char)bytes[i]];
}

void passages_add(passage_list *p, int start, int length)
{
    if ((p->count & (p->count - 1)) == 0) { /* full at powers of two */
        p->list = realloc(p->list, (size_t)(p->count ? 2 * p->count : 1) * sizeof(passage));
        if (!p->list)
            fail("passages", "no memory for them");
    }
    length = length < MAX_PASSAGE ? length : MAX_PASSAGE;
    p->list[p->count++] = (passage){start, length};
    p->tokens += length;
}

static void split_into_passages(text *t, const char *bytes, int size, uint64_t seed)
{
    random_state random = {seed ^ 0x7061737361676573u};
    int chapter = 0, start = 1, verse = 1, verses = 0, wanted = 1;
    for (int i = 1; i < size; i++) {
        if (bytes[i] != '\n')
            continue;
        passage_list *list =
            chapter % VALIDATION_EVERY == VALIDATION_EVERY / 2 ? &t->validation : &t->train;
        if (verses > 0 && i + 1 - start > MAX_PASSAGE) { /* without this verse, then */
            passages_add(list, start, verse - start);
            start = verse;
            verses = 0;
        }
        verses++;
        verse = i + 1;
        int chapter_ends = i + 1 == size || bytes[i + 1] == '\n';
        if (verses >= wanted || chapter_ends) {
            passages_add(list, start, verse - start);
            start = verse;
            verses = 0;
            wanted = 1 + random_below(&random, VERSES_PER_PASSAGE);
        }
        if (chapter_ends) { /* skip the empty line */
            chapter++;
            start = verse = ++i + 1;
        }
    }
}

text *text_load(const char *path, uint64_t seed)
{
    text *t = allocate_zero(sizeof(*t));
    int size;
    char *bytes = read_file(path, &size);
    t->hidden = -1;
    tokenize(t, bytes, size);
    split_into_passages(t, bytes, size, seed);
    free(bytes);
    if (t->train.count == 0 || t->validation.count == 0)
        fail(path, "needs at least 13 chapters, separated by empty lines, one verse a line");
    return t;
}

void text_destroy(text *t)
{
    free(t->tokens);
    free(t->train.list);
    free(t->validation.list);
    free(t);
}

batch batch_create(int max_tokens)
{
    size_t bytes = (size_t)max_tokens * sizeof(int);
    batch b = {.max_tokens = max_tokens};
    b.input = allocate(bytes);
    b.target = allocate(bytes);
    b.position = allocate(bytes);
    b.cu_seqlens = allocate(((size_t)max_tokens + 1) * sizeof(int32_t));
    batch_clear(&b);
    return b;
}

void batch_destroy(batch *b)
{
    free(b->input);
    free(b->target);
    free(b->position);
    free(b->cu_seqlens);
}

void batch_clear(batch *b)
{
    b->cu_seqlens[0] = 0;
    b->sequences = (jagged){0, 0, 0, b->cu_seqlens};
    b->targets = 0;
}

int batch_append(batch *b, const int *input, const int *target, int length)
{
    jagged *s = &b->sequences;
    if (s->tokens + length > b->max_tokens)
        return 0;
    for (int i = 0; i < length; i++) {
        b->input[s->tokens + i] = input[i];
        b->target[s->tokens + i] = target ? target[i] : 0;
        b->position[s->tokens + i] = i;
        b->targets += b->target[s->tokens + i] >= 0;
    }
    s->tokens += length;
    s->longest = length > s->longest ? length : s->longest;
    b->cu_seqlens[++s->sequences] = s->tokens;
    return 1;
}

/* Three tokens in ten hidden, one at least. */
static void hide(const text *t, passage p, random_state *random, int *input, int *target)
{
    const int always = random_below(random, p.length);
    for (int i = 0; i < p.length; i++) {
        const int token = t->tokens[p.start + i];
        const int hides = random_uniform(random) < 0.3 || i == always;
        input[i] = hides ? t->hidden : token;
        target[i] = hides ? token : -1;
    }
}

static random_state validation_random(int number)
{
    return (random_state){(uint64_t)number};
}

void validation_hide(const text *t, int number, int *input, int *target)
{
    random_state random = validation_random(number);
    hide(t, t->validation.list[number], &random, input, target);
}

static int append_passage(const text *t, batch *b, passage p, random_state *random)
{
    const int *target = t->tokens + p.start;
    if (t->hidden >= 0) {
        int seen[MAX_PASSAGE], hidden[MAX_PASSAGE];
        hide(t, p, random, seen, hidden);
        return batch_append(b, seen, hidden, p.length);
    }
    return batch_append(b, target - 1, target, p.length);
}

sampler sampler_create(const text *source, uint64_t seed)
{
    int count = source->train.count;
    sampler s = {source, NULL, count, count, {seed ^ 0x6F72646572000000u}};
    s.order = allocate((size_t)count * sizeof(passage));
    memcpy(s.order, source->train.list, (size_t)count * sizeof(passage));
    return s;
}

void sampler_destroy(sampler *s)
{
    free(s->order);
}

static void shuffle(sampler *s)
{
    for (int i = s->count - 1; i > 0; i--) {
        int j = random_below(&s->random, i + 1);
        passage swap = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = swap;
    }
    s->next = 0;
}

void sampler_fill(sampler *s, batch *b)
{
    batch_clear(b);
    for (;;) {
        if (s->next == s->count)
            shuffle(s);
        if (!append_passage(s->source, b, s->order[s->next], &s->random))
            return;
        s->next++;
    }
}

int validation_fill(const text *t, batch *b, int first)
{
    batch_clear(b);
    for (; first < t->validation.count; first++) {
        random_state random = validation_random(first); /* hides the same tokens each time */
        if (!append_passage(t, b, t->validation.list[first], &random))
            break;
    }
    return first;
}

double bigram_cross_entropy(const text *t)
{
    int v = t->vocabulary;
    double *pairs = allocate_zero((size_t)(v * v) * sizeof(double));
    double *firsts = allocate_zero((size_t)v * sizeof(double));
    for (int n = 0; n < t->train.count; n++) {
        passage p = t->train.list[n];
        for (int i = p.start; i < p.start + p.length; i++) {
            pairs[t->tokens[i - 1] * v + t->tokens[i]] += 1.0;
            firsts[t->tokens[i - 1]] += 1.0;
        }
    }
    double sum = 0.0;
    for (int n = 0; n < t->validation.count; n++) {
        passage p = t->validation.list[n];
        for (int i = p.start; i < p.start + p.length; i++) {
            int a = t->tokens[i - 1], b = t->tokens[i];
            sum -= log((pairs[a * v + b] + 0.1) / (firsts[a] + 0.1 * v));
        }
    }
    free(pairs);
    free(firsts);
    return sum / t->validation.tokens;
}
