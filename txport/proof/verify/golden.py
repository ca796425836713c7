"""Golden inputs and outputs: a summary of what PyTorch computed at export, to check a bundle on any machine.

They are recorded and compared through the `Runtime` protocol, so every runtime uses the same ones, without torch or
onnx. Shape comments: T tokens of a target, V vocabulary, K most probable tokens, F sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.audio.spectrogram import drawn_features
from txport.bundles.bundle import Bundle
from txport.errors import BundleError, quoted
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.models.names import GOLDEN
from txport.proof.masks import ROOM, cut_off, largest_of
from txport.proof.parity.cases import WINDOWED, Draw, most_rows, reach_of, sides
from txport.proof.parity.noise import Noisy, Remembering
from txport.proof.parity.tolerances import DRAWS
from txport.runtimes.base import Floats, Ints, Runtime, scores
from txport.runtimes.inputs import Source, Sources
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.system.arrays import Array, Expected, read_arrays
from txport.system.documents import DocumentError

Arrays = dict[str, Array]

REAL = 4  # samples of the bundle that become sources
DRAWN = (1, 5, 11, 30)  # lengths of the other sources, which are random
LONGEST, SHORT, BRIEF = 16, 6, 4  # maximum tokens of a target; of a large model; of a very large one, or one that hears
LIKELIEST = 8
SUMS = 128
GREEDY, BEAM = "greedy", "beam 4"
SEARCHES: dict[str, dict[str, Any]] = {GREEDY: {"scores": False}, BEAM: {"beams": 4}}
GRID = 18  # bits of the largest logit after rounding
TINY = 1e-30
IDS = Expected("i", 1)
ROWS = Expected("i", 2)
NUMBERS = Expected("f", 1)
TABLE = Expected("f", 2)
MEMBERS: dict[str, Expected] = {  # the arrays of the file
    **{f"{name}{end}": IDS for name in ("sources", "targets", *SEARCHES) for end in ("", ".lengths")},
    **{f"{search}.scores": Expected("f", 1, search != GREEDY) for search in SEARCHES},  # greedy search has none
    "ids": ROWS,
    "values": TABLE,
    "sums": TABLE,
    "largest": NUMBERS,
    "rms": NUMBERS,
    "noise": NUMBERS,
    "steady": Expected("b", 1),
    "longest": Expected("i", 0),
}
MOST_NUMBER = 1 << 16  # seeds of random features are less


@dataclass(frozen=True)
class Size:
    """The amount that is recorded: the maximum tokens of a target, and the lengths of the random sources.

    `disturbed` is the number of beam searches with noise, `draws` that of the roundings of all logits.
    """

    longest: int
    drawn: tuple[int, ...] = DRAWN
    disturbed: int = 4
    draws: int = DRAWS


FEW = (1, 5)  # lengths of the random sources of a large model that reads features
FEW_DRAWS = 2  # of a large model, whose many logits are as many draws


@dataclass(frozen=True)
class GoldenLogits:
    """A summary of the logits (T, V) of one target, with their largest absolute value and their RMS.

    `noise` is the allowed change of a logit. All numbers are rounded to a grid. It is coarse enough for float64 to
    compute the same numbers on every machine, and much finer than any noise.
    """

    ids: Ints  # (T, K) the most probable tokens, best first
    values: Floats  # (T, K)
    sums: Floats  # (T, F)
    largest: float
    rms: float
    noise: float


@dataclass(frozen=True)
class Golden:
    """Sources, one target for each with its logits (teacher forcing), and the best target that each search finds.

    Features are stored as their seed. Beam search may drop the best target because its prefix scores slightly less than
    others. If the allowed noise can decide this, a source is not `steady`: beam search may then find another target.
    """

    sources: list[tuple[int, ...]]
    targets: list[tuple[int, ...]]
    logits: list[GoldenLogits]
    found: dict[str, list[Found]]
    steady: list[bool]
    longest: int  # maximum tokens that search generates

    def given(self, facts: Facts) -> list[Source]:
        """Return the sources as the model reads them: tokens, or features (M, F)."""
        return as_given(self.sources, facts)


def as_given(sources: Sequence[tuple[int, ...]], facts: Facts) -> list[Source]:
    """Return stored sources as the model reads them: tokens, or features (M, F) of a seed."""
    reads = facts.reads
    if isinstance(reads, Features):
        return [drawn_features(reads, number) for (number,) in sources]
    return list(sources)


def record(
    runtime: Runtime,
    facts: Facts,
    real: Iterable[Sequence[int]],
    logits_of: Callable[[Sequence[Source], Sequence[Sequence[int]]], list[Floats]],
    errors_of: Callable[[Sequence[Source], Sequence[Sequence[int]]], list[float]],
    noise_of: Callable[[float, float], float],
    size: Size | None = None,
) -> Golden:
    """Record the outputs of a correct runtime; `real` sources have the targets that it finds, others random ones.

    `logits_of(sources, targets)` returns the runtime's logits before each token of each target, (T, V) per target.
    `errors_of(sources, targets)` returns the error of the best kernels in each target. `noise_of(largest, error)`
    returns the allowed change of a logit, given the largest error in any target of its source. `size` defaults to
    `Size(LONGEST)`.
    """
    size = size or Size(LONGEST)
    most, room = sides(facts)
    known = [tuple(source[:most]) for source in real][:REAL]
    longest = min(size.longest, room)
    rng = np.random.default_rng(0)
    lengths = _lengths(facts, size)
    if isinstance(facts.reads, Features):
        drawn = [(number,) for number in range(len(lengths))]
    else:
        drawn = [tuple(each) for each in Draw(facts, rng).sources(*(min(length, most) for length in lengths))]
    sources = as_given([*known, *drawn], facts)
    runtime = Remembering(runtime)
    found = {name: find(runtime, facts, sources, name, longest) for name in SEARCHES}
    targets = [each.tokens for each in found[GREEDY][: len(known)]]
    for length in lengths:
        tokens = rng.integers(0, facts.writes.size, min(length, longest))
        targets.append(tuple(tokens.tolist()))
    values = logits_of(sources, targets)
    errors = errors_of(sources, targets)
    searched = {(row, each.tokens) for rows in found.values() for row, each in enumerate(rows)} - {*enumerate(targets)}
    if searched:  # searches have targets of their own, and a value near the edge of a precision may be in one alone
        rows, others = zip(*sorted(searched), strict=True)
        for row, error in zip(rows, errors_of([sources[row] for row in rows], others), strict=True):
            errors[row] = max(errors[row], error)
    noises = [noise_of(largest_of(each), error) for each, error in zip(values, errors, strict=True)]
    stored = [shorten(each, noise) for each, noise in zip(values, noises, strict=True)]
    share = max(each.noise / max(each.largest, TINY) for each in stored)
    noisy = Noisy(runtime, share, 0)
    together = 1 if isinstance(facts.reads, Features) else size.disturbed
    turns = range(size.disturbed // together)
    tries = [each.tokens for _ in turns for each in find(noisy, facts, sources * together, BEAM, longest)]
    steady = [set(tries[row :: len(sources)]) == {each.tokens} for row, each in enumerate(found[BEAM])]
    return Golden([*known, *drawn], targets, stored, found, steady, longest)


def _lengths(facts: Facts, size: Size) -> tuple[int, ...]:
    """Return the lengths of the random sources; one exceeds the largest window of up to `WINDOWED` tokens that fits.

    As in cases, sources are shorter for a large vocabulary.
    """
    most = min(WINDOWED, reach_of(facts)[0], sides(facts)[0] - DRAWN[1])
    beyond = max((each for each in facts.windows if each <= most), default=0) + DRAWN[1]
    more = (beyond,) if beyond > max(size.drawn) else ()
    return (*size.drawn, *more)[: most_rows(facts)]


def find(runtime: Runtime, facts: Facts, sources: Sources, search: str, longest: int) -> list[Found]:
    """Return the best target of each source, of up to `longest` tokens, by one of `SEARCHES`.

    Features are searched one by one: their caches are long, and each beam has its own.
    """
    options = SearchOptions(max_new_tokens=longest, **SEARCHES[search])
    batches = [[each] for each in sources] if isinstance(facts.reads, Features) else [sources]
    return [each[0] for batch in batches for each in generate(runtime, batch, facts, options)]


def shorten(values: Floats, noise: float) -> GoldenLogits:
    """Return the stored summary of logits (T, V), each of which may change by `noise`."""
    largest = largest_of(values)
    step = 2.0 ** (math.frexp(largest)[1] - GRID)
    largest = float(on_grid(largest, step))
    values = cut_off(values, ROOM * largest)
    best = scores(values, LIKELIEST, normalise=False)
    assert best.ids is not None
    rms = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
    return GoldenLogits(
        ids=best.ids,
        values=on_grid(best.values, step).astype(np.float32),
        sums=on_grid(fold(values), step).astype(np.float32),
        largest=largest,
        rms=float(on_grid(rms, step)),
        noise=_rounded_up(noise),
    )


def on_grid(values: object, step: float) -> NDArray[np.float64]:
    """Return the nearest multiples of a step."""
    multiples: NDArray[np.float64] = np.rint(np.asarray(values, np.float64) / step) * step
    return multiples


def _rounded_up(noise: float) -> float:
    """Round up to one of eight numbers between a power of two and the next."""
    power = 2.0 ** (math.frexp(noise)[1] - 4)
    return math.ceil(noise / power) * power


def fold(values: Floats) -> Floats:
    """Logits (T, V) -> sums (T, F) that depend on each logit; at most F logits are returned unchanged.

    Sum i is that of the logits i, i + F, i + 2 x F, ... with alternating signs, which cancel what all logits have in
    common. It is divided by the square root of their number. The sum, and its error, are then as large as one logit's.
    """
    steps, size = values.shape
    if size <= SUMS:
        return values.astype(np.float32)
    count = -(-size // SUMS)
    padded = np.zeros((steps, count * SUMS))
    padded[:, :size] = values
    signs = 1 - 2 * (np.arange(count) % 2)
    summed: Floats = (np.einsum("tcf,c->tf", padded.reshape(steps, count, SUMS), signs) / np.sqrt(count)).astype("f4")
    return summed


def save_golden(path: Path, golden: Golden) -> None:
    """Write one .npz file; equal golden outputs have equal bytes."""
    arrays = {**pack("sources", golden.sources), **pack("targets", golden.targets)}
    arrays |= stored_arrays(golden.logits)
    for search, found in golden.found.items():
        arrays.update(pack(search, [each.tokens for each in found]))
        arrays[f"{search}.scores"] = on_grid([each.score for each in found], 2.0**-GRID)
    arrays["steady"] = np.array(golden.steady)
    arrays["longest"] = np.array(golden.longest)
    np.savez(path, **arrays)  # type: ignore[arg-type]  # its keywords are arrays but for one


def stored_arrays(stored: Sequence[GoldenLogits]) -> Arrays:
    """Return the fields of several summaries as arrays, tables concatenated over T."""
    arrays = {name: np.concatenate([getattr(each, name) for each in stored]) for name in ("ids", "values", "sums")}
    return arrays | {name: np.array([getattr(each, name) for each in stored]) for name in ("largest", "rms", "noise")}


def stored_values(arrays: Arrays, parts: Mapping[str, Sequence[object]], size: int, count: int) -> list[GoldenLogits]:
    """Return the summaries of `count` sources from arrays of `stored_arrays`, with the tables split into `parts`.

    `size` is V. Raises `ValueError` if the arrays do not fit each other or the model.
    """
    columns = {"ids": min(LIKELIEST, size), "values": min(LIKELIEST, size), "sums": min(SUMS, size)}
    for name, wanted in columns.items():
        if arrays[name].shape[1] != wanted:
            raise ValueError(f"{name} has {arrays[name].shape[1]} columns, expected {wanted}")
    if not 0 <= arrays["ids"].min() <= arrays["ids"].max() < size:
        raise ValueError("its likeliest tokens are not those of the model's vocabulary")
    for name in ("largest", "rms", "noise"):
        if not (0 <= arrays[name].min() <= arrays[name].max() <= np.finfo(np.float32).max):
            raise ValueError(f"{name} holds what no logit can have")
    numbers = {name: arrays[name].tolist() for name in ("largest", "rms", "noise")}
    if any(len(each) != count for each in (*numbers.values(), *parts.values())):
        raise ValueError("its parts have different lengths")
    tables = (parts[name] for name in ("ids", "values", "sums"))
    return [GoldenLogits(*each) for each in zip(*tables, *numbers.values(), strict=True)]


def load_golden(bundle: Bundle) -> Golden:
    """Return the golden outputs of a bundle; raise `BundleError` if it has none, or if they do not fit its model."""
    if GOLDEN not in bundle.manifest.files:
        raise BundleError(f"{bundle.path} holds no {GOLDEN} to be verified with; export it again")
    path = bundle.path / GOLDEN
    facts = bundle.manifest.facts
    try:
        golden = _unpack(read_arrays(path, MEMBERS), facts)
    except DocumentError as error:
        raise BundleError(f"{error}; export the bundle again") from error
    except ValueError as error:
        raise BundleError(f"{path} is damaged: {error}; export the bundle again") from error
    return golden


def pack(name: str, lists: Sequence[Sequence[int]]) -> Arrays:
    """Return lists of unequal lengths as two arrays: all numbers, and the lengths."""
    ids = np.array([id_ for each in lists for id_ in each], np.int64)
    return {name: ids, f"{name}.lengths": np.array([len(each) for each in lists])}


def split(arrays: Arrays, name: str, counts: Ints) -> list[Array]:
    """Split an array into parts of these lengths; raise `ValueError` if they do not add up to its length."""
    if not len(counts) or counts.min() < 1 or counts.sum() != len(arrays[name]):
        raise ValueError(f"{name} has {len(arrays[name])} places, which do not part as they should")
    return np.split(arrays[name], np.cumsum(counts)[:-1])


def lists_of(arrays: Arrays, name: str) -> list[tuple[int, ...]]:
    """Return the lists of two arrays of `pack`."""
    return [tuple(each.tolist()) for each in split(arrays, name, arrays[f"{name}.lengths"])]


def _unpack(arrays: Arrays, facts: Facts) -> Golden:
    """Return the golden outputs in arrays; raise `ValueError` if they do not fit each other or the model."""
    sources = lists_of(arrays, "sources")
    targets = lists_of(arrays, "targets")
    longest = int(arrays["longest"])
    tokens = {search: lists_of(arrays, search) for search in SEARCHES}
    if not 1 <= longest <= facts.writes.longest:
        raise ValueError(f"targets of up to {longest} tokens are more than the model's {facts.writes.longest}")
    if isinstance(facts.reads, Features):
        require_tokens(sources, MOST_NUMBER, 1)
    else:
        require_tokens(sources, facts.reads.size, facts.reads.longest)
    require_tokens(targets, facts.writes.size, facts.writes.longest)
    for each in tokens.values():
        require_tokens(each, facts.writes.size, longest)
    scores = {search: arrays[f"{search}.scores"].tolist() for search in SEARCHES}
    if any(len(each) != len(sources) for each in (targets, arrays["steady"], *tokens.values(), *scores.values())):
        raise ValueError("its parts have different lengths")
    found = {search: [Found(*each) for each in zip(tokens[search], scores[search], strict=True)] for search in SEARCHES}
    parts = {name: split(arrays, name, arrays["targets.lengths"]) for name in ("ids", "values", "sums")}
    stored = stored_values(arrays, parts, facts.writes.size, len(sources))
    return Golden(sources, targets, stored, found, arrays["steady"].tolist(), longest)


def require_tokens(lists: Sequence[Sequence[int]], vocabulary: int, longest: int) -> None:
    """Raise `ValueError` for a list that is empty, longer than `longest`, or has numbers not in the vocabulary."""
    for tokens in lists:
        if not 1 <= len(tokens) <= longest or not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise ValueError(f"{quoted(list(tokens))} is no sequence of this model")
