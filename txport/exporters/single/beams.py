"""One step of beam search in standard operators, for all sources at once; with one beam it is greedy search.

It is `search/beams.py`, to the order of equals: which hypotheses go on, which have ended, and when a source is done.
Letters: B sources, K beams, R rows (B x K, those of a source side by side), V vocabulary, C candidates a row, N of a
source, T tokens so far.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from txport.exporters.single.block import Block
from txport.exporters.single.history import LEAST, History
from txport.exporters.single.rules import Rules

INT64, DOUBLE, FLOAT, BOOL, INT32 = (
    int(each) for each in (ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT32)
)
TYPES = (ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.INT64, ir.DataType.BOOL)
NOTHING = -1  # in place of a token


class Found(NamedTuple):
    """What the loop carries of a search: in `TYPES`."""

    ids: ir.Value  # (R, T) the running hypotheses
    sums: ir.Value  # (B, K) and their log-probs together, the best first
    scores: ir.Value  # (B, K) of the finished hypotheses, in falling order; -inf where there is none
    finished: ir.Value  # (R, T) their tokens, padded
    lengths: ir.Value  # (B, K)
    done: ir.Value  # (B, 1)


@dataclass(frozen=True)
class Asked:
    """What does not change from step to step, computed around the loop."""

    batch: ir.Value  # (1,) B
    beams: ir.Value  # (1,) K
    rows: ir.Value  # (1,) R
    penalty: ir.Value  # (1,) float64, the power of the length in a score
    prefix: ir.Value  # (1,) how many tokens each target begins with
    limits: ir.Value  # (B, 1) how many tokens it may have, the prefix counted
    forced: ir.Value | None  # (B, P + 1) what it begins with, and NOTHING
    front: ir.Value  # (R, F) the start token or the prompt, NOTHING for padding
    candidates: ir.Value  # (1,) C
    kept: ir.Value  # (1,) N
    starts: ir.Value  # (B, 1) the first row of each source
    longest: ir.Value  # (1,) of the limits
    bans: dict[str, ir.Value]  # (V,) bool each

    def __post_init__(self) -> None:
        assert all(getattr(self, each.name) is not None for each in fields(self) if each.name != "forced")


class Candidates(NamedTuple):
    """Of all rows of a source (B, N), the best first: their sums, the beam that each comes from, and its token."""

    sums: ir.Value
    parents: ir.Value
    tokens: ir.Value
    ended: ir.Value | None


def begin(block: Block, asked: Asked, done: ir.Value) -> Found:
    """The state before the first token; all beams of a source but the first are none yet."""
    places = block.op("Range", 0, block.op("Squeeze", asked.beams), 1)
    shape = block.op("Concat", asked.batch, asked.beams, axis=0)
    first = block.op("Where", block.op("Equal", places, 0), known(block, 0.0), known(block, LEAST))
    none = block.op("Concat", asked.rows, [0], axis=0)
    empty = block.op("ConstantOfShape", none, value=ir.tensor(np.zeros(1, np.int64)))
    return Found(
        ids=empty,
        sums=block.op("Expand", first, shape),
        scores=block.op("ConstantOfShape", shape, value=ir.tensor(np.array([LEAST]))),
        finished=empty,
        lengths=block.op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, np.int64))),
        done=done,
    )


def known(block: Block, number: float) -> ir.Value:
    """A constant in float64, in which scores are added up."""
    return block.known(number, np.float64)


def advance(
    block: Block, rules: Rules, asked: Asked, found: Found, logits: ir.Value, step: ir.Value
) -> tuple[Found, ir.Value, ir.Value]:
    """Logits (R, V) of step (1,) -> the search after it, which row each row goes on from (R,), and its token (R, 1)."""
    log_probs, ids = likeliest(block, rules, asked, found, logits, step)
    best = _candidates(block, rules, asked, found, log_probs, ids)
    sums, parents, tokens = _going_on(block, asked, best)
    rows = _rows(block, asked, parents)
    last = block.op("Reshape", tokens, [-1, 1])
    running = block.op("Concat", block.op("Gather", found.ids, rows, axis=0), last, axis=1)
    length = block.op("Add", step, 1)
    power = _power(block, asked, length)
    ended = _ended(block, asked, found, best, power)
    after = found._replace(ids=running, sums=sums)
    scores, finished, lengths = _compete(block, rules, asked, found, after, ended, step, power)
    done = _done(block, rules, asked, found.done, sums, scores, length, power)
    return Found(running, sums, scores, finished, lengths, done), rows, last


def likeliest(
    block: Block, rules: Rules, asked: Asked, found: Found, logits: ir.Value, step: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The best tokens of each row that may come next: log-probs and ids (R, C)."""
    shift = block.op("ReduceMax", logits, [1], keepdims=1)
    total = block.op("Log", block.op("ReduceSum", block.op("Exp", block.op("Sub", logits, shift)), [1], keepdims=1))
    places = block.op("Range", 0, block.op("Squeeze", asked.candidates), 1)
    is_best = block.op("Equal", places, 0)
    history = History(block, asked.front, found.ids) if rules.looks_back else None
    if history is None or rules.repetition_penalty == 1:
        allowed = _allow(block, rules, asked, history, logits, step)
        values, ids = block.ops("TopK", allowed, asked.candidates, count=2, axis=1)
        log_probs = block.op("Sub", block.op("Sub", values, shift), total)
    else:  # greedy search is penalised in logits, and adds up log-probs without penalty; beam search in log-probs
        own = block.op("Sub", block.op("Sub", logits, shift), total)
        is_greedy = block.op("Equal", asked.beams, 1)
        penalised = history.penalise(block.op("Where", is_greedy, logits, own), rules.repetition_penalty)
        allowed = _allow(block, rules, asked, history, penalised, step)
        values, ids = block.ops("TopK", allowed, asked.candidates, count=2, axis=1)
        is_chosen = block.op("And", is_best, block.op("Greater", values, LEAST))
        own = block.op("Where", is_chosen, block.op("GatherElements", own, ids, axis=1), LEAST)
        log_probs = block.op("Where", is_greedy, own, values)
    token = _forced(block, rules, asked, step)
    if token is None:
        return log_probs, ids
    shape = block.op("Concat", asked.batch, asked.beams, axis=0)
    token = block.op("Reshape", block.op("Expand", token, shape), [-1, 1])  # -> (R, 1)
    is_free = block.op("Less", token, 0)
    certain = block.op("Where", is_best, 0.0, LEAST)
    return block.op("Where", is_free, log_probs, certain), block.op("Where", is_free, ids, token)


def _allow(
    block: Block, rules: Rules, asked: Asked, history: History | None, logits: ir.Value, step: ir.Value
) -> ir.Value:
    """Logits without those of tokens that must not come next."""
    said = block.op("Sub", step, asked.prefix)
    banned = [asked.bans["never"]] if "never" in asked.bans else []
    if "first" in asked.bans:
        place: ir.Value | int = 0
        if rules.forced_bos_token_id is not None:  # it comes first, unless a prefix does
            place = block.op("Cast", block.op("Equal", asked.prefix, 0), to=INT64)
        banned.append(block.op("And", asked.bans["first"], block.op("Equal", said, place)))
    if "ends" in asked.bans:
        banned.append(block.op("And", asked.bans["ends"], block.op("Less", said, rules.min_new_tokens)))
    for each in banned:
        logits = block.op("Where", each, LEAST, logits)
    return logits if history is None else history.forbid(logits, rules)


def _forced(block: Block, rules: Rules, asked: Asked, step: ir.Value) -> ir.Value | None:
    """The one token that may come next, or `NOTHING`: (B, 1); None where no token is ever forced."""
    token = None
    if asked.forced is not None:
        token = block.op("Gather", asked.forced, block.op("Min", step, asked.prefix), axis=1)  # -> (B, 1)
        if rules.forced_bos_token_id is not None:
            is_first = block.op("Equal", block.op("Add", step, asked.prefix), 0)
            token = block.op("Where", is_first, rules.forced_bos_token_id, token)
    if rules.forced_eos_token_id is None:
        return token
    is_last = block.op("Equal", block.op("Add", step, 1), asked.limits)
    return block.op("Where", is_last, rules.forced_eos_token_id, NOTHING if token is None else token)


def _candidates(
    block: Block, rules: Rules, asked: Asked, found: Found, log_probs: ir.Value, ids: ir.Value
) -> Candidates:
    """The best of all rows of each source; of equals, those of the better beam, then those of the smaller token."""
    shape = block.op("Concat", asked.batch, asked.beams, asked.candidates, axis=0)
    added = block.op("Reshape", block.op("Cast", log_probs, to=DOUBLE), shape)
    sums = block.op("Add", block.op("Unsqueeze", found.sums, [2]), added)
    flat = block.op("Concat", asked.batch, [-1], axis=0)
    sums, order = block.ops("TopK", block.op("Reshape", sums, flat), asked.kept, count=2, axis=1)
    tokens = block.op("GatherElements", block.op("Reshape", ids, flat), order, axis=1)
    parents = block.op("Div", order, asked.candidates)
    ends = rules.facts.writes.ends
    if not ends:
        return Candidates(sums, parents, tokens, None)
    same = block.op("Equal", block.op("Unsqueeze", tokens, [2]), list(ends))
    ended = block.op("ReduceMax", block.op("Cast", same, to=INT32), [2], keepdims=0)
    return Candidates(sums, parents, tokens, block.op("Cast", ended, to=BOOL))


def _going_on(block: Block, asked: Asked, best: Candidates) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The first K candidates that have not ended: sums, parents and tokens (B, K); those that had to are none."""
    if best.ended is None:
        first = (_first(block, asked, part) for part in (best.sums, best.parents, best.tokens))
        return tuple(first)  # type: ignore[return-value]
    places = block.op("Range", 0, block.op("Squeeze", asked.kept), 1)
    ranks = block.op("Add", places, block.op("Mul", block.op("Cast", best.ended, to=INT64), asked.kept))
    _, order = block.ops("TopK", ranks, asked.beams, count=2, axis=1, largest=0)
    sums, parents, tokens = (
        block.op("GatherElements", part, order, axis=1) for part in (best.sums, best.parents, best.tokens)
    )
    dead = block.op("GatherElements", best.ended, order, axis=1)
    return block.op("Where", dead, known(block, LEAST), sums), parents, tokens


def _first(block: Block, asked: Asked, values: ir.Value) -> ir.Value:
    """(B, N) -> (B, K)."""
    return block.op("Slice", values, [0], asked.beams, [1])


def _rows(block: Block, asked: Asked, parents: ir.Value) -> ir.Value:
    """Beams (B, K) -> the rows that they are: (R,)."""
    return block.op("Reshape", block.op("Add", asked.starts, parents), [-1])


def _power(block: Block, asked: Asked, length: ir.Value) -> ir.Value:
    """What sums at a length are divided by: its new tokens, at least one, to the power of the penalty."""
    new = block.op("Max", block.op("Sub", length, asked.prefix), 1)
    return block.op("Pow", block.op("Cast", new, to=DOUBLE), asked.penalty)


class Ended(NamedTuple):
    """The hypotheses that end in this step: scores (B, K) and tokens (R, T + 1)."""

    scores: ir.Value
    ids: ir.Value


def _ended(block: Block, asked: Asked, found: Found, best: Candidates, power: ir.Value) -> Ended | None:
    """Those of the first K candidates that have."""
    if best.ended is None:
        return None
    sums = block.op("Where", best.ended, best.sums, known(block, LEAST))
    scores = block.op("Div", _first(block, asked, sums), power)
    rows = _rows(block, asked, _first(block, asked, best.parents))
    last = block.op("Reshape", _first(block, asked, best.tokens), [-1, 1])
    return Ended(scores, block.op("Concat", block.op("Gather", found.ids, rows, axis=0), last, axis=1))


def _compete(
    block: Block,
    rules: Rules,
    asked: Asked,
    found: Found,
    after: Found,
    ended: Ended | None,
    step: ir.Value,
    power: ir.Value,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The K best finished hypotheses: of those before, those that ended, and those that are cut off.

    Where no token may follow and nothing has ended, the hypotheses of the step before stand as they are; where they
    are as long as may be, those of this step do.
    """
    none, length = known(block, LEAST), block.op("Add", step, 1)
    pad = block.op("Expand", rules.facts.writes.pad, block.op("Concat", asked.rows, [1], axis=0))
    is_stuck = block.op("Equal", block.op("ReduceMax", after.sums, [1], keepdims=1), none)
    for scores in (found.scores, *([] if ended is None else [ended.scores])):
        nothing = block.op("Equal", block.op("ReduceMax", scores, [1], keepdims=1), none)
        is_stuck = block.op("And", is_stuck, nothing)
    before = block.op("Where", is_stuck, found.sums, none)
    full = block.op("Where", block.op("Equal", asked.limits, length), after.sums, none)
    new = [
        *([] if ended is None else [(ended.scores, ended.ids, length)]),
        (block.op("Div", before, _power(block, asked, step)), block.op("Concat", found.ids, pad, axis=1), step),
        (block.op("Div", full, power), after.ids, length),
    ]
    late = block.op("Concat", *(scores for scores, _, _ in new), axis=1)
    late = block.op("Where", found.done, none, late)
    shape = block.op("Shape", found.scores)
    joined = block.op("Concat", found.scores, late, axis=1)
    lengths = block.op("Concat", found.lengths, *(block.op("Expand", each, shape) for _, _, each in new), axis=1)
    scores, order = block.ops("TopK", joined, asked.beams, count=2, axis=1)
    old = block.op("Concat", found.finished, pad, axis=1)
    rows = block.op("Concat", asked.batch, asked.beams, [-1], axis=0)
    parts = [block.op("Reshape", ids, rows) for ids in (old, *(ids for _, ids, _ in new))]
    together = block.op("Concat", *parts, axis=1)  # -> (B, n x K, T + 1)
    flat = block.op("Reshape", together, block.op("Concat", [-1], length, axis=0))
    places = block.op("Add", block.op("Mul", asked.starts, len(parts)), order)
    finished = block.op("Gather", flat, block.op("Reshape", places, [-1]), axis=0)
    return scores, finished, block.op("GatherElements", lengths, order, axis=1)


def _done(
    block: Block,
    rules: Rules,
    asked: Asked,
    before: ir.Value,
    sums: ir.Value,
    scores: ir.Value,
    length: ir.Value,
    power: ir.Value,
) -> ir.Value:
    """The sources that are done: (B, 1); greedy ones when something has ended."""
    none = known(block, LEAST)
    best = block.op("ReduceMax", sums, [1], keepdims=1)
    worst = block.op("ReduceMin", scores, [1], keepdims=1)
    full = block.op("Greater", worst, none)
    if rules.early_stopping is not True:
        if rules.early_stopping == "never":
            patient = block.op("Greater", asked.penalty, known(block, 0.0))
            power = block.op("Where", patient, _power(block, asked, asked.limits), power)
        wins = block.op("GreaterOrEqual", worst, block.op("Div", best, power))
        wins = block.op("Or", wins, block.op("Equal", asked.beams, 1))
        full = block.op("And", full, wins)
    done = block.op("Or", before, full)
    done = block.op("Or", done, block.op("Equal", best, none))
    return block.op("Or", done, block.op("Equal", asked.limits, length))
