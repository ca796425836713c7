"""No part of any architecture is passed over, or accused where it is sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from txport.bundles.bundle import seal
from txport.exporters.export import export_graphs
from txport.models import architecture
from txport.models.checkpoint import Checkpoint, fill
from txport.proof.bisect import culprit as module
from txport.proof.bisect.culprit import bisect
from txport.proof.parity import cases


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("name", architecture.names())
def test_every_part_of_an_architecture_is_covered_and_sound(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = cases.draw_cases
    monkeypatch.setattr(module, "draw_cases", lambda *given: draw(*given)[1:3])
    found = architecture.find(name)
    for seed in (1, 2):
        model = found.build(found.draw(np.random.default_rng(seed)))
        fill(model, seed)
        checkpoint = Checkpoint(name, model.eval(), "0" * 64)
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert bisect(seal(folder, export_graphs(checkpoint, folder, target=target)), checkpoint) is None
