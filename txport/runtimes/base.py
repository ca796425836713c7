"""The protocols between search and the runtimes. They exchange NumPy arrays; a state is opaque to callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from txport.errors import RunError, TxportError, brief
from txport.system.arrays import Array
from txport.system.machine import is_out_of_memory
from txport.targets.ports import Port

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Inputs = Array  # tokens (int64), or features (float32)
Logits = TypeVar("Logits", Floats, Doubles)
State = Any
Outputs = dict[str, Array]
Explain = Callable[[Exception], TxportError | None]  # returns our error for a known error of an engine
GraphPorts = tuple[tuple[Port, ...], tuple[Port, ...]]

CLASSES, FEW = 1024, 8  # classes of tokens; the largest `top` that `_best_few` is used for


class Scores(NamedTuple):
    """Scores of the next token of each row: all logits, or the k most probable tokens.

    Without `top`, `values` (R, V) are logits and `ids` is None. With `top`, `values` (R, k) are log-probs in
    descending order and `ids` (R, k) are their tokens. Without `normalise`, these `values` are logits up to a constant
    per row. `attention` (R, S or more), if requested, has the cross-attention weights of the step: their sum is 1, and
    they are 0 at padding.
    """

    values: Floats
    ids: Ints | None
    attention: Floats | None = None

    def of(self, rows: Ints) -> Scores:
        """Return the scores of the given rows (N,)."""
        ids = None if self.ids is None else self.ids[rows]
        return Scores(self.values[rows], ids, None if self.attention is None else self.attention[rows])


class Sizes(NamedTuple):
    """Limits of future batches.

    `sources` and `rows` are the maximum sources per batch and rows per source. `source_lengths` are the
    possible lengths of the longest source of a batch. `length` is the maximum tokens per row, including its prompt.
    `tops` are the values of `top` that steps use (see `Runtime.step`). `batches` is the number of parallel batches.
    """

    sources: int
    rows: int
    source_lengths: Sequence[int]
    length: int
    tops: Sequence[int | None]
    batches: int = 1


class Runtime(Protocol):
    """Runtime that encodes once, then steps token by token. `select` drops, repeats and reorders rows."""

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """Right-padded sources (B, S) and their lengths (B,) -> a state of B rows for up to `max_length` tokens.

        For a model that reads features, sources are (B, M, F), and the lengths are those of the encoder's output. For
        a causal model, sources are prompts. The last token of a prompt is the first to pass to `step`, which may return
        what the run of the prompt has computed. `max_length` includes the prompt.
        """
        ...

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        """The last token of each row (R,) -> scores of the next token, valid until the next step, and the state.

        `top` is the number of most probable tokens to return; None returns all logits. With 0, no scores are needed,
        and a runtime may run the tokens together with those of the next step. Without `normalise`, the values of these
        tokens may be logits, which can be much faster. With `align`, the scores include the cross-attention.
        """
        ...

    def select(self, state: State, rows: Ints) -> State:
        """Return a state whose row i is the old row `rows[i]`.

        The old state may be changed in place: do not use it again.
        """
        ...


@runtime_checkable
class EncoderRuntime(Protocol):
    """Runtime of an encoder-only model."""

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """Right-padded sources (B, S) and their lengths (B,) -> the model's outputs by name."""
        ...


@runtime_checkable
class ContinuousRuntime(Runtime, Protocol):
    """Runtime whose rows may have different lengths. New sources can therefore use the slots of finished ones.

    A negative token marks an unused row, which must stay unused until `admit` or `select` fills it.
    """

    def admit(self, state: State, places: Ints, others: State, chosen: Ints) -> State:
        """Put the sources `chosen` (N,) of `others`, a new state, into the source slots `places` (N,) of `state`.

        A source slot has all rows of its source. The new sources are before their first step.
        """
        ...

    def extend(self, state: State, sources: int) -> State:
        """Return a running state with more source slots, `sources` in all; `admit` fills the new ones.

        The rows of `state` are all rows of its source slots, in order, and so are those of the new state.
        """
        ...

    def reserve(self, state: State, rows: int) -> State:
        """Return the same state with room for `rows` rows per source from the first step on.

        Continuous batches have the same shapes. Results of a row are therefore bitwise equal in both.
        """
        ...


@runtime_checkable
class OnePassRuntime(ContinuousRuntime, Protocol):
    """Runtime that computes the logits at many places of a text in one pass, if the model is causal."""

    def forward(self, texts: Ints, lengths: Ints, first: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Right-padded texts (B, S), their lengths (B,) and a place of each (B,) -> the logits from that place on.

        Texts are shorter than the model's longest sequence. Yield parts of the logits: rows of the texts (N,), places
        in them (N,), and the logits of the tokens after these places (N, V). The places of a row come in order; the
        last one is that of its last token.
        """
        ...


@runtime_checkable
class QueuedRuntime(ContinuousRuntime, Protocol):
    """Runtime on an asynchronous device: `start` and `admit` return before the device has computed anything.

    The runtime prepares the steps of each batch shape once for the thread that loaded it, and once for all other
    threads.
    """

    def warm(self, sizes: Sizes) -> None:
        """Prepare all steps of batches of these sizes.

        The thread that loaded the runtime prepares steps for itself; any other thread prepares them for all other
        threads. Raise `UnsupportedError` if there are too many.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        ...


class GraphRuntime(Runtime, Protocol):
    """Runtime that can also describe and run one graph of a bundle separately, which proofs need."""

    def ports(self, role: str) -> GraphPorts:
        """Return the inputs and outputs of a graph as the engine read them from its file."""
        ...

    def run_graph(self, role: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """All inputs of a graph by port -> all of its outputs by port."""
        ...

    def placement(self) -> dict[str, dict[str, int]]:
        """Return where the engine runs the nodes of each graph: role -> provider -> number of nodes."""
        ...


class running:  # noqa: N801 - a context manager; not a generator, because each step uses one
    """Context manager that translates any error of an engine in a run: the engines' errors have no common base class.

    Raise the error that `explain` returns, if it returns one; else `MemoryError` if memory is short; else `RunError`.
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
    """Logits (R, V) -> the scores that a step returns, in the same way in every runtime."""
    if top is None:
        return Scores(logits, None)
    if top == 0:
        return no_scores(len(logits))
    top = min(top, logits.shape[1])
    ids = _best(logits, top)
    chosen = logits[np.arange(len(logits))[:, None], ids]
    return Scores(log_softmax(logits, chosen) if normalise else chosen, ids)


def no_scores(rows: int) -> Scores:
    """Return what a step without scores returns: those of no token."""
    return Scores(np.empty((rows, 0), np.float32), np.empty((rows, 0), np.int64))


def log_softmax(logits: Logits, chosen: Logits) -> Logits:
    """All logits (R, V), and k chosen ones per row (R, k) or all -> log-probs of the chosen ones, in the same dtype."""
    shift = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - shift).sum(axis=1, keepdims=True))
    normal: Logits = chosen - shift - total  # subtract the shift first, because it may be large
    return normal


def _best_two(logits: Floats) -> Ints:
    """Return the two most probable tokens of each row (R, 2), with two argmax passes."""
    rows = np.arange(len(logits))
    logits = logits if logits.flags.writeable else logits.copy()
    first = logits.argmax(axis=1)
    best = logits[rows, first]
    logits[rows, first] = -np.inf
    second = logits.argmax(axis=1)
    logits[rows, first] = best
    second = np.where(second == first, (first == 0).astype(np.int64), second)  # if all other logits are -inf
    return np.column_stack([first, second])


def _best_few(logits: Floats, top: int) -> Ints:
    """Return the `top` most probable tokens of each row (R, top) in little more than one pass.

    Divide the tokens into `CLASSES` classes: the most probable tokens are in the `top` classes with the largest maxima,
    or in the incomplete last block of `CLASSES` tokens.
    """
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
    if 4 * top < logits.shape[1]:  # a partial sort first, then sort its result
        candidates = np.sort(np.argpartition(-logits, top - 1, axis=1)[:, :top], axis=1)
    order = np.argsort(-np.take_along_axis(logits, candidates, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(candidates, order[:, :top], axis=1)
    return best
