"""The Server scenario: the search of the highest rate, and requests that arrive at random at the live engine."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.tiny import tiny_config, tiny_model, unproven
from txport import runtimes
from txport.bench import measure as bench
from txport.bench import server
from txport.bench.page import markdown
from txport.bench.streams import Stream
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.errors import UnsupportedError

PLAN = bench.Plan(scenario=("server",), batch=(1,), source=(5,), tokens=(4,), threads=1, seconds=1.0, starts=1)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("server")
    save_checkpoint(folder / "toy", tiny_model(tiny_config()))
    return unproven(folder / "toy", folder / "out", target="cpu")


@pytest.fixture(scope="module")
def result(bundle: Bundle, fused: Bundle) -> Any:
    found = bench.candidates([("toy", bundle), ("toy", fused)], ("ort",))
    return {"command": "txport bench", **bench.run(found, PLAN)}


def searched(start: float, least: float, keeps: Any) -> tuple[float | None, list[float]]:
    """What a search returns, and the rates that it ran."""
    ran: list[float] = []
    steps = server.search(start, least, lambda rate: bool(ran.append(rate) or keeps(rate)))
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value, ran


@pytest.mark.parametrize("capacity", [1.0, 7.3, 40.0, 90.0])
@pytest.mark.parametrize("start", [5.0, 40.0])
def test_the_search_finds_the_capacity(start: float, capacity: float) -> None:
    rate, ran = searched(start, 0.1, lambda rate: rate <= capacity)
    assert rate is not None
    assert capacity / server.NEAR <= rate <= capacity
    assert ran[-1] == rate, "the last run is that of the rate"
    assert ran.count(rate) == 2


def test_a_rate_that_kept_the_bound_by_luck_is_not_reported() -> None:
    def lucky(rate: float) -> bool:
        seen[rate] = seen.get(rate, 0) + 1
        return rate <= 10 or (rate <= 11 and seen[rate] == 1)

    seen: dict[float, int] = {}
    rate, _ = searched(5.3, 0.1, lucky)
    assert rate is not None
    assert rate <= 10


def test_a_run_that_noise_disturbed_does_not_fail_a_rate() -> None:
    """Every third run exceeds the bound, whatever its rate."""
    numbers = itertools.count(1)
    rate, _ = searched(5.0, 0.1, lambda rate: rate <= 40 and next(numbers) % 3 > 0)
    assert rate is not None
    assert rate >= 40 / server.NEAR**3


def test_without_enough_requests_there_is_no_rate() -> None:
    assert searched(5.0, 1.0, lambda rate: rate < 0.5)[0] is None
    assert searched(0.9, 1.0, lambda _: True) == (None, []), "nothing was run"


def test_the_rate_of_a_candidate_keeps_the_bound(result: Any) -> None:
    served = result["candidates"]["cpu ort"]["server"]
    assert served["bound"] == pytest.approx(server.TIMES * served["alone"])
    for run in served["runs"]:
        assert run["count"] >= server.FEWEST
        assert 0 < run["p50"] <= run["p90"] <= run["p99"]
        assert run["late"] >= 0
        assert 0 < run["generator"] < 100
    if not served["reason"]:  # a busy machine may keep no bound
        assert served["best"] == served["runs"][-1]
        assert served["best"]["p99"] <= served["bound"]
    assert json.loads(json.dumps(result)) == result


def test_a_candidate_that_can_not_serve_says_why(result: Any) -> None:
    served = result["candidates"]["portable ort"]["server"]
    assert (served["reason"], served["runs"]) == (server.NOT_CONTINUOUS, [])
    assert f"portable ort: {server.NOT_CONTINUOUS}" in markdown(result)


def test_if_none_can_serve_nothing_is_measured(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="server can't measure ort: the live engine needs a cpu or cuda bundle"):
        bench.run(bench.candidates([("bundle", bundle)], ("ort",)), PLAN)


def test_a_latency_counts_from_the_scheduled_arrival(fused: Bundle) -> None:
    """A request that is submitted a second late has waited for a second."""
    one = server.Server(Stream(fused, runtimes.load("ort", fused, threads=1)))
    found = server.Arrivals(one, [[4, 5], [6, 7, 8]], 3, [-1.0, 0.0]).answer()
    assert len(found["latencies"]) == 2
    assert max(found["latencies"]) > 1
    assert found["late"][0] >= 1


def test_requests_that_arrive_at_once_are_answered_as_alone(fused: Bundle) -> None:
    stream = Stream(fused, runtimes.load("ort", fused, threads=1))
    items = [[4, 5], [6], [7, 8, 9], [4]]
    arrivals = server.Arrivals(server.Server(stream), items, 5, [0.0] * len(items))
    assert len(arrivals.answer()["latencies"]) == len(items)
    answers = [ticket.future.result()[0].tokens for ticket in arrivals._tickets]
    assert answers == stream.targets(items, 5)["targets"]
