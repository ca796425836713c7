"""Metadata of each graph, so that a program that runs the graph needs no other file.

Values are plain text, which is easy to read in C: decimal numbers, separated by spaces. Only labels and the
checkpoint's generation settings are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from txport.audio.targets import prompt
from txport.bundles.manifest import Manifest
from txport.errors import quoted
from txport.models.audio import TASKS, Features, Speech
from txport.models.facts import Facts, Tokens
from txport.targets.ports import Graph

PREFIX = "txport."
ENGLISH = "en"


def metadata(manifest: Manifest, role: str) -> dict[str, str]:
    """Return the metadata of one graph of a bundle; docs/embedding.md lists the keys."""
    facts = manifest.facts
    values: dict[str, object] = {
        "format": manifest.format,
        "target": manifest.target,
        "precision": manifest.precision,
        "checkpoint": manifest.checkpoint["sha256"],
        "architecture": manifest.architecture,
        "task": facts.task,
        "role": role,
        **dict(_source(facts)),
        **dict(_target(facts)),
        **dict(_state(manifest.graphs[role])),
        "ability": facts.ability,
        "windows": facts.windows or None,
        "labels": json.dumps(facts.labels) if facts.labels else None,
        "function_to_apply": facts.function_to_apply,
        "generation": json.dumps(manifest.generation, sort_keys=True) if manifest.generation else None,
    }
    return {f"{PREFIX}{name}": _text(value) for name, value in values.items() if value is not None}


def contradictions(found: Mapping[str, str], manifest: Manifest, role: str) -> Iterator[str]:
    """Yield the differences between the metadata of a graph and the manifest of its bundle."""
    expected = metadata(manifest, role)
    for name in (name for name in expected if found.get(name, expected[name]) != expected[name]):
        yield f"{quoted(found[name])} for {name}, the manifest {quoted(expected[name])}"


def target_start(facts: Facts) -> tuple[int, ...]:
    """Return the first tokens of the targets of a seq2seq model: the start token and the default speech prompt.

    If a speech model has no default language, its prompt uses English, or otherwise its first language.
    """
    assert facts.writes.start is not None
    return (facts.writes.start, *(_spoken(facts.speech) if facts.speech else ()))


def _spoken(speech: Speech) -> list[int]:
    language = ENGLISH if ENGLISH in speech.languages else next(iter(speech.languages), None)
    return prompt(speech, speech.language or language, speech.task or TASKS[0], times=False)


def _source(facts: Facts) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of the source, if there is one."""
    source = facts.source
    if isinstance(source, Tokens):
        yield "source_vocabulary", source.size
        yield "source_longest", source.longest
        yield "source_pad", source.pad
        yield "source_before", source.before
        yield "source_after", source.after
        yield "source_mask", source.mask
    elif isinstance(source, Features):
        yield "source_places", source.longest
        yield "mel_bins", source.size
        yield "frames", source.frames
        yield "sampling_rate", source.sampling_rate
        yield "hop_length", source.hop_length
        yield "n_fft", source.n_fft


def _target(facts: Facts) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of the target, if there is one."""
    target = facts.target
    if target is None:
        return
    yield "vocabulary", target.size
    yield "longest", target.longest
    yield "pad", target.pad
    yield "ends", target.ends
    if facts.is_encoder_decoder:
        yield "start", target_start(facts)
    else:
        yield "before", target.before
        yield "after", target.after
    if facts.speech is not None:
        yield "languages", facts.speech.languages or None
        yield "language_ids", facts.speech.language_ids or None
        for name in (*TASKS, "no_timestamps", "previous"):
            yield name, getattr(facts.speech, name)


def _state(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the name prefixes of outputs (`present`) that become inputs (`past`) of the next run."""
    for present, past in list(graph.becomes.items())[:1]:
        yield "present", present.partition(".")[0] + "."
        yield "past", past.partition(".")[0] + "."


def _text(value: object) -> str:
    """Format a value as plain text; items of an iterable are separated by spaces."""
    return " ".join(map(str, value)) if isinstance(value, Iterable) and not isinstance(value, str) else str(value)
