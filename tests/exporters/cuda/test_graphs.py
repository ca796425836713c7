"""The graphs of the cuda target: what they are made of, what they refuse, and what moves a state."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import txport
from tests.tiny import tiny_config, tiny_facts, tiny_model
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.errors import UnsupportedError
from txport.exporters.check import GraphError
from txport.exporters.cuda.exporter import EXPORTER, check_operators
from txport.exporters.cuda.fusions import fuse_biases, fuse_residuals
from txport.exporters.cuda.operators import ATTENTION, WRITE
from txport.exporters.export import export_graphs
from txport.exporters.exporter import Job
from txport.exporters.fused.parts import PACKED
from txport.exporters.memory import memory_model
from txport.exporters.tracing.passes import CLEANING
from txport.exporters.tracing.trace import kinds_of_trace, parts_of_trace
from txport.models.architectures.llama import Llama, LlamaConfig
from txport.models.model import Model
from txport.models.parts import Attention
from txport.proof.bisect.probe import shown
from txport.runtimes.ort.widened import widen
from txport.targets import TARGETS, ports
from txport.targets.ports import Graph

Array = NDArray[Any]
HOST = {"Shape", "Size", "Range", "If", "Loop", "Scan", "NonZero", "ConstantOfShape"}  # what asks the host, or is one
CAUSAL = LlamaConfig(
    vocab_size=32, d_model=32, heads=4, key_heads=2, head_size=8, decoder_layers=2, feed_forward=48, max_length=32,
    windows=(3, 0), attention_cap=2.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, tiny_model(tiny_config(activation="gelu")))
    return load_checkpoint(str(folder))


def exported(checkpoint: Checkpoint, folder: Path, **how: Any) -> Manifest:
    folder.mkdir(exist_ok=True)
    return export_graphs(checkpoint, folder, target="cuda", **how)


def manifest_of(model: Model, precision: str = "fp32") -> Manifest:
    """What a job needs to know of an export."""
    return Manifest(
        target="cuda", precision=precision, opset=24, architecture="", config={}, facts=model.facts, checkpoint={},
        tools={},
    )  # fmt: skip


def traced(model: Model, role: str) -> ir.Model:
    target = EXPORTER
    job = Job(model, manifest_of(model), role)
    found = target.trace(job)
    CLEANING["remove unused nodes"](found, job.ports)
    return found


def ran(model: ir.Model, inputs: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


# --- what they are made of --------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_no_graph_asks_the_host_for_anything(tiny: Checkpoint, tmp_path: Path, precision: str) -> None:
    manifest = exported(tiny, tmp_path / "out", precision=precision)
    for graph in manifest.graphs.values():
        found = onnx.load(str(tmp_path / "out" / graph.file), load_external_data=False).graph
        assert not {node.op_type for node in found.node} & HOST
        types = {value.type.tensor_type.elem_type for value in (*found.input, *found.output)}
        assert onnx.helper.np_dtype_to_tensor_dtype(np.dtype(manifest.dtype)) in types or precision == "fp32"
    assert (tmp_path / "out" / "onnx" / "weights.bin").stat().st_size > 0


def test_what_a_step_reads_again_is_read_before_it_is_written(tiny: Checkpoint, tmp_path: Path) -> None:
    """`present_lengths` may lie where `past_lengths` lie: only the node that makes one of the other reads these."""
    manifest = exported(tiny, tmp_path / "out")
    graph = onnx.load(str(tmp_path / "out" / manifest.graphs[ports.STEP].file), load_external_data=False).graph
    readers = {name: [node for node in graph.node if name in node.input] for name in (ports.PAST_LENGTHS, "input_ids")}
    assert [node.output[0] for node in readers[ports.PAST_LENGTHS]] == [ports.PRESENT_LENGTHS]
    needed = set[str]()
    waiting = [ports.NEXT_IDS]
    made = {name: node for node in graph.node for name in node.output}
    while waiting:
        node = made.get(waiting.pop())
        if node is not None and node.output[0] not in needed:
            needed.add(node.output[0])
            waiting.extend(node.input)
    assert all(node.output[0] in needed for node in readers["input_ids"])


def test_weights_are_cast_once_and_shared_by_all_graphs(tiny: Checkpoint, tmp_path: Path) -> None:
    sizes = {}
    for precision in ("fp32", "fp16", "bf16"):
        manifest = exported(tiny, tmp_path / precision, precision=precision)
        sizes[precision] = sum(
            int(np.prod(tensor.dims))
            for graph in manifest.graphs.values()
            for tensor in onnx.load(str(tmp_path / precision / graph.file), load_external_data=False).graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
        )
    files = {name: (tmp_path / name / "onnx" / "weights.bin").stat().st_size for name in sizes}
    assert files["fp16"] == files["bf16"] < files["fp32"]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_step_computes_what_it_computes_taken_apart(tiny: Checkpoint, tmp_path: Path, precision: str) -> None:
    """The sums that norms and gelus took in, against the same sums beside them."""
    manifest = exported(tiny, tmp_path / "out", precision=precision)
    rng = np.random.default_rng(0)
    sizes = {"batch_size": 2, "beams": 2, "rows": 4, "capacity": 6}
    sizes["encoder_sequence_length"] = 5
    for role in (ports.ENCODER, ports.STEP):
        graph = manifest.graphs[role]
        file = tmp_path / "out" / graph.file
        apart = shown(ir.load(file), manifest)
        found = Counter(node.op_type for node in apart.graph)
        assert not {"SkipLayerNormalization", "BiasGelu"} & set(found)
        assert found["LayerNormalization"]
        assert found["Gelu"]
        inputs = {}
        for port in graph.inputs:
            shape = port.shape(sizes)
            whole = {"k": np.array([2]), "input_ids": rng.integers(0, 20, shape)}.get(port.name, np.full(shape, 4))
            inputs[port.name] = whole if port.dtype == "int64" else rng.standard_normal(shape).astype(np.float32)
        content = onnx.load(str(file))
        widen(content.graph)
        whole = ran(ir.from_proto(content), inputs)
        for name, values in ran(apart, inputs).items():
            np.testing.assert_allclose(values, whole[name], rtol=2e-4, atol=2e-5)


def test_only_equal_parts_are_packed() -> None:
    """A cut into unequal parts would be told its sizes by the host."""
    for role in (ports.PREFILL, ports.STEP):
        model = traced(Llama(CAUSAL).eval(), role)
        sizes = {
            len(node.outputs): {tuple(value.shape or ())[-1] for value in node.outputs}
            for node in model.graph
            if node.op_type == "Split"
        }
        assert sizes
        assert all(len(each) == 1 for each in sizes.values())


def test_sums_of_unlike_shapes_and_of_weights_stay_nodes() -> None:
    """A sum that repeats numbers is no residual: `SkipLayerNormalization` repeats nothing."""

    def value(name: str, *dims: int | str) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(dims))

    for other in (value("y", "S", 4), value("y", "B", 1, 4)):
        x = value("x", "B", "S", 4)
        weight = ir.Value(name="w", const_value=ir.tensor(np.ones(4, np.float32)))
        total = ir.node("Add", [x, other], outputs=[value("t", "B", "S", 4)])
        norm = ir.node("LayerNormalization", [total.outputs[0], weight], outputs=[value("n", "B", "S", 4)])
        graph = ir.Graph([x, other], norm.outputs, nodes=[total, norm], initializers=[weight], name="g")
        graph.opset_imports[""] = 24
        model = ir.Model(graph, ir_version=10)
        assert fuse_residuals(model, Graph("g", "g.onnx", (), ())) == 0
        assert fuse_biases(model, Graph("g", "g.onnx", (), ())) == 0


@pytest.mark.parametrize("role", [ports.PREFILL, ports.STEP])
@pytest.mark.parametrize(
    ("operator", "changes", "told"),
    [
        (ATTENTION, {"softcap": None}, "instead of 0"),
        (ATTENTION, {"is_causal": 1}, "is_causal"),
        (ATTENTION, "attn_mask", "attn_mask, softcap 2.1 instead of 1"),
        (WRITE, "gone", "TensorScatter instead of"),
        (ATTENTION, {}, None),
    ],
)
def test_an_operator_that_lost_what_its_part_does_is_found_without_running_it(
    role: str, operator: str, changes: Any, told: str | None
) -> None:
    graph = traced(Llama(CAUSAL).eval(), role)
    became = parts_of_trace(graph)
    kinds = kinds_of_trace(graph)
    node = next(each for each in graph.graph if each.op_type == operator)  # of the layer with a window
    if changes == "attn_mask":
        node.replace_input_with(3, None)
    elif changes == "gone":
        node.outputs[0].replace_all_uses_with(node.inputs[0], replace_graph_outputs=True)
        graph.graph.remove(node)
    else:
        for name, number in changes.items():
            node.attributes.pop(name)
            if number is not None:
                node.attributes[name] = ir.AttrInt64(name, 1 - role.startswith(ports.PREFILL))
    with pytest.raises(GraphError, match=told) if told else nullcontext():
        check_operators(graph, became, kinds, became[PACKED], role)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"d_model": 12}, {}, "needs a head size that is a multiple of 8 and at most 256, this model's is 6"),
        ({"d_model": 528}, {}, "needs a head size that is a multiple of 8 and at most 256, this model's is 264"),
        ({}, {"opset": 23}, "in opset 24 and later, got 23; leave opset out"),
        ({}, {"rows": 4}, "rows chooses the kernels of int8 and int4 on the cpu target; cuda fp16 has no choice"),
        ({}, {"single": True}, "single needs standard ONNX operators, and the cuda target uses others"),
        ({}, {"precision": "int8", "rows": 4}, "rows chooses the kernels .* cpu target; cuda int8 has no choice"),
        (
            {},
            {"auto": True},
            "auto keeps weights of int8 and int4 in fp32, on the cpu target alone; cuda fp16",
        ),
        ({}, {"precision": "int4", "auto": True}, "in fp32, on the cpu target alone; cuda int4 has none of them"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    save_checkpoint(tmp_path / "model", tiny_model(tiny_config(**changes)))
    with pytest.raises(UnsupportedError, match=message):
        txport.export(tmp_path / "model", tmp_path / "out", target="cuda", **options)


def test_prompts_of_an_attention_without_an_operator_are_refused() -> None:
    model = Llama(CAUSAL).eval()
    part = next(each for each in model.modules() if isinstance(each, Attention))
    part.core.relative_keys = torch.nn.Identity()  # type: ignore[assignment]
    with pytest.raises(
        UnsupportedError, match="no form of this attention with a window; export it with target='portable'"
    ):
        EXPORTER.require(model)
    part.window = None
    with pytest.raises(UnsupportedError, match="no form of this attention for prompts"):
        EXPORTER.require(model)


def test_graphs_without_weights_say_where_these_would_lie(tiny: Checkpoint, tmp_path: Path) -> None:
    manifest = exported(tiny, tmp_path / "out", precision="fp16", weights=False)
    assert not (tmp_path / "out" / "onnx" / "weights.bin").exists()
    model = onnx.load(str(tmp_path / "out" / manifest.graphs[ports.STEP].file), load_external_data=False)
    assert any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer)


# --- what moves a state -----------------------------------------------------------------------------------------


def memory(role: str, dtype: str = "float32") -> tuple[Graph, ir.Model]:
    graph = next(each for each in TARGETS["cuda"].contracts["seq2seq"](tiny_facts(), dtype) if each.role == role)
    return graph, memory_model(graph, 24)


def caches(graph: Graph, rows: int, room: int, seed: int, prefix: str = "") -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        f"{prefix}{port.name}": rng.standard_normal((rows, room, int(port.dims[2]))).astype(np.float32)
        for port in graph.inputs
        if port.state is not None
    }


SESSIONS: dict[str, ort.InferenceSession] = {}


def moved(role: str, inputs: dict[str, Array]) -> list[Array]:
    if role not in SESSIONS:
        content = ir.to_proto(memory(role)[1]).SerializeToString()
        SESSIONS[role] = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: list[Array] = SESSIONS[role].run(None, inputs)
    return found


@given(data=st.data(), rows=st.integers(1, 5), room=st.integers(1, 6), seed=st.integers(0, 99))
def test_states_move_as_they_are_told(data: st.DataObject, rows: int, room: int, seed: int) -> None:
    held = caches(memory(ports.SELECT_ROWS)[0], rows, room, seed)
    chosen = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=7)))
    for name, picked in zip(held, moved(ports.SELECT_ROWS, {**held, ports.ROWS: chosen}), strict=True):
        np.testing.assert_array_equal(picked, held[name][chosen])
    more = data.draw(st.integers(1, 5))
    nowhere = {name: np.where(values > 1, np.nan, values) for name, values in held.items()}
    for name, grown in zip(held, moved(ports.GROW_ROWS, {**nowhere, ports.MORE: np.array([more])}), strict=True):
        np.testing.assert_array_equal(grown[:, :room], nowhere[name])
        assert grown.shape[1] == room + more
        assert not grown[:, room:].any()  # zeros, whatever lies before them
    some = np.array(data.draw(st.permutations(range(rows)))[: data.draw(st.integers(1, rows))])
    others = caches(memory(ports.ADMIT_ROWS)[0], len(some), room, seed + 1, "others.")
    for name, admitted in zip(held, moved(ports.ADMIT_ROWS, {**held, **others, ports.ROWS: some}), strict=True):
        expected = held[name].copy()
        expected[some] = others[f"others.{name}"]
        np.testing.assert_array_equal(admitted, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_graphs_that_move_a_state_are_valid_in_half_precision(dtype: str) -> None:
    for role in (ports.SELECT_ROWS, ports.GROW_ROWS, ports.ADMIT_ROWS):
        graph, model = memory(role, dtype)
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        assert all(port.dtype in (dtype, "int64") for port in graph.inputs)
