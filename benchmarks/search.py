"""The cost of search in addition to the graphs: choosing tokens, keeping hypotheses, moving caches.

    python -m benchmarks.search BUNDLE [--batch 32] [--beams 4]

Prints the milliseconds of the parts of a search, medians of the rounds, as one JSON object.
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

PARTS = ("start", "step", "select")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--beams", type=click.IntRange(1), default=4, show_default=True)
@click.option("--length", type=click.IntRange(2), default=32, show_default=True, help="Of sources and targets.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
def main(bundle: Path, batch: int, beams: int, length: int, rounds: int) -> None:
    """Time the parts of searching BUNDLE, targets of full length."""
    model = api.load(bundle)
    times = dict.fromkeys(PARTS, 0.0)
    for name in PARTS:
        setattr(model.runtime, name, timed(getattr(model.runtime, name), times, name))
    sources = bench.draw_source(model.facts, bench.Protocol(batch=batch, source=length)).tolist()
    found = []
    for number in range(1 + rounds):
        times.update(dict.fromkeys(PARTS, 0.0))
        started = time.perf_counter()
        model.search(sources, batch_size=batch, beams=beams, max_new_tokens=length, min_new_tokens=length)
        total = time.perf_counter() - started
        if number:  # the first warms up
            found.append([*times.values(), total - sum(times.values())])
    parts = dict(zip((*PARTS, "rest"), (1e3 * np.median(found, axis=0)).tolist(), strict=True))
    share = (parts["select"] + parts["rest"]) / parts["step"]
    click.echo(json.dumps({**{name: round(value, 1) for name, value in parts.items()}, "share": round(share, 3)}))


def timed(work: Any, times: dict[str, float], name: str) -> Any:
    """Return `work`, wrapped so that its seconds are added to `times[name]`."""

    def run(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        result = work(*arguments, **options)
        times[name] += time.perf_counter() - started
        return result

    return run


if __name__ == "__main__":
    main()
