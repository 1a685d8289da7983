"""test_gpu_timing.py: a ratio of the GPU bench on a card whose clocks drift.

SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import gpu_timing  # noqa: E402

TORCH = types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=lambda: None))


class Card:
    """Calls take their cost times how slow the card is, which grows with time as it warms."""

    def __init__(self, slower_a_second):
        self.now, self.slower, self.calls = 0.0, slower_a_second, []

    def run(self, name, cost):
        def call():
            self.calls.append(name)
            self.now += cost * (1 + self.slower * self.now)

        return call


@pytest.fixture
def card(monkeypatch):
    made = Card(0.2)
    monkeypatch.setattr(gpu_timing.time, "perf_counter", lambda: made.now)
    return made


def test_a_card_that_slows_down_does_not_show_in_a_ratio(card):
    base, same, slower = card.run("base", 1e-3), card.run("same", 1e-3), card.run("slower", 1.25e-3)
    assert gpu_timing.beside(TORCH, same, base) == pytest.approx(1, abs=2e-3)
    assert gpu_timing.beside(TORCH, slower, base) == pytest.approx(0.8, abs=2e-3)


def test_rows_of_one_after_the_other_do_show_it(card):
    runs = {name: card.run(name, 1e-3) for name in ("first", "second", "third")}
    times = gpu_timing.in_turns(TORCH, runs)
    assert times["first"]["sustained_us"] > 1.03 * times["third"]["sustained_us"]  # of three turns the second goes back


def test_bursts_alternate_and_either_goes_first(card):
    gpu_timing.beside(TORCH, card.run("run", 1e-2), card.run("base", 1e-2), rounds=4, seconds=0.01)
    assert card.calls[8:] == ["base", "run", "run", "base", "base", "run", "run", "base"]
