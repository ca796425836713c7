"""Every fault that a graph may ship with is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from txport.bundles.bundle import Bundle, load_bundle
from txport.exporters.check import GraphError, check_graph, operators
from txport.exporters.weights import graph_weights
from txport.targets.ports import DECODER, ENCODER, SELECT

Edit = Callable[[ModelProto], object]


def rename(model: ModelProto, old: str, new: str) -> None:
    for value in [*model.graph.input, *model.graph.output]:
        if value.name == old:
            value.name = new
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def swap_inputs(model: ModelProto) -> None:
    first, second = list(model.graph.input)
    del model.graph.input[:]
    model.graph.input.extend([second, first])


def dims(model: ModelProto, name: str) -> list[onnx.TensorShapeProto.Dimension]:
    values = {value.name: value for value in [*model.graph.input, *model.graph.output]}
    return list(values[name].type.tensor_type.shape.dim)


def add_foreign(model: ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    fused = helper.make_node("FusedMatMul", ["last_hidden_state", "last_hidden_state"], ["_"], domain="com.microsoft")
    model.graph.node.append(fused)


def add_function(model: ModelProto) -> None:
    opsets = [helper.make_opsetid("", 18)]
    body = [helper.make_node("Identity", ["x"], ["y"])]
    model.functions.append(helper.make_function("ours", "Same", ["x"], ["y"], body, opsets))
    model.opset_import.append(helper.make_opsetid("ours", 1))


def add_branch(model: ModelProto) -> None:
    tensor = numpy_helper.from_array(np.array(True), "condition")
    out = helper.make_tensor_value_info("out", TensorProto.BOOL, [])
    body = helper.make_graph([helper.make_node("Identity", ["condition"], ["out"])], "body", [], [out])
    model.graph.initializer.append(tensor)
    branches = {"then_branch": body, "else_branch": body}
    model.graph.node.append(helper.make_node("If", ["condition"], ["either"], **branches))


def add_weight(graph: onnx.GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "left_over"))


def add_weight_to_branch(model: ModelProto) -> None:
    add_branch(model)
    add_weight(model.graph.node[-1].attribute[0].g)


def set_metadata(model: ModelProto, text: str) -> None:
    model.metadata_props.add(key="note", value=text)


def constant_of_text(model: ModelProto, text: str) -> None:
    model.graph.node.insert(0, helper.make_node("Constant", [], ["text"], value_string=text))


PORT_FAULTS: dict[str, Edit] = {
    "renamed input": lambda model: rename(model, "attention_mask", "mask"),
    "renamed output": lambda model: rename(model, "last_hidden_state", "hidden"),
    "inputs in another order": swap_inputs,
    "one input more": lambda model: model.graph.input.append(
        helper.make_tensor_value_info("more", TensorProto.FLOAT, ["batch_size"])
    ),
    "one output less": lambda model: model.graph.output.pop(),
    "static dim where a dynamic one belongs": lambda model: setattr(dims(model, "input_ids")[0], "dim_value", 2),
    "dynamic dim where a static one belongs": lambda model: setattr(
        dims(model, "last_hidden_state")[2], "dim_param", "D"
    ),
    "another name of a dim": lambda model: setattr(dims(model, "last_hidden_state")[0], "dim_param", "batch"),
    "another dtype": lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", TensorProto.INT32),
}
OTHER_FAULTS: dict[str, tuple[Edit, str]] = {
    "foreign operator": (add_foreign, r"operators outside the standard: com\.microsoft\.FusedMatMul"),
    "foreign opset": (add_foreign, r"opsets \{.*'com\.microsoft': 1.*\}, expected 18"),
    "local function": (add_function, "operators outside the standard: local functions"),
    "If": (add_branch, "control flow: If"),
    "weight that nothing reads": (lambda model: add_weight(model.graph), "initializers that no node reads: left_over"),
    "weight of a branch that nothing reads": (add_weight_to_branch, "initializers that no node reads: left_over"),
    "IR version": (lambda model: setattr(model, "ir_version", 12), "IR version 12, expected at most 10"),
    "doc string": (lambda model: setattr(model, "doc_string", "from /home/me/model.py"), "absolute paths, .*/home/me"),
    "doc string of a node": (
        lambda model: setattr(model.graph.node[3], "doc_string", 'File "/home/me/model.py", line 3'),
        "absolute paths, .*/home/me",
    ),
    "metadata": (lambda model: set_metadata(model, "/opt/build/out"), "absolute paths, .*/opt/build/out"),
    "metadata of a node": (
        lambda model: model.graph.node[3].metadata_props.append(
            onnx.StringStringEntryProto(key="stack", value="x = f(x)  # /srv/jobs/7/f.py:3")
        ),
        "absolute paths, .*/srv/jobs/7",
    ),
    "constant text": (lambda model: constant_of_text(model, "/srv/models/vocab"), "absolute paths, .*/srv/models"),
    "list": (lambda model: set_metadata(model, "[/home/me/a, 3]"), "absolute paths, .*/home/me/a"),
    "address of a file": (lambda model: set_metadata(model, "file:///home/me/a"), "absolute paths, .*/home/me/a"),
    "Windows path": (lambda model: set_metadata(model, r"C:\Users\me\model.py"), "absolute paths, .*Users"),
    "Windows path with slashes": (lambda model: set_metadata(model, "C:/Users/me"), "absolute paths, .*Users"),
    "not ONNX": (lambda model: model.graph.node[5].input.append("nowhere"), "is not valid ONNX"),
    "wrong types": (lambda model: setattr(model.graph.node[-1], "op_type", "Not"), "is not valid ONNX"),
}


def check_edited(copied: Path, role: str, edit: Edit) -> None:
    bundle = load_bundle(copied)
    model = onnx.load(str(bundle.file(role)))
    edit(model)
    onnx.save(model, str(bundle.file(role)))
    check_graph(bundle.file(role), bundle.manifest.graphs[role], bundle.manifest)


@pytest.mark.parametrize("role", [ENCODER, DECODER, SELECT])
def test_what_export_writes_passes(role: str, bundle: Bundle) -> None:
    check_graph(bundle.file(role), bundle.manifest.graphs[role], bundle.manifest)


@pytest.mark.parametrize("role", [ENCODER, DECODER])
def test_saving_alone_breaks_nothing(role: str, copied: Path) -> None:
    check_edited(copied, role, lambda model: None)


@pytest.mark.parametrize("fault", PORT_FAULTS)
def test_ports(fault: str, copied: Path) -> None:
    with pytest.raises(GraphError, match=r"encoder_model\.onnx breaks the portable contract: (in|out)puts differ"):
        check_edited(copied, ENCODER, PORT_FAULTS[fault])


def test_caches_in_another_order(copied: Path) -> None:
    def swap(model: ModelProto) -> None:
        for old, new in (("key", "_"), ("value", "key"), ("_", "value")):
            name = "past_key_values.1.decoder."
            rename(model, name + old, name + new)

    with pytest.raises(GraphError, match=r"inputs differ from the ports: .*past_key_values\.1\.decoder\.value"):
        check_edited(copied, DECODER, swap)


@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_other_faults(fault: str, copied: Path) -> None:
    edit, message = OTHER_FAULTS[fault]
    with pytest.raises(GraphError, match=message):
        check_edited(copied, ENCODER, edit)


@pytest.mark.parametrize("text", ["a/b/c", "node/encoder/0", "https://example.org/a/b", "and/or", "1 / 2 / 3", "./a/b"])
def test_not_every_slash_is_a_path(text: str, copied: Path) -> None:
    check_edited(copied, ENCODER, lambda model: set_metadata(model, text))


def test_all_faults_at_once(copied: Path) -> None:
    def edit(model: ModelProto) -> None:
        add_branch(model)
        rename(model, "attention_mask", "mask")

    with pytest.raises(GraphError, match=r"inputs differ .*'mask'.*; control flow: If"):
        check_edited(copied, ENCODER, edit)


def test_another_opset_than_asked_for(bundle: Bundle) -> None:
    with pytest.raises(GraphError, match=r"opsets \{'': 18\}, expected 21"):
        check_graph(bundle.file(ENCODER), bundle.manifest.graphs[ENCODER], replace(bundle.manifest, opset=21))


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_truncated(kept: int, copied: Path) -> None:
    bundle = load_bundle(copied)
    file = bundle.file(ENCODER)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(GraphError, match=r"encoder_model\.onnx"):
        check_graph(file, bundle.manifest.graphs[ENCODER], bundle.manifest)


def test_operators_and_weights(copied: Path) -> None:
    file = load_bundle(copied).file(SELECT)
    assert operators(file) == {"Gather": 10}
    assert graph_weights(file) == {}
    model = onnx.load(str(load_bundle(copied).file(ENCODER)))
    add_foreign(model)
    onnx.save(model, str(file))
    assert operators(file)["com.microsoft.FusedMatMul"] == 1
    weight = graph_weights(file)["encoder.1.feed_forward.inner.weight"]
    assert (weight.shape, weight.dtype) == ((24, 16), np.float32)
