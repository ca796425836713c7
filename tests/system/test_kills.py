"""Writers that are killed or interrupted wherever they change the disk: nothing is lost, and nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.kills import Trial, Writer, interrupt_some, kill_some, trials
from txport.bundles.bundle import Bundle

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are killed in a process that is forked off")
SEED, COUNT = 0, 12  # a drawn part of all moments: `run_kills` takes as many as it is asked for


@pytest.fixture(scope="module")
def chosen(bundle: Bundle) -> Iterator[list[Trial]]:
    with trials(bundle.path) as found:
        yield found


def test_nothing_is_lost_where_a_writer_is_killed(chosen: list[Trial]) -> None:
    assert list(kill_some(chosen, SEED, COUNT)) == []


def test_nothing_is_lost_or_left_where_a_writer_is_interrupted(chosen: list[Trial]) -> None:
    assert list(interrupt_some(chosen, SEED, COUNT)) == []


def test_every_call_of_a_writer_is_counted(chosen: list[Trial]) -> None:
    calls = {trial.writer.name: trial.calls for trial in chosen}
    # Made, locked, opened, written twice, waited for, given an owner, a group and a mode, renamed, looked for again.
    assert calls["run --output over a file"] == 11
    assert calls["export --force"] > calls["export"] > 40


def write_carelessly(folder: Path) -> None:
    (folder / "out").write_text("new and long")


def replace_carelessly(folder: Path) -> None:
    (folder / "new").write_text("new")
    (folder / "new").replace(folder / "out")


@pytest.mark.parametrize(
    ("write", "wrong"),
    [(write_carelessly, "neither the old nor the new: ['out']"), (replace_carelessly, "neither the old nor the new")],
)
def test_a_careless_writer_is_found_out(write: object, wrong: str) -> None:
    def prepare(folder: Path) -> None:
        (folder / "out").write_text("old")

    trial = Trial(Writer("careless", write, lambda folder: None, prepare))  # type: ignore[arg-type]
    assert any((trial.kill(at, True) or "").startswith(wrong) for at in range(1, trial.calls + 1))
    assert any(trial.interrupt(at, 2) for at in range(1, trial.calls + 1))
