"""`txport.json`: what it says, and whether it is JSON at all."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, edit_values, provers, readers, refused
from tests.hostile.corpus.values import DEEP, DEEP_LIST, DEEP_OBJECT, DIGITS, HUGE_NUMBER, NAME, ZEROS, spell
from txport.bundles.reading import read_manifest
from txport.models.facts import CrossAttention, Facts, StateTensor
from txport.models.names import MANIFEST
from txport.system.documents import write_json

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "null": lambda whole: b"null",
    "a list": lambda whole: b"[]",
    "a number": lambda whole: b"5",
    "a text": lambda whole: b'"format"',
    "an empty object": lambda whole: b"{}",
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "more after its end": lambda whole: whole + b"{}",
    "UTF-16": lambda whole: whole.decode().encode("utf-16"),
    "binary": lambda whole: bytes(range(256)) * 40,
    "zeros": lambda whole: bytes(ZEROS),
    "spaces": lambda whole: b" " * ZEROS,
    "a list of 200,000 levels": lambda whole: b"[" * DEEP,
    "an object of 200,000 levels": lambda whole: b'{"format":' * DEEP,
    "an endless text": lambda whole: b'{"format": "' + b"a" * ZEROS,
    "a comment": lambda whole: b"// no JSON\n" + whole,
    "single quotes": lambda whole: whole.replace(b'"', b"'"),
    "a lone surrogate for a name": lambda whole: whole.replace(b'"portable"', b'"\\ud800"'),
    "an invalid byte": lambda whole: whole.replace(b"portable", b"port\xffble"),
}
KEPT: dict[str, Callable[[bytes], bytes]] = {  # what other readers of JSON take
    "a byte order mark": lambda whole: b"\xef\xbb\xbf" + whole,
    "a key twice": lambda whole: whole.replace(b'"target":', b'"target": "cpu",\n  "target":', 1),
    "Windows line ends": lambda whole: whole.replace(b"\n", b"\r\n"),
}
KEYS = [
    "format",
    "target",
    "precision",
    "opset",
    "architecture",
    "config",
    "facts",
    "checkpoint",
    "tools",
    "generation",
    "passes",
    "parts",
    "weights",
    "rows",
    "kept_in_fp32",
    "shared",
    "parity",
    "files",
    "graphs",
]
SIZES = (2**31 - 1, 2**40, 10**12, 2**63, 10**30)
# (path to a value, value) that no bundle can have
WRONG: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "format of 5,000 digits": (("format",), HUGE_NUMBER),
    "format as a text": (("format",), "5"),
    "format NaN": (("format",), float("nan")),
    "format as a list of 200,000 levels": (("format",), DEEP_LIST),
    "format of the next year": (("format",), 10**30),
    "target with an escape": (("target",), NAME),
    "target as a list": (("target",), ["portable"]),
    "target as an object": (("target",), {"portable": 1}),
    "precision as a list": (("precision",), ["fp32"]),
    "precision as null": (("precision",), None),
    "config as a list": (("config",), []),
    "facts as a list": (("facts",), []),
    "facts with a key of 200,000 levels": (("facts", "more"), DEEP_OBJECT),
    "facts with a name of escapes": (("facts", NAME), 1),
    "task of escapes": (("facts", "task"), NAME),
    "task as a list": (("facts", "task"), ["seq2seq"]),
    "task of another model": (("facts", "task"), "encode"),
    "width 0": (("facts", "width"), 0),
    "width of 5,000 digits": (("facts", "width"), HUGE_NUMBER),
    "longest NaN": (("facts", "target", "longest"), float("nan")),
    "longest of 5,000 digits": (("facts", "target", "longest"), HUGE_NUMBER),
    "longest true": (("facts", "target", "longest"), True),
    "longest 0": (("facts", "source", "longest"), 0),
    "source as null": (("facts", "source"), None),
    "source with a name of escapes": (("facts", "source", NAME), 1),
    "pad beyond the vocabulary": (("facts", "source", "pad"), 2**40),
    "end below zero": (("facts", "target", "ends"), [-1]),
    "ends as a number": (("facts", "target", "ends"), 2),
    "ends without end": (("facts", "target", "ends"), [2] * 100_000),
    "start as a text": (("facts", "target", "start"), "<s>"),
    "start as null": (("facts", "target", "start"), None),
    "state as an object": (("facts", "state"), {}),
    "state emptied": (("facts", "state"), []),
    "state of 200,000 levels": (("facts", "state"), DEEP_LIST),
    "an owner of escapes": (("facts", "state", 0, "owner"), NAME),
    "an owner as a list": (("facts", "state", 0, "owner"), ["row"]),
    "a role as a number": (("facts", "state", 0, "role"), 1),
    "state of a layer of 5,000 digits": (("facts", "state", 0, "layer"), HUGE_NUMBER),
    "state with dims of escapes": (("facts", "state", 0, "dims"), [NAME, NAME, NAME]),
    "state with dims NaN": (("facts", "state", 0, "dims"), [2, "length", float("nan")]),
    "attention of a layer that there is not": (("facts", "attention", "layer"), 99),
    "attention as a list": (("facts", "attention"), [1, 2]),
    "outputs as numbers": (("facts", "outputs"), [1]),
    "labels as numbers": (("facts", "labels"), [1]),
    "has_plain_logits as a number": (("facts", "has_plain_logits"), 1),
    "checkpoint name as a list": (("checkpoint", "name"), ["toy"]),
    "checkpoint hash as a number": (("checkpoint", "sha256"), 5),
    "files as a list": (("files",), []),
    "a file's hash as null": (("files", "tokenizer.json", "sha256"), None),
    "a file's size as a text": (("files", "tokenizer.json", "bytes"), "18"),
    "a file's size NaN": (("files", "tokenizer.json", "bytes"), float("nan")),
    "a file's size of 5,000 digits": (("files", "tokenizer.json", "bytes"), HUGE_NUMBER),
    "a file's size true": (("files", "tokenizer.json", "bytes"), True),
    "a file's entry as a text": (("files", "tokenizer.json"), "sha256"),
    "kept in fp32 without a limit": (("kept_in_fp32",), {"kept": []}),
    "kept in fp32 NaN": (
        ("kept_in_fp32",),
        {"kept": [], "share": float("nan"), "limit": 0.5, "bytes": 1, "bytes_before": 1},
    ),
    "weights of escapes": (("weights", NAME), NAME),
    "weights of numbers": (("weights",), {"a": 5}),
    "weights with a form of escapes": (("weights", "a"), {"weights": [NAME], "form": {"kind": NAME, "bits": 8}}),
    "weights in blocks beyond all": (
        ("weights", "a"),
        {"weights": ["b"], "form": {"kind": "blocks", "bits": 8, "block": 10**30}, "scales": "c"},
    ),
    "weights in a form of 200,000 levels": (("weights", "a"), {"weights": ["b"], "form": DEEP_OBJECT}),
    "parity as a text": (("parity",), "pass"),
    "graphs as a list": (("graphs",), []),
    "graphs of 200,000 levels": (("graphs",), DEEP_OBJECT),
}
# Values that may be harmless, but are shown, counted or allocated.
STRANGE: dict[str, tuple[tuple[str, ...], Any]] = {
    "architecture of escapes": (("architecture",), NAME),
    "architecture of 1 MB": (("architecture",), "a" * 1_000_000),
    "architecture as a lone surrogate": (("architecture",), "\ud800"),
    "config emptied": (("config",), {}),
    "config with a key of 200,000 levels": (("config", "more"), DEEP_OBJECT),
    "config with a name of escapes": (("config", NAME), 1),
    "labels of escapes": (("facts", "labels"), [NAME]),
    "parts of escapes": (("parts",), {"encoder": {NAME: 5}}),
    "parts of numbers": (("parts",), {"encoder": 5}),
    "checkpoint name of escapes": (("checkpoint", "name"), NAME),
    "checkpoint name of 1 MB": (("checkpoint", "name"), "a" * 1_000_000),
    "checkpoint name as a path": (("checkpoint", "name"), "../../outside"),
    "checkpoint name of a preset": (("checkpoint", "name"), "preset:nothing"),
    "checkpoint name as a lone surrogate": (("checkpoint", "name"), "\ud800"),
    "tools of escapes": (("tools", NAME), NAME),
    "passes of numbers": (("passes",), {"encoder": 5}),
    "passes of escapes": (("passes", "encoder", NAME), NAME),
    "weights that are packed nowhere": (("weights", NAME), {"weights": [NAME, "b"]}),
    "parity verdict of escapes": (("parity", "verdict"), NAME),
    "parity verdict as a list": (("parity", "verdict"), ["pass"]),
    "parity cases NaN": (("parity", "cases"), float("nan")),
    "parity of 200,000 levels": (("parity", "more"), DEEP_OBJECT),
    "parity emptied": (("parity",), {}),
    "generation of negative numbers": (("generation",), {"beams": -1, "max_new_tokens": -5}),
    "generation of large numbers": (("generation",), {"beams": 10**9, "max_new_tokens": 10**12}),
    "opset 0": (("opset",), 0),
    "opset of 5,000 digits": (("opset",), HUGE_NUMBER),
    "rows below zero": (("rows",), -1),
    "rows beyond all": (("rows",), 10**30),
    "rows true": (("rows",), True),
    "shared weights of NaN": (("shared", "a"), {"file": "tokenizer.json", "offset": 0, "dtype": "O", "dims": [1]}),
    "an unknown key": (("more",), NAME),
    "an unknown key of 200,000 levels": (("more",), DEEP_LIST),
}


def cases() -> Iterator[Case]:
    """Every broken, wrong and strange manifest."""
    yield from (Case(f"manifest/{name}", _bytes(change, True)) for name, change in BYTES.items())
    yield from (Case(f"manifest/{name}", _bytes(change, False)) for name, change in KEPT.items())
    yield from (Case(f"manifest/without {key}", _value((key,), "", without=True)) for key in KEYS)
    yield from (Case(f"manifest/{key} as a list of one", _value((key,), [1])) for key in KEYS)
    yield from (Case(f"manifest/{name}", _value(*what)) for name, what in WRONG.items())
    yield from (Case(f"manifest/{name}", _value(*what, known=False)) for name, what in STRANGE.items())
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


def _value(path: tuple[str | int, ...], value: Any, *, without: bool = False, known: bool = True) -> Any:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()

        def edit(values: Any) -> None:
            for key in path[:-1]:
                values = values[key]
            values[path[-1]] = value
            if without:
                del values[path[-1]]

        edit_values(bundle / MANIFEST, edit)
        text = (bundle / MANIFEST).read_text(encoding="utf-8", errors="surrogatepass")
        (bundle / MANIFEST).write_text(spell(text), encoding="utf-8", errors="surrogatepass")
        if known:
            return refused(bundle, place, verify=(FAILED, BAD))
        shown = provers(bundle, place, (GOOD, FAILED, BAD))[:1] if value == NAME else []
        return [*readers(bundle, place), *shown]

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
