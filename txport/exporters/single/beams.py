"""One step of beam search in standard operators, for all sources at once; greedy search with one beam.

It computes the same as `search/beams.py`, including the order of ties.
Letters: B sources, K beams, W rows per source (K, but 1 in the first step of prompts), R rows (B x W, grouped by
source), V vocabulary, C candidates per row, N candidates per source, T tokens so far, P tokens of a prefix, F tokens
before the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from txport.exporters.single.block import Block
from txport.exporters.single.history import LEAST, History
from txport.exporters.single.rules import Rules

INT64, INT32, DOUBLE, FLOAT, BOOL = map(
    int, (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.BOOL)
)
NOTHING = -1  # no token


class Found(NamedTuple):
    """State of the search that the loop carries from step to step."""

    ids: ir.Value  # (R, T) the running hypotheses
    sums: ir.Value  # (B, W) sums of their log-probs, descending
    scores: ir.Value  # (B, K) scores of the finished hypotheses, descending; -inf for none
    finished: ir.Value  # (B x K, T) their tokens, padded
    lengths: ir.Value  # (B, K)
    done: ir.Value  # (B, 1)


TYPES = {
    "ids": ir.DataType.INT64,
    "sums": ir.DataType.DOUBLE,
    "scores": ir.DataType.DOUBLE,
    "finished": ir.DataType.INT64,
    "lengths": ir.DataType.INT64,
    "done": ir.DataType.BOOL,
}


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """Inputs that are the same in all steps, computed outside the loop."""

    batch: ir.Value  # (1,) B
    beams: ir.Value  # (1,) K
    candidates: ir.Value  # (1,) C
    kept: ir.Value  # (1,) N
    penalty: ir.Value  # (1,) float64, length penalty
    prefix: ir.Value  # (1,) number of prefix tokens of each target
    limits: ir.Value  # (B, 1) maximum number of tokens, including the prefix
    longest: ir.Value  # () largest of the limits
    forced: ir.Value | None  # (B, P + 1) prefix tokens, then NOTHING
    front: ir.Value  # (B, F) start token or prompt, NOTHING for padding
    sources: ir.Value  # (B, 1) source indices
    bans: Mapping[str, ir.Value]  # (V,) bool each


class Candidates(NamedTuple):
    """The best candidates of each source (B, N), in descending order: log-prob sums, parent beams and tokens."""

    sums: ir.Value
    parents: ir.Value
    tokens: ir.Value
    ended: ir.Value | None  # None if there is no end token


class Hypotheses(NamedTuple):
    """Hypotheses that may be finished, n per source."""

    scores: ir.Value  # (B, n), -inf for none
    ids: ir.Value  # (B x n, T + 1)
    length: ir.Value  # (1,) number of tokens, without padding


def begin(block: Block, requested: SearchInputs, width: ir.Value) -> Found:
    """Return the state before the first token, with W = `width` (1,) rows per source; only the first row is active."""
    places = block.op("Range", 0, block.op("Squeeze", width), 1)
    shape = block.op("Concat", requested.batch, requested.beams, axis=0)
    first = block.op("Where", block.op("Equal", places, 0), double(block, 0.0), double(block, LEAST))

    def empty(rows: ir.Value) -> ir.Value:
        none = block.op("Concat", block.op("Mul", requested.batch, rows), [0], axis=0)
        return block.op("ConstantOfShape", none, value=ir.tensor(np.zeros(1, np.int64)))

    return Found(
        ids=empty(width),
        sums=block.op("Expand", first, block.op("Concat", requested.batch, width, axis=0)),
        scores=block.op("ConstantOfShape", shape, value=ir.tensor(np.array([LEAST]))),
        finished=empty(requested.beams),
        lengths=block.op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, np.int64))),
        done=block.op("LessOrEqual", requested.limits, 0),
    )


def double(block: Block, number: float) -> ir.Value:
    """Return a constant in float64, the dtype of log-prob sums."""
    return block.known(number, np.float64)


def of_rows(block: Block, batch: ir.Value, width: ir.Value, values: ir.Value) -> ir.Value:
    """Repeat values of each source for its W rows: (B, n) -> (R, n)."""
    size = block.op("Shape", values, start=1, end=2)
    shape = block.op("Concat", batch, width, size, axis=0)
    every = block.op("Expand", block.op("Unsqueeze", values, [1]), shape)
    return block.op("Reshape", every, block.op("Concat", [-1], size, axis=0), allowzero=1)


class Step:
    """One step in the body of the loop, with W rows per source."""

    def __init__(self, block: Block, rules: Rules, requested: SearchInputs, number: ir.Value, width: ir.Value) -> None:
        self._block = block
        self._rules = rules
        self._requested = requested
        self._number = number  # (1,), step index
        self._width = width  # (1,)
        self._starts = block.op("Mul", requested.sources, width)  # the first row of each source: (B, 1)
        self._length = block.op("Add", number, 1)
        self._power = self._power_of(self._length)
        self._none = double(block, LEAST)
        self._pad = block.named("pad_token", np.array(rules.facts.writes.pad))

    def advance(self, found: Found, logits: ir.Value) -> tuple[Found, ir.Value, ir.Value]:
        """Logits (R, V) -> the state after the step, the parent of each row (R,), and its token (R, 1)."""
        block = self._block
        best = self._candidates(found, *self._likeliest(found, logits))
        sums, parents, tokens = self._going_on(best)
        rows = self._rows(parents)
        last = block.op("Reshape", tokens, [-1, 1])
        running = block.op("Concat", block.op("Gather", found.ids, rows, axis=0), last, axis=1)
        ended = None if best.ended is None else self._ended(found, best, best.ended)
        full = block.op("Where", block.op("Equal", self._requested.limits, self._length), sums, self._none)
        as_they_are = Hypotheses(block.op("Div", full, self._power), running, self._length)
        before = self._cut_off(found, sums, ended)
        new = [each for each in (ended, before, as_they_are) if each is not None]
        scores, finished, lengths = self._compete(found, new)
        return Found(running, sums, scores, finished, lengths, self._done(found.done, sums, scores)), rows, last

    def _likeliest(self, found: Found, logits: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the best allowed next tokens of each row: log-probs and ids, (R, C) each."""
        block = self._block
        rules = self._rules
        requested = self._requested
        shift = block.op("ReduceMax", logits, [1], keepdims=1)
        total = block.op("Log", block.op("ReduceSum", block.op("Exp", block.op("Sub", logits, shift)), [1], keepdims=1))
        places = block.op("Range", 0, block.op("Squeeze", requested.candidates), 1)
        is_best = block.op("Equal", places, 0)
        history = None
        if rules.needs_history:
            history = History(block, of_rows(block, requested.batch, self._width, requested.front), found.ids)
        if history is None or rules.repetition_penalty == 1:
            values, ids = block.ops("TopK", self._allow(logits, history), requested.candidates, count=2, axis=1)
            log_probs = block.op("Sub", block.op("Sub", values, shift), total)
        else:  # greedy search is penalised in logits, and adds up log-probs without penalty; beam search in log-probs
            own = block.op("Sub", block.op("Sub", logits, shift), total)
            is_greedy = block.op("Equal", requested.beams, 1)
            penalised = history.penalise(block.op("Where", is_greedy, logits, own), rules.repetition_penalty)
            values, ids = block.ops("TopK", self._allow(penalised, history), requested.candidates, count=2, axis=1)
            is_chosen = block.op("And", is_best, block.op("Greater", values, LEAST))
            own = block.op("Where", is_chosen, block.op("GatherElements", own, ids, axis=1), LEAST)
            log_probs = block.op("Where", is_greedy, own, values)
        token = self._forced()
        if token is None:
            return log_probs, ids
        token = of_rows(block, requested.batch, self._width, token)  # -> (R, 1)
        is_free = block.op("Less", token, 0)
        certain = block.op("Where", is_best, 0.0, LEAST)
        return block.op("Where", is_free, log_probs, certain), block.op("Where", is_free, ids, token)

    def _allow(self, scores: ir.Value, history: History | None) -> ir.Value:
        """Mask the scores (R, V) of tokens that must not come next."""
        block = self._block
        requested = self._requested
        bans = self._requested.bans
        new_tokens = block.op("Sub", self._number, requested.prefix)
        banned = [bans["never"]] if "never" in bans else []
        if "first" in bans:
            place: ir.Value | int = 0
            if self._rules.forced_bos_token_id is not None:  # it comes first, unless a prefix does
                place = block.op("Cast", block.op("Equal", requested.prefix, 0), to=INT64)
            banned.append(block.op("And", bans["first"], block.op("Equal", new_tokens, place)))
        if "ends" in bans:
            least = self._rules.min_new_tokens
            too_soon = (
                block.op("Less", new_tokens, least)
                if least
                else block.op("Less", self._number, self._rules.min_length - 1)
            )
            banned.append(block.op("And", bans["ends"], too_soon))
        for each in banned:
            scores = block.op("Where", each, LEAST, scores)
        return scores if history is None else history.forbid(scores, self._rules)

    def _forced(self) -> ir.Value | None:
        """Return the forced next token or `NOTHING`, (B, 1); None if no token is ever forced."""
        block = self._block
        rules = self._rules
        requested = self._requested
        token = None
        if requested.forced is not None:
            token = block.op("Gather", requested.forced, block.op("Min", self._number, requested.prefix), axis=1)
            if rules.forced_bos_token_id is not None:
                is_first = block.op("Equal", block.op("Add", self._number, requested.prefix), 0)
                token = block.op("Where", is_first, rules.forced_bos_token_id, token)
        if rules.forced_eos_token_id is None:
            return token
        is_last = block.op("Equal", self._length, requested.limits)
        return block.op("Where", is_last, rules.forced_eos_token_id, NOTHING if token is None else token)

    def _candidates(self, found: Found, log_probs: ir.Value, ids: ir.Value) -> Candidates:
        """Return the best candidates of each source; ties: better beam first, then more probable token."""
        block = self._block
        requested = self._requested
        shape = block.op("Concat", requested.batch, self._width, requested.candidates, axis=0)
        added = block.op("Reshape", block.op("Cast", log_probs, to=DOUBLE), shape)
        sums = block.op("Add", block.op("Unsqueeze", found.sums, [2]), added)
        flat = block.op("Concat", requested.batch, [-1], axis=0)
        # of a small vocabulary, the rows of the first step may have fewer candidates than there are beams
        rest = block.op("Mul", block.op("Sub", requested.beams, self._width), requested.candidates)
        sums = block.op("Reshape", sums, flat)
        ids = block.op("Reshape", ids, flat)
        sums = block.op("Pad", sums, self._behind(rest), self._none)
        ids = block.op("Pad", ids, self._behind(rest), 0)
        sums, order = block.ops("TopK", sums, requested.kept, count=2, axis=1)
        tokens = block.op("GatherElements", ids, order, axis=1)
        parents = block.op("Min", block.op("Div", order, requested.candidates), block.op("Sub", self._width, 1))
        ends = self._rules.facts.writes.ends
        if not ends:
            return Candidates(sums, parents, tokens, None)
        same = block.op("Equal", block.op("Unsqueeze", tokens, [2]), block.named("end_tokens", np.array(ends)))
        ended = block.op("ReduceMax", block.op("Cast", same, to=INT32), [2], keepdims=0)
        return Candidates(sums, parents, tokens, block.op("Cast", ended, to=BOOL))

    def _behind(self, count: ir.Value) -> ir.Value:
        """Return the `pads` input of Pad that appends `count` columns."""
        return self._block.op("Concat", [0, 0, 0], count, axis=0)

    def _going_on(self, best: Candidates) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the first K candidates without end token: sums (none if missing), parents and tokens, (B, K) each."""
        block = self._block
        requested = self._requested
        if best.ended is None:
            return self._first(best.sums), self._first(best.parents), self._first(best.tokens)
        places = block.op("Range", 0, block.op("Squeeze", requested.kept), 1)
        ranks = block.op("Add", places, block.op("Mul", block.op("Cast", best.ended, to=INT64), requested.kept))
        _, order = block.ops("TopK", ranks, requested.beams, count=2, axis=1, largest=0)
        sums, parents, tokens = (block.op("GatherElements", part, order, axis=1) for part in best[:3])
        dead = block.op("GatherElements", best.ended, order, axis=1)
        return block.op("Where", dead, self._none, sums), parents, tokens

    def _first(self, values: ir.Value) -> ir.Value:
        """Return the first K columns: (B, N) -> (B, K)."""
        return self._block.op("Slice", values, [0], self._requested.beams, [1])

    def _rows(self, parents: ir.Value) -> ir.Value:
        """Beams (B, K) -> their row indices (R,)."""
        return self._block.op("Reshape", self._block.op("Add", self._starts, parents), [-1])

    def _power_of(self, length: ir.Value) -> ir.Value:
        """Return the divisor of sums at a length: max(new tokens, 1) ^ length penalty."""
        new = self._block.op("Max", self._block.op("Sub", length, self._requested.prefix), 1)
        return self._block.op("Pow", self._block.op("Cast", new, to=DOUBLE), self._requested.penalty)

    def _ended(self, found: Found, best: Candidates, ended: ir.Value) -> Hypotheses:
        """Return the candidates with an end token among the first K."""
        block = self._block
        sums = self._first(block.op("Where", ended, best.sums, self._none))
        rows = self._rows(self._first(best.parents))
        last = block.op("Reshape", self._first(best.tokens), [-1, 1])
        ids = block.op("Concat", block.op("Gather", found.ids, rows, axis=0), last, axis=1)
        return Hypotheses(block.op("Div", sums, self._power), ids, self._length)

    def _cut_off(self, found: Found, sums: ir.Value, ended: Hypotheses | None) -> Hypotheses:
        """Return the hypotheses of the previous step for sources where no token is allowed and nothing has ended."""
        block = self._block
        is_stuck = self._are_none(sums)
        for scores in (found.scores, *([] if ended is None else [ended.scores])):
            is_stuck = block.op("And", is_stuck, self._are_none(scores))
        before = block.op("Where", is_stuck, found.sums, self._none)
        scores = block.op("Div", before, self._power_of(self._number))
        return Hypotheses(scores, self._padded(found.ids), self._number)

    def _are_none(self, scores: ir.Value) -> ir.Value:
        """Return whether all scores of a source are none: (B, n) -> (B, 1)."""
        return self._block.op("Equal", self._block.op("ReduceMax", scores, [1], keepdims=1), self._none)

    def _padded(self, ids: ir.Value) -> ir.Value:
        """Append a padding token: (n, T) -> (n, T + 1)."""
        block = self._block
        shape = block.op("Concat", block.op("Shape", ids, start=0, end=1), [1], axis=0)
        return block.op("Concat", ids, block.op("Expand", self._pad, shape), axis=1)

    def _compete(self, found: Found, new: list[Hypotheses]) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the K best finished hypotheses, earlier ones first in ties: scores, tokens, lengths."""
        block = self._block
        requested = self._requested
        late = block.op("Concat", *(each.scores for each in new), axis=1)
        late = block.op("Where", found.done, self._none, late)
        joined = block.op("Concat", found.scores, late, axis=1)
        scores, order = block.ops("TopK", joined, requested.beams, count=2, axis=1)
        lengths = [found.lengths, *(block.op("Expand", each.length, block.op("Shape", each.scores)) for each in new)]
        rows = block.op("Concat", requested.batch, [-1], self._length, axis=0)
        parts = [self._padded(found.finished), *(each.ids for each in new)]
        every = block.op("Concat", *(block.op("Reshape", ids, rows) for ids in parts), axis=1)  # -> (B, all, T + 1)
        flat = block.op("Reshape", every, block.op("Concat", [-1], self._length, axis=0))
        width = block.op("Shape", joined, start=1, end=2)
        places = block.op("Add", block.op("Mul", requested.sources, width), order)
        finished = block.op("Gather", flat, block.op("Reshape", places, [-1]), axis=0)
        return scores, finished, block.op("GatherElements", block.op("Concat", *lengths, axis=1), order, axis=1)

    def _done(self, before: ir.Value, sums: ir.Value, scores: ir.Value) -> ir.Value:
        """Return which sources are done, (B, 1); in greedy search, those with a finished hypothesis."""
        block = self._block
        rules = self._rules
        requested = self._requested
        best = block.op("ReduceMax", sums, [1], keepdims=1)
        worst = block.op("ReduceMin", scores, [1], keepdims=1)
        full = block.op("Greater", worst, self._none)
        if rules.early_stopping is not True:
            power = self._power
            if rules.early_stopping == "never":
                is_patient = block.op("Greater", requested.penalty, double(block, 0.0))
                power = block.op("Where", is_patient, self._power_of(requested.limits), power)
            wins = block.op("GreaterOrEqual", worst, block.op("Div", best, power))
            full = block.op("And", full, block.op("Or", wins, block.op("Equal", requested.beams, 1)))
        for reason in (full, block.op("Equal", best, self._none), block.op("Equal", requested.limits, self._length)):
            before = block.op("Or", before, reason)
        return before
