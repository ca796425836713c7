"""Kernels round as is described, each product is compared by itself, and the cost of few bits has a limit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import txport
from tests.recorded import FAMILIES
from txport import runtimes
from txport.api import model as api
from txport.bundles.bundle import Bundle
from txport.bundles.comparisons import LABELS, NEXT_TOKENS, VECTORS, describe_loss, require_loss
from txport.bundles.forms import BLOCKS, DYNAMIC, INVARIANT, ROWS, Form, blocks_of, with_columns
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import AudioError, ParityError, UnsupportedError
from txport.models.architectures.bert import PRESETS, Bert
from txport.models.facts import EXCLUSIVE, MULTI_LABEL, REGRESSION
from txport.proof.few_bits import loss
from txport.proof.few_bits.activations import at_random, round_activations, ties
from txport.proof.few_bits.costs import costs_of
from txport.proof.few_bits.kernels import is_reproduced, try_kernel
from txport.proof.proven import write
from txport.proof.reports.render import markdown
from txport.runtimes.base import EncoderRuntime
from txport.system.arrays import Array

FORMS = [
    DYNAMIC,
    ROWS,
    INVARIANT,
    with_columns((3, 7, 200)),
    *(blocks_of(bits, size) for bits in (8, 4) for size in BLOCKS),
    *(blocks_of(4, size, zeros=True) for size in BLOCKS),
]


@pytest.fixture(scope="module")
def int8(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return txport.export(checkpoint, tmp_path_factory.mktemp("int8") / "out", target="cpu", precision="int8")


@pytest.mark.parametrize("form", FORMS, ids=Form.describe)
def test_a_kernel_is_tried_before_its_roundings_are_relied_on(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it rounds as described; with roundings up in place of to the nearest, it is found not to."""
    form = dataclasses.replace(form, columns=tuple(range(len(form.columns))))
    assert try_kernel.__wrapped__(form) == is_reproduced(form)
    monkeypatch.setattr(
        "txport.proof.few_bits.kernels.round_activations", lambda x, form: round_activations(x, form, torch.ceil)
    )
    assert not try_kernel.__wrapped__(form)


@pytest.mark.parametrize("form", FORMS, ids=Form.describe)
def test_rounding_is_off_by_at_most_a_step(form: Form) -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 256))).float()
    step = float((x.max() - x.min()) / 255) if form.shares_scale else float(x.abs().max() / 127)
    assert float((round_activations(x, form) - x).abs().max()) <= step / 2 * 1.0001
    assert float((round_activations(x, form, at_random(1)) - x).abs().max()) <= step * 1.0001
    assert not round_activations(torch.zeros(2, 256), form).any()


def test_a_value_between_two_steps_is_a_tie() -> None:
    x = torch.tensor([[127.0, 0.5, 0.4, -2.5]])
    assert ties(x, INVARIANT).tolist() == [[0.0, pytest.approx(1.0), 0.0, pytest.approx(1.0)]]


def test_the_cost_is_recorded_and_shown(int8: Bundle) -> None:
    record = int8.manifest.loss
    require_loss(record)
    assert record["measure"] == NEXT_TOKENS
    assert 0 <= record["share"] <= record["worst"] <= 1
    assert record["perplexity_ratio"] >= 1
    line = describe_loss(record, "int8")
    assert line.startswith("cost of int8: ")
    assert line[1:] in (int8.path / "README.md").read_text(encoding="utf-8").replace("\\", "")


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_cost_above_the_limit_fails_and_names_what_costs_most(target: str, checkpoint: Path, tmp_path: Path) -> None:
    how = {"target": target, "precision": "int4"}
    with pytest.raises(
        ParityError, match=r"costs too much: the loss 0\.\d+ is above the limit 1e-06; .*what costs most: "
    ):
        txport.export(checkpoint, tmp_path / "out", max_loss=1e-6, **how)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_parity_measures_it_again(int8: Bundle, checkpoint: Path) -> None:
    report = api.parity(int8, checkpoint, {"ort": "cpu"}, max_loss=1.0)
    assert report.passed
    assert report.about["loss"] == int8.manifest.loss
    assert "PyTorch in fp32" not in markdown(report), "the cost tells more than fp32's own error"


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_a_limit_is_a_share(checkpoint: Path, tmp_path: Path, limit: float) -> None:
    with pytest.raises(UnsupportedError, match="max_loss must lie in 0 to 1, got"):
        txport.export(checkpoint, tmp_path / "out", target="cpu", precision="int8", max_loss=limit)


def test_a_limit_is_for_few_bits(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="max_loss is what int8 and int4 may cost; portable fp32 has neither"):
        txport.export(checkpoint, tmp_path / "out", max_loss=0.1)


def test_outputs_of_another_place_are_right_by_chance() -> None:
    right = np.random.default_rng(0).standard_normal((40, 16))
    assert not loss._errors([(right, right + 0.3)])[1]
    assert not loss._errors([(right, right * 1.5)])[1]
    assert not loss._errors([(right[:, :1], right[:, :1])])[1]  # of a model with one label
    assert loss._errors([(right, np.roll(right, 1, axis=0))])[1]
    assert loss._errors([(right, np.full_like(right, np.nan))])[1]


@dataclasses.dataclass(frozen=True)
class Altered:
    """A runtime whose outputs are changed."""

    runtime: EncoderRuntime
    change: Callable[[Array], Array]

    def infer(self, ids: Array, lengths: Array) -> dict[str, Array]:
        return {name: self.change(each) for name, each in self.runtime.infer(ids, lengths).items()}


@pytest.mark.parametrize(
    ("labels", "problem", "measure", "places"),
    [
        (("score",), EXCLUSIVE, LABELS, 8),
        (("red", "green", "blue"), MULTI_LABEL, LABELS, 24),
        (("length",), REGRESSION, loss.VALUES, 8),
        (("length", "width"), REGRESSION, loss.VALUES, 8),
    ],
)
def test_the_cost_of_labels_that_exclude_no_other_is_that_of_each(
    labels: tuple[str, ...], problem: str, measure: str, places: int, tmp_path: Path
) -> None:
    checkpoint = scorer(labels, problem)
    bundle = write(checkpoint, tmp_path, target="cpu", precision="int4")
    runtime = runtimes.load("ort", bundle)
    found = loss.measure_loss(bundle, checkpoint, runtime)
    assert (found.record["measure"], found.record["places"]) == (measure, places)
    assert 0 < found.record["error"] < 1
    assert found.divergence > 0
    assert not found.by_chance
    moved = loss.measure_loss(bundle, checkpoint, Altered(runtime, lambda each: each + 9))
    assert moved.record["share"] > max(found.record["share"], 0.1)
    assert moved.divergence > 1
    constant = loss.measure_loss(bundle, checkpoint, Altered(runtime, lambda each: np.full_like(each, 12345)))
    assert constant.by_chance
    trial = loss.trial_of(bundle, checkpoint, runtime)
    together = loss.divergence_of(checkpoint.facts, *(loss.outputs_of(each, trial) for each in (checkpoint.model,) * 2))
    assert together == 0
    costs = sum(cost for cost, _ in costs_of(bundle, checkpoint, trial))
    if problem == REGRESSION:  # costs are of values that are not relative
        costs /= float(np.mean([np.square(each).sum(1) for each in loss.outputs_of(checkpoint.model, trial)]))
    assert found.divergence / 3 < costs < found.divergence * 3


def scorer(labels: tuple[str, ...], problem: str) -> Checkpoint:
    config = dataclasses.replace(PRESETS["bert-tiny"], head="labels", labels=labels, problem_type=problem)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Bert(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return Checkpoint("scorer", model, "0" * 64)


@pytest.mark.parametrize("junk", [[], {"measure": VECTORS}, {"measure": 3}])
def test_a_damaged_record_is_refused(junk: object) -> None:
    with pytest.raises((TypeError, KeyError)):
        require_loss(junk)


def test_a_model_that_hears_is_measured_on_audio_beside_its_weights(tmp_path: Path) -> None:
    shutil.copytree(FAMILIES / "whisper", tmp_path / "model")
    rate = 16_000
    for number in range(loss.ROWS + 1):
        tone = np.sin(np.arange(rate) * 0.01 * (number + 1)).astype(np.float32)
        (tmp_path / "model" / loss.HEARD).mkdir(exist_ok=True)
        soundfile.write(tmp_path / "model" / loss.HEARD / f"{number}.wav", tone, rate)
    how = {"target": "cpu", "precision": "int8", "against": "none"}
    bundle = txport.export(tmp_path / "model", tmp_path / "out", **how)
    assert f"({loss.ROWS} audio files)" in describe_loss(bundle.manifest.loss, "int8")
    (tmp_path / "model" / loss.HEARD / "0.wav").write_bytes(b"not audio")
    with pytest.raises(AudioError, match=r"0\.wav can't be read as audio"):
        txport.export(tmp_path / "model", tmp_path / "again", **how)
