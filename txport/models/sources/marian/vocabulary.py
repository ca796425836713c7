"""The end token of Marian's vocabularies: YAML, JSON or text, or a model of SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, ConfigError, quoted
from txport.models.sources.marian.yaml import read_yaml
from txport.system.documents import DocumentError, read_text, require_size

DECODER = "*decoder.yml"  # which names the vocabularies
NAMED = ("*vocab*.yml", "*vocab*.yaml", "*vocab*.json", "*vocab*.spm", "*.spm")  # the first kind that there is
END = 0  # where no vocabulary says another: all that Marian makes begin with the end token
WRITTEN = ("</s>", "eos")  # as Marian and Nematus write it
LARGEST = 24 << 20  # bytes


def end_token(folder: Path) -> int:
    """The number of the end token; `ConfigError` where vocabularies differ in it."""
    found = {path: _end(path) for path in vocabularies(folder)}
    if len(set(found.values())) > 1:
        told = " and ".join(f"{number} in {path.name}" for path, number in found.items())
        raise ConfigError(f"the end token must be one, got {told}")
    return next(iter(found.values()), END)


def vocabularies(folder: Path) -> list[Path]:
    """Those that the options of a decoder name and that are beside it, or the ones named like vocabularies."""
    for path in sorted(folder.glob(DECODER)):
        try:
            named = read_yaml(read_text(path)).get("vocabs")
        except (DocumentError, ValueError) as error:
            raise ConfigError(f"{path.name}: {error}") from error
        paths = [folder / Path(each).name for each in named if isinstance(each, str)] if isinstance(named, list) else []
        if there := list(dict.fromkeys(path for path in paths if path.is_file())):
            return there
    kinds = (sorted(folder.glob(pattern)) for pattern in NAMED)
    return next((found for found in kinds if found), [])


def _end(path: Path) -> int:
    """The number of the end token in one vocabulary."""
    if path.suffix == ".spm":
        pieces = list(_pieces(path))
        return pieces.index(WRITTEN[0]) if WRITTEN[0] in pieces else END
    try:
        text = read_text(path, LARGEST)
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    for written in WRITTEN:
        if path.suffix not in (".yml", ".yaml", ".json"):
            lines = text.split("\n")
            if written in lines:
                return lines.index(written)
            continue
        numbers = set(re.findall(rf"""(?m)(?:^|[{{,])\s*["']?{re.escape(written)}["']?\s*:\s*(\d{{1,9}})\b""", text))
        if len(numbers) > 1:
            raise ConfigError(f"{path.name} gives {quoted(written)} the numbers {' and '.join(sorted(numbers))}")
        if numbers:
            return int(numbers.pop())
    return END


def _pieces(path: Path) -> Iterator[str]:
    """What the pieces of a model of SentencePiece are written as, in order."""
    try:
        require_size(path, LARGEST)
        for field, value in _fields(path.read_bytes()):
            if field == 1 and isinstance(value, bytes):
                yield dict(_fields(value)).get(1, b"").decode("utf-8")
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
    except (IndexError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path.name} is not a model of SentencePiece") from error


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protobuf: their numbers and values."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        size, place = _varint(message, place) if wire == 2 else ({1: 8, 5: 4}.get(wire, 0), place)
        if not (wire in (1, 2, 5) and place + size <= len(message)):
            raise ValueError("it ends within a field")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(message[place : place + 10]):
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, place + number + 1
    raise ValueError("it ends within a number")
