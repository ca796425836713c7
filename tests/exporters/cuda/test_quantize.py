"""Weights of cuda bundles in 8 and 4 bits: which are, in which blocks, and that their numbers are the checkpoint's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from tests.tiny import edit_graph, tiny_config, tiny_model
from txport.bundles.bundle import Bundle, seal
from txport.bundles.forms import blocks_of
from txport.bundles.graphs import read_model
from txport.bundles.manifest import Manifest
from txport.bundles.reading import read_manifest
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.checkpoints.weights.streamed import emptied
from txport.errors import BundleError, UnsupportedError
from txport.exporters.export import export_graphs
from txport.exporters.weights import graph_weights
from txport.inspection.weights import parts_of
from txport.proof.bisect.culprit import bisect
from txport.proof.parity.weights import compare_weights
from txport.targets.ports import ENCODER, STEP

BITS = {"int8": 8, "int4": 4}
QUERY = "decoder.1.cross_attention.query.weight"
Make = Callable[..., Checkpoint]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def checkpoint(**sizes: Any) -> Checkpoint:
        save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(**sizes)))
        return load_checkpoint(str(tmp_path / "toy"))

    return checkpoint


def exported(checkpoint: Checkpoint, folder: Path, precision: str) -> Bundle:
    folder.mkdir()
    return seal(folder, export_graphs(checkpoint, folder, target="cuda", precision=precision))


def types(bundle: Bundle, role: str) -> dict[str, str]:
    """Those of the weights of a graph."""
    name = onnx.helper.tensor_dtype_to_np_dtype
    return {
        each.name: name(each.data_type).name for each in read_model(bundle.file(role), weights=False).graph.initializer
    }


@pytest.mark.parametrize("precision", BITS)
def test_products_and_lookups_read_blocks_and_all_else_is_in_16_bits(
    make: Make, tmp_path: Path, precision: str
) -> None:
    sizes = {"d_model": 64, "feed_forward": 80, "source_vocab_size": 24, "target_vocab_size": 40, "tied": "target"}
    bundle = exported(make(**sizes), tmp_path / "out", precision)
    assert bundle.manifest.dtype == "float16"
    bits = BITS[precision]
    usual = {8: 64, 4: 32}[bits]
    assert set(bundle.manifest.forms.values()) == {blocks_of(bits, usual), blocks_of(bits, 16)}
    for role in (ENCODER, STEP):
        graph = read_model(bundle.file(role), weights=False).graph
        operators = [node.op_type for node in graph.node]
        assert "MatMulNBits" in operators
        assert "GatherBlockQuantized" in operators
        for node in (each for each in graph.node if each.op_type == "MatMulNBits"):
            said = {each.name: each.i for each in node.attribute}
            assert said.keys() == {"K", "N", "bits", "block_size"}, "activations are not rounded to 8 bits"
            assert said["bits"] == bits
        found = types(bundle, role)
        assert {kind for name, kind in found.items() if name.endswith("scale")} == {"float16"}
        assert set(found.values()) <= {"uint8", "float16", "int64", "float32"}
        wide = [name for name, kind in found.items() if kind == "float32"]
        shapes = {each.name: each.dims for each in graph.initializer}
        assert all(np.prod(shapes[name], dtype=int) == 1 for name in wide)


@pytest.mark.parametrize(("precision", "zero"), [("int8", 0x80), ("int4", 0x88)])
def test_a_lookup_says_what_stands_for_zero(make: Make, tmp_path: Path, precision: str, zero: int) -> None:
    """Without it, some versions of ONNX Runtime take 0 on CUDA, and what is right on a CPU."""
    sizes = {"d_model": 48, "heads": 3, "source_vocab_size": 24, "target_vocab_size": 40, "tied": "target"}
    checkpoint = make(**sizes)  # rows of three blocks
    bundle = exported(checkpoint, tmp_path / "out", precision)
    for role in (ENCODER, STEP):
        graph = read_model(bundle.file(role), weights=False).graph
        tensors = graph_weights(bundle.file(role))
        lookups = [node for node in graph.node if node.op_type == "GatherBlockQuantized"]
        assert lookups
        for node in lookups:
            _, _, scales, zeros = (tensors.get(name) for name in node.input)
            assert scales is not None
            assert zeros is not None
            assert zeros.shape == scales.shape
            assert np.all(zeros == zero)
    assert all(each.passed for each in compare_weights(bundle, checkpoint))
    assert bisect(bundle, checkpoint) is None
    stored = next(each for each in bundle.manifest.weights.values() if each.lookup_scales)
    name = str(stored.lookup_zeros)

    def shift(model: onnx.ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name == name)
        array: NDArray[Any] = onnx.numpy_helper.to_array(tensor) - 1
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))

    role = next(role for role in (ENCODER, STEP) if name in graph_weights(bundle.file(role)))
    edited = edit_graph(bundle.path, role, shift)
    assert [each.tensor for each in compare_weights(edited, checkpoint) if not each.passed] == [name]


def test_a_scale_that_16_bits_can_not_hold_is_refused(make: Make, tmp_path: Path) -> None:
    checkpoint = make()
    with torch.no_grad():
        dict(checkpoint.outline.named_parameters())[QUERY][0, 0] = 1e7
    with pytest.raises(UnsupportedError, match=f"{QUERY} can't be quantised: a block needs the scale"):
        exported(checkpoint, tmp_path / "out", "int8")


@pytest.mark.parametrize("precision", BITS)
def test_a_tied_matrix_is_held_once(make: Make, tmp_path: Path, precision: str) -> None:
    bundle = exported(make(target_vocab_size=4096, tied="target"), tmp_path / "out", precision)
    tied = next(name for name, each in bundle.manifest.weights.items() if each.weights == ("projection.weight",))
    graph = read_model(bundle.file(STEP), weights=False).graph
    readers = {node.op_type for node in graph.node if tied in node.input}
    assert readers == {"MatMulNBits", "GatherBlockQuantized"}
    size = (tmp_path / "out" / "onnx" / "weights.bin").stat().st_size
    scales = zeros = 4096  # one block of 16 inputs a row; zeros are bytes, scales two
    matrix = 4096 * 16 * BITS[precision] // 8 + 2 * scales + zeros
    [held] = [each.bytes for each in parts_of(bundle) if each.bytes >= matrix // 2]
    assert held == matrix
    others = sum(each.bytes for each in parts_of(bundle) if each.bytes < matrix // 2)
    assert matrix < size <= 1.01 * (matrix + others)


def test_a_matrix_whose_rows_kernels_do_not_take_stays_in_16_bits(make: Make, tmp_path: Path) -> None:
    """ONNX Runtime would unpack all of it in every step."""
    bundle = exported(make(target_vocab_size=4100, tied="target"), tmp_path / "out", "int4")
    assert types(bundle, STEP)["projection.weight"] == "float16"
    assert QUERY in bundle.manifest.forms
    assert "projection.weight" not in bundle.manifest.forms


@pytest.mark.parametrize("precision", BITS)
def test_a_model_that_has_no_such_matrix_is_refused(make: Make, tmp_path: Path, precision: str) -> None:
    told = f"{precision} on cuda needs matrices of whole blocks of 16 inputs and 8 outputs, and this model has none; "
    with pytest.raises(UnsupportedError, match=told):
        exported(make(d_model=24, heads=3, feed_forward=24), tmp_path / "out", precision)


@pytest.mark.parametrize("precision", BITS)
def test_weights_are_quantised_from_the_checkpoints_own_numbers_however_they_are_read(
    make: Make, tmp_path: Path, precision: str
) -> None:
    whole = make()
    known = dict(whole.outline.named_parameters())
    streamed = dataclasses.replace(whole, outline=emptied(whole.outline), read=lambda name: known[name].detach())
    one, other = (
        exported(each, tmp_path / name, precision) for name, each in (("whole", whole), ("streamed", streamed))
    )
    assert {**one.manifest.files} == {**other.manifest.files}


def test_the_bundle_says_what_it_holds(make: Make, tmp_path: Path) -> None:
    bundle = exported(make(), tmp_path / "out", "int4")
    said = (bundle.path / "README.md").read_text(encoding="utf-8")
    assert "weights of products are in 4-bit blocks with 16-bit scales; what is computed with them is 16-bit" in said
    assert "x64quantprecision" not in said


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rows": 4}, "a bundle of cuda has no kernels by rows, and keeps nothing in fp32"),
        ({"precision": "fp16"}, "a bundle of cuda fp16 has no quantised weights"),
    ],
)
def test_a_manifest_that_says_what_can_not_be_is_refused(
    make: Make, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    bundle = exported(make(), tmp_path / "out", "int4")
    manifest: Manifest = dataclasses.replace(bundle.manifest, **changes)
    seal(bundle.path, manifest)
    with pytest.raises(BundleError, match=told):
        read_manifest(bundle.path)
