"""Recording of the calls of a model's parts during a run: arguments, result and calling part."""

from __future__ import annotations

import contextlib
import copy
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from txport.models.model import Model
from txport.models.parts import (
    NORM_TYPES,
    Additive,
    Attention,
    Disentangled,
    DotProduct,
    Embedding,
    FeedForward,
    Frames,
    GatedFeedForward,
    Layer,
    Linear,
    PositionVectors,
    RelativeBias,
    RelativeVectors,
    Residual,
    Rotary,
    SoftCap,
    Window,
)
from txport.system.arrays import Array

BLOCKS = (Embedding, Frames, Attention, FeedForward, GatedFeedForward)
INNER = (DotProduct, Additive, Window, Rotary, RelativeBias, RelativeVectors, Disentangled, PositionVectors)
WATCHED = (nn.Linear, nn.Conv1d, nn.Embedding, *NORM_TYPES, *BLOCKS, *INNER)
KNOWN = {*WATCHED, Linear, Layer, Residual, SoftCap, nn.ModuleList, nn.ModuleDict, nn.Sequential}


def is_own(part: nn.Module) -> bool:
    """Return True for a part of an architecture's own, whose type has neither words nor fault models."""
    return type(part) not in KNOWN and not isinstance(part, Model)


@dataclass(eq=False)
class PartCall:
    """One call of a part: its tensor arguments (None if omitted), and the first tensor that it returned.

    If it is not `kept`, it has neither.
    """

    name: str
    part: nn.Module
    order: int  # index among all calls of a run
    caller: weakref.ref[PartCall] | None  # weak, so that a cleared record gives its tensors back at once
    arguments: tuple[Tensor | None, ...]
    kept: bool = True
    result: Tensor = field(init=False)
    inner: list[PartCall] = field(default_factory=list)

    @property
    def parent(self) -> PartCall | None:
        """The call of the part that made this call, while that is recorded."""
        return None if self.caller is None else self.caller()

    @property
    def tensor(self) -> Tensor:
        """The first argument."""
        first = self.arguments[0]
        assert first is not None
        return first

    @property
    def read(self) -> Tensor | None:
        """The first floating-point argument; None for a call with tokens only."""
        return next((each for each in self.arguments if each is not None and each.is_floating_point()), None)

    @property
    def gave(self) -> Array:
        """The result as an array."""
        found: Array = self.result.numpy()
        return found

    def inner_calls(self, part: nn.Module) -> list[PartCall]:
        """Return the calls of `part` that were made directly by this call, in order."""
        return [each for each in self.inner if each.part is part]


Part = TypeVar("Part", bound=nn.Module)
Record = dict[str, list[PartCall]]  # the calls of each part by its name, in order


@dataclass
class Room:
    """Which calls keep their tensors: those of the parts in `blocks` if they are given, else the first `size` bytes."""

    size: float = math.inf
    blocks: tuple[str, ...] | None = None
    used: int = 0  # bytes of all results, kept or not

    @property
    def is_full(self) -> bool:
        """Whether results were left out for lack of room."""
        return self.used > self.size

    def keeps(self, name: str) -> bool:
        """Return whether the next call of a part keeps its tensors."""
        if self.blocks is None:
            return not self.is_full
        return any(f"{name}.".startswith(f"{block}.") for block in self.blocks)

    def begin(self, blocks: tuple[str, ...] | None = None) -> None:
        """Begin an empty record."""
        self.blocks, self.used = blocks, 0


@contextlib.contextmanager
def recording(model: nn.Module, *, tensors: bool = True, room: Room | None = None) -> Iterator[Record]:
    """Record the calls of all watched parts while the model runs in this context; the caller clears the record.

    Arguments are recorded before other hooks round them. Without `tensors`, the record has only the order of the calls:
    linear layers and attention return zeros, since tensors take much memory, and products much time.
    """
    room = room or Room()

    def arguments(inputs: tuple[object, ...], named: object) -> Iterable[Tensor | None]:
        return (each for each in inputs if tensors and (each is None or isinstance(each, Tensor)))

    def result(output: Any) -> Tensor | None:
        found: Tensor = output[0] if isinstance(output, tuple) else output
        room.used += found.nbytes
        return found if tensors else None

    watched = [(name, part) for name, part in model.named_modules() if isinstance(part, WATCHED)]
    with (
        contextlib.nullcontext() if tensors else _blank(model),
        record_calls(watched, arguments, result, room.keeps) as record,
    ):
        yield record


@contextlib.contextmanager
def record_calls(
    parts: Iterable[tuple[str, nn.Module]],
    arguments: Callable[[tuple[object, ...], Mapping[str, object]], Iterable[Tensor | None]],
    result: Callable[[object], Tensor | None],
    keeps: Callable[[str], bool] = lambda name: True,
) -> Iterator[Record]:
    """Record the calls of parts in this context; `arguments` and `result` choose what is kept of inputs and outputs.

    A call of a part that `keeps` nothing has neither, unless it is within one that does: parts are shared.
    """
    record: Record = {}
    open_calls: list[PartCall] = []

    def begin(name: str) -> Any:
        def note(part: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
            parent = open_calls[-1] if open_calls else None
            order = sum(map(len, record.values()))
            caller = None if parent is None else weakref.ref(parent)
            kept = keeps(name) or (parent is not None and parent.kept)
            given = tuple(arguments(inputs, named)) if kept else ()
            open_calls.append(call := PartCall(name, part, order, caller, given, kept))
            record.setdefault(name, []).append(call)
            if parent is not None:
                parent.inner.append(call)

        return note

    def end(part: nn.Module, inputs: object, output: object) -> None:
        call = open_calls.pop()
        while call.part is not part:  # a call that raised
            call = open_calls.pop()
        found = result(output)
        if call.kept and found is not None:
            call.result = found

    handles = []
    for name, part in parts:
        handles.append(part.register_forward_pre_hook(begin(name), prepend=True, with_kwargs=True))
        handles.append(part.register_forward_hook(end))
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _blank(model: nn.Module) -> Iterator[None]:
    """Make the linear layers and the attention of a model return zeros in this context."""
    blanks: dict[object, Callable[..., object]] = {nn.Linear.forward: _no_product, DotProduct.forward: _no_attention}
    parts = [(part, blanks[type(part).forward]) for part in model.modules() if type(part).forward in blanks]
    before = [vars(part).get("forward") for part, _ in parts]  # a streamed layer has its own
    for part, blank in parts:
        part.forward = partial(blank, part)
    try:
        yield
    finally:
        for (part, _), forward in zip(parts, before, strict=True):
            del part.forward
            if forward is not None:
                part.forward = forward


def _no_product(part: nn.Linear, x: Tensor) -> Tensor:
    return x.new_zeros(*x.shape[:-1], part.out_features)


def _no_attention(
    part: DotProduct, query: Tensor, key: Tensor, value: Tensor, _: object, distances: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See `DotProduct.forward`; the linear layers of relative positions are called."""
    if part.disentangled is not None and distances is not None:
        part.disentangled(query, key, distances)
    mixed = query.new_zeros(*query.shape[:3], value.shape[3])
    return mixed, mixed[..., :1].expand(*query.shape[:3], key.shape[2])


def calls_of(record: Record, names: Iterable[str]) -> list[PartCall]:
    """Return the calls of several parts, in the order in which they were made."""
    return sorted((call for name in names for call in record.get(name, ())), key=lambda call: call.order)


def altered(part: Part, **changes: object) -> Part:
    """Return a shallow copy of a part, which shares its weights, with some attributes, parts or weights changed."""
    other = copy.copy(part)
    for kind in ("_parameters", "_buffers", "_modules"):
        other.__dict__[kind] = dict(getattr(part, kind))
    for kind in ("_forward_hooks", "_forward_pre_hooks"):  # calls of the copy are not recorded
        other.__dict__[kind] = {}
    for name, value in changes.items():
        for kind in ("_parameters", "_buffers", "_modules"):
            other.__dict__[kind].pop(name, None)
        other.__dict__[name] = value
    return other
