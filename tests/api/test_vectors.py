"""Vectors in fewer bits: those of sentence-transformers, as it recorded them, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import txport
from tests.recorded import EXPECTED, SENTENCES
from tests.recorded.sentences import PRECISIONS, TEXTS
from tests.seeded import bundle_of
from txport.api.vectors import quantize
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import UnsupportedError


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    with np.load(SENTENCES / "several" / EXPECTED) as file:
        return dict(file)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    return bundle_of(load_checkpoint(str(SENTENCES / "several")), folder / "bundle", "portable").path


@pytest.mark.parametrize("precision", PRECISIONS)
def test_numbers_are_those_of_sentence_transformers(precision: Any, stored: dict[str, Any]) -> None:
    """12 dimensions end within a byte."""
    found = quantize(stored["vectors"], precision)
    assert found.dtype == stored[precision].dtype
    np.testing.assert_array_equal(found, stored[precision])
    ranges = np.stack([stored["vectors"].min(0), stored["vectors"].max(0)])
    if precision in ("int8", "uint8"):
        np.testing.assert_array_equal(quantize(stored["vectors"][:1], precision, ranges), found[:1])
    else:
        np.testing.assert_array_equal(quantize(stored["vectors"][:1], precision), found[:1])


def test_a_dimension_without_a_range_and_numbers_beyond_it() -> None:
    ranges = np.array([[0, 1], [0, 2]], np.float32)
    vectors = np.array([[0, 0], [3, 9], [-3, 1.5]], np.float32)
    assert quantize(vectors, "uint8", ranges).tolist() == [[0, 0], [3, 255], [0, 127]]
    assert quantize(vectors, "int8", ranges).tolist() == [[-128, -128], [-125, 127], [-128, -1]]


@pytest.mark.parametrize(
    ("precision", "ranges", "message"),
    [
        ("int4", None, "precision must be one of float32, int8, uint8, binary, ubinary, got 'int4'"),
        ("binary", [[0], [1]], "ranges are for the precisions int8 and uint8, got binary"),
        ("int8", None, "one vector has no range for int8; give ranges"),
        ("int8", [[0], [1]], r"ranges must have the shape \(2, 2\)"),
        ("int8", [[1, 1], [0, 2]], "the lowest numbers, then the highest, all finite"),
        ("uint8", [[0, 0], [1, float("nan")]], "all finite"),
        ("uint8", "x", "ranges must be numbers of the shape"),
    ],
)
def test_wrong_precisions_and_ranges_are_refused(precision: Any, ranges: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        quantize(np.ones((1, 2), np.float32), precision, ranges)


def test_embed_and_run_quantise(bundle: Path, tmp_path: Path) -> None:
    model = txport.load(bundle)
    vectors = model.embed(TEXTS)
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    np.save(tmp_path / "ranges.npy", ranges)
    for precision in PRECISIONS:
        expected = quantize(vectors, precision)  # type: ignore[arg-type]
        np.testing.assert_array_equal(model.embed(TEXTS, precision=precision), expected)  # type: ignore[call-overload]
        args = ["run", str(bundle), TEXTS[3], "--precision", precision]
        args += ["--ranges", str(tmp_path / "ranges.npy")] if precision.endswith("int8") else []
        printed = CliRunner().invoke(cli, args)
        assert printed.exit_code == 0, printed.output
        assert json.loads(printed.output) == expected[3].tolist()
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    file = tmp_path / "vectors.npy"
    args = ["run", str(bundle), "--input", str(tmp_path / "texts.txt"), "--precision", "ubinary", "--output", str(file)]
    assert CliRunner().invoke(cli, args).exit_code == 0
    np.testing.assert_array_equal(np.load(file), quantize(vectors, "ubinary"))
    with pytest.raises(UnsupportedError, match="the vectors of tokens have the precision float32, got int8"):
        model.embed(TEXTS, pooling="none", precision="int8")  # type: ignore[call-overload]
    wrong = CliRunner().invoke(
        cli, ["run", str(bundle), "w1", "--precision", "int8", "--ranges", str(tmp_path / "texts.txt")]
    )
    assert "is no array in NumPy's .npy format" in str(wrong.exception or wrong.output)
