"""Encoder, decoder and search as one graph: a loop of standard operators, whose body is the portable decoder.

Values that are the same in all steps are computed once, outside the loop: cross-attention keys and values, masks,
transposed weights.
Letters: B sources, K beams, R rows (B x K), S positions of a source or prompt, P tokens of a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from txport.bundles.manifest import Manifest
from txport.exporters.single.beams import (
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    NOTHING,
    TYPES,
    Found,
    SearchInputs,
    Step,
    begin,
    of_rows,
)
from txport.exporters.single.block import Block
from txport.exporters.single.rules import rules_of
from txport.exporters.tracing.trace import IR_VERSION, value_of
from txport.models.facts import Facts, Owner
from txport.targets import ports
from txport.targets.portable import TOGETHER

Models = Mapping[str, ir.Model]
# Body, rows per source (1,), input tokens of the decoder (R, T), step (1,) -> inputs of the decoder.
Feeds = Callable[[Block, ir.Value, ir.Value, ir.Value], dict[str, ir.Value]]
END = np.iinfo(np.int64).max
FOLLOWING = ("Add", "Sub", "Mul", "Div", "Tanh", "Cast", "Identity")  # allowed between the product and the logits


def single_model(models: Models, manifest: Manifest) -> ir.Model:
    """Combine the graphs of a portable bundle, by role, with the search.

    Raises `UnsupportedError` if the checkpoint's search options are not supported.
    """
    build = Builder(models, manifest)
    outputs = causal(build) if manifest.facts.is_causal else seq2seq(build)
    body = ir.Graph(
        list(build.given.values()),
        outputs,
        nodes=build.block.nodes,
        initializers=list(build.block.initializers.values()),
        opset_imports={"": manifest.opset},
        name=ports.GENERATE,
    )
    model = ir.Model(body, ir_version=IR_VERSION)
    passes.RemoveUnusedNodesPass()(model)
    return model


class Builder:
    """Builds the single graph."""

    def __init__(self, models: Models, manifest: Manifest) -> None:
        self.models = models
        self.manifest = manifest
        self.rules = rules_of(manifest)
        self.block = Block()
        self.ports = manifest.graphs[ports.GENERATE]
        self.decoder = manifest.graphs[ports.DECODER]
        self.given = {port.name: value_of(port) for port in self.ports.inputs}
        self.dtype = ir.DataType.from_numpy(np.dtype(manifest.dtype))

    @property
    def facts(self) -> Facts:
        """Return the facts of the model."""
        return self.manifest.facts

    def requested(
        self,
        batch: ir.Value,
        prefix: ir.Value,
        limits: ir.Value,
        front: ir.Value,
        forced: ir.Value | None,
    ) -> SearchInputs:
        """Return the inputs of the search; `front` (B, F): tokens before the new ones."""
        block = self.block
        words = self.facts.writes
        beams = block.op("Max", self.given[ports.NUM_BEAMS], 1)
        wanted = block.op("Mul", beams, max(2, 1 + len(words.ends)))
        candidates = block.op("Min", wanted, words.size)
        sources = block.op("Range", 0, block.op("Squeeze", batch), 1)
        return SearchInputs(
            batch=batch,
            beams=beams,
            penalty=block.op("Cast", self.given[ports.LENGTH_PENALTY], to=DOUBLE),
            prefix=prefix,
            limits=limits,
            forced=forced,
            front=front,
            candidates=candidates,
            kept=block.op("Min", wanted, block.op("Mul", beams, candidates)),
            sources=block.op("Unsqueeze", sources, [1]),
            longest=block.op("Max", block.op("ReduceMax", limits, keepdims=0), 0),
            bans=dict(self._bans()),
        )

    def _bans(self) -> list[tuple[str, ir.Value]]:
        """Return masks of tokens that are banned always, as first token, or among the first few: (V,) bool each."""
        rules = self.rules
        words = self.facts.writes
        ends = words.ends if rules.min_new_tokens or rules.min_length else ()
        lists: dict[str, Sequence[int]] = {"never": rules.never, "first": rules.begin_suppress_tokens, "ends": ends}
        found = []
        for name, tokens in lists.items():
            if tokens:
                banned = np.zeros(words.size, np.bool_)
                banned[list(tokens)] = True
                found.append((name, self.block.named(f"banned_{name}", banned)))
        return found

    def of_beams(self, batch: ir.Value, beams: ir.Value, values: ir.Value) -> ir.Value:
        """Repeat values of each source for its beams: (B, ...) -> (B x K, ...)."""
        sources = self.block.op("Range", 0, self.block.op("Squeeze", batch), 1)
        shape = self.block.op("Concat", batch, beams, axis=0)
        every = self.block.op("Expand", self.block.op("Unsqueeze", sources, [1]), shape)
        return self.block.op("Gather", values, self.block.op("Reshape", every, [-1]), axis=0)

    def past(self, owner: Owner) -> list[str]:
        """Return the decoder's inputs with the state of one owner, in order."""
        return list(self.decoder.past(owner).values())

    def present(self, owner: Owner) -> list[str]:
        """Return the decoder's outputs with the updated state, in the order of `past`."""
        return [self.decoder.present(owner)[each] for each in self.decoder.past(owner)]

    def empty(self, owner: Owner, rows: ir.Value) -> dict[str, ir.Value]:
        """Return decoder input -> empty state before the first token."""
        zero = np.zeros(1, self.manifest.dtype)
        found = {}
        made = dict[tuple[int, ...], ir.Value]()
        for each, name in self.decoder.past(owner).items():
            dims = each.shape(0, 0)[1:]
            if dims not in made:
                shape = self.block.op("Concat", rows, list(dims), axis=0)
                made[dims] = self.block.op("ConstantOfShape", shape, value=ir.tensor(zero))
            found[name] = made[dims]
        return found

    def search(
        self, requested: SearchInputs, width: ir.Value, caches: Mapping[str, ir.Value], first: ir.Value, feeds: Feeds
    ) -> list[ir.Value]:
        """Add the search loop; return the outputs of the graph.

        `width` (1,): rows per source in the first step; `caches`: decoder input -> state; `first` (R, any): tokens of
        the first step. In later steps, the decoder reads one token of each row.
        """
        block = self.block
        body = Block(self.block)
        state = begin(block, requested, width)
        step = body.op("Reshape", iteration := body.input("search/iteration", ir.DataType.INT64, ()), [1])
        going = body.input("search/going", ir.DataType.BOOL, ())
        pasts = {name: body.input(name, self.dtype) for name in caches}
        token = body.input("search/last", ir.DataType.INT64)
        found = Found(**{name: body.input(f"search/{name}", kind) for name, kind in TYPES.items()})
        rows = body.op("Shape", found.sums, start=1, end=2)
        given = {**feeds(body, rows, token, step), **pasts}
        logits, *present = body.inline(
            self.models[ports.DECODER], ports.DECODER, given, [ports.LOGITS, *self.present("row")]
        )
        scores = body.op("Squeeze", body.op("Slice", logits, [-1], [END], [1]), [1])
        scores = scores if self.dtype == ir.DataType.FLOAT else body.op("Cast", scores, to=FLOAT)
        after, chosen, generated = Step(body, self.rules, requested, step, rows).advance(found, scores)
        kept = [body.op("Gather", each, chosen, axis=0) for each in present]
        every = body.op("ReduceMin", body.op("Cast", after.done, to=INT32), keepdims=0)
        goes_on = body.op("Equal", every, body.known(0, np.int32))
        inputs = [iteration, going, *pasts.values(), token, *found]
        outputs = [goes_on, *kept, generated, *after]
        for value, like in zip(outputs, inputs[1:], strict=True):
            value.type = like.type
        graph = ir.Graph(inputs, outputs, nodes=body.nodes, opset_imports={"": self.manifest.opset}, name="step")
        initial = [*caches.values(), first, *state]
        *_, best, finished, lengths, _ = block.ops(
            "Loop",
            requested.longest,
            block.known(np.array(True)),
            *initial,
            count=len(initial),
            body=graph,
        )
        return self._outputs(requested, finished, lengths, best)

    def _outputs(
        self, requested: SearchInputs, finished: ir.Value, lengths: ir.Value, scores: ir.Value
    ) -> list[ir.Value]:
        """Return the outputs: tokens without prefix, padded after the end, cut to the longest."""
        block = self.block
        is_none = block.op("Equal", scores, block.known(-np.inf, np.float64))
        lengths = block.op("Max", block.op("Sub", lengths, requested.prefix), 0)
        lengths = block.op("Where", is_none, 0, lengths)
        longest = block.op("ReduceMax", lengths, keepdims=0)
        stop = block.op("Add", requested.prefix, longest)
        ids = block.op("Slice", finished, requested.prefix, stop, [1])  # -> (R, L)
        shape = block.op("Concat", requested.batch, requested.beams, block.op("Reshape", longest, [1]), axis=0)
        ids = block.op("Reshape", ids, shape, allowzero=1)
        is_real = block.op("Less", block.op("Range", 0, longest, 1), block.op("Unsqueeze", lengths, [2]))
        outputs = [
            block.op("Where", is_real, ids, block.named("pad_token", np.array(self.facts.writes.pad))),
            block.op("Cast", scores, to=FLOAT),
            block.op("Identity", lengths),
        ]
        for value, port in zip(outputs, self.ports.outputs, strict=True):
            wanted = value_of(port)
            value.name = wanted.name
            value.type = wanted.type
            value.shape = wanted.shape
        return outputs


def seq2seq(build: Builder) -> list[ir.Value]:
    """Add the encoder and the search loop of a seq2seq model; return the outputs of the graph."""
    block = build.block
    facts = build.facts
    prefix = build.given[ports.PREFIX_IDS]
    batch, size = (block.op("Shape", prefix, start=at, end=at + 1) for at in (0, 1))
    column = block.op("Concat", batch, [1], axis=0)
    most = block.op("Min", block.op("Add", size, build.given[ports.MAX_NEW_TOKENS]), facts.writes.longest)
    forced = block.op("Concat", prefix, block.op("Expand", NOTHING, column), axis=1)
    assert facts.writes.start is not None
    front = block.op("Expand", block.named("start_token", np.array(facts.writes.start)), column)
    requested = build.requested(batch, size, block.op("Expand", most, column), front, forced)
    source = encoded(build)
    before = {**source, **build.empty("source", batch)}
    shared = block.inline(build.models[ports.DECODER], ports.DECODER, before, build.present("source"))
    fixed = {**source, **dict(zip(build.present("source"), shared, strict=True))}
    fixed = {name: build.of_beams(batch, requested.beams, value) for name, value in fixed.items()}
    rows = block.op("Mul", batch, requested.beams)
    first = of_rows(block, batch, requested.beams, front)
    feeds: Feeds = lambda body, width, token, step: {**fixed, ports.INPUT_IDS: token}  # noqa: E731
    return build.search(requested, requested.beams, build.empty("row", rows), first, feeds)


def encoded(build: Builder) -> dict[str, ir.Value]:
    """Add the encoder; return decoder input -> value. Sources are padded as in the driver."""
    block = build.block
    facts = build.facts
    if not facts.masks_source:
        features = build.given[ports.INPUT_FEATURES]
        features = features if build.dtype == ir.DataType.FLOAT else block.op("Cast", features, to=int(build.dtype))
        (hidden,) = block.inline(
            build.models[ports.ENCODER], ports.ENCODER, {ports.INPUT_FEATURES: features}, [ports.LAST_HIDDEN_STATE]
        )
        return {ports.ENCODER_HIDDEN_STATES: hidden}
    ids = build.given[ports.INPUT_IDS]
    mask = build.given[ports.ATTENTION_MASK]
    size = block.op("Shape", ids, start=1, end=2)
    room = block.op("Max", block.op("Sub", facts.reads.longest, size), 0)
    rest = block.op("Min", block.op("Mod", block.op("Neg", size), TOGETHER[build.manifest.dtype]), room)
    widths = block.op("Concat", [0], rest, axis=0)
    given = {
        ports.INPUT_IDS: block.op("Pad", ids, widths, facts.vocabulary.pad, [1]),
        ports.ATTENTION_MASK: block.op("Pad", mask, widths, 0, [1]),
    }
    (hidden,) = block.inline(build.models[ports.ENCODER], ports.ENCODER, given, [ports.LAST_HIDDEN_STATE])
    return {ports.ENCODER_HIDDEN_STATES: hidden, ports.ENCODER_ATTENTION_MASK: given[ports.ATTENTION_MASK]}


def causal(build: Builder) -> list[ir.Value]:
    """Add the search loop of a causal model; the first step reads the prompts, which are left-padded."""
    block = build.block
    words = build.facts.writes
    ids = build.given[ports.INPUT_IDS]
    mask = build.given[ports.ATTENTION_MASK]
    batch = block.op("Shape", ids, start=0, end=1)
    sizes = block.op("ReduceSum", mask, [1], keepdims=1)  # -> (B, 1)
    width = block.op("ReduceMax", sizes, [0, 1], keepdims=0)
    moved = _moved(build, ids, mask, width)  # -> (B, width)
    padding = block.op("Sub", width, sizes)  # -> (B, 1)
    is_real = block.op("GreaterOrEqual", block.op("Range", 0, width, 1), padding)
    limits = block.op("Min", build.given[ports.MAX_NEW_TOKENS], block.op("Sub", words.longest, sizes))
    requested = build.requested(batch, block.known([0]), limits, block.op("Where", is_real, moved, NOTHING), None)
    one = block.known([1])

    def feeds(body: Block, rows: ir.Value, token: ir.Value, step: ir.Value) -> dict[str, ir.Value]:
        seen = body.op("Range", 0, body.op("Squeeze", body.op("Add", step, width)), 1)
        places = body.op("Sub", seen, of_rows(body, batch, rows, padding))  # -> (R, all tokens)
        count = body.op("Shape", token, start=1, end=2)
        newest = body.op("Slice", places, body.op("Neg", count), [END], [1])
        return {
            ports.INPUT_IDS: token,
            ports.ATTENTION_MASK: body.op("Cast", body.op("GreaterOrEqual", places, 0), to=INT64),
            ports.POSITION_IDS: body.op("Min", body.op("Max", newest, 0), words.longest - 1),  # also for done rows
        }

    only_last(build.models[ports.DECODER])
    prompts = block.op("Where", is_real, moved, words.pad)
    return build.search(requested, one, build.empty("row", batch), prompts, feeds)


def only_last(model: ir.Model) -> None:
    """Make a decoder compute only the logits of the last token, in place; no change if their product is not found."""
    (logits,) = (value for value in model.graph.outputs if value.name == ports.LOGITS)
    node = logits.producer()
    while node is not None and node.op_type in FOLLOWING:
        computed = [value for value in node.inputs if value is not None and not value.is_initializer()]
        node = computed[0].producer() if len(computed) == 1 else None
    if node is None or node.op_type != "MatMul":
        return
    numbers = [ir.Value(name=f"last.{at}", const_value=ir.tensor(np.array([at]))) for at in (-1, END, 1)]
    for value in numbers:
        model.graph.register_initializer(value)
    last = ir.node("Slice", [node.inputs[0], *numbers])
    last.outputs[0].name = "last"
    model.graph.insert_before(node, last)
    node.replace_input_with(0, last.outputs[0])


def _moved(build: Builder, ids: ir.Value, mask: ir.Value, width: ir.Value) -> ir.Value:
    """Prompts (B, S) with padding anywhere -> left-padded prompts (B, width)."""
    block = build.block
    size = block.op("Shape", ids, start=1, end=2)
    keys = block.op("Range", 0, block.op("Squeeze", size), 1)
    keys = block.op("Where", block.op("Greater", mask, 0), keys, -1)
    _, order = block.ops("TopK", keys, size, count=2, axis=1, largest=0)
    moved = block.op("GatherElements", ids, order, axis=1)
    return block.op("Slice", moved, block.op("Sub", size, block.op("Reshape", width, [1])), size, [1])
