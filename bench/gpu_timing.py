"""gpu_timing.py: how the GPU bench times: two regimes, because the card is power-capped.

sustained: 0.1 s of calls first, then 40; the median of three turns, the second in the other order. cool: 8 calls after a quarter second of rest, the
best of three. Runs of one group are timed in turns, so that all meet the same clocks. beside: what a ratio of two runs comes from.

SPDX-License-Identifier: Apache-2.0
"""

import statistics
import time


def timed(torch, run, count):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def sustained(torch, run):
    once = timed(torch, run, 2)
    timed(torch, run, max(1, int(0.1 / once)))
    return timed(torch, run, 40)


def cool(torch, run):
    best = []
    for _ in range(3):
        time.sleep(0.25)
        timed(torch, run, 2)
        best.append(timed(torch, run, 8))
    return min(best)


def in_turns(torch, runs, cool_keys=()):
    """Key -> {"sustained_us", "cool_us" where asked for}."""
    times = {key: [] for key in runs}
    for turn in range(3):
        for key in list(runs)[:: -1 if turn == 1 else 1]:
            times[key].append(sustained(torch, runs[key]))
    result = {key: {"sustained_us": statistics.median(values) * 1e6} for key, values in times.items()}
    for key in cool_keys:
        result[key]["cool_us"] = cool(torch, runs[key]) * 1e6
    return result


def beside(torch, run, base, rounds=10, seconds=0.02):
    """How many times the speed of `base` `run` has, where both meet the same card. WHY not from two rows of in_turns: seconds and
    other runs lie between those, and the power limit answers in tenths of a second. So short bursts alternate here, and what drifts
    meets both; which goes first changes from round to round, so that neither is always the later one. For runs that draw about the
    same power: of two others the hungrier one has the clocks of their mean, which it does not keep when it runs alone."""
    counts = {call: max(1, round(seconds / timed(torch, call, 2))) for call in (base, run)}
    for call in (base, run):
        timed(torch, call, 2 * counts[call])
    ratios = []
    for turn in range(rounds):
        order = (base, run) if turn % 2 == 0 else (run, base)
        times = {call: timed(torch, call, counts[call]) for call in order}
        ratios.append(times[base] / times[run])
    return statistics.median(ratios)


def rotated(calls):
    """One call that runs the next of `calls` each time: their buffers together exceed the cache."""
    state = [0]

    def run():
        calls[state[0]]()
        state[0] = (state[0] + 1) % len(calls)

    return run
