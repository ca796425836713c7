"""A service at twice its capacity: its memory, its refusals, and whether its answers are those of `generate`.

    python -m benchmarks.overload BUNDLE DICTIONARY [--minutes 10] [--callers 200] [--load 2] [--queue 64] [--beams 4]

The capacity is what callers get that ask again at once. Several beams make it that of the engine: for a small model and
greedy search, it is that of HTTP. Then each caller asks at random times (Poisson), together
`load` times the capacity. It waits for an answer or a refusal; times that have passed by then follow at once. Memory is
that of all processes of the service, each second. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.growth import SLOTS, closed, percentiles
from benchmarks.service import Connection, send, started, words_of
from txport.api import model as api
from txport.system import machine

WORDS = 5_000
CLOSED = 64  # callers that measure the capacity


@dataclass
class Run:
    """What callers found: statuses of answers, seconds of those with 200, and answers that differ from `wanted`."""

    port: int
    wanted: dict[str, Any]
    beams: int
    idle: list[Connection] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    compared: int = 0
    differing: set[str] = field(default_factory=set)
    memory: list[float] = field(default_factory=list)  # MB, each second

    async def ask(self, text: str) -> None:
        """Ask for a text; note the answer, or the error of the connection."""
        begin = time.perf_counter()
        try:
            while self.idle and self.idle[-1][0].at_eof():  # the service closes what is idle for long
                self.idle.pop()[1].close()
            connection = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
            status, answer = await send(connection, text, beams=self.beams)
        except (OSError, EOFError) as error:
            self.statuses[type(error).__name__] += 1
            return
        self.idle.append(connection)
        self.statuses[str(status)] += 1
        if status == 200:
            self.seconds.append(time.perf_counter() - begin)
        if status == 200 and text in self.wanted:
            self.compared += 1
            if answer["translations"][0] != self.wanted[text]:
                self.differing.add(text)

    async def call(self, texts: Sequence[str], rate: float, seconds: float, seed: int) -> None:
        """Ask for texts at random times, `rate` a second on average."""
        random = np.random.default_rng(seed)
        arrival = time.perf_counter()
        end = arrival + seconds
        while time.perf_counter() < end and (arrival := arrival + random.exponential(1 / rate)) < end:
            await asyncio.sleep(arrival - time.perf_counter())
            await self.ask(texts[int(random.integers(len(texts)))])

    async def watch(self, process: int) -> None:
        """Note the memory of the processes of the service each second."""
        while True:
            self.memory.append(resident(process))
            await asyncio.sleep(1)


def resident(process: int) -> float:
    """Return the resident memory of a process and its children in MB (Linux)."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    statuses = [Path(f"/proc/{each}/status").read_text(encoding="ascii") for each in (process, *children)]
    return sum(int(text.partition("VmRSS:")[2].split()[0]) for text in statuses) / 1024


async def overload(run: Run, process: int, texts: Sequence[str], callers: int, rate: float, seconds: float) -> None:
    """Let callers ask for some time, `rate` requests a second together."""
    watching = asyncio.create_task(run.watch(process))
    await asyncio.gather(*(run.call(texts, rate / callers, seconds, seed) for seed in range(callers)))
    watching.cancel()


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("dictionary", type=click.Path(path_type=Path))
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=10, show_default=True)
@click.option("--callers", type=click.IntRange(1), default=200, show_default=True)
@click.option("--load", type=float, default=2, show_default=True, help="Requests a second, as a multiple of capacity.")
@click.option("--queue", type=click.IntRange(0), default=64, show_default=True)
@click.option("--beams", type=click.IntRange(1), default=4, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--sample", type=click.IntRange(1), default=1_000, show_default=True, help="Words that are compared.")
def main(
    bundle: Path,
    dictionary: Path,
    minutes: float,
    callers: int,
    load: float,
    queue: int,
    beams: int,
    workers: int,
    sample: int,
) -> None:
    """Ask a service of BUNDLE for the first words of the lines of DICTIONARY."""
    texts = words_of(dictionary, WORDS)
    model = api.load(bundle, threads=1)
    wanted = {word: json.loads(json.dumps(model.generate(word, beams=beams)[0].to_dict())) for word in texts[:sample]}
    model.close()
    with started(bundle, SLOTS, "--queue", str(queue), "--workers", str(workers)) as (port, process):
        asyncio.run(closed(port, texts, CLOSED, beams=beams))  # warms up
        capacity = CLOSED / asyncio.run(closed(port, texts, CLOSED, beams=beams))[0]
        run = Run(port, wanted, beams)
        asyncio.run(overload(run, process, texts, callers, load * capacity, 60 * minutes))
    tenth = len(run.memory) // 10
    memory = [float(np.median(part)) for part in (run.memory[tenth : 2 * tenth], run.memory[-tenth:])]
    found: dict[str, object] = {
        "processor": machine.describe()["cpu"], "workers": workers, "queue": queue, "beams": beams,
        "callers": callers, "minutes": minutes,
        "capacity, requests a second": round(capacity), "asked": run.statuses.total(), "answers": run.statuses,
        "asked a second": round(run.statuses.total() / (60 * minutes)),
        "answered a second": round(len(run.seconds) / (60 * minutes)), **percentiles(run.seconds),
        "memory of the second and last tenth, MB": memory, "growth, %": round(100 * (memory[1] / memory[0] - 1), 2),
        "answers compared": run.compared, "words that differ": len(run.differing),
    }  # fmt: skip
    click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
