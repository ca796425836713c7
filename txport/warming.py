"""What the first requests would wait for, done before they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from txport.errors import UnsupportedError
from txport.models.audio.facts import Features
from txport.models.facts import Facts
from txport.rounds import Protocol, draw_source
from txport.runtimes.base import EncoderRuntime, Ints, QueuedRuntime, Runtime, Scores, Sizes, State
from txport.runtimes.encoding import infer
from txport.runtimes.inputs import Sources
from txport.runtimes.single import SingleRuntime
from txport.search.generate import generate, longest_target
from txport.search.numbers import QueuedNumbers
from txport.search.options import SearchOptions
from txport.search.single import generate_at_once
from txport.system.numbers import whole

LENGTH = 16  # tokens of a source


def lengths_from(given: int | Iterable[int] | None, facts: Facts) -> list[int]:
    """The lengths of sources that batches are made of; `UnsupportedError` for those that a model can't take."""
    if isinstance(facts.reads, Features):
        if given is not None:
            raise UnsupportedError("source_tokens are those of texts; this model reads audio, whose windows are alike")
        return [facts.reads.longest]
    named = [LENGTH] if given is None else [given] if isinstance(given, int) else list(given)
    found = sorted({whole("source_tokens", each, 1) for each in named}, reverse=True)
    if not found or found[0] > facts.reads.longest:
        got = found[0] if found else "none"
        raise UnsupportedError(f"source_tokens must lie in 1 to the model's longest, {facts.reads.longest}; got {got}")
    return found


def warm(
    runtime: Runtime,
    facts: Facts,
    options: SearchOptions | None,
    sources: int,
    lengths: Sequence[int],
    workers: int = 1,
) -> None:
    """Search for targets of so many made-up sources of each length, the longest first.

    Where steps are prepared by shape, prepare all that such batches may have, for this thread or for that of many
    `workers`, who are at work at once. A model that only encodes has no `options`.
    """
    if workers > 1:
        with ThreadPoolExecutor(1) as another:  # as workers are
            another.submit(_warm, runtime, facts, options, sources, lengths, workers).result()
    else:
        _warm(runtime, facts, options, sources, lengths, workers)


def _warm(
    runtime: Runtime, facts: Facts, options: SearchOptions | None, sources: int, lengths: Sequence[int], workers: int
) -> None:
    drawn = _draw(facts, sources, lengths)
    if isinstance(runtime, EncoderRuntime) and options is None:
        for each in drawn:
            infer(runtime, each, facts)
        return
    assert options is not None
    if isinstance(runtime, SingleRuntime):
        for each in drawn:
            generate_at_once(runtime, each, options)
        return
    tops, longest = set[int | None](), 0
    watched = _Watched(runtime, tops) if isinstance(runtime, QueuedRuntime) else runtime
    for each in drawn:
        longest = max(longest, longest_target(each, facts, options, [()] * sources))
        generate(watched, each, facts, options)
    if isinstance(runtime, QueuedRuntime):
        rows = options.nbest if options.do_sample else options.beams
        runtime.warm(Sizes(sources, rows, tuple(lengths), longest, _between(tops), workers))


def _between(tops: set[int | None]) -> tuple[int | None, ...]:
    """What was asked of steps, and what lies between: the more tokens a rule bans, the more are asked for."""
    counts = [each for each in tops if each is not None]
    doubled = (min(counts) << power for power in range((max(counts) // min(counts)).bit_length())) if counts else ()
    return (*sorted({*counts, *doubled}), *((None,) if None in tops else ()))


def _draw(facts: Facts, sources: int, lengths: Sequence[int]) -> Iterator[Sources]:
    for length in lengths:
        yield list(draw_source(facts, Protocol(batch=sources, source=length)))


class _Watched(QueuedNumbers):
    """A runtime, and what is asked of its steps."""

    def __init__(self, runtime: QueuedRuntime, tops: set[int | None]) -> None:
        super().__init__(runtime)
        self._tops = tops

    def step(self, tokens: Ints, state: State, **how: Any) -> tuple[Scores, State]:
        """See `Runtime.step`."""
        self._tops.add(how["top"])
        return super().step(tokens, state, **how)
