"""Older reports that `parity --baseline` and `bench --compare` are given; `mutate` draws what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

from tests.hostile.case import ABSENT, BAD, FAILED, GOOD, Command, Place, command, read_values
from tests.hostile.corpus.values import spell


def sound(place: Place, kind: str) -> Any:
    """The values of a sound report."""
    return read_values(place.sound.parity_report if kind == "parity" else place.sound.bench_report)


def against(place: Place, kind: str, values: Any) -> Command:
    """A report that may be edited in a place where nobody looks."""
    file = place.inputs / "report.json"
    file.write_bytes(spell(json.dumps(values)).encode("utf-8", "surrogatepass"))
    bundle = place.sound.bundle("portable")
    how: dict[str, Any] = {"codes": (GOOD, FAILED, BAD, ABSENT), "stand_in": True}
    if kind == "bench":
        compare = ("--runtime", "ort", "--rounds", 5, "--batch", 1, "--scenario", "phases", "--compare", file)
        return command("bench", bundle, *compare, "--max-regression", 1e9, **how)
    parity = ("parity", bundle, "--checkpoint", place.sound.checkpoint, "--runtime", "ort")
    return command(*parity, "--baseline", file, **how)
