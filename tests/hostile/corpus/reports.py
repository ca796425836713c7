"""Older reports that `parity --baseline` and `bench --compare` are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command
from tests.hostile.corpus.manifests import BYTES as NO_JSON
from tests.hostile.corpus.values import WRONG, spell

PATHS = {"of nowhere": "nowhere", "that is a folder": "/", "that is a device": "/dev/null", "of nothing": ""}


def cases() -> Iterator[Case]:
    """Every report, and each of its values replaced by what it is not."""
    for name, change in NO_JSON.items():
        yield Case(f"reports/parity {name}", _bytes("parity", change))
        yield Case(f"reports/bench {name}", _bytes("bench", change))
    for name, path in PATHS.items():
        yield Case(f"reports/parity {name}", lambda place, path=path: [_against(place, "parity", path, (BAD,))])
        yield Case(f"reports/bench {name}", lambda place, path=path: [_against(place, "bench", path, (BAD,))])
    yield Case("reports/parity exchanged", lambda place: [_against(place, "parity", place.sound.bench_report, (BAD,))])
    yield Case("reports/bench exchanged", lambda place: [_against(place, "bench", place.sound.parity_report, (BAD,))])
    for kind in ("parity", "bench"):
        yield Case(f"reports/{kind} with each value wrong", _each(kind))


def _against(place: Place, kind: str, report: object, codes: tuple[int, ...]) -> Command:
    bundle = place.sound.bundle("portable")
    if kind == "bench":
        compare = ("--runtime", "ort", "--rounds", 3, "--compare", report)
        return command("bench", bundle, *compare, "--max-regression", 1e9, codes=codes, stand_in=True)
    parity = ("parity", bundle, "--checkpoint", place.sound.checkpoint, "--runtime", "ort")
    return command(*parity, "--baseline", report, codes=codes, stand_in=True)


def sound(place: Place, kind: str) -> Any:
    """The values of a sound report."""
    file = place.sound.parity_report if kind == "parity" else place.sound.bench_report
    return json.loads(file.read_text(encoding="utf-8"))


def against(place: Place, kind: str, values: Any, name: str = "report.json") -> Command:
    """A report that may be edited in a place where nobody looks."""
    file = place.inputs / name
    file.write_bytes(spell(json.dumps(values)).encode("utf-8", "surrogatepass"))
    return _against(place, kind, file, (GOOD, FAILED, BAD))


def _bytes(kind: str, change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        source = place.sound.parity_report if kind == "parity" else place.sound.bench_report
        file = place.inputs / "report.json"
        before = source.read_bytes()
        file.write_bytes(change(before))
        return [_against(place, kind, file, (BAD,))] if file.read_bytes() != before else []

    return make


def _each(kind: str) -> Callable[[Place], list[Command]]:
    """Each value of the upper levels, by each value of another kind."""

    def make(place: Place) -> list[Command]:
        return [
            against(place, kind, values, f"{number}.json")
            for number, values in enumerate(_replaced(sound(place, kind), 3))
        ]

    return make


def _replaced(values: Any, levels: int) -> Iterator[Any]:
    """Copies of a document with one value of its first levels replaced, in lists the first one alone."""
    if not levels or not isinstance(values, dict | list) or not values:
        return
    keys = list(values) if isinstance(values, dict) else [0]
    for key in keys:
        for number, wrong in enumerate(WRONG):
            if number % 5 == hash_of(str(key)) % 5:
                yield _with(values, key, wrong)
        for inner in _replaced(values[key], levels - 1):
            yield _with(values, key, inner)


def hash_of(text: str) -> int:
    """The same number for the same text in every process."""
    return sum(text.encode())


def _with(values: Any, key: Any, value: Any) -> Any:
    changed = values.copy()
    changed[key] = value
    return changed
