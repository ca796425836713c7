"""Causes that are tested on the whole import: with one change of it, its outputs are those of the original.

They are modules whose tensors are exchanged, layers in another order, norms at another position, and a token that only
the original masks. No values inside of the models are needed, so they are also found where modules can't be paired.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import torch
from torch import nn

from txport.models.facts import Tokens
from txport.models.model import Model, Stack
from txport.models.parts import NORM_TYPES, Attention, Embedding, FeedForward, GatedFeedForward, Layer, Residual
from txport.proof.against.batches import Batch, outputs_of
from txport.proof.against.original import Original
from txport.proof.against.pairing import SURELY
from txport.proof.against.taps import Run
from txport.proof.faults.evidence import EXPLAINED, Cause, Explained
from txport.proof.faults.words import describe

EXCHANGED, LAYERS, ORDER, PADDING = "exchanged", "layers", "order", "padding"  # kinds of causes
BLOCKS = (Attention, FeedForward, GatedFeedForward)
TABLES = (Embedding, nn.Embedding)
SUSPECTS = 8  # tokens that are tried

Change = tuple[object, str, object]  # of an attribute of a parameter or of a part


@torch.inference_mode()
def whole_cause(model: Model, original: Original, runs: Sequence[Run], layer: str) -> Explained | None:
    """Return the first change of the import with which it computes the original's outputs in all `runs`; None if none.

    `layer` is the name of the layer of the first difference, or "".
    """

    def left() -> float | None:
        """Return the difference of the import as it is now; None if it is above rounding, or hardly smaller."""
        gaps = list[float]()
        for run in runs:
            gap = _again(model, run)
            if gap is None or gap > EXPLAINED * max(tap.gap for tap in run.ends):
                return None
            gaps.append(gap)
        return max(gaps)

    for where, cause, changes in chain(_exchanges(model, layer), _permuted(model, runs), _other_order(model)):
        with _changed(changes):
            found = left()
        if found is not None:
            return Explained(cause, found, where)
    return _other_padding(model, original, runs)


def _again(model: Model, run: Run) -> float | None:
    """Return the difference of the outputs if the import runs again; None if it is above rounding."""
    like = next(iter(run.ours.values()))
    return _rounding(replace(run, ours=outputs_of(model, run.given.to(like.dtype))))


def _rounding(run: Run) -> float | None:
    """Return the largest difference of the outputs if it is rounding, else None."""
    return max(tap.gap for tap in run.ends) if all(tap.within(SURELY) for tap in run.ends) else None


@contextlib.contextmanager
def _changed(changes: Sequence[Change]) -> Iterator[None]:
    """Give attributes other values in this context; tied tensors change with a parameter's data."""
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in changes]
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for change in before:
            setattr(*change)


def _data(to: Iterable[nn.Parameter], of: Iterable[nn.Parameter]) -> list[Change]:
    """Return the changes that give parameters the data of others."""
    return [(each, "data", other.data) for each, other in zip(to, of, strict=True)]


def _exchanges(model: Model, layer: str) -> Iterator[tuple[str, Cause, list[Change]]]:
    """Yield parts of equal shapes with each other's tensors: in all layers, then in `layer` alone."""
    units = _units(model)
    roles: dict[str, list[str]] = {}
    for name in units:
        roles.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    pairs = [list(zip(*each, strict=True)) for each in combinations(roles.values(), 2) if len(set(map(len, each))) == 1]
    inside = [name for name in units if layer and name.startswith(f"{layer}.")]
    pairs += [[each] for each in combinations(inside, 2)]
    for several in pairs:
        if all(_are_alike(units[one], units[other]) for one, other in several):
            units_of = [(units[one].parameters, units[other].parameters) for one, other in several]
            changes = [change for one, other in units_of for change in (*_data(one, other), *_data(other, one))]
            one, other = several[0]
            more = ", alike in all layers" if len(several) > 1 else ""
            cause = Cause(EXCHANGED, f"the tensors of {one} and {other} are exchanged{more}")
            yield describe(model, [one]), cause, changes


@dataclass(frozen=True)
class Unit:
    """The tensors of a part that may be exchanged with another one within the same block, if it is in one."""

    parameters: tuple[nn.Parameter, ...]
    within: str = ""


def _units(model: Model) -> dict[str, Unit]:
    """Return the blocks, norms and embeddings by name, and the linear layers and norms of blocks."""
    found: dict[str, Unit] = {}
    blocks: set[str] = set()
    for name, part in model.named_modules():
        around = name.rpartition(".")[0]
        if isinstance(part, BLOCKS):
            blocks.add(name)
        if isinstance(part, (*BLOCKS, *TABLES, *NORM_TYPES, nn.Linear)) and (own := tuple(part.parameters())):
            found[name] = Unit(own, around if around in blocks else "")
        if isinstance(part, Embedding) and isinstance(part.positions, nn.Parameter):
            found[f"{name}.positions"] = Unit((part.positions,))
    return found


def _are_alike(one: Unit, other: Unit) -> bool:
    """Return True if two parts have tensors of the same shapes, none in common."""
    shapes = [[each.shape for each in unit.parameters] for unit in (one, other)]
    is_apart = not {*map(id, one.parameters)} & {*map(id, other.parameters)}
    return shapes[0] == shapes[1] and is_apart and one.within == other.within


def _permuted(model: Model, runs: Sequence[Run]) -> Iterator[tuple[str, Cause, list[Change]]]:
    """Yield the layers of a stack in the order in which the original calls their modules."""
    for stack in model.stacks:
        order = _order(model, stack, runs[0])
        if order != sorted(order):
            pairs = zip(stack.layers, (stack.layers[each] for each in order), strict=True)
            changes = [change for to, of in pairs for change in _data(to.parameters(), of.parameters())]
            told = ", ".join(map(str, order))
            what = f"the layers of the {stack.side} are in another order: the original runs the import's layers {told}"
            yield stack.side, Cause(LAYERS, what), changes


def _order(model: Model, stack: Stack, run: Run) -> list[int]:
    """Return the numbers of the layers of a stack in the order in which the original first calls a module of theirs."""
    firsts: dict[int, int] = {}
    for tap in run.taps:
        name, nth, _ = tap.key
        at = next((at for at, each in enumerate(stack.layers) if _is_in(model, name, each)), None)
        calls = [each for other in tap.names for each in run.watched.get(other, [])[nth : nth + 1]]
        if at is not None and calls:
            firsts[at] = min(firsts.get(at, calls[0].order), *(each.order for each in calls))
    return sorted(firsts, key=firsts.__getitem__) if len(firsts) == len(stack.layers) else []


def _is_in(model: Model, name: str, layer: nn.Module) -> bool:
    path = name.split(".")
    return any(model.get_submodule(".".join(path[:count])) is layer for count in range(1, len(path) + 1))


def _other_order(model: Model) -> Iterator[tuple[str, Cause, list[Change]]]:
    """Yield norms before all sublayers of the import if they are after them, and the other way round."""
    around = {name: each for name, each in model.named_modules() if isinstance(each, Residual)}
    if len({each.first for each in around.values()}) == 1:
        name, first = next(iter(around.items()))
        own, other = ("before it", "after the residual")[:: 1 if first.first else -1]
        cause = Cause(ORDER, f"the norm of each sublayer stands {other}, the import has it {own}")
        is_first = not first.first
        yield describe(model, [f"{name}.norm"]), cause, [(each, "first", is_first) for each in around.values()]


def layer_of(model: Model, name: str) -> str:
    """Return the name of the layer that contains a part, or ""."""
    path = name.split(".")
    names = (".".join(path[:count]) for count in range(len(path), 0, -1))
    return next((each for each in names if isinstance(model.get_submodule(each), Layer)), "")


def _other_padding(model: Model, original: Original, runs: Sequence[Run]) -> Explained | None:
    """A token that the original masks wherever it is, because it is the original's padding."""
    pads = {each.pad for each in (model.facts.source, model.facts.target) if isinstance(each, Tokens)}
    own = " and ".join(map(str, sorted(pads)))
    for token in _suspects(runs):
        gaps = [_masked(model, original, run.given, token) for run in runs]
        known = [gap for gap in gaps if gap is not None]
        if len(known) == len(gaps):
            what = f"the original masks token {token} wherever it is, as padding; the import's pad_id is {own}"
            return Explained(Cause(PADDING, what), max(known), "the tokens of the input")
    return None


def _suspects(runs: Sequence[Run]) -> list[int]:
    """Return the tokens, of sources or targets, that are in each row that differs and in no row that agrees."""
    found: set[int] | None = None
    others: set[int] = set()
    for run in runs:
        if run.given.source.is_floating_point():
            return []
        for at in range(len(run.given.source)):
            targets = [] if run.given.target is None else run.given.target[at].tolist()
            ids = {*run.given.source[at].tolist(), *targets}
            if all(_agrees(run, name, at) for name in run.theirs):
                others |= ids
            else:
                found = ids if found is None else found & ids
    return sorted((found or set()) - others)[:SUSPECTS]


def _agrees(run: Run, name: str, row: int) -> bool:
    ours, theirs = (each[name][row] for each in (run.ours, run.theirs))
    return float((ours - theirs).abs().max()) <= SURELY[ours.dtype] * max(float(theirs.abs().max()), 1e-30)


def _masked(model: Model, original: Original, given: Batch, token: int) -> float | None:
    """Return the difference of the outputs if the import masks a token of the source; None if it is above rounding.

    In targets, which the import does not mask, another token takes its place.
    """
    is_token = given.source == token
    target = given.target
    if target is not None:
        target = torch.where(target == token, target[0, 0], target)
        if (target == token).any():
            return None
    asked = replace(given, target=target, mask=given.mask & ~is_token)
    if is_token.all(1).any():
        return None
    ours = outputs_of(model, asked.to(original.dtype))
    return _rounding(Run(asked, {}, {}, ours, original.outputs(asked, ours), ()))
