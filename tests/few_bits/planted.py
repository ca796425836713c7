"""Plants each fault of `faults` into exports in every target and precision, and counts what is found and named.

Proofs draw two cases alone here: what these find, all cases find.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import onnx
import pytest

from tests.few_bits.faults import FAULTS, SUBJECTS, Fault, Subject
from tests.models.architectures.owned import beside_the_others
from tests.proof.few import draw_few
from txport import runtimes
from txport.api import release
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.errors import ParityError
from txport.exporters import export as exporter
from txport.proof.bisect.culprit import Culprit
from txport.proof.proven import write
from txport.proof.reports.report import Broken
from txport.targets import TARGETS

DIFFERS = "differs from PyTorch"
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int4")


@dataclass(frozen=True)
class Plan:
    """A kind of bundle; with `rows`, int8 has other kernels."""

    target: str
    precision: str
    rows: int | None = None

    @property
    def words(self) -> str:
        """A description."""
        return f"{self.target} {self.precision}" + ("" if self.rows is None else f" --rows {self.rows}")

    @property
    def options(self) -> dict[str, Any]:
        """The options of an export."""
        return {"target": self.target, "precision": self.precision, "rows": self.rows}


PLANS = (*(Plan(target, each) for target, some in TARGETS.items() for each in some.precisions), Plan("cpu", "int8", 8))


@dataclass(frozen=True)
class Planted:
    """A fault in one model and one kind of bundle."""

    fault: str
    model: str
    plan: Plan

    @property
    def words(self) -> str:
        """A description."""
        return f"{self.fault}, {self.model}, {self.plan.words}"


@dataclass(frozen=True)
class Outcome:
    """What was found: by `export`, by `parity`, and the culprit of `--bisect`, which is in the right place or not."""

    by_export: bool
    by_parity: bool
    culprit: Culprit | None
    is_named: bool

    @property
    def is_found(self) -> bool:
        """Whether all three do what they must."""
        return self.by_export and self.by_parity and self.is_named

    @property
    def words(self) -> str:
        """A description of each of the three."""
        found = {"export": self.by_export, "parity": self.by_parity}
        culprit = "none" if self.culprit is None else self.culprit.describe()
        return ", ".join(f"{name} {'finds it' if yes else 'passes'}" for name, yes in found.items()) + f"; {culprit}"


def every(faults: Iterable[str] = FAULTS, plans: Iterable[Plan] = PLANS) -> Iterator[Planted]:
    """Yield each fault in each model and each kind of bundle that has it."""
    chosen = list(plans)
    for name in faults:
        fault = FAULTS[name]
        for model in fault.models:
            for plan in chosen:
                if not fault.quantised or TARGETS[plan.target].quantises(plan.precision):
                    yield Planted(name, model, plan)


def saved(folder: Path, models: Iterable[str] = SUBJECTS) -> dict[str, Path]:
    """Save the models as checkpoints, and return their folders."""
    for name in models:
        save_checkpoint(folder / name, SUBJECTS[name].build())
    return {name: folder / name for name in models}


@contextmanager
def exporter_with(fault: Fault, subject: Subject) -> Iterator[None]:
    """Let every export in this context have a fault."""
    export_graphs = exporter.export_graphs

    def faulty(checkpoint: Checkpoint, folder: Path, **how: Any) -> Manifest:
        manifest = export_graphs(fault.traced(checkpoint, subject), folder, **how)
        edits = {} if fault.graphs is None else fault.graphs(manifest, subject.layer)
        for role, edit in edits.items():
            file = folder / manifest.graphs[role].file
            model = onnx.load(str(file))
            edit(model)
            onnx.save(model, str(file))
        return manifest

    with patch.object(exporter, "export_graphs", faulty):
        yield


def examine_all() -> dict[Planted, Outcome]:
    """Examine every fault, after the same exports without a fault; print each outcome."""
    outcomes: dict[Planted, Outcome] = {}
    with beside_the_others(), tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        draw_few(patched)
        checkpoints = saved(Path(folder, "models"))
        for number, (model, plan) in enumerate(dict.fromkeys((each.model, each.plan) for each in every())):
            if not exports(checkpoints[model], Path(folder, str(number)), plan):
                raise click.ClickException(f"{model}, {plan.words}: the export fails without a fault")
        for planted in every():
            outcomes[planted] = examine(planted, checkpoints[planted.model])
            click.echo(f"{planted.words}: {outcomes[planted].words}", err=True)
    return outcomes


def examine(planted: Planted, checkpoint: Path) -> Outcome:
    """Export a checkpoint with a fault, compare the bundle that `export` refuses, and bisect it."""
    fault = FAULTS[planted.fault]
    subject = SUBJECTS[planted.model]
    with tempfile.TemporaryDirectory() as folder, exporter_with(fault, subject):
        by_export = not exports(checkpoint, Path(folder, "out"), planted.plan)
        Path(folder, "bundle").mkdir()
        bundle = write(load_checkpoint(str(checkpoint)), Path(folder, "bundle"), **planted.plan.options)
        providers = dict([runtimes.home(planted.plan.target)])
        report = release.compare(bundle, checkpoint, providers, with_culprit=True)
    by_parity = not (isinstance(report, Broken) or report.passed)  # a graph that does not run has another fault
    return Outcome(by_export, by_parity, report.culprit, fault.is_named(report.culprit, subject))


def exports(checkpoint: Path, out: Path, plan: Plan) -> bool:
    """Return whether an export passes; raise `ParityError` if it fails for another reason than a difference."""
    try:
        release.export(checkpoint, out, **plan.options)
    except ParityError as error:
        if DIFFERS not in str(error):
            raise
        return False
    return True


def lines_of(outcomes: Mapping[Planted, Outcome]) -> Iterator[str]:
    """Yield the table of the faults by precision."""
    yield "| fault | " + " | ".join(PRECISIONS) + " | in | named as |"
    yield "|---" * (len(PRECISIONS) + 3) + "|"
    for name in dict.fromkeys(each.fault for each in outcomes):
        own = {planted: outcome for planted, outcome in outcomes.items() if planted.fault == name}
        cells = [cell([found for each, found in own.items() if each.plan.precision == some]) for some in PRECISIONS]
        models = dict.fromkeys(each.model for each in own)
        yield f"| {name} | {' | '.join(cells)} | {', '.join(models)} | {described(FAULTS[name])} |"


def described(fault: Fault) -> str:
    """Return the part that `--bisect` names, and the kind of fault."""
    return f"{fault.part.strip(', ')} ({fault.kind})"


def cell(outcomes: list[Outcome]) -> str:
    """Return how many of the faults are found by all, or by each."""
    if all(each.is_found for each in outcomes):
        return f"{len(outcomes)} of {len(outcomes)}" if outcomes else ""
    counts = {
        "export": sum(each.by_export for each in outcomes),
        "parity": sum(each.by_parity for each in outcomes),
        "named": sum(each.is_named for each in outcomes),
    }
    return ", ".join(f"{name} {count}" for name, count in counts.items()) + f" of {len(outcomes)}"
