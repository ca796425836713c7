"""A runtime without a model: a table of logits, so that search can be tested by its properties."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from txport.runtimes.base import Floats, Ints, Scores, scores

Tokens = tuple[int, ...]
Table = Callable[[Tokens, Tokens], Floats]  # (source, tokens after the start token) -> logits (V,)


@dataclass(frozen=True)
class TableState:
    """The source and the tokens so far of every row."""

    sources: tuple[Tokens, ...]
    prefixes: tuple[Tokens, ...]
    max_length: int


def attention_of(source: Tokens, prefix: Tokens) -> Floats:
    """The attention of a token, drawn anew for every source and prefix: (S,), together 1."""
    rng = np.random.default_rng(zlib.crc32(repr(("attention", source, prefix)).encode()))
    return rng.dirichlet(np.full(len(source), 0.5)).astype(np.float32)


class TableRuntime:
    """`Runtime` over a table; it records the rows and the `top` of every step, and what was selected."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.stepped: list[int] = []
        self.wanted: list[int | None] = []
        self.selected: list[list[int]] = []

    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> TableState:
        assert source.dtype == source_lengths.dtype == np.int64
        assert source.shape == (len(source_lengths), source_lengths.max())
        rows = zip(source.tolist(), source_lengths.tolist(), strict=True)
        sources = tuple(tuple(row[:length]) for row, length in rows)  # padding must not matter, so it is gone
        return TableState(sources, ((),) * len(sources), max_length)

    def step(
        self, tokens: Ints, state: TableState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, TableState]:
        assert tokens.dtype == np.int64
        assert tokens.shape == (len(state.sources),)
        assert all(len(prefix) <= state.max_length for prefix in state.prefixes), "a step beyond max_length"
        self.stepped.append(len(tokens))
        self.wanted.append(top)
        prefixes = tuple((*prefix, token) for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True))
        rows = [(source, prefix[1:]) for source, prefix in zip(state.sources, prefixes, strict=True)]
        logits = np.stack([self._table(*row) for row in rows])  # (R, V)
        found = scores(logits, top, normalise)
        if align:
            attention = np.zeros((len(rows), 1 + max(map(len, state.sources))), np.float32)  # a place more than needed
            for each, row in zip(attention, rows, strict=True):
                each[: len(row[0])] = attention_of(*row)
            found = found._replace(attention=attention)
        return found, TableState(state.sources, prefixes, state.max_length)

    def select(self, state: TableState, rows: Ints) -> TableState:
        chosen = rows.tolist()
        self.selected.append(chosen)
        sources = tuple(state.sources[row] for row in chosen)
        return TableState(sources, tuple(state.prefixes[row] for row in chosen), state.max_length)


class SeatedRuntime(TableRuntime):
    """`ContinuousRuntime` over a table; rows that nobody needs say nonsense, so that it shows if they are heard."""

    def __init__(self, table: Table, width: int = 1) -> None:
        super().__init__(table)
        self._width = width  # rows of one slot

    def step(
        self, tokens: Ints, state: TableState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, TableState]:
        resting = tokens < 0
        prefixes = tuple(() if rests else ids for rests, ids in zip(resting, state.prefixes, strict=True))
        state = TableState(state.sources, prefixes, state.max_length)
        found, after = super().step(np.where(resting, 0, tokens), state, top=top, normalise=normalise, align=align)
        for part in (found.values, found.ids, found.attention):
            if part is not None:
                part[resting] = -7
        prefixes = tuple(() if rests else ids for rests, ids in zip(resting, after.prefixes, strict=True))
        return found, TableState(state.sources, prefixes, state.max_length)

    def admit(self, state: TableState, places: Ints, others: TableState, chosen: Ints) -> TableState:
        assert not any(others.prefixes)
        sources = list(state.sources)
        prefixes = list(state.prefixes)
        for place, other in zip(places.tolist(), chosen.tolist(), strict=True):
            rows = slice(place * self._width, (place + 1) * self._width)
            sources[rows] = [others.sources[other]] * self._width
            prefixes[rows] = [()] * self._width
        return TableState(tuple(sources), tuple(prefixes), state.max_length)

    def extend(self, state: TableState, sources: int) -> TableState:
        more = sources * self._width - len(state.sources)
        return TableState((*state.sources, *((0,),) * more), (*state.prefixes, *((),) * more), state.max_length)

    def reserve(self, state: TableState, rows: int) -> TableState:
        return state


def random_table(size: int, seed: int, *, spread: float = 1.0) -> Table:
    """Logits drawn anew for every source and prefix, always the same for the same ones."""

    def logits(source: Tokens, prefix: Tokens) -> Floats:
        rng = np.random.default_rng(zlib.crc32(repr((seed, source, prefix)).encode()))
        return (spread * rng.standard_normal(size)).astype(np.float32)

    return logits


def coarse_table(size: int, seed: int, *, levels: int = 3) -> Table:
    """Logits of a few whole numbers, so that ties are common; a third of the entries is impossible."""
    smooth = random_table(size + 1, seed)

    def logits(source: Tokens, prefix: Tokens) -> Floats:
        drawn = smooth(source, prefix)
        values = np.floor(np.abs(drawn[:size]) * levels).astype(np.float32)
        values[drawn[:size] < -0.43] = -np.inf
        values[int(abs(drawn[size]) * 1000) % size] = 0.0  # something is always possible
        return values

    return logits
