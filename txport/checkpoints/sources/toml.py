"""A user's own checkpoint: `txport.toml` has its architecture, its config, and rules for its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from txport.checkpoints import family
from txport.checkpoints.sources import hugging_face
from txport.checkpoints.sources.hugging_face import config_as
from txport.checkpoints.sources.rules import parse_rule
from txport.checkpoints.sources.source import Source, generation, no_defaults, place_of, read_weights
from txport.errors import ConfigError, quoted
from txport.models import architecture
from txport.models.config import read_config
from txport.models.facts import Facts
from txport.models.generation import Defaults
from txport.models.names import CONFIG, GENERATION, RULES, TRANSFORMERS
from txport.models.rules import Rule, Settle
from txport.system.documents import LARGEST_TOML, DocumentError, parse_toml, read_text
from txport.system.terminal import one_line

KEYS = ("architecture", "base", "weights", "at", "config", "rule")
BASE = "hugging-face:"
QUESTION = "QUESTION"  # begins a value that the user must still replace
MOST_RULES = 1000
MOST_QUESTIONS = 5  # named in an error


@dataclass(frozen=True)
class Document:
    """The values of a file, and their lines."""

    path: Path
    text: str
    values: Mapping[str, object]

    def error(self, message: object, line: int | None = None) -> ConfigError:
        """Return an error about a line of the file, or about the whole file."""
        place = f"{self.path}: " if line is None else f"{self.path} line {line}: "
        return ConfigError(f"{place}{message}")

    def line_of(self, key: str, table: str = "") -> int | None:
        """Return the line of a key of a table; None if it is not found."""
        inside = ""
        for number, line in enumerate(self.text.split("\n"), 1):
            if found := re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", line):
                inside = found[1]
            elif inside == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return None

    def rule_lines(self, count: int) -> list[int | None]:
        """Return the line of the operation of each of `count` rules; None for each if they can't be found."""
        lines = self.text.split("\n")
        heads = [number for number, line in enumerate(lines) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)]
        if len(heads) != count:
            return [None] * count
        firsts = (range(head + 1, min(head + 20, len(lines))) for head in heads)
        return [next((at for at in first if "=" in lines[at].partition("#")[0]), head) + 1
                for head, first in zip(heads, firsts, strict=True)]  # fmt: skip


def recognises(folder: Path) -> bool:
    """Return whether there is a `txport.toml`."""
    return (folder / RULES).is_file()


def read(folder: Path) -> Source:
    """See `Format`; the file's rules are applied first, then those of its base, then the architecture's."""
    document = _read_document(folder / RULES)
    _require_answers(document)
    found, base = _architecture(document)
    rules, lines = _rules(document)
    at = document.values.get("at", "")
    if not isinstance(at, str):
        raise document.error(f"at must be a text, got {quoted(at)}", document.line_of("at"))
    return Source(
        config=_config(document, found, base),
        rules=(*rules, Settle(), *(base.weights if base else ()), *found.weights),
        weights=partial(read_weights, folder, at),
        place=place_of(folder),
        generation=_generation(folder, base is not None),
        lines=lines,
        original=TRANSFORMERS if base and (folder / CONFIG).is_file() else "",
    )


def _generation(folder: Path, of_base: bool) -> Callable[[Facts], Defaults]:
    """Return the default search options or pooling: like the base's if its files are in the folder."""
    has_own = (folder / GENERATION).is_file()
    if of_base and (has_own or (folder / CONFIG).is_file()):
        return partial(hugging_face.defaults, folder)
    return partial(generation, folder) if has_own else no_defaults


def _read_document(path: Path) -> Document:
    try:
        text = read_text(path, LARGEST_TOML)
        values = parse_toml(text, path)
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    document = Document(path, text, values)
    for key in values:
        if key not in KEYS:
            raise document.error(f"unknown key {quoted(key)}; there are {', '.join(KEYS)}", document.line_of(key))
    return document


def _require_answers(document: Document) -> None:
    """Raise `ConfigError` if a value is still a question."""
    questions = [each for each in _texts(document.values) if each.startswith(QUESTION)]
    if not questions:
        return
    told = (each.removeprefix(QUESTION).lstrip(": ") for each in questions[:MOST_QUESTIONS])
    lines = _lines_of(document.text, questions[:MOST_QUESTIONS])
    asked = [one_line(each if at is None else f"line {at}: {each}") for each, at in zip(told, lines, strict=True)]
    more = f"; and {len(questions) - MOST_QUESTIONS} more" if len(questions) > MOST_QUESTIONS else ""
    raise document.error(f"answer its questions first: {'; '.join(asked)}{more}")


def _lines_of(text: str, questions: Sequence[str]) -> Iterator[int | None]:
    """Yield the line of each text, in order; None for one that is not found."""
    done: dict[str, int] = {}
    for each in questions:
        begin = re.match(r"[^\"'\\\n]*", each)
        assert begin is not None
        found = re.compile(rf"""[=,\[]\s*["']+{re.escape(begin[0])}(?=[\\"'\n])""").search(text, done.get(begin[0], 0))
        if found is not None:
            done[begin[0]] = found.end()
        yield None if found is None else text.count("\n", 0, found.end()) + 1


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _architecture(document: Document) -> tuple[architecture.Architecture, family.Family | None]:
    """Return the architecture that the file names, or that of its base family."""
    named = document.values.get("architecture")
    base = document.values.get("base")
    if (named is None) == (base is None):
        raise document.error("give one of architecture and base", document.line_of("base"))
    try:
        if base is None:
            return architecture.find(named), None
        if not isinstance(base, str) or not base.startswith(BASE):
            raise ConfigError(f"base must be {BASE} and a model_type, got {quoted(base)}")
        kind = family.find(base.removeprefix(BASE))
        return architecture.find(kind.architecture), kind
    except ConfigError as error:
        raise document.error(error, document.line_of("architecture" if base is None else "base")) from error


def _config(document: Document, found: architecture.Architecture, base: family.Family | None) -> Any:
    """Return the config of the file, or for a base, of the `config.json` next to it."""
    values = document.values.get("config", {})
    if not isinstance(values, Mapping):
        raise document.error(f"config must be a table, got {quoted(values)}", document.line_of("config"))
    if base is not None and "config" not in document.values:
        beside = read_config(document.path.parent / CONFIG)
        kind = str(document.values["base"]).removeprefix(BASE)
        own = str(beside.get(family.TYPE))
        reason = family.REFUSED.get(own)
        if family.all_families().get(own, base) is not base:
            reason = "it is read without a base"
        if reason is not None:
            told = f"a {quoted(own)} is not computed as a {kind}: {reason}"
            raise document.error(told, document.line_of("base"))
        return config_as(document.path.parent, {**beside, family.TYPE: kind})
    try:
        return found.config.from_dict(values)
    except ConfigError as error:
        places = {key: re.search(rf"\b{re.escape(key)}\b", str(error)) for key in values}
        named = {found.start(): key for key, found in places.items() if found}
        line = document.line_of(named[min(named)], "config") if named else document.line_of("architecture")
        raise document.error(error, line) from error


def _rules(document: Document) -> tuple[list[Rule], dict[int, str]]:
    """Return the rules of the file and their lines."""
    tables = document.values.get("rule", [])
    if not isinstance(tables, list) or len(tables) > MOST_RULES:
        raise document.error(f"rule must be up to {MOST_RULES} tables [[rule]]", document.line_of("rule"))
    rules = []
    lines = {}
    for number, (table, line) in enumerate(zip(tables, document.rule_lines(len(tables)), strict=True)):
        try:
            rules.append(parse_rule(table))
        except ConfigError as error:
            raise document.error(error if line else f"rule {number + 1}: {error}", line) from error
        lines[number] = f"{RULES} line {line}" if line else f"{RULES} rule {number + 1}"
    return rules, lines
