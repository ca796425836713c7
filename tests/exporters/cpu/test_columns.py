"""Inputs that are much larger than the others are multiplied in fp32, and a fault in that is found."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import txport
from tests.recorded import FAMILIES
from tests.tiny import edit_graph
from txport.bundles.bundle import Bundle
from txport.bundles.forms import INVARIANT, with_columns
from txport.checkpoints.checkpoint import Checkpoint, fill, load_checkpoint, save_checkpoint
from txport.exporters.cpu import choose
from txport.exporters.cpu.columns import COLUMNS, find_columns, largest_columns
from txport.models import architecture
from txport.proof.bisect.isolation import Runner
from txport.proof.few_bits.kernels import AS_SHIPPED, product_of
from txport.proof.parity.check import check
from txport.targets.ports import MODEL, STEP

LARGE = {5, 40, 77, 101}
INNER = "encoder.1.feed_forward.inner.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """An encoder in which norms make a few numbers much larger than the others, as trained ones do."""
    tiny = load_checkpoint("preset:bert-tiny").config
    config = dataclasses.replace(tiny, d_model=128, feed_forward=256)  # type: ignore[call-arg]
    model = architecture.of(config).build(config).eval()
    fill(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter[list(LARGE)] *= 60
    folder = tmp_path_factory.mktemp("checkpoint") / "large"
    save_checkpoint(folder, model)
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def bundle(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    assert checkpoint.folder is not None
    return txport.export(checkpoint.folder, tmp_path_factory.mktemp("out") / "out", target="cpu", precision="int8")


def test_an_expert_that_no_token_takes_has_no_columns() -> None:
    sizes: dict[str, object] = {"experts": 64, "experts_per_token": 1, "d_model": 128, "expert_size": 128}
    config = dataclasses.replace(load_checkpoint("preset:llama-experts-tiny").config, **sizes)  # type: ignore[type-var]
    model = architecture.of(config).build(config).eval()
    fill(model)
    found = find_columns(Checkpoint("experts", model, ""))
    experts = [name for name in found if ".experts." in name]
    assert 0 < len(experts) < 64 * len(model.decoder) * 3
    assert largest_columns([torch.zeros(0, 128)], "causal") == ()
    assert largest_columns([torch.zeros(0, 128), torch.ones(2, 128)], "causal")


def test_the_columns_of_the_largest_inputs_are_found(checkpoint: Checkpoint) -> None:
    found = find_columns(checkpoint)
    assert set(found[INNER]) > LARGE
    assert {len(each) for each in found.values()} == {COLUMNS["encode"]}
    assert find_columns(checkpoint) == found


def test_a_model_that_hears_has_them_and_its_steps_blocks(tmp_path: Path) -> None:
    """A step reads one row a source; the keys and values of a source are computed with its encoder."""
    tiny = load_checkpoint(str(FAMILIES / "whisper")).config
    config = dataclasses.replace(tiny, d_model=64, feed_forward=64)  # type: ignore[call-arg]
    model = architecture.of(config).build(config).eval()
    fill(model)
    save_checkpoint(tmp_path / "model", model)
    forms = txport.export(tmp_path / "model", tmp_path / "out", target="cpu", precision="int8").manifest.forms
    of_source = {name for name in forms if name.startswith("encoder") or re.search("cross.*(key|value)", name)}
    assert {name for name, form in forms.items() if form.describe() == "int8 with 16 columns in fp32"} == of_source
    assert {forms[name].describe() for name in forms.keys() - of_source} == {"8-bit blocks of 32"}
    assert "projection.weight" in forms.keys() - of_source


def test_they_cost_less_in_fp32(bundle: Bundle, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = bundle.manifest.forms
    assert forms[INNER].describe() == "int8 with 16 columns in fp32"
    monkeypatch.setattr(choose, "find_columns", lambda checkpoint: {})
    assert checkpoint.folder is not None
    other = txport.export(
        checkpoint.folder, bundle.path.with_name("invariant"), target="cpu", precision="int8", max_loss=1.0
    )
    assert other.manifest.forms[INNER] == INVARIANT
    assert bundle.manifest.loss["error"] < other.manifest.loss["error"] / 3


def test_a_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((130, 192)).astype(np.float32) * rng.choice([1, 1, 1, 50], 192).astype(np.float32)
    weight = rng.standard_normal((48, 192)).astype(np.float32)
    runner = Runner(product_of(weight, with_columns((1, 7, 64, 190))), Path(), AS_SHIPPED)
    alone = np.concatenate([runner.run({"x": x[row : row + 1]})["y"] for row in range(len(x))])
    for rows in (2, 3, 8, 17, 130):
        np.testing.assert_array_equal(runner.run({"x": x[:rows]})["y"], alone[:rows])


def test_causal_models_have_them_with_kernels_for_many_rows(tmp_path: Path) -> None:
    """Also the table of tokens, which is the projection: a lookup puts the columns in fp32 back to their places."""
    tiny = load_checkpoint("preset:gpt2-tiny").config
    config = dataclasses.replace(tiny, d_model=128, heads=4)  # type: ignore[call-arg]
    model = architecture.of(config).build(config).eval()
    fill(model)
    save_checkpoint(tmp_path / "causal", model)
    out = txport.export(tmp_path / "causal", tmp_path / "out", target="cpu", precision="int8", rows=8)
    assert {each.kind for each in out.manifest.forms.values()} == {"columns"}
    names = {each.name for each in onnx.load(str(out.file(STEP)), load_external_data=False).graph.initializer}
    assert any(name.endswith(".columns.spread") for name in names)


def places(values: np.ndarray) -> np.ndarray:
    return np.append(values[1:], values[-1] + 1)


def last_row(values: np.ndarray) -> np.ndarray:
    return np.vstack([values[:-1], values[-1:] * 1.01])


def first_column(values: np.ndarray) -> np.ndarray:
    return np.vstack([values[:1] * 1.001, values[1:]])


def mask(values: np.ndarray) -> np.ndarray:
    return np.roll(values, 1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("places", places),
        ("columns", last_row),
        ("columns", first_column),
        ("rest", mask),
    ],
)
def test_a_wrong_one_is_found(
    name: str, change: Callable[[np.ndarray], np.ndarray], bundle: Bundle, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    shutil.copytree(bundle.path, tmp_path / "out")
    form = bundle.manifest.forms[INNER]
    inputs = checkpoint.tensor(INNER).shape[1]
    names = {"columns": f"{INNER}.scale.columns", "places": form.places(inputs), "rest": form.rest(inputs)}

    def edit(model: onnx.ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name == names[name])
        values = change(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    report = check(edit_graph(tmp_path / "out", MODEL, edit), checkpoint, {"ort": "cpu"})
    assert not report.passed
    assert (names["rest"] if name == "rest" else "encoder.1.feed_forward.inner") in report.describe_worst()
