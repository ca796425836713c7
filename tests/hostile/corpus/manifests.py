"""`txport.json`: whether it is JSON at all, and sizes that no machine can hold."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, provers, readers, refused
from tests.hostile.corpus.values import DEEP, DIGITS, HUGE_NUMBER, ZEROS, spell
from txport.bundles.reading import read_manifest
from txport.models.facts import CrossAttention, Facts, StateTensor
from txport.models.names import MANIFEST
from txport.system.documents import write_json

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "null": lambda whole: b"null",
    "a list": lambda whole: b"[]",
    "an empty object": lambda whole: b"{}",
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "more after its end": lambda whole: whole + b"{}",
    "UTF-16": lambda whole: whole.decode().encode("utf-16"),
    "binary": lambda whole: bytes(range(256)) * 40,
    "a list of 200,000 levels": lambda whole: b"[" * DEEP,
    "an object of 200,000 levels": lambda whole: b'{"format":' * DEEP,
    "an endless text": lambda whole: b'{"format": "' + b"a" * ZEROS,
    "a lone surrogate for a name": lambda whole: whole.replace(b'"portable"', b'"\\ud800"'),
    "an invalid byte": lambda whole: whole.replace(b"portable", b"port\xffble"),
}
KEPT: dict[str, Callable[[bytes], bytes]] = {  # what other readers of JSON take
    "a byte order mark": lambda whole: b"\xef\xbb\xbf" + whole,
    "a key twice": lambda whole: whole.replace(b'"target":', b'"target": "cpu",\n  "target":', 1),
    "Windows line ends": lambda whole: whole.replace(b"\n", b"\r\n"),
}
SIZES = (2**31 - 1, 2**40, 10**12, 2**63, 10**30)


def cases() -> Iterator[Case]:
    """Every broken and vast manifest; `mutate` draws wrong values."""
    yield from (Case(f"manifest/{name}", _bytes(change, True)) for name, change in BYTES.items())
    yield from (Case(f"manifest/{name}", _bytes(change, False)) for name, change in KEPT.items())
    for name in ENLARGED:
        yield from (Case(f"manifest/{name} {size}", _size(name, size)) for size in SIZES)
    yield from (Case(f"manifest/{name}", _node(make)) for name, make in NODES.items())


def _bytes(change: Callable[[bytes], bytes], is_wrong: bool) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        file = bundle / MANIFEST
        file.write_bytes(change(file.read_bytes()))
        return refused(bundle, place) if is_wrong else readers(bundle, place)

    return make


def _size(name: str, size: int) -> Callable[[Place], list[Command]]:
    """A size that no machine can hold, in a manifest that agrees with itself."""

    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        manifest = read_manifest(bundle)
        facts = ENLARGED[name](manifest.facts, size)
        write_json(bundle / MANIFEST, dataclasses.replace(manifest, facts=facts).to_dict())
        proofs = provers(bundle, place, (GOOD, FAILED, BAD)) if name == "longest" else []
        return [*readers(bundle, place), *proofs]

    return make


def _both(facts: Facts, **changes: Any) -> Facts:
    assert facts.source is not None
    assert facts.target is not None
    source, target = (dataclasses.replace(each, **changes) for each in (facts.source, facts.target))
    return dataclasses.replace(facts, source=source, target=target)


def _state(facts: Facts, place: int, size: int) -> Facts:
    def dims(each: StateTensor) -> tuple[int | str, ...]:
        return (*each.dims[:place], size, *each.dims[place + 1 :])

    return dataclasses.replace(facts, state=tuple(dataclasses.replace(each, dims=dims(each)) for each in facts.state))


ENLARGED: dict[str, Callable[[Facts, int], Facts]] = {
    "longest": lambda facts, size: _both(facts, longest=size),
    "width": lambda facts, size: dataclasses.replace(facts, width=size),
    "vocabulary": lambda facts, size: _both(facts, size=size),
    "heads": lambda facts, size: _state(facts, 0, size),
    "head size": lambda facts, size: _state(facts, 2, size),
    "attention heads": lambda facts, size: dataclasses.replace(facts, attention=CrossAttention(1, size)),
}
NODES: dict[str, Callable[[Path], object]] = {
    "as a folder": lambda file: file.mkdir(),
    "as a FIFO": lambda file: os.mkfifo(file),
    "as an endless device": lambda file: file.symlink_to("/dev/zero"),
    "as a link to itself": lambda file: file.symlink_to(file),
    "as a link to nothing": lambda file: file.symlink_to("nowhere"),
}


def _node(make_node: Callable[[Path], object]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        (bundle / MANIFEST).unlink()
        make_node(bundle / MANIFEST)
        return refused(bundle, place, verify=[BAD])

    return make


assert json.loads(spell(f'"{HUGE_NUMBER}"'), parse_int=str) == DIGITS
