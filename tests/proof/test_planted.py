"""No planted fault is missed, be activations in the thousands or in thousandths; the command plants them in more."""

from __future__ import annotations

import pytest
import torch

from tests.proof.planted import FAULTS, Models, is_found, passes
from txport.proof.parity import cases, check
from txport.proof.parity.exact import Exact

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


@pytest.mark.parametrize(
    ("fault", "weights"), [(fault, EXTREMES[at % 4 // 2]) for at, fault in enumerate(FAULTS) if at % 2 == 0]
)
def test_a_fault_is_found(fault: str, weights: str, models: Models) -> None:
    assert is_found(models, weights, fault)


@pytest.mark.parametrize("fault", [fault for at, fault in enumerate(FAULTS) if "weight" not in fault][::7])
def test_a_fault_is_found_by_the_cases_of_a_large_model(
    fault: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LARGE", 0)
    assert is_found(models, "plain", fault)


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
