"""Every planted fault in models of every kind, to see that parity misses none: `python -m tests.proof.planted`.

A bound that grows with what a model computes, and with what PyTorch itself is off by, must let no fault through, be the
activations in the thousands or in thousandths. `--instruction-sets` plants them under each of the instruction sets that
this processor's libraries can be told to do without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tests.instruction_sets import SETS, describe_processor
from tests.proof.bisect import test_culprit
from tests.proof.faults import Edit
from tests.proof.parity import test_check
from tests.proof.random_models import WEIGHTS, random_model
from tests.tiny import edit_graph, tiny_config
from txport.bundles.bundle import Bundle, seal
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.errors import ParityError
from txport.exporters.export import export_graphs
from txport.proof.parity.check import check

Fault = tuple[str, str, Edit]  # target, graph, what is done to it

FAULTS: dict[str, Fault] = {
    **{f"parity: {name}": ("portable", role, edit) for name, (role, edit, *_) in test_check.FAULTS.items()},
    **{f"bisect: {name}": fault[:3] for name, fault in test_culprit.FAULTS.items()},
}


class Models:
    """One model of each kind of weights, and a sound bundle of it for each target, made where they are first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Checkpoint, dict[str, Bundle]]] = {}

    def __getitem__(self, weights: str) -> tuple[Checkpoint, dict[str, Bundle]]:
        if weights not in self._made:
            place = self._folder / weights
            save_checkpoint(place / "model", random_model(tiny_config(), weights, seed=len(weights)))
            checkpoint = load_checkpoint(str(place / "model"))
            self._made[weights] = checkpoint, dict(self._export(checkpoint, place))
        return self._made[weights]

    @staticmethod
    def _export(checkpoint: Checkpoint, place: Path) -> Iterator[tuple[str, Bundle]]:
        for target in ("portable", "cpu"):
            folder = place / target
            folder.mkdir()
            yield target, seal(folder, export_graphs(checkpoint, folder, target=target))


def is_found(models: Models, weights: str, fault: str) -> bool:
    """Whether parity fails where a fault is planted into a sound bundle."""
    target, role, edit = FAULTS[fault]
    checkpoint, bundles = models[weights]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(bundles[target].path, Path(folder) / "bundle"))
        return not passes(edit_graph(copy, role, edit), checkpoint, searches=False)


def passes(bundle: Bundle, checkpoint: Checkpoint, *, searches: bool = True) -> bool:
    """Whether parity does."""
    try:
        return check(bundle, checkpoint, {"ort": "cpu"}, searches=searches).passed
    except ParityError:  # it does not run
        return False


@click.command(help=__doc__)
@click.option("--weights", type=click.Choice(list(WEIGHTS)), multiple=True, help="Of this kind.  [default: all]")
@click.option("--instruction-sets", "spread", is_flag=True, help="Under each instruction set.")
def main(weights: tuple[str, ...], spread: bool) -> None:
    """Print what was missed, and how many."""
    if spread:
        codes = [run_under(name, weights) for name in SETS]
        sys.exit(any(codes))
    click.echo(describe_processor())
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        for kind in weights or WEIGHTS:
            if alarms := [target for target, bundle in models[kind][1].items() if not passes(bundle, models[kind][0])]:
                raise click.ClickException(f"{kind}: {', '.join(alarms)} fails without a fault")
            lost = [fault for fault in FAULTS if not is_found(models, kind, fault)]
            click.echo(f"{kind}: {len(FAULTS) - len(lost)} of {len(FAULTS)} found" + "".join(f"\n  {f}" for f in lost))
            missed += len(lost)
    click.echo(f"{missed} planted faults missed")
    sys.exit(missed > 0)


def run_under(name: str, weights: Sequence[str]) -> int:
    """All of it in a process that does without some instruction sets; -> 0 if it ends well."""
    click.echo(f"instruction set: {name} {SETS[name]}")
    command = [sys.executable, "-m", "tests.proof.planted", *(f"--weights={kind}" for kind in weights)]
    return subprocess.run(command, env={**os.environ, **SETS[name]}, check=False).returncode


if __name__ == "__main__":
    main()
