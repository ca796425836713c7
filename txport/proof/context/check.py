"""Comparison of attention and of tables of positions at the end of a context that whole graphs do not reach.

A whole model is compared for up to `reach_of` positions: its longest run would take hours, and its scores more memory
than there is. But only attention and tables of positions depend on where a token is. Each is cut out of the shipped
graph and reads random queries, keys and values in place of the projected ones, over random caches that are filled up to
the last position. The cost does not depend on the number of weights, and is linear in the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_ir
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.plan import first_names
from txport.models.facts import Facts, Owner
from txport.models.model import Stack
from txport.models.parts import Attention, Embedding
from txport.proof.bisect.isolation import Runner
from txport.proof.bisect.probe import is_widened, shown
from txport.proof.context.cuts import KEY, OUTPUT, PICKED, QUERY, VALUE, Cut, Weighted
from txport.proof.context.places import Caches, Place, emphasise, feed_of, fitting, places_of
from txport.proof.context.reference import (
    Keys,
    attended,
    may_pick,
    new_keys,
    numbers_of_pair,
    reaches_end,
    without_products,
)
from txport.proof.parity.cases import REACH, reach_of
from txport.proof.parity.exact import HALVES, constants_of, last_bits
from txport.proof.parity.measures import Comparison, compare
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.widened import widened
from txport.system.arrays import Array
from txport.system.progress import Progress, counted, logged
from txport.targets.ports import ENCODER, MODEL, ROOM

LABEL = "ort"  # the runtime that runs the parts
OPTIMISED = ort.GraphOptimizationLevel.ORT_ENABLE_ALL  # as in the sessions that run a bundle


def is_long(facts: Facts) -> bool:
    """Return whether sequences may be longer than those that whole graphs are compared for."""
    source, target = reach_of(facts)
    return facts.reads.longest > source or facts.writes.longest > target


def compare_context(
    bundle: Bundle,
    checkpoint: Checkpoint,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    progress: Progress = logged,
) -> Iterator[Comparison]:
    """Compare the parts of all graphs that depend on positions, where sequences may be longer than whole graphs reach.

    They run on ONNX Runtime on the CPU; those in 16 bits as plain operators in fp32. The parts of a user's
    module are not known: of those, nothing is compared. Raises `ParityError` if a graph has no such part.
    """
    manifest = bundle.manifest
    if isinstance(checkpoint.outline, Adapted) or not is_long(manifest.facts):
        return
    is_fp32 = is_widened(manifest) or bool(manifest.quantization)  # no product with weights is in these parts
    precision = "fp32" if is_fp32 else manifest.arithmetic
    limits = (atol, rtol) if precision == manifest.arithmetic else (None, None)  # what is given is for the bundle's own
    tolerance = tolerance_of(precision, "cpu", *limits)
    roles = [role for role in manifest.driven if manifest.graphs[role].has_weights]
    for role in counted(progress, roles, lambda role: f"comparing positions of the {role} graph up to the last one"):
        for stack in checkpoint.outline.stacks:
            if role == MODEL or (stack.side == "encoder") == (role == ENCODER):
                with constants_of(manifest):
                    found = list(Parts(bundle, checkpoint, role, stack, precision, tolerance).compare(seed))
                yield from found


def unreached(checkpoint: Checkpoint) -> list[str]:
    """Describe the attention over sources that are so long that the scores of all pairs do not fit into memory."""
    found = []
    reads_whole = not checkpoint.facts.generates
    for stack in (each for each in checkpoint.outline.stacks if reads_whole or each.side == "encoder"):
        parts = [part for part in stack.layers.modules() if isinstance(part, Attention)]
        most = fitting(max(map(numbers_of_pair, parts), default=1))
        longest = checkpoint.facts.reads.longest
        if longest > most and not all(map(reaches_end, parts)):
            found.append(f"attention over sources of more than {most} tokens, of {longest}")
    return found


@dataclass(frozen=True)
class Layered:
    """An attention of a stack: its name, its layer, and its number among those that share its weights."""

    name: str
    part: Attention
    layer: int
    nth: int


class Parts:
    """The parts of one graph that depend on positions."""

    def __init__(
        self, bundle: Bundle, checkpoint: Checkpoint, role: str, stack: Stack, precision: str, tolerance: Tolerance
    ) -> None:
        manifest = bundle.manifest
        self._checkpoint = checkpoint
        self._stack = stack
        self._is_whole = role in (ENCODER, MODEL)  # reads whole sources, without caches
        self._tolerance = tolerance
        self._own_dtype = HALVES.get(precision, torch.float32)
        self._table_dtype = HALVES.get(manifest.arithmetic, torch.float32)
        is_finer = is_widened(manifest)  # then the parts have the bundle's tables all the same
        self._stored = HALVES.get(manifest.arithmetic, torch.float32) if is_finer else torch.float32
        self._facts = manifest.facts
        self._first = first_names(checkpoint.outline)
        self._names = {part: name for name, part in checkpoint.outline.named_modules()}
        self._folder = bundle.file(role).parent
        self._show = partial(shown, manifest=manifest)
        self._ports = widened(manifest.graphs[role]) if is_finer else manifest.graphs[role]
        self._has_rows = not manifest.made_for.is_flat  # activations have a dim of rows
        self._dtype = np.dtype("float32" if is_finer else manifest.dtype)
        self._graph = Weighted(read_ir(bundle.file(role)), manifest.weights, self._first)

    def compare(self, seed: int) -> Iterator[Comparison]:
        """Compare every part at every place of its context."""
        attentions = list(self._attentions())
        parts = [each.part for each in attentions]
        pairs = max(map(numbers_of_pair, parts), default=1)
        picks = self._is_whole and all(map(reaches_end, parts))
        cuts = [self._cut(own, picks=picks and may_pick(own.part)) for own in attentions]
        rng = np.random.default_rng(seed)
        for place in places_of(self._ports, self._facts, pairs, rng, picks=picks):
            caches = Caches(self._facts, place, rng)
            exact = Keys(place, caches, torch.float64)
            for own, cut in zip(attentions, cuts, strict=True):
                yield self._compare_attention(own, cut, place, exact, rng)
            yield from self._compare_table(place, caches)

    def _attentions(self) -> Iterator[Layered]:
        """Yield the attentions of the stack that run beyond the positions which whole graphs reach."""
        reads, writes = reach_of(self._facts)
        is_beyond: dict[Owner, bool] = {"source": self._facts.reads.longest > reads}
        is_beyond["row"] = self._facts.writes.longest > writes
        if self._is_whole:
            is_beyond["row"] = is_beyond["source"]
        counts: dict[nn.Module, int] = {}
        for number, layer in enumerate(self._stack.layers):
            for part in (each for each in layer.children() if isinstance(each, Attention)):
                if is_beyond[part.over]:
                    yield Layered(self._names[part], part, number, counts.get(part, 0))
                    counts[part] = counts.get(part, 0) + 1

    def _compare_attention(
        self, own: Layered, cut: Cut, place: Place, exact: Keys, rng: np.random.Generator
    ) -> Comparison:
        """Run an attention at a place, over its caches; in the last layer, a prompt only fills the caches."""
        given = self._projected(own.part, place, rng)
        owned = () if self._is_whole else self._facts.owned(own.part.over)
        states = {each.role: each for each in owned if each.layer == own.layer}
        feed = self._feed(cut, place, exact.caches) | self._fed(cut, given)
        found = self._run(cut, feed)
        if cut.output is None:
            key = next(name for state, name in self._ports.past("row").items() if state == states[KEY])
            actual = _new_rows(feed[key], place)
        else:
            actual = _picked_rows(found[cut.output], place)

        def computed(keys: Keys, *, magnitudes: bool = False) -> Array:
            part = without_products(own.part, partial(self._weight, own.name), self._stored).to(keys.dtype)
            cast = {role: torch.from_numpy(values).to(keys.dtype) for role, values in given.items()}
            if cut.output is None:
                return new_keys(part, place, cast)[0].transpose(0, 1).flatten(1).float().numpy()
            key, value = keys.of(part, states, cast)
            return attended(part, place, cast, (key, value.abs() if magnitudes else value)).float().numpy()

        return self._judge(own.name, place, actual, computed, exact)

    def _cut(self, own: Layered, *, picks: bool) -> Cut:
        """Cut an attention out of the graph, with the caches that it writes in place."""
        weights = {role: self._first[f"{own.name}.{role}.weight"] for role in (QUERY, KEY, VALUE, OUTPUT)}
        present = self._ports.present("row").items() if own.part.over == "row" else ()
        names = [name for each, name in present if each.layer == own.layer and ROOM in self._ports.port(name).dims]
        return self._graph.attention(weights, own.nth, names, picks=picks)

    def _projected(self, part: Attention, place: Place, rng: np.random.Generator) -> dict[str, Array]:
        """Return random queries, keys and values of the new tokens by role: (tokens, heads x H).

        Their scores have a standard deviation of about 1, as in a trained model, unless they are normalised.
        """
        core = part.core
        sharp = float(getattr(core, "scale", 1.0)) * part.head_size**0.5
        counts = {QUERY: core.heads, KEY: core.key_heads, VALUE: core.key_heads}
        given = {
            role: rng.standard_normal((place.new, count * part.head_size), np.float32) for role, count in counts.items()
        }
        given[QUERY] /= np.float32(max(1.0, sharp))
        positions = place.emphasised(self._facts.windows, place.size) - place.past
        emphasise(given[VALUE], positions[positions >= 0], place.size)
        if part.over == "source" and not self._is_whole:  # all of the source is cached
            given |= {role: given[role][:0] for role in (KEY, VALUE)}
        return {role: each.astype(self._dtype) for role, each in given.items()}

    def _feed(self, cut: Cut, place: Place, caches: Caches) -> dict[str, Array]:
        """Return the inputs of a cut that the graph has too, and the queries that it picks."""
        feed = feed_of(self._ports, place) | {PICKED: place.picked}
        for state, name in self._ports.past().items():
            if name in cut.inputs:
                feed[name] = caches.of_port(self._ports.port(name), state)
        return feed

    def _fed(self, cut: Cut, given: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of a cut in place of projected values."""
        joined = {name: np.concatenate([given[role] for role in roles], 1) for name, roles in cut.projected.items()}
        return {name: each[None] if self._has_rows else each for name, each in joined.items()}

    def _run(self, cut: Cut, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run a part; caches in its outputs are written in place, as drivers do."""
        runner = Runner(self._show(cut.graph), self._folder, OPTIMISED, arena=False)
        return runner.run_in_place(feed, self._ports.becomes)

    def _weight(self, module: str, name: str) -> Tensor:
        return self._checkpoint.tensor(self._first[f"{module}.{name}"])

    def _compare_table(self, place: Place, caches: Caches) -> Iterator[Comparison]:
        """Compare the rows that a graph looks up in the table of positions of its stack, if it has one."""
        embedding = self._stack.embedding
        if not isinstance(embedding, Embedding) or embedding.positions is None:
            return
        name = f"{self._names[embedding]}.positions"
        cut = self._graph.rows_of(self._first.get(name, name))
        if cut is None or cut.output is None:
            return
        table = embedding.positions
        if table.is_meta:
            table = self._weight(self._names[embedding], "positions")
        found = self._run(cut, self._feed(cut, place, caches))[cut.output]
        actual = found.reshape(place.new, -1)[place.picked].astype(np.float32)
        rows = table.detach()[torch.from_numpy(place.places + embedding.offset)].to(self._table_dtype)
        yield compare(place.name, LABEL, place.size - 1, name, rows.float().numpy(), actual, 0.0)

    def _judge(self, name: str, place: Place, actual: Array, computed: Callable[..., Array], exact: Keys) -> Comparison:
        """Compare a part with PyTorch in float64, or if it differs, with the error of PyTorch in the precision.

        The rounding error of a sum over n positions grows with the magnitudes of its terms and with sqrt(n).
        """
        expected = computed(exact)
        largest = float(np.abs(expected).max(initial=0.0))
        hold = partial(
            compare, place.name, LABEL, place.size - 1, name, expected, tolerance=self._tolerance.allowed(largest)
        )

        def own(draw: int) -> Comparison:
            with last_bits(draw):
                return hold(actual=computed(Keys(place, exact.caches, self._own_dtype)))

        found = hold(actual=actual)
        if not found.passed:
            terms = float(computed(exact, magnitudes=True).max(initial=0.0)) * max(1.0, place.size / REACH) ** 0.5
            found = dataclasses.replace(found, allowed=max(found.allowed, self._tolerance.allowed(terms)))
        return self._tolerance.judge(found, largest, own)


def _picked_rows(values: Array, place: Place) -> Array:
    """Return the outputs of the compared tokens (T, N x H), given (1, N, T, H), or those of all tokens."""
    if values.ndim == 4:
        values = values.transpose(0, 2, 1, 3).reshape(1, values.shape[2], -1)
    rows = values.reshape(-1, values.shape[-1])
    return rows if len(rows) == len(place.picked) else rows[place.picked]


def _new_rows(cache: Array, place: Place) -> Array:
    """Return what was written into a cache (1, G, M, H) or (1, M, G x H) for the new tokens: (new, G x H)."""
    if cache.ndim == 4:
        cache = cache.transpose(0, 2, 1, 3)
    return cache[0, place.past : place.size].reshape(place.new, -1)
