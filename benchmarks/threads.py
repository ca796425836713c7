"""One thread compared with several that spin for different times between operators, with and without a busy process.

    python -m benchmarks.threads BUNDLE [--batch-size 1] [--spin 10 --spin 200]

Runs greedy search over random sources; the order of the settings is random in each round. The busy process keeps one
core busy. Prints tokens per second as one JSON object: first quartile, median and third quartile per setting.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from txport.api import model as api
from txport.runtimes.ort import sessions
from txport.system.cores import cores

BUSY = [sys.executable, "-c", "while True: pass"]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--tokens", type=click.IntRange(2), default=8, show_default=True, help="Of each source and target.")
@click.option("--texts", type=click.IntRange(1), default=8, show_default=True, help="In each round.")
@click.option("--threads", type=click.IntRange(1), default=cores(), show_default=True)
@click.option("--spin", type=click.IntRange(0), multiple=True, default=(10, 200), help="In µs.  [repeatable]")
@click.option("--rounds", type=click.IntRange(4), default=20, show_default=True)
def main(
    bundle: Path, batch_size: int, tokens: int, texts: int, threads: int, spin: tuple[int, ...], rounds: int
) -> None:
    """Time BUNDLE with one thread, and with THREADS for each time to SPIN."""
    models = {"1 thread": api.load(bundle, threads=1)}
    for each in spin:
        sessions.SPIN = each
        models[f"{threads} threads, {each} µs"] = api.load(bundle, threads=threads)
    rng = np.random.default_rng(0)
    size = models["1 thread"].facts.reads.size
    sources = rng.integers(4, size, (texts, tokens)).tolist()
    how: dict[str, Any] = {
        "batch_size": batch_size,
        "scores": False,
        "max_new_tokens": tokens,
        "min_new_tokens": tokens - 1,
    }
    speeds: dict[str, dict[str, list[float]]] = {name: {"alone": [], "busy": []} for name in models}
    for _ in range(rounds):
        for beside in ("alone", "busy"):
            neighbour = subprocess.Popen(BUSY) if beside == "busy" else None
            try:
                for name in rng.permutation(list(models)).tolist():
                    speeds[name][beside].append(texts * tokens / seconds(models[name], sources, how))
            finally:
                if neighbour:
                    neighbour.kill()
                    neighbour.wait()
    quartiles = {
        name: {beside: np.percentile(each, [25, 50, 75]).round().tolist() for beside, each in found.items()}
        for name, found in speeds.items()
    }
    click.echo(json.dumps(quartiles, ensure_ascii=False, indent=2))


def seconds(model: api.Model, sources: list[list[int]], how: dict[str, Any]) -> float:
    """Return the seconds of one search, which starts after the threads of the previous one have stopped spinning."""
    time.sleep(0.005)
    started = time.perf_counter()
    model.search(sources, **how)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
