"""The seam between search and whatever runs a model. NumPy on both sides; a state is opaque to the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from txport.bundles.ports import Port
from txport.errors import RunError, TxportError, brief
from txport.system.machine import is_out_of_memory

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Inputs = NDArray[Any]  # tokens (int64), or features (float32)
Logits = TypeVar("Logits", Floats, Doubles)
State = Any
Outputs = dict[str, NDArray[Any]]
Explain = Callable[[Exception], TxportError | None]  # what an engine's error means, if it is known
GraphPorts = tuple[tuple[Port, ...], tuple[Port, ...]]

CLASSES, FEW = 1024, 8  # of tokens, and how many of the best tokens are found by them


class Scores(NamedTuple):
    """Scores of the next token of each row: full logits, or the k best tokens.

    Without `top`: `values` (R, V) are logits and `ids` is None. With it: `values` (R, k) are log-probabilities
    in falling order, and `ids` (R, k) their tokens; without `normalise`, logits up to a constant per row.
    `attention` (R, S or more), if requested, has the cross-attention weights of the step: sum 1, 0 at the padding.
    """

    values: Floats
    ids: Ints | None
    attention: Floats | None = None

    def of(self, rows: Ints) -> Scores:
        """The scores of these rows."""
        ids = None if self.ids is None else self.ids[rows]
        return Scores(self.values[rows], ids, None if self.attention is None else self.attention[rows])


class Sizes(NamedTuple):
    """Limits of future batches: sources, rows per source, and `length`, the tokens of a row with its prompt.

    `source_lengths` are the lengths of the longest source of a batch, `tops` the values of `top` that steps use (see
    `Runtime.step`), and `batches` is how many run in parallel.
    """

    sources: int
    rows: int
    source_lengths: Sequence[int]
    length: int
    tops: Sequence[int | None]
    batches: int = 1


class Runtime(Protocol):
    """Encode once, then step token by token; rows are kept, dropped, repeated and reordered by `select`."""

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """Sources (B, S), right-padded, and their lengths (B,) -> a state of B rows for up to `max_length` tokens.

        Of a model that reads features, sources are (B, M, F), and lengths those that its encoder makes of them. For a
        causal model they are prompts, of which all but the last token go into the state: that one is the first
        that `step` is given. Their tokens count.
        """
        ...

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        """The last token of each row (R,) -> scores of the next one, valid until the next step, and the state.

        Without `normalise`, the `top` best tokens may have logits, which can be much faster. With `align`, the
        cross-attention is returned too.
        """
        ...

    def select(self, state: State, rows: Ints) -> State:
        """The state whose row i is the old row `rows[i]`; a state may be changed in place, so the old one is gone."""
        ...


@runtime_checkable
class EncoderRuntime(Protocol):
    """Runtime of an encoder-only model."""

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """Sources (B, S), right-padded, and their lengths (B,) -> the model's outputs by name."""
        ...


@runtime_checkable
class ContinuousRuntime(Runtime, Protocol):
    """A runtime whose rows may have different lengths, so that new sources take the slots of finished ones.

    A negative token marks an unused row, which must stay unused until `admit` or `select` fills it.
    """

    def admit(self, state: State, places: Ints, others: State, chosen: Ints) -> State:
        """Let the sources `chosen` of another state, which is new, stand at `places` (N,), before their first token.

        A place is a source's, with all of its rows.
        """
        ...

    def reserve(self, state: State, rows: int) -> State:
        """The same rows, with room for so many of each source, as continuous batches have it from the first step on.

        So a row is given the same, to the last bit, in both.
        """
        ...


@runtime_checkable
class QueuedRuntime(ContinuousRuntime, Protocol):
    """One on a device that works by itself: `start` and `admit` return before anything is computed.

    It prepares the steps of each shape of a batch: once for the thread that loaded it, and once for all others.
    """

    def warm(self, sizes: Sizes) -> None:
        """Prepare all steps of batches of these sizes, for this thread or, if another one loaded it, for all others.

        Raises `UnsupportedError` where there are too many.
        """
        ...

    def synchronize(self) -> None:
        """Wait for all that was begun."""
        ...


class GraphRuntime(Runtime, Protocol):
    """A runtime that can also tell of one graph of a bundle, and run it by itself, which the proofs need."""

    def ports(self, role: str) -> GraphPorts:
        """The inputs and outputs of a graph as the engine read them from its file."""
        ...

    def run_graph(self, role: str, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All inputs of a graph by port -> all of its outputs by port."""
        ...

    def placement(self) -> dict[str, dict[str, int]]:
        """What really runs the nodes of each graph, as its engine says: role -> provider -> number of nodes."""
        ...


class running:  # noqa: N801 - a context manager, and no generator: each step has one
    """What an engine raises while a graph runs, as errors of ours: engines have no common base for theirs.

    Raises what `explain` makes of it, if it knows the error; else `MemoryError` where there is too little memory,
    `RunError` for a graph that fails.
    """

    def __init__(self, role: str, engine: str, explain: Explain | None = None) -> None:
        self._role = role
        self._engine = engine
        self._explain = explain

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (TxportError, MemoryError)):
            return
        if self._explain is not None and (known := self._explain(error)):
            raise known from error
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        fix = "the bundle is damaged, and `txport verify` says where"
        raise RunError(f"the {self._role} graph does not run on {self._engine}: {brief(error)}; {fix}") from error


def scores(logits: Floats, top: int | None, normalise: bool = True) -> Scores:
    """Logits (R, V) as a step returns them, on every runtime alike."""
    if top is None:
        return Scores(logits, None)
    top = min(top, logits.shape[1])
    ids = _best(logits, top)
    chosen = logits[np.arange(len(logits))[:, None], ids]
    return Scores(log_softmax(logits, chosen) if normalise else chosen, ids)


def log_softmax(logits: Logits, chosen: Logits) -> Logits:
    """The log-probabilities of some (R, k) of all logits (R, V), or of all, in their type."""
    shift = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - shift).sum(axis=1, keepdims=True))
    normal: Logits = chosen - shift - total  # the shift first: it may be large
    return normal


def _best_two(logits: Floats) -> Ints:
    """The best, and the best once more without it."""
    rows = np.arange(len(logits))
    logits = logits if logits.flags.writeable else logits.copy()
    first = logits.argmax(axis=1)
    best = logits[rows, first]
    logits[rows, first] = -np.inf
    second = logits.argmax(axis=1)
    logits[rows, first] = best
    second = np.where(second == first, (first == 0).astype(np.int64), second)  # where no other is possible
    return np.column_stack([first, second])


def _best_few(logits: Floats, top: int) -> Ints:
    """In little more than one pass: they are in those of `CLASSES` classes of tokens whose largest are the largest."""
    rows = np.arange(len(logits))[:, None]
    size = logits.shape[1]
    whole = size - size % CLASSES
    largest = logits[:, :whole].reshape(len(logits), -1, CLASSES).max(axis=1)  # token -> class: id % CLASSES
    classes = np.argpartition(-largest, top - 1, axis=1)[:, :top]
    members = (classes[:, :, None] + np.arange(0, whole, CLASSES)).reshape(len(logits), -1)
    others = np.broadcast_to(np.arange(whole, size), (len(logits), size - whole))
    candidates = np.sort(np.concatenate([members, others], axis=1), axis=1)  # (R, C)
    order = np.argsort(-logits[rows, candidates], axis=1, kind="stable")
    best: Ints = candidates[rows, order[:, :top]]
    return best


def _best(logits: Floats, top: int) -> Ints:
    best: Ints
    if top == 1:
        best = logits.argmax(axis=1)[:, None]
        return best
    if top == 2:
        return _best_two(logits)
    if top <= FEW and logits.shape[1] >= 4 * CLASSES:
        return _best_few(logits, top)
    candidates = np.broadcast_to(np.arange(logits.shape[1]), logits.shape)
    if 4 * top < logits.shape[1]:  # a partial sort first, then order what it found
        candidates = np.sort(np.argpartition(-logits, top - 1, axis=1)[:, :top], axis=1)
    order = np.argsort(-np.take_along_axis(logits, candidates, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(candidates, order[:, :top], axis=1)
    return best
