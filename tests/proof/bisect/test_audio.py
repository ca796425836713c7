"""Faults planted into what an encoder of frames reads: parity fails on each, and bisect says where it is and what."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from tests.proof.faults import Edit, attribute, nodes, weight
from tests.recorded import WHISPER
from tests.seeded import bundle_of
from tests.tiny import edit_graph
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.proof.bisect import culprit as module
from txport.proof.bisect.culprit import bisect
from txport.proof.parity.check import compare_graphs, draw_cases, exact_of, tolerance_of
from txport.proof.parity.replay import Reference

POSITIONS = "source_embedding.positions"


def without_bias(model: ModelProto) -> None:
    del nodes(model, "Conv")[1].input[2:]


def without_positions(model: ModelProto) -> None:
    node = next(each for each in nodes(model, "Add") if POSITIONS in each.input)
    node.op_type = "Identity"
    node.input.remove(POSITIONS)


def by_tanh(model: ModelProto) -> None:
    """The activation behind the last convolution."""
    nodes(model, "Erf")[1].op_type = "Tanh"


FIRST, SECOND = "encoder, embedding, first convolution", "encoder, embedding, second convolution"
FAULTS: dict[str, tuple[Edit, str, str, str]] = {  # what is done, where, kind, words
    "weight": (weight("source_embedding.first.weight", lambda w: w * np.float32(1.01)), FIRST, "weight", "1.01 times"),
    "bias": (without_bias, SECOND, "weight", "its bias is not added"),
    "padding": (attribute("Conv", 0, pads=[2, 0]), FIRST, "convolution", "its frames are off by +1"),
    "table": (weight(POSITIONS, lambda table: np.roll(table, 1, 0)), "encoder, embedding", "weight", "values differ"),
    "no table": (without_positions, "encoder, embedding", "position", "no position is added"),
    "activation": (by_tanh, "encoder, embedding", "operator", "not what PyTorch computes"),
}


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(str(WHISPER))


@pytest.fixture(scope="module")
def sounds(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("sound")
    return {target: bundle_of(checkpoint, folder / target, target) for target in ("portable", "cpu")}


@pytest.mark.parametrize(("fault", "target"), list(zip(FAULTS, itertools.cycle(["portable", "cpu"]), strict=False)))
def test_a_fault_is_found_where_it_was_planted(
    fault: str,
    target: str,
    sounds: dict[str, Bundle],
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "origin", lambda *_: "")
    edit, where, kind, words = FAULTS[fault]
    bundle = edit_graph(Path(shutil.copytree(sounds[target].path, tmp_path / "bundle")), "encoder", edit)
    culprit = bisect(bundle, checkpoint)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == (where, kind)
    assert words in culprit.what


def test_parity_fails_on_frames_that_are_moved(
    sounds: dict[str, Bundle], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sounds["cpu"].path, tmp_path / "bundle"))
    bundle = edit_graph(copy, "encoder", FAULTS["padding"][0])
    reference = Reference(exact_of(bundle, checkpoint), bundle.manifest)
    case = draw_cases(bundle, 0)[0]
    runtime = runtimes.load("ort", bundle)
    found = compare_graphs(case, "ort", runtime, reference, tolerance_of("fp32"), 0)
    assert {each.tensor for each in found if not each.passed} >= {"cross.0.key", "cross.0.value"}


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_sound_bundle_has_no_culprit(target: str, sounds: dict[str, Bundle], checkpoint: Checkpoint) -> None:
    assert bisect(sounds[target], checkpoint) is None
