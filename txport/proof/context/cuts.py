"""Parts that are cut out of a graph: one attention, or the rows that are looked up in a table of positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from txport.bundles.forms import Stored
from txport.errors import ParityError
from txport.models.facts import Role
from txport.proof.bisect.isolation import only
from txport.proof.bisect.taps import LINEAR, LOOKUPS, ends_of_linear, readers_of

QUERY, OUTPUT = "query", "output"
KEY: Role = "key"
VALUE: Role = "value"
PRODUCTS = ("MatMul", "FusedMatMul")
FUSED = ("MultiHeadAttention", "Attention")
PICKED = "picked"  # the input with the queries that are computed


@dataclass(frozen=True)
class Cut:
    """A part of a graph.

    `projected` are the names of its inputs in place of the projected queries, keys and values, each with the roles that
    it holds one after the other. `output` is the value that is compared; None if the part only fills caches.
    """

    graph: ir.Model
    projected: Mapping[str, tuple[str, ...]]
    output: str | None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(str(value.name) for value in self.graph.graph.inputs)


class Weighted:
    """A graph in which nodes are found by the weights that they read.

    `table` states how its initializers are stored; `first` maps each name of a weight to its first name.
    """

    def __init__(self, graph: ir.Model, table: Mapping[str, Stored], first: Mapping[str, str]) -> None:
        self.graph = graph
        self._order = {node: at for at, node in enumerate(graph.graph)}
        self._held: dict[str, list[ir.Value]] = {}
        for name, value in graph.graph.initializers.items():
            for weight in table.get(name, Stored((name,))).weights:
                self._held.setdefault(first.get(weight, weight), []).append(value)

    def products(self, weight: str) -> list[ir.Node]:
        """Return the nodes that multiply with a weight, in order."""
        return self._readers(weight, lambda node, place: LINEAR.get(node.op_type) == place)

    def lookups(self, table: str) -> list[ir.Node]:
        """Return the nodes that look rows up in a table, in order."""
        return self._readers(table, lambda node, place: node.op_type in LOOKUPS and place == 0)

    def _readers(self, name: str, fits: Callable[[ir.Node, int], bool]) -> list[ir.Node]:
        every = (each for value in self._held.get(name, ()) for each in readers_of(value))
        nodes = {node for node, place in every if node in self._order and fits(node, place)}
        return sorted(nodes, key=self._order.__getitem__)

    def attention(self, weights: Mapping[str, str], nth: int, states: Iterable[str], *, picks: bool) -> Cut:
        """Cut out the attention whose linear layers have these weights, by role: query, key, value and output.

        `nth`: its number among the attentions that share these weights. `states` are the graph's outputs with its
        caches. If it `picks`, only some queries are computed. Raises `ParityError` if the graph has no such attention.
        """
        ends: dict[str, list[str]] = {}
        for role in (role for role in weights if role != OUTPUT):
            found = self.products(weights[role])[nth : nth + 1]
            if found:
                ends.setdefault(str(ends_of_linear(found[0])[1].name), []).append(role)
        last = self.products(weights[OUTPUT])[nth : nth + 1]
        output = str(ends_of_linear(last[0])[0].name) if last else None
        if not ends or not (output or states):
            raise ParityError(f"no node of the {self.graph.graph.name} graph computes with {weights[QUERY]}")
        graph = self._extract(list(ends), [*([output] if output else []), *states])
        if picks and output is not None:
            output = _pick_queries(graph.graph)
        return Cut(graph, {name: tuple(roles) for name, roles in ends.items()}, output)

    def rows_of(self, table: str) -> Cut | None:
        """Cut out the first lookup in a table of positions; None if the graph has none."""
        found = self.lookups(table)
        if not found:
            return None
        name = str(found[0].outputs[0].name)
        return Cut(self._extract([], [name]), {}, name)

    def _extract(self, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
        """Return the nodes between values and outputs of the graph, with the graph's own inputs that they read."""
        ends = self.graph.graph.outputs
        kind = next(value.dtype for value in ends if value.dtype and value.dtype.is_floating_point())
        found = only(self.graph, outputs, inputs)
        for value in (*found.graph.inputs, *found.graph.outputs):
            value.type = value.type or ir.TensorType(kind)
        return found


def _pick_queries(graph: ir.Graph) -> str:
    """Make an attention over whole sources compute only the queries of a new input; return the name of its output."""
    node = _attention_before(graph.outputs[0])
    fused = node.op_type in FUSED
    scores = node if fused else _product_before(node.inputs[0])
    picked = ir.Value(name=PICKED, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([None]))
    graph.inputs.append(picked)
    chosen = ir.node("Gather", [scores.inputs[0], picked], {"axis": 1 if fused else 2})
    graph.insert_before(scores, chosen)
    scores.replace_input_with(0, chosen.outputs[0])
    output = node.outputs[0]
    output.type = graph.outputs[0].type
    graph.outputs[0] = output
    return str(output.name)


def _attention_before(output: ir.Value) -> ir.Node:
    """Return the node that ends an attention: an operator, or the product with the weights of a softmax."""
    node = output.producer()
    while node is not None and node.op_type not in (*FUSED, *PRODUCTS):
        node = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if node is None:
        raise ParityError(f"no attention computes {output.name!r}")
    return node


def _product_before(weights: ir.Value | None) -> ir.Node:
    """Return the product of queries and keys, from which the weights of an attention are computed."""
    node = None if weights is None else weights.producer()
    while node is not None and node.op_type not in PRODUCTS:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None:
        raise ParityError(f"no product of queries and keys comes before {weights and weights.name!r}")
    return node
