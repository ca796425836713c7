"""Score given targets with teacher forcing: logits and log-probs of each token.

Shape comments: B targets, R of them not yet at their end, T tokens, N places in targets, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from txport.errors import TextError
from txport.models.facts import Facts
from txport.runtimes.base import Floats, Ints, OnePassRuntime, Runtime, log_softmax
from txport.runtimes.inputs import Sources, batch
from txport.search.generate import Ids, first_tokens, prompts_of, start
from txport.search.options import Found


def score(
    runtime: Runtime,
    sources: Sources,
    targets: Ids,
    facts: Facts,
    length_penalty: float = 1.0,
    *,
    by_step: bool = False,
) -> list[Found]:
    """Score one batch of sources and targets, end tokens included; return each target with log-probs of its tokens.

    The score is sum(log p) / length^`length_penalty`. `by_step` computes it with the steps of a search, where a runtime
    could take one pass, which is faster. Raises `TextError` for invalid targets.
    """
    log_probs: list[list[float]] = [[] for _ in targets]
    for rows, tokens, values in _forced(runtime, sources, targets, facts, by_step):
        chosen = values[np.arange(len(rows)), tokens][:, None]
        for row, log_prob in zip(rows.tolist(), log_softmax(values, chosen)[:, 0].tolist(), strict=True):
            log_probs[row].append(log_prob)
    return [
        Found(tuple(target), float(np.sum(parts)) / float(len(target)) ** length_penalty, tuple(parts))
        for target, parts in zip(targets, log_probs, strict=True)
    ]


def logits(runtime: Runtime, sources: Sources, targets: Ids, facts: Facts, *, by_step: bool = False) -> list[Floats]:
    """Return the logits before each token of each target, as `score` computes them: (T, V) per target."""
    kept: list[list[Floats]] = [[] for _ in targets]
    for rows, _, values in _forced(runtime, sources, targets, facts, by_step):
        for row, each in zip(rows.tolist(), values, strict=True):
            kept[row].append(each.copy())
    return [np.stack(each) for each in kept]


def has_one_pass(runtime: Runtime, facts: Facts) -> bool:
    """Return whether a runtime computes the logits of whole targets in one pass, not with a step for each token."""
    return facts.is_causal and isinstance(runtime, OnePassRuntime)


def _forced(
    runtime: Runtime, sources: Sources, targets: Ids, facts: Facts, by_step: bool
) -> Iterator[tuple[Ints, Ints, Floats]]:
    if by_step or not has_one_pass(runtime, facts):
        return teacher_forced_logits(runtime, sources, targets, facts)
    return _in_one_pass(cast(OnePassRuntime, runtime), sources, targets, facts)


def _in_one_pass(
    runtime: OnePassRuntime, prompts: Sources, targets: Ids, facts: Facts
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield rows of targets (N,), tokens of them (N,), and the logits before these (N, V): of each row in order."""
    require_targets(prompts, targets, facts)
    texts = [[*prompt, *target[:-1]] for prompt, target in zip(prompts, targets, strict=True)]
    first = np.array([len(prompt) - 1 for prompt in prompts])
    ids, lengths = batch(texts, facts)
    order = np.argsort(lengths, kind="stable")  # texts of about the same length run together
    for rows, places, values in runtime.forward(ids[order], lengths[order], first[order]):
        rows = order[rows]
        pairs = zip(rows.tolist(), (places - first[rows]).tolist(), strict=True)
        yield rows, np.array([targets[row][at] for row, at in pairs]), values


def teacher_forced_logits(
    runtime: Runtime, sources: Sources, targets: Ids, facts: Facts
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield per step: the targets that have not ended (R,), their next tokens (R,), and the logits (R, V)."""
    require_targets(sources, targets, facts)
    lengths = np.array([len(target) for target in targets])
    wanted = np.zeros((len(targets), lengths.max()), np.int64)
    for number, target in enumerate(targets):
        wanted[number, : len(target)] = target
    before = [len(prompt) - 1 for prompt in prompts_of(sources, facts)] or [0]
    state = start(runtime, sources, facts, int((lengths + before).max()))
    rows = np.arange(len(targets))
    last = first_tokens(sources, facts)
    for place in range(int(lengths.max())):
        if place and len(kept := np.flatnonzero(lengths[rows] > place)) < len(rows):
            state = runtime.select(state, kept)
            rows = rows[kept]
            last = last[kept]
        scores, state = runtime.step(last, state)
        last = wanted[rows, place]
        yield rows, last, scores.values


def require_targets(sources: Sources, targets: Ids, facts: Facts) -> None:
    """Raise `TextError` for targets that are empty, too long, or not in the vocabulary."""
    for prompt, target in zip(prompts_of(sources, facts), targets, strict=False):
        if not len(prompt):
            raise TextError("a target needs a prompt of at least one token before it")
        if len(prompt) + len(target) > facts.writes.longest:
            what = f"a prompt of {len(prompt)} tokens and a target of {len(target)}"
            raise TextError(f"{what} exceed the model's longest sequence, {facts.writes.longest}; shorten one of them")
    for target in targets:
        if not 1 <= len(target) <= facts.writes.longest:
            raise TextError(f"a target must have 1 to {facts.writes.longest} tokens, got {len(target)}")
        if not 0 <= min(target) <= max(target) < facts.writes.size:
            limit = f"0 to {facts.writes.size - 1}"
            raise TextError(f"a target must lie in the vocabulary, {limit}; got {min(target)} to {max(target)}")
