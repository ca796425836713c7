"""No kind of fault is missed, be activations in the thousands or in thousandths; the command plants all in more."""

from __future__ import annotations

import pytest
import torch

from tests.proof.bisect import test_culprit
from tests.proof.planted import Models, is_found, passes
from txport.proof.parity import cases, check
from txport.proof.parity.exact import Exact

EXTREMES = ("large", "small")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("weights", EXTREMES)
def test_without_a_fault_they_pass(weights: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, bundles = models[weights]
    assert all(passes(bundle, checkpoint) for bundle in bundles.values())
    monkeypatch.setattr(check, "LARGE", 0)
    assert all(passes(bundle, checkpoint) for bundle in bundles.values())
    assert_extreme(Exact.of(checkpoint.model), weights)


@torch.inference_mode()
def assert_extreme(exact: Exact, weights: str) -> None:
    """Keys in the thousands, or in thousandths."""
    memory = exact.model.encode(torch.tensor([[4, 5, 6, 7, 2]]), torch.tensor([5]))
    size = float(exact.model.decoder[0].cross_attention.key(memory.states).abs().max())
    assert size > 1000 if weights == "large" else size < 0.02


PLANTED = ["parity: positions start anew in every call"]  # the others of parity are among those of bisect
PLANTED += [f"bisect: {name}" for name, fault in test_culprit.FAULTS.items() if fault[4] not in ("weight", "epsilon")]
# Weights and epsilons are held against the checkpoint's bit for bit, whatever is computed with them: one of each tells.
PLANTED += ["bisect: last bit of a weight", "bisect: epsilon, encoder 1"]


@pytest.mark.parametrize(("fault", "weights"), [(fault, EXTREMES[at % 2]) for at, fault in enumerate(PLANTED)])
def test_a_fault_is_found_by_the_cases_of_a_large_model(
    fault: str, weights: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model is tried by the same cases and more, so they find it too."""
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
        "search beyond 6 tokens, and in the cases length 1, padded rows, many rows, longer than traced, longest",
        "whole targets in the cases many rows",
        "calls of graphs beyond 1 or 2 after the first, and whole targets beyond 6 tokens",
    ]
    assert report.to_dict()["left_out"] == report.summary()["left_out"] == left_out
    assert {each.case for each in report.tokens} == {"one row", "every row padded"}
