"""No planted fault is missed, be activations in the thousands or in thousandths; the command plants them in more."""

from __future__ import annotations

import pytest
import torch

from tests.proof.bisect import test_culprit
from tests.proof.parity import test_check
from tests.proof.planted import Models, is_found, passes
from txport.proof.parity import cases, check
from txport.proof.parity.exact import Exact
from txport.proof.parity.measures import WEIGHTS

EXTREMES = ("large", "small")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("weights", EXTREMES)
def test_without_a_fault_they_pass(weights: str, models: Models) -> None:
    checkpoint, bundles = models[weights]
    assert all(passes(bundle, checkpoint) for bundle in bundles.values())
    assert_extreme(Exact.of(checkpoint.model), weights)


@torch.inference_mode()
def assert_extreme(exact: Exact, weights: str) -> None:
    """Keys in the thousands, or in thousandths."""
    memory = exact.model.encode(torch.tensor([[4, 5, 6, 7, 2]]), torch.tensor([5]))
    size = float(exact.model.decoder[0].cross_attention.key(memory.states).abs().max())
    assert size > 1000 if weights == "large" else size < 0.02


# Weights and epsilons are themselves held against the checkpoint's, whatever is computed with them.
IN_VALUES = [f"parity: {name}" for name, fault in test_check.FAULTS.items() if fault[3] != {WEIGHTS}]
IN_VALUES += [f"bisect: {name}" for name, fault in test_culprit.FAULTS.items() if fault[4] not in ("weight", "epsilon")]


@pytest.mark.parametrize(("fault", "weights"), [(fault, EXTREMES[at % 2]) for at, fault in enumerate(IN_VALUES[::2])])
def test_a_fault_is_found_by_the_cases_of_a_large_model(
    fault: str, weights: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so by those of a small one, which are the same and more."""
    monkeypatch.setattr(check, "LARGE", 0)
    assert is_found(models, weights, fault)


def test_what_is_left_out_for_a_large_model_is_in_its_report_and_manifest(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, bundles = models["plain"]
    assert check.check(bundles["cpu"], checkpoint, {"ort": "cpu"}).to_dict()["left_out"] == []
    monkeypatch.setattr(check, "LARGE", 0)
    monkeypatch.setattr(cases, "BRIEF", 90)
    report = check.check(bundles["cpu"], checkpoint, {"ort": "cpu"})
    left_out = [
        "search beyond 12 tokens, and in the cases length 1, padded rows, many rows, longer than traced, longest",
        "whole targets in the cases many rows, longer than traced",
    ]
    assert report.to_dict()["left_out"] == report.summary()["left_out"] == left_out
    assert {each.case for each in report.tokens} == {"one row", "every row padded"}
