"""fairseq's dictionaries: a line for each token, behind the four special ones that each begins with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, quoted
from txport.models.tokenizers.trainers.texts import Files, texts_of
from txport.models.tokenizers.trainers.words import END, Side, Words
from txport.models.tokenizers.vocabularies import lines_of

DICTIONARIES = "dict.*.txt"
SPECIAL = ("<s>", "<pad>", END, "<unk>")
AGAIN = "#fairseq:overwrite"  # behind a token that may be there twice


def texts(folder: Path, options: Mapping[str, Any], rows: tuple[int, int]) -> Files:
    """The text files of a bundle, of a model that has so many rows for source and target."""
    paths = [_dictionary(folder, options.get(name), name) for name in ("source_lang", "target_lang")]
    source, target = (Side(place=path, ids=read_dictionary(path), rows=rows[at]) for at, path in enumerate(paths))
    alike = rows[0] == rows[1]
    return texts_of(Words(folder=folder, source=source, target=target, after=(END,), special=SPECIAL, alike=alike))


def _dictionary(folder: Path, language: Any, name: str) -> Path:
    """That of a language; the only one there is, where the checkpoint does not say which."""
    there = sorted(folder.glob(DICTIONARIES))
    path = folder / f"dict.{language}.txt" if isinstance(language, str) else there[0]
    if path in there and (isinstance(language, str) or len(there) == 1):
        return path
    names = ", ".join(each.name for each in there)
    raise CheckpointError(f"{folder} has {names}, its checkpoint the {name} {quoted(language)}; add {path.name}")


def read_dictionary(path: Path) -> dict[str, int]:
    """The tokens of a dictionary with their ids; `CheckpointError` for a file that is none."""
    ids = {token: number for number, token in enumerate(SPECIAL)}
    lines = lines_of(path)
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        parts = line.rstrip().rsplit(" ", 2 if line.rstrip().endswith(f" {AGAIN}") else 1)
        if len(parts) < 2 or not parts[1].isdecimal():
            raise CheckpointError(f"{path}, line {number}: {quoted(line)} is not a token and how often it was seen")
        if parts[0] in ids and len(parts) == 2:
            raise CheckpointError(f"{path}, line {number}: {quoted(parts[0])} is there twice")
        ids[parts[0]] = len(SPECIAL) + number - 1
    return ids
