/* generate.c: text out of a trained network.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "generate.h"

#include <stdio.h>

enum { LINES = 3, LINE_TOKENS = 140 };

static const double temperature = 0.7;

/* Draws from softmax(logits / temperature). */
static int draw(const float *logits, int vocabulary, random_state *random)
{
    double max = (double)logits[0], sum = 0.0;
    for (int v = 1; v < vocabulary; v++)
        max = (double)logits[v] > max ? (double)logits[v] : max;
    for (int v = 0; v < vocabulary; v++)
        sum += exp(((double)logits[v] - max) / temperature);
    double left = random_uniform(random) * sum;
    for (int v = 0; v < vocabulary; v++) {
        left -= exp(((double)logits[v] - max) / temperature);
        if (left < 0.0)
            return v;
    }
    return vocabulary - 1;
}

void generate_lines(model *m, const text *t, uint64_t seed)
{
    static const char *const openings[LINES] = {"\nIn the beginning ", "\nAnd Jesus said unto ",
                                                "\nAnd David "};
    int line[LINES][LINE_TOKENS], length[LINES] = {0}, growing = LINES;
    int line_end = t->token_of['\n'], done[LINES] = {0};
    random_state random = {seed ^ 0x67656E6572617465u};
    for (int i = 0; i < LINES; i++) {
        for (const char *c = openings[i]; *c; c++)
            if (t->token_of[(unsigned char)*c] >= 0)
                line[i][length[i]++] = t->token_of[(unsigned char)*c];
    }
    batch b = batch_create(LINES * LINE_TOKENS);
    while (growing > 0) {
        batch_clear(&b);
        for (int i = 0; i < LINES; i++)
            if (!done[i])
                batch_append(&b, line[i], NULL, length[i]);
        model_forward(m, &b);
        for (int i = 0, sequence = 0; i < LINES; i++) {
            if (done[i])
                continue;
            int last = b.cu_seqlens[++sequence] - 1;
            int next = draw(m->act.logits + last * t->vocabulary, t->vocabulary, &random);
            line[i][length[i]++] = next;
            done[i] = next == line_end || length[i] == LINE_TOKENS;
            growing -= done[i];
        }
    }
    batch_destroy(&b);
    for (int i = 0; i < LINES; i++) {
        printf("  | ");
        for (int j = 1; j < length[i]; j++)
            if (line[i][j] != line_end)
                putchar(t->symbol[line[i][j]]);
        putchar('\n');
    }
}
