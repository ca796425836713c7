"""How a bundle wants its texts (`text.json`), what people say in chats, and languages that there are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command, edit_values, fix_hashes
from tests.hostile.corpus.manifests import BYTES as NO_JSON
from tests.hostile.corpus.values import NAME, spell
from txport.models.names import TEXT

EITHER = (GOOD, BAD)


def cases() -> Iterator[Case]:
    """Every file, template and message."""
    for name in ("empty", "a list", "a list of 200,000 levels", "UTF-16", "cut in the middle"):
        yield Case(f"chats/text.json {name}", _bytes(NO_JSON[name]))
    for name, template in TEMPLATES.items():
        yield Case(f"chats/a template {name}", _value("chat", ("chat", "template"), template, EITHER))
    yield from (Case(f"chats/messages {name}", _said(line, codes)) for name, (line, codes) in LINES.items())
    yield from (Case(f"chats/option {' '.join(each)[:60]!a}", _option(each)) for each in OPTIONS)


def readers(kind: str, place: Place, codes: tuple[int, ...]) -> list[Command]:
    """The commands that read how texts are used."""
    bundle = place.inputs / kind
    verify = tuple({*codes, FAILED, BAD})
    more = ("--chat",) if kind == "chat" else ("--target-language", "fr")
    short = ("--threads", 1, "--max-new-tokens", 3)
    return [
        command("run", bundle, "Hello there", *short, *more, codes=codes),
        command(
            "run", bundle, *short, "--json", *more, stdin=b'Hello\n[{"role": "user", "content": "a"}]\n', codes=EITHER
        ),
        command("run", bundle, "Hello", *short, codes=EITHER),
        command("inspect", bundle, codes=EITHER),
        command("verify", bundle, "--threads", 1, codes=verify),
    ]


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        commands = []
        for kind in ("chat", "languages"):
            bundle = place.bundle(kind, kind)
            (bundle / TEXT).write_bytes(change((bundle / TEXT).read_bytes()))
            fix_hashes(bundle)
            commands += readers(kind, place, (BAD,))
        return commands

    return make


def _value(kind: str, path: tuple[str, ...], value: Any, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle(kind, kind)

        def edit(values: Any) -> None:
            for key in path[:-1]:
                values = values[key]
            values[path[-1]] = value

        edit_values(bundle / TEXT, edit)
        text = spell((bundle / TEXT).read_text(encoding="utf-8", errors="surrogatepass"))
        (bundle / TEXT).write_text(text, encoding="utf-8", errors="surrogatepass")
        fix_hashes(bundle)
        return readers(kind, place, codes)

    return make


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GROWING = "{% set n = namespace(a='a') %}{% for b in range(60) %}{% set n.a = n.a ? n.a %}{% endfor %}"
TEMPLATES = {
    "of nothing": "",
    "that is none": "{{ messages",
    "of 20,000 levels": "{% if a %}" * 20_000 + "{% endif %}" * 20_000,
    "of 20,000 brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "of 20,000 sums": "{{ 1" + "+1" * 20_000 + " }}",
    "that loops": LOOP,
    "that loops in three": "{% for a in range(99999) %}" * 3 + "a" + "{% endfor %}" * 3,
    "that loops in a macro": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 1 }}{% endmacro %}{{ f(60) }}",
    "that grows": GROWING.replace("?", "+"),
    "that multiplies": "{{ 'a' * 9999999999 }}",
    "that multiplies lists": "{{ [0] * 9999999999 }}",
    "that says itself": "{% for a in range(99999) %}" + "a" * 100_000 + "{% endfor %}",
    "of powers": "{{ 9 ** 9 ** 9 }}",
    "of powers that are large": "{{ (10 ** 4000000) % 7 }}",
    "that looks around": "{{ self._TemplateReference__context }}{{ cycler.__init__.__globals__ }}",
    "that looks into what is given": "{{ messages.__class__.__mro__ }}",
    "that imports": "{% import 'os' as os %}",
    "that extends itself": "{% extends self %}",
    "that reads a file": "{% include '/etc/passwd' %}",
    "that calls": "{{ messages() }}",
    "of a time of escapes": "{{ strftime_now('\\x1b[31m\\0') }}",
    "of a lone surrogate": "{{ '\\ud800' }}",
    "of the mark": "\ufdd0{{ messages }}",
    "that raises": "{{ raise_exception(messages) }}",
    "that raises escapes": "{{ raise_exception('\\x1b[31mred\nsecond line') }}",
    "that raises much": "{{ raise_exception('a' * 99999) }}",
    "of 100,000 variables": "".join(f"{{{{ a{at} }}}}" for at in range(25_000)),
}


def _said(line: bytes, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        run = ("run", place.sound.bundle("chat"), "--chat", "--threads", 1, "--max-new-tokens", 2)
        file = place.inputs / "said"
        file.write_bytes(line + b"\n")
        return [
            command(*run, stdin=line + b"\n", codes=codes),
            command(*run, "--input", file, "--unknown", "skip", "--json", codes=EITHER),
        ]

    return make


def _message(content: Any, role: Any = "user", **more: Any) -> bytes:
    return spell(json.dumps([{"role": role, "content": content, **more}])).encode("utf-8", "surrogatepass")


LINES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "of what is sound": (_message("Hello"), (GOOD,)),
    "of an open bracket": (b"[{", (BAD,)),
    "of 200,000 levels": (b"[{" + b'"a": [{' * 100_000, (BAD,)),
    "of 900 levels": (_message(json.loads("[" * 900 + "]" * 900)), EITHER),
    "of a lone surrogate": (b'[{"role": "user", "content": "\\ud800"}]', EITHER),
    "of a lone surrogate as a key": (b'[{"role": "user", "content": "a", "\\ud800": 1}]', EITHER),
    "of a role of escapes": (_message("a", NAME), (BAD,)),
    "of special tokens": (_message("<s>[INST]</s>" * 3), EITHER),
    "of 1 MB": (_message("<" * 10**6), EITHER),
    "of much that begins a token": (_message("</" * 50_000), EITHER),
    "of 30,000 messages": (b"[" + b",".join([_message("a")[1:-1]] * 30_000) + b"]", EITHER),
    "of the mark": (_message("a\ufdd0b"), (BAD,)),
}
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--source-language", NAME),
    ("--target-language", NAME),
    ("--target-language", "\udcff"),
    ("--target-language", ""),
    ("--source-language", "x" * 100_000, "--target-language", "fr"),
    ("--target-language", "fr", "--ids"),
    ("--target-language", "fr", "--forced-bos-token", "__en__"),
    ("--chat", "--target-language", "fr"),
)


def _option(options: tuple[str, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        kinds = ("languages", "chat", "sentences", "portable")
        run = [command("run", place.sound.bundle(kind), "a", "--threads", 1, *options, codes=EITHER) for kind in kinds]
        return [*run, command("score", place.sound.bundle("speech"), "a", "b", "--threads", 1, codes=(BAD,))]

    return make
