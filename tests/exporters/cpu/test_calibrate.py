"""`export --calibrate`: matrices in 4 bits are rounded by their inputs, and stay as near as the proof requires."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import txport
from tests.checkpoints.weights.packed import write_folder
from tests.recorded import FAMILIES
from txport.bundles.comparisons import describe_calibrated, require_calibrated
from txport.bundles.forms import blocks_of
from txport.errors import ParityError, TextError, UnsupportedError
from txport.exporters.cpu.rounding import change_of_products, round_by_inputs
from txport.exporters.fused.quantize import dequantize, quantize, unpack
from txport.models.names import MANIFEST

Array = NDArray[Any]
HOW: dict[str, Any] = {"target": "cpu", "precision": "int4"}


def inputs(rng: np.random.Generator, rows: int, size: int) -> Array:
    """Return inputs of which a few are large, and all depend on a quarter as many numbers."""
    mixed = rng.standard_normal((rows, size // 4)) @ np.random.default_rng(9).standard_normal((size // 4, size))
    mixed[:, :3] *= 10
    return mixed


@pytest.mark.parametrize("block", [16, 32, 64])
def test_products_with_other_inputs_change_less(block: int) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((96, 128)).astype(np.float32)
    form = blocks_of(4, block, zeros=True)
    seen, other = (x.T @ x for x in (inputs(rng, 300, 128), inputs(rng, 300, 128)))
    rounded, nearest = round_by_inputs(matrix, form, seen), quantize(matrix, form)
    after, before = (change_of_products(matrix, dequantize(each), other) for each in (rounded, nearest))
    assert after < 0.5 * before


def test_each_weight_becomes_one_of_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((64, 64)).astype(np.float32)
    x = inputs(rng, 100, 64)
    rounded = round_by_inputs(matrix, blocks_of(4, 32, zeros=True), x.T @ x)
    assert rounded.zeros is not None
    exact = matrix.reshape(64, 2, 32) / rounded.scales[..., None] + rounded.zeros[..., None]
    codes = unpack(rounded.values).astype(int)
    inside = (exact > 0) & (exact < 15)
    assert np.all(np.abs(codes - exact)[inside] < 1)
    assert set(codes[exact <= 0]) <= {0}
    assert set(codes[exact >= 15]) <= {15}


def test_without_inputs_the_largest_weights_alone_count() -> None:
    matrix = np.random.default_rng(2).standard_normal((8, 32)).astype(np.float32)
    form = blocks_of(4, 32, zeros=True)
    rounded = round_by_inputs(matrix, form, np.zeros((32, 32)))
    np.testing.assert_array_equal(dequantize(rounded), dequantize(quantize(matrix, form)))


def test_the_change_of_products_is_that_of_the_products() -> None:
    rng = np.random.default_rng(3)
    x, matrix = rng.standard_normal((50, 16)), rng.standard_normal((4, 16))
    other = matrix + 0.1 * rng.standard_normal(matrix.shape)
    change = np.linalg.norm(x @ (other - matrix).T) / np.linalg.norm(x @ matrix.T)
    assert math.isclose(change_of_products(matrix, other, x.T @ x), change)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("3 4 5\n\n6 7 8 9 10\n", encoding="utf-8")
    return path


def test_a_bundle_is_calibrated_and_proven(texts: Path, tmp_path: Path) -> None:
    bundle = txport.export(FAMILIES / "llama", tmp_path / "out", calibrate=texts, against="none", **HOW)
    again = txport.export(FAMILIES / "llama", tmp_path / "again", calibrate=texts, against="none", **HOW)
    plain = txport.export(FAMILIES / "llama", tmp_path / "plain", against="none", **HOW)
    record = bundle.manifest.calibrated
    require_calibrated(record)
    assert record["texts"] == 2
    assert record["tokens"] > 8  # the model has continued them
    assert record["error"] < record["error_before"]
    line = describe_calibrated(record)
    assert line in (bundle.path / "README.md").read_text(encoding="utf-8").replace("\\", "")
    assert bundle.manifest.parity["verdict"] == "pass"
    weights = [(each.path / "onnx" / "weights.bin").read_bytes() for each in (bundle, again, plain)]
    assert weights[0] == weights[1] != weights[2]
    assert bundle.manifest.forms == plain.manifest.forms
    assert "calibrated" not in json.loads((plain.path / MANIFEST).read_text())


def test_an_encoder_reads_the_texts(tmp_path: Path, texts: Path) -> None:
    """Some of its matrices are in 4 bits."""
    bundle = txport.export("preset:bert-tiny", tmp_path / "out", calibrate=texts, **HOW)
    assert bundle.manifest.calibrated["tokens"] == 8 + 2 * 2  # a start and an end


def test_an_encoder_decoder_reads_what_it_writes(texts: Path, tmp_path: Path) -> None:
    bundle = txport.export("preset:tiny", tmp_path / "out", calibrate=texts, **HOW)
    record = bundle.manifest.calibrated
    assert record["tokens"] > 8 + 2 + 2  # the lines, ends of them, and starts of targets
    assert record["error"] < record["error_before"]


@pytest.mark.parametrize(
    ("folder", "how", "message"),
    [
        (
            "llama",
            {"precision": "int8"},
            "calibrate rounds the weights of int4, on the cpu target alone; cpu int8 has none",
        ),
        ("llama", {"target": "cuda"}, "the cpu target alone; cuda int4 has none"),
        ("llama", {"weights": False}, "the cpu target alone; cpu int4 without weights has none"),
        ("whisper", {}, "calibrate is for models that read text; this one reads audio"),
    ],
)
def test_what_is_not_rounded_is_refused(
    folder: str, how: dict[str, Any], message: str, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        txport.export(FAMILIES / folder, tmp_path / "out", calibrate=texts, against="none", **{**HOW, **how})


def test_quantised_weights_are_refused(texts: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder")
    with pytest.raises(UnsupportedError, match="these are quantised already: GPTQ, 4 bits, groups of 32"):
        txport.export(tmp_path / "folder", tmp_path / "out", calibrate=texts, against="none", **HOW)


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n \n")
    with pytest.raises(TextError, match="must hold 1 to 256 texts, one a line, got 0"):
        txport.export(FAMILIES / "llama", tmp_path / "out", calibrate=tmp_path / "texts.txt", against="none", **HOW)


def test_a_wrong_rounding_is_found(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof holds calibrated weights as near to the checkpoint's as others."""

    def coarse(matrix: Array, form: Any, moments: Array) -> Any:
        found = round_by_inputs(matrix, form, moments)
        return quantize(matrix + 3 * found.scales.repeat(form.block, 1), form)

    monkeypatch.setattr("txport.exporters.cpu.calibrate.round_by_inputs", coarse)
    with pytest.raises(ParityError, match="weight"):
        txport.export(FAMILIES / "llama", tmp_path / "out", calibrate=texts, against="none", **HOW)
