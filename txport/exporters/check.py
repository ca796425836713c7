"""Checks that each exported graph must pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import ModelProto, ValueInfoProto

from txport.bundles.graphs import read_model
from txport.bundles.manifest import Manifest
from txport.bundles.metadata import metadata
from txport.errors import TxportError
from txport.exporters.cuda.audit.graph import audit_port
from txport.targets.ports import GENERATE, Dim, Graph, Port

PORTABLE_IR = 10
OWN = {"com.microsoft": 1}
DOMAINS: dict[str, dict[str, int]] = {"portable": {}, "cpu": OWN, "cuda": OWN}  # non-standard domains, by target
CONTROL = {"If", "Loop", "Scan"}
CONTROL_FLOW = {"portable": CONTROL, "cpu": CONTROL - {"If"}, "cuda": CONTROL}  # forbidden operators, by target
ABSOLUTE_PATH = re.compile(r"(?:(?<![\w./-])|\bfile://)(?:/[^/\s\"']+){2,}|[A-Za-z]:\\\\?\w")


class GraphError(TxportError, AssertionError):
    """An exported graph does not match its ports or target: a bug of the exporter, not a user error."""

    exit_code = 1


def check_graph(path: Path, graph: Graph, manifest: Manifest) -> None:
    """Run the ONNX checker with full shape inference, then compare the file with its ports and target.

    Raises `GraphError` with all differences.
    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"{path.name} is not valid ONNX: {error}") from error
    model = read_model(path, weights=False)
    domains = DOMAINS[manifest.target]
    problems = [
        *_ports(model, graph),
        *_operators(model, domains, CONTROL_FLOW[manifest.target] - ({"Loop"} if graph.role == GENERATE else set())),
        *_versions(model, manifest.opset, domains),
        *_unread(model),
        *_paths(model, metadata(manifest, graph.role)),
        *_metadata(model, graph.role, manifest),
        *(audit_port(model, graph).faults if manifest.made_for.on_gpu else ()),
    ]
    if problems:
        raise GraphError(f"{path.name} breaks the {manifest.target} contract: {'; '.join(problems)}")


def operators(path: Path) -> Counter[str]:
    """Count each operator of a graph, including its branches."""
    model = read_model(path, weights=False)
    return Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes(model.graph))


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield each node of a graph, including nodes in branches."""
    return (node for each in _graphs(graph) for node in each.node)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and, recursively, the branches of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _ports(model: ModelProto, graph: Graph) -> Iterator[str]:
    sides = (("inputs", graph.inputs, model.graph.input), ("outputs", graph.outputs, model.graph.output))
    for side, expected, given in sides:
        found = tuple(_port(value) for value in given)
        if found != expected:
            wrong = [f"{f} for {e}" for f, e in zip(found, expected, strict=False) if f != e]
            yield f"{side} differ from the ports: {', '.join(wrong) or f'{len(found)} of {len(expected)}'}"


def _port(value: ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    dims: tuple[Dim, ...] = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return Port(value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, dims)


def _operators(model: ModelProto, domains: Mapping[str, int], refused: set[str]) -> Iterator[str]:
    known = ("", "ai.onnx", *domains)
    foreign = sorted({f"{node.domain}.{node.op_type}" for node in nodes(model.graph) if node.domain not in known})
    if foreign or model.functions:
        yield f"operators outside {', '.join(['the standard', *domains])}: {', '.join(foreign) or 'local functions'}"
    if control := sorted({node.op_type for node in nodes(model.graph)} & refused):
        yield f"control flow: {', '.join(control)}"


def _versions(model: ModelProto, opset: int, domains: Mapping[str, int]) -> Iterator[str]:
    given = {entry.domain: entry.version for entry in model.opset_import}
    found = dict(given)
    if found.pop("", None) != opset or not found.items() <= domains.items():
        yield f"opsets {given}, expected {dict(domains, **{'': opset}) if domains else opset}"
    lowest = onnx.helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    if model.ir_version > max(PORTABLE_IR, lowest):
        yield f"IR version {model.ir_version}, expected at most {max(PORTABLE_IR, lowest)}"


def _unread(model: ModelProto) -> Iterator[str]:
    """Yield a problem for unused initializers: they waste space, and ONNX Runtime warns about them."""
    graphs = list(_graphs(model.graph))
    read = {name for node in nodes(model.graph) for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    if unread := [tensor.name for graph in graphs for tensor in graph.initializer if tensor.name not in read]:
        yield f"initializers that no node reads: {', '.join(unread)}"


def _metadata(model: ModelProto, role: str, manifest: Manifest) -> Iterator[str]:
    found = {entry.key: entry.value for entry in model.metadata_props}
    for name, value in metadata(manifest, role).items():
        if found.get(name) != value:
            yield f"metadata says {found.get(name)!r:.100} for {name}, expected {value!r:.100}"


def _paths(model: ModelProto, metadata: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for absolute paths; labels are excluded, since the metadata contains them unchanged."""
    found = [text for text in _strings(model) if ABSOLUTE_PATH.search(text) and text not in metadata.values()]
    if found:
        yield f"absolute paths, such as {found[0][:120]!r}"


def _strings(message: Message) -> Iterator[str]:
    """Yield each string of a protobuf message, except the raw bytes of tensors."""
    for descriptor, value in message.ListFields():
        values: Any = [value] if isinstance(value, str | bytes | int | float | Message) else value
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for part in values:
                yield from _strings(part)
        elif descriptor.type == FieldDescriptor.TYPE_STRING:
            yield from values
        elif descriptor.type == FieldDescriptor.TYPE_BYTES and descriptor.name in ("s", "strings"):
            yield from (part.decode(errors="replace") for part in values)
