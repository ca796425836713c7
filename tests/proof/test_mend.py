"""A quantised bundle that differs is mended where that can be done, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import txport
from tests.tiny import VOCABULARY, tiny_config, tiny_model
from txport.exporters.quantize import PLAIN
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.errors import ParityError, UnsupportedError
from txport.models.tokenizer import spelling_tokenizer
from txport.proof.mend import aliases, worst_matrices

LAYER = 1
OUTLIER = 3e4


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One channel of one norm is huge, and nobody reads it; but it leaves no step of 8 bits to the others."""
    config = tiny_config(d_model=32, feed_forward=64)
    model = tiny_model(config)
    layer = model.decoder[LAYER]
    with torch.no_grad():
        layer.feed_forward_residual.norm.weight[3] = OUTLIER
        layer.feed_forward.inner.weight[:, 3] = 0.0
    folder = tmp_path_factory.mktemp("spoilt") / "toy"
    save_checkpoint(folder, model, spelling_tokenizer(VOCABULARY))
    return folder


@pytest.mark.parametrize("how", [{"precision": "int8", "rows": 32}, {"precision": "int4"}])
def test_the_matrix_at_fault_is_kept_and_the_bundle_holds(spoilt: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(ParityError, match="differs from PyTorch"):
        txport.export(spoilt, tmp_path / "plain", target="cpu", **how)
    bundle = txport.export(spoilt, tmp_path / "mended", target="cpu", auto=True, **how)
    manifest, culprit = bundle.manifest, f"decoder.{LAYER}.feed_forward.inner.weight"
    assert manifest.parity["verdict"] == "pass"
    assert manifest.mended["kept"][0] == culprit
    assert manifest.quantization[culprit] == PLAIN
    assert sum(form != PLAIN for form in manifest.quantization.values()) > len(manifest.quantization) / 2
    assert manifest.mended["bytes"] > manifest.mended["bytes_before"]
    assert worst_matrices(bundle, load_checkpoint(str(spoilt)))[0] != culprit


def test_a_bundle_that_holds_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    bundle = txport.export(checkpoint, tmp_path / "out", target="cpu", precision="int8", auto=True)
    assert bundle.manifest.mended == {}
    assert PLAIN not in bundle.manifest.quantization.values()


@pytest.mark.parametrize("how", [{}, {"target": "cpu"}, {"precision": "fp16"}])
def test_there_is_nothing_to_keep_where_nothing_is_quantised(checkpoint: Path, tmp_path: Path, how: Any) -> None:
    with pytest.raises(UnsupportedError, match="auto keeps weights of int8 and int4 in fp32; "):
        txport.export(checkpoint, tmp_path / "out", auto=True, **how)


def test_a_tied_weight_is_kept_under_all_of_its_names() -> None:
    model = tiny_model(tiny_config(tied="all"))
    assert aliases(model, ["projection.weight"]) == {
        "projection.weight",
        "source_embedding.tokens.weight",
        "target_embedding.tokens.weight",
    }
