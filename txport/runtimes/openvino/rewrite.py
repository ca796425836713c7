"""Portable graphs as OpenVINO's fastest kernels read them; only the graph in memory changes.

Attention is one operator, logits are computed where they are wanted, and weights in few bits may become numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from txport.runtimes.openvino.library import openvino

Model = Any  # openvino has no types
Node = Any
Value = Any  # an output of a node

LOGIT_PLACES = "logit_places"
ACTIVATIONS = {"Sigmoid", "Swish", "Gelu", "Erf", "Tanh"}
ELEMENTWISE = {"Add", "Subtract", "Multiply", "Divide", "Power", "Convert", "Reshape"}
# operators whose result at one place depends on their input at that place only, if their other input is constant
POINTWISE = {"MatMul", "Add", "Subtract", "Multiply", "Divide", "Tanh", "Convert"}
# operators that the plugin computes at the end of a product
FUSED = {"Add", "Multiply", "Sigmoid", "Swish", "Gelu", "Tanh", "Relu"}
# operators that make a constant of constants: those of layouts and of weights in few bits
FOLDED = {"Convert", "Transpose", "Reshape", "Unsqueeze", "ShapeOf", "Subtract", "Multiply"}


def part(model: Model, outputs: Sequence[str], known: Mapping[str, str]) -> Model:
    """Return a graph with the given outputs of a model and only the inputs that they need.

    `known` maps outputs to inputs with equal values, which replace them as inputs of nodes. The model does not change.
    """
    copied = model.clone()
    inputs = {name: each for each in copied.inputs for name in each.get_names()}
    results = results_of(copied)
    for name, same in known.items():
        value_of(results[name]).replace(inputs[same])
    return graph_of([results[name] for name in outputs], copied.get_parameters())


def _fuse(softmax: Node) -> Value | None:
    """Replace softmax(scale q k + mask) v by one operator: q is (B, N, T, H), k and v are caches (B, N, S, H).

    Return the mask.

    With caches of fewer heads (B, G, S, H), the products are (B, G, N / G, T, S): nodes reshape all their operands.
    Attention with a soft cap, relative keys or values, or additive scores keeps its nodes. So does attention over a
    source, for which the plugin has fast kernels.
    """
    op = openvino.opset13
    masks = []
    node = _up(softmax)
    while node.get_type_name() == "Add":
        masks.append(value_of(node, 1))
        node = _up(node)
    scale: Value = op.constant(1, softmax.get_element_type())
    if node.get_type_name() == "Multiply" and _is_constant(_up(node, 1)):
        scale, node = value_of(node, 1), _up(node)
    grouped = node.get_type_name() == "Reshape"
    product = _up(node) if grouped else node
    if product.get_type_name() != "MatMul" or not masks or len(softmax.output(0).get_target_inputs()) != 1:
        return None
    query, turned = (_operand(product, at, grouped) for at in (0, 1))
    mixed = _user(_user(softmax)) if grouped else _user(softmax)
    if turned.get_node().get_type_name() != "Transpose" or mixed.get_type_name() != "MatMul":
        return None
    key, value = value_of(turned.get_node()), _operand(mixed, 1, grouped)
    if {key.get_node().get_type_name(), value.get_node().get_type_name()} != {"Concat"}:  # with the new tokens'
        return None
    if grouped:
        key, value = (_repeated(each, query.get_partial_shape()[1].get_length()) for each in (key, value))
    mask = _of_rows(functools.reduce(lambda one, other: op.add(one, other).output(0), masks), query)
    whole = op.scaled_dot_product_attention(query, key, value, mask, scale)
    (_user(mixed) if grouped else mixed).output(0).replace(whole.output(0))
    return mask


def _scale_queries(softmax: Node) -> None:
    """Replace scale (q k) by (scale q) k, k being turned keys: the plugin otherwise scales them in each step."""
    op = openvino.opset13
    node = _up(softmax)
    while node.get_type_name() == "Add":
        node = _up(node)
    if node.get_type_name() != "Multiply" or _up(node).get_type_name() != "MatMul":
        return
    product, scale = _up(node), _up(node, 1)
    turned = _up(product, 1)
    is_plain = scale.get_type_name() == "Constant" and not scale.get_data().ndim
    if is_plain and _swaps_the_last(turned) and not any(product.get_attributes().values()):
        query = op.multiply(value_of(product), scale)
        node.output(0).replace(op.matmul(query, value_of(turned), False, True).output(0))


def _swaps_the_last(node: Node) -> bool:
    """Return whether a node exchanges the last two dims, and no others."""
    if node.get_type_name() != "Transpose" or _up(node, 1).get_type_name() != "Constant":
        return False
    *order, last, end = _up(node, 1).get_data().tolist()
    return order == [*range(len(order))] and (last, end) == (len(order) + 1, len(order))


def _of_rows(mask: Value, query: Value) -> Value:
    """Return a mask (B, ..., T, S): in bf16, OpenVINO 2026.4 reads a mask that rows share for the first row only."""
    op = openvino.opset13
    dims = mask.get_partial_shape()
    if len(dims) == 4 and dims[0].is_dynamic:
        return mask
    rows = op.gather(op.shape_of(query), numbers([0]), numbers(0))
    return op.broadcast(mask, op.concat([rows, numbers([1, 1, 1])], 0), broadcast_spec="BIDIRECTIONAL")


def _operand(product: Node, at: int, grouped: bool) -> Value:
    value = value_of(product, at)
    return value_of(value.get_node()) if grouped and value.get_node().get_input_size() else value


def _repeated(heads: Value, count: int) -> Value:
    """Return keys or values (B, G, S, H) as (B, N, S, H); the plugin's attention then reads those of G heads."""
    op = openvino.opset13
    groups, size = (heads.get_partial_shape()[at].get_length() for at in (1, 3))
    alone = op.unsqueeze(heads, numbers(2))
    spread = op.broadcast(alone, numbers([1, 1, count // groups, 1, 1]), broadcast_spec="BIDIRECTIONAL")
    return op.reshape(spread, numbers([0, count, -1, size]), special_zero=True).output(0)


def fuse(model: Model) -> list[Value]:
    """Fuse the attention over caches, and return the additive mask of each layer that was fused, in their order."""
    masks = []
    for each in model.get_ordered_ops():
        if each.get_type_name() == "Softmax":
            if (mask := _fuse(each)) is not None:
                masks.append(mask)
            _scale_queries(each)
    return masks


def with_places(model: Model, logits: str, axis: int) -> Model:
    """Return a graph with an input `LOGIT_PLACES` (L,): the places on an axis whose logits the run computes."""
    places = openvino.opset13.parameter([-1], np.int64, name=LOGIT_PLACES)
    _gather_places(results_of(model)[logits], places, axis)
    model.add_parameters([places])
    return model


def fold(model: Model) -> Model:
    """Return the graph with its weights in few bits as numbers in bf16, so that not each run computes them anew.

    For many tokens that takes 0.8 to 0.9 of the time; for one token, reading the numbers takes longer than making them.
    So the matrix of the logits, which a prompt wants for one token, stays in few bits. One weight at a time becomes
    numbers, since in between they are in fp32. Products, and the biases and activations after them, are typed bf16:
    compiled for fp32, weights would be kept in fp32 as well.
    """
    op = openvino.opset13
    folding = openvino.passes.Manager()
    folding.register_pass(openvino.passes.ConstantFolding())
    for node in [each for each in model.get_ordered_ops() if each.get_type_name() == "MatMul"]:
        if _is_constant(_up(node, 1)) and _up(node, 1).get_input_size() and not _is_of_places(_up(node)):
            halves = graph_of([op.result(op.convert(value_of(node, 1), "bf16"))], [])
            folding.run_passes(halves)
            _type(node, [op.convert(value_of(node), "bf16"), _up(halves.output(0).get_node())])
    for node in model.get_ordered_ops():
        if node.get_type_name() in FUSED:
            inputs = [value_of(node, at).get_node() for at in range(node.get_input_size())]
            converted = [each for each in inputs if each.get_type_name() == "Convert"]
            if converted and all(_is_half(each) or each.get_type_name() == "Constant" for each in inputs):
                _type(node, [_up(each) if each in converted else op.convert(each, "bf16") for each in inputs])
    return model


def _is_of_places(node: Node) -> bool:
    """Return whether a value is of the places whose logits are wanted."""
    while node.get_type_name() in POINTWISE and len(varying := _varying(node)) == 1:
        node = _up(node, varying[0])
    return bool(node.get_type_name() == "Gather" and _up(node, 1).get_friendly_name() == LOGIT_PLACES)


def _varying(node: Node) -> list[int]:
    """Return the inputs that are not constant."""
    return [at for at in range(node.get_input_size()) if not _is_constant(_up(node, at))]


def _type(node: Node, inputs: Sequence[Node]) -> None:
    """Give a node inputs in bf16, and its result in fp32 to those that read it."""
    readers = [*node.output(0).get_target_inputs()]
    kind = node.get_output_element_type(0)
    for at, each in enumerate(inputs):
        node.input(at).replace_source_output(each.output(0))
    node.validate_and_infer_types()
    whole = openvino.opset13.convert(node, kind)
    for reader in readers:
        reader.replace_source_output(whole.output(0))


def _is_half(node: Node) -> bool:
    return bool(node.get_type_name() == "Convert" and value_of(node).get_element_type() == openvino.Type.bf16)


def has_empty_parts(model: Model) -> bool:
    """Return whether parts of a split may be empty: its lengths are computed."""
    splits = (each for each in model.get_ordered_ops() if each.get_type_name() == "VariadicSplit")
    return any(not _is_constant(_up(each, 2)) for each in splits)


def has_gates(model: Model) -> bool:
    """Return whether a product reads two others, element by element, of which one has passed an activation.

    Products with weights in few bits do not count.
    """
    return any(_is_gated(each) for each in model.get_ordered_ops() if each.get_type_name() == "Multiply")


def _is_gated(node: Node) -> bool:
    (one, first), (other, second) = (_products(value_of(node, at)) for at in range(2))
    readers = {each.get_node().get_type_name() for each in node.output(0).get_target_inputs()}
    apart = one and other and not one & other  # both sides of a decomposed GELU are one product
    return bool("MatMul" in readers and apart and (ACTIVATIONS & first) ^ (ACTIVATIONS & second))


def _products(value: Value) -> tuple[set[tuple[str, int]], set[str]]:
    """Return the products of numbers, or parts of split ones, in a value, and the types of nodes after them."""
    products, kinds, seen, pending = set[tuple[str, int]](), set[str](), set[str](), [value]
    while pending:
        value = pending.pop()
        node = value.get_node()
        name, kind = node.get_friendly_name(), node.get_type_name()
        if kind == "MatMul" or "Split" in kind:
            product = _up(node) if "Split" in kind else node
            if product.get_type_name() != "MatMul" or _has_numbers(product):
                products.add((name, value.get_index()))
        elif kind in ELEMENTWISE | ACTIVATIONS and name not in seen:
            seen.add(name)
            kinds.add(kind)
            pending += [value_of(node, at) for at in range(node.get_input_size())]
    return products, kinds


def _has_numbers(product: Node) -> bool:
    """Return whether the weight of a product is not in few bits."""
    weight = _up(product, 1)
    while weight.get_type_name() in ("Convert", "Transpose"):
        weight = _up(weight)
    return bool(weight.get_type_name() == "Constant")


def with_half(model: Model, names: Collection[str]) -> Model:
    """Return a graph whose inputs and outputs with these names are in bf16."""
    typed = openvino.preprocess.PrePostProcessor(model)
    for values, port in ((model.inputs, typed.input), (model.outputs, typed.output)):
        for name in {name for each in values for name in each.get_names()} & {*names}:
            port(name).tensor().set_element_type(openvino.Type.bf16)
    return typed.build()


def _gather_places(logits: Node, places: Node, axis: int) -> None:
    """Gather places of what the layers after the last norm compute, before they do."""
    node, at = logits, 0
    while (below := _up(node, at)).get_type_name() in POINTWISE:
        if len(varying := _varying(below)) != 1:
            break
        node, at = below, varying[0]
    value = value_of(node, at)
    gathered = openvino.opset13.gather(value, places, numbers(axis)).output(0)
    node.input(at).replace_source_output(gathered)
    if node is logits:
        gathered.set_names(value.get_names())
        value.set_names(set())


def numbers(values: object) -> Node:
    """Return a constant of whole numbers."""
    return openvino.opset13.constant(np.array(values, np.int64))


def results_of(model: Model) -> dict[str, Node]:
    """Return the nodes of the outputs by name."""
    return {name: each.get_node() for each in model.outputs for name in each.get_names()}


def value_of(node: Node, at: int = 0) -> Value:
    """Return what is an input of a node."""
    return node.input(at).get_source_output()


def _up(node: Node, at: int = 0) -> Node:
    return value_of(node, at).get_node()


def _user(node: Node) -> Node:
    return next(iter(node.output(0).get_target_inputs())).get_node()


def _is_constant(node: Node) -> bool:
    """Return whether a value is a constant, or made of constants: weights in few bits are."""
    kind = node.get_type_name()
    return kind == "Constant" or (
        kind in FOLDED and all(_is_constant(_up(node, at)) for at in range(node.get_input_size()))
    )


def graph_of(results: Sequence[Node], parameters: Sequence[Node], sinks: Sequence[Node] = ()) -> Model:
    """Return the graph of the results and sinks with those of the parameters that they need."""
    pending = [*results, *sinks]
    seen = set[str]()
    while pending:
        node = pending.pop()
        if node.get_name() not in seen:
            seen.add(node.get_name())
            pending += [each.get_source_output().get_node() for each in node.inputs()]
    needed = {each.get_name(): each for each in parameters if each.get_name() in seen}  # some have several names
    return openvino.Model([*results], [*sinks], [*needed.values()], "part")
