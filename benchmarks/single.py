"""The single graph, which contains the search, compared with the driver of the other graphs, both on ONNX Runtime.

    python -m benchmarks.single BUNDLE [--words DICTIONARY] [--batch 32] [--beams 1] [--length 32] [--threads 1]

Rounds alternate, and so does the order; both should find the same targets. Prints one JSON object: medians in
milliseconds, the ratio of the driver's time to the graph's with its quartiles, and the number of different targets.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from txport.api import model as api
from txport.bench import measure as bench
from txport.runtimes.inputs import Sources


@click.command()
@click.argument("bundle")
@click.option("--words", type=click.Path(path_type=Path), help="Read the first words of lines; random tokens else.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True)
@click.option("--length", type=click.IntRange(1), default=32, show_default=True, help="Of sources; targets at most.")
@click.option("--batches", type=click.IntRange(1), default=4, show_default=True, help="In each round.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(
    bundle: str,
    words: Path | None,
    batch: int,
    beams: int,
    length: int,
    batches: int,
    rounds: int,
    threads: int,
) -> None:
    """Time BUNDLE, which was exported with --single."""
    ways = {name: api.load(bundle, threads=threads, single=name == "single") for name in ("driver", "single")}
    parts = sources_of(ways["driver"], words, batch, length, batches)
    longest = min(length, ways["driver"].facts.writes.longest)
    times: dict[str, list[float]] = {name: [] for name in ways}
    differing = 0
    for number in range(1 + rounds):
        tokens = {}
        for name in list(ways)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            how: dict[str, Any] = {"batch_size": batch, "beams": beams, "max_new_tokens": longest}
            found = [ways[name].search(part, **how) for part in parts]
            if number:  # the first warms up
                times[name].append(1e3 * (time.perf_counter() - started))
            tokens[name] = [each[0].tokens for part in found for each in part]
        differing = sum(one != two for one, two in zip(*tokens.values(), strict=True))
    ratios = np.array(times["driver"]) / times["single"]
    low, middle, high = np.percentile(ratios, (25, 50, 75)).round(3).tolist()
    medians = {name: round(float(np.median(each)), 1) for name, each in times.items()}
    click.echo(json.dumps({**medians, "ratio": middle, "quartiles": [low, high], "targets that differ": differing}))


def sources_of(model: api.Model, words: Path | None, batch: int, length: int, batches: int) -> list[Sources]:
    """Return `batches` batches of random sources, or of words in random order, with a fixed seed."""
    if words is None:
        drawn = [bench.draw_source(model.facts, bench.Protocol(batch=batch, source=length)) for _ in range(batches)]
        return [each.tolist() for each in drawn]
    every = sorted({line.split()[0] for line in words.read_text(encoding="utf-8").splitlines() if line.strip()})
    chosen = np.random.default_rng(0).permutation(every)[: batch * batches].tolist()
    sources = [model.encode(word) for word in chosen]
    return [sources[start : start + batch] for start in range(0, len(sources), batch)]


if __name__ == "__main__":
    main()
