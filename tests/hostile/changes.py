"""Documents and bytes with something changed that nobody thought of, drawn by a seeded generator."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from tests.hostile.corpus.values import WRONG, spell

DEPTH = 20_000  # levels of a deep value: as deep as it must be, and quick to write

# Documents


def mutate_values(values: Any, rng: random.Random) -> Any:
    """A JSON document with a value replaced, removed, doubled, moved or put into another."""
    document = [json.loads(json.dumps(values))]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder, key = _choose(document, rng)
        rng.choice(CHANGES)(holder, key, rng)
    return document[0] if document else None


def _choose(document: list[Any], rng: random.Random) -> tuple[Any, Any]:
    """A place in a document: each level is as likely to be the last as to be passed."""
    holder: Any = document
    key: Any = 0
    while isinstance(inner := holder[key], dict | list) and inner and rng.random() < 0.8:
        holder = inner
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
    return holder, key


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(WRONG))


def _nudge(holder: Any, key: Any, rng: random.Random) -> None:
    """Another value of the same kind."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = rng.choice((value + 1, value - 1, -value, value * 2, value * 10**6, 0, float(value), str(value)))
    elif isinstance(value, str):
        holder[key] = rng.choice((value + "x", value[:-1], value.upper(), value * 3, "../" + value, value[::-1]))
    else:
        _replace(holder, key, rng)


def _remove(holder: Any, key: Any, rng: random.Random) -> None:
    if len(holder) > 1:
        del holder[key]


def _double(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[f"{key}{rng.choice(('', ' ', '.', '_', '/..'))}2"] = copy.deepcopy(holder[key])


def _exchange(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _wrap(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, {key if isinstance(key, str) else "0": holder[key]}))


CHANGES = (_replace, _replace, _replace, _nudge, _nudge, _nudge, _remove, _double, _exchange, _wrap)


def write_document(file: Path, values: Any) -> None:
    """As JSON, with values that are deeper and longer than Python writes them."""
    file.write_bytes(spell(json.dumps(values), DEPTH).encode("utf-8", "surrogatepass"))


# Bytes


def mutate_bytes(whole: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, removed, doubled, moved or added."""
    changed = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5, 50))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        size = rng.choice((1, 1, 2, 4, 8, 100, 5_000))
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case 2:
                changed[at : at + size] = rng.randbytes(len(changed[at : at + size]))
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                changed[at:at] = rng.randbytes(size)
    return bytes(changed[: rng.randrange(len(changed))] if changed and rng.random() < 0.1 else changed)
