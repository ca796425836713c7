"""Search for targets over the runtime seam: greedy, sampling and beams. NumPy only; no runtime is special here.

Shape comments: B batch, S source, R rows, T tokens so far, L the longest target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np

from txport.models.config import TransformerConfig
from txport.models.errors import UnsupportedError
from txport.runtimes.base import Doubles, Floats, Ints, Runtime, State, log_softmax, scores
from txport.search.beams import Beams
from txport.search.constraints import Constraints
from txport.search.options import Found, SearchOptions
from txport.search.rows import Rows
from txport.search.sampling import draw, throw

Ids = Sequence[Sequence[int]]
Certain = Callable[[], list[tuple[int, ...]]]  # what each target is known to begin with by now
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
    options.require_fit(config)
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    require_prefixes(prefixes, config, options)
    constraints = Constraints(options, config, prefixes)
    longest = int(constraints.prefix_lengths.max()) + options.max_new_tokens
    if longest > config.max_length:
        limit = f"the model's longest sequence, {config.max_length}"
        raise UnsupportedError(f"a prefix and max_new_tokens must not exceed {limit}; got {longest}")
    way = by_rows if options.beams == 1 else by_beams
    return way(runtime, sources, config, options, constraints)


def require_prefixes(prefixes: Ids, config: TransformerConfig, options: SearchOptions) -> None:
    """Raise `UnsupportedError` for prefixes that no target can begin with."""
    if options.forced_bos_token_id is not None and any(prefixes):
        raise UnsupportedError("a prefix says what the first token is; forced_bos_token_id must not")
    for token in {token for prefix in prefixes for token in prefix}:
        if not 0 <= token < config.target_vocab_size:
            limit = f"0 to {config.target_vocab_size - 1}"
            raise UnsupportedError(f"a prefix must lie in the vocabulary, {limit}; got {token}")
        if token in options.ends(config):
            raise UnsupportedError(f"a prefix must not hold an end token; got {token}")


def encode(runtime: Runtime, sources: Ids, config: TransformerConfig, max_length: int) -> State:
    """Pad the sources at the right and encode them."""
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    padded = np.full((len(sources), lengths.max()), config.pad_id, dtype=np.int64)  # (B, S)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    return runtime.encode(padded, lengths, max_length=max_length)


def by_rows(
    runtime: Runtime, sources: Ids, config: TransformerConfig, options: SearchOptions, constraints: Constraints
) -> Steps:
    """Every row for itself, greedy or drawn, until an end token; rows that have ended leave when they are a few."""
    rows = Rows(constraints.prefix_lengths, options, config)
    state = encode(runtime, sources, config, rows.longest)
    if rows.samples > 1:
        state = runtime.select(state, rows.sources)
    chances = throw(options, len(sources)) if options.do_sample else None
    while True:
        chance = None if chances is None else rows.pick(chances)
        tokens, log_probs, state = _choose(runtime, state, rows.said, rows.sources, options, constraints, chance)
        kept = rows.advance(tokens, log_probs)
        yield rows.certain
        if not len(kept):
            return rows.found()
        if len(kept) < len(tokens):
            state = runtime.select(state, kept)


def _choose(
    runtime: Runtime,
    state: State,
    said: Ints,
    sources: Ints,
    options: SearchOptions,
    constraints: Constraints,
    chances: Doubles | None,
) -> tuple[Ints, Floats, State]:
    """The next token of each row, and its log-probability; any number where no scores are wanted."""
    rows = np.arange(len(said))
    if chances is None or (options.top_k and not constraints.changes_scores):
        count = options.top_k or 1
        values, ids, state = constraints.best(runtime, state, said, sources, count, log=False)
        place = np.zeros(len(said), np.int64) if chances is None else draw(values, options, chances)
        return ids[rows, place], values[rows, place], state
    found, state = runtime.step(said[:, -1], state)
    changed, forced = constraints.change(found.values, said, sources)
    ranked = scores(changed, changed.shape[1], normalise=False)
    assert ranked.ids is not None
    tokens = ranked.ids[rows, draw(ranked.values, options, chances)]
    log_probs = found.values[rows, tokens]
    if options.scores:
        log_probs = log_softmax(found.values, log_probs[:, None])[:, 0]
    log_probs = np.where(forced, np.float32(0), log_probs)
    return tokens, np.where(ranked.values[:, 0] == -np.inf, ranked.values[:, 0], log_probs), state


def by_beams(
    runtime: Runtime, sources: Ids, config: TransformerConfig, options: SearchOptions, constraints: Constraints
) -> Steps:
    """Keep the K best running hypotheses of each source; enough candidates that ended ones starve nobody."""
    beams = Beams(constraints.prefix_lengths, options, options.ends(config))
    state = encode(runtime, sources, config, int(constraints.prefix_lengths.max()) + options.max_new_tokens)
    said = np.full((len(sources), 1), config.bos_id)  # (R, T)
    while True:
        values, ids, state = constraints.best(runtime, state, said, beams.sources, beams.candidates, log=True)
        rows = beams.advance(values, ids)
        yield beams.certain
        if not len(rows):
            return beams.best()
        if not np.array_equal(rows, np.arange(len(said))):
            state = runtime.select(state, rows)
        said = np.column_stack([said[rows], beams.last])
