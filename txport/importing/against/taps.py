"""What parts of the import and of the original compute, beside each other, and the places at which they part.

Both run freely, which says whether they part at all. Then each part of the import reads what the original computed
before it, so that an error stays in the part where it arises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from txport.importing.against.batches import Batch, outputs_of
from txport.importing.against.original import Original
from txport.importing.against.pairing import Origins, Pair, blocks_of, pairs_of
from txport.importing.against.watching import Watched, aligned, watching
from txport.models.model import Model, Side
from txport.models.parts import Attention, Residual
from txport.proof.bisect.calls import WATCHED, PartCall, Record, recording
from txport.proof.masks import largest_of

IN, OUT, BLOCK, END = "in", "out", "block", "end"
# How far one part may be from the original over its largest value when both read the same: `surely` is no rounding,
# below `closely` is nothing but rounding. What lies between is an error only if a cause explains it: an epsilon, or
# a table that the original has in fp32.
CLOSELY = {torch.float64: 1e-9, torch.float32: 1e-4}
SURELY = {torch.float64: 1e-5, torch.float32: 1e-4}
HUGE = 1e4  # times the middle value
Key = tuple[str, int, str]  # the part's name, which of its calls, and the side


@dataclass(frozen=True)
class Tap:
    """One place: what the import gives and what the original gives, as the import has it (real tokens alone count)."""

    key: Key
    order: float  # among the calls of the import
    ours: Tensor
    theirs: Tensor
    names: tuple[str, ...]  # the original's modules
    real: Tensor | None = None
    pair: Pair | None = None
    more: float = 1.0  # how much more may be rounding, in long rows

    @cached_property
    def error(self) -> float:
        """The largest difference, of a huge value in proportion to `size`; infinite for what is no number."""
        return float(self.scaled(self._apart).max()) if self.ours.numel() else 0.0

    @cached_property
    def gap(self) -> float:
        """The largest difference as it is."""
        return float(self._apart.max()) if self.ours.numel() else 0.0

    @property
    def worst(self) -> float:
        """The difference that counts most, as it is."""
        return float(self._apart.flatten()[self.scaled(self._apart).argmax()]) if self.ours.numel() else 0.0

    @cached_property
    def largest(self) -> float:
        """The largest value that is a number."""
        values = self._values if self.real is None else self._values[self.real]
        return float(torch.where(values.isfinite(), values, 0.0).max()) if values.numel() else 0.0

    def scaled(self, gap: Tensor) -> Tensor:
        """Differences from the original, of huge values in proportion to `size`, infinite ones as they are."""
        shares = (self._values / self.size).clamp(min=1.0) if self.size else torch.ones_like(gap)
        return torch.where(gap.isinf(), gap, gap / shares)

    @property
    def _apart(self) -> Tensor:
        gap = torch.where(self.ours == self.theirs, 0.0, (self.ours - self.theirs).abs())  # infinity less itself is NaN
        gap = gap if self.real is None else torch.where(self.real, gap, 0.0)
        return torch.nan_to_num(gap, nan=torch.inf, posinf=torch.inf)

    @property
    def _values(self) -> Tensor:
        return torch.maximum(self.ours.abs(), self.theirs.abs())

    @cached_property
    def size(self) -> float:
        """The largest value that is not huge beside the middle one and no mask, as one of -1e9 among logits is."""
        values = self._values
        values = values if self.real is None else values[self.real]
        values = values[(values > 0) & values.isfinite()]
        if not values.numel():
            return 0.0
        values = values[values <= HUGE * values.median()]
        return largest_of(values.numpy())

    def within(self, limits: Mapping[torch.dtype, float]) -> bool:
        """Whether the difference is allowed."""
        return self.error <= self.more * limits[self.ours.dtype] * max(self.size, 1e-30)

    @property
    def allowed(self) -> float:
        """How far it may be off without an explanation."""
        return self.more * SURELY[self.ours.dtype] * self.size


@dataclass(frozen=True)
class Value:
    """What went into a part of the import, or came out of it."""

    name: str
    side: str
    tensor: Tensor


@dataclass(frozen=True)
class Run:
    """One run of both over a batch: calls of parts and of modules, outputs by name, and the taps in order.

    `flow` are the values in the import, in order.
    """

    given: Batch
    record: Record
    watched: Watched
    ours: Mapping[str, Tensor]
    theirs: Mapping[str, Tensor]
    taps: tuple[Tap, ...]
    flow: tuple[Value, ...] = ()
    moments: Mapping[Key, int] = field(default_factory=dict)  # how many values had flowed before a part was called

    @property
    def ends(self) -> list[Tap]:
        """The outputs."""
        found = self.ours.items()
        return [
            Tap((name, 0, END), torch.inf, each, self.theirs[name], (), self.given.real(each), more=self.given.more)
            for name, each in found
            if name in self.theirs
        ]


@torch.inference_mode()
def run_freely(model: Model, original: Original, origins: Origins, given: Batch) -> Run:
    """Both as they are."""
    with recording(model) as record:
        ours = outputs_of(model, given.to(original.dtype))
    with watching(original.module) as watched:
        theirs = original.outputs(given, ours)
    pairs = list(pairs_of(origins, record, watched))
    named = {each.call.name for each in pairs}
    blocks = list(blocks_of(origins, record, watched, named))
    taps = [tap for pair in pairs for tap in _taps(pair, record, given)]
    taps += [tap for pair in blocks for tap in _block_taps(pair, record, given)]
    return Run(given, record, watched, ours, theirs, tuple(sorted(taps, key=lambda tap: tap.order)))


@torch.inference_mode()
def run_plainly(model: Model, original: Original, given: Batch) -> Run:
    """Both as they are, without a record of what is within."""
    ours = outputs_of(model, given.to(original.dtype))
    return Run(given, {}, {}, ours, original.outputs(given, ours), ())


def _taps(pair: Pair, record: Record, given: Batch) -> Iterator[Tap]:
    """Before and after a part."""
    call = pair.call
    first = call.arguments[0]
    sides = ((IN, first, pair.read, 0.0), (OUT, call.result, pair.gave, 0.5))
    for side, ours, theirs, later in sides:
        if ours is None or theirs is None or not ours.is_floating_point():
            continue
        found = aligned(theirs, ours, given.real(ours))
        if found is not None:
            key = (call.name, record[call.name].index(call), side)
            yield Tap(key, call.order + later, ours, found, pair.theirs, given.real(ours), pair, given.more)


def _block_taps(pair: Pair, record: Record, given: Batch) -> Iterator[Tap]:
    """Before and after a block, whose parts the original does not call one by one."""
    call = pair.call
    first = pair.call.arguments[0]
    nth = record[call.name].index(call)
    read = None if pair.read is None or first is None else aligned(pair.read, first, given.real(first))
    if read is not None and first is not None:
        yield Tap((call.name, nth, IN), call.order, first, read, pair.theirs, given.real(first), pair, given.more)
    found = None if pair.gave is None else aligned(pair.gave, call.result, given.real(call.result))
    if found is not None:
        order = max([call.order, *(each.order for each in call.inner)]) + 0.75
        key = (call.name, nth, BLOCK)
        yield Tap(key, order, call.result, found, pair.theirs, given.real(found), pair, given.more)


@torch.inference_mode()
def run_on_theirs(model: Model, original: Original, free: Run, kept: set[Key]) -> Run:
    """The import again, each part over what the original computed before it; `kept` are left as they are."""
    values = {tap.key: tap for tap in free.taps if tap.key not in kept}
    traffic = Traffic(values)
    with traffic.through(model) as record:
        ours = outputs_of(model, free.given.to(original.dtype))
    taps = []
    for tap in free.taps:
        name, nth, side = tap.key
        mine = traffic.own[tap.key] if side == IN else record[name][nth].result
        taps.append(Tap(tap.key, tap.order, mine, tap.theirs, tap.names, tap.real, tap.pair, tap.more))
    run = Run(free.given, record, free.watched, ours, free.theirs, tuple(taps))
    return replace(run, flow=tuple(traffic.flow), moments=traffic.moments)


class Traffic:
    """What goes into parts of the import and comes out: the original's values in place of its own, where known.

    `own` is what would have gone in.
    """

    def __init__(self, values: Mapping[Key, Tap]) -> None:
        self.values = values
        self.own: dict[Key, Tensor] = {}
        self.flow: list[Value] = []
        self.moments: dict[Key, int] = {}
        self._counts: dict[str, int] = {}

    @contextlib.contextmanager
    def through(self, model: Model) -> Iterator[Record]:
        """Calls are recorded with what they were given, and with what they gave themselves."""
        parts = [(name, part) for name, part in model.named_modules() if isinstance(part, WATCHED)]
        handles = [part.register_forward_pre_hook(partial(self._given, name)) for name, part in parts]
        streams = [(name, part) for name, part in model.named_modules() if isinstance(part, Residual) and part.first]
        for name, part in streams:
            part.__dict__["after"] = partial(self._after, name, part)
        try:
            with recording(model) as record:
                handles += [part.register_forward_hook(partial(self._gave, name)) for name, part in parts]
                yield record
        finally:
            for handle in handles:
                handle.remove()
            for _, part in streams:
                del part.__dict__["after"]

    def _after(self, name: str, part: Residual, x: Tensor, result: Tensor) -> Tensor:
        """What comes after a sublayer whose norm has read the original's value: that value goes on beside it too."""
        norm = f"{name}.norm"
        key = (norm, self._counts.get(norm, 0), IN)
        return Residual.after(part, self.values[key].theirs if key in self.values else x, result)

    def _given(self, name: str, part: nn.Module, inputs: tuple[Any, ...]) -> Any:
        self._counts[name] = self._counts.get(name, -1) + 1
        key = (name, self._counts[name], IN)
        self.moments[key] = len(self.flow)
        if not inputs or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
            return None
        self.own[key] = inputs[0]
        x = self.values[key].theirs if key in self.values else inputs[0]
        self.flow.append(Value(name, IN, x))
        return (x, *inputs[1:])

    def _gave(self, name: str, part: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return None
        keys = ((name, self._counts[name], side) for side in (OUT, BLOCK))
        x = next((self.values[key].theirs for key in keys if key in self.values), output)
        self.flow.append(Value(name, OUT, x))
        return x


def benign(model: Model, free: Run) -> set[Key]:
    """Taps of a free run at which the two differ, and after which they agree again.

    There the original divides its work otherwise among its modules.
    """
    agree = [tap for tap in free.taps if tap.within(CLOSELY) and not _of_source(tap)]
    found = set()
    for tap in free.taps:
        if not tap.within(SURELY):
            side = side_of(model, tap)
            scope = _scope(tap)
            after = [each for each in agree if each.order > tap.order and side_of(model, each) == side]
            recovers = any(_scope(each) is not scope or each.key[:2] == tap.key[:2] for each in after)
            found |= {tap.key} if recovers else set()
    return found


def side_of(model: Model, tap: Tap) -> Side:
    """The side of the model that a tap is on; what stands beside the stacks follows the last of them."""
    stack = model.stack_of(tap.key[0])
    if stack is not None:
        return stack.side
    return "encoder" if model.facts.task == "encode" else "decoder"


def _scope(tap: Tap) -> PartCall:
    """The outermost call that the tap's is a part of."""
    assert tap.pair is not None
    call = tap.pair.call
    while call.parent is not None:
        call = call.parent
    return call


def _of_source(tap: Tap) -> bool:
    """Whether it only depends on the source, within a decoder."""
    assert tap.pair is not None
    call = tap.pair.call
    block = None if call.parent is None else call.parent.part
    return isinstance(block, Attention) and block.over == "source" and call.part in (block.key, block.value)
