"""What was tried, and what failed, grouped by cause, with a line to repeat each."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import click

from tests.hostile.judge import KINDS
from tests.hostile.run import Outcome

KILLS = "tests.system.kills"


def progress(done: int, total: int, failed: int) -> None:
    """A line that changes, for people; for a log, a line now and then."""
    if sys.stderr.isatty() or done % 200 == 0:
        click.echo(f"\r{done} of {total} cases, {failed} failed", err=True, nl=not sys.stderr.isatty())


def log(path: Path, outcome: Outcome) -> None:
    """A line for each broken rule, at the end of a file."""
    with path.open("a", encoding="utf-8") as stream:
        for line, (kind, what) in outcome.breaches:
            print(json.dumps({"case": outcome.name, "kind": kind, "what": what, "command": line}), file=stream)


def kill(seed: int, count: int) -> int:
    """Kill the writers at moments drawn by seed; -> how many bundles were lost."""
    if not count:
        return 0
    if not _has_kills():
        click.echo("kills: none, tests/system/kills.py is not here")
        return 0
    kills, lost = importlib.import_module(KILLS).run_kills(seed, count)
    click.echo(f"kills: {kills}, lost bundles: {lost}")
    return int(lost)


def _has_kills() -> bool:
    return importlib.util.find_spec(KILLS) is not None


def show(outcomes: Sequence[Outcome], seed: int, seconds: float, most: int | None) -> bool:
    """Print counts and failures; -> whether there are none."""
    broken = Counter(breach.kind for outcome in outcomes for _, breach in outcome.breaches)
    failed = [outcome for outcome in outcomes if outcome.breaches]
    click.echo(f"{'kind':<28}{'cases':>8}{'commands':>10}{'failed':>8}{'MB':>8}{'seconds':>9}")
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        parts[outcome.name.partition("/")[0]].append(outcome)
    for kind, those in sorted(parts.items()):
        sums = (len(those), sum(each.commands for each in those), sum(bool(each.breaches) for each in those))
        peak = max(each.peak for each in those) / 1e6
        spent = sum(each.seconds for each in those)
        click.echo("{:<28}{:>8}{:>10}{:>8}{:>8.0f}{:>9.0f}".format(kind, *sums, peak, spent))
    total = len(outcomes)
    commands = sum(each.commands for each in outcomes)
    click.echo(f"{total} cases, {commands} commands in {seconds:.0f} s, {len(failed)} cases failed")
    click.echo(", ".join(f"{kind}: {broken[kind]}" for kind in KINDS))
    _list(failed, seed, most)
    return not failed


def _list(failed: Sequence[Outcome], seed: int, most: int | None) -> None:
    causes: dict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
    for outcome in failed:
        for line, breach in outcome.breaches:
            command = " ".join(line.split()[1:2])
            is_one = breach.kind == "traceback"  # whatever the command
            cause = (breach.kind, _cause(breach.what) if is_one else f"{command}: {_cause(breach.what)}")
            causes[cause].append((outcome.name, breach.what, line))
    for (kind, _), found in sorted(causes.items(), key=lambda each: (each[0][0], -len(each[1]))):
        click.echo(f"\n{kind}, {len(found)} times, in {len({name for name, _, _ in found})} cases")
        for name, what, line in found[:most]:
            click.echo(f"  {name}: {what!a}\n    {line[:300]!a}")
            click.echo(f"    python -m tests.hostile --seed {seed} --only {name!a}")


def _cause(what: str) -> str:
    """A breach without what differs from case to case: quotes, paths and numbers."""
    short = re.sub(r"'[^']*'|\"[^\"]*\"|\S*/\S*|(?<!:)\b[-+\d.e]*\d", "*", what)
    return short[:60] + short[-20:]
