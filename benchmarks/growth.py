"""How a service grows: a model of its queue, fitted to some callers, and held against Poisson arrivals.

    python -m benchmarks.growth BUNDLE DICTIONARY [--words 2000] [--p99 0.2]

A step of r rows takes a + b r seconds, and a request c seconds in which nothing else goes on. Callers that ask again at
once keep r rows running; the times of their requests, of all tokens and of one, give a, b and c. A simulation with
these says what callers that arrive at random wait for, and the service is measured with the same arrivals. Prints one
JSON object.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from benchmarks.service import Connection, ask, started, words_of
from txport.system.arrays import Array

SLOTS = 32
CALLERS = (1, 2, 4, 8, 16, 32)
SHARES = (0.25, 0.5, 0.75, 0.9)  # of the most requests a second that the model allows
POPULATIONS = (1_000, 10_000)


@dataclass(frozen=True)
class Cost:
    """A step of r rows takes `step + row * r` seconds, and a request `request` seconds besides its steps."""

    step: float
    row: float
    request: float

    def capacity(self, steps: float) -> float:
        """Return the most requests a second, of so many steps on average."""
        return SLOTS / (steps * (self.step + SLOTS * self.row) + SLOTS * self.request)


def fit(times: Sequence[tuple[int, float, float]]) -> Cost:
    """Return the cost, given callers, the steps of a request and its seconds; all relative errors count alike."""
    weighted = [np.array([steps, steps * callers, callers]) / seconds for callers, steps, seconds in times]
    step, row, request = np.linalg.lstsq(np.stack(weighted), np.ones(len(times)))[0].tolist()
    return Cost(step, row, request)


def simulate(arrivals: Sequence[float], steps: Sequence[int], cost: Cost, slots: int = SLOTS) -> list[float]:
    """Return the seconds from arrival to end of each request, by the order of their ends.

    A request enters before a step if one of the slots is free, in order of arrival, and ends after its steps.
    """
    waiting = deque(zip(arrivals, steps, strict=True))
    running: list[tuple[float, int]] = []  # arrival, steps to go
    seconds: list[float] = []
    now = 0.0
    while waiting or running:
        if not running:
            now = max(now, waiting[0][0])
        before = len(running)
        while waiting and waiting[0][0] <= now and len(running) < slots:
            running.append(waiting.popleft())
        now += cost.step + cost.row * len(running) + cost.request * (len(running) - before)
        seconds += [now - arrival for arrival, left in running if left == 1]
        running = [(arrival, left - 1) for arrival, left in running if left > 1]
    return seconds


def poisson(rate: float, count: int, seed: int = 0) -> Array:
    """Return times of arrivals in seconds."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in ms."""
    return {f"p{share}, ms": round(1000 * float(np.percentile(seconds, share)), 1) for share in (50, 99)}


def highest_rate(cost: Cost, steps: Sequence[int], p99: float) -> float:
    """Return the requests a second at which 99 of 100 still end within `p99` seconds."""
    least, most = 0.0, cost.capacity(float(np.mean(steps)))
    many = np.random.default_rng(1).choice(steps, 20_000).tolist()
    for _ in range(10):
        rate = (least + most) / 2
        is_quick = np.percentile(simulate(poisson(rate, len(many)).tolist(), many, cost), 99) <= p99
        least, most = (rate, most) if is_quick else (least, rate)
    return least


async def closed(port: int, texts: Sequence[str], callers: int, **options: object) -> tuple[float, list[str]]:
    """Return the mean seconds of a request of so many callers, who ask again at once, and the outputs."""
    places: Iterator[int] = iter(range(len(texts)))
    outputs = [""] * len(texts)

    async def call() -> None:
        connection = await asyncio.open_connection("127.0.0.1", port)
        for at in places:
            outputs[at] = await ask(connection, texts[at], **options)
        connection[1].close()

    begin = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return callers * (time.perf_counter() - begin) / len(texts), outputs


async def opened(port: int, texts: Sequence[str], arrivals: Sequence[float]) -> list[float]:
    """Return the seconds of requests that arrive at some times, whatever has been answered by then."""
    idle: list[Connection] = []

    async def call(text: str, arrival: float) -> float:
        await asyncio.sleep(begin + arrival - time.perf_counter())
        while idle and idle[-1][0].at_eof():  # the service closes what is idle for long
            idle.pop()[1].close()
        connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        await ask(connection, text)
        idle.append(connection)
        return time.perf_counter() - begin - arrival

    begin = time.perf_counter() + 0.1
    seconds = await asyncio.gather(*(call(*each) for each in zip(texts, arrivals, strict=True)))
    for _, writer in idle:
        writer.close()
    return seconds


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("dictionary", type=click.Path(path_type=Path))
@click.option("--words", type=click.IntRange(1), default=2000, show_default=True, help="Drawn with a fixed seed.")
@click.option("--p99", type=float, default=0.2, show_default=True, help="Seconds in which 99 of 100 must end.")
def main(bundle: Path, dictionary: Path, words: int, p99: float) -> None:
    """Measure BUNDLE on the first words of the lines of DICTIONARY, and compare with the model of its queue."""
    texts = words_of(dictionary, words)
    with started(bundle, SLOTS) as (port, _):
        _, outputs = asyncio.run(closed(port, texts, SLOTS))  # warms up
        steps = [len(output.split()) + 1 for output in outputs]  # a token a phoneme, and the end
        mean = float(np.mean(steps))
        times = []
        for callers in CALLERS:
            times.append((callers, mean, asyncio.run(closed(port, texts, callers))[0]))
            times.append((callers, 1.0, asyncio.run(closed(port, texts, callers, max_new_tokens=1))[0]))
        cost = fit(times)
        capacity = cost.capacity(mean)
        rows = []
        for share in SHARES:
            arrivals = poisson(share * capacity, words).tolist()
            measured = percentiles(asyncio.run(opened(port, texts, arrivals)))
            predicted = percentiles(simulate(arrivals, steps, cost))
            rows.append({"requests a second": round(share * capacity), "model": predicted, "measured": measured})
    rate = highest_rate(cost, steps, p99)
    needed = {callers: math.ceil(callers / rate) for callers in POPULATIONS}  # each asks once a second
    found = {"step, ms": 1000 * cost.step, "row, ms": 1000 * cost.row, "request, ms": 1000 * cost.request}
    found |= {"steps": mean, "capacity": capacity, f"requests a second, p99 {p99:g} s": rate}
    rounded = {key: round(value, 3) for key, value in found.items()}
    closed_loop = [(callers, round(length, 1), round(1000 * seconds, 2)) for callers, length, seconds in times]
    click.echo(json.dumps({**rounded, "callers, steps, ms": closed_loop, "arrivals": rows, "machines": needed}))


if __name__ == "__main__":
    main()
