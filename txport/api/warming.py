"""Warm-up: prepare memory, weights and steps before the first requests."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from txport.audio.targets import longest_prompt
from txport.bench.rounds import Protocol, draw_source
from txport.errors import UnsupportedError
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.runtimes.base import EncoderRuntime, Inputs, QueuedRuntime, Runtime, Sizes
from txport.runtimes.inputs import infer, lengths_of
from txport.runtimes.single import SingleRuntime
from txport.search.constraints import possible_tops
from txport.search.generate import first_tokens, longest_target, require_fit, require_room, wanted
from txport.search.options import SearchOptions
from txport.search.single import generate_at_once
from txport.system.machine import is_out_of_memory
from txport.system.numbers import whole

LENGTH = 16  # default number of source tokens
STEPS = 2  # number of steps with random sources
MOST_UNASKED = 1024  # longest target for which max_new_tokens may be missing


def lengths_from(given: object, facts: Facts, options: SearchOptions | None) -> range:
    """Return the possible lengths of the longest source of a batch: the given range, or 1 to the given number.

    Raises `UnsupportedError` for lengths that the model does not support with these options.
    """
    longest = facts.reads.longest
    if isinstance(facts.reads, Features):
        if given is not None:
            raise UnsupportedError("source_tokens are those of texts; this model reads audio, whose windows are alike")
        return range(longest, longest + 1)
    prompted = options if facts.is_causal else None
    if given is None:
        asked = max(prompted.max_new_tokens or 1, prompted.min_new_tokens) if prompted else 0
        given = max(1, min(LENGTH, longest - asked))
    found = given if isinstance(given, range) else range(1, whole("source_tokens", given, 1) + 1)
    if not found or min(found) < 1 or max(found) > longest:
        raise UnsupportedError(f"source_tokens must lie in 1 to the model's longest, {longest}; got {given}")
    if prompted is not None:
        require_room(range(max(found)), facts, prompted)
    return found


def warm(
    runtime: Runtime,
    facts: Facts,
    options: SearchOptions | None,
    sources: int,
    lengths: range,
    prefix: int = 0,
    workers: int = 1,
) -> None:
    """Encode random sources of the maximum length, and run a few steps of a search.

    If the runtime prepares steps by shape, all shapes of the search are prepared, for this thread or for several
    `workers`. `options` are None for an encoder-only model. Raises `UnsupportedError` for a `prefix` length that the
    options or the model do not allow.
    """
    if options is not None:
        token = next((id_ for id_ in range(facts.writes.size) if id_ not in options.ends(facts)), 0)
        require_fit([[token] * prefix], facts, options)
    source = draw_source(facts, Protocol(batch=sources, source=max(lengths)))
    if options is None:
        assert isinstance(runtime, EncoderRuntime)
        infer(runtime, list(source), facts)
    elif isinstance(runtime, SingleRuntime):
        short = dataclasses.replace(options, max_new_tokens=max(options.min_new_tokens, 1))
        generate_at_once(runtime, list(source), short)
    else:
        sizes = sizes_of(facts, options, sources, lengths, prefix) if isinstance(runtime, QueuedRuntime) else None
        if workers == 1:
            _prepare(runtime, source, facts, options, sizes)
            return
        sizes = sizes and sizes._replace(batches=workers)
        with ThreadPoolExecutor(1) as another:  # a separate thread, like those of workers
            another.submit(_prepare, runtime, source, facts, options, sizes).result()


def sizes_of(facts: Facts, options: SearchOptions, sources: int, lengths: range, prefix: int) -> Sizes:
    """Return the sizes of the batches to prepare; raise `UnsupportedError` if `max_new_tokens` is required."""
    if options.max_new_tokens is None and options.max_length is None and facts.writes.longest > MOST_UNASKED:
        what = f"this model writes up to {facts.writes.longest} tokens, and a warm-up takes memory for all of them"
        raise UnsupportedError(f"{what}; give max_new_tokens")
    if isinstance(facts.reads, Features) and facts.speech is not None:
        prefix = max(prefix, longest_prompt(facts.speech))
    longest = longest_target([range(max(lengths))], facts, options, [range(prefix)])
    tops = possible_tops(options, facts, wanted(options, facts), longest)
    if facts.speech is not None and facts.speech.first_timestamp is not None:
        tops = [*tops, None]  # timestamp rules need all scores
    return Sizes(sources, options.rows, lengths, longest, tops)


def _prepare(runtime: Runtime, source: Inputs, facts: Facts, options: SearchOptions, sizes: Sizes | None) -> None:
    """Warm up on the calling thread; raise `MemoryError` if the memory does not suffice."""
    if sizes is not None:
        assert isinstance(runtime, QueuedRuntime)
        try:
            runtime.warm(sizes)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            what = f"batches of {sizes.sources} sources, {sizes.rows} rows of each and {sizes.length} tokens a row"
            raise MemoryError(f"{what} take more memory than there is; lower batch_size or max_new_tokens") from error
    _search(runtime, source, facts, options)


def _search(runtime: Runtime, source: Inputs, facts: Facts, options: SearchOptions) -> None:
    """Run a few steps from sources and reorder the rows after each; the scores are ignored."""
    count = len(source)
    steps = min(STEPS, facts.writes.longest)
    before = facts.before_steps(source.shape[1])
    state = runtime.start(source, lengths_of(source, facts), max_length=before + steps)
    rows = np.repeat(np.arange(count), options.rows)
    tokens = first_tokens(source, facts)[rows]
    state = runtime.select(state, rows)
    for _ in range(steps):
        _, state = runtime.step(tokens, state, top=wanted(options, facts))
        state = runtime.select(state, np.arange(len(rows))[::-1])
