"""Causal decoders with paged attention (Kwon et al. 2023): caches in blocks, and tokens of all rows side by side.

OpenVINO's operator reads and writes the blocks that a table names for each row. Padding is neither computed nor kept,
rows that were selected several times share blocks, and graphs compiled in several forms share the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from txport.runtimes.openvino.caches import Store
from txport.runtimes.openvino.library import openvino
from txport.runtimes.openvino.requests import Compiled, Held, Request, Tensor
from txport.runtimes.openvino.rewrite import LOGIT_PLACES, Model, Value, graph_of, numbers, value_of
from txport.system.arrays import Array, Hold, Pool, from_bf16, to_bf16
from txport.targets.ports import ATTENTION_MASK, INPUT_IDS, LOGITS, POSITION_IDS, Graph, Port

OPERATOR, WINDOW = "PagedAttentionExtension", 10  # and the number of its input for a window
PAST_LENS, BEGINS, BLOCKS, BLOCK_BEGINS = "past_lens", "subsequence_begins", "block_indices", "block_indices_begins"
LONGEST = "max_context_len"
HIDDEN = -1000.0  # additive masks hide with less
FEW = 4  # tokens of a run that the form for few tokens takes
NONE = -1  # no block
MORE = 2  # times the blocks, where they do not suffice


def with_pages(model: Model, windows: Sequence[int]) -> Model:
    """Return a decoder with variables as one with paged attention; raise `Exception` if OpenVINO can't convert it.

    `windows` has the window of each layer, 0: none. Inputs and logits then have one dim for the tokens of all rows.
    """
    from openvino._offline_transformations import paged_attention_transformation  # not in its stable interface

    _count_rows_of_tokens(model)
    paged_attention_transformation(model)
    found = [each for each in model.get_ordered_ops() if each.get_type_name() == OPERATOR]
    names = {name for each in model.inputs for name in each.get_names()}
    if len(found) != len(windows) or ATTENTION_MASK in names or not {INPUT_IDS, POSITION_IDS} <= names:
        raise ValueError("not a decoder that pages")
    for each, window in zip(found, windows, strict=True):
        each.input(WINDOW).replace_source_output(openvino.opset13.constant(np.int32(window)).output(0))
    return model


def _count_rows_of_tokens(model: Model) -> None:
    """Take the number of rows from the tokens (R, T) where nodes take it from a cache (R, G, P, H)."""
    op = openvino.opset13
    tokens = next(each for each in model.get_parameters() if INPUT_IDS in each.output(0).get_names())
    rows = op.gather(op.shape_of(tokens), numbers([0]), numbers(0))
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Slice":
            shape, start, stop = (value_of(node, at).get_node() for at in range(3))
            ends = [each.get_data().tolist() for each in (start, stop) if each.get_type_name() == "Constant"]
            if shape.get_type_name() == "ShapeOf" and ends == [[0], [1]]:
                cache = value_of(shape).get_node()
                if cache.get_input_size() and value_of(cache).get_node().get_type_name() == "ReadValue":
                    node.output(0).replace(rows.output(0))


def windows_of(model: Model, masks: Sequence[Value], sizes: Sequence[int]) -> list[int] | None:
    """Return the window of each additive mask, one of `sizes` or 0: none; None if a mask is not that of a decoder.

    The masks are computed for two rows, one of which has padding.
    """
    rows, tokens, past = 2, 3, max(sizes, default=0) + 2
    mask = np.ones((rows, past + tokens), np.int64)
    mask[1, 0] = 0
    query, key = past + np.arange(tokens)[:, None], np.arange(past + tokens)
    given = {ATTENTION_MASK: mask, INPUT_IDS: np.zeros((rows, tokens), np.int64)}
    given[POSITION_IDS] = query[:, 0] - np.array([[0], [1]])
    probe = graph_of([openvino.opset13.result(each) for each in masks], model.get_parameters())
    for port in probe.inputs:
        dims = [rows, *(past if dim.is_dynamic else dim.get_length() for dim in [*port.partial_shape][1:])]
        given |= {name: np.zeros(dims, port.element_type.to_dtype()) for name in port.get_names() - given.keys()}
    run = openvino.compile_model(probe, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = run([next(given[name] for name in port.get_names()) for port in run.inputs])
    seen = (key <= query) & (mask[:, None, None] > 0)
    of_sizes = {size: seen & (key > query - (size or np.inf)) for size in (0, *sizes)}
    found = list[int]()
    for at in range(len(masks)):
        found += [size for size, each in of_sizes.items() if _is_mask(results[at], each)]
    return found if len(found) == len(masks) else None


def _is_mask(values: Array, seen: Array) -> bool:
    """Return whether an additive mask (R, N, T, S) is 0 where keys are `seen` (R, 1, T, S), and hides all others."""
    return bool(np.where(seen, values == 0, values < HIDDEN).all())


class PagedDecoder:
    """`Decoder` with paged attention: a form for runs of few tokens, and maybe one for many.

    It runs a token, because only a run shows whether the processor has the operator; raises `Exception` if not.
    """

    def __init__(self, forms: Sequence[Compiled], caches: Sequence[str]) -> None:
        self.forms = forms
        self.pool = Pool()
        self.compiled = forms[0]
        layers = range(len(caches) // 2)
        names = [f"{kind}_cache.{layer}" for layer in layers for kind in ("key", "value")]
        self.inputs = dict(zip(caches, names, strict=True))  # by cache
        ports = {name: each for each in self.compiled.model.inputs for name in each.get_names()}
        self.kinds = {name: (_dims(ports[name]), ports[name].element_type) for name in names}
        none, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        self.store([], 1).add(none, none, one, none)

    def store(self, ports: Sequence[Port], rows: int) -> Pages:
        """See `Decoder.store`."""
        return Pages(self, ports, rows)


def _dims(port: Value) -> tuple[int, ...]:
    """Return the dims of a block: (G, tokens, H)."""
    return tuple(dim.get_length() for dim in [*port.partial_shape][1:])


class Pages(Store):
    """Caches in blocks, without padding. `_table` (R, M) names the blocks of each row, or `NONE`."""

    def __init__(self, decoder: PagedDecoder, ports: Sequence[Port], rows: int) -> None:
        super().__init__(ports, rows)
        self._decoder = decoder
        self._requests: list[Request | None] = [None] * len(decoder.forms)
        self._lengths = np.zeros(rows, np.int64)  # of each row, without padding
        self._table = np.zeros((rows, 0), np.int32)
        self._free = np.zeros(0, np.int32)
        self._hold = Hold()
        self._memory: dict[str, Array] = {}  # valid while `_hold` exists
        self._tensors: dict[str, Tensor] = {}
        self._logits = Held(np.empty(0, np.float32))
        (_, self._size, _), _ = next(iter(decoder.kinds.values()))  # tokens of a block

    def fill(self, inputs: Mapping[str, Tensor], length: int) -> None:
        """See `Store.fill`; what the mask hides is left out."""
        mask = inputs[ATTENTION_MASK].array[:, :length]
        self._reserve(mask.sum(1))
        self._lengths, self.length = mask.sum(1), length
        for cache, name in self._decoder.inputs.items():
            values = inputs[cache].array
            memory = self._memory[name]
            stored = to_bf16(values) if memory.dtype == np.uint16 else values.astype(memory.dtype)
            for row, size in enumerate(self._lengths):
                for start in range(0, size, self._size):
                    part = stored[row, :, length - size :][:, start : start + self._size]
                    memory[self._table[row, start // self._size], :, : part.shape[1]] = part

    def run(
        self, graph: Graph, inputs: Mapping[str, Tensor], lengths: Mapping[str, int], *, wanted: bool, last: bool
    ) -> dict[str, Tensor]:
        """See `Store.run`; the logits of padding are 0."""
        mask = inputs[ATTENTION_MASK].array
        hides_others = (mask[:, 1:] < mask[:, :-1]).any() or not mask[:, -1].all()
        if hides_others or (mask[:, : self.length].sum(1) != self._lengths).any():
            raise ValueError("attention_mask must hide the same first tokens of each row in all runs, and no others")
        new = mask[:, self.length :] > 0
        counts = new.sum(1)
        ends = counts.cumsum()
        places = np.arange(ends[-1]) if not last else ends - 1
        ids, positions = (inputs[each].array[new] for each in (INPUT_IDS, POSITION_IDS))
        logits = self.add(ids, positions, counts, places if wanted else places[:0])
        self.length += new.shape[1]
        if last or not wanted or new.all():
            return {LOGITS: Held(logits.reshape(len(new), -1, logits.shape[-1]))}
        every = np.zeros((*new.shape, logits.shape[-1]), logits.dtype)
        every[new] = logits
        return {LOGITS: Held(every)}

    def add(self, ids: Array, positions: Array, counts: Array, places: Array) -> Array:
        """Run new tokens side by side, `counts` (R,) > 0 of each row; return the logits at some places (L, V).

        The next run overwrites them.
        """
        self._reserve(counts)
        lengths = self._lengths + counts
        used = -(-lengths // self._size)
        given = {
            INPUT_IDS: ids,
            POSITION_IDS: positions,
            PAST_LENS: self._lengths.astype(np.int32),
            BEGINS: np.concatenate([[0], counts.cumsum()]).astype(np.int32),
            BLOCKS: self._table[np.arange(self._table.shape[1]) < used[:, None]],
            BLOCK_BEGINS: np.concatenate([[0], used.cumsum()]).astype(np.int32),
            LONGEST: np.array(lengths.max(), np.int32),
            LOGIT_PLACES: places,
        }
        at = len(self._requests) - 1 if len(ids) > FEW else 0
        compiled = self._decoder.forms[at]
        request = self._requests[at] = self._requests[at] or compiled.request()
        if len(self._logits.shape) != 3 or self._logits.shape[0] != len(places):  # new memory in each run takes long
            port = compiled.model.outputs[compiled.outputs[LOGITS]]
            shape = (len(places), 1, port.partial_shape[-1].get_length())
            self._logits = Held(np.empty(shape, port.element_type.to_dtype()))
        held = {name: Held(each) for name, each in given.items()}
        request.run({**held, **self._tensors}, {LOGITS: self._logits})
        self._lengths = lengths
        return self._logits.array[:, 0]

    def select(self, rows: Array) -> None:
        """See `Store.select`: rows share the blocks that are full, and have the last one for themselves."""
        self._table, self._lengths = self._table[rows], self._lengths[rows]
        self.count = len(rows)
        self.turn += 1
        partial = np.flatnonzero(self._lengths % self._size)
        places = partial, self._lengths[partial] // self._size
        _, first = np.unique(self._table[places], return_index=True)
        shared = np.delete(np.arange(len(partial)), first)
        self._free = np.setdiff1d(np.arange(self._blocks, dtype=np.int32), self._table)
        self._extend(len(shared))
        own, self._free = np.split(self._free, [len(shared)])
        places = places[0][shared], places[1][shared]
        for memory in self._memory.values() if len(shared) else ():
            memory[own] = memory[self._table[places]]
        self._table[places] = own

    def values(self, name: str) -> Array:
        """See `Store.values`; those of padding are 0."""
        memory = self._memory[self._decoder.inputs[name]]
        blocks = memory[self._table].swapaxes(1, 2)  # (R, G, M, tokens, H)
        tokens = blocks.reshape(*blocks.shape[:2], -1, blocks.shape[-1])
        found = np.zeros((*tokens.shape[:2], self.length, tokens.shape[-1]), memory.dtype)
        for row, length in enumerate(self._lengths):
            found[row, :, self.length - length :] = tokens[row, :, :length]
        return from_bf16(found) if found.dtype == np.uint16 else found

    @property
    def _blocks(self) -> int:
        return len(next(iter(self._memory.values()), ()))

    def _reserve(self, counts: Array) -> None:
        """Give each row the blocks that `counts` (R,) more tokens need."""
        held, needed = (-(-each // self._size) for each in (self._lengths, self._lengths + counts))
        if (held == needed).all():
            return
        self._extend(int((needed - held).sum()))
        wider = max(int(needed.max()) - self._table.shape[1], 0)
        self._table = np.pad(self._table, ((0, 0), (0, wider)), constant_values=NONE)
        columns = np.arange(self._table.shape[1])
        new = (columns >= held[:, None]) & (columns < needed[:, None])
        self._table[new], self._free = np.split(self._free, [new.sum()])

    def _extend(self, count: int) -> None:
        """Have at least `count` free blocks. Their numbers are finite: the operator multiplies unused ones by 0."""
        before = self._blocks
        if count <= len(self._free):
            return
        blocks = max(before + count - len(self._free), MORE * before or count + self.count)
        hold, memory = Hold(), dict[str, Array]()
        for name, (dims, kind) in self._decoder.kinds.items():
            dtype = np.uint16 if kind == openvino.Type.bf16 else kind.to_dtype()
            memory[name] = self._decoder.pool.empty(hold, (blocks, *dims), dtype)
            memory[name][:before], memory[name][before:] = self._memory.get(name, 0), 0
        self._tensors = {name: Held(each) for name, each in memory.items()}
        self._hold, self._memory = hold, memory
        self._free = np.concatenate([self._free, np.arange(before, blocks, dtype=np.int32)])
