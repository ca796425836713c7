"""Planted faults are found by `export` and `parity` and named by `--bisect`, each in one model and one kind of bundle.

`python -m tests.few_bits --faults` takes all of them, as these tests do with `TXPORT_EVERY_PAIR=1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.covering import EVERY
from tests.few_bits.faults import FAULTS, SUBJECTS
from tests.few_bits.planted import PLANS, PRECISIONS, Outcome, Plan, Planted, every, examine, exports, lines_of, saved
from tests.models.architectures.owned import beside_the_others
from tests.proof.few import draw_few
from txport.proof.bisect import culprit
from txport.targets import TARGETS

STRIDE = 4  # of the places that a fault has, from one fault to the next


def in_turn() -> list[Planted]:
    """Each fault in one of its models and kinds of bundles, which take turns."""
    if EVERY:
        return list(every())
    places = [list(every([name])) for name in FAULTS]
    return [own[STRIDE * number % len(own)] for number, own in enumerate(places)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with beside_the_others():
        yield saved(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_few(monkeypatch)


def test_every_target_precision_and_model_is_among_those_that_are_tested() -> None:
    chosen = in_turn()
    assert {each.plan.target for each in chosen} == {*TARGETS}
    assert {each.plan.precision for each in chosen} == {*PRECISIONS}
    assert {each.model for each in chosen} == {*SUBJECTS}


@pytest.mark.parametrize("planted", in_turn(), ids=lambda each: each.words)
def test_a_fault_is_found_and_named(
    planted: Planted, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(culprit, "origin", lambda *_: "")  # exporting again has tests of its own
    outcome = examine(planted, checkpoints[planted.model])
    assert outcome.is_found, outcome.words


@pytest.mark.parametrize(("model", "plan"), list(zip(SUBJECTS, PLANS[::3], strict=False)))
def test_without_a_fault_an_export_passes(model: str, plan: Plan, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    assert exports(checkpoints[model], tmp_path / "out", plan)


def test_the_table_tells_what_is_missed() -> None:
    plans = [Plan("cpu", "int8"), Plan("cpu", "int8", 8), Plan("cpu", "fp32")]
    found, missed = Outcome(True, True, None, True), Outcome(True, False, None, True)
    outcomes = {Planted("an epsilon", "t5", plan): found for plan in plans}
    assert list(lines_of(outcomes))[2].startswith("| an epsilon | 1 of 1 |  |  | 2 of 2 |  | t5 |")
    outcomes[Planted("an epsilon", "t5", plans[1])] = missed
    assert "| export 2, parity 1, named 2 of 2 |" in list(lines_of(outcomes))[2]
