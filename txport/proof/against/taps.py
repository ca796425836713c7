"""Values of corresponding parts of the import and the original (taps), and the positions at which they differ.

First, both models run separately; this shows whether they differ at all. Then each part of the import reads the
original's values instead of the import's, so that an error is confined to the part that causes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import permutations

import torch
from torch import Tensor, nn

from txport.models.model import Model, Side
from txport.models.parts import Attention, Residual
from txport.proof.against.batches import Batch, outputs_of
from txport.proof.against.original import Original, watching
from txport.proof.against.pairing import CLOSELY, SURELY, Origins, Pair, pairs_of
from txport.proof.faults.calls import WATCHED, PartCall, Record, recording
from txport.proof.masks import LEAST, largest_of

IN, OUT, BLOCK, END = "in", "out", "block", "end"
HUGE = 1e4  # times the median
MOST_DIMS = 4  # maximum number of dims of a tensor that is tried in other orders
Key = tuple[str, int, str]  # the part's name, the index of its call, and the side


@dataclass(frozen=True)
class Tap:
    """One tap: the import's value and the original's, in the import's shape; only real tokens count."""

    key: Key
    order: float  # position among the calls of the import
    ours: Tensor
    theirs: Tensor
    names: tuple[str, ...]  # the original's modules
    real: Tensor | None = None
    pair: Pair | None = None
    more: float = 1.0  # factor for the allowed rounding error of long rows

    @cached_property
    def error(self) -> float:
        """The largest absolute difference, scaled for huge values (see `scaled`); infinite if there is NaN."""
        is_plain = self.size >= self.largest
        return self.gap if is_plain else float(self.scaled(self._apart).max())

    @cached_property
    def gap(self) -> float:
        """The largest absolute difference, not scaled."""
        return float(self._apart.max()) if self.ours.numel() else 0.0

    @property
    def worst(self) -> float:
        """The absolute difference, not scaled, at the position with the largest scaled one."""
        return float(self._apart.flatten()[self.scaled(self._apart).argmax()]) if self.ours.numel() else 0.0

    @property
    def largest(self) -> float:
        """The largest finite absolute value of both models."""
        return self._sizes[0]

    @property
    def size(self) -> float:
        """The largest absolute value that is not huge compared with the median, as a mask of -1e9 among logits is."""
        return self._sizes[1]

    def scaled(self, gap: Tensor) -> Tensor:
        """Return differences divided by value / `size` for values larger than `size`; infinite ones are kept."""
        shares = (self._values / self.size).clamp(min=1.0) if self.size else torch.ones_like(gap)
        return torch.where(gap.isinf(), gap, gap / shares)

    @property
    def _apart(self) -> Tensor:
        gap = (self.ours - self.theirs).abs_()
        gap = gap if self.real is None else torch.where(self.real, gap, 0.0)
        if gap.numel() and not gap.max().isfinite():
            gap = gap.masked_fill_(self.ours == self.theirs, 0.0)  # inf - inf is NaN
        return gap.nan_to_num_(nan=torch.inf, posinf=torch.inf)

    @property
    def _values(self) -> Tensor:
        return torch.maximum(self.ours.abs(), self.theirs.abs())

    @cached_property
    def _sizes(self) -> tuple[float, float]:
        """`largest` and `size`."""
        values = self._values if self.real is None else self._values[self.real]
        if values.numel() and not values.max().isfinite():
            values = values[values.isfinite()]
        largest = float(values.max()) if values.numel() else 0.0
        is_usual = values > 2 * largest / HUGE
        if largest < LEAST and 2 * int(is_usual.sum()) > values.numel():  # the median is among these: nothing is huge
            return largest, largest
        values = values[values > 0]
        values = values[values <= HUGE * values.median()]
        return largest, largest_of(values.numpy())

    def within(self, limits: Mapping[torch.dtype, float]) -> bool:
        """Return True if the error is within a relative limit for the dtype."""
        return self.error <= self.more * limits[self.ours.dtype] * max(self.size, 1e-30)

    @property
    def allowed(self) -> float:
        """The maximum error without an explanation."""
        return self.more * SURELY[self.ours.dtype] * self.size


@dataclass(frozen=True)
class Value:
    """The input or the output of a part of the import."""

    name: str
    side: str
    tensor: Tensor


@dataclass(frozen=True)
class Run:
    """One run of both models over a batch.

    `record` are the calls of the import's parts, `watched` those of the original's modules. `ours` and `theirs` are the
    outputs by name. `taps` and `flow`, the values in the import, are in order.
    """

    given: Batch
    record: Record
    watched: Record
    ours: Mapping[str, Tensor]
    theirs: Mapping[str, Tensor]
    taps: tuple[Tap, ...]
    flow: tuple[Value, ...] = ()
    moments: Mapping[Key, int] = field(default_factory=dict)  # number of values in `flow` before a part was called

    @cached_property
    def ends(self) -> list[Tap]:
        """The taps of the outputs that both models have."""
        found = self.ours.items()
        return [
            Tap((name, 0, END), torch.inf, each, self.theirs[name], (), self.given.real(each), more=self.given.more)
            for name, each in found
            if name in self.theirs
        ]


@torch.inference_mode()
def run_freely(model: Model, original: Original, origins: Origins, given: Batch) -> Run:
    """Run both models separately and record all their calls."""
    with recording(model) as record:
        ours = outputs_of(model, given.to(original.dtype))
    with watching(original.module) as watched:
        theirs = original.outputs(given, ours)
    taps = [tap for pair in pairs_of(origins, record, watched) for tap in _taps(pair, record, given)]
    return Run(given, record, watched, ours, theirs, tuple(sorted(taps, key=lambda tap: tap.order)))


@torch.inference_mode()
def run_plainly(model: Model, original: Original, given: Batch, known: object = None) -> Run:
    """Run both models separately and record only their outputs; `known` is the original's result if it already ran."""
    ours = outputs_of(model, given.to(original.dtype))
    theirs = original.outputs(given, ours) if known is None else original.chosen(known, ours)
    return Run(given, {}, {}, ours, theirs, ())


def _taps(pair: Pair, record: Record, given: Batch) -> Iterator[Tap]:
    """Yield the taps of the input and the output of a part."""
    call = pair.call
    nth = record[call.name].index(call)
    end = max([call.order, *(each.order for each in call.inner)]) + 0.75 if pair.is_block else call.order + 0.5
    sides = (
        (IN, call.order, call.arguments[0], pair.read),
        (BLOCK if pair.is_block else OUT, end, call.result, pair.gave),
    )
    for side, order, ours, theirs in sides:
        if ours is None or theirs is None or not ours.is_floating_point():
            continue
        real = given.real(ours)
        found = aligned(theirs, ours, real)
        if found is not None:
            yield Tap((call.name, nth, side), order, ours, found, pair.theirs, real, pair, given.more)


def aligned(theirs: Tensor, like: Tensor, real: Tensor | None = None) -> Tensor | None:
    """Return a tensor of the original with the shape of the import's (`like`); None if its shape doesn't fit.

    The last dim stays the last; the others may be permuted or flattened. Of several orders that fit, the one with the
    nearest values is chosen; only positions where `real` is True count.
    """
    if theirs.dim() == like.dim() and sorted(theirs.shape) == sorted(like.shape) and like.dim() <= MOST_DIMS:
        turned = (theirs.permute(order) for order in _orders(like.dim()))
        return _nearest([each for each in turned if each.shape == like.shape], like, real)
    same_end = theirs.dim() and like.dim() and theirs.shape[-1] == like.shape[-1]
    if not same_end or theirs.numel() != like.numel():
        return None
    found = [theirs.reshape(like.shape)]
    if theirs.dim() < like.dim() <= MOST_DIMS:
        for order in _orders(like.dim()):
            shaped = theirs.reshape([like.shape[each] for each in order])
            found.append(shaped.permute([order.index(each) for each in range(like.dim())]))
    return _nearest(found, like, real)


def _orders(dims: int) -> Iterator[list[int]]:
    """Yield all orders of dims in which the last one stays the last."""
    yield from ([*each, dims - 1] for each in permutations(range(dims - 1)))


def _nearest(found: Sequence[Tensor], like: Tensor, real: Tensor | None) -> Tensor | None:
    """Return the tensor with the smallest sum of differences; None if there are no tensors."""

    def far(each: Tensor) -> float:
        gap = (each - like).abs()
        return float((gap if real is None else gap[real]).sum())

    return found[0] if len(found) == 1 else min(found, key=far, default=None)


@torch.inference_mode()
def run_on_theirs(model: Model, original: Original, free: Run, kept: set[Key]) -> Run:
    """Run the import again with the original's values in place of its own at all taps except `kept`."""
    values = {tap.key: tap for tap in free.taps if tap.key not in kept}
    traffic = Traffic(values)
    with traffic.through(model) as record:
        ours = outputs_of(model, free.given.to(original.dtype))
    taps = []
    for tap in free.taps:
        name, nth, side = tap.key
        call = record[name][nth]  # with what the part computed itself
        taps.append(replace(tap, ours=call.tensor if side == IN else call.result))
    run = Run(free.given, record, free.watched, ours, free.theirs, tuple(taps))
    return replace(run, flow=tuple(traffic.flow), moments=traffic.moments)


class Traffic:
    """Inputs and outputs of the import's parts, replaced by the original's values where these are known: the `flow`."""

    def __init__(self, values: Mapping[Key, Tap]) -> None:
        self.values = values
        self.flow: list[Value] = []
        self.moments: dict[Key, int] = {}
        self._counts: dict[str, int] = {}

    @contextlib.contextmanager
    def through(self, model: Model) -> Iterator[Record]:
        """Replace values while the model runs in this context; record calls with their inputs and own results."""
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
        """Return the sum after a pre-norm sublayer; if its norm read the original's value, the residual uses it too."""
        norm = f"{name}.norm"
        key = (norm, self._counts.get(norm, 0), IN)
        return Residual.after(part, self.values[key].theirs if key in self.values else x, result)

    def _given(self, name: str, part: nn.Module, inputs: tuple[object, ...]) -> object:
        self._counts[name] = self._counts.get(name, -1) + 1
        key = (name, self._counts[name], IN)
        self.moments[key] = len(self.flow)
        if not inputs or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
            return None
        x = self.values[key].theirs if key in self.values else inputs[0]
        self.flow.append(Value(name, IN, x))
        return (x, *inputs[1:])

    def _gave(self, name: str, part: nn.Module, inputs: object, output: object) -> object:
        if not isinstance(output, Tensor):
            return None
        keys = ((name, self._counts[name], side) for side in (OUT, BLOCK))
        x = next((self.values[key].theirs for key in keys if key in self.values), output)
        self.flow.append(Value(name, OUT, x))
        return x


def benign(model: Model, free: Run) -> set[Key]:
    """Return the taps of a free run at which the models differ but agree again later.

    There, the original's modules divide the computation differently.
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
    """Return the side of the model with a tap; parts outside of the stacks are on the side of the last one."""
    stack = None if tap.key[2] == END else model.stack_of(tap.key[0])
    if stack is not None:
        return stack.side
    return "decoder" if model.facts.generates else "encoder"


def _scope(tap: Tap) -> PartCall:
    """Return the outermost call that contains the call of a tap."""
    assert tap.pair is not None
    call = tap.pair.call
    while call.parent is not None:
        call = call.parent
    return call


def _of_source(tap: Tap) -> bool:
    """Return True for taps of the keys and values of cross-attention, which depend only on the source."""
    assert tap.pair is not None
    call = tap.pair.call
    block = None if call.parent is None else call.parent.part
    return isinstance(block, Attention) and block.over == "source" and call.part in (block.key, block.value)
