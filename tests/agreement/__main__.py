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
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import onnxruntime

from tests.agreement.asked import INPUTS
from tests.agreement.cells import Cell, chosen, found_of, version_in
from tests.instruction_sets import describe_processor
from tests.pages import split_page, write_table
from txport.system.packages import version_of

PAGE = Path(__file__).parents[2] / "docs" / "hugging-face.md"
TABLE = "agreement"
PYTHONS = (".venv-hf/bin/python", ".venv-hf4/bin/python")


@click.command(help=__doc__)
@click.argument("families", nargs=-1)
@click.option("--python", "pythons", multiple=True, default=PYTHONS, show_default=True,
              help="A Python that has a version of transformers.  [repeatable]")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), help="Models at once.  [default: one a core]")
@click.option("--write-docs", is_flag=True, help="Replace the table of docs/hugging-face.md by this one.")
def main(families: tuple[str, ...], pythons: tuple[str, ...], jobs: int, write_docs: bool) -> None:
    """Compare, print a table and what differs, and exit with 1 if anything does."""
    if write_docs:
        split_page(PAGE, TABLE)
    with tempfile.TemporaryDirectory(prefix="agreement-") as place:
        versions = [version_in(python, Path(place) / str(number)) for number, python in enumerate(pythons)]
        names = chosen(versions[0].models, families)
        cells = found_of(versions, names, jobs)
    lines = [describe(), "", *table(cells)]
    click.echo("\n".join(lines))
    for cell in cells:
        for line in cell.lines():
            click.echo(line)
    if write_docs:
        write_table(PAGE, TABLE, lines)
    sys.exit(any(cell.differences for cell in cells))


def describe() -> str:
    """The packages and the machine that the graphs ran on."""
    tools = f"ONNX Runtime {onnxruntime.__version__}, PyTorch {version_of('torch')}"
    return f"{tools}, {describe_processor()}, {datetime.now(UTC):%Y-%m-%d}"


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """A row for each type of model: the inputs that agree, of all of its models."""
    columns = list(dict.fromkeys((cell.version.name, cell.target) for cell in cells))
    yield f"| `model_type` | models | {' | '.join(f'{version} {target}' for version, target in columns)} |"
    yield "|---" * (2 + len(columns)) + "|"
    for kind in sorted({cell.kind for cell in cells}):
        rows = [[c for c in cells if (c.version.name, c.target, c.kind) == (*column, kind)] for column in columns]
        yield f"| `{kind}` | {max(map(len, rows))} | {' | '.join(map(agreeing, rows))} |"


def agreeing(cells: Sequence[Cell]) -> str:
    """How many inputs agree, and how many of them are near-ties; nothing for a version without such models."""
    if not cells:
        return "-"
    told = f"{sum(cell.agreeing for cell in cells)} of {INPUTS * len(cells)}"
    ties = sum(len({each.number for each in cell.ties}) for cell in cells)
    return told + (f" ({ties} near-tie{'s' * (ties > 1)})" if ties else "")


if __name__ == "__main__":
    main()
