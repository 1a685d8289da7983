/* test_warp.c: what a warp does together, every lane against the formula: shuffles, votes, redux,
 * elect; special registers; barriers whose lanes need not arrive together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/math.h"
#include "cuda/dev/memory.h"
#include "emu/launch.h"
#include "fill.h"
#include "report.h"

#include <string.h>

enum { LANES = 32, WARPS = 2, THREADS = LANES * WARPS, SEEDS = 6, RESULTS = 20, SHARED = 1024 };

/* Results of a thread, in order. */
enum {
    XOR_F32,
    XOR_U32,
    UP,
    FROM_LANE,
    UNIFORM,
    ANY,
    NONE,
    BALLOT,
    MAX_U32,
    MAX_ABS,
    ELECTED,
    ELECTED_AGAIN,
    THREAD,
    COUNT,
    BLOCK_X,
    BLOCK_Y,
    BLOCK_Z,
    GRID_X,
    HELD,
    NEIGHBOUR
};

typedef struct params {
    mxa_global values;  /* [THREADS] */
    mxa_global results; /* [RESULTS][THREADS], of the last block */
    int32_t mask, lane;
} params;

MXA_DEVICE void say(const params *p, int result, uint32_t x)
{
    if (dev_block_x() == 2 && dev_block_y() == 1 && dev_block_z() == 1) {
        dev_store_global_u32(p->results + 4 * (uint64_t)(result * THREADS + dev_thread()), x);
    }
}

MXA_KERNEL(warp_all, THREADS, params, p)
{
    const mxa_shared own = dev_shared() + 4 * (uint32_t)dev_thread();
    const int t = dev_thread();
    uint32_t x = dev_load_global_u32(p.values + 4 * (uint64_t)t);
    say(&p, XOR_F32, bits_f32(shuffle_xor_f32(f32_bits(x), p.mask)));
    say(&p, XOR_U32, shuffle_xor_u32(x, p.mask));
    say(&p, UP, (uint32_t)shuffle_up_i32((int)x, p.lane));
    say(&p, FROM_LANE, (uint32_t)shuffle_i32((int)x, p.lane));
    say(&p, UNIFORM, (uint32_t)warp_uniform((int)x));
    say(&p, ANY, (uint32_t)warp_any(t == p.lane));
    say(&p, NONE, (uint32_t)warp_any(t < 0));
    say(&p, BALLOT, warp_ballot((int)(x & 1)));
    say(&p, MAX_U32, warp_max_u32(x));
    say(&p, MAX_ABS, bits_f32(warp_max_abs_nan_f32(f32_bits(x))));
    say(&p, ELECTED, (uint32_t)warp_elect());
    say(&p, ELECTED_AGAIN, (uint32_t)warp_elect());
    say(&p, THREAD, (uint32_t)dev_thread_again());
    say(&p, COUNT, (uint32_t)dev_threads());
    say(&p, BLOCK_X, (uint32_t)dev_block_x());
    say(&p, BLOCK_Y, (uint32_t)dev_block_y());
    say(&p, BLOCK_Z, (uint32_t)dev_block_z());
    say(&p, GRID_X, (uint32_t)dev_grid_x());
    hold_u32(&x);
    say(&p, HELD, x);
    dev_store_shared_u32(own, x);
    if (t % LANES == 3) { /* a path of its own to the barrier */
        dev_store_shared_u32(own, x + 1);
        cta_sync_unaligned();
    } else {
        cta_sync_unaligned();
    }
    say(&p, NEIGHBOUR, dev_load_shared_u32(dev_shared() + 4 * (uint32_t)((t + 1) % THREADS)));
}

static uint32_t values[THREADS], results[RESULTS][THREADS];

static uint32_t largest(int warp, int magnitude)
{
    uint32_t most = 0;
    for (int i = 0; i < LANES; i++) {
        const uint32_t x = values[warp * LANES + i], m = x & 0x7FFFFFFF;
        if (magnitude && (m > 0x7F800000 || most == 0x7FFFFFFF)) {
            most = 0x7FFFFFFF; /* the canonical NaN wins */
        } else if ((magnitude ? m : x) > most) {
            most = magnitude ? m : x;
        }
    }
    return most;
}

static void check_thread(const params *p, int t)
{
    const int warp = t / LANES, lane = t % LANES;
    const uint32_t *own = values + warp * LANES;
    const int next = (t + 1) % THREADS;
    uint32_t odd = 0;
    for (int i = 0; i < LANES; i++) {
        odd |= (own[i] & 1) << i;
    }
    const struct {
        int result;
        uint32_t want;
    } wanted[] = {{XOR_F32, own[lane ^ p->mask]},
                  {XOR_U32, own[lane ^ p->mask]},
                  {UP, own[lane >= p->lane ? lane - p->lane : lane]},
                  {FROM_LANE, own[p->lane]},
                  {UNIFORM, own[0]},
                  {ANY, warp == 0},
                  {NONE, 0},
                  {BALLOT, odd},
                  {MAX_U32, largest(warp, 0)},
                  {MAX_ABS, largest(warp, 1)},
                  {THREAD, (uint32_t)t},
                  {COUNT, THREADS},
                  {BLOCK_X, 2},
                  {BLOCK_Y, 1},
                  {BLOCK_Z, 1},
                  {GRID_X, 3},
                  {HELD, values[t]},
                  {NEIGHBOUR, values[next] + (next % LANES == 3)}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        CHECK(results[wanted[i].result][t] == wanted[i].want,
              "thread %d, result %d: 0x%x, want 0x%x", t, wanted[i].result,
              results[wanted[i].result][t], wanted[i].want);
    }
}

/* Which lane of a warp was elected; -1: not one. */
static int elected(int warp)
{
    int found = -1;
    for (int i = 0; i < LANES; i++) {
        const int t = warp * LANES + i;
        CHECK(results[ELECTED][t] == results[ELECTED_AGAIN][t], "thread %d: elected once", t);
        if (results[ELECTED][t]) {
            found = found < 0 ? i : -2;
        }
    }
    return found < 0 ? -1 : found;
}

int main(void)
{
    uint32_t lanes_elected = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const params p = {(mxa_global)(uintptr_t)values, (mxa_global)(uintptr_t)results,
                          (int32_t)(seed * 7 % LANES), (int32_t)(seed * 5 % LANES)};
        const int grid[3] = {3, 2, 2};
        mxt_random random = {seed};
        mxa_emu_options options;
        mxa_emu_result result;
        mxt_case("seed %llu", (unsigned long long)seed);
        for (int i = 0; i < THREADS; i++) {
            values[i] = (uint32_t)mxt_random_u64(&random);
            values[i] = (values[i] & 0x7FFFFFFF) > 0x7F800000 ? 0x80000001 : values[i];
        }
        if (seed % 2 == 0) {
            values[LANES + seed] = 0xFFC12345; /* a NaN */
        }
        mxa_emu_options_init(&options);
        options.seed = seed;
        (void)mxa_emu_launch(&warp_all_kernel, grid, THREADS, SHARED, &p, &options, &result);
        CHECK(result.errors + result.warnings == 0, "%s", result.text ? result.text : "");
        mxa_emu_result_free(&result);
        for (int t = 0; t < THREADS; t++) {
            check_thread(&p, t);
        }
        for (int warp = 0; warp < WARPS; warp++) {
            const int lane = elected(warp);
            CHECK(lane >= 0, "warp %d elects not exactly one", warp);
            lanes_elected |= 1u << (lane & 31);
        }
    }
    mxt_case("elect.sync takes any lane");
    CHECK(lanes_elected & (lanes_elected - 1), "the same in all runs: 0x%x", lanes_elected);
    return mxt_finish();
}
