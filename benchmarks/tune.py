"""How near the settings that `txport tune` finds are to the best of all.

    python -m benchmarks.tune NAME [--target cpu --precision fp32 --precision int8] [--for throughput] [--budget 90s]

It tunes, and then measures the whole grid in turns, `--repeats` times with new processes, for `--seconds` each time.
Prints the gain of the tuned choice divided by the largest gain, both medians of the repeats, as JSON.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median

import click

from txport.bench import tune
from txport.bench.plan import GOALS
from txport.cli.commands.machine import seconds_of
from txport.cli.guard import progress
from txport.system import machine

DAY = 86_400.0


@click.command(help=__doc__)
@click.argument("name")
@click.option("--target", default="portable", show_default=True)
@click.option("--precision", "precisions", multiple=True)
@click.option("--for", "goal", type=click.Choice(list(GOALS)), default="throughput", show_default=True)
@click.option("--budget", default="90s", callback=seconds_of, show_default=True)
@click.option("--seconds", default=30.0, show_default=True, help="Of each repeat, for all choices.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
def main(
    name: str, target: str, precisions: tuple[str, ...], goal: str, budget: float, seconds: float, repeats: int
) -> None:
    """Tune, measure the grid, print."""
    with tempfile.TemporaryDirectory() as work:
        made = tune.exports(name, Path(work), target, precisions, progress=progress)
        bundles = [each.bundle for each in made]
        begun = time.monotonic()
        best = tune.tune(bundles, goal, budget, progress=progress)[0]
        taken = time.monotonic() - begun
        grid = tune.candidates(bundles, goal)
        search = tune.Search(bundles, goal, bundles[0].samples, time.monotonic() + DAY)
        gains: dict[tune.Choice, list[float]] = {}
        for number in range(repeats):
            progress(f"the whole grid of {len(grid)}, {number + 1} of {repeats}")
            for choice, _, gain in search.measure(grid, seconds):
                gains.setdefault(choice, []).append(gain)
    medians = {choice: median(values) for choice, values in gains.items()}
    top = max(medians, key=lambda choice: medians[choice])
    names = [f"{made[each.bundle].describe()} {each.settings.describe()}" for each in (best.choice, top)]
    figures = {"choices": len(grid), "seconds": round(taken, 1), "tuned": names[0], "best": names[1]}
    figures["ratio"] = round(medians[best.choice] / medians[top], 3)
    click.echo(json.dumps({"name": name, "for": goal, **figures, "machine": machine.describe()}, indent=1))


if __name__ == "__main__":
    main()
