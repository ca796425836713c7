"""Texts that are no text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command

LINE = 64_000_000  # bytes

TEXTS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "binary": (bytes(range(256)) * 100, (BAD,)),
    "with a NUL": (b"bad\0chief\n", (BAD,)),
    "not UTF-8": (b"bad\xffchief\n", (BAD,)),
    "UTF-16": ("bad\nchief\n".encode("utf-16"), (BAD,)),
    "empty": (b"", (BAD,)),
    "an empty line": (b"bad\n\nchief\n", (BAD,)),
    "a line without an end": (b"a" * LINE, (BAD,)),
    "a line of unknown characters": (b"%" * LINE, (BAD,)),
    "many short lines that are wrong": (b"bad\n" * 20 + b"%\n" * 100_000, (BAD,)),
    "escapes": (b"bad\x1b[31m\x9b\n", (BAD,)),
    "text that runs backwards": ("bad\u202echief\u2066\n".encode(), (BAD,)),
    "lines of Unicode": ("bad\u2028chief\u0085di'ed\n".encode(), (BAD,)),
    "special tokens": (b"<s></s><pad><unk>\n", (BAD,)),
    "a text too long": (b"abc" * 100 + b"\n", (BAD,)),
}


def cases() -> Iterator[Case]:
    """Every text, from a file, from standard input and as an argument."""
    yield from (Case(f"texts/{name}", _text(*what)) for name, what in TEXTS.items())
    yield from (Case(f"texts/argument {name}", _argument(text)) for name, text in ARGUMENTS.items())
    yield from (Case(f"texts/input {name}", _path(path)) for name, path in PATHS.items())


def _text(text: bytes, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.sound.bundle("portable")
        file = place.inputs / "texts"
        file.write_bytes(text)
        run = ("run", bundle, "--threads", 1)
        output = ("--output", place.out / "said.txt")
        return [
            command(*run, codes=codes, stdin=text),
            command(*run, "--input", file, *output, codes=codes),
            command(*run, "--input", file, "--unknown", "skip", "--json", codes=(GOOD, BAD)),
            command(*run, "--stream", codes=codes, stdin=text),
            command("score", bundle, "--threads", 1, codes=[BAD], stdin=text),
            command("score", bundle, "--threads", 1, "--input", file, codes=[BAD]),
            command("run", place.sound.bundle("cpu"), "--threads", 1, "--continuous", codes=codes, stdin=text),
        ]

    return make


ARGUMENTS = {
    "empty": "",
    "of bytes that are no UTF-8": "bad\udcff",
    "of escapes": "\x1b[31mred",
    "of lines": "bad\nchief",
    "of 100,000 characters": "ab" * 50_000,
}


def _argument(text: str) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.sound.bundle("portable")
        return [
            command("run", bundle, text, "--threads", 1, codes=[BAD]),
            command("score", bundle, text, "AA B", "--threads", 1, codes=[BAD]),
            command("score", bundle, "bad", text, "--threads", 1, codes=[GOOD, BAD]),
            command("run", bundle, "bad", "--prefixes", text, "--threads", 1, codes=[GOOD, BAD]),
            command("run", bundle, "bad", "--suppress-tokens", text, "--threads", 1, codes=[GOOD, BAD]),
            command("run", bundle, "bad", "--eos-token", text, "--threads", 1, codes=[BAD]),
        ]

    return make


PATHS = {
    "of nowhere": "nowhere",
    "that is a folder": "/",
    "of 5,000 characters": "a" * 5_000,
    "of escapes": "\x1b[31mred\u202e<img src=x>",
    "of bytes that are no UTF-8": "\udcff",
    "of nothing": "",
}


def _path(path: str) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.sound.bundle("portable")
        checkpoint = place.sound.checkpoint
        quality = ("parity", bundle, "--checkpoint", checkpoint, "--quality", path)
        return [
            command("run", bundle, "--input", path, codes=[BAD]),
            command("score", bundle, "--input", path, codes=[BAD]),
            command(*quality, codes=[BAD]),
        ]

    return make
