"""An export in fp16 of a model whose values are beyond its range: the part is named, without warnings of NumPy."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import txport
from tests.recorded import FAMILIES
from txport.api.release import matrix, parity
from txport.bundles.bundle import load_bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import ParityError
from txport.models.names import WEIGHTS
from txport.proof.matrix import FAIL
from txport.proof.proven import write


@pytest.mark.parametrize(
    ("target", "fix"), [("portable", "'fp32', or with precision='bf16' and target='cuda'"), ("cuda", "'bf16'")]
)
@pytest.mark.parametrize(
    ("factor", "part"),
    [(3e4, r"decoder\.0\.feed_forward\.inner reaches \d+"), (1e7, r"feed_forward\.inner\.weight holds \d")],
)
def test_the_value_and_the_way_out_are_named(target: str, fix: str, factor: float, part: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "llama", tmp_path / "llama"))
    weights = load_file(folder / WEIGHTS)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**weights, name: weights[name] * factor}, folder / WEIGHTS)
    with pytest.raises(ParityError) as caught:  # a warning would be another error
        txport.export(folder, tmp_path / "out", target=target, precision="fp16")
    caught.match(rf"{part}.*, beyond the range of fp16, whose largest value is 65504; export with precision={fix}$")
    assert not (tmp_path / "out").exists()


def test_values_that_overflow_on_a_gpu_alone_are_named(tmp_path: Path) -> None:
    """On a CPU, ONNX Runtime keeps some values of a graph in fp16 in fp32, and the bundle passes there."""
    folder = _grown(tmp_path)
    with pytest.raises(ParityError, match=r"would overflow on a GPU: .* reaches \d.*, beyond the range of fp16"):
        txport.export(folder, tmp_path / "out", precision="fp16")


def test_the_matrix_fails_where_export_does(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    how: dict[str, Any] = {"targets": ["portable"], "precisions": ["fp16"], "names": ["ort"], "providers": ["cpu"]}
    (cell,) = matrix(_grown(tmp_path), **how, keep=keep).cells
    assert cell.verdict == FAIL
    assert re.search(r"reaches \d.*, beyond the range of fp16", cell.why)
    assert load_bundle(keep / "portable-fp16-failed").manifest.parity["verdict"] == "fail"


def test_the_masks_of_windows_are_no_values(tmp_path: Path) -> None:
    """They are half of the lowest number of a type."""
    assert txport.export(FAMILIES / "gemma3", tmp_path / "out", precision="fp16", against="none")


def _grown(place: Path) -> Path:
    """Return a folder whose values are beyond the range."""
    folder = Path(shutil.copytree(FAMILIES / "smollm", place / "smollm"))
    weights = load_file(folder / WEIGHTS)
    grown = {name: each * 3e4 for name, each in weights.items() if "down_proj" in name}
    save_file({**weights, **grown}, folder / WEIGHTS)
    return folder


@pytest.mark.parametrize(("target", "runtime"), [("portable", "ort"), ("cuda", "cuda-stand-in")])
def test_parity_names_the_value_as_export_does(target: str, runtime: str, tmp_path: Path) -> None:
    """A bundle may be older than this check of `export`."""
    folder = _grown(tmp_path)
    (tmp_path / "out").mkdir()
    bundle = write(load_checkpoint(str(folder)), tmp_path / "out", target=target, precision="fp16")
    report = parity(bundle, folder, {runtime: "cpu"})
    assert not report.passed
    assert re.search(r"reaches \d.*, beyond the range of fp16", report.failures()[0])
    assert report.describe_worst() == report.failures()[0]
