"""Bisection of a large model, whose weights stay in their files, and of a context that whole graphs do not reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.proof.context.test_context import LONGEST, WINDOW, checkpoint_of, short_window
from tests.proof.faults import Edit, attribute
from tests.proof.few import draw_few
from tests.tiny import edit_graph
from txport import runtimes
from txport.api import release
from txport.checkpoints import checkpoint
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.proof.bisect import probe
from txport.proof.bisect.culprit import bisect
from txport.proof.few_bits.costs import measure_costs
from txport.proof.few_bits.loss import trial_of
from txport.proof.parity import check
from txport.proof.parity.cases import draw_cases
from txport.proof.parity.replay import Call
from txport.proof.proven import write
from txport.targets.ports import DECODER, ENCODER, STEP

PRESET = "preset:llama-tiny"
Observed = list[tuple[probe.Probe, Call]]
SCALE = attribute("GroupQueryAttention", 1, scale=0.2)


def epsilon(model: onnx.ModelProto) -> None:
    """The third norm divides by more."""
    norm = [node for node in model.graph.node if node.op_type.endswith("RMSNormalization")][2]
    next(each for each in norm.attribute if each.name == "epsilon").f = 0.5


def weight(model: onnx.ModelProto) -> None:
    """The weights of the last norm are doubled."""
    (tensor,) = (each for each in model.graph.initializer if each.name == "decoder_norm.weight")
    values = 2 * np.ones(tensor.dims[0], np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint in memory, and the same one read from its files."""
    draw_few(monkeypatch)
    whole = load_checkpoint(PRESET)
    monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", 0)
    return whole, load_checkpoint(PRESET)


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    """The probes and calls that a bisection observes."""
    calls: Observed = []
    observe = probe.observe
    noted = lambda found, case, call, record: calls.append((found, call)) or observe(found, case, call, record)  # noqa: E731
    monkeypatch.setattr(probe, "observe", noted)
    return calls


@pytest.mark.parametrize(
    ("target", "precision", "fault"),
    [("cpu", "fp32", epsilon), ("cpu", "int8", SCALE), ("portable", "fp32", weight)],
    ids=["epsilon", "scale in 8 bits", "weight"],
)
def test_a_fault_of_a_large_model_is_explained_as_of_one_in_memory(
    target: str, precision: str, fault: Edit, both: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    whole, streamed = both
    assert streamed.read is not None
    bundle = write(whole, tmp_path, target=target, precision=precision)
    assert bisect(bundle, streamed) is None
    bundle = edit_graph(bundle.path, DECODER if target == "portable" else STEP, fault)
    expected = bisect(bundle, whole)
    found = bisect(bundle, streamed)
    assert expected is not None
    assert found is not None
    assert (found.where, found.kind, found.what) == (expected.where, expected.kind, expected.what)
    assert found.origin == expected.origin
    assert "not in a fresh export" in found.origin


def _batches(observed: Observed) -> list[int]:
    return [len(next(iter(call.inputs.values()))) for _, call in observed if call.role == ENCODER]


def test_of_a_large_model_that_hears_one_source_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Observed
) -> None:
    """PyTorch takes long for a source of features, and one shows the same."""
    monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", 0)
    monkeypatch.setattr(check, "LARGE", 0)
    streamed = load_checkpoint("preset:whisper-mini-tiny")
    bundle = write(streamed, tmp_path, target="cpu", precision="fp32")
    assert bisect(bundle, streamed, passed=[case.name for case in draw_cases(bundle, 0)]) is None
    assert _batches(observed) == [1], "all cases have passed: one is enough"
    culprit = bisect(edit_graph(bundle.path, STEP, attribute("MultiHeadAttention", 1, scale=0.2)), streamed)
    assert culprit is not None
    assert culprit.kind == "scale"
    assert set(_batches(observed)) == {1}


def test_the_values_of_a_call_that_are_too_large_are_compared_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Observed
) -> None:
    draw_few(monkeypatch)
    whole = load_checkpoint(PRESET)
    bundle = write(whole, tmp_path, target="cpu", precision="int8")
    monkeypatch.setattr(probe, "ROOM", 8_000)
    assert bisect(bundle, whole) is None
    taps = {tap for each, _ in observed for tap in each.taps}
    assert all(len(each.compared) < len(taps) for each, _ in observed)
    assert {tap for each, _ in observed for tap in each.compared} == taps
    bundle = edit_graph(bundle.path, STEP, SCALE)
    found = bisect(bundle, whole)
    monkeypatch.setattr(probe, "ROOM", 1 << 30)
    assert found == bisect(bundle, whole)
    assert found is not None


def test_the_costs_of_a_large_model_are_those_of_one_in_memory(
    both: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    whole, streamed = both
    bundle = write(whole, tmp_path, target="cpu", precision="int8")
    trial = trial_of(bundle, whole, runtimes.load("ort", bundle))
    one, other = (measure_costs(bundle, each, trial) for each in (streamed, whole))
    assert [each.weights for each in one] == [each.weights for each in other]
    assert [each.cost for each in one] == pytest.approx([each.cost for each in other], rel=1e-3)
    assert all(each.cost > 0 for each in one)


def test_a_part_that_is_wrong_at_the_end_of_the_context_is_the_culprit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch)
    far = checkpoint_of("llama-tiny", LONGEST, windows=(WINDOW, 0))
    bundle = write(far, tmp_path, target="portable", precision="fp32")
    monkeypatch.setattr("txport.api.release.load_checkpoint", lambda *_, **__: far)
    assert release.bisect(bundle, "far") is None
    found = release.bisect(edit_graph(bundle.path, DECODER, short_window), "far")
    assert found is not None
    assert (found.where, found.kind) == ("decoder.0.attention", "long context")
