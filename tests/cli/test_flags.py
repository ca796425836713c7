"""Errors of the library name arguments of Python; commands name their options instead."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import click
import pytest

import txport
from txport.api import diagnose, release
from txport.api.diagnose import Diagnosis
from txport.cli import main
from txport.cli.commands import cli
from txport.cli.outputs import ARGUMENT, Command
from txport.proof.matrix import NOT_AVAILABLE, Cell, Matrix
from txport.runtimes.ort.nvidia.driver import Driver
from txport.runtimes.ort.nvidia.problems import Nvidia, Problem

PACKAGE = Path(txport.__file__).parent
FLAG = re.compile(r"(?<![\w-])(?<!var\()--[a-z][\w-]+")  # var(--x) is a colour of a page
WHOLE = re.compile(r"`[^`]*`|\b(?:pip|docker)\b[^,;)]*")  # a command to type, of whatever program


def texts(file: Path) -> list[tuple[int, str]]:
    """The strings of a module by line, without docstrings; "" in place of a value in an f-string."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "" for part in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inner:
            found.append((node.lineno, node.value))
    return found


def named(text: str) -> list[str]:
    return FLAG.findall(WHOLE.sub("", text))


def test_no_text_of_the_library_names_an_option_outside_a_whole_command() -> None:
    assert named("export --target cpu, or `txport run --ids`; pip install --force-reinstall x") == ["--target"]
    files = [file for file in PACKAGE.rglob("*.py") if not file.is_relative_to(PACKAGE / "cli")]
    assert len(files) > 100
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line}: {text}" for file in files for line, text in texts(file) if named(text)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("out exists; force=True replaces it", "out exists; --force replaces it"),
        ("the model's own; give provider='cpu'", "the model's own; give --provider cpu"),
        ("again without weights=False", "again without --weights none"),
        ("name it with checkpoint=FOLDER; rtol=0.5 is", "name it with --checkpoint FOLDER; --rtol 0.5 is"),
        ("beams are at least nbest, got 'beams force=True'", "--beams are at least --nbest, got 'beams force=True'"),
        ("d_model=5 and --beams stay", "d_model=5 and --beams stay"),
    ],
)
def test_a_command_names_its_options(message: str, expected: str) -> None:
    run = cli.commands["run"]
    assert isinstance(run, Command)
    with click.Context(cli) as top, click.Context(run, parent=top):
        assert run.in_flags(message) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("'x' is not in the vocabulary; unknown='skip' leaves it out", "'x' is not in the vocabulary"),
        ("a; free some, or use provider='cpu', or wait; b", "a; free some, or wait; b"),
        ("a; export it again with weights=True", "a; export it again with weights=True"),
        ("a: give trust_code=True and provider='cpu'; b", "a; b"),
        ("a; 'x; provider=1' is unknown='skip'", "a"),
        ("provider='cpu' it is; from_tf=True, too", "provider='cpu' it is; from_tf=True, too"),
    ],
)
def test_a_command_gives_no_advice_that_it_cannot_follow(message: str, expected: str) -> None:
    command = cli.commands["inspect"]
    assert isinstance(command, Command)
    with click.Context(cli) as top, click.Context(command, parent=top):
        assert command.followable(message) == expected


@functools.cache
def advice() -> list[str]:
    """Texts of the library that name an argument."""
    every = {text for file in PACKAGE.rglob("*.py") for _, text in texts(file)}
    found = sorted(text for text in every if any(each["name"] for each in ARGUMENT.finditer(text)))
    assert len(found) > 30
    return found


@pytest.mark.parametrize("name", cli.commands)
def test_no_advice_of_the_library_names_an_option_that_a_command_lacks(name: str) -> None:
    """Unless the command that has it is named too."""
    command = cli.commands[name]
    assert isinstance(command, Command)
    given = {flag for option in command.params for flag in option.opts}
    with click.Context(cli) as top, click.Context(command, parent=top):
        said = [command.in_flags(command.followable(f"what is wrong; {text}"), {}) for text in advice()]
    for text in said:
        others = [other for word, other in cli.commands.items() if re.search(rf"\b{word}", text)]
        allowed = given.union(*(option.opts for other in others for option in other.params))
        assert allowed.issuperset(named(text)), text


def test_other_errors_keep_words_that_are_arguments_too() -> None:
    run = cli.commands["run"]
    assert isinstance(run, Command)
    with click.Context(cli) as top, click.Context(run, parent=top):
        assert run.in_flags("4 beams; single=True", {}) == "4 beams; --single"


def test_results_of_a_command_name_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell("cpu", "fp32", "ort", "cpu", NOT_AVAILABLE, "export it with target='portable'")
    monkeypatch.setattr(release, "matrix", lambda *_, **__: Matrix({"checkpoint": {"name": "toy"}}, [cell]))
    main(["matrix", "toy"])
    assert "export it with --target portable" in capsys.readouterr().out
    gpu = Nvidia(Driver(is_there=False), problems=(Problem("no GPU", "a GPU", "use provider='cpu'"),))
    found = Diagnosis({}, {"tract": "use runtime='ort'"}, {}, gpu, ["give force=True"])
    monkeypatch.setattr(diagnose, "examine", lambda: found)
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit):
            main(["doctor", *options])
        out = capsys.readouterr().out
        assert re.search("use --runtime ort(?s:.*)use --provider cpu(?s:.*)give --force", out)
