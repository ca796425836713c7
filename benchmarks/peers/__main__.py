"""Measure txport's cpu bundles beside other engines; print the table.

    python -m benchmarks.peers [--only SUBSTRING] [--folder PATH] [--update] [--rounds N] [--quick]

The peers live in environments of their own, which `make peers` makes; OpenVINO, a runtime of txport's, in this one. A
line whose environment is missing is passed over, and named. Exits 1 if a required ratio is not reached or a line could
not be measured, 3 if all lines are passed over.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.peers import candidates, duel, report
from benchmarks.peers.duel import Place
from benchmarks.peers.engines.hf_folder import FOLDER
from benchmarks.peers.environments import DEFAULTS, PEERS, environment_of, pythons_of
from benchmarks.peers.lines import BASE, LENGTH, LINES, TINY, AbsentError, Line, quick, with_folder
from txport.checkpoints.folder import PRESET
from txport.cli.guard import run_guarded
from txport.errors import TxportError, UnavailableError, UnsupportedError
from txport.models.architectures.transformer import PRESETS
from txport.system import machine
from txport.system.cores import cores as usable_cores

RESULTS = Path("benchmarks/results/peers-cpu.json")
TABLE = Path("docs/peers.md")
QUICK_ROUNDS = 2


def progress(message: str) -> None:
    """Print progress with the time to stderr, so that a log shows how long each step takes."""
    click.echo(f"{datetime.datetime.now(tz=datetime.UTC):%H:%M:%S} {message}", err=True)


def chosen(only: str | None, every: Sequence[Line] = LINES) -> list[Line]:
    """Return the lines with `only` in their title, ignoring case; raise `UnsupportedError` if there are none."""
    lines = [line for line in every if only is None or only.lower() in line.title.lower()]
    if not lines:
        titles = "; ".join(line.title for line in every)
        raise UnsupportedError(f"no line has {only!r} in its title; there are: {titles}")
    return lines


def possible(lines: Sequence[Line], place: Place) -> list[Line]:
    """Return the lines whose environments exist, and name the others; raise `UnavailableError` if none remains."""
    kept = []
    for line in lines:
        engines = {each.engine for each in candidates.theirs(line, place.cores)} - set(candidates.OWN)
        needed = {environment_of(engine) for engine in engines}
        needed |= {PEERS} if line.task.checkpoint.startswith(FOLDER) else set()
        missing = [str(place.pythons[name]) for name in sorted(needed) if not place.pythons[name].exists()]
        if missing:
            progress(f"{line.title} is passed over: there is no {' and no '.join(missing)}")
        else:
            kept.append(line)
    if not kept:
        raise UnavailableError("every line needs an environment that is missing; `make peers` makes them")
    return kept


def measure(line: Line, place: Place) -> dict[str, Any]:
    """Return the record of a line; its "skipped" or "failed" is the reason if it could not be measured."""
    today = f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}"
    start = {**duel.describe(line), "date": today, "machine": machine.describe(), "rounds": place.rounds}
    try:
        return {**start, **duel.run(line, place)}
    except AbsentError as error:
        return {**start, "skipped": str(error)}
    except TxportError as error:
        return {**start, "failed": str(error)}


def earlier(path: Path) -> list[dict[str, Any]]:
    """Return the records of an earlier run; [] if there is no file."""
    if not path.exists():
        return []
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["lines"]
    return records


def joined(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both lists in the order of `LINES`; old ones of no line are dropped.

    A new record replaces the one of the same line on the same kind of machine, unless it could not be measured.
    """
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for record in (*old, *new):
        of_line = found.setdefault((record["name"], record["against"]), {})
        machine = report.in_words(record["machine"])
        of_line[machine] = of_line.get(machine, record) if record.keys() & {"failed", "skipped"} else record
    order = [(line.name, line.against) for line in LINES] + [(record["name"], record["against"]) for record in new]
    return [record for key in dict.fromkeys(order) for record in found.get(key, {}).values()]


def result_of(records: Sequence[dict[str, Any]], place: Place, checkpoint: str) -> dict[str, Any]:
    """Return the content of the JSON file: versions, protocol and records."""
    versions: dict[str, str] = {}
    for record in records:
        for name, numbers in record.get("versions", {}).items():
            versions |= {f"{package} ({name})" if package == "python" else package: n for package, n in numbers.items()}
    return {
        "versions": versions,
        "protocol": {
            "checkpoint": checkpoint,
            "vocabulary": PRESETS[checkpoint.removeprefix(PRESET)].target_vocab_size,
            "source": LENGTH,
            "tokens": LENGTH,
            "cores": place.cores,
            "trials": duel.TRIALS,
        },
        "lines": list(records),
    }


def write(path: Path, text: str) -> None:
    """Write a file; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@click.command(help=__doc__)
@click.option("--only", help="Lines with this in their title: 'batch 1,', 'openvino', 'beam', 'folder'.")
@click.option(
    "--update",
    is_flag=True,
    help="The lines that are run take the place of those of an earlier run; the others stay.",
)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--quick", "is_quick", is_flag=True, help="preset:tiny and few rounds, to try it out; nothing is judged.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help=f"JSON.  [default: {RESULTS}, with --update or for all lines]",
)
@click.option("--table", type=click.Path(path_type=Path), help=f"Markdown.  [default: {TABLE}, likewise]")
@click.option(
    "--peers-python",
    multiple=True,
    metavar="[ENVIRONMENT=]PATH",
    help=f"A Python with the engines of {', '.join(DEFAULTS)}.  [default: those of `make peers`]",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A Llama-like folder, or one of a BERT, as transformers saves them, in place of random weights.",
)
@click.option("--words", type=click.Path(file_okay=False, path_type=Path), help="Folder of the g2p dictionary.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default="build/peers",
    show_default=True,
    help="Folder of what is converted, which later runs find there: 20 GB for all lines, half of it NLLB's.",
)
@click.option("--cores", type=click.IntRange(1), help="Of both sides.  [default: all that this process may use]")
def peers(
    only: str | None,
    update: bool,
    rounds: int,
    is_quick: bool,
    results: Path | None,
    table: Path | None,
    peers_python: tuple[str, ...],
    folder: Path | None,
    words: Path | None,
    work: Path,
    cores: int | None,
) -> None:
    """Measure, write, judge."""
    lines = chosen(only, with_folder(LINES, folder) if folder else LINES)
    lines = [quick(line) for line in lines] if is_quick else lines
    place = Place(
        work=work,
        pythons=pythons_of(peers_python),
        words=words,
        cores=cores or usable_cores(),
        rounds=min(rounds, QUICK_ROUNDS) if is_quick else rounds,
        progress=progress,
    )
    lines = possible(lines, place)
    whole = (only is None or update) and not (is_quick or folder)
    results, table = (given or (usual if whole else None) for given, usual in ((results, RESULTS), (table, TABLE)))
    old = earlier(results) if update and results else []
    records: list[dict[str, Any]] = []
    for line in lines:
        records.append(measure(line, place))
        progress(f"  {report.sentence(records[-1])}")
        result = result_of(joined(old, records), place, TINY if is_quick else BASE)
        if results:  # after each line, since all of them take hours
            write(results, json.dumps(result, indent=2) + "\n")
        if table:
            write(table, report.markdown(result))
    click.echo(report.text(records))
    if is_quick:
        click.echo("--quick measures a toy, or few rounds: nothing is judged.")
    elif any(report.falls_short(record) for record in records):
        sys.exit(1)


if __name__ == "__main__":
    run_guarded(peers)
