"""The culprit in a bundle for a device, found without one: its graphs are taken apart, and looked at in fp32."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.tiny import edit_graph, tiny_config, tiny_model
from txport.bundles.bundle import Bundle, seal
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.exporters.export import export_graphs
from txport.proof.bisect import culprit as module
from txport.proof.bisect.culprit import bisect
from txport.targets.ports import ENCODER, STEP

Edit = Callable[[onnx.ModelProto], None]
CONFIG = tiny_config(activation="gelu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, tiny_model(CONFIG))
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module", params=["fp16", "bf16", "fp32"])
def sound(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp(request.param)
    return seal(folder, export_graphs(checkpoint, folder, target="cuda", precision=request.param))


def nth(operator: str, number: int, change: Callable[[onnx.NodeProto], None]) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        change([node for node in model.graph.node if node.op_type == operator][number])

    return edit


def attribute(name: str, value: float) -> Callable[[onnx.NodeProto], None]:
    def change(node: onnx.NodeProto) -> None:
        for each in [each for each in node.attribute if each.name == name]:
            node.attribute.remove(each)
        node.attribute.append(onnx.helper.make_attribute(name, value))

    return change


def weight(name: str, factor: float) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name == name)
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array((values * factor).astype(values.dtype), name))

    return edit


def unmasked(model: onnx.ModelProto) -> None:
    """The first attention of an encoder sees padding."""
    node = next(node for node in model.graph.node if node.op_type == "Attention")
    del node.input[3:]


FAULTS = {
    "lengths": (ENCODER, unmasked, "encoder layer 0, self-attention"),
    "a weight": (STEP, weight("decoder.1.attention.output.weight", 1.5), "decoder layer 1, self-attention, output"),
    "a bias that a norm adds": (
        STEP,
        weight("decoder.0.feed_forward.outer.bias", 0.0),
        "decoder layer 0, feed-forward, second linear layer",
    ),
    "the epsilon of a norm": (STEP, nth("SkipLayerNormalization", 1, attribute("epsilon", 0.5)), "decoder layer 0"),
    "the factor of scores": (ENCODER, nth("Attention", 1, attribute("scale", 0.1)), "encoder layer 1, self-attention"),
}


def test_what_is_sound_is_not_accused(sound: Bundle, checkpoint: Checkpoint) -> None:
    assert bisect(sound, checkpoint, seed=1) is None


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_was_planted(
    fault: str, sound: Bundle, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sound.manifest.precision == "bf16" and fault != "a weight":
        pytest.skip("two precisions tell")
    monkeypatch.setattr(module, "origin", lambda *_: "")
    role, edit, where = FAULTS[fault]
    copy = Path(shutil.copytree(sound.path, tmp_path / "bundle"))
    found = bisect(edit_graph(copy, role, edit), checkpoint)
    assert found is not None
    assert found.where.startswith(where)


@pytest.mark.usefixtures("few_cases")
def test_a_fault_in_the_file_alone_is_told_from_one_of_the_exporter(
    sound: Bundle, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """The exporter is run again, and its graph probed after each step."""
    if sound.manifest.precision != "fp16":
        pytest.skip("one precision tells")
    role, edit, _ = FAULTS["the factor of scores"]
    copy = Path(shutil.copytree(sound.path, tmp_path / "bundle"))
    found = bisect(edit_graph(copy, role, edit), checkpoint)
    assert found is not None
    assert found.origin.startswith("not in a fresh export of the checkpoint")
