/* test_sequences.c: where sequences lie, dense and jagged, empty ones and 64-bit sizes included.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/sequences.h"
#include "report.h"

#include <string.h>

static void check(const char *what, int64_t b, int64_t got, int64_t want)
{
    CHECK(got == want, "%s of sequence %lld: got %lld, want %lld", what, (long long)b,
          (long long)got, (long long)want);
}

static void check_all(int64_t b, const mxa_sequence *got, const mxa_sequence *want)
{
    check("outer", b, got->outer, want->outer);
    check("first", b, got->first, want->first);
    check("token", b, got->token, want->token);
    check("length", b, got->length, want->length);
    check("used", b, got->used, want->used);
    check("block", b, got->block, want->block);
    check("tiled_row", b, got->tiled_row, want->tiled_row);
}

static void dense(void)
{
    mxt_case("dense, 3 sequences of 129");
    const mxa_batch batch = {3, 129, NULL, NULL};
    static const mxa_sequence want[4] = {{0, 0, 0, 129, 129, 0, 0},
                                         {1, 0, 129, 129, 129, 5, 256},
                                         {2, 0, 258, 129, 129, 10, 512},
                                         {0, 387, 387, 0, 0, 15, 768}};
    mxa_sequence table[4];
    mxa_sequence_table(&batch, table);
    for (int b = 0; b < 4; b++) {
        check_all(b, &table[b], &want[b]);
    }
}

static void jagged(void)
{
    mxt_case("jagged, lengths 0 1 128 0 33, seqused");
    static const int32_t cu[] = {0, 0, 1, 129, 129, 162}, used[] = {0, 0, 100, 0, 33};
    const mxa_batch batch = {5, 0, cu, used};
    static const mxa_sequence want[6] = {
        {0, 0, 0, 0, 0, 0, 0},       {0, 0, 0, 1, 0, 0, 0},         {0, 1, 1, 128, 100, 1, 128},
        {0, 129, 129, 0, 0, 5, 256}, {0, 129, 129, 33, 33, 5, 256}, {0, 162, 162, 0, 0, 7, 384},
    };
    mxa_sequence table[6], walk;
    mxa_sequence_table(&batch, table);
    memset(&walk, 0, sizeof walk);
    for (int b = 0; b < 5; b++) {
        mxa_sequence_next(&batch, b, &walk);
        check_all(b, &walk, &want[b]);
        check_all(b, &table[b], &want[b]);
    }
    check_all(5, &table[5], &want[5]);
}

static void empty(void)
{
    mxt_case("B107 no sequences");
    static const int32_t cu[] = {0};
    const mxa_batch none[2] = {{0, 64, NULL, NULL}, {0, 0, cu, NULL}};
    static const mxa_sequence want;
    for (int i = 0; i < 2; i++) {
        mxa_sequence total;
        mxa_sequence_table(&none[i], &total);
        check_all(0, &total, &want);
    }
}

static void large(void)
{
    mxt_case("B43 totals beyond 32 bits");
    const mxa_batch batch = {3, (int64_t)1 << 31, NULL, NULL};
    mxa_sequence table[4];
    mxa_sequence_table(&batch, table);
    check("token", 2, table[2].token, (int64_t)1 << 32);
    check("tiled_row", 2, table[2].tiled_row, (int64_t)1 << 32);
    check("block", 3, table[3].block, 3 * ((int64_t)1 << 26));
}

int main(void)
{
    dense();
    jagged();
    empty();
    large();
    return mxt_finish();
}
