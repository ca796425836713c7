"""What every end of a command is held against, whatever it was given."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from tests.hostile.case import Command, Place

ORIGINS = ("home/cache", "home/cache/txport", "home/cache/txport/origins")
MOST_MEMORY = 1_000_000_000  # bytes that a process may hold on any hostile input
SKIPPED = re.compile(
    r"txport: (\d+ of \d+ texts have no character of the vocabulary; their output is empty"
    r"|\d+ words? (is|are) not in the vocabulary; the model reads the unknown token there)\n"
)
WARNED = re.compile(r"[^\n]* is a pickle, of which only tensors are read; `txport import` writes safetensors of it\n")
VERDICT = re.compile(r"^verdict: does NOT fit|^  \"fits\": false", re.MULTILINE)
LISTING = ("does not fit its config", "the nearest architecture is")  # of messages that list tensors
LONGEST_MESSAGE, LONGEST_LIST = 1_000, 20_000  # of all tensors that do not fit, one would miss any that is left out
# All but the tab and the end of a line; those that reorder text; and lone surrogates.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TAGS = re.compile(r"<(img|script|b|a|svg|iframe)\b", re.IGNORECASE)
TELLING = re.compile(r"['`\"\d/:;,]")  # a path, a number, a quotation, what was expected, or what to do
REPR = re.compile(r"(\w+\.)*[A-Z]\w*(Error|Exception|Warning)\b(\(.*\)|:.*|$)|'[^']*'|None|\(\)|-?\d+")
FRAME = re.compile(r'File "([^"]*txport/[^"]*)", line (\d+)')  # of ours
TRACEBACK = "Traceback (most recent call last)"

KINDS = (
    "traceback",
    "exit code",
    "message",
    "files outside",
    "control characters",
    "raw HTML",
    "JSON",
    "memory",
    "hang",
    "crash",
)


class Breach(NamedTuple):
    """One broken rule."""

    kind: str  # of `KINDS`
    what: str


Files = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Ended:
    """How a command ended; `written` are paths outside its place that it opened to write, moved or removed."""

    code: int
    out: str
    err: str
    peak: int  # bytes
    before: Files = field(default_factory=dict)
    after: Files = field(default_factory=dict)
    written: tuple[str, ...] = ()


def snapshot(place: Place) -> Files:
    """All that lies in a place but what it may write: path -> what would change if somebody wrote there."""
    return dict(_walk(place.root, place.root, {place.out, place.root / "streams"}))


def _walk(folder: Path, root: Path, left_out: set[Path]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for path in folder.iterdir():
        if path in left_out:
            continue
        seen = path.lstat()
        is_folder = stat.S_ISDIR(seen.st_mode)
        # Opening a device or a FIFO changes nothing that a listing tells.
        changing = () if is_folder else (seen.st_size, seen.st_mtime_ns, seen.st_ino)
        yield str(path.relative_to(root)), (seen.st_mode, *changing)
        if is_folder:
            yield from _walk(path, root, left_out)


def judge(command: Command, ended: Ended, place: Place) -> list[Breach]:
    """Every rule that a command broke."""
    always = [*_outside(command, ended, place), *_memory(ended)]
    if broken := list(_traceback(ended)):  # what else is wrong comes of it
        return [*broken, *always]
    said = [*_message(command, ended), *_control_characters(command, ended, place), *_pages(place)]
    return [*_exit_code(command, ended), *said, *_json(command, ended, place), *always]


def _traceback(ended: Ended) -> Iterator[Breach]:
    for text in (ended.out, ended.err):
        if TRACEBACK in text:
            where = FRAME.findall(text)[-1:] or [("nowhere", "0")]
            yield Breach(
                "traceback", f"{text.strip().splitlines()[-1][:300]} at {Path(where[0][0]).name}:{where[0][1]}"
            )


def _exit_code(command: Command, ended: Ended) -> Iterator[Breach]:
    if ended.code not in command.codes:
        wanted = " or ".join(map(str, sorted(command.codes)))
        yield Breach("exit code", f"{ended.code}, expected {wanted}; {_first(ended.err)}")


def _first(text: str) -> str:
    return (text.strip().splitlines() or ["nothing on stderr"])[0][:200]


def _message(command: Command, ended: Ended) -> Iterator[Breach]:
    """A failure is one line that says what was found; a check that failed may say so on stdout; a success is silent."""
    told = WARNED.sub("", ended.err)
    lines = told.removesuffix("\n").split("\n") if told else []
    is_usage = ended.code == 2 and ended.err.startswith("Usage: ")
    if is_usage and lines[-1].startswith("Error: "):
        return
    if ended.code == 0 and lines and not SKIPPED.fullmatch(told):
        yield Breach("message", f"a success with {_first(told)!r} on stderr")
    if ended.code in (0, 1) and not lines:
        return
    if command.name == "import" and ended.code == 2 and not lines and VERDICT.search(ended.out):
        return  # its table says all that does not fit
    if ended.code in (2, 3):
        yield from (Breach("message", problem) for problem in _faults(lines))


def _faults(lines: list[str]) -> Iterator[str]:
    if len(lines) != 1:
        yield f"{len(lines)} lines on stderr, expected one: {' | '.join(lines)[:300]!r}"
        return
    said = lines[0].removeprefix("txport: ")
    if said == lines[0]:
        yield f"does not begin with txport: {lines[0][:200]!r}"
    longest = LONGEST_LIST if any(words in said for words in LISTING) else LONGEST_MESSAGE
    if len(said) > longest:
        yield f"{len(said)} characters, expected at most {longest}: {said[:150]!r}"
    if not TELLING.search(said) or REPR.fullmatch(said):
        yield f"says neither what was found nor what to do: {said[:200]!r}"


def _outside(command: Command, ended: Ended, place: Place) -> Iterator[Breach]:
    """Only OUT may change, and where `export` notes its checkpoint; a command that fails leaves nothing half-made."""
    noted = ORIGINS if command.name == "export" else ()
    for path in sorted(ended.before.keys() | ended.after.keys()):
        if ended.before.get(path) != ended.after.get(path) and not (path in noted or path.startswith(noted[-1:])):
            how = "added" if path not in ended.before else "removed" if path not in ended.after else "changed"
            yield Breach("files outside", f"{path} was {how}")
    yield from (Breach("files outside", f"{path} was opened to write, moved or removed") for path in ended.written)
    hidden = [path.name for path in place.out.iterdir() if path.name.startswith(".")]
    if hidden:
        yield Breach("files outside", f"{', '.join(hidden)} was left in OUT")
    if command.name in ("export", "import") and ended.code and (place.out / "made").exists():
        yield Breach("files outside", f"OUT is there though the {command.name} failed")


def _control_characters(command: Command, ended: Ended, place: Place) -> Iterator[Breach]:
    """The output of a model is data, and JSON escapes its own; all else is for terminals and pages."""
    texts = {"stderr": ended.err}
    if command.name not in ("run", "score") and "--json" not in command.arguments:
        texts["stdout"] = ended.out
    texts |= {path.name: _text(path) for path in place.out.glob("*") if path.suffix in (".md", ".xml", ".html")}
    for name, text in texts.items():
        if found := CONTROLS.search(text):
            yield Breach(
                "control characters", f"{name} holds {found[0]!r}: {text[max(0, found.start() - 40) :][:100]!r}"
            )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _pages(place: Place) -> Iterator[Breach]:
    for path in place.out.glob("*"):
        if path.suffix == ".md" and (found := TAGS.search(_outside_code(_text(path)))):
            yield Breach("raw HTML", f"{path.name} holds {found[0]!r}")
        if path.suffix == ".html" and "onerror=alert(1)>" in _text(path):
            yield Breach("raw HTML", f"{path.name} holds the tag of a name")
        if path.suffix == ".xml":
            try:
                ET.fromstring(_text(path))  # noqa: S314 - our own report
            except ET.ParseError as error:
                yield Breach("raw HTML", f"{path.name} is not XML: {error}")


def _outside_code(text: str) -> str:
    """Markdown without what stands between backticks, which is shown as it is."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def _json(command: Command, ended: Ended, place: Place) -> Iterator[Breach]:
    texts = {path.name: [_text(path)] for path in place.out.glob("*.json")}
    if "--json" in command.arguments and ended.code in (0, 1):
        is_lines = command.name in ("run", "score")
        texts["stdout"] = ended.out.removesuffix("\n").split("\n") if is_lines else [ended.out]
    for name, documents in texts.items():
        for document in documents:
            try:
                json.loads(document, parse_constant=_no_number)
            except ValueError as error:
                yield Breach("JSON", f"{name}: {error}; {document[:100]!r}")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _memory(ended: Ended) -> Iterator[Breach]:
    if ended.peak > MOST_MEMORY:
        yield Breach("memory", f"{ended.peak / 1e6:.0f} MB, allowed {MOST_MEMORY / 1e6:.0f}")
