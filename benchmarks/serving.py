"""A live engine under many callers, compared with bulk work and with `generate` for one text at a time.

    python -m benchmarks.serving BUNDLE WORDS [--callers 64] [--count 4000]

Each caller submits its next word when it has the result of the last one. Ways alternate, and a ratio is the median of
those within a round. Prints one JSON object: requests a second, and processor time of a request in microseconds, that
of callers included.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from txport.api import model as api

ONE = 400  # words of a single caller


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("words", type=click.Path(path_type=Path))
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--count", type=click.IntRange(1), default=4000, show_default=True, help="Words, drawn with a fixed seed."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of each operator.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
def main(bundle: Path, words: Path, callers: int, count: int, threads: int, rounds: int) -> None:
    """Time BUNDLE on the first words of the lines of WORDS."""
    model = api.load(bundle, threads=threads)
    every = sorted({line.split()[0] for line in words.read_text(encoding="utf-8").splitlines() if line.strip()})
    drawn: list[str] = np.random.default_rng(0).permutation(every)[:count].tolist()
    ways: dict[str, Callable[[], list[str]]] = {
        "bulk": lambda: [each.output for each in model.generate(drawn, batch_size=callers, continuous=True)],
        "threads": lambda: by_threads(model, drawn, callers),
        "event loop": lambda: by_tasks(model, drawn, callers),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(1 + rounds):
        wanted: list[str] = []
        for name, way in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            found = way()
            if number:  # the first warms up
                times[name].append((time.perf_counter() - wall, time.process_time() - processor))
            wanted = wanted or found
            assert found == wanted, "an engine finds what bulk work finds"
    report: dict[str, Any] = {name: figures(times[name], times["bulk"], len(drawn)) for name in ways}
    click.echo(json.dumps({**report, "one caller": one_caller(model, drawn[:ONE])}))


def figures(own: list[tuple[float, float]], bulk: list[tuple[float, float]], count: int) -> dict[str, float]:
    """Return medians, and the medians of ratios to bulk work: of its throughput, and of its processor time."""
    wall, processor = np.median(own, axis=0)
    ratios = np.array(own) / np.array(bulk)
    return {
        "requests a second": round(count / wall),
        "processor us": round(1e6 * processor / count),
        "throughput of bulk": round(float(np.median(1 / ratios[:, 0])), 2),
        "processor time of bulk": round(float(np.median(ratios[:, 1])), 2),
    }


def by_threads(model: api.Model, words: list[str], callers: int) -> list[str]:
    """Return the outputs of words, which threads submit."""
    found = [""] * len(words)
    numbers = itertools.count()
    with model.engine(slots=callers) as engine:

        def call() -> None:
            while (number := next(numbers)) < len(words):
                found[number] = engine.submit(words[number]).result().output

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def by_tasks(model: api.Model, words: list[str], callers: int) -> list[str]:
    """Return the outputs of words, which tasks of an event loop submit."""
    found = [""] * len(words)
    numbers = itertools.count()

    async def call(engine: api.Engine) -> None:
        while (number := next(numbers)) < len(words):
            found[number] = (await engine.submit(words[number])).output

    async def all_calls(engine: api.Engine) -> None:
        await asyncio.gather(*(call(engine) for _ in range(callers)))

    with model.engine(slots=callers) as engine:
        asyncio.run(all_calls(engine))
    return found


def one_caller(model: api.Model, words: list[str]) -> dict[str, float]:
    """Return the median milliseconds of a word, by `generate` and by an engine without other callers."""
    times: list[tuple[float, float]] = []
    with model.engine() as engine:
        for word in words:
            started = time.perf_counter()
            model.generate(word)
            between = time.perf_counter()
            engine.submit(word).result()
            times.append((between - started, time.perf_counter() - between))
    alone, live = np.median(times, axis=0)
    return {"generate ms": round(1e3 * alone, 2), "engine ms": round(1e3 * live, 2)}


if __name__ == "__main__":
    main()
