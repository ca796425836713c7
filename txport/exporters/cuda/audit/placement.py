"""Placement of nodes on host or device: the rules of ONNX Runtime's partitioner for CUDA.

A node runs on the host if the provider has no kernel for its types, or if it computes only with shapes: with outputs of
`Shape` and `Size`, small constants and inputs of the graph.
Source: onnxruntime/core/framework/fallback_cpu_capability.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from onnx import NodeProto

from txport.exporters.cuda.audit.kernels import HOST_INPUTS, HOST_OUTPUTS
from txport.exporters.cuda.audit.values import Values, operator_of

SMALL = 100  # maximum number of elements of a constant that a node on the host may read
NARROW = ("float16", "bfloat16", "float8", "float4")  # a node that reads these types is never moved


def moved_to_host(nodes: Sequence[NodeProto], kernels: Sequence[bool], values: Values) -> set[int]:
    """Return the indices of nodes that have a kernel but run on the host; `kernels`: True for nodes with a kernel."""
    readers: dict[str, list[int]] = {}
    for place, node in enumerate(nodes):
        for name in filter(None, node.input):
            readers.setdefault(name, []).append(place)
    shapes = [node for node, fits in zip(nodes, kernels, strict=True) if fits and node.op_type in HOST_OUTPUTS]
    held = {name for node in shapes for name in node.output}
    waiting = {place for name in held for place in readers.get(name, ())}
    moved: set[int] = set()
    seen: set[int] = set()
    while waiting:
        place = min(waiting)
        waiting.remove(place)
        seen.add(place)
        if kernels[place]:
            if not _moves(nodes[place], held, values):
                continue
            moved.add(place)
        held |= set(nodes[place].output)
        waiting |= {each for name in nodes[place].output for each in readers.get(name, ())} - seen
    return moved


def _moves(node: NodeProto, held: Collection[str], values: Values) -> bool:
    """True if all inputs of a node are on the host although its kernel expects them on the device."""
    read_there = HOST_INPUTS.get(operator_of(node), ())
    for place, name in enumerate(node.input):
        if values.types.get(name, "").startswith(NARROW):
            return False
        if name in values.inputs or values.sizes.get(name, SMALL + 1) <= SMALL:
            continue
        if name not in held or place in read_there:
            return False
    return True


def copied(
    nodes: Sequence[NodeProto], on_device: Sequence[bool], values: Values, on_host: Collection[str]
) -> Iterator[tuple[int, str]]:
    """Yield (node index, value) for each input that is on the other side; `on_host`: graph inputs on the host."""
    made_on_host = set(on_host)
    for node, is_there in zip(nodes, on_device, strict=True):
        if not is_there or node.op_type in HOST_OUTPUTS:
            made_on_host |= set(node.output)
    for number, (node, is_there) in enumerate(zip(nodes, on_device, strict=True)):
        read_on_host = HOST_INPUTS.get(operator_of(node), ()) if is_there else range(len(node.input))
        for place, name in enumerate(node.input):
            if name and name not in values.sizes and (place in read_on_host) != (name in made_on_host):
                yield number, name
