"""No part of any architecture is passed over, or accused where it is sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.covering import in_turn
from tests.recorded import FAMILIES
from txport.bundles.bundle import seal
from txport.checkpoints.checkpoint import Checkpoint, fill, load_checkpoint
from txport.exporters.export import export_graphs
from txport.models import architecture
from txport.proof.bisect.culprit import bisect
from txport.proof.bisect.probe import LOCAL
from txport.proof.proven import write


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(("name", "plan"), in_turn(architecture.names(), [("portable", 1), ("cpu", 2)]))
def test_every_part_of_an_architecture_is_covered_and_sound(name: str, plan: tuple[str, int], tmp_path: Path) -> None:
    target, seed = plan
    found = architecture.find(name)
    model = found.build(found.draw(np.random.default_rng(seed)))
    fill(model, seed)
    checkpoint = Checkpoint(name, model.eval(), "0" * 64)
    assert bisect(seal(tmp_path, export_graphs(checkpoint, tmp_path, target=target)), checkpoint) is None


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_log_probs_that_follow_from_logits_nobody_asked_for_are_not_accused(precision: str, tmp_path: Path) -> None:
    """They are computed from rounded logits, for which PyTorch has no value in a run that asks for the best tokens."""
    checkpoint = load_checkpoint("preset:annotated-tiny")
    bundle = seal(tmp_path, export_graphs(checkpoint, tmp_path, target="cpu", precision=precision))
    assert bisect(bundle, checkpoint) is None


@pytest.mark.usefixtures("few_cases")
def test_each_call_of_a_product_in_few_bits_has_roundings_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer that runs several times, whose products are then held against what their roundings explain."""
    checkpoint = load_checkpoint(str(FAMILIES / "albert"))
    bundle = write(checkpoint, tmp_path, target="cpu", precision="int8")
    monkeypatch.setitem(LOCAL, "int8", 1e-7)
    assert bisect(bundle, checkpoint) is None
