"""One round of a benchmark for each task: times by phase, and the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from txport.audio.spectrogram import drawn_features
from txport.bench.plan import Protocol as Protocol
from txport.errors import UnsupportedError
from txport.models.audio import Features
from txport.models.facts import Facts, Task
from txport.runtimes.base import EncoderRuntime, Inputs, Ints, QueuedRuntime, Runtime
from txport.runtimes.inputs import lengths_of
from txport.search.generate import first_tokens

Now = Callable[[], float]  # a clock, in seconds


def draw_source(facts: Facts, protocol: Protocol) -> Inputs:
    """Return random sources (B, S) with a fixed seed, or features.

    The only special tokens are those that the model expects before and after a source, as far as there is room; those
    before come first.
    """
    if isinstance(facts.reads, Features):
        return np.stack([drawn_features(facts.reads, number) for number in range(protocol.batch)])
    special = facts.writes.special
    size = facts.source_ids
    allowed = [id_ for id_ in range(size) if id_ not in special] or [min((*facts.writes.ends, 0)[0], size - 1)]
    source: Ints = np.random.default_rng(0).choice(allowed, (protocol.batch, protocol.source)).astype(np.int64)
    before = facts.reads.before[: protocol.source]
    after = facts.reads.after[: protocol.source - len(before)]
    source[:, : len(before)] = before
    source[:, protocol.source - len(after) :] = after
    return source


def generate(
    runtime: Runtime, source: Inputs, facts: Facts, protocol: Protocol, now: Now
) -> tuple[dict[str, float], Ints]:
    """Encode, then run `tokens` steps, even after end tokens; return milliseconds and rates by phase, and the tokens.

    Greedy search takes the most probable token and does not compute log-probs. `now` is read between two phases.
    """
    first = first_tokens(source, facts)
    lengths = lengths_of(source, facts)
    longest = protocol.tokens + facts.before_steps(protocol.source)
    beams = protocol.beams
    clock = [now()]
    state = runtime.start(source, lengths, max_length=longest)
    if isinstance(runtime, QueuedRuntime):  # wait until the device has encoded
        runtime.synchronize()
    clock.append(now())
    how: dict[str, Any] = {"top": 1, "normalise": False} if beams == 1 else {"top": 2 * beams}
    scores, state = runtime.step(first, state, **how)
    assert scores.ids is not None
    tokens = scores.ids[:, :beams].ravel()
    if beams > 1:
        state = runtime.select(state, np.repeat(np.arange(len(source)), beams))
    clock.append(now())
    taken = [tokens]
    turned = np.arange(len(tokens)).reshape(-1, beams)[:, ::-1].ravel()  # all beams are reordered in every step
    for _ in range(protocol.tokens - 1):
        scores, state = runtime.step(tokens, state, **how)
        assert scores.ids is not None
        tokens = scores.ids[:, 0]
        if beams > 1:
            state = runtime.select(state, turned)
            tokens = tokens[turned]
        taken.append(tokens)
    clock.append(now())
    times = times_of(protocol, *np.diff(clock), is_causal=facts.is_causal)
    return times, np.stack(taken)


def times_of(protocol: Protocol, before: float, first: float, further: float, *, is_causal: bool) -> dict[str, float]:
    """Return the figures of one round from the seconds of its three phases."""
    steps = {"first token": 1e3 * first, "further token": 1e3 * further / (protocol.tokens - 1)}
    if not is_causal:
        every = protocol.batch * protocol.tokens / (before + first + further)
        return {"encode": 1e3 * before, **steps, "tokens": every}
    prompts = protocol.batch * protocol.source
    added = protocol.batch * (protocol.tokens - 1)
    rates = {"prompt tokens": prompts / (before + first), "new tokens": added / further}
    return {"prefill": 1e3 * before, **steps, **rates}


def encode(
    runtime: Runtime, source: Inputs, facts: Facts, protocol: Protocol, now: Now
) -> tuple[dict[str, float], Ints]:
    """Encode all texts in one batch; return milliseconds and rates, and the argmax of each output vector."""
    assert isinstance(runtime, EncoderRuntime)
    begun = now()
    found = runtime.infer(source, lengths_of(source, facts))
    taken = now() - begun
    rates = {"texts": len(source) / taken, "tokens": source.size / taken}
    return {"encode": 1e3 * taken, **rates}, found[facts.outputs[-1].name].argmax(axis=-1)


class Work(NamedTuple):
    """The benchmark of a task: a round, the units of its figures, and the options that it does not support."""

    round: Callable[[Runtime, Inputs, Facts, Protocol, Now], tuple[dict[str, float], Ints]]
    units: dict[str, str]
    idle: tuple[str, ...] = ()


UNITS = {
    "load": "ms",  # imports, hashes, sessions
    "encode": "ms",
    "first token": "ms",  # the first decoder step, with the source's keys and values
    "further token": "ms",  # one step; with beams, reordering included
    "tokens": "1/s",  # target tokens of all rows / total time, encode included
    "peak memory": "MB",  # of the process
}
CAUSAL_UNITS = {
    "load": "ms",
    "prefill": "ms",  # each prompt, on the portable and the cpu target with its last token
    "first token": "ms",  # the step after the prompts, which reads their last tokens if prefill has not
    "further token": "ms",
    "prompt tokens": "1/s",  # of all rows, until the first new token is known
    "new tokens": "1/s",  # of all rows, from the second on
    "peak memory": "MB",
}
ENCODER_UNITS = {
    "load": "ms",
    "encode": "ms",  # all texts, all outputs
    "texts": "1/s",
    "tokens": "1/s",  # of all texts
    "peak memory": "MB",
}
WORK: dict[Task, Work] = {
    "seq2seq": Work(generate, UNITS),
    "causal": Work(generate, CAUSAL_UNITS),
    "encode": Work(encode, ENCODER_UNITS, ("beams", "tokens")),
}


def require_protocol(facts: Facts, protocol: Protocol) -> None:
    """Raise `UnsupportedError` for settings that a model does not support."""
    longest = facts.writes.longest
    usual = Protocol()
    idle = [name for name in WORK[facts.task].idle if getattr(protocol, name) != getattr(usual, name)]
    if idle:
        raise UnsupportedError(f"{idle[0]} needs a generating model; this model is encoder-only: remove {idle[0]}")
    if isinstance(facts.reads, Features) and protocol.source != usual.source:
        what = f"this model always reads {facts.reads.frames} frames of features: remove source"
        raise UnsupportedError(f"source needs a model that reads text; {what}")
    if not facts.generates:
        if protocol.source > longest:
            raise UnsupportedError(
                f"source must not exceed the model's longest sequence, {longest}; got {protocol.source}"
            )
        return
    got = f"{longest}; got {protocol.source} and {protocol.tokens}"
    if facts.is_causal and protocol.source + protocol.tokens > longest:
        raise UnsupportedError(f"source and tokens together must not exceed the model's longest sequence, {got}")
    if max(protocol.source if facts.masks_source else 0, protocol.tokens) > longest:
        raise UnsupportedError(f"source and tokens must not exceed the model's longest sequence, {got}")
    if protocol.beams > (words := facts.writes.size):
        raise UnsupportedError(f"beams must not exceed the model's target vocabulary, {words}; got {protocol.beams}")
