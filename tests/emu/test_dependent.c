/* test_dependent.c: dependent launches: a grid that starts before the one before it is complete.
 * What it may not rely on before griddepcontrol.wait is reported and comes stale; waiting mends it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "emu/launch.h"
#include "emu/overlap.h"
#include "report.h"

#include <string.h>

enum { BLOCKS = 3, WORDS = 32 * BLOCKS, SHARED = 1024, AT_DATA = 128, SEEDS = 12 };

enum { OLD = 7, INPUT = 100, OUTPUT = 200 }; /* values of words, to which their number is added */

enum {
    MENDED,          /* every thread waits */
    WAITED_BY_ONE,   /* one waits, a barrier tells the others: as good */
    OTHERS_MEMORY,   /* before the wait only what the first grid leaves alone is read */
    NO_TRIGGER,      /* nobody waits, but the first grid launches no dependents: plain order */
    READ_EARLY,      /* faults, from here on */
    READ_EARLY_LATE, /* of what was written after the trigger */
    NOT_TOLD,        /* one waits, another reads and was not told */
    COPIED_EARLY,    /* by the copy engine: a copy issued before the wait, waited for after it */
    WRITTEN_EARLY,   /* over what the first grid writes */
    INPUT_OVERWRITTEN,
    ADDED_EARLY, /* an atomic */
    FORMS
};

static const char *const names[FORMS] = {"waits",
                                         "one waits for all",
                                         "other memory before the wait",
                                         "no launch_dependents",
                                         "read early",
                                         "read early, written after the trigger",
                                         "wait not told to others",
                                         "copied early",
                                         "written early",
                                         "input overwritten early",
                                         "added early"};

typedef struct params {
    int32_t form, reserved;
    mxa_global input, output, result, other; /* [WORDS] */
} params;

/* The first grid: output = input + 100, half of it after launch_dependents. */
MXA_KERNEL(produce, 32, params, p)
{
    const uint64_t at = 4 * (uint64_t)(32 * dev_block_x() + dev_thread());
    const uint32_t x = dev_load_global_u32(p.input + at);
    if (dev_thread() < 16) {
        dev_store_global_u32(p.output + at, x + OUTPUT - INPUT);
    }
    if (p.form != NO_TRIGGER) {
        grid_dependency_launch();
    }
    if (dev_thread() >= 16) {
        dev_store_global_u32(p.output + at, x + OUTPUT - INPUT);
    }
}

MXA_DEVICE uint32_t copied(mxa_global from, int early)
{
    const mxa_shared shared = dev_shared();
    if (dev_thread() == 0) {
        mbarrier_init(shared, 1);
        mbarrier_init_fence();
        if (!early) {
            grid_dependency_wait();
        }
        mbarrier_arrive_expect(shared, 128);
        bulk_load(shared + AT_DATA, from, 128, shared);
        grid_dependency_wait();
    }
    cta_sync();
    mbarrier_wait(shared, 0);
    return dev_load_shared_u32(shared + AT_DATA + 4 * (uint32_t)dev_thread());
}

/* The second: result = output. */
MXA_KERNEL(consume, 32, params, p)
{
    const uint64_t at = 4 * (uint64_t)(32 * dev_block_x() + dev_thread());
    const int early = p.form == NO_TRIGGER || p.form == READ_EARLY || p.form == READ_EARLY_LATE ||
                      p.form == NOT_TOLD;
    uint32_t x = 0;
    if (p.form == OTHERS_MEMORY) {
        x = dev_load_global_u32(p.other + at) - OLD;
        dev_store_global_u32(p.other + at, OLD);
    } else if (p.form == WRITTEN_EARLY) {
        dev_store_global_u32(p.output + at, 0);
    } else if (p.form == INPUT_OVERWRITTEN) {
        dev_store_global_u32(p.input + at, 0);
    } else if (p.form == ADDED_EARLY) {
        (void)dev_fetch_add_global_u32(p.output + at, 1);
    }
    if (p.form == WAITED_BY_ONE || p.form == COPIED_EARLY) {
        x = copied(p.output + at - 4 * (uint64_t)dev_thread(), p.form == COPIED_EARLY);
    } else if (p.form == NOT_TOLD) {
        if (dev_thread() == 0) {
            grid_dependency_wait();
        }
        x = dev_load_global_u32(p.output + at);
    } else if (early) {
        const int read = p.form != READ_EARLY_LATE || dev_thread() >= 16;
        x = read ? dev_load_global_u32(p.output + at) : 0;
    } else {
        grid_dependency_wait();
        x += dev_load_global_u32(p.output + at);
    }
    dev_store_global_u32(p.result + at, x);
}

static uint32_t input[WORDS], output[WORDS], result[WORDS], other[WORDS];

/* Both grids; how many words came out stale. */
static int run(int form, uint64_t seed, mxa_emu_result *first, mxa_emu_result *second)
{
    const params p = {form,
                      0,
                      (mxa_global)(uintptr_t)input,
                      (mxa_global)(uintptr_t)output,
                      (mxa_global)(uintptr_t)result,
                      (mxa_global)(uintptr_t)other};
    const int grid[3] = {BLOCKS, 1, 1};
    mxa_emu_overlap *overlap = mxa_emu_overlap_new();
    mxa_emu_options options;
    int stale = 0;
    for (uint32_t i = 0; i < WORDS; i++) {
        input[i] = INPUT + i;
        output[i] = other[i] = OLD;
    }
    mxa_emu_options_init(&options);
    options.seed = seed;
    options.leads = overlap;
    (void)mxa_emu_launch(&produce_kernel, grid, 32, SHARED, &p, &options, first);
    options.leads = NULL;
    options.follows = overlap;
    (void)mxa_emu_launch(&consume_kernel, grid, 32, SHARED, &p, &options, second);
    mxa_emu_overlap_free(overlap);
    for (uint32_t i = 0; i < WORDS; i++) {
        stale += result[i] == OLD;
        CHECK(result[i] == OLD || result[i] == OUTPUT + i || form > READ_EARLY, "word %u is %u", i,
              result[i]);
    }
    return stale;
}

static void check(int form)
{
    static const char *const word[FORMS] = {[READ_EARLY] = "read before griddepcontrol.wait",
                                            [READ_EARLY_LATE] = "after its launch_dependents",
                                            [NOT_TOLD] = "read before griddepcontrol.wait",
                                            [COPIED_EARLY] = "read before griddepcontrol.wait",
                                            [WRITTEN_EARLY] = "grid before writes",
                                            [INPUT_OVERWRITTEN] = "grid before reads",
                                            [ADDED_EARLY] = "read before griddepcontrol.wait"};
    int stale = 0;
    mxt_case("dependent launch: %s", names[form]);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        mxa_emu_result first, second;
        stale += run(form, seed, &first, &second);
        CHECK(first.errors + first.warnings == 0, "seed %llu: the first grid: %s",
              (unsigned long long)seed, first.text ? first.text : "");
        if (form < READ_EARLY) {
            CHECK(second.errors + second.warnings == 0, "seed %llu: %s", (unsigned long long)seed,
                  second.text ? second.text : "");
        } else {
            CHECK(second.errors && second.text && strstr(second.text, word[form]) &&
                      strstr(second.text, "was: test_dependent.c:"),
                  "seed %llu: no \"%s\" in\n%s", (unsigned long long)seed, word[form],
                  second.text ? second.text : "nothing");
        }
        mxa_emu_result_free(&first);
        mxa_emu_result_free(&second);
    }
    if (form < READ_EARLY) {
        CHECK(stale == 0, "%d words came out stale", stale);
    } else if (form <= COPIED_EARLY) {
        CHECK(stale > 0 && stale < SEEDS * WORDS, "%d words came out stale", stale);
    }
}

int main(void)
{
    for (int form = 0; form < FORMS; form++) {
        check(form);
    }
    return mxt_finish();
}
