"""Recording of the calls of an original's modules during a run: inputs and outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule

MOST_DIMS = 4  # maximum number of dims of a tensor that is tried in other orders


@dataclass(eq=False)
class Seen:
    """One call of a module of the original: its input tensors (`given`) and its output tensors (`gave`)."""

    name: str
    module: nn.Module
    order: int  # among all calls of a run
    given: tuple[Tensor, ...]
    gave: tuple[Tensor, ...] = field(default=())

    @property
    def read(self) -> Tensor | None:
        """The first floating-point input; None for a call with tokens only."""
        return next((each for each in self.given if each.is_floating_point()), None)

    @property
    def result(self) -> Tensor | None:
        """The first floating-point output, or None."""
        return next((each for each in self.gave if each.is_floating_point()), None)


Watched = dict[str, list[Seen]]  # first name of a module -> its calls, in order


@contextlib.contextmanager
def watching(module: nn.Module) -> Iterator[Watched]:
    """Record the calls of all modules while the original runs in this context; scripted modules are not recorded."""
    record: Watched = {}
    open_calls: list[Seen] = []

    def begin(name: str) -> Any:
        def note(part: nn.Module, given: tuple[object, ...], named: Mapping[str, object]) -> None:
            order = sum(map(len, record.values()))
            open_calls.append(call := Seen(name, part, order, tuple(_copied((given, named)))))
            record.setdefault(name, []).append(call)

        return note

    def end(part: nn.Module, given: object, output: object) -> None:
        call = open_calls.pop()
        while call.module is not part:  # a call that raised
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


def _copied(value: object) -> Iterator[Tensor]:
    """Yield copies of all tensors in a value, since later code may change them in place."""
    yield from (each.detach().clone() for each in tensors_in(value))


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield all tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


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
