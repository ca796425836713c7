"""Packing of linear layers with the same input, and the record of the weights in an initializer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from txport.bundles.forms import Form, Stored
from txport.targets.ports import Graph

MICROSOFT = "com.microsoft"
PARTS = "txport.parts"  # metadata key of an initializer: names of the weights packed in it
SIZES = "txport.sizes"  # metadata key: number of rows of each of them
PACKABLE = "txport.packable"  # metadata key of a Concat: its inputs are linear layers that become one


class Map(NamedTuple):
    """A linear layer x @ weight.T (+ bias) with a weight (out, in) of the checkpoint; `nodes` starts with the last."""

    x: ir.Value | None
    weight: ir.Value
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]

    @property
    def kind(self) -> tuple[int, bool, str]:
        """Return a key that is equal for linear layers that can be packed."""
        return id(self.x), self.bias is None, self.nodes[-1].op_type


def pack_projections(model: ir.Model, graph: Graph) -> int:
    """Replace linear layers whose outputs a `PACKABLE` Concat reads, and nothing else, by one; return the count."""
    fired = 0
    for node in list(model.graph):
        parts = [map_of(value) for value in node.inputs] if PACKABLE in node.meta else []
        maps = [each for each in parts if each is not None and len(each.nodes[0].outputs[0].uses()) == 1]
        if len(parts) < 2 or len(maps) != len(parts) or len({each.kind for each in maps}) != 1:
            continue
        weight = _join(model, [each.weight for each in maps])
        biases = [each.bias for each in maps if each.bias is not None]
        made = _map(maps[0], weight, _join(model, biases) if biases else None)
        packed = made[-1].outputs[0]
        packed.name = f"{node.outputs[0].name}.packed"
        packed.type = node.outputs[0].type
        packed.shape = node.outputs[0].shape
        model.graph.insert_before(node, made)
        node.outputs[0].replace_all_uses_with(packed)
        model.graph.remove([node, *(each for part in maps for each in part.nodes)], safe=True)
        fired += 1
    return fired


def map_of(value: ir.Value | None) -> Map | None:
    """Return the linear layer that computes a value: Gemm, or FusedMatMul and an optional Add; otherwise None."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if is_linear(node):
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        assert node.inputs[1] is not None
        return Map(node.inputs[0], node.inputs[1], bias, (node,))
    if node.op_type == "Add" and (bias := node.inputs[1]) is not None and bias.is_initializer():
        product = node.inputs[0].producer() if node.inputs[0] is not None else None
        if product is not None and is_product(product) and len(product.outputs[0].uses()) == 1:
            assert product.inputs[1] is not None
            return Map(product.inputs[0], product.inputs[1], bias, (node, product))
    if is_product(node) and node.inputs[1] is not None:
        return Map(node.inputs[0], node.inputs[1], None, (node,))
    return None


def _map(like: Map, weight: ir.Value, bias: ir.Value | None) -> list[ir.Node]:
    """Return the nodes of a linear layer with the same input and operators as `like`."""
    if like.nodes[-1].op_type == "Gemm":
        return [ir.node("Gemm", [like.x, weight, *([] if bias is None else [bias])], attributes={"transB": 1})]
    product = ir.node("FusedMatMul", [like.x, weight], attributes={"transB": 1}, domain=MICROSOFT)
    if bias is None:
        return [product]
    product.outputs[0].type = weight.type
    return [product, ir.node("Add", [product.outputs[0], bias])]


def is_linear(node: ir.Node) -> bool:
    """True if a node is a Gemm x @ weight.T (+ bias) with a weight (out, in) from the checkpoint."""
    weight = node.inputs[1] if node.op_type == "Gemm" else None
    return weight is not None and weight.is_initializer() and node.attributes.get_int("transB", 0) == 1


def is_product(node: ir.Node) -> bool:
    """True if a node is a FusedMatMul x @ weight.T, for x of any dims, with a weight (out, in) from the checkpoint."""
    weight = node.inputs[1] if node.op_type == "FusedMatMul" else None
    return weight is not None and weight.is_initializer() and node.attributes.get_int("transB", 0) == 1


def weight_of(node: ir.Node) -> ir.Value | None:
    """Return the weight (out, in) by which a Gemm or a FusedMatMul multiplies, None for other nodes."""
    return node.inputs[1] if is_linear(node) or is_product(node) else None


def _join(model: ir.Model, values: Iterable[ir.Value | None]) -> ir.Value:
    """Concatenate initializers along the first axis; the result records and contains the names of all.

    Layers that share their weights share the result.
    """
    known = [value for value in values if value is not None and value.const_value is not None]
    tensors = [value.const_value for value in known if value.const_value is not None]
    names = [str(value.name) for value in known]
    shapes = [each.shape.numpy() for each in tensors]
    if (there := model.graph.initializers.get(join_names(names))) is not None:
        return there
    shape = ir.Shape([sum(each[0] for each in shapes), *shapes[0][1:]])
    whole = ir.LazyTensor(
        lambda: ir.tensor(np.concatenate([each.numpy() for each in tensors])), tensors[0].dtype, shape
    )
    joined = ir.Value(name=join_names(names), const_value=whole)
    joined.meta[PARTS] = tuple(names)
    joined.meta[SIZES] = tuple(each[0] for each in shapes)
    joined.shape = shape
    joined.type = known[0].type
    model.graph.register_initializer(joined)
    return joined


def join_names(names: list[str]) -> str:
    """`a.b.weight`, `a.c.weight` -> `a.{b,c}.weight`, a readable name of a packed weight.

    Names that differ in more than one place are joined whole: `{a.b.weight,c.0.d.weight}`.
    """
    split = [name.split(".") for name in names]
    different = [at for at, parts in enumerate(zip(*split, strict=False)) if len(set(parts)) > 1]
    if len(different) != 1 or len({*map(len, split)}) > 1:
        return "{" + ",".join(names) + "}"
    at = different[0]
    return ".".join([*split[0][:at], "{" + ",".join(name[at] for name in split) + "}", *split[0][at + 1 :]])


def parts_of(value: ir.Value) -> tuple[str, ...]:
    """Return the checkpoint's names of the weights in an initializer, in row order."""
    parts: tuple[str, ...] = value.meta.get(PARTS, (str(value.name),))
    return parts


def stored_as(
    value: ir.Value, form: Form | None = None, scales: str | None = None, lookup: str | None = None
) -> Stored:
    """Return how an initializer is stored, for the manifest."""
    sizes: tuple[int, ...] = value.meta.get(SIZES, ())
    return Stored(parts_of(value), form, scales, lookup, sizes if len(set(sizes)) > 1 else None)


def packs(model: ir.Model) -> dict[str, Stored]:
    """Return the unquantised initializers of a graph that contain several weights."""
    found = {str(value.name): stored_as(value) for value in model.graph.initializers.values()}
    return {name: stored for name, stored in found.items() if len(stored.weights) > 1}
