"""Search for the best target over the runtime seam: greedy and beam. NumPy only; no runtime is special here.

Shape comments: B batch, R rows (B x beams), C candidates a row, K beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from txport.models.config import TransformerConfig
from txport.models.errors import UnsupportedError
from txport.runtimes.base import Floats, Ints, Runtime, State

EarlyStopping = bool | Literal["never"]
STEEPEST = 20  # a length to this power is still a number
WORTH_DROPPING = 0.25  # of the rows that greedy search still holds must have ended before they leave


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search. Names and meanings are Hugging Face's, where they have one.

    A hypothesis scores the sum of its tokens' log-probabilities over its length to the power of
    `length_penalty`, the end token counted. Beam search ends when `beams` hypotheses are finished and
    the best running one can't win any more: as judged by its present length (`early_stopping=False`),
    by the length that suits it best ("never"), or without asking (True). The end token is suppressed
    until there are `min_new_tokens`. Without `scores`, greedy search does not normalise, and scores are NaN.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    beams: int = 1
    nbest: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    scores: bool = True

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "beams", "nbest"):
            if getattr(self, name) < 1:
                raise UnsupportedError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            limit = f"0 to max_new_tokens, {self.max_new_tokens}"
            raise UnsupportedError(f"min_new_tokens must lie in {limit}; got {self.min_new_tokens}")
        if not self.scores and self.beams > 1:
            raise UnsupportedError("beam search can't do without scores")
        if self.nbest > self.beams:
            raise UnsupportedError(f"nbest can't exceed beams: {self.beams} beams end in at most that many hypotheses")
        if not -STEEPEST <= self.length_penalty <= STEEPEST:  # NaN lies nowhere
            raise UnsupportedError(f"length_penalty must lie in -{STEEPEST} to {STEEPEST}, got {self.length_penalty}")
        if self.early_stopping not in (True, False, "never"):
            raise UnsupportedError(f"early_stopping must be True, False or 'never', got {self.early_stopping!r}")


@dataclass(frozen=True)
class Found:
    """One target: its token ids, the end token included if it was reached, and its score."""

    tokens: tuple[int, ...]
    score: float


Search = Callable[[Runtime, Sequence[Sequence[int]], TransformerConfig, SearchOptions], list[list[Found]]]


def generate(
    runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, options: SearchOptions
) -> list[list[Found]]:
    """Search one batch: token ids of each source -> its `nbest` hypotheses, best first."""
    if not 1 <= options.max_new_tokens <= config.max_length:
        limit = f"the model's longest sequence, {config.max_length}"
        raise UnsupportedError(f"max_new_tokens must not exceed {limit}; got {options.max_new_tokens}")
    search: Search = greedy if options.beams == 1 else beam
    return search(runtime, sources, config, options)


def encode(runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, max_length: int) -> State:
    """Pad the sources at the right and encode them."""
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    padded = np.full((len(sources), lengths.max()), config.pad_id, dtype=np.int64)  # (B, S)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    return runtime.encode(padded, lengths, max_length=max_length)


def greedy(
    runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, options: SearchOptions
) -> list[list[Found]]:
    """Take the likeliest token until the end token; rows that have ended leave the batch when they are a few."""
    state = encode(runtime, sources, config, options.max_new_tokens)
    tokens = np.full(len(sources), config.bos_id, dtype=np.int64)
    rows = np.arange(len(sources))  # which source each row of the state belongs to
    found = np.full((len(sources), options.max_new_tokens), config.eos_id, dtype=np.int64)
    running = np.ones(len(sources), dtype=np.bool_)
    sums = np.zeros(len(sources), dtype=np.float64)
    for place in range(options.max_new_tokens):
        tokens, log_probs, state = _likeliest(runtime, tokens, state, config.eos_id, place + 1, options)
        found[rows[running], place] = tokens[running]
        if options.scores:
            sums[rows[running]] += log_probs[running]
        running &= tokens != config.eos_id
        left = np.count_nonzero(running)
        if not left:
            break
        if left <= (1 - WORTH_DROPPING) * len(rows) and place + 1 < options.max_new_tokens:
            kept = np.flatnonzero(running)
            state, tokens, rows, running = runtime.select(state, kept), tokens[kept], rows[kept], running[kept]
    ends = found == config.eos_id
    lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, options.max_new_tokens)
    scores = sums / lengths**options.length_penalty if options.scores else np.full(len(sources), np.nan)
    return [
        [Found(tuple(ids[:length]), score)]
        for ids, length, score in zip(found.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    ]


def _likeliest(
    runtime: Runtime, tokens: Ints, state: State, eos_id: int, length: int, options: SearchOptions
) -> tuple[Ints, Floats, State]:
    """Token number `length` of each row, and its log-probability; any number where no scores are wanted."""
    ends_too_soon = length <= options.min_new_tokens
    scores, state = runtime.step(tokens, state, top=2 if ends_too_soon else 1, normalise=options.scores)
    assert scores.ids is not None
    second = (scores.ids[:, 0] == eos_id).astype(np.int64) if ends_too_soon else np.zeros(len(tokens), np.int64)
    rows = np.arange(len(tokens))
    return scores.ids[rows, second], scores.values[rows, second], state


def beam(
    runtime: Runtime, sources: Sequence[Sequence[int]], config: TransformerConfig, options: SearchOptions
) -> list[list[Found]]:
    """Keep the K best running hypotheses of each source; 2K candidates a step, so an ended one starves nobody."""
    state = encode(runtime, sources, config, options.max_new_tokens)
    beams = [Beams(options, config.eos_id) for _ in sources]
    running = list(range(len(sources)))
    tokens = np.full(len(sources), config.bos_id, dtype=np.int64)
    for length in range(1, options.max_new_tokens + 1):
        ends_too_soon = length <= options.min_new_tokens
        scores, state = runtime.step(tokens, state, top=2 * options.beams + ends_too_soon)
        assert scores.ids is not None
        if ends_too_soon:
            scores.values[scores.ids == config.eos_id] = -np.inf
        width = len(tokens) // len(running)  # 1 row a source in the first step, K later
        parents = [
            beams[source].advance(scores.values[start : start + width], scores.ids[start : start + width]) + start
            for source, start in zip(running, range(0, len(tokens), width), strict=True)
        ]
        kept = [number for number, source in enumerate(running) if not beams[source].done]
        if not kept or length == options.max_new_tokens:
            break
        running = [running[number] for number in kept]
        rows = np.concatenate([parents[number] for number in kept])
        if not np.array_equal(rows, np.arange(len(tokens))):
            state = runtime.select(state, rows)
        tokens = np.concatenate([beams[source].last for source in running])
    return [each.best() for each in beams]


class Beams:
    """The running and the finished hypotheses of one source."""

    def __init__(self, options: SearchOptions, eos_id: int) -> None:
        self._options, self._eos_id = options, eos_id
        self._sums: NDArray[np.float64] = np.zeros(1)
        self._tokens: Ints = np.zeros((1, 0), dtype=np.int64)  # (K, length)
        self._finished: list[Found] = []
        self.done = False

    @property
    def last(self) -> Ints:
        """The newest token of each running hypothesis: (K,)."""
        return self._tokens[:, -1]

    def advance(self, log_probs: Floats, ids: Ints) -> Ints:
        """Candidates (K, C) of every running hypothesis -> which row each of the K new ones comes from."""
        size = self._options.beams
        totals = (self._sums[:, None] + log_probs).ravel()
        order = np.argsort(-totals, kind="stable")[: 2 * size]
        parents, tokens, totals = order // ids.shape[1], ids.ravel()[order], totals[order]
        ended = tokens == self._eos_id
        for rank in np.flatnonzero(ended[:size]):
            self._finish(self._tokens[parents[rank]], totals[rank], self._eos_id)
        chosen = np.argsort(ended, kind="stable")[:size]  # those that go on, best first
        chosen = np.resize(chosen, size)  # a small vocabulary may have fewer candidates than beams
        dead = ended[chosen] | (np.arange(size) >= len(order))
        self._sums = np.where(dead, -np.inf, totals[chosen])
        self._tokens = np.column_stack([self._tokens[parents[chosen]], tokens[chosen]])
        self.done = self._is_done()
        rows: Ints = parents[chosen]
        return rows

    def best(self) -> list[Found]:
        """The `nbest` best; hypotheses that still run compete with their present score unless search has ended."""
        if not self.done:
            for tokens, total in zip(self._tokens, self._sums, strict=True):
                self._finish(tokens, total)
        return self._finished[: self._options.nbest]

    def _finish(self, tokens: Ints, total: float, *end: int) -> None:
        if total == -np.inf:
            return
        sequence = (*(int(token) for token in tokens), *end)
        self._finished.append(Found(sequence, float(total) / len(sequence) ** self._options.length_penalty))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self._options.beams :]

    def _is_done(self) -> bool:
        options, best, length = self._options, self._sums.max(), self._tokens.shape[1]
        if best == -np.inf:
            return True
        if len(self._finished) < options.beams or length == options.max_new_tokens:  # at the end all compete
            return False
        if options.early_stopping is True:
            return True
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = options.max_new_tokens
        return bool(self._finished[-1].score >= best / length**options.length_penalty)
