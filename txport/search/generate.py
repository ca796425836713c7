"""Search for targets over the runtime seam: greedy, sampling and beams. NumPy only; no runtime is special here.

Shape comments: B batch, S source, R rows, T tokens so far, L the longest target.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from txport.errors import UnsupportedError
from txport.models.config import TransformerConfig
from txport.runtimes.base import ContinuousRuntime, Ints, Runtime, State
from txport.search.alignment import fit
from txport.search.beams import Beams
from txport.search.constraints import Constraints
from txport.search.groups import Groups
from txport.search.options import Found, SearchOptions
from txport.search.requests import Certain, Progress, Reserve, Search, Select, Step
from txport.search.rows import Rows
from txport.search.sampling import draw, draw_uniforms

Ids = Sequence[Sequence[int]]
Steps = Generator[Certain, None, list[list[Found]]]


def generate(
    runtime: Runtime, sources: Ids, config: TransformerConfig, options: SearchOptions, prefixes: Ids | None = None
) -> list[list[Found]]:
    """Search one batch: token ids of each source -> its `nbest` hypotheses, best first, or as they were drawn.

    `prefixes` are what each target begins with; their tokens count neither as new ones nor for the score.
    """
    steps = search(runtime, sources, config, options, prefixes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[list[Found]] = end.value
            return found


def search(
    runtime: Runtime, sources: Ids, config: TransformerConfig, options: SearchOptions, prefixes: Ids | None = None
) -> Steps:
    """As `generate`, step by step: after each it yields what tells the tokens that are certain by now.

    Closing it ends the search.
    """
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    requests = plan(sources, config, options, prefixes)
    return carry_out(requests, runtime, sources, config, longest_target(options, prefixes))


def carry_out(requests: Search, runtime: Runtime, sources: Ids, config: TransformerConfig, longest: int) -> Steps:
    """Do what a search asks for, in a state of its own."""
    state, found = start(runtime, sources, config, longest), None
    while True:
        try:
            request = requests.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        found = None
        if isinstance(request, Step):
            found, state = runtime.step(
                request.tokens, state, top=request.top, normalise=request.normalise, align=request.align
            )
        elif isinstance(request, Select):
            state = runtime.select(state, request.rows)
        elif isinstance(request, Reserve):
            state = runtime.reserve(state, request.rows) if isinstance(runtime, ContinuousRuntime) else state
        else:
            yield request.certain


def plan(
    sources: Ids, config: TransformerConfig, options: SearchOptions, prefixes: Ids, *, at_once: bool = False
) -> Search:
    """The search of one batch, as it asks for steps; `UnsupportedError` for what this model can't do.

    Rows leave `at_once` when they have ended, or some time later, if others have to move; but a processor of one's
    own is never shown those that have ended.
    """
    require_fit(prefixes, config, options)
    constraints = Constraints(options, config, prefixes)
    lengths = np.array([len(source) for source in sources], np.int64)
    if options.beams > 1:
        return by_beams(lengths, config, options, constraints)
    at_once = at_once or options.logits_processor is not None
    return by_rows(lengths, config, options, constraints, at_once=at_once)


def longest_target(options: SearchOptions, prefixes: Ids) -> int:
    """How many tokens a target may have, its prefix counted."""
    return max(map(len, prefixes), default=0) + options.max_new_tokens


def require_fit(prefixes: Ids, config: TransformerConfig, options: SearchOptions) -> None:
    """Raise `UnsupportedError` for options and prefixes with which this model can't begin a target."""
    longest = max(map(len, prefixes), default=0)
    options.require_fit(config, longest)
    if options.forced_bos_token_id is not None and longest:
        raise UnsupportedError("a prefix says what the first token is; forced_bos_token_id must not")
    for token in {token for prefix in prefixes for token in prefix}:
        if not 0 <= token < config.target_vocab_size:
            limit = f"0 to {config.target_vocab_size - 1}"
            raise UnsupportedError(f"a prefix must lie in the vocabulary, {limit}; got {token}")
        if token in options.ends(config):
            raise UnsupportedError(f"a prefix must not hold an end token; got {token}")


def start(runtime: Runtime, sources: Ids, config: TransformerConfig, max_length: int) -> State:
    """Pad the sources at the right and encode them."""
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    padded = np.full((len(sources), lengths.max()), config.pad_id, dtype=np.int64)  # (B, S)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    return runtime.start(padded, lengths, max_length=max_length)


def by_rows(
    lengths: Ints, config: TransformerConfig, options: SearchOptions, constraints: Constraints, *, at_once: bool = False
) -> Search:
    """Every row for itself, greedy or drawn, until an end token."""
    rows = Rows(lengths, constraints.prefix_lengths, options, config, at_once=at_once)
    if rows.samples > 1:
        yield Select(rows.sources)
    uniforms = draw_uniforms(options, len(lengths)) if options.do_sample else None
    count = (options.top_k or None) if options.do_sample else 1
    while True:
        found = yield from constraints.best(rows.token_ids, rows.sources, count, log=False)
        at = np.arange(len(found.ids))
        place = 0 if uniforms is None else draw(found.values, options, rows.pick(uniforms))
        tokens = found.ids[at, place]
        kept = rows.advance(tokens, found.log_probs[at, place], fit(found.attention, int(lengths.max())))
        yield Progress(rows.certain)
        if not len(kept):
            return rows.found()
        if len(kept) < len(tokens):
            yield Select(kept)


def by_beams(lengths: Ints, config: TransformerConfig, options: SearchOptions, constraints: Constraints) -> Search:
    """Keep the K best running hypotheses of each source; enough candidates that ended ones starve nobody."""
    kind = Beams if options.beam_groups == 1 else Groups
    beams = kind(lengths, constraints.prefix_lengths, options, options.ends(config))
    yield Reserve(options.beams)
    if options.beam_groups > 1:
        yield Select(beams.sources)
    token_ids = np.full((len(beams.sources), 1), config.bos_id)  # (R, T)
    while True:
        found = yield from constraints.best(token_ids, beams.sources, beams.wanted, log=True)
        rows = beams.advance(found.values, found.ids, fit(found.attention, int(lengths.max())))
        yield Progress(beams.certain)
        if not len(rows):
            return beams.best()
        if not np.array_equal(rows, np.arange(len(token_ids))):
            yield Select(rows)
        token_ids = np.column_stack([token_ids[rows], beams.last])
