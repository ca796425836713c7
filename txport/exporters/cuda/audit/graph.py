"""Types and placement of each node of a graph on CUDA, and faults of a graph of the cuda target.

A step is captured as one CUDA graph, so none of its nodes may run on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from txport.exporters.cuda.audit.capture import Dims, dims_of, unfit
from txport.exporters.cuda.audit.kernels import CONTROL_FLOW, HOST_OUTPUTS, OPSETS
from txport.exporters.cuda.audit.placement import copied, moved_to_host
from txport.exporters.cuda.audit.values import CONSTANT, UNKNOWN, Values, name_of, operator_of
from txport.targets.cuda import CAPTURED, ON_HOST
from txport.targets.ports import Graph

SHOWN = 5  # maximum number of nodes named in an error


@dataclass(frozen=True)
class Placed:
    """One node: name, operator with domain, types of inputs and outputs, and whether it runs on the device."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_kernel: bool
    on_device: bool

    @property
    def types(self) -> str:
        """Return the distinct types of the inputs, and of the outputs if they differ."""
        given, made = (", ".join(dict.fromkeys(filter(None, side))) for side in (self.inputs, self.outputs))
        return given if given == made else f"{given} -> {made}".lstrip()


@dataclass(frozen=True)
class Audit:
    """All nodes of a graph, the number of tensors copied between host and device, and faults."""

    nodes: tuple[Placed, ...]
    copies: int
    faults: tuple[str, ...]

    @property
    def on_device(self) -> int:
        """Return the number of nodes on the device."""
        return sum(each.on_device for each in self.nodes)

    @property
    def on_host(self) -> int:
        """Return the number of nodes on the host."""
        return len(self.nodes) - self.on_device

    def rows(self) -> list[tuple[str, str, int, bool]]:
        """Return (operator, types, number of nodes, has kernel) rows, most frequent first."""
        counts = Counter((each.operator, each.types, each.has_kernel) for each in self.nodes)
        return [
            (*key[:2], count, key[2]) for key, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        ]

    def to_dict(self) -> dict[str, object]:
        """Return a dict, as printed by `inspect --json`."""
        rows = [dict(zip(("operator", "types", "count", "has_kernel"), row, strict=True)) for row in self.rows()]
        counts = {"on_device": self.on_device, "on_host": self.on_host, "copies": self.copies}
        return {**counts, "kernels": rows, "faults": list(self.faults)}


def audit_port(model: ModelProto, graph: Graph) -> Audit:
    """Audit a graph of a cuda bundle; its ports and role state the inputs on the host and whether it is captured."""
    on_host = [port.name for port in graph.inputs if port.name in ON_HOST]
    return audit(model, on_host, captured=graph.role in CAPTURED)


def audit(model: ModelProto, on_host: Collection[str] = (), *, captured: bool) -> Audit:
    """Place each node of a graph; external tensor files are not needed.

    `on_host`: inputs of the graph on the host. A `captured` graph may have nothing else on the host except constants.
    """
    values = Values(model)
    nodes = [node for node in model.graph.node if node.op_type != CONSTANT]
    kernels = [values.has_kernel(node) for node in nodes]
    moved = moved_to_host(nodes, kernels, values)
    placed = tuple(
        Placed(
            name_of(node),
            operator_of(node),
            tuple(values.types.get(name, UNKNOWN) if name else "" for name in node.input),
            tuple(values.types.get(name, UNKNOWN) for name in node.output if name),
            has_kernel,
            has_kernel and place not in moved,
        )
        for place, (node, has_kernel) in enumerate(zip(nodes, kernels, strict=True))
    )
    copies = list(copied(nodes, [each.on_device for each in placed], values, on_host))
    faults = list(_faults(nodes, placed, values.opset))
    if captured and values.opset in OPSETS:
        faults += [*_on_host(nodes, placed, copies, on_host), *_unfit(nodes, dims_of(model))]
    return Audit(placed, len({name for _, name in copies}), tuple(faults))


def _faults(nodes: Sequence[NodeProto], placed: Sequence[Placed], opset: int) -> Iterator[str]:
    """Yield faults that no graph may have."""
    if opset not in OPSETS:
        yield f"opset {opset}, of whose kernels nothing is known; there are {', '.join(map(str, OPSETS))}"
        return
    if control := [name_of(node) for node in nodes if node.op_type in CONTROL_FLOW]:
        yield f"control flow, which can't be captured: {_some(control)}"
    missing: dict[str, list[str]] = {}
    for node, each in zip(nodes, placed, strict=True):
        if not each.has_kernel and node.op_type not in CONTROL_FLOW:
            missing.setdefault(f"{each.operator} ({each.types})", []).append(each.name)
    for what, names in missing.items():
        yield f"CUDA has no kernel for {what}: {_some(names)}"


def _on_host(
    nodes: Sequence[NodeProto], placed: Sequence[Placed], copies: Sequence[tuple[int, str]], on_host: Collection[str]
) -> Iterator[str]:
    """Yield faults of values and nodes on the host, and of copies between host and device."""
    if shapes := [name_of(node) for node in nodes if node.op_type in HOST_OUTPUTS]:
        yield f"shapes, which lie on the host: {_some(shapes)}"
    if moved := [each.name for each in placed if each.has_kernel and not each.on_device]:
        yield f"arithmetic with shapes, which runs on the host: {_some(moved)}"
    for number, name in copies:
        if placed[number].on_device:
            lies, read = ("host", "device") if name in on_host else ("device", "host")
            reader = f"{placed[number].name} ({placed[number].operator})"
            yield f"{name} lies on the {lies}, and {reader} reads it on the {read}"


def _unfit(nodes: Sequence[NodeProto], dims: Dims) -> Iterator[str]:
    for node in nodes:
        if reason := unfit(node, operator_of(node), dims):
            yield f"{name_of(node)} ({operator_of(node)}) can't be replayed: {reason}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
