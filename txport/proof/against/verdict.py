"""Comparison of an import with its original: outputs, the position of the first difference, and its cause."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from txport.checkpoints.checkpoint import is_large
from txport.checkpoints.weights.plan import Plan
from txport.checkpoints.weights.streamed import converted
from txport.errors import CheckpointError, OutOfMemoryError
from txport.models.facts import LOGITS
from txport.models.model import Model
from txport.proof.against.batches import (
    FAR,
    MOST,
    Batch,
    Reach,
    changes_at,
    draw_batches,
    draw_long,
    draw_padded,
    draw_special,
    draw_whole,
    long_length,
    outputs_of,
)
from txport.proof.against.original import Original, hold_weights, rounded_tables
from txport.proof.against.pairing import CLOSELY, SURELY, Origins, files_read
from txport.proof.against.parting import TOLD, Parting, find_parting, not_located
from txport.proof.against.taps import END, Run, Tap, run_freely, run_plainly
from txport.proof.parity.measures import finite

PAD = "pad_id"
TABLES = 5e-8  # error of outputs per token, relative to the largest value, with angles or sinusoids in float32


@dataclass(frozen=True)
class Agreement:
    """One output: the largest absolute difference, the largest absolute value, and the number of positions (`places`).

    `alike` is the number of positions with the same most probable token; None for outputs other than logits over the
    vocabulary. `ordinary` is the largest value that is not huge compared with the others; None if no value is huge, as
    a mask of -1e9 is.
    """

    output: str
    error: float
    largest: float
    places: int
    alike: int | None
    passed: bool
    ordinary: float | None = None

    def describe(self) -> str:
        """Return this comparison in one line."""
        off = f"{'agree within' if self.passed else 'differ by up to'} {self.error:.2g}"
        tokens = ""
        if self.alike is not None:
            every = self.alike == self.places
            ties = ", the others are tied within twice that" if self.passed else ""
            tokens = ", with the same likeliest token" + ("" if every else f" at {self.alike}{ties}")
        beside = "" if self.ordinary is None else f" ({self.ordinary:.3g} but for huge ones)"
        return f"{self.output} {off}, the largest value is {self.largest:.3g}{beside}, at {self.places} places{tokens}"


@dataclass(frozen=True)
class Verdict:
    """An import compared with its original, in rows of up to `tokens`; `not_reached` needs longer rows.

    `not_compared` are outputs of the import that the original does not return, `special_ids` the keys of the config
    whose tokens the original does not need to compute its outputs. `in_float32` are tables and functions in
    float32 of either model, if they are why the two agree less closely than in float64.
    """

    original: str
    dtype: str
    outputs: tuple[Agreement, ...]
    parting: Parting | None
    tokens: int
    not_reached: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    special_ids: tuple[str, ...] = ()
    in_float32: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if both compute the same."""
        return self.parting is None

    def record(self) -> dict[str, object]:
        """Return what a manifest stores of models that compute the same.

        `within` is a power of ten, relative to the largest value: the measured difference depends on the processor.
        """
        share = max(each.error / each.largest if each.largest else 0.0 for each in self.outputs)
        within = max(CLOSELY[getattr(torch, self.dtype)], 10.0 ** math.ceil(math.log10(share)) if share else 0.0)
        return {
            "name": self.original,
            "outputs": [each.output for each in self.outputs],
            "within": within,
            "dtype": self.dtype,
            "tokens": self.tokens,
            "not_reached": list(self.not_reached),
            "not_compared": list(self.not_compared),
        }

    def to_dict(self) -> dict[str, object]:
        """Return this result as JSON values."""
        values = dataclasses.asdict(self).items()
        found: dict[str, Any] = {name: list(each) if isinstance(each, tuple) else each for name, each in values}
        found["outputs"] = [finite(each) for each in found["outputs"]]
        found["parting"] = None if self.parting is None else finite(found["parting"])
        return {**found, "equal": self.passed}

    def lines(self) -> Iterator[str]:
        """Yield the lines to show."""
        yield f"against {self.original}, in {self.dtype}"
        yield from (each.describe() for each in self.outputs)
        yield "; ".join([f"compared up to {self.tokens} tokens", *self.not_reached])
        if self.not_compared:
            yield f"not compared: {', '.join(self.not_compared)}, which the original does not give"
        if self.special_ids:
            yield f"special ids are not compared: {', '.join(self.special_ids)}"
        if self.in_float32:
            more = f" and {len(self.in_float32) - TOLD} more" if len(self.in_float32) > TOLD else ""
            yield f"rounded to float32: {', '.join(self.in_float32[:TOLD])}{more}"
        if self.parting is not None:
            yield from (f"{word + ':':9} {text}" for word, text in self.parting.lines())


def compare(model: Model, made: Plan, original: Original, *, reach: Reach = FAR) -> Verdict:
    """Run both models over all batches and compare their outputs; if these differ, find the first difference.

    The original is converted in place to the dtype of the comparison: float64 if it runs in it, else float32. Raises
    `CheckpointError` if the original fails or returns other values each time.
    """
    few, padded = is_large(model), original.masks
    batches = [draw_whole(model.facts, padded=padded)] if few else list(draw_batches(model.facts, padded=padded))
    first, widened = original.widen(batches[0])
    model = converted(model, original.dtype)
    runs = [run_plainly(model, original, given, known) for given, known in zip_longest(batches, [first])]
    long, why = _long_run(model, original, long_length(model, reach), beyond=max(each.tokens for each in batches))
    runs += long
    is_close = all(tap.within(CLOSELY) for run in runs for tap in run.ends)
    if not is_close:
        _require_steady(original, runs[0])
        runs += [run_plainly(model, original, given) for given in draw_special(model.facts, padded=padded) if few]
    origins = None if is_close else Origins(model, made, original)
    rounding = Rounding(model, tuple(_tables(model, original, origins)) if origins else (), tuple(widened))
    outputs = tuple(_agreement(name, runs, rounding) for name in runs[0].ours if name in runs[0].theirs)
    parting = None
    if origins is not None:
        certain = not all(each.passed for each in outputs)
        try:
            hold_weights(*([model, original.module] if certain else []))  # the search for a cause reads any of them
        except OutOfMemoryError as error:
            parting = not_located(runs, error)
        else:
            watched = [run_freely(model, original, origins, given) for given in _telling(runs, rounding)]
            parting = find_parting(model, original, origins, watched, certain=certain)
    tokens = max(run.given.tokens for run in runs)
    left = [f"not {what}" for what, size in changes_at(model).items() if size >= tokens]
    dtype = str(original.dtype).removeprefix("torch.")
    missing = tuple(name for name in runs[0].ours if name not in runs[0].theirs)
    rounded = () if is_close or parting is not None else rounding.names
    special = () if parting is not None else tuple(_special_ids(model, original))
    return Verdict(original.name, dtype, outputs, parting, tokens, (*left, *why), missing, special, rounded)


def _special_ids(model: Model, original: Original) -> Iterator[str]:
    """Yield the keys of the config for special tokens, without `pad_id` if the original masks this token itself."""
    is_padding = False
    with suppress(CheckpointError):  # it may fail without a mask
        is_padding = not original.masks and all(
            tap.within(SURELY) for given in draw_padded(model.facts) for tap in run_plainly(model, original, given).ends
        )
    names = [each.name for each in dataclasses.fields(model.config) if each.name.endswith(("_id", "_ids"))]
    yield from (name for name in names if not (name == PAD and is_padding))


@dataclass(frozen=True)
class Rounding:
    """Tables of both models that were rounded to float32, and functions that the original calls in float32."""

    model: Model
    tables: tuple[str, ...]
    calls: tuple[str, ...]
    _changes: dict[int, Mapping[str, float]] = field(default_factory=dict)  # by batch

    @property
    def names(self) -> tuple[str, ...]:
        """Descriptions of the tables and functions."""
        return (*self.tables, *(f"{each} of the original" for each in self.calls))

    def allows(self, run: Run, tap: Tap) -> bool:
        """Return True if the difference of an output is within what this rounding can cause."""
        if tap.within(CLOSELY) or (self.calls and tap.within(SURELY)):
            return True
        if not self.tables:
            return False
        limit = TABLES * run.given.tokens * tap.size
        if tap.error > limit:  # trained attention can make much of a small error
            limit = self._change(run, tap.key[0])
        return tap.error <= min(limit, tap.more * SURELY[tap.ours.dtype] * tap.size)

    def _change(self, run: Run, output: str) -> float:
        """Return the largest change of an output of the import if its tables are off by what angles in float32 are."""
        key = id(run.given)
        if key not in self._changes:
            names = set(rounded_tables(self.model, {name for name, _ in self.model.named_parameters()}))
            tables = [each for name, each in self.model.named_buffers() if name in names]
            with _moved(tables, run.given.tokens * torch.finfo(torch.float32).eps / 2):
                others = outputs_of(self.model, run.given.to(run.ours[output].dtype))
            self._changes[key] = {name: float((each - run.ours[name]).abs().max()) for name, each in others.items()}
        return self._changes[key][output]


@contextmanager
def _moved(tables: Sequence[Tensor], error: float) -> Iterator[None]:
    """Return a context in which each number of some tables has another random relative error."""
    before = [each.clone() for each in tables]
    generator = torch.Generator().manual_seed(0)
    for each in tables:
        each.mul_(1 + error * (2 * torch.rand(each.shape, generator=generator, dtype=each.dtype) - 1))
    try:
        yield
    finally:
        for each, old in zip(tables, before, strict=True):
            each.copy_(old)


def _telling(runs: Sequence[Run], rounding: Rounding) -> list[Batch]:
    """Return the batches in which to look for a difference: those that differ, short ones if there are any."""
    wrong = [run for run in runs if not all(rounding.allows(run, tap) for tap in run.ends)]
    shortest = min(runs, key=lambda run: run.given.tokens)
    return [run.given for run in wrong if run.given.tokens <= MOST] or [run.given for run in wrong or [shortest]]


def _tables(model: Model, original: Original, origins: Origins) -> Iterator[str]:
    """Yield descriptions of tables that were rounded to float32, except those that both models read from the files."""
    if original.dtype != torch.float64:
        return
    used = set(files_read(origins.plan))
    both = {name for name, file in original.names.items() if file in used}
    yield from (f"{name} of the original" for name in rounded_tables(original.module, both))
    weights = {name for name, _ in model.named_parameters()}
    yield from (f"{name} of the import" for name in rounded_tables(model, weights))


def _long_run(model: Model, original: Original, length: int, *, beyond: int) -> tuple[list[Run], list[str]]:
    """Run both models over one long row, halved until the original can run it; return also why it is not longer.

    There is none if it would have at most `beyond` tokens.
    """
    why: list[str] = []
    while length > beyond:
        try:
            return [run_plainly(model, original, draw_long(model.facts, length))], why
        except CheckpointError as error:
            why = why or [f"not more: {error}"]
            length //= 2
    return [], why


def _require_steady(original: Original, run: Run) -> None:
    """Raise `CheckpointError` if the original now gives other values for the batch of a run."""
    again = original.outputs(run.given, run.ours)
    pairs = [Tap((name, 0, END), 0.0, each, again[name], ()) for name, each in run.theirs.items()]
    if not all(pair.within(CLOSELY) for pair in pairs):
        fix = "look for dropout that does not ask self.training, or something that it keeps on itself"
        raise CheckpointError(f"{original.name} gives other values each time for the same input: {fix}")


def _agreement(output: str, runs: Sequence[Run], rounding: Rounding) -> Agreement:
    passed = all(rounding.allows(run, tap) for run in runs for tap in run.ends if tap.key[0] == output)
    taps = [tap for run in runs for tap in run.ends if tap.key[0] == output]
    alike = None
    places = sum(tap.ours[..., 0].numel() for tap in taps)
    if output == LOGITS:
        alike = sum(int((tap.ours.argmax(-1) == tap.theirs.argmax(-1)).sum()) for tap in taps)
    largest = max(tap.largest for tap in taps)
    usual = max(tap.size for tap in taps)
    ordinary = usual if usual < largest else None
    return Agreement(output, max(tap.gap for tap in taps), largest, places, alike, passed, ordinary)
