"""Generation over the `Runtime` interface: greedy search, sampling and beam search. NumPy only.

Shape comments: B batch, S source, R rows, T tokens so far, L the longest target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from txport.errors import NoRoomError, UnsupportedError
from txport.models.facts import Facts
from txport.runtimes.base import ContinuousRuntime, Inputs, Ints, QueuedRuntime, Runtime, State
from txport.runtimes.inputs import Sources, batch, lengths_of
from txport.search.beams import Beams, wanted_of_row
from txport.search.constraints import Constraints, limits
from txport.search.groups import Groups
from txport.search.options import Found, SearchOptions
from txport.search.requests import Begin, Certain, Progress, Reserve, Search, Select, Step, Targets
from txport.search.rows import Rows, fit
from txport.search.sampling import MOST_OF_ENTROPY, draw

Ids = Sequence[Sequence[int]]
Steps = Generator[Certain, None, list[list[Found]]]


def generate(
    runtime: Runtime, sources: Sources, facts: Facts, options: SearchOptions, prefixes: Ids | None = None
) -> list[list[Found]]:
    """Generate for one batch of sources; return the `nbest` hypotheses per source, best first, or samples in order.

    `prefixes` are the starts of the targets; their tokens count neither as new tokens nor for the score. Raises
    `UnsupportedError` for options and prefixes that the model does not support.
    """
    return begin(runtime, sources, facts, options, prefixes)()


def begin(
    runtime: Runtime, sources: Sources, facts: Facts, options: SearchOptions, prefixes: Ids | None = None
) -> Callable[[], list[list[Found]]]:
    """Like `generate`, in two calls; an asynchronous device encodes the sources between them."""
    requests, longest = _planned(sources, facts, options, prefixes)
    is_ahead = isinstance(runtime, QueuedRuntime) and facts.is_encoder_decoder  # prompts use memory of the steps
    state = start(runtime, sources, facts, longest) if is_ahead else None
    return lambda: _end(carry_out(requests, runtime, sources, facts, longest, state))


def _end(steps: Steps) -> list[list[Found]]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[list[Found]] = end.value
            return found


def search(
    runtime: Runtime, sources: Sources, facts: Facts, options: SearchOptions, prefixes: Ids | None = None
) -> Steps:
    """Like `generate`, step by step: after each step, yield a function that returns the certain tokens so far.

    Closing the generator ends the search.
    """
    requests, longest = _planned(sources, facts, options, prefixes)
    return carry_out(requests, runtime, sources, facts, longest)


def _planned(sources: Sources, facts: Facts, options: SearchOptions, prefixes: Ids | None) -> tuple[Search, int]:
    """Return a search, and the maximum number of tokens of its rows."""
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    return plan(sources, facts, options, prefixes), longest_target(sources, facts, options, prefixes)


def carry_out(
    requests: Search, runtime: Runtime, sources: Sources, facts: Facts, longest: int, state: State = None
) -> Steps:
    """Execute the requests of a search in the given state, or in a new one."""
    state = start(runtime, sources, facts, longest) if state is None else state
    found = None
    while True:
        try:
            request = requests.send(found)
        except StopIteration as end:
            targets: Targets = end.value
            return targets.found()
        found = None
        if isinstance(request, Step):
            # steps of a continuous runtime have the shapes that it was warmed up for
            top = request.top if request.is_scored or isinstance(runtime, ContinuousRuntime) else 0
            found, state = runtime.step(
                request.tokens, state, top=top, normalise=request.normalise, align=request.align
            )
        elif isinstance(request, Select):
            state = runtime.select(state, request.rows)
        elif isinstance(request, Reserve):
            state = runtime.reserve(state, request.rows) if isinstance(runtime, ContinuousRuntime) else state
        elif isinstance(request, Progress):
            yield request.targets.certain


def plan(sources: Sources, facts: Facts, options: SearchOptions, prefixes: Ids, *, at_once: bool = False) -> Search:
    """Return the search of one batch, a generator of requests; raise `UnsupportedError` for unsupported options.

    With `at_once`, rows are removed when they end, otherwise several at a time. A `logits_processor` is never called
    with rows that have ended.
    """
    require_fit(prefixes, facts, options)
    prompts = prompts_of(sources, facts)
    for prompt in prompts:
        require_room(prompt, facts, options)
    constraints = Constraints(options, facts, prefixes, prompts, sources)
    lengths = lengths_of(sources, facts)
    first = first_tokens(sources, facts)
    if options.beams > 1:
        return by_beams(lengths, first, options, constraints, facts)
    at_once = at_once or options.logits_processor is not None
    return by_rows(lengths, first, options, constraints, facts, at_once=at_once)


def first_tokens(sources: Sources | Inputs, facts: Facts) -> Ints:
    """Return the first input token of each row: the start token, or the last token of the prompt: (B,)."""
    return np.array([source[-1] if facts.start is None else facts.start for source in sources], np.int64)


def prompts_of(sources: Sources, facts: Facts) -> Ids:
    """Return the prompts of a causal model, which count towards the sequence length; () for other models."""
    return sources if facts.is_causal else ()


def longest_target(sources: Sources, facts: Facts, options: SearchOptions, prefixes: Ids) -> int:
    """Return the maximum number of tokens in the cache of a row: prompt, prefix and new ones but the last."""
    prompts = prompts_of(sources, facts)
    before = np.array([len(prompt) - 1 for prompt in prompts] or [0])
    return int((before + limits(options, facts, prefixes, prompts)).max())


def require_room(prompt: Sequence[int], facts: Facts, options: SearchOptions) -> None:
    """Raise `NoRoomError` for a prompt that leaves too little room for the requested tokens."""
    longest = facts.writes.longest
    size = len(prompt)
    limit = f"the model's longest sequence, {longest}"
    fix = "shorten it"
    if options.max_new_tokens is None and options.max_length is not None and options.max_length < longest:
        longest = options.max_length
        limit = f"max_length {longest}"
        fix = "shorten it, or give max_new_tokens"
    left = longest - size
    if left < 1:
        raise NoRoomError(f"a prompt of {size} tokens leaves no room for another one in {limit}; {fix}")
    for name in ("max_new_tokens", "min_new_tokens"):
        if (count := getattr(options, name) or 0) > left:
            fix = f"shorten the prompt, or give {name} up to {left}"
            raise NoRoomError(f"a prompt of {size} tokens and {name} {count} exceed {limit}; {fix}")


def require_fit(prefixes: Ids, facts: Facts, options: SearchOptions) -> None:
    """Raise `UnsupportedError` for options and prefixes that this model does not support."""
    longest = max(map(len, prefixes), default=0)
    if longest and facts.is_causal:
        raise UnsupportedError("prefixes begin targets, and a causal model continues its prompt: put them at its end")
    options.require_fit(facts, longest)
    if options.forced_bos_token_id is not None and longest:
        raise UnsupportedError("a prefix says what the first token is; forced_bos_token_id must not")
    for token in {token for prefix in prefixes for token in prefix}:
        if not 0 <= token < facts.writes.size:
            limit = f"0 to {facts.writes.size - 1}"
            raise UnsupportedError(f"a prefix must lie in the vocabulary, {limit}; got {token}")
        if token in options.ends(facts):
            raise UnsupportedError(f"a prefix must not hold an end token; got {token}")


def start(runtime: Runtime, sources: Sources, facts: Facts, max_length: int) -> State:
    """Batch the sources, or prompts, and return the state that `Runtime.start` makes of them."""
    together, lengths = batch(sources, facts)
    return runtime.start(together, lengths, max_length=max_length)


def wanted(options: SearchOptions, facts: Facts) -> int | None:
    """Return the number of candidates per row and step; None for the whole vocabulary."""
    if options.do_sample:
        if options.top_h is not None:
            return MOST_OF_ENTROPY
        return min(options.top_k, facts.writes.size) if options.top_k else None
    return 1 if options.beams == 1 else wanted_of_row(options, options.ends(facts))


def by_rows(
    lengths: Ints,
    first: Ints,
    options: SearchOptions,
    constraints: Constraints,
    facts: Facts,
    *,
    at_once: bool = False,
) -> Search:
    """Search each row by itself, greedy or by sampling, until an end token; `first` (B,) are the first input tokens."""
    ends = options.ends(facts)
    rows = Rows(lengths, first, constraints.prefix_lengths, constraints.limits, options, ends, at_once=at_once)
    count = wanted(options, facts)
    yield Begin(rows, at_once and constraints.are_none and count is not None)
    if rows.samples > 1:
        yield Select(rows.sources)
    places = int(lengths.max())
    while True:
        token_ids = rows.token_ids
        sources = rows.sources
        found = yield from constraints.best(token_ids, sources, count, log=False)
        at: Any = (slice(None), 0)  # the best candidate of each row
        if options.do_sample:
            at = (np.arange(len(found.ids)), draw(found.values, options, rows.uniforms))
        tokens = found.ids[at]
        stopped = constraints.stopped(token_ids, sources, tokens[:, None])
        kept = rows.advance(tokens, found.log_probs[at], fit(found.attention, places), stopped)
        yield Progress(rows)
        if not len(kept):
            return rows
        if len(kept) < len(tokens):
            yield Select(kept)


def by_beams(lengths: Ints, first: Ints, options: SearchOptions, constraints: Constraints, facts: Facts) -> Search:
    """Beam search: keep the K best running hypotheses of each source, among enough candidates to replace ended ones."""
    kind = Beams if options.beam_groups == 1 else Groups
    count = wanted(options, facts)
    beams = kind(lengths, constraints.prefix_lengths, constraints.limits, options, options.ends(facts))
    yield Begin(beams, joins=False)
    yield Reserve(options.beams)
    if options.beam_groups > 1:
        yield Select(beams.sources)
    token_ids = first[beams.sources][:, None]  # (R, T)
    places = int(lengths.max())
    while True:
        found = yield from constraints.best(token_ids, beams.sources, count, log=True)
        stopped = constraints.stopped(token_ids, beams.sources, found.ids)
        rows = beams.advance(found.values, found.ids, fit(found.attention, places), stopped)
        yield Progress(beams)
        if not len(rows):
            return beams
        if not np.array_equal(rows, np.arange(len(token_ids))):
            yield Select(rows)
        token_ids = np.concatenate([token_ids[rows], beams.last[:, None]], axis=1)
