"""What turns a graph of the cpu target into one that the fused kernels can run fast, and the count of what fired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from txport.bundles.forms import Form, Stored
from txport.bundles.ports import Graph
from txport.exporters.check import GraphError
from txport.exporters.cpu.operators import GROUPED, MULTI_HEAD, Kind, kind_of_node
from txport.exporters.cpu.ops import PACKED, PLAIN

PARTS = "txport.parts"  # where an initializer that several weights are packed in records their names
SIZES = "txport.sizes"  # and how many rows each has


def pack_projections(model: ir.Model, graph: Graph) -> int:
    """Linear maps of one input whose results are joined become one linear map: a layer's query, key and value."""
    fired = 0
    for node in list(model.graph):
        parts = [value.producer() for value in node.inputs if value is not None] if node.op_type == "Concat" else []
        linear = [part for part in parts if part is not None and is_linear(part)]
        if len(parts) < 2 or len(linear) != len(parts):
            continue
        if (
            len({(id(part.inputs[0]), len(part.inputs)) for part in linear}) != 1
        ):  # of one input, all with a bias or none
            continue
        joined = [_join(model, each) for each in list(zip(*(part.inputs for part in linear), strict=True))[1:]]
        packed = ir.node(
            "Gemm",
            [linear[0].inputs[0], *joined],
            attributes={"transB": 1},
            outputs=[ir.Value(name=f"{node.outputs[0].name}.packed", type=node.outputs[0].type)],
        )
        packed.outputs[0].shape = node.outputs[0].shape
        model.graph.insert_before(node, packed)
        node.outputs[0].replace_all_uses_with(packed.outputs[0])
        model.graph.remove([node, *linear], safe=True)
        fired += 1
    return fired


def is_linear(node: ir.Node) -> bool:
    """Whether a node is x @ weight.T (+ bias) with a weight (out, in) from the checkpoint."""
    weight = node.inputs[1] if node.op_type == "Gemm" else None
    return weight is not None and weight.is_initializer() and node.attributes.get_int("transB", 0) == 1


def _join(model: ir.Model, values: Iterable[ir.Value | None]) -> ir.Value:
    """One initializer out of several, along their first axis, which records their names and bears them all."""
    known = [value for value in values if value is not None and value.const_value is not None]
    tensors = [value.const_value for value in known if value.const_value is not None]
    names, shapes = [str(value.name) for value in known], [each.shape.numpy() for each in tensors]
    shape = ir.Shape([sum(each[0] for each in shapes), *shapes[0][1:]])
    whole = ir.LazyTensor(
        lambda: ir.tensor(np.concatenate([each.numpy() for each in tensors])), tensors[0].dtype, shape
    )
    joined = ir.Value(name=join_names(names), const_value=whole)
    joined.meta[PARTS] = tuple(names)
    joined.meta[SIZES] = tuple(each[0] for each in shapes)
    joined.shape, joined.type = shape, known[0].type
    model.graph.register_initializer(joined)
    return joined


def join_names(names: list[str]) -> str:
    """`a.b.weight`, `a.c.weight` -> `a.{b,c}.weight`, for people who look at the graph."""
    split = [name.split(".") for name in names]
    different = [at for at, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
    assert len(different) == 1, names
    at = different[0]
    return ".".join([*split[0][:at], "{" + ",".join(name[at] for name in split) + "}", *split[0][at + 1 :]])


def parts_of(value: ir.Value) -> tuple[str, ...]:
    """The checkpoint's names of the weights in an initializer, in the order of their rows."""
    parts: tuple[str, ...] = value.meta.get(PARTS, (str(value.name),))
    return parts


def stored_as(
    value: ir.Value, form: Form | None = None, scales: str | None = None, lookup: str | None = None
) -> Stored:
    """What an initializer is, for the manifest."""
    sizes: tuple[int, ...] = value.meta.get(SIZES, ())
    return Stored(parts_of(value), form, scales, lookup, sizes if len(set(sizes)) > 1 else None)


def check_parts(model: ir.Model, became: Mapping[str, int], kinds: Mapping[Kind, int], packed: int, role: str) -> None:
    """Raise `GraphError` unless every part of the model is the operator that it became when it was traced.

    Attentions are counted by their `kinds` too, so that no operator has lost its window, its cap or its positions.
    """
    found = Counter(node.op_type for node in model.graph)
    found[PACKED] = packed
    wanted = {name: became.get(name, 0) for name in (MULTI_HEAD, GROUPED, PACKED)}
    missed = [f"{found[name]} {name} instead of {count}" for name, count in wanted.items() if found[name] != count]
    if not missed:
        of_kind = Counter(kind_of_node(node) for node in model.graph if node.op_type in (MULTI_HEAD, GROUPED))
        different = sorted(kind for kind in {*of_kind, *kinds} if of_kind[kind] != kinds.get(kind, 0))
        missed = [f"{of_kind[kind]} {kind} instead of {kinds.get(kind, 0)}" for kind in different]
    if not became.get(PLAIN) and (found["MatMul"] or found["Softmax"]):
        missed.append(f"{found['MatMul']} MatMul and {found['Softmax']} Softmax left over")
    if missed:
        raise GraphError(f"the {role} graph was not fused as this model's parts say: {', '.join(missed)}")
