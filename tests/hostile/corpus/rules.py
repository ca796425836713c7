"""Rules of the user's own, drafts of such rules, and code that is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command
from tests.hostile.corpus.trainers import imported
from tests.hostile.corpus.values import NAME
from txport.models.names import RULES, WEIGHTS

EITHER = (GOOD, BAD)


def cases() -> Iterator[Case]:
    """Every rule, draft and file of code."""
    yield from (Case(f"rules/{name}", _rules(text, (BAD,))) for name, text in RULE_TEXTS.items())
    yield from (Case(f"rules/{name}", _rules(text, EITHER)) for name, text in STRANGE_RULES.items())
    yield from (Case(f"rules/draft {name}", _draft(change)) for name, change in DRAFTS.items())
    yield from (Case(f"rules/code {name}", _code(text)) for name, text in CODE.items())


def _rules(more: str, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    """More lines behind rules that fit."""

    def make(place: Place) -> list[Command]:
        folder = place.base("rules")
        text = (folder / RULES).read_text(encoding="utf-8")
        (folder / RULES).write_text(text + more, encoding="utf-8")
        return [*imported(folder, place, codes), command("import", folder, "--json", codes=codes)]

    return make


def _rule(rule: str) -> str:
    return f"\n[[rule]]\n{rule}\n"


RULE_TEXTS = {
    "that explode": _rule("drop = '(a+)+$'") * 3,
    "that grow names": _rule("rename = { pattern = '(.+)', to = '\\1\\1\\1\\1\\1\\1\\1\\1' }") * 20,
    "that split all, again and again": _rule("split = { pattern = '.', to = ['a.\\g<0>', 'b.\\g<0>'] }") * 30,
    "that unstack all": _rule("unstack = { pattern = '.', to = 'a.{}' }") * 3,
    "that join all": _rule("concat = { patterns = ['encoder', 'decoder'], to = 'x' }"),
    "that view what is not there": _rule("permute = { pattern = '.', view = [7, 7], order = [1, 0] }"),
    "that take a row of none": _rule("take = { pattern = '.', row = 16777000 }"),
    "that transpose all": _rule("transpose = '.'"),
    "that squeeze all": _rule("squeeze = '.'") * 2,
    "that shift by infinity": _rule("shift = { pattern = '.', by = inf }"),
    "that drop all": _rule("drop = '.'"),
    "that tie all": _rule("tie = { name = 'projection.weight', of = 'projection.weight' }"),
    "of a backreference to nothing": _rule("rename = { pattern = 'a(b)?', to = '\\1c' }"),
    "of conditions": _rule("drop = '(?(1)a|b)'"),
    "of flags": _rule("drop = 'a(?i)'"),
    "of lookbehinds": _rule("drop = '(?<=a+)b'"),
    "of 200 groups": _rule("drop = '" + "(" * 200 + ")" * 200 + "'"),
    "of 100,000 groups": _rule("drop = '" + "(" * 100_000 + ")" * 100_000 + "'"),
    "of repeats of repeats": _rule("drop = 'a{65535}{65535}'"),
    "of a question": _rule("drop = 'QUESTION: which?'"),
    "of a table of tables": _rule("drop = { pattern = { pattern = 'a' } }"),
    "with a place": "\nat = 'a.b'\n",
}


STRANGE_RULES = {
    "that shift by much": _rule("shift = { pattern = '.', by = 1e7 }"),
    "of constants everywhere": _rule("drop = '.'") + _rule("constant = { pattern = '.*', value = 1.0 }"),
}


def _draft(change: Callable[[Path], object]) -> Callable[[Place], list[Command]]:
    """Of weights that lie where a draft may be written, beside them."""

    def make(place: Place) -> list[Command]:
        import shutil

        folder = Path(shutil.copytree(place.sound.base("loose"), place.out / "made.loose"))
        change(folder)
        draft = ("import", folder, "--draft-map", folder / RULES)
        return [
            command(*draft, codes=EITHER),
            command(*draft, codes=(BAD,)) if (folder / RULES).exists() else command("import", folder, codes=EITHER),
            command(
                "import", folder / WEIGHTS, "--draft-map", folder / "b.toml", "--architecture", "llama", codes=EITHER
            ),
        ]

    return make


def _names(rename: Callable[[str], str], many: int = 1) -> Callable[[Path], None]:
    """Weights whose names are others."""

    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / WEIGHTS)
        found = {f"{rename(name)}{at or ''}": each.clone() for name, each in weights.items() for at in range(many)}
        save_file(found, folder / WEIGHTS)

    return change


def _text(name: str, text: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(text)


DRAFTS: dict[str, Callable[[Path], object]] = {
    "of what is sound": lambda folder: None,
    "of names of quotes": _names(lambda name: f"a'\"\\\n[[rule]]\n{name}"),
    "of names of escapes": _names(lambda name: f"{NAME}{name}"),
    "of names of patterns": _names(lambda name: f"(.*)+[{name}"),
    "of names of numbers": _names(lambda name: name.replace("attention", "7.7.7")),
    "of numbers of 5,000 digits": _names(lambda name: name.replace(".0.", f".{'9' * 5_000}.")),
    "of names of 10,000 letters": _names(lambda name: "a" * 10_000 + name),
    "of names without end": _names(lambda name: ".".join("a" * 900) + name),
    "of many weights": _names(lambda name: name, 4),
    "of sizes of another program": _text("hparams.json", b'{"num_heads": 0, "layer_norm_eps": "x", "eps": null}'),
    "of sizes of NaN": _text("hparams.json", b'{"num_heads": NaN}'),
    "of sizes of 200,000 levels": _text("hparams.json", b"[" * 200_000),
    "of sizes of escapes": _text(
        "hparams.json", json.dumps({"activation_function": NAME, "pad_token_id": NAME}).encode()
    ),
    "of a pickle beside": _text("model.pt", b"cbuiltins\nopen\n(S'pickled'\nS'w'\ntR."),
    "in the way of a link": lambda folder: (folder / RULES).symlink_to("../../outside/precious.bin"),
    "in the way of a link to itself": lambda folder: (folder / RULES).symlink_to(RULES),
    "in the way of a folder": lambda folder: (folder / RULES).mkdir(),
}


def _code(text: str) -> Callable[[Place], list[Command]]:
    """Code of the user's own, which is trusted, and may still be wrong."""

    def make(place: Place) -> list[Command]:
        file = place.inputs / "model.py"
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        export = ("export", f"{file}:adapter", place.out / "made")
        return [command(*export, codes=[BAD]), command(*export, "--trust-code", codes=[BAD])]

    return make


HEAD = "from torch import nn\nfrom txport import adapters\n"
TOKENS = "adapters.Tokens(size=9, longest=9, pad=0, start=1, ends=(2,))"
CODE = {
    "of nothing": "",
    "that is none": "def (",
    "of bytes": "\x00\x01",
    "of a lone surrogate": "a = '\ud800'",
    "of 20,000 levels": "a = " + "(" * 20_000,
    "that ends the process": "raise SystemExit(0)",
    "that is interrupted": "raise ValueError('\\x1b[31mred\\nsecond line')",
    "that calls itself": "def a():\n    a()\na()",
    "of a number": "adapter = 5",
    "without weights": f"{HEAD}adapter = adapters.causal(tokens={TOKENS}, width=4, step=print, load=nn.Identity)",
    "whose step gives nothing": (
        f"{HEAD}adapter = adapters.causal(tokens={TOKENS}, width=4, step=lambda *a: None, load=lambda: nn.Linear(4, 4))"
    ),
    "whose sizes are huge": f"{HEAD}adapter = adapters.causal(tokens=adapters.Tokens(size=2**40, longest=9, pad=0),"
    " width=4, step=print)",
    "whose load gives a text": f"{HEAD}adapter = adapters.causal(tokens={TOKENS}, width=4, step=print, load=str)",
}
