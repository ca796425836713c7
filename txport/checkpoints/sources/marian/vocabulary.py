"""Marian's vocabularies, in YAML, JSON, text or SentencePiece: the end token, and the text files of a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from txport.errors import CheckpointError, ConfigError, brief, quoted
from txport.models.names import TOKENIZER
from txport.system.documents import DocumentError, read_text
from txport.text.convert import as_they_are
from txport.text.sentencepiece import read_pieces
from txport.text.trainers.texts import Files, has_cuts, texts_of
from txport.text.trainers.words import Side, Words
from txport.text.vocabularies import lines_of, read_ids

DECODER = "*decoder.yml"  # it names the vocabularies
NAMED = ("*vocab*.yml", "*vocab*.yaml", "*vocab*.json", "*vocab*.txt", "*vocab*.spm", "*.spm")  # by priority
END = 0  # default: all vocabularies that Marian creates begin with the end token
WRITTEN = ("</s>", "eos")  # names in Marian and Nematus
UNKNOWN = ("<unk>", "UNK")  # names in Marian and Nematus
SOURCE = re.compile(r"\b(src|source)\b")  # in names of files
TARGET = re.compile(r"\b(trg|tgt|target)\b")  # in names of files
MOST_DIGITS = 10
LARGEST = 24 << 20  # bytes


def end_token(folder: Path) -> int:
    """Return the id of the end token; raise `ConfigError` if vocabularies differ in it."""
    found = {path: _end(path) for path in vocabularies(folder)}
    if len(set(found.values())) > 1:
        told = " and ".join(f"{number} in {path.name}" for path, number in found.items())
        raise ConfigError(f"the end token must be one, got {told}")
    return next(iter(found.values()), END)


def vocabularies(folder: Path) -> list[Path]:
    """Return the existing vocabularies named in a decoder's options, or else files named like vocabularies."""
    for paths in _named(folder):
        if there := list(dict.fromkeys(path for path in paths if path.is_file())):
            return there
    kinds = (sorted(folder.glob(pattern)) for pattern in NAMED)
    return next((found for found in kinds if found), [])


def _named(folder: Path) -> Iterator[list[Path]]:
    """Yield the files that each decoder's options name, sources first, as paths in the folder."""
    for path in sorted(folder.glob(DECODER)):
        try:
            named = read_yaml(read_text(path)).get("vocabs")
        except (DocumentError, ValueError) as error:
            raise ConfigError(f"{path.name}: {error}") from error
        if isinstance(named, list):
            yield [folder / Path(each).name for each in named if isinstance(each, str)]


def sides(folder: Path) -> tuple[Path, Path] | None:
    """Return the vocabularies of sources and targets; None if some are missing or the sides are unknown."""
    for named in _named(folder):
        if len(named) == 2 and all(path.is_file() for path in named):
            return named[0], named[1]
    found = vocabularies(folder)
    if len(found) == 1:
        return found[0], found[0]
    ordered = [next((path for path in found if mark.search(path.name)), None) for mark in (SOURCE, TARGET)]
    first, second = ordered
    if len(found) != 2 or first is None or second is None or first == second:
        return None
    return first, second


def texts(folder: Path, rows: tuple[int, int], *, alike: bool) -> Files:
    """Return the text files of a bundle; `rows` are the numbers of source and target tokens of the model.

    The ids of a SentencePiece vocabulary are those of its pieces.
    """
    files = as_they_are(folder)
    paths = sides(folder)
    if not has_cuts(folder) and TOKENIZER not in files:
        for path, size in zip(paths or (), rows, strict=False):
            _side(path, size).require()
        return files
    if paths is None:
        names = ", ".join(path.name for path in vocabularies(folder)) or "none"
        told = f"of its vocabularies ({names}), nothing says which is of sources and which of targets"
        raise CheckpointError(f"{folder}: {told}; add its decoder.yml, with both in vocabs")
    source, target = (_side(path, size) for path, size in zip(paths, rows, strict=True))
    end = next((each for each in WRITTEN if each in source.ids), "</s>")
    return texts_of(Words(folder=folder, source=source, target=target, after=(end,), alike=alike))


def _side(path: Path, rows: int) -> Side:
    ids = _ids(path)
    if path.suffix == ".spm":
        found = read_pieces(path)
        return Side(place=path, ids=ids, rows=rows, unknown=found.pieces[found.unknown].text, pieces=path)
    return Side(place=path, ids=ids, rows=rows, unknown=next((each for each in UNKNOWN if each in ids), UNKNOWN[0]))


def _ids(path: Path) -> dict[str, int]:
    """Return the tokens of a vocabulary with their ids; raise `CheckpointError` for an invalid file."""
    if path.suffix == ".spm":
        return {piece.text: place for place, piece in enumerate(read_pieces(path).pieces)}
    if path.suffix in (".yml", ".yaml", ".json"):
        return _numbers(path)
    lines = lines_of(path)
    ids: dict[str, int] = {}
    for number, line in enumerate(lines if lines[-1] else lines[:-1]):
        if ids.setdefault(line.rstrip("\r"), number) != number:
            raise CheckpointError(f"{path}, line {number + 1}: {quoted(line)} is there twice")
    return ids


def _numbers(path: Path) -> dict[str, int]:
    """Return the tokens of a YAML or JSON vocabulary with their ids; YAML scalars are always text, as in Marian."""
    if path.suffix == ".json":
        return read_ids(path)
    try:
        text = read_text(path, LARGEST)
    except DocumentError as error:
        raise CheckpointError(str(error)) from error
    try:
        found = read_words(text)
        ids = {token: int(each) for token, each in found.items() if each.isdecimal() and len(each) < MOST_DIGITS}
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if lacking := [token for token in found if token not in ids]:
        raise CheckpointError(f"{path} gives {quoted(lacking[0])} the id {quoted(found[lacking[0]])}, which is none")
    return ids


def _end(path: Path) -> int:
    """Return the id of the end token in one vocabulary."""
    ids = _ids(path)
    return next((ids[written] for written in WRITTEN if written in ids), END)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's safe loader, which also refuses aliases and duplicate keys."""

    def compose_node(self, parent: object, index: object) -> object:
        """See `yaml.composer.Composer`."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias, which no trainer writes")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: object, deep: bool = False) -> object:
        """See `yaml.constructor.SafeConstructor`."""
        found = super().construct_mapping(node, deep)
        if isinstance(node, yaml.MappingNode) and len(found) < len(node.value):
            raise ValueError("it names a key twice")
        return found


def read_yaml(text: str) -> dict[str, object]:
    """Return a mapping from names to values; raise `ValueError`, with a one-line message, for anything else."""
    try:
        found = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {brief(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"it must map names to values, got {quoted(found)}")
    return found


def read_words(text: str) -> dict[str, str]:
    """Return a mapping from words to words; all scalars are read as text.

    Raises `ValueError`, with a one-line message, for anything else.
    """
    events: list[str] = []
    maps = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            maps += isinstance(event, yaml.MappingStartEvent)
            if isinstance(event, yaml.ScalarEvent):
                events.append(event.value)
            elif isinstance(event, yaml.AliasEvent | yaml.SequenceStartEvent):
                raise ValueError("it must map words to numbers")
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not YAML: {brief(error)}") from error
    found = dict(zip(events[::2], events[1::2], strict=False))
    if maps > 1 or 2 * len(found) != len(events):
        raise ValueError("it must name each word once, with a number")
    return found
