"""Compare the outputs of each graph on a runtime with PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np

from txport.errors import AudioError, ParityError, UnavailableError, brief
from txport.proof.masks import bound_of, cut_off, largest_of
from txport.proof.parity.cases import Case
from txport.proof.parity.measures import Comparison, compare, wrong
from txport.proof.parity.replay import Call, Reference
from txport.proof.parity.tolerances import Tolerance
from txport.runtimes.base import GraphRuntime
from txport.system.arrays import Array
from txport.system.machine import is_out_of_memory
from txport.targets.ports import ATTENTION_MASK, DECODER, IDS, INPUT_FEATURES, LOG_PROBS, LOGITS


def compare_graphs(
    case: Case,
    label: str,
    runtime: GraphRuntime,
    reference: Reference,
    tolerance: Tolerance,
    seed: int,
    encoded: set[bytes] | None = None,
) -> Iterator[Comparison]:
    """Compare every output of every graph, call by call; each call has the inputs that PyTorch computed.

    Features that are in `encoded` are not encoded again, which takes long; others are added to it. Raises `ParityError`
    if a graph does not run.
    """
    for call in reference.replay(case, seed):
        if encoded is not None and INPUT_FEATURES in call.inputs:
            if (features := call.inputs[INPUT_FEATURES].tobytes()) in encoded:
                continue
            encoded.add(features)
        with no_crash(f"{label}, case {case.name}, step {call.step}: the {call.role} graph"):
            actual = runtime.run_graph(call.role, call.inputs)
        yield from compare_call(case, label, call, actual, reference, tolerance)


@contextlib.contextmanager
def no_crash(what: str) -> Iterator[None]:
    """Raise `ParityError` for any error of a runtime except lack of memory, which is no fault of the graph."""
    try:
        yield
    except (AudioError, UnavailableError):  # a file of the user, or a package that reads it
        raise
    except Exception as error:  # each runtime has its own errors
        if is_out_of_memory(error):
            raise
        raise ParityError(f"{what} does not run: {brief(error)}") from error


def compare_call(
    case: Case, label: str, call: Call, actual: Mapping[str, Array], reference: Reference, tolerance: Tolerance
) -> Iterator[Comparison]:
    """Compare every output and, if the graph selects tokens, their scores with the exact scores of these tokens.

    What padding gives has no meaning, and runtimes may leave it out; it is not compared.

    In a cache, the error is relative to the new values only: the old ones are copied and would hide it. The error of
    the best tokens' scores, which may all be nearly 0, is relative to the logits.
    """
    size, top = _sizes(call)
    own_scores = cache(partial(_own_scores, reference, call))
    for tensor, values in call.expected.items():
        is_score = tensor == LOG_PROBS
        new = call.new_places(tensor)
        size_of = largest_of if tensor == LOGITS else _largest
        largest = top if is_score else size_of(values if new is None else values[new])
        about = (case.name, label, call.step, tensor, values)
        allowed = tolerance.allowed(largest)
        rms = tolerance.allowed_rms
        hold = partial(compare, *about, tolerance=allowed, rms=rms, over=new)
        found = hold(actual=_unpadded(call, tensor, actual[tensor]), least=size if is_score else 0.0)
        own = own_scores if is_score else partial(_own, hold, reference, call, tensor)
        yield tolerance.judge(found, largest, own)
    if call.choices is not None:
        found = _compare_choice(case, label, call, call.choices, size, tolerance.allowed(top), actual, tolerance)
        yield tolerance.judge(found, top, own_scores)


def _unpadded(call: Call, tensor: str, actual: Array) -> Array:
    """Return logits (R, T, V) or a cache (R, G, S, H) of a causal decoder with the expected values at padding."""
    mask = call.inputs.get(ATTENTION_MASK)
    expected = call.expected[tensor]
    if call.role != DECODER or mask is None or mask.all() or actual.shape != expected.shape:
        return actual
    size = expected.shape[1 if tensor == LOGITS else 2]
    seen = mask[:, -size:, None] if tensor == LOGITS else mask[:, None, -size:, None]
    return np.where(seen > 0, actual, expected)


def _sizes(call: Call) -> tuple[float, float]:
    """Return the RMS of the logits, and the largest absolute value of the logits and of `choices`; 0 without both."""
    scores = [each for each in (call.logits, call.choices) if each is not None]
    return (_rms(cut_off(scores[0], bound_of(scores[0]))), max(map(largest_of, scores))) if scores else (0.0, 0.0)


def _own(hold: Callable[..., Comparison], reference: Reference, call: Call, tensor: str, draw: int) -> Comparison:
    """Compare PyTorch's own output in the precision with the exact one."""
    return hold(actual=reference.own(call, tensor, draw))


def _own_scores(reference: Reference, call: Call, draw: int) -> Comparison:
    """Return PyTorch's own error of log-probs: twice that of logits, because the normaliser has an error, too."""
    assert call.logits is not None
    found = compare("", "", call.step, LOGITS, call.logits, reference.own(call, LOGITS, draw), 0.0)
    return replace(found, max_abs=2 * found.max_abs, relative=2 * found.relative)


def _compare_choice(
    case: Case,
    label: str,
    call: Call,
    choices: Array,
    size: float,
    allowed: float,
    actual: Mapping[str, Array],
    tolerance: Tolerance,
) -> Comparison:
    ids = actual[IDS]
    values = actual[LOG_PROBS]
    if not ((ids >= 0) & (ids < choices.shape[1])).all():
        return wrong(IDS, "are no tokens", case=case.name, runtime=label, step=call.step)
    expected = np.take_along_axis(choices, ids, axis=1)
    return compare(case.name, label, call.step, IDS, expected, values, allowed, rms=tolerance.allowed_rms, least=size)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))
