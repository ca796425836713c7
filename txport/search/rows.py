"""The targets of greedy search and of sampling: rows are independent, and are removed after they have ended.

Their tokens are aligned with the source by attention.
Shape comments: R rows that are still held, T tokens so far, S source positions, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Doubles, Floats, Ints
from txport.runtimes.slots import rows_of
from txport.search.options import Alignment, Found, SearchOptions
from txport.search.sampling import draw_uniforms
from txport.system.arrays import Array

Bools = NDArray[np.bool_]
WORTH_DROPPING = 0.25  # fraction of ended rows at which they are removed, which moves the others


class Rows:
    """The tokens and log-probs of each row so far."""

    def __init__(
        self,
        lengths: Ints,
        first: Ints,
        prefix_lengths: Ints,
        limits: Ints,
        options: SearchOptions,
        ends: Sequence[int],
        *,
        at_once: bool = False,
    ) -> None:
        self._waits = not at_once
        self._options = options
        self._ends = np.asarray(ends)
        self.samples = options.rows
        self._source_lengths = np.repeat(lengths, self.samples)
        self._prefix_lengths = np.repeat(prefix_lengths, self.samples)
        self._limits = np.repeat(limits, self.samples)
        self.longest = int(self._limits.max())
        count = len(self._limits)
        self._held = np.arange(count)  # indices of the rows that are held: (R,)
        self._running = np.ones(count, np.bool_)  # (R,)
        self._ids = np.zeros((count, 1 + self.longest), np.int64)
        self._ids[:, 0] = np.repeat(first, self.samples)
        self._log_probs: Doubles = np.zeros((count, self.longest))
        self._lengths: Ints = np.zeros(count, np.int64)
        places = int(lengths.max()) if options.aligns else 0
        self._attention = np.zeros((count, self.longest, places), np.float32)  # attention of each token
        # random numbers, one per new token of a row
        self._uniforms = (
            draw_uniforms(options, len(lengths), self.longest) if options.do_sample else np.zeros((count, 1))
        )
        self._length: Ints = np.zeros(count, np.int64)  # tokens of each held row: (R,)
        self._most = 0  # the largest of them
        self._is_joined = False

    @property
    def sources(self) -> Ints:
        """The source of each row: (R,)."""
        return self._held // self.samples

    @property
    def token_ids(self) -> Ints:
        """The start token and the tokens so far of each row (R, T); after `join`, only the last token (R, 1)."""
        if self._is_joined:
            return self._ids[self._held, self._length][:, None]
        if len(self._held) == len(self._ids):
            return self._ids[:, : self._most + 1]
        return self._ids[self._held, : self._most + 1]

    @property
    def uniforms(self) -> Doubles:
        """The random numbers of the next new tokens: (R,). A prefix uses none."""
        place = np.clip(self._length - self._prefix_lengths[self._held], 0, self._uniforms.shape[1] - 1)
        uniforms: Doubles = self._uniforms[self._held, place]
        return uniforms

    def join(self, others: Rows, kept: Ints) -> None:
        """Keep these sources (N,), which include all that run, and take in all of others with the same options."""
        rows = rows_of(kept, self.samples)
        new = np.full(len(self._ids), -1)
        new[rows] = np.arange(len(rows))
        self._held = np.concatenate([new[self._held], len(rows) + others._held])
        self._running = np.concatenate([self._running, others._running])
        self._length = np.concatenate([self._length, others._length])
        for name in ("_source_lengths", "_prefix_lengths", "_limits", "_lengths", "_ids", "_log_probs", "_uniforms"):
            setattr(self, name, stacked(getattr(self, name)[rows], getattr(others, name)))
        self._attention = np.zeros((len(self._ids), self._log_probs.shape[1], 0), np.float32)
        self.longest = max(self.longest, others.longest)
        self._most = max(self._most, others._most)
        self._is_joined = True

    def advance(
        self, tokens: Ints, log_probs: Floats, attention: Floats | None = None, stopped: Bools | None = None
    ) -> Ints:
        """Add the next token of each row; return the rows to keep. A row with log-prob -inf ends without the token.

        `stopped` (R, 1) tells which tokens complete a stop string.
        """
        silent = log_probs == -np.inf
        self._ids[self._held, self._length + 1] = tokens
        self._log_probs[self._held, self._length] = log_probs
        if attention is not None:
            self._attention[self._held, self._length] = attention
        self._length += 1
        self._most += 1
        grown = self._running & ~silent
        self._lengths[self._held[grown]] = self._length[grown]
        is_full = self._length >= self._limits[self._held]  # no room for another token
        ended = silent | (tokens[:, None] == self._ends).any(axis=1) | is_full
        if stopped is not None:
            ended |= stopped[:, 0]
        self._running &= ~ended
        kept = np.flatnonzero(self._running)
        if self._waits and not is_full.any() and len(kept) > (1 - WORTH_DROPPING) * len(self._held):
            return np.arange(len(self._held))
        self._held = self._held[kept]
        self._running = self._running[kept]
        self._length = self._length[kept]
        return kept

    def found(self, sources: Ints | None = None) -> list[list[Found]]:
        """See `Targets.found`."""
        chosen = range(len(self._ids) // self.samples) if sources is None else sources.tolist()
        return [[self._found(source * self.samples + sample) for sample in range(self.samples)] for source in chosen]

    def certain(self) -> list[tuple[int, ...]]:
        """Return the tokens so far of the first row of each source."""
        lengths = self._lengths[:: self.samples].tolist()
        ids = self._ids[:: self.samples, 1 : 1 + self._most].tolist()
        return [tuple(own[:length]) for own, length in zip(ids, lengths, strict=True)]

    def drop(self, source: int) -> None:
        """See `Targets.drop`."""
        self._running[self.sources == source] = False

    def _found(self, row: int) -> Found:
        length = int(self._lengths[row])
        tokens = tuple(self._ids[row, 1 : 1 + length].tolist())
        aligned = alignment(self._attention[row, :length], int(self._source_lengths[row]), self._options.alignment)
        if not self._options.scores:
            return Found(tokens, float("nan"), alignment=aligned)
        log_probs = self._log_probs[row, :length]
        score = (
            float(log_probs.sum()) / float(max(1, length - self._prefix_lengths[row])) ** self._options.length_penalty
        )
        return Found(tokens, score, tuple(log_probs.tolist()), aligned)


def stacked(one: Array, other: Array) -> Array:
    """Return the rows of two arrays, padded on the right with zeros to the same width."""
    if one.ndim == 1:
        return np.concatenate([one, other])
    joined = np.zeros((len(one) + len(other), max(one.shape[1], other.shape[1])), one.dtype)
    joined[: len(one), : one.shape[1]] = one
    joined[len(one) :, : other.shape[1]] = other
    return joined


UNSEEN = 1e-30  # minimum attention, so that its logarithm is finite


def alignment(attention: Floats, length: int, kind: str | None) -> Alignment:
    """Attention (T, S) over `length` source positions -> rows of it ("soft"), or the argmax per token ("hard")."""
    if kind is None:
        return ()
    own = attention[:, :length]
    return tuple(own.argmax(1).tolist()) if kind == "hard" else tuple(map(tuple, own.tolist()))


def fit(attention: Floats | None, places: int) -> Floats | None:
    """Cut or pad attention (R, any) -> (R, S): the width differs if other sources in the state are longer."""
    if attention is None or attention.shape[1] == places:
        return attention
    fitted = np.zeros((len(attention), places), np.float32)
    common = min(places, attention.shape[1])
    fitted[:, :common] = attention[:, :common]
    return fitted


def uncovered(attention: Doubles, lengths: Ints) -> Doubles:
    """Attention summed over tokens (N, K, S), source lengths (N,) -> coverage (N, K): sum(log(min(attention, 1))).

    It is 0 if each source position got attention of at least 1, otherwise negative. Wu et al. 2016, "Google's neural
    machine translation system", section 7.
    """
    real = (np.arange(attention.shape[2]) < lengths[:, None])[:, None]  # (N, 1, S)
    missed: Doubles = np.where(real, np.log(np.clip(attention, UNSEEN, 1.0)), 0.0).sum(axis=2)
    return missed
