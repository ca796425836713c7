"""Requests that arrive at random at a live engine, as in the Server scenario of MLPerf.

Arrivals are a Poisson process with a fixed seed; they do not wait for answers (open loop). A latency counts from the
time at which the request should have arrived, so that a late generator makes no figure better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from txport.bench.compare import Json
from txport.bench.plan import Plan
from txport.errors import UnsupportedError
from txport.runtimes.base import ContinuousRuntime
from txport.search.numbers import numbers_only
from txport.search.options import SearchOptions
from txport.serving import worker as serving
from txport.serving.engine import BUDGET, MOST, SLOTS
from txport.serving.tickets import Ticket
from txport.system.progress import Progress

if TYPE_CHECKING:
    from txport.bench.streams import Item, Stream
    from txport.bench.worker import Worker

TIMES = 10  # times the median latency alone: the default bound of p99
FEWEST = 200  # requests of a run: p99 is about the third largest latency
RUNS = 10  # a run takes this part of the plan's seconds, or as long as the arrivals of `FEWEST` requests
TRIED = 12  # rates
NEAR = 1.1  # ratio of the lowest rate that fails to the highest that does not, at the end of the search
CONFIRMED = 3  # rates at most that are run once more at the end, each lower by `NEAR`
PERCENTILES = (50, 90, 99)
ENCODER = "the live engine needs a generating model; this model is encoder-only"
NOT_CONTINUOUS = "the live engine needs a cpu or cuda bundle; use `txport export --target cpu`"


class Server:
    """The live engine on the runtime of a candidate, in its process; each method answers a request of the parent."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._engine: serving.Worker | None = None

    def unable(self) -> dict[str, str]:
        """Return the reason why the candidate can't serve; "" if it can."""
        if not self.stream.facts.generates:
            return {"reason": ENCODER}
        return {"reason": "" if isinstance(self.stream.runtime, ContinuousRuntime) else NOT_CONTINUOUS}

    def alone(self, items: Sequence[Item], limit: int | None, seconds: float) -> dict[str, object]:
        """Answer one request at a time, for `seconds` at most; return their latencies in seconds."""
        latencies: list[float] = []
        for item in items:
            latencies += Arrivals(self, [item], limit, [0.0]).answer()["latencies"]
            if sum(latencies) > seconds:
                break
        return {"latencies": latencies}

    def serve(self, items: Sequence[Item], limit: int | None, rate: float, count: int, seed: int) -> Json:
        """Answer `count` requests that arrive at a rate (1/s); return what `Arrivals.answer` does."""
        due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
        return Arrivals(self, [items[at % len(items)] for at in range(count)], limit, due.tolist()).answer()

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Submit requests to the engine, which starts with the first one."""
        if self._engine is None:
            runtime = numbers_only(self.stream.runtime)
            assert isinstance(runtime, ContinuousRuntime)
            self._engine = serving.Worker(runtime, self.stream.facts, SLOTS, MOST, BUDGET)
        self._engine.submit(tickets)


class Arrivals:
    """Requests with the seconds `due` at which they arrive; one thread submits them and reads their answers."""

    def __init__(self, server: Server, items: Sequence[Item], limit: int | None, due: Sequence[float]) -> None:
        self._server = server
        self._items = items
        self._options = SearchOptions(max_new_tokens=limit, scores=False)
        self._due = due
        self._tickets: list[Ticket] = []
        self._ended: SimpleQueue[int] = SimpleQueue()  # the numbers of requests
        self._latencies: dict[int, float] = {}
        self._work = 0.0
        self._begun = 0.0

    def answer(self) -> Json:
        """Submit all requests and wait for their answers.

        Returns in seconds: "latencies"; "late", from a scheduled arrival to the call of the engine; "taken" by the
        whole; and "generator", the processor time of this thread that is not of encoding, submitting and decoding.
        """
        late = []
        self._begun, used = time.perf_counter(), time.thread_time()
        for number, moment in enumerate(self._due):
            while (wait := moment - self._now()) > 0:
                self._read(wait)
            late.append(-wait)
            self._submit(number)
        while len(self._latencies) < len(self._due):
            self._read(None)
        generator = time.thread_time() - used - self._work
        return {"latencies": [*self._latencies.values()], "late": late, "taken": self._now(), "generator": generator}

    def _now(self) -> float:
        return time.perf_counter() - self._begun

    def _submit(self, number: int) -> None:
        begun = time.thread_time()
        stream = self._server.stream
        ticket = Ticket(stream.encode(self._items[number]), (), self._options, stream.facts)
        ticket.future.add_done_callback(lambda _: self._ended.put(number))
        self._tickets.append(ticket)
        self._server.submit([ticket])
        self._work += time.thread_time() - begun

    def _read(self, wait: float | None) -> None:
        """Decode the next answer, if one comes within `wait` seconds."""
        try:
            number = self._ended.get(timeout=wait)
        except Empty:
            return
        begun = time.thread_time()
        ticket = self._tickets[number]
        self._server.stream.decode(self._items[number], ticket.request[0], ticket.future.result()[0].tokens)
        self._latencies[number] = self._now() - self._due[number]
        self._work += time.thread_time() - begun


def require(workers: Mapping[str, Worker]) -> None:
    """Raise `UnsupportedError` if no candidate can serve."""
    reasons = {label: each.request("unable")["reason"] for label, each in workers.items()}
    if all(reasons.values()):
        label, reason = next(iter(reasons.items()))
        raise UnsupportedError(f"the scenario server can't measure {label}: {reason}")


def measure(
    plan: Plan, workers: Mapping[str, Worker], items: Sequence[Item], limit: int | None, progress: Progress
) -> dict[str, Json]:
    """Return, by candidate, the highest rate at which p99 stays in the bound, and all runs; the candidates take turns.

    The bound is `plan.bound`, or `TIMES` times the median latency alone of the first candidate that can serve.
    """
    found: dict[str, Json] = {}
    for label, each in workers.items():
        reason = each.request("unable")["reason"]
        found[label] = {"reason": reason, "runs": []}
        if not reason:
            for _ in range(2):  # the first is the warm-up
                alone = each.request("alone", items, limit, plan.seconds / RUNS)["latencies"]
            found[label]["alone"] = 1e3 * float(np.median(alone))
    able = {label: each for label, each in found.items() if not each["reason"]}
    bound = plan.bound or TIMES * next(iter(able.values()))["alone"]
    turns = {label: _find(each, plan, bound, workers[label], items, limit) for label, each in able.items()}
    while turns:
        for label in list(turns):
            if rate := next(turns[label], None):
                progress(f"{label}: requests at {rate:.3g}/s")
            else:
                del turns[label]
    return {label: {"bound": bound, **each} for label, each in found.items()}


def search(rate: float, least: float, keeps: Callable[[float], bool]) -> Generator[float, None, float | None]:
    """Return the highest rate that `keeps` the bound, begun at `rate`; yield each rate that was tried.

    A rate fails if two runs of it do, since one may meet noise of the machine. The rate that is found is run once more,
    since among several runs a lucky one is the best. None: no rate of at least `least` keeps the bound.
    """
    low, high = 0.0, math.inf
    for _ in range(TRIED):
        if high <= NEAR * low or rate < least:
            break
        if keeps(rate) or keeps(rate):
            low = rate
        else:
            high = rate
        yield rate
        rate = math.sqrt(low * high) if low and high < math.inf else 2 * low or high / 2
    for _ in range(CONFIRMED if low else 0):
        if keeps(low):
            return low
        yield low
        low /= NEAR
    return None


def _find(
    found: Json, plan: Plan, bound: float, worker: Worker, items: Sequence[Item], limit: int | None
) -> Iterator[float]:
    """Find the rate of one candidate; yield each rate that was tried, so that the candidates take turns."""
    runs: list[Json] = found["runs"]

    def keeps(rate: float) -> bool:
        count = max(FEWEST, round(rate * plan.seconds / RUNS))
        run = worker.request("serve", items, limit, rate, count, len(runs))
        runs.append({"rate": rate, "count": len(run["latencies"]), **_figures(run)})
        return bool(runs[-1]["p99"] <= bound)

    least = FEWEST / plan.seconds
    if (yield from search(1e3 / found["alone"], least, keeps)):
        found["best"] = runs[-1]
    else:
        found["reason"] = f"no rate of {least:.3g}/s or more kept the bound, and fewer arrivals give no p99"


def _figures(run: Json) -> dict[str, float]:
    """Return percentiles of the latency, p99 of "late" in ms, and the share of a core that the generator used, in %."""
    percentiles = np.percentile(run["latencies"], PERCENTILES)
    latencies = {f"p{at}": 1e3 * float(value) for at, value in zip(PERCENTILES, percentiles, strict=True)}
    late = 1e3 * float(np.percentile(run["late"], 99))
    return {**latencies, "late": late, "generator": 100 * run["generator"] / run["taken"]}
