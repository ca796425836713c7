"""Reads and writes small text, JSON and TOML files.

Files may be untrusted. Too large files, too deep nesting, too long numbers, and NaN, which is not in JSON, are refused.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.errors import brief, quoted

LARGEST_TOML = 1 << 20  # bytes
LARGEST = 24 << 20  # bytes; as Python's values, JSON of brackets alone takes 25 times as much


class DocumentError(ValueError):
    """Raised for a file that can't be read or is invalid; the message begins with its path."""


def read_text(path: Path, largest: int = LARGEST, newline: str | None = None) -> str:
    """Read a regular UTF-8 file; raise `DocumentError` if it is not one or has more than `largest` bytes.

    `newline` has the meaning that it has for `open`.
    """
    require_size(path, largest)
    try:
        with path.open(encoding="utf-8", newline=newline) as stream:
            return stream.read()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise DocumentError(f"{path} can't be read: {error.strerror}") from error


def read_lines(path: Path, largest: int = LARGEST) -> list[str]:
    """Read the lines of a file as `read_text` does; only a line feed ends a line, as in the input of a command."""
    return [line.rstrip("\r\n") for line in io.StringIO(read_text(path, largest, newline="\n"))]


def require_size(path: Path, largest: int = LARGEST) -> None:
    """Raise `DocumentError` unless `path` is a regular file of up to `largest` bytes."""
    try:
        if not path.is_file():  # a pipe would never end
            raise DocumentError(f"{path} is {'not a file' if path.exists() else 'missing'}")
        size = path.stat().st_size
    except OSError as error:
        raise DocumentError(f"{path} can't be read: {error.strerror}") from error
    if size > largest:
        raise DocumentError(f"{path} has {size} bytes, expected at most {largest}")


def read_json(path: Path, largest: int = LARGEST) -> dict[str, Any]:
    """Read a JSON object; raise `DocumentError` for anything else, and for duplicate keys."""
    values = _read_json(path, largest)
    if not isinstance(values, dict):
        raise DocumentError(f"{path} holds a {type(values).__name__}, expected an object")
    return values


def read_json_list(path: Path, largest: int = LARGEST) -> list[Any]:
    """Read a JSON list; raises like `read_json`."""
    values = _read_json(path, largest)
    if not isinstance(values, list):
        raise DocumentError(f"{path} holds a {type(values).__name__}, expected a list")
    return values


def _read_json(path: Path, largest: int) -> object:
    text = read_text(path, largest)
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
    except RecursionError as error:
        raise DocumentError(f"{path} is nested too deep to be read") from error
    except ValueError as error:
        raise DocumentError(f"{path} is not JSON: {brief(error)}") from error


def read_toml(path: Path, largest: int = LARGEST_TOML) -> dict[str, object]:
    """Read a TOML file; raise `DocumentError` for anything else."""
    return parse_toml(read_text(path, largest), path)


def parse_toml(text: str, path: Path) -> dict[str, object]:
    """Parse the text of a TOML file; raise `DocumentError`, which names `path`, for anything else."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise DocumentError(f"{path} is nested too deep to be read") from error
    except ValueError as error:
        raise DocumentError(f"{path} is not TOML: {brief(error)}") from error


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {quoted(counts.most_common(1)[0][0])} is there twice")
    return values


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write indented JSON with a final newline; raise `ValueError` for NaN and infinity."""
    path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")
