"""What Optimum itself exports says what transformers says; its environment is that of `make test`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import txport
from tests import peers
from tests.bundles.foreign.exported import NAMES, QUANTISED, layouts
from tests.bundles.foreign.test_layouts import require_same
from tests.checkpoints.families.test_families import TEXTS, said

CASES = [(name, layout) for name, task in NAMES.items() for layout in layouts(task)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    peers.run("tests.bundles.foreign.exported", str(folder))
    return folder


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_its_exports_say_what_transformers_says(name: str, layout: str, exported: Path) -> None:
    folder = exported / name / layout
    if layout != "encode":
        require_same(folder, name)
        return
    model = txport.load(folder)
    for number, text in enumerate(TEXTS):
        found = model.runtime.infer(np.array([text]), np.array([len(text)]))["last_hidden_state"]
        np.testing.assert_allclose(np.squeeze(found), said(name)[f"last_hidden_state.{number}"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", QUANTISED)
def test_its_graphs_in_8_bits_run(name: str, exported: Path) -> None:
    folder = next(each for each in sorted((exported / name).iterdir()))
    model = txport.load(folder, variant="quantized")
    if model.facts.task == "encode":
        assert model.runtime.infer(np.array([TEXTS[0]]), np.array([6]))["last_hidden_state"].shape == (1, 6, 32)
    else:
        assert model.search([[5, 7, 9]], beams=2, max_new_tokens=4)[0][0].tokens
