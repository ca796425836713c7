"""Constraints on the next token: banned tokens, forced tokens, and options that change scores.

A few banned tokens need only a few additional candidates; many of them, and options that change scores, need the scores
of the whole vocabulary. Shape comments: R rows, T tokens so far, C candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from txport.errors import UnsupportedError
from txport.models.facts import Facts
from txport.runtimes.base import Floats, Ints, Scores, log_softmax, scores
from txport.runtimes.inputs import Sources
from txport.search.changes import NOTHING, Changes, ends_with, renormalise
from txport.search.options import Processor, SearchOptions, single_tokens
from txport.search.requests import SearchRequest, Step
from txport.search.stops import Stops

SPARE = 16  # maximum of additional candidates; with more, reading all scores is faster


class Candidates(NamedTuple):
    """Candidates for the next token: scores for the choice, log-probs for the target's score, ids: (R, C) each.

    `attention` is that of the step, if requested.
    """

    values: Floats
    log_probs: Floats
    ids: Ints
    attention: Floats | None


class Constraints:
    """The constraints of one batch: options, prefixes and length limits.

    `prompts` are those of a causal model; constraints on the tokens so far include the tokens of the prompts. `sources`
    are the token ids that the options of the encoder concern.
    """

    def __init__(
        self,
        options: SearchOptions,
        facts: Facts,
        prefixes: Sequence[Sequence[int]],
        prompts: Sequence[Sequence[int]] = (),
        sources: Sources = (),
    ) -> None:
        self._filler = facts.writes.pad
        self._options = options
        self._ends = np.asarray(options.ends(facts))
        self._suppressed = np.asarray(options.suppress_tokens, np.int64)
        self._needs_all_scores = _needs_all_scores(options)
        self._not_first = np.asarray(options.begin_suppress_tokens, np.int64)
        self._prefixes = _pad(prefixes)  # (B, longest)
        self.prefix_lengths = np.array([len(prefix) for prefix in prefixes], np.int64)
        self.limits = limits(options, facts, prefixes, prompts)
        reads = options.encoder_no_repeat_ngram_size or options.encoder_repetition_penalty != 1
        self._read = _pad(sources if reads else ())  # (B, S)
        self._changes = Changes(options, self._ends, self._read)
        # tokens of each target before those of the target itself, the start token not counted: (B,)
        self._given = np.array([len(prompt) - 1 for prompt in prompts] or [0] * len(prefixes), np.int64)
        self._words = [np.asarray(words, np.int64) for words in options.bad_words_ids]
        self._before = _pad([prompt[-2::-1] for prompt in prompts])[:, ::-1]  # (B, P - 1), padded on the left
        if options.stop and not isinstance(options.stop, Stops):
            raise UnsupportedError("stop needs the spelling of tokens; bind it to a tokenizer by Stops")
        self._stops = options.stop if isinstance(options.stop, Stops) else None
        self._bans = bool(
            options.min_new_tokens
            or options.min_length
            or options.encoder_no_repeat_ngram_size
            or options.no_repeat_ngram_size
            or self._words
            or len(self._suppressed)
            or len(self._not_first)
        )

    @property
    def are_none(self) -> bool:
        """True if a step depends on nothing but the last token of each row, for a limited number of candidates."""
        options = self._options
        is_forced = options.forced_bos_token_id is not None or options.forced_eos_token_id is not None
        needs_more = options.changes_scores or options.aligns or self._stops is not None
        return not (self._bans or is_forced or needs_more or self._prefixes.shape[1])

    def best(
        self, token_ids: Ints, sources: Ints, count: int | None, *, log: bool
    ) -> Generator[SearchRequest, Scores | None, Candidates]:
        """Request a step; return the `count` best allowed tokens, best first; `count` None: the whole vocabulary.

        `token_ids` (R, T) are the tokens of each row so far, start token included; `sources` (R,) are their sources.
        With `log`, processors get log-probs, and their output is added to the score; otherwise they get logits.
        """
        normalise = log or self._options.scores
        aligns = self._options.aligns
        seen = self._seen(token_ids, sources)
        banned = self._banned(seen, token_ids.shape[1], sources)
        forced = self._forced(token_ids.shape[1], sources)
        if self._options.changes_scores or count is None:
            found = yield Step(token_ids[:, -1], None, True, aligns)
            assert found is not None
            log_probs = log_softmax(found.values, found.values) if normalise else found.values
            values = (log_probs if log else found.values).copy()
            self._changes.apply(values, seen, token_ids.shape[1] - 1 - self.prefix_lengths[sources], sources)
            changed = self._change(values, seen, banned, forced, self._are_given(token_ids.shape[1], sources))
            if log and self._options.renormalize_logits:
                renormalise(changed)
            return _choose(changed, None if log else log_probs, forced, count, found.attention)
        top = None if self._needs_all_scores else count + _spare(banned.shape[1])
        if forced is not None and not aligns and (forced != NOTHING).all():
            yield Step(token_ids[:, -1], top, normalise, aligns, is_scored=False)
            shape = (len(forced), count)
            values, ids = np.full(shape, -np.inf, np.float32), np.tile(np.arange(count), (len(forced), 1))
            return self._with_forced(values, ids, forced, None)
        found = yield Step(token_ids[:, -1], top, normalise, aligns)
        assert found is not None
        if top is None:
            values, ids = _best_allowed(found.values, banned, count, normalise=normalise)
            return self._with_forced(values, ids, forced, found.attention)
        assert found.ids is not None
        values = found.values
        ids = found.ids
        if banned.shape[1]:
            values, ids = _without(values, ids, banned, count)
        return self._with_forced(values, ids, forced, found.attention)

    @staticmethod
    def _with_forced(values: Floats, ids: Ints, forced: Ints | None, attention: Floats | None) -> Candidates:
        if forced is not None:
            rows = np.flatnonzero(forced != NOTHING)
            values[rows] = -np.inf
            values[rows, 0] = 0.0
            ids[rows, 0] = forced[rows]
        return Candidates(values, values, ids, attention)

    def stopped(self, token_ids: Ints, sources: Ints, candidates: Ints) -> NDArray[np.bool_] | None:
        """Return which candidates (R, C) complete a stop string; None without stop strings. A prefix completes none."""
        if self._stops is None:
            return None
        found = self._stops.completed(self._seen(token_ids, sources), candidates)
        found[self._are_given(token_ids.shape[1], sources)] = False
        return found

    def _seen(self, token_ids: Ints, sources: Ints) -> Ints:
        """Return all tokens so far, prompts included: (R, P - 1 + T); short prompts are padded left with `NOTHING`."""
        if not (self._before.size and (self._bans or self._options.changes_scores or self._stops)):
            return token_ids
        return np.concatenate([self._before[sources], token_ids], axis=1)

    def _are_given(self, length: int, sources: Ints) -> Ints:
        """Return the rows whose next token is part of their prefix."""
        return np.flatnonzero(self.prefix_lengths[sources] >= length)

    def _change(self, values: Floats, seen: Ints, banned: Ints, forced: Ints | None, given: Ints) -> Floats:
        _forbid(values, banned)
        if forced is not None:
            at = np.flatnonzero(forced != NOTHING)
            values[at] = -np.inf
            values[at, forced[at]] = 0.0
        if self._options.logits_processor is None:
            return values
        ids = np.where(seen == NOTHING, self._filler, seen)
        values = _processed(self._options.logits_processor, values, ids)
        if forced is not None:  # it does not change prefixes
            values[given] = -np.inf
            values[given, forced[given]] = 0.0
        return values

    def _banned(self, seen: Ints, length: int, sources: Ints) -> Ints:
        """Return the banned next tokens: (R, maximum over rows), padded with `NOTHING`.

        `length` is the number of tokens from the start token, or the last token of the prompt, on.
        """
        rows = len(sources)
        options = self._options
        if not self._bans:
            return np.empty((rows, 0), np.int64)
        parts = [np.broadcast_to(self._suppressed, (rows, len(self._suppressed)))] if len(self._suppressed) else []
        new_tokens = length - 1 - self.prefix_lengths[sources]  # new tokens so far: (R,)
        is_first = new_tokens == (options.forced_bos_token_id is not None)
        if len(self._not_first) and is_first.any():
            parts.append(np.where(is_first[:, None], self._not_first, NOTHING))
        if options.min_new_tokens or options.min_length:
            too_soon = new_tokens < options.min_new_tokens
            if not options.min_new_tokens:
                too_soon = self._given[sources] + length < options.min_length
            if too_soon.any():
                parts.append(np.where(too_soon[:, None], self._ends, NOTHING))
        parts += [_after(seen, words) for words in self._words]
        if options.no_repeat_ngram_size:
            parts.append(_repeated(seen, seen, options.no_repeat_ngram_size))
        if options.encoder_no_repeat_ngram_size:
            parts.append(_repeated(self._read[sources], seen, options.encoder_no_repeat_ngram_size))
        banned: Ints = np.concatenate([np.empty((rows, 0), np.int64), *parts], axis=1)
        return banned[:, (banned != NOTHING).any(axis=0)]

    def _forced(self, length: int, sources: Ints) -> Ints | None:
        """Return the forced token after `length` tokens, start token included, or `NOTHING`: (R,).

        Return None if no row can have a forced token, as in most steps.
        """
        in_prefixes = length <= self._prefixes.shape[1]
        first = self._options.forced_bos_token_id if length == 1 else None
        last = self._options.forced_eos_token_id
        if not in_prefixes and first is None and last is None:
            return None
        forced = self._prefixes[sources, length - 1] if in_prefixes else np.full(len(sources), NOTHING)
        if first is not None:
            forced = np.where(forced == NOTHING, first, forced)
        if last is not None:
            forced = np.where(length == self.limits[sources], last, forced)
        return forced


def possible_tops(options: SearchOptions, facts: Facts, count: int | None, longest: int) -> Sequence[int | None]:
    """Return all values of `top` that `Constraints.best` can request; rows have up to `longest` tokens with prompts."""
    if count is None or reads_all_scores(options):
        return [None]
    single = single_tokens(options.bad_words_ids)
    banned = {len(options.suppress_tokens) + len(single)}  # in every step
    parts: list[Sequence[int]] = [
        (0, len(options.begin_suppress_tokens)),
        (0, len(options.ends(facts)) if options.min_new_tokens or options.min_length else 0),
        range(len(options.bad_words_ids) - len(single) + 1),
        range(max(longest - options.no_repeat_ngram_size + 1, 0) + 1) if options.no_repeat_ngram_size else (0,),
    ]
    for part in parts:
        banned = {size + more for size in banned for more in part}
    return sorted({count + _spare(size) for size in banned})


def reads_all_scores(options: SearchOptions) -> bool:
    """Return True if each step reads the scores of the whole vocabulary, for any number of candidates."""
    return options.changes_scores or _needs_all_scores(options)


def _needs_all_scores(options: SearchOptions) -> bool:
    """Return True if more than `SPARE` tokens may be banned in every step, so that all scores are needed."""
    return len(options.suppress_tokens) > SPARE or options.encoder_no_repeat_ngram_size > 0


def _spare(banned: int) -> int:
    """Return the number of additional candidates: `banned` rounded up to a power of 2, for few different shapes."""
    return 1 << (banned - 1).bit_length() if banned else 0


def limits(
    options: SearchOptions, facts: Facts, prefixes: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]] = ()
) -> Ints:
    """Return the maximum number of tokens of each target, with its prefix, without its prompt: (B,)."""
    most = options.max_new_tokens
    taken = map(len, prompts) if len(prompts) else [0] * len(prefixes)
    longest = facts.writes.longest
    if options.max_length is not None:
        longest = min(longest, options.max_length - facts.start_tokens)  # start tokens are no part of the target
    room = np.array([longest - count for count in taken], np.int64)
    return room if most is None else np.array([len(prefix) + most for prefix in prefixes], np.int64)


def _pad(prefixes: Sequence[Sequence[int]]) -> Ints:
    padded = np.full((len(prefixes), max(map(len, prefixes), default=0)), NOTHING)
    for row, prefix in zip(padded, prefixes, strict=True):
        row[: len(prefix)] = prefix
    return padded


def _choose(
    changed: Floats, own: Floats | None, forced: Ints | None, count: int | None, attention: Floats | None
) -> Candidates:
    """Choose the `count` best, or all, of changed scores (R, V); log-probs are those of `own` (R, V), if given."""
    if count is None:
        ids: Ints = np.broadcast_to(np.arange(changed.shape[1]), changed.shape)
    else:
        best = scores(changed, count, normalise=False)
        assert best.ids is not None
        changed = best.values
        ids = best.ids
    if own is None:
        return Candidates(changed, changed, ids, attention)
    own = own if count is None else np.take_along_axis(own, ids, axis=1)
    log_probs = own if forced is None else np.where((forced != NOTHING)[:, None], np.float32(0), own)
    return Candidates(changed, np.where(changed == -np.inf, np.float32(-np.inf), log_probs), ids, attention)


def _processed(processor: Processor, values: Floats, ids: Ints) -> Floats:
    """Return what a `logits_processor` makes of the scores; raise `UnsupportedError` if these can't be scores."""
    found = np.asarray(processor(values, ids))
    must = f"the logits_processor {getattr(processor, '__qualname__', type(processor).__name__)} must return"
    if found.shape != values.shape:
        raise UnsupportedError(f"{must} scores of shape {values.shape}, got {found.shape}")
    if not np.can_cast(found.dtype, np.float32, "same_kind"):
        raise UnsupportedError(f"{must} real numbers, got {found.dtype}")
    with np.errstate(over="ignore"):
        found = found.astype(np.float32, copy=False)
    wrong = np.flatnonzero(~(found.max(axis=1) < np.inf))  # also of NaN
    if wrong.size:
        what = "NaN" if np.isnan(found[wrong[0]]).any() else "infinity"
        raise UnsupportedError(f"{must} finite scores, or -inf for a banned token, got {what} in row {wrong[0]}")
    return found


def _forbid(values: Floats, banned: Ints) -> None:
    at, place = np.nonzero(banned != NOTHING)
    values[at, banned[at, place]] = -np.inf


def _best_allowed(logits: Floats, banned: Ints, count: int, *, normalise: bool) -> tuple[Floats, Ints]:
    """Return the best allowed candidates (R, count) of logits (R, V), as logits or log-probs, and their ids."""
    allowed = logits.copy()
    _forbid(allowed, banned)
    best = scores(allowed, count, normalise=False)
    assert best.ids is not None
    return log_softmax(logits, best.values) if normalise else best.values, best.ids


def _without(values: Floats, ids: Ints, banned: Ints, count: int) -> tuple[Floats, Ints]:
    """Return the `count` best allowed candidates of (R, C) in descending order."""
    at, place = np.nonzero(banned != NOTHING)
    is_banned = np.zeros((len(ids), 1 + max(int(ids.max()), int(banned.max()))), np.bool_)
    is_banned[at, banned[at, place]] = True
    bad = np.take_along_axis(is_banned, ids, axis=1)
    if not bad.any():
        return values[:, :count], ids[:, :count]
    at = np.arange(len(ids))[:, None]
    order = np.argsort(bad, axis=1, kind="stable")[:, :count]
    return np.where(bad[at, order], np.float32(-np.inf), values[at, order]), ids[at, order]


def _after(token_ids: Ints, words: NDArray[np.int64]) -> Ints:
    """Return the last of `words` for rows that end with the words before it, otherwise `NOTHING`: (R, 1)."""
    last = np.full((len(token_ids), 1), NOTHING)
    last[ends_with(token_ids, words[:-1])] = words[-1]
    return last


def _repeated(within: Ints, token_ids: Ints, size: int) -> Ints:
    """Return the next tokens (R, S - size + 1) that would repeat an n-gram of `size` tokens in `within` (R, S).

    They are padded with `NOTHING`; `token_ids` (R, T) are the tokens so far.
    """
    length = token_ids.shape[1]
    if min(within.shape[1], length + 1) < size:
        return np.empty((len(token_ids), 0), np.int64)
    windows = sliding_window_view(within, size, axis=1)  # (R, S - size + 1, size)
    newest = token_ids[:, length - size + 1 :]
    matches = (windows[..., :-1] == newest[:, None]).all(axis=2)
    return np.where(matches, windows[..., -1], NOTHING)
