"""Continuous batching compared with fixed batches, on words of a pronunciation dictionary in random order.

    python -m benchmarks.continuous BUNDLE DICTIONARY [--batch-size 32] [--words 5000]

Fixed batches are measured in the order of the words, and sorted by length, which requires all words in advance. Rounds
alternate. Prints one JSON object: medians in seconds, and the number of words for which the results differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np

from txport.api import model as api
from txport.search.options import Found


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("dictionary", type=click.Path(path_type=Path))
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option("--words", type=click.IntRange(1), default=5000, show_default=True, help="Drawn with a fixed seed.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
def main(bundle: Path, dictionary: Path, batch_size: int, words: int, threads: int, rounds: int) -> None:
    """Time BUNDLE on the first words of the lines of DICTIONARY."""
    model = api.load(bundle, threads=threads)
    every = sorted({line.split()[0] for line in dictionary.read_text(encoding="utf-8").splitlines() if line.strip()})
    sources = [model.encode(word) for word in np.random.default_rng(0).permutation(every)[:words].tolist()]

    def each_batch() -> Iterator[list[Found]]:
        for start in range(0, len(sources), batch_size):
            yield from model.search(sources[start : start + batch_size], batch_size=batch_size, scores=False)

    ways: dict[str, Callable[[], list[list[Found]]]] = {
        "as they come": lambda: list(each_batch()),
        "sorted": lambda: model.search(sources, batch_size=batch_size, scores=False),
        "continuous": lambda: model.search(sources, batch_size=batch_size, scores=False, continuous=True),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    tokens = {}
    for number in range(1 + rounds):
        for name, find in ways.items():
            started = time.perf_counter()
            tokens[name] = [each[0].tokens for each in find()]
            if number:  # the first warms up
                times[name].append(time.perf_counter() - started)
    medians = {name: float(np.median(each)) for name, each in times.items()}
    differing = sum(len(set(each)) > 1 for each in zip(*tokens.values(), strict=True))
    ratio = medians["as they come"] / medians["continuous"]
    rounded = {name: round(seconds, 3) for name, seconds in medians.items()}
    click.echo(json.dumps({**rounded, "ratio": round(ratio, 3), "words that differ": differing}))


if __name__ == "__main__":
    main()
