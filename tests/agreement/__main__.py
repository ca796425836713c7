"""Do our graphs say what transformers says? `python -m tests.agreement` asks of every family, `... bart t5` of some.

A family is a `model_type`, or the name of one of its models. Each version of transformers saves small seeded folders
and generates from 50 inputs, greedily and with beams; the graphs of both targets do the same. Tokens must be the same,
and outputs of encoders within 1e-5 of the largest. A near-tie is an input whose other tokens transformers itself gives
if its log-probabilities are moved by at most 1e-5.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from tests.agreement.asked import INPUTS
from tests.agreement.cells import Cell, chosen, found_of, version_of

PYTHONS = (".venv-hf/bin/python", ".venv-hf4/bin/python")


@click.command(help=__doc__)
@click.argument("families", nargs=-1)
@click.option("--python", "pythons", multiple=True, default=PYTHONS, show_default=True,
              help="A Python that has a version of transformers.  [repeatable]")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), help="Models at once.  [default: one a core]")
def main(families: tuple[str, ...], pythons: tuple[str, ...], jobs: int) -> None:
    """Compare, print a table and what differs, and exit with 1 if anything does."""
    with tempfile.TemporaryDirectory(prefix="agreement-") as place:
        versions = [version_of(python, Path(place) / str(number)) for number, python in enumerate(pythons)]
        names = chosen(versions[0].models, families)
        cells = found_of(versions, names, jobs)
    print_table(cells)
    for cell in cells:
        for line in cell.lines():
            click.echo(line)
    sys.exit(any(cell.differences for cell in cells))


def print_table(cells: Sequence[Cell]) -> None:
    """A row for each type of model: the inputs that agree, of all of its models."""
    columns = list(dict.fromkeys((cell.version.name, cell.target) for cell in cells))
    kinds = sorted({cell.version.models[cell.model] for cell in cells})
    click.echo(f"| `model_type` | {' | '.join(f'{version} {target}' for version, target in columns)} |")
    click.echo("|---" * (1 + len(columns)) + "|")
    for kind in kinds:
        row = []
        for column in columns:
            own = [c for c in cells if (c.version.name, c.target) == column and c.version.models[c.model] == kind]
            ties = sum(len({each.number for each in cell.ties}) for cell in own)
            told = f"{sum(cell.agreeing for cell in own)} of {INPUTS * len(own)}"
            row.append(told + (f" ({ties} near-tie{'s' * (ties > 1)})" if ties else ""))
        click.echo(f"| {kind} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
