"""Folders of GPTQ and AWQ: their matrices of 4 bits come into a bundle as they are, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

import txport
from tests.checkpoints.weights.packed import by_our_names, write_folder, write_mxfp4
from tests.covering import in_turn
from tests.tiny import edit_graph, unproven
from txport.api import model as api
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import CheckpointError, ConfigError

Array = NDArray[Any]

LAYOUTS: list[dict[str, Any]] = [
    {"method": "gptq", "group": 32},
    {"method": "gptq", "group": 128, "symmetric": True},
    {"method": "gptq", "group": 64, "checkpoint_format": "gptq_v2"},
    {"method": "gptq", "group": 64, "family": "phi3"},
    {"method": "awq", "group": 32},
    {"method": "awq", "group": 128},
    {"method": "awq", "group": 64, "family": "phi3"},
]


def products(bundle: Bundle) -> dict[str, tuple[int, Array]]:
    """Return the block and the weights in float32 of each product in 4 bits, read from the graphs' own files."""
    found = {}
    for graph in (bundle.path / "onnx").glob("*.onnx"):
        model = onnx.load(graph)
        held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        turned = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Transpose"}
        for node in model.graph.node:
            sizes = {each.name: each.i for each in node.attribute}
            if node.op_type == "DequantizeLinear" and len(node.input) == 3:
                names = [turned[name] for name in node.input]
                codes, scales, points = (held[name].astype(np.float64) for name in names)
                spread = np.repeat(np.stack([scales, points]), sizes["block_size"], axis=-1)
                found[names[0]] = sizes["block_size"], ((codes - spread[1]) * spread[0]).astype(np.float32)
            if node.op_type != "MatMulNBits" or sizes["bits"] != 4:
                continue
            values, scales, zeros = (held[name] for name in node.input[1:4])
            out, blocks = scales.reshape(sizes["N"], -1).shape
            codes = np.array([[low & 15, low >> 4] for low in values.reshape(-1).astype(int)]).reshape(out, blocks, -1)
            points = np.array([[low & 15, low >> 4] for low in zeros.reshape(-1).astype(int)]).reshape(out, -1)[
                :, :blocks
            ]
            weights = (codes - points[..., None]) * scales.reshape(out, blocks, 1).astype(np.float64)
            found[node.input[1]] = sizes["block_size"], weights.reshape(out, -1).astype(np.float32)
    return found


def require_equal(bundle: Bundle, truth: dict[str, Array], block: int) -> None:
    """Require that all matrices are in the products of a bundle, bit for bit."""
    wanted = dict(truth)
    for name, (size, weights) in products(bundle).items():
        parts = [wanted.pop(each) for each in bundle.manifest.weights[name].weights]
        np.testing.assert_array_equal(weights, np.concatenate(parts))
        assert size == block
    assert not wanted


@pytest.mark.parametrize(("layout", "rows"), in_turn(LAYOUTS, [None, 1]), ids=str)
def test_weights_are_read_bit_for_bit(layout: dict[str, Any], rows: int | None, tmp_path: Path) -> None:
    truth = by_our_names(write_folder(tmp_path / "folder", **layout))
    checkpoint = load_checkpoint(str(tmp_path / "folder"))
    held = dict(checkpoint.tensors)
    assert checkpoint.packed.keys() == truth.keys()
    for name, weights in truth.items():
        np.testing.assert_array_equal(held[name].numpy(), weights)
    bundle = unproven(tmp_path / "folder", tmp_path / "out", target="cpu", precision="int4", rows=rows)
    require_equal(bundle, truth, layout["group"] if rows else 32)


@pytest.mark.parametrize(
    ("kind", "layout"),
    in_turn([("cpu", None), ("cpu", 1), ("cuda", None), ("portable", None)], [LAYOUTS[1], LAYOUTS[-2]]),
    ids=str,
)
def test_a_bundle_is_proven_and_says_where_its_bits_come_from(
    kind: tuple[str, int | None], layout: dict[str, Any], tmp_path: Path
) -> None:
    target, rows = kind
    truth = by_our_names(write_folder(tmp_path / "folder", **layout))
    bundle = txport.export(
        tmp_path / "folder", tmp_path / "out", target=target, precision="int4", rows=rows, against="none"
    )
    assert bundle.manifest.parity["verdict"] == "pass"
    require_equal(bundle, truth, 32 if rows is None else layout["group"])
    origin = f"{layout['method'].upper()}, 4 bits, groups of {layout['group']}"
    assert bundle.manifest.checkpoint["quantised"] == origin
    assert origin in (bundle.path / "README.md").read_text(encoding="utf-8")
    others = {stored.form.bits for stored in bundle.manifest.weights.values() if stored.form and not stored.form.zeros}
    assert others == {8}


@pytest.mark.parametrize(("target", "precision"), [("portable", "fp32"), ("cpu", "fp32"), ("cpu", "int8")])
def test_other_precisions_have_the_weights_in_fp32(target: str, precision: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", "awq")
    bundle = txport.export(tmp_path / "folder", tmp_path / "out", target=target, precision=precision, against="none")
    assert bundle.manifest.parity["verdict"] == "pass"


def test_a_wrong_zero_point_is_found(tmp_path: Path) -> None:
    """One step of one block, which is much less than the error of rounding to 4 bits."""
    write_folder(tmp_path / "folder")
    unproven(tmp_path / "folder", tmp_path / "out", target="cpu", precision="int4")

    def spoil(model: onnx.ModelProto) -> None:
        zeros = next(each for each in model.graph.initializer if each.name.endswith("outer.weight.scale.zeros"))
        values = numpy_helper.to_array(zeros, str(tmp_path / "out" / "onnx")).copy()
        values[3, 1] ^= 1
        zeros.CopyFrom(numpy_helper.from_array(values, zeros.name))

    report = api.parity(edit_graph(tmp_path / "out", "step", spoil), tmp_path / "folder", {"ort": "cpu"})
    assert not report.passed
    assert any("weights" in each and "outer.weight" in each for each in report.failures())


def test_a_bias_of_zeros_that_the_model_lacks_is_left_out(tmp_path: Path) -> None:
    def add(tensors: dict[str, Array], value: float = 0.0) -> None:
        tensors["model.layers.0.mlp.down_proj.bias"] = np.full(128, value, np.float16)

    write_folder(tmp_path / "folder", change=add)
    load_checkpoint(str(tmp_path / "folder"))
    write_folder(tmp_path / "other", change=lambda tensors: add(tensors, 1.0))
    with pytest.raises(CheckpointError, match=r"unexpected model\.layers\.0\.mlp\.down_proj\.bias"):
        load_checkpoint(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("method", "config", "message"),
    [
        ("gptq", {"bits": 8}, "gptq with bits 8 is not supported, only 4 bits"),
        ("gptq", {"bits": 3}, "gptq with bits 3"),
        ("gptq", {"group_size": -1}, "gptq with group_size -1"),
        ("gptq", {"checkpoint_format": "marlin"}, "gptq with checkpoint_format 'marlin'"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, "gptq with dynamic "),
        ("gptq", {"pack_dtype": "int64"}, "gptq with pack_dtype 'int64'"),
        ("awq", {"version": "gemv"}, "awq with version 'gemv'"),
        ("awq", {"version": "marlin"}, "awq with version 'marlin'"),
        ("awq", {"zero_point": False}, "awq with zero_point False"),
        ("awq", {"backend": "llm-awq"}, "awq with backend 'llm-awq'"),
        ("bitsandbytes", {}, r"quantised by another tool \(quantization_config 'bitsandbytes'\)"),
    ],
)
def test_other_layouts_are_refused_by_name(method: str, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", "awq" if method == "awq" else "gptq", quant_method=method, **config)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(str(tmp_path / "folder"))


def shuffle(tensors: dict[str, Array]) -> None:
    name = "model.layers.1.self_attn.o_proj.g_idx"
    tensors[name] = tensors[name][::-1]


def wrap(tensors: dict[str, Array]) -> None:
    tensors["model.layers.1.self_attn.o_proj.qzeros"][0, 0] = -1


def shorten(tensors: dict[str, Array]) -> None:
    name = "model.layers.1.self_attn.o_proj.scales"
    tensors[name] = tensors[name][:-1]


def widen(tensors: dict[str, Array]) -> None:
    name = "model.layers.1.self_attn.o_proj.qweight"
    tensors[name] = tensors[name].astype(np.int64)


def remove(tensors: dict[str, Array]) -> None:
    for name in [name for name in tensors if name.endswith(".qweight")]:
        del tensors[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shuffle, r"o_proj' has no form in a bundle: it was quantised in the order of activations \(desc_act\)"),
        (wrap, r"o_proj' has a zero point of 15 in the file, which the tools .* read as 0 or as 16"),
        (shorten, r"o_proj' is not in GPTQ, 4 bits, groups of 32: it has qweight \(16, 128\)"),
        (widen, r"o_proj' must hold int32, int32 and floating-point scales, got int64"),
        (remove, r"has no matrix in 4 bits, which its quantization_config describes"),
    ],
)
def test_matrices_without_an_exact_form_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", change=change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(str(tmp_path / "folder"))


def test_experts_in_mxfp4_are_the_numbers_that_their_bits_mean(tmp_path: Path) -> None:
    truth = write_mxfp4(tmp_path / "folder")
    found = load_checkpoint(str(tmp_path / "folder")).model.state_dict()
    assert len(truth) == 4
    for name, stack in truth.items():
        layer, role = name.split(".")[2], name.split(".")[-1]
        for at, matrix in enumerate(stack):
            place = f"decoder.{layer}.feed_forward.experts.{at}"
            rows = {"gate": matrix.T[::2], "inner": matrix.T[1::2]} if role == "gate_up_proj" else {"outer": matrix.T}
            for part, expected in rows.items():
                np.testing.assert_array_equal(found[f"{place}.{part}.weight"], expected)


DOWN = "model.layers.1.mlp.experts.down_proj"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{DOWN}_scales": None}, r"the experts '.*down_proj' are not in MXFP4: they have blocks .* and scales \(\)"),
        ({f"{DOWN}_scales": torch.ones(4, 32, 2).byte()}, r"down_proj' are not in MXFP4: .* scales \(4, 32, 2\)"),
        ({f"{DOWN}_scales": torch.ones(4, 32, 1)}, "down_proj' must hold uint8, got torch.uint8 and torch.float32"),
    ],
)
def test_experts_that_are_not_in_mxfp4_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name, value in changes.items():
            del tensors[name]
            tensors |= {} if value is None else {name: value}

    write_mxfp4(tmp_path / "folder", change)
    with pytest.raises(CheckpointError, match=message):
        assert load_checkpoint(str(tmp_path / "folder")).model


def test_a_folder_without_what_its_config_describes_is_refused(tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("_blocks")]:
            del tensors[name]

    write_mxfp4(tmp_path / "folder", change)
    with pytest.raises(CheckpointError, match="has no matrix in 4 bits, which its quantization_config describes"):
        load_checkpoint(str(tmp_path / "folder"))
