"""Weights of portable bundles in 8 and 4 bits: standard operators, which ONNX Runtime fuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import txport
from tests.tiny import tiny_config, tiny_model
from txport import runtimes
from txport.api import release
from txport.bundles.bundle import Bundle
from txport.bundles.forms import Form
from txport.checkpoints.checkpoint import save_checkpoint
from txport.errors import UnsupportedError
from txport.exporters.check import operators
from txport.exporters.fused.quantize import dequantize, quantize
from txport.proof.few_bits.kernels import product_of
from txport.proof.verify.check import verify
from txport.runtimes.ort.onnx_runtime import ort

KINDS = ["preset:tiny", "preset:gpt2-tiny", "preset:bert-tiny", "preset:llama-experts-tiny", "preset:deberta-tiny"]
PRECISIONS = ["int8", "int4"]
Make = Any


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[tuple[str, str], Bundle] = {}

    def export(name: str, precision: str) -> Bundle:
        if (name, precision) not in made:
            out = tmp_path_factory.mktemp("out") / "out"
            made[name, precision] = txport.export(name, out, precision=precision)
        return made[name, precision]

    return export


@given(
    bits=st.sampled_from([8, 4]),
    block=st.sampled_from([16, 32]),
    blocks=st.integers(1, 3),
    out=st.integers(1, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_dequantize_linear_gives_the_numbers_of_the_form(
    bits: int, block: int, blocks: int, out: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((out, block * blocks)).astype(np.float32)
    weight[rng.random(weight.shape) < 0.2] = 0
    form = Form("qdq", bits, block, zeros=bits == 4)
    graph = ReferenceEvaluator(ir.to_proto(product_of(weight, form)))
    (rows,) = graph.run(None, {"x": np.eye(block * blocks, dtype=np.float32)})
    assert np.array_equal(rows.T, dequantize(quantize(weight, form)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", KINDS)
def test_onnx_runtime_makes_each_a_product_of_blocks(name: str, precision: str, exported: Make, tmp_path: Path) -> None:
    """Otherwise each run would make the whole matrix in fp32, which takes 60 times as long for one row."""
    bundle = exported(name, precision)
    assert bundle.manifest.parity["verdict"] == "pass"
    for role, graph in bundle.manifest.driven.items():
        if not graph.has_weights:
            continue
        wanted = operators(bundle.file(role))["DequantizeLinear"]
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{role}.onnx")
        ort.InferenceSession(bundle.file(role), options, providers=["CPUExecutionProvider"])
        found = operators(tmp_path / f"{role}.onnx")
        assert wanted > 0
        assert (found["com.microsoft.MatMulNBits"], found["DequantizeLinear"]) == (wanted, 0)


@pytest.mark.parametrize("name", KINDS)
def test_a_bundle_is_smaller_and_verifies(name: str, exported: Make) -> None:
    sizes = [exported(name, precision).size for precision in ("fp32", *PRECISIONS)]
    assert sizes == sorted(sizes, reverse=True)
    for precision in PRECISIONS:
        assert verify(exported(name, precision).path).passed


@pytest.mark.parametrize("runtime", ["openvino", "reference"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_runtimes_hold_the_proof(precision: str, runtime: str, exported: Make) -> None:
    pytest.importorskip(runtime.replace("reference", "onnx"))
    bundle = exported("preset:gpt2-tiny", precision)
    assert release.parity(bundle, "preset:gpt2-tiny", {runtime: "cpu"}).passed


def test_tract_says_that_it_lacks_blocks(exported: Make) -> None:
    pytest.importorskip("tract")
    for precision in PRECISIONS:
        with pytest.raises(UnsupportedError, match=f"tract has no operators for {precision}; take the ort runtime"):
            runtimes.load("tract", exported("preset:gpt2-tiny", precision))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"opset": 20}, "the operators of portable int8 are in opset 21 and later, got 20"),
        ({"rows": 4}, "rows chooses the kernels"),
        ({"single": True}, "ONNX Runtime fuses no products of few bits"),
        ({"auto": True}, "auto"),
    ],
)
def test_what_few_bits_do_not_offer_is_refused(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        txport.export("preset:tiny", tmp_path / "out", precision="int8", **how)
    assert not (tmp_path / "out").exists()


def test_matrices_without_whole_blocks_stay_in_fp32(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "some", tiny_model(tiny_config(feed_forward=24)))
    forms = txport.export(tmp_path / "some", tmp_path / "out", precision="int8").manifest.forms
    assert {form.block for form in forms.values()} <= {16, 32}
    assert not any("outer" in name for name in forms)
    save_checkpoint(tmp_path / "none", tiny_model(tiny_config(d_model=24, heads=2, feed_forward=24)))
    with pytest.raises(UnsupportedError, match="whole blocks of 16 inputs, and this model has none"):
        txport.export(tmp_path / "none", tmp_path / "other", precision="int8")
