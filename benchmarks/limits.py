"""How near the lines of the peers' benchmark come to the limits of this machine: `python -m benchmarks.limits`.

Each model is exported for the cpu target, in the form that it has without `--rows`. `txport bench` measures the phase
of a line, and what memory and products allow it (docs/bench.md, "Limits"). `python -m docs.limits_picture` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.peers.candidates import OURS, VECTORS, Candidate
from benchmarks.peers.duel import Place
from benchmarks.peers.engines import Model
from benchmarks.peers.environments import pythons_of
from benchmarks.peers.lines import LINES, WHISPER, Line
from txport.api.locate import open_bundle
from txport.bench import measure as bench
from txport.bench.plan import LIMITS, PHASES
from txport.bench.sections import reached
from txport.system import machine
from txport.system.progress import logged

RESULTS = Path(__file__).with_name("results") / "limits-cpu.json"
USUAL = bench.Plan()
LARGE = "nllb"  # takes minutes to export


def lines(only: str) -> Iterator[Line]:
    """Yield a line of each name: one batch at a time, its time, not its memory, and no model that is too large."""
    found = {each.name: each for each in LINES if each.task.batch and each.unit != "MB" and LARGE not in each.name}
    yield from (each for name, each in found.items() if only.lower() in name.lower())


def phase_of(line: Line) -> str:
    """Return the phase of `txport bench` that a line measures, for the most part."""
    if line.task.encodes or line.unit == "windows/s":
        return "encode"
    return "prefill" if line.unit == "prompt tokens/s" else "further token"


def plan_of(line: Line, rounds: int) -> bench.Plan:
    """Return the plan for a line's size; encoders have no targets, and speech has one length."""
    task = line.task
    return bench.Plan(
        batch=(task.batch or 1,),
        beams=(task.beams,),
        source=USUAL.source if WHISPER in line.name else (task.source,),
        tokens=USUAL.tokens if task.encodes or task.tokens == 1 else (task.tokens,),
        rounds=rounds,
        starts=1,
        scenario=(PHASES, LIMITS),
    )


def measure(line: Line, place: Place, rounds: int) -> dict[str, Any]:
    """Return the phase of a line: its milliseconds, its limit, what sets it, and the share that is reached."""
    task = place.located(line).task
    model = Model(checkpoint=task.checkpoint, precision=line.precisions[0])
    bundle = open_bundle(place.prepare(Candidate(engine=VECTORS if task.encodes else OURS, model=model)))
    candidates, plan = bench.candidates([(line.name, bundle)], ("ort",)), plan_of(line, rounds)
    source = bench.draw_source(bundle.manifest.facts, bench.Protocol(source=plan.source[0]))
    report = bench.run(candidates, plan, bench.Inputs(list(source), "one random input"), place.progress)
    (found,) = (each for each in reached(report) if each["phase"] == phase_of(line))
    return {"name": line.name, **{name: found[name] for name in ("phase", "ms", "limit", "by", "share")}}


@click.command(help=__doc__)
@click.option("--only", default="", help="Lines with this in their name; they take the place of earlier ones.")
@click.option("--rounds", type=click.IntRange(3), default=9, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default="build/peers", show_default=True)
def main(only: str, rounds: int, work: Path) -> None:
    """Measure, and write after each line."""
    place = Place(work=work, pythons=pythons_of(()), progress=logged)
    found = {each["name"]: each for each in json.loads(RESULTS.read_text())["lines"]} if RESULTS.exists() else {}
    for line in lines(only):
        found[line.name] = measure(line, place, rounds)
        order = [found[each.name] for each in lines("") if each.name in found]
        RESULTS.write_text(json.dumps({"machine": machine.describe(), "lines": order}, indent=2) + "\n", "utf-8")
        click.echo(found[line.name])


if __name__ == "__main__":
    main()
