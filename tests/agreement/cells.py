"""The models of versions of transformers, saved and asked there, and compared with the graphs of both targets."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from tests.agreement.asked import INPUTS
from tests.agreement.compared import Difference, compare
from txport.checkpoints.family import all_families

ROOT = Path(__file__).parents[2]
TARGETS = ("portable", "cpu")


@dataclass(frozen=True)
class Version:
    """A version of transformers: its models by name with their types, the Python that has it, a folder for it."""

    name: str
    models: dict[str, str]
    python: str
    folder: Path

    def ask(self, *arguments: str, given: Any = None) -> str:
        return ask(self.python, str(self.folder), *arguments, given=given)


@dataclass(frozen=True)
class Cell:
    """What was found of one model of a version through the graphs of a target."""

    version: Version
    model: str
    target: str
    differences: tuple[Difference, ...] = ()
    ties: tuple[Difference, ...] = ()

    def compared(self) -> Cell:
        return replace(self, differences=tuple(compare(self.version.folder / self.model, self.target)))

    @property
    def kind(self) -> str:
        """The `model_type`."""
        return self.version.models[self.model]

    @property
    def agreeing(self) -> int:
        return INPUTS - len({each.number for each in self.differences})

    def lines(self) -> list[str]:
        where = f"{self.model}, transformers {self.version.name}, {self.target}"
        told = [*((each, "") for each in self.differences), *((each, " (near-tie)") for each in self.ties)]
        return [f"{where}: {each.search} of input {each.number}: {each.text}{tie}" for each, tie in told]


def ask(python: str, folder: str, *arguments: str, given: Any = None) -> str:
    """What `tests.agreement.original` prints in a Python that has transformers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", "tests.agreement.original", folder, *arguments]
    done = subprocess.run(
        command, input=json.dumps(given), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise click.ClickException(f"{python} fails: {done.stderr}")
    return done.stdout


def version_in(python: str, folder: Path) -> Version:
    told = json.loads(ask(python, str(folder), "--models"))
    return Version(told["version"], told["models"], python, folder)


def chosen(models: dict[str, str], families: Sequence[str]) -> list[str]:
    """The names of models of these types, or by these names; of all types that a folder may have, if none is given."""
    known = {*models, *models.values()}
    if missing := [each for each in families or all_families() if each not in known]:
        raise click.ClickException(f"there is no model of {', '.join(missing)}")
    return [name for name, kind in models.items() if not families or name in families or kind in families]


def found_of(versions: Sequence[Version], names: Sequence[str], jobs: int) -> list[Cell]:
    """One cell for each model that a version has, with each target."""
    parts = max(1, jobs // len(versions))
    own = {version.name: [name for name in names if name in version.models] for version in versions}
    with ThreadPoolExecutor(jobs) as pool:
        asked = [(version, own[version.name][part::parts]) for version in versions for part in range(parts)]
        list(pool.map(lambda each: each[1] and each[0].ask(*each[1]), asked))
    cells = [Cell(version, *each) for version in versions for each in product(own[version.name], TARGETS)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        cells = list(processes.map(Cell.compared, cells))
    return [cell for version in versions for cell in without_ties(version, [c for c in cells if c.version == version])]


def without_ties(version: Version, cells: Sequence[Cell]) -> list[Cell]:
    """Tell near-ties from other differences."""
    searched = [(cell, each) for cell in cells for each in cell.differences if each.ours]
    answers = json.loads(version.ask("--near", given=[(cell.model, each.search, each.number)
                                                      for cell, each in searched]))  # fmt: skip
    ties = [
        (cell, each) for (cell, each), rows in zip(searched, answers, strict=True)
        if any(tuple(row[: len(each.ours)]) == each.ours for row in rows)
    ]  # fmt: skip
    split = []
    for cell in cells:
        own = tuple(each for of, each in ties if of is cell)
        rest = tuple(each for each in cell.differences if each not in own)
        split.append(replace(cell, differences=rest, ties=own))
    return split
