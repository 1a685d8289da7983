/* emu_case.c: see emu_case.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu_case.h"

#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run(const mxt_emu_case *c, int broken, uint64_t seed, mxa_emu_result *result)
{
    const int grid[] = {c->blocks, 1, 1};
    void *memory = aligned_alloc(64, MXT_EMU_MEMORY_BYTES);
    const mxt_emu_params params = {broken, 0, (uint64_t)(uintptr_t)memory};
    mxa_emu_options options;
    mxa_emu_options_init(&options);
    options.seed = seed;
    options.ordered_accumulators = !c->strict;
    memset(memory, 0, MXT_EMU_MEMORY_BYTES);
    (void)mxa_emu_memory_add(memory, MXT_EMU_MEMORY_BYTES);
    (void)mxa_emu_launch(c->kernel, grid, c->threads, c->shared_bytes, &params, &options, result);
    mxa_emu_memory_remove(memory);
    free(memory);
}

/* The words, each of which must be in the text. */
static void check_words(const char *words, const char *text, uint64_t seed)
{
    while (words) {
        char word[128];
        const char *end = strchr(words, '|');
        (void)snprintf(word, sizeof word, "%.*s", end ? (int)(end - words) : (int)strlen(words),
                       words);
        CHECK(text && strstr(text, word), "seed %llu: no \"%s\" in\n%s", (unsigned long long)seed,
              word, text ? text : "nothing");
        words = end ? end + 1 : NULL;
    }
}

void mxt_emu_check(const mxt_emu_case *c)
{
    mxt_case("%s", c->name);
    for (uint64_t seed = 1; seed <= MXT_EMU_SEEDS; seed++) {
        mxa_emu_result result;
        run(c, 1, seed, &result);
        CHECK((result.hazards & c->hazards) || (result.warned & c->warned),
              "seed %llu: the broken kernel is not found out; reported:\n%s",
              (unsigned long long)seed, result.text ? result.text : "nothing");
        check_words(c->words, result.text, seed);
        mxa_emu_result_free(&result);
        run(c, 0, seed, &result);
        CHECK(result.errors + result.warnings == 0, "seed %llu: the mended kernel is reported:\n%s",
              (unsigned long long)seed, result.text ? result.text : "nothing");
        mxa_emu_result_free(&result);
    }
}
