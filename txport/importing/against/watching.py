"""The calls of an original's modules while it runs: what each read, and what it gave."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule

MOST_DIMS = 4  # that are tried in other orders


@dataclass(eq=False)
class Seen:
    """One call of a module of the original: the tensors that it was given, and those that came out."""

    name: str
    module: nn.Module
    order: int  # among all calls of a run
    given: tuple[Tensor, ...]
    gave: tuple[Tensor, ...] = field(default=())

    @property
    def read(self) -> Tensor | None:
        """Its first tensor of numbers; None for a call that was given tokens alone."""
        return next((each for each in self.given if each.is_floating_point()), None)

    @property
    def result(self) -> Tensor | None:
        """The first tensor of numbers that came out."""
        return next((each for each in self.gave if each.is_floating_point()), None)


Watched = dict[str, list[Seen]]  # the calls of each module by its first name, in order


@contextlib.contextmanager
def watching(module: nn.Module) -> Iterator[Watched]:
    """Every call of every module while it runs in the context."""
    record: Watched = {}
    open_calls: list[Seen] = []

    def begin(name: str) -> Any:
        def note(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            order = sum(map(len, record.values()))
            open_calls.append(call := Seen(name, part, order, tuple(_copied((given, named)))))
            record.setdefault(name, []).append(call)

        return note

    def end(part: nn.Module, given: Any, output: Any) -> None:
        call = open_calls.pop()
        while call.module is not part:  # a call that raised, which is over
            call = open_calls.pop()
        call.gave = tuple(_copied(output))

    handles = []
    for name, part in module.named_modules():
        if isinstance(part, ScriptModule):  # has no hooks
            continue
        handles.append(part.register_forward_pre_hook(begin(name), with_kwargs=True))
        handles.append(part.register_forward_hook(end))
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _copied(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, as they are now: code may change them in place."""
    yield from (each.detach().clone() for each in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


def aligned(theirs: Tensor, like: Tensor, real: Tensor | None = None) -> Tensor | None:
    """A tensor of the original with its dims as ours has them, of which the last stays; None where that can't be.

    Of several orders of dims that fit, the one that is nearest, where it is `real`; dims may be flattened in any order.
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
    """All orders of dims in which the last stays."""
    yield from ([*each, dims - 1] for each in permutations(range(dims - 1)))


def _nearest(found: Sequence[Tensor], like: Tensor, real: Tensor | None) -> Tensor | None:
    """The one whose numbers are nearest on the whole; None of none."""

    def far(each: Tensor) -> float:
        gap = (each - like).abs()
        return float((gap if real is None else gap[real]).sum())

    return found[0] if len(found) == 1 else min(found, key=far, default=None)
