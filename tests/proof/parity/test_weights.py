"""Every tensor of the checkpoint is in a graph, and every weight in a graph is known."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from tests.proof.faults import Edit
from tests.seeded import drawn, saved
from tests.tiny import edit_graph, tiny_config, tiny_model, unproven
from txport.bundles.bundle import Bundle, load_bundle, seal
from txport.bundles.forms import DYNAMIC, Form, blocks_of
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.exporters.export import export_graphs
from txport.exporters.fused import quantize as quantizer
from txport.exporters.fused import rewrite
from txport.exporters.weights import Held
from txport.models.architectures import annotated
from txport.models.parts import Linear, UnbiasedNorm
from txport.proof.bisect.culprit import bisect
from txport.proof.parity.check import check
from txport.proof.parity.measures import Comparison
from txport.proof.parity.weights import compare_held, compare_weights, projection_of
from txport.targets.ports import DECODER, ENCODER, STEP

Array = NDArray[Any]
Quantize = Callable[[Array, Form, Any], quantizer.Quantized]
RIGHT = quantizer.quantize
KEY = "decoder.0.attention.key.weight"
PROVEN_ON = {"cpu": {"ort": "cpu"}, "cuda": {"cuda-stand-in": "cpu"}}


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Checkpoint:
    return load_checkpoint(str(checkpoint))


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checkpoint, Bundle]]:
    """A model with screening in fp32, and the same in 8 bits, by rows and, for steps of one row, in blocks."""
    folder = tmp_path_factory.mktemp("fused")
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "target_vocab_size": 4100, "tied": "target"}
    save_checkpoint(folder / "toy", tiny_model(tiny_config(**sizes)))
    loaded = load_checkpoint(str(folder / "toy"))
    kinds: dict[str, dict[str, Any]] = {
        "fp32": {},
        "int8": {"precision": "int8"},
        "blocks": {"precision": "int8", "rows": 1},
    }
    return {kind: (loaded, unproven(folder / "toy", folder / kind, target="cpu", **how)) for kind, how in kinds.items()}


def failed(bundle: Bundle, checkpoint: Checkpoint) -> list[Comparison]:
    return [each for each in compare_weights(bundle, checkpoint) if not each.passed]


def renamed(old: str, new: str) -> Edit:
    """A weight that nobody would look for: the graph computes the same."""

    def edit(model: ModelProto) -> None:
        for tensor in model.graph.initializer:
            tensor.name = new if tensor.name == old else tensor.name
        for node in model.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]

    return edit


def hidden(model: ModelProto) -> None:
    """A weight that stands in a node, not among the initializers."""
    tensor = next(each for each in model.graph.initializer if each.name == KEY)
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, helper.make_node("Constant", [], [KEY], value=tensor))
    renamed(KEY, "constant")(model)
    model.graph.node[0].output[0] = "constant"


def more(array: np.ndarray) -> Edit:
    def edit(model: ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(array, "stowaway"))

    return edit


def in_a_branch(model: ModelProto) -> None:
    weight = helper.make_node("Constant", [], ["stowaway"], value=numpy_helper.from_array(np.ones((2, 2), np.float32)))
    branch = helper.make_graph([weight], "branch", [], [helper.make_tensor_value_info("stowaway", 1, [2, 2])])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["never"], then_branch=branch, else_branch=branch))


def test_sound_bundles_hold_all_weights(
    bundle: Bundle, loaded: Checkpoint, fused: dict[str, tuple[Checkpoint, Bundle]]
) -> None:
    assert failed(bundle, loaded) == []
    for checkpoint, each in fused.values():
        assert failed(each, checkpoint) == []
    names = {each.tensor for each in compare_weights(fused["fp32"][1], fused["fp32"][0])}
    assert names >= {"screening.weight", "screening.scale", "screening.zeros", "source_embedding.positions"}


@pytest.mark.parametrize("edit", [renamed(KEY, "val_999"), hidden], ids=["renamed", "hidden in a node"])
def test_a_weight_under_another_name_is_missing_and_unknown(edit: Edit, copied: Path, loaded: Checkpoint) -> None:
    found = failed(edit_graph(copied, DECODER, edit), loaded)
    assert [each.tensor for each in found if each.note == "is in no graph"] == [KEY]
    assert [each.runtime for each in found if "is no weight of the checkpoint" in each.note] == [DECODER]
    assert f"bundle, case weights, step 0: {KEY} is in no graph" in [each.describe() for each in found]


@pytest.mark.parametrize("edit", [more(np.ones(2, np.float32)), more(np.ones((3, 3), np.int8)), in_a_branch])
def test_a_weight_that_nobody_knows_is_found(edit: Edit, copied: Path, loaded: Checkpoint) -> None:
    found = failed(edit_graph(copied, ENCODER, edit), loaded)
    assert len(found) == (2 if edit is in_a_branch else 1)
    assert all("stowaway" in each.tensor and "is no weight of the checkpoint" in each.note for each in found)


def test_numbers_of_shapes_are_no_weights(copied: Path, loaded: Checkpoint) -> None:
    for array in (np.arange(64), np.array(0.5, np.float32), np.zeros((0, 3), np.float32)):
        assert failed(edit_graph(copied, ENCODER, more(array)), loaded) == []


@pytest.mark.parametrize(
    ("kind", "role", "name"),
    [
        ("fp32", STEP, "screening.weight"),
        ("fp32", STEP, "screening.scale"),
        ("fp32", STEP, "target_embedding.positions"),
        ("blocks", STEP, "projection.weight.8-bit-blocks-of-16.lookup.scale"),
        ("blocks", ENCODER, "source_embedding.tokens.weight.8-bit-blocks-of-16.lookup.scale"),
        ("int8", STEP, "decoder.0.cross_attention.query.weight.scale"),
    ],
)
def test_what_is_computed_from_weights_is_computed_anew(
    kind: str, role: str, name: str, fused: dict[str, tuple[Checkpoint, Bundle]], tmp_path: Path
) -> None:
    checkpoint, bundle = fused[kind]
    copy = load_bundle(Path(shutil.copytree(bundle.path, tmp_path / "copy")))

    def edit(model: ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array.flat[array.size // 2] += 3
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    found = failed(edit_graph(copy.path, role, edit), checkpoint)
    assert len(found) >= 1
    assert any(name.startswith(each.tensor) for each in found)


@pytest.mark.usefixtures("few_cases")
def test_nothing_is_read_back_from_the_names_of_initializers(
    fused: dict[str, tuple[Checkpoint, Bundle]], tmp_path: Path
) -> None:
    """A packed matrix in 8 bits is found under any name that the manifest records, and under no other."""
    checkpoint, bundle = fused["int8"]
    old = next(name for name, each in bundle.manifest.weights.items() if KEY in each.weights)
    copy = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    edited = edit_graph(copy, STEP, renamed(old, "anything"))
    assert {each.tensor for each in failed(edited, checkpoint)} >= {"anything", KEY}
    table = {"anything" if name == old else name: each for name, each in bundle.manifest.weights.items()}
    recorded = seal(copy, replace(edited.manifest, weights=table))
    assert failed(recorded, checkpoint) == []
    assert bisect(recorded, checkpoint) is None


# --- grids ------------------------------------------------------------------------------------------------------


def longer(factor: float) -> Quantize:
    """Every weight the nearest on a grid whose steps are longer than they need be."""

    def quantize(matrix: Array, form: Form, scales_in: Any) -> quantizer.Quantized:
        found = RIGHT(matrix, form, scales_in)
        scales = scales_in.type(factor) * found.scales
        if form.has_row_scales:
            values = np.rint(matrix / scales[:, None]).astype(np.int8)
            return quantizer.Quantized(form, np.ascontiguousarray(values.T if form == DYNAMIC else values), scales)
        bits = form.bits
        block = form.block or 1
        zeros = 2 ** (bits - 1) if found.zeros is None else found.zeros[..., None]
        values = np.clip(np.rint(matrix.reshape(len(matrix), -1, block) / scales[..., None]) + zeros, 0, 2**bits - 1)
        return quantizer.Quantized(form, packed(values.astype(np.uint8), bits), scales, zeros=found.zeros)

    return quantize


def a_step_too_low(matrix: Array, form: Form, scales_in: Any) -> quantizer.Quantized:
    """As if another number stood for zero, in blocks."""
    found = RIGHT(matrix, form, scales_in)
    if form.has_row_scales:
        return found
    bits = form.bits
    values = (
        found.values if bits == 8 else np.stack([found.values & 15, found.values >> 4], -1).reshape(len(matrix), -1)
    )
    lower = packed(np.maximum(values, 1) - 1, bits).reshape(found.values.shape)
    return quantizer.Quantized(form, lower, found.scales, zeros=found.zeros)


def packed(values: Array, bits: int) -> Array:
    return values if bits == 8 else values[..., 0::2] | (values[..., 1::2] << 4)


@pytest.mark.parametrize(
    ("target", "precision", "rows", "coarser"),
    [
        ("cpu", "int8", None, 2),
        ("cpu", "int8", 1, 2),
        ("cpu", "int4", None, 2),
        ("cuda", "int8", None, 2),
        ("cuda", "int4", None, 4),
    ],
)
@pytest.mark.parametrize("is_right", [True, False], ids=["as fine as can be", "coarser"])
def test_a_grid_that_is_too_coarse_fails(
    target: str,
    precision: str,
    rows: int | None,
    coarser: int,
    is_right: bool,
    loaded: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Where weights are rounded well, but to a bad grid; parity computes with what a bundle holds.

    In 4 bits, as all matrices of the cuda target are, one bit fewer may be chance in matrices as small as these.
    """
    if not is_right:
        request.getfixturevalue("few_cases")
    fault = RIGHT if is_right else longer(coarser)
    bundle = exported(loaded, tmp_path, fault, monkeypatch, target=target, precision=precision, rows=rows)
    assert bool(failed(bundle, loaded)) != is_right
    assert check(bundle, loaded, PROVEN_ON[target]).passed == is_right


@pytest.mark.parametrize(("bits", "block"), [(8, 128), (8, 16), (4, 32), (4, 16)])
@pytest.mark.parametrize("scales_in", [np.float16, np.float32])
def test_a_grid_twice_as_coarse_fails_in_a_large_matrix(bits: int, block: int, scales_in: type) -> None:
    form = blocks_of(bits, block)
    matrix = np.random.default_rng(0).standard_t(3, (128, 256)).astype(np.float32)
    for quantize, is_right in ((RIGHT, True), (longer(2), False)):
        found = quantize(matrix, form, np.dtype(scales_in))
        assert compare_held("step", Held("weight", quantizer.dequantize(found), found), matrix).passed == is_right


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("scale", [1e-5, 1e-6])
def test_zeros_in_the_place_of_tiny_weights_fail(bits: int, scale: float) -> None:
    matrix = np.random.default_rng(0).uniform(scale, 2 * scale, (16, 64)).astype(np.float32)
    found = RIGHT(matrix, blocks_of(bits, 16), np.dtype(np.float16))
    assert compare_held("step", Held("weight", quantizer.dequantize(found), found), matrix).passed
    assert not compare_held("step", Held("weight", np.zeros_like(matrix), found), matrix).passed


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(("target", "rows"), [("cpu", 1), ("cuda", None)])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_grid_that_is_shifted_fails(
    target: str, rows: int | None, precision: str, loaded: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = exported(loaded, tmp_path, a_step_too_low, monkeypatch, target=target, precision=precision, rows=rows)
    assert failed(bundle, loaded) != []
    assert not check(bundle, loaded, PROVEN_ON[target]).passed


@given(
    matrix=arrays(np.float32, (4, 64), elements=st.floats(-8, 8, width=32)),
    small=st.integers(-30, 3),
    bits=st.sampled_from([8, 4]),
    block=st.sampled_from([64, 32, 16]),
)
def test_scales_in_16_bits_keep_every_weight_in_range(matrix: Array, small: int, bits: int, block: int) -> None:
    """However small the weights of a block are: half precision tells no numbers below 6e-8 apart."""
    matrix = np.ldexp(matrix, small)
    found = RIGHT(matrix, blocks_of(bits, block), np.dtype(np.float16))
    assert found.scales.dtype == np.float16
    held = Held("weight", quantizer.dequantize(found), found)
    assert compare_held("step", held, matrix).passed
    exact = RIGHT(matrix, blocks_of(bits, block), np.dtype(np.float32))
    more = 2 ** (bits - 1) * np.abs(quantizer.steps(found) - quantizer.steps(exact)) + 1e-6 * np.abs(matrix) + 1e-30
    assert np.all(np.abs(held.values - matrix) <= np.abs(quantizer.dequantize(exact) - matrix) + more)
    assert np.all(np.abs(held.values - matrix) <= (0.5001 if bits == 8 else 2) * quantizer.steps(found) + 1e-30)


def exported(
    checkpoint: Checkpoint, folder: Path, quantize: Quantize, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> Bundle:
    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "quantize", quantize)
        return seal(folder, export_graphs(checkpoint, folder, **how))


# --- what is found by what it is --------------------------------------------------------------------------------


class Nested(torch.nn.Module):
    """A model whose map to the vocabulary stands elsewhere than others'."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.ModuleDict({"inner": Linear(4, 4, tag="ffn_in"), "out": Linear(4, 9, tag="projection")})


def test_the_projection_is_found_by_its_tag() -> None:
    model: Any = Nested()
    assert projection_of(model) is model.head["out"]


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_the_epsilon_beside_a_root_is_compared(target: str, tmp_path: Path) -> None:
    sizes = {"d_model": 16, "heads": 2, "feed_forward": 24, "layers": 1}
    vocabulary = {"source_vocab_size": 12, "target_vocab_size": 12, "max_length": 24}
    checkpoint = saved(annotated.AnnotatedConfig(**vocabulary, **sizes), tmp_path / "model")
    bundle = seal_graphs(checkpoint, tmp_path / "bundle", target)
    norms = {f"{name}.epsilon" for name, each in checkpoint.model.named_modules() if isinstance(each, UnbiasedNorm)}
    assert norms
    found = list(compare_weights(bundle, checkpoint))
    assert {each.tensor for each in found if each.tensor.endswith(".epsilon")} == norms
    assert all(each.passed for each in found)
    for each in checkpoint.model.modules():
        if isinstance(each, UnbiasedNorm):
            each.eps = 2e-6
    assert {each.tensor for each in failed(bundle, checkpoint)} == norms


def seal_graphs(checkpoint: Checkpoint, folder: Path, target: str) -> Bundle:
    folder.mkdir()
    return seal(folder, export_graphs(checkpoint, folder, target=target))


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_causal_model_has_no_greatest_number_of_new_tokens(name: str, tmp_path: Path) -> None:
    """It follows from the prompt."""
    bundle = seal_graphs(saved(drawn(name, 0), tmp_path / "model"), tmp_path / "bundle", "portable")
    assert "max_new_tokens" not in bundle.manifest.generation
