"""Decoders whose caches are variables of a request, which grow in place: the CPU plugin fuses attention with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from txport.runtimes.openvino.caches import Store
from txport.runtimes.openvino.library import openvino
from txport.runtimes.openvino.requests import Compiled, Held, Request, Tensor
from txport.runtimes.openvino.rewrite import LOGIT_PLACES, Model, graph_of, numbers, results_of, value_of
from txport.system.arrays import Array
from txport.targets.ports import INPUT_IDS, LOGITS, Graph, Port

BEAM_IDX = "beam_idx"


def with_variables(model: Model, caches: Mapping[str, str]) -> Model:
    """Return a decoder whose caches, outputs by input, are variables with the names of the inputs.

    Its input `BEAM_IDX` (R,) selects rows of the caches before the run.
    """
    op = openvino.opset13
    parameters = {name: each for each in model.get_parameters() for name in each.output(0).get_names()}
    results = results_of(model)
    rows = op.parameter([-1], np.int32, name=BEAM_IDX)
    tokens = next(each for each in model.get_parameters() if len(each.get_partial_shape()) == 2)
    batch = op.gather(op.shape_of(tokens), numbers([0]), numbers(0))
    kept = []
    for past, present in caches.items():
        cache = parameters.pop(past)
        kind, dims = cache.get_element_type(), cache.get_partial_shape()
        inner = [0 if dim.is_dynamic else dim.get_length() for dim in [*dims][1:]]
        empty = op.broadcast(op.constant(0, kind), op.concat([batch, numbers(inner)], 0))
        read = op.read_value(empty, past, kind, dims)
        cache.output(0).replace(op.gather(read, rows, numbers(0)).output(0))
        kept.append(op.assign(value_of(results.pop(present)).get_node(), past))
    return graph_of([*dict.fromkeys(results.values())], [*parameters.values(), rows], kept)


class VariableDecoder:
    """`Decoder` with variables."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def store(self, ports: Sequence[Port], rows: int) -> Variables:
        """See `Decoder.store`."""
        return Variables(self.compiled, ports, rows)


class Variables(Store):
    """Caches that are the variables of a request. The next run takes the rows `_selected` (R,) from them."""

    def __init__(self, compiled: Compiled, ports: Sequence[Port], rows: int) -> None:
        super().__init__(ports, rows)
        self._compiled = compiled
        self._request: Request = compiled.request()
        self._selected = np.arange(rows, dtype=np.int32)

    def fill(self, inputs: Mapping[str, Tensor], length: int) -> None:
        """See `Store.fill`."""
        self.length = length
        for name, each in self._request.variables().items():
            each.state = openvino.Tensor(inputs[name].array.astype(each.state.element_type.to_dtype()))

    def run(
        self, graph: Graph, inputs: Mapping[str, Tensor], lengths: Mapping[str, int], *, wanted: bool, last: bool
    ) -> dict[str, Tensor]:
        """See `Store.run`."""
        rows, size = inputs[INPUT_IDS].shape
        places = Held(np.arange(size if not wanted else size - 1 if last else 0, size))
        made = {}
        for port in graph.outputs:
            if port.name in self._compiled.outputs:
                batch, tokens, *rest = port.shape(lengths)
                dims = (batch, *places.shape, *rest) if port.name == LOGITS else (batch, tokens, *rest)
                made[port.name] = Held(np.empty(dims, port.dtype))
        self._request.run({**inputs, BEAM_IDX: Held(self._selected), LOGIT_PLACES: places}, made)
        self._selected = np.arange(rows, dtype=np.int32)
        self.length += size
        return dict[str, Tensor](made)

    def select(self, rows: Array) -> None:
        """See `Store.select`; the next run does it."""
        self._selected = self._selected[rows]
        self.count = len(rows)
        self.turn += 1

    def values(self, name: str) -> Array:
        """See `Store.values`."""
        array: Array = self._request.variables()[name].state.data
        return array[self._selected]
