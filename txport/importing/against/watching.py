"""The calls of an original's modules while it runs: what each read, and what it gave."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from torch import Tensor, nn

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
        open_calls.pop().gave = tuple(_copied(output))

    handles = []
    for name, part in module.named_modules():
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


def aligned(theirs: Tensor, like: Tensor) -> Tensor | None:
    """A tensor of the original with its dims as ours has them, of which the last stays; None where that can't be.

    Of several orders of dims that fit, the one that is nearest.
    """
    if theirs.dim() == like.dim() and sorted(theirs.shape) == sorted(like.shape) and like.dim() <= MOST_DIMS:
        orders = ([*each, like.dim() - 1] for each in permutations(range(like.dim() - 1)))
        found = [theirs.permute(order) for order in orders]
        fitting = [each for each in found if each.shape == like.shape]
        return min(fitting, key=lambda each: float((each - like).abs().max()) if like.numel() else 0.0, default=None)
    same_end = theirs.dim() and like.dim() and theirs.shape[-1] == like.shape[-1]
    return theirs.reshape(like.shape) if same_end and theirs.numel() == like.numel() else None
