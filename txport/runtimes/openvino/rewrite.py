"""Portable graphs as OpenVINO's fastest kernels read them: attention as one operator, caches as variables.

The CPU plugin fuses ScaledDotProductAttention with the variables of its keys and values, which then grow in place. Only
the graph in memory changes.
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

BEAM_IDX, LOGIT_PLACES = "beam_idx", "logit_places"
# operators whose result at one place depends on their input at that place only, if their other input is constant
POINTWISE = {"MatMul", "Add", "Subtract", "Multiply", "Divide", "Tanh", "Convert"}
# operators that make a constant of constants: those of layouts and of weights in few bits
FOLDED = {"Convert", "Transpose", "Reshape", "Unsqueeze", "ShapeOf", "Subtract", "Multiply"}


def part(model: Model, outputs: Sequence[str], known: Mapping[str, str]) -> Model:
    """Return a graph with the given outputs of a model and only the inputs that they need.

    `known` maps outputs to inputs with equal values, which replace them as inputs of nodes. The model does not change.
    """
    copied = model.clone()
    inputs = {name: each for each in copied.inputs for name in each.get_names()}
    results = _results(copied)
    for name, same in known.items():
        _value(results[name]).replace(inputs[same])
    return _model([results[name] for name in outputs], copied.get_parameters())


def _fuse(softmax: Node) -> None:
    """Replace softmax(scale q k + mask) v by one operator: q is (B, N, T, H), k and v are caches (B, N, S, H).

    With caches of fewer heads (B, G, S, H), the products are (B, G, N / G, T, S): nodes reshape all their operands.
    Attention with a soft cap, relative keys or values, or additive scores keeps its nodes. So does attention over a
    source, for which the plugin has fast kernels.
    """
    op = openvino.opset13
    masks = []
    node = _up(softmax)
    while node.get_type_name() == "Add":
        masks.append(_value(node, 1))
        node = _up(node)
    scale: Value = op.constant(1, softmax.get_element_type())
    if node.get_type_name() == "Multiply" and _is_constant(_up(node, 1)):
        scale, node = _value(node, 1), _up(node)
    grouped = node.get_type_name() == "Reshape"
    product = _up(node) if grouped else node
    if product.get_type_name() != "MatMul" or not masks or len(softmax.output(0).get_target_inputs()) != 1:
        return
    query, turned = (_operand(product, at, grouped) for at in (0, 1))
    mixed = _user(_user(softmax)) if grouped else _user(softmax)
    if turned.get_node().get_type_name() != "Transpose" or mixed.get_type_name() != "MatMul":
        return
    key, value = _value(turned.get_node()), _operand(mixed, 1, grouped)
    if {key.get_node().get_type_name(), value.get_node().get_type_name()} != {"Concat"}:  # with the new tokens'
        return
    if grouped:
        key, value = (_repeated(each, query.get_partial_shape()[1].get_length()) for each in (key, value))
    mask = _of_rows(functools.reduce(lambda one, other: op.add(one, other).output(0), masks), query)
    whole = op.scaled_dot_product_attention(query, key, value, mask, scale)
    (_user(mixed) if grouped else mixed).output(0).replace(whole.output(0))


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
        query = op.multiply(_value(product), scale)
        node.output(0).replace(op.matmul(query, _value(turned), False, True).output(0))


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
    rows = op.gather(op.shape_of(query), _numbers([0]), _numbers(0))
    return op.broadcast(mask, op.concat([rows, _numbers([1, 1, 1])], 0), broadcast_spec="BIDIRECTIONAL")


def _operand(product: Node, at: int, grouped: bool) -> Value:
    value = _value(product, at)
    return _value(value.get_node()) if grouped and value.get_node().get_input_size() else value


def _repeated(heads: Value, count: int) -> Value:
    """Return keys or values (B, G, S, H) as (B, N, S, H); the plugin's attention then reads those of G heads."""
    op = openvino.opset13
    groups, size = (heads.get_partial_shape()[at].get_length() for at in (1, 3))
    alone = op.unsqueeze(heads, _numbers(2))
    spread = op.broadcast(alone, _numbers([1, 1, count // groups, 1, 1]), broadcast_spec="BIDIRECTIONAL")
    return op.reshape(spread, _numbers([0, count, -1, size]), special_zero=True).output(0)


def with_variables(model: Model, caches: Mapping[str, str], logits: str) -> Model:
    """Return a decoder whose caches, outputs by input, are variables with the names of the inputs.

    Its attention over them is fused. Its input `BEAM_IDX` (R,) selects rows of the caches before the run, and
    `LOGIT_PLACES` (L,) the tokens whose logits the run computes: (R, L, V) in place of (R, T, V).
    """
    op = openvino.opset13
    for each in model.get_ordered_ops():
        if each.get_type_name() == "Softmax":
            _fuse(each)
            _scale_queries(each)
    parameters = {name: each for each in model.get_parameters() for name in each.output(0).get_names()}
    results = _results(model)
    rows, places = op.parameter([-1], np.int32, name=BEAM_IDX), op.parameter([-1], np.int64, name=LOGIT_PLACES)
    tokens = next(each for each in model.get_parameters() if len(each.get_partial_shape()) == 2)
    batch = op.gather(op.shape_of(tokens), _numbers([0]), _numbers(0))
    kept = []
    for past, present in caches.items():
        cache = parameters.pop(past)
        kind, dims = cache.get_element_type(), cache.get_partial_shape()
        inner = [0 if dim.is_dynamic else dim.get_length() for dim in [*dims][1:]]
        empty = op.broadcast(op.constant(0, kind), op.concat([batch, _numbers(inner)], 0))
        read = op.read_value(empty, past, kind, dims)
        cache.output(0).replace(op.gather(read, rows, _numbers(0)).output(0))
        kept.append(op.assign(_value(results.pop(present)).get_node(), past))
    _gather_places(results[logits], places)
    return _model([*dict.fromkeys(results.values())], [*parameters.values(), rows, places], kept)


def fold(model: Model) -> Model:
    """Return the graph with its weights in few bits as numbers, so that not each run computes them anew.

    For many tokens in bf16 that takes 0.8 to 0.9 of the time, and twice the memory; for one token, reading the numbers
    takes longer than making them.
    """
    passes = openvino.passes.Manager()
    passes.register_pass(openvino.passes.ConstantFolding())
    passes.run_passes(model)
    return model


def with_half(model: Model, names: Collection[str]) -> Model:
    """Return a graph whose inputs and outputs with these names are in bf16."""
    typed = openvino.preprocess.PrePostProcessor(model)
    for values, port in ((model.inputs, typed.input), (model.outputs, typed.output)):
        for name in {name for each in values for name in each.get_names()} & {*names}:
            port(name).tensor().set_element_type(openvino.Type.bf16)
    return typed.build()


def _gather_places(logits: Node, places: Node) -> None:
    """Gather places of what the layers after the last norm compute, before they do."""
    node, at = logits, 0
    while (below := _up(node, at)).get_type_name() in POINTWISE:
        varying = [each for each in range(below.get_input_size()) if not _is_constant(_up(below, each))]
        if len(varying) != 1:
            break
        node, at = below, varying[0]
    value = _value(node, at)
    gathered = openvino.opset13.gather(value, places, _numbers(1)).output(0)
    node.input(at).replace_source_output(gathered)
    if node is logits:
        gathered.set_names(value.get_names())
        value.set_names(set())


def _numbers(values: object) -> Node:
    return openvino.opset13.constant(np.array(values, np.int64))


def _results(model: Model) -> dict[str, Node]:
    return {name: each.get_node() for each in model.outputs for name in each.get_names()}


def _value(node: Node, at: int = 0) -> Value:
    return node.input(at).get_source_output()


def _up(node: Node, at: int = 0) -> Node:
    return _value(node, at).get_node()


def _user(node: Node) -> Node:
    return next(iter(node.output(0).get_target_inputs())).get_node()


def _is_constant(node: Node) -> bool:
    """Return whether a value is a constant, or made of constants: weights in few bits are."""
    kind = node.get_type_name()
    return kind == "Constant" or (
        kind in FOLDED and all(_is_constant(_up(node, at)) for at in range(node.get_input_size()))
    )


def _model(results: Sequence[Node], parameters: Sequence[Node], sinks: Sequence[Node] = ()) -> Model:
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
