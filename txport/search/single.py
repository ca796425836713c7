"""Generation with a graph that contains the search; its results are those of `generate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txport.errors import UnsupportedError, quoted
from txport.models.facts import Facts
from txport.models.options import needing
from txport.runtimes.inputs import Source, Sources, batch
from txport.runtimes.single import SingleRuntime, Targets
from txport.search.generate import Ids, prompts_of, require_fit, require_room
from txport.search.options import Found, SearchOptions

ASKED = ("beams", "nbest", "length_penalty", "max_new_tokens", "max_length", "scores")  # options that a call can choose


def generate_at_once(
    runtime: SingleRuntime[object], sources: Sources, options: SearchOptions, prefixes: Ids | None = None
) -> list[list[Found]]:
    """Like `generate`, in one run of the graph per length of prefixes and number of new tokens; without their scores.

    Raises `UnsupportedError` for options that differ from those of the graph.
    """
    facts = runtime.facts
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    require_built_in(runtime, options, begun=bool(prefixes) and all(map(len, prefixes)))
    require_fit(prefixes, facts, options)
    for prompt in prompts_of(sources, facts):
        require_room(prompt, facts, options)
    found: dict[int, list[Found]] = {}
    sizes = [
        (len(prefix), longest_new(options, facts, source, prefix))
        for source, prefix in zip(sources, prefixes, strict=True)
    ]
    for size, most in sorted(set(sizes)):
        rows = [row for row, each in enumerate(sizes) if each == (size, most)]
        begin = np.array([prefixes[row] for row in rows], np.int64).reshape(len(rows), size)
        together, lengths = batch([sources[row] for row in rows], facts)
        how: dict[str, Any] = {"beams": options.beams, "length_penalty": options.length_penalty}
        targets = runtime.search(together, lengths, begin, max_new_tokens=most, **how)
        found |= {row: _found(targets, at, prefixes[row], options.nbest) for at, row in enumerate(rows)}
    return [found[row] for row in range(len(sources))]


def longest_new(options: SearchOptions, facts: Facts, source: Source, prefix: Sequence[int]) -> int:
    """Return the maximum number of new tokens after a prompt or a prefix; the graph stops at the longest sequence."""
    if options.max_new_tokens is not None:
        return options.max_new_tokens
    longest = facts.writes.longest
    if options.max_length is None:
        return longest
    return min(longest, options.max_length - facts.start_tokens) - len(source if facts.is_causal else prefix)


def built_in(defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of a bundle that are built into its graph, which does not sample."""
    return {name: value for name, value in defaults.items() if name not in (*ASKED, *needing("do_sample"))}


def require_built_in(runtime: SingleRuntime[object], options: SearchOptions, *, begun: bool = False) -> None:
    """Raise `UnsupportedError` for an option whose value differs from the one built into the graph.

    If all targets have a prefix (`begun`), it replaces a forced first token.
    """
    idle = {"early_stopping", "patience"} if options.beams == 1 else set()
    idle |= {"forced_bos_token_id"} if begun and options.forced_bos_token_id is None else set()
    known = {**built_in(runtime.defaults), "eos_token_id": runtime.facts.writes.ends}
    for entry in dataclasses.fields(SearchOptions):
        if entry.name in (*ASKED, *idle):
            continue
        value = getattr(options, entry.name)
        fixed = _plain(known.get(entry.name, entry.default))
        if _plain(value) != fixed and not (entry.name == "eos_token_id" and value is None):
            what = f"the single graph searches with {entry.name} {quoted(fixed)}, as it was exported"
            raise UnsupportedError(f"{what}, got {quoted(value)}; leave it out, or search without the single graph")


def _plain(value: object) -> object:
    """Convert sequences of any type to tuples."""
    return tuple(map(_plain, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _found(targets: Targets, row: int, prefix: Sequence[int], nbest: int) -> list[Found]:
    """Return the hypotheses of one source, prefix included."""
    found = []
    for place in range(min(nbest, targets.scores.shape[1])):
        score = float(targets.scores[row, place])
        length = int(targets.lengths[row, place])
        if score != -np.inf:
            tokens = targets.ids[row, place, :length].tolist()
            found.append(Found((*prefix, *tokens), score))
    return found
