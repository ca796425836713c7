"""Hostile input: what is meant to break txport, run through every command: `python -m tests.hostile --seed 1`.

Each case states which exit codes are right; each command must end with one of them, say one line, write nothing
outside OUT, stay below a bound of memory and time, and print no control characters, no HTML and no NaN. The files are
made here, from tiny seeded models. `--only` repeats cases by their names, or all whose names begin so.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tests.hostile.case import Case

SHOWN = 3  # failures of one cause


@dataclass(frozen=True)
class Plan:
    """What is tried, and how."""

    seed: int
    mutations: int
    every: int
    kills: int
    only: tuple[str, ...]
    jobs: int | None
    limit: float
    planted: bool
    show_all: bool
    report: Path | None


@click.command(help=__doc__)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws the mutations.")
@click.option("--mutations", type=click.IntRange(0), default=18_000, show_default=True, help="How many to draw.")
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="Take every so manieth case.")
@click.option("--kills", type=click.IntRange(0), default=200, show_default=True, help="Kills of the writers.")
@click.option("--only", multiple=True, help="Names of cases, or what they begin with.  [repeatable]")
@click.option("--jobs", type=click.IntRange(1), help="Cases at once.  [default: one for each core]")
@click.option("--limit", type=float, default=60.0, show_default=True, help="Seconds that a command may take.")
@click.option("--planted", is_flag=True, help="Try defects that must be found, instead.")
@click.option("--report", type=click.Path(path_type=Path), help="Write a line of JSON for each failure as it happens.")
@click.option("--all", "show_all", is_flag=True, help="List every failure, not a few of each cause.")
def main(**options: Any) -> None:
    """Run all cases, print what was tried and what failed, and exit with 1 if anything did."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        is_good = attack(Path(scratch), Plan(**options))
    sys.exit(not is_good)


def attack(scratch: Path, plan: Plan) -> bool:
    """Whether every case went well."""
    home = scratch / "home"
    home.mkdir()
    # Before ONNX Runtime is imported: what it writes is judged too, and a process that forks must have no threads.
    os.environ.update({"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "ORT_DISABLE_TELEMETRY": "1"})
    from tests.hostile import fork, report, run
    from tests.hostile.sound import Sound, make_sound

    if plan.planted:  # what stands in place of the command line imports nothing
        sound = Sound(scratch / "sound")
    else:
        fork.import_all()
        sound = make_sound(scratch / "sound")
    names, find = _cases(plan)
    jobs = plan.jobs or len(os.sched_getaffinity(0))
    begun = time.monotonic()
    outcomes = []
    for outcome in run.run_cases(names, find, sound, scratch, jobs=jobs, limit=plan.limit):
        outcomes.append(outcome)
        if plan.report:
            report.log(plan.report, outcome)
        report.progress(len(outcomes), len(names), sum(bool(each.breaches) for each in outcomes))
    is_good = report.show(outcomes, plan.seed, time.monotonic() - begun, None if plan.show_all else SHOWN)
    lost = report.kill(plan.seed, 0 if plan.only or plan.planted else plan.kills)
    return is_good and not lost


def _cases(plan: Plan) -> tuple[list[str], Callable[[str], Case]]:
    """The names of those that are asked for, and how to make one."""
    if plan.planted:
        from tests.hostile import planted
        from txport import cli

        cli.main = planted.main
        known = {case.name: case for case in planted.cases()}
        return list(known), lambda name: known[name]
    from tests.hostile import corpus, mutate

    known = corpus.cases()
    names = [*list(known)[:: plan.every], *mutate.names(plan.mutations)]
    chosen = [name for name in names if not plan.only or name.startswith(plan.only)]
    return chosen, lambda name: known[name] if name in known else mutate.mutation(name, plan.seed)


if __name__ == "__main__":
    main()
