"""Answers to questions that are parts of a text: windows over a long text, and the best spans of all of them.

The results are those of the `question-answering` pipeline of transformers 4.57.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from txport.errors import LongTextError
from txport.models.facts import END, START, Tokens
from txport.runtimes.base import Outputs
from txport.system.numbers import switch, whole
from txport.text.base import Aligned, shorten

Numbers = NDArray[np.float64]
MORE = 10  # spans of a window that are tried beside two for each answer: several may be of the same words


@dataclass(frozen=True)
class Answer:
    """A part of a context, its characters in it (`start` to `end`), and its probability; "" if there is no answer."""

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Spans:
    """Which parts of a context may be answers.

    A window has up to `window` tokens, with the question; neighbours share `stride` tokens of the context. An answer
    has up to `longest` tokens. `nbest` answers are wanted; with `impossible`, one of them may be none.
    """

    nbest: int = 1
    longest: int = 15
    stride: int | None = None
    window: int | None = None
    impossible: bool = False

    def __post_init__(self) -> None:
        """Raise `UnsupportedError` for values that are no numbers of tokens or answers."""
        for name, least in (("nbest", 1), ("longest", 1), ("stride", 0), ("window", 1)):
            if (value := getattr(self, name)) is not None:
                whole(name, value, least)
        switch("impossible", self.impossible)


@dataclass(frozen=True)
class Window:
    """Token ids of a question and a part of its context; `places` are the tokens of the context, by index of `ids`.

    If `begins`, the first token is special and stands for no answer.
    """

    ids: list[int]
    places: range
    spans: list[tuple[int, int]]  # characters of the words that the tokens at `places` belong to
    begins: bool


def windows_of(question: str, pair: Aligned, spans: Spans, tokens: Tokens) -> Iterator[Window]:
    """Yield the windows of a question and its context for a model that reads `tokens`.

    Raise `LongTextError` if the question leaves no room for more tokens of the context than windows share.
    """
    size = min(tokens.longest, spans.window or 384)
    stride = min(size // 2, 128) if spans.stride is None else spans.stride
    context = [at for at, number in enumerate(pair.texts) if number == 1]
    first = context[0]
    last = context[-1] + 1
    room = size - (len(pair.ids) - len(context))
    if room <= stride:
        what = f"{shorten(question)} leaves {max(room, 0)} of {size} tokens of a window for the context"
        raise LongTextError(f"{what}, which must be more than the stride, {stride}; shorten the question")
    begins = tokens.begins and pair.texts[0] is None
    for start in range(0, max(1, len(context) - stride), room - stride):
        some = range(first + start, min(first + start + room, last))
        ids = [*pair.ids[:first], *pair.ids[some.start : some.stop], *pair.ids[last:]]
        yield Window(ids, range(first, first + len(some)), list(_words(pair, some)), begins)


def _words(pair: Aligned, some: range) -> Iterator[tuple[int, int]]:
    """Yield the characters of the word of each token, as far as its tokens are in the window."""
    ends: dict[int, tuple[int, int]] = {}
    for at in some:
        if (word := pair.words[at]) is not None:
            ends[word] = (ends[word][0] if word in ends else pair.offsets[at][0], pair.offsets[at][1])
    for at in some:
        word = pair.words[at]
        yield pair.offsets[at] if word is None else ends[word]


def answers(context: str, windows: Sequence[Window], outputs: Sequence[Outputs], spans: Spans) -> list[Answer]:
    """Return the best answers of all windows, best first; spans of the same words count together."""
    found: dict[str, Answer] = {}
    nothing = 1.0
    for window, each in zip(windows, outputs, strict=True):
        starts, ends = (_probabilities(each[name], window) for name in (START, END))
        nothing = min(nothing, float(starts[0] * ends[0]))
        for first, last, score in _best(starts[1:], ends[1:], spans):
            start, end = window.spans[first][0], window.spans[last][1]
            text = context[start:end]
            known = found.get(text.lower())
            found[text.lower()] = (
                Answer(text, score, start, end) if known is None else replace(known, score=known.score + score)
            )
    listed = [*found.values(), *([Answer("", nothing, 0, 0)] if spans.impossible else [])]
    return sorted(listed, key=lambda answer: -answer.score)[: spans.nbest]


def _probabilities(logits: NDArray[np.floating], window: Window) -> Numbers:
    """Return the probabilities of no answer (0 where no token stands for it) and of the tokens of the context."""
    values = logits[[0, *window.places]].astype(np.float64)
    if not window.begins:
        values[0] = -np.inf
    powers = np.exp(values - values.max())
    found: Numbers = powers / powers.sum()
    return found


def _best(starts: Numbers, ends: Numbers, spans: Spans) -> Iterator[tuple[int, int, float]]:
    """Yield the most probable spans (first and last token, probability) of a window, best first."""
    products = np.tril(np.triu(np.outer(starts, ends)), spans.longest - 1)
    flat = products.ravel()
    count = min(2 * spans.nbest + MORE, flat.size)
    chosen = np.argpartition(-flat, count - 1)[:count]
    for at in chosen[np.argsort(-flat[chosen], kind="stable")].tolist():
        first, last = divmod(at, len(ends))
        if flat[at] > 0:
            yield first, last, float(flat[at])
