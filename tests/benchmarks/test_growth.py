"""The simulated queue is that of the textbook where there is one, and the fit finds the cost of a step."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.growth import SLOTS, Cost, fit, highest_rate, poisson, simulate


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_slot_and_one_step_is_a_queue_of_equal_services(load: float) -> None:
    """M/D/1: the mean time is s + load * s / (2 (1 - load)), by Pollaczek and Khinchine."""
    service, count = 0.01, 200_000
    seconds = simulate(poisson(load / service, count).tolist(), [1] * count, Cost(service, 0, 0), slots=1)
    assert np.mean(seconds) == pytest.approx(service + load * service / (2 * (1 - load)), rel=0.03)


def test_requests_that_come_together_share_steps() -> None:
    cost = Cost(step=1.0, row=0.5, request=0.25)
    assert simulate([0, 0, 1.5], [1, 3, 1], cost) == [2.5, 3.25, 6.25]
    assert simulate([0, 0], [1, 1], cost, slots=1) == [1.75, 3.5]


def test_the_fit_finds_the_costs() -> None:
    cost = Cost(step=0.002, row=0.0005, request=0.003)
    given = [(rows, steps) for rows in (1, 4, 32) for steps in (1.0, 7.5)]
    times = [(rows, steps, steps * (cost.step + cost.row * rows) + cost.request * rows) for rows, steps in given]
    found = fit(times)
    assert (found.step, found.row, found.request) == pytest.approx((cost.step, cost.row, cost.request))


def test_the_highest_rate_keeps_the_limit_and_a_higher_one_does_not() -> None:
    cost, steps, limit = Cost(0.002, 0.0002, 0.001), [5, 8, 11], 0.15
    rate = highest_rate(cost, steps, limit)
    assert 0 < rate < cost.capacity(8)
    many = np.random.default_rng(2).choice(steps, 20_000).tolist()
    p99 = [
        np.percentile(simulate(poisson(each, len(many), 2).tolist(), many, cost), 99)
        for each in (0.9 * rate, 1.1 * rate)
    ]
    assert p99[0] < limit < p99[1]
    assert SLOTS / cost.capacity(8) == pytest.approx(8 * (cost.step + SLOTS * cost.row) + SLOTS * cost.request)
