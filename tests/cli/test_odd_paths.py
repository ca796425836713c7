"""Texts that can't be a path, in place of each path: one error of ours."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - nothing is read
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import txport
from txport.api import model as api
from txport.bundles.bundle import Bundle
from txport.cli.commands import cli
from txport.cli.outputs import InputPath, OutputFile, OutputFolder
from txport.errors import TxportError, UnsupportedError

ODD = {"a null byte": "a\0b", "a lone surrogate": "a\ud800b", "too long": "x" * 5000}
NAMES = ("checkpoint", "bundle", "source", "against", "inputs", "out")  # parameters that are paths or other names


def commands(bundle: Path) -> Iterator[tuple[str, str]]:
    """Each command with each parameter that is a path; {} is where the odd one goes."""
    for name, command in cli.commands.items():
        needed = [
            each for each in command.params if isinstance(each, click.Argument) and (each.nargs == 1 or each.required)
        ]
        for odd in command.params:
            is_name = odd.name in NAMES and odd.type is click.STRING
            if not (isinstance(odd.type, InputPath | OutputFile | OutputFolder) or is_name):
                continue
            values = {each.name: "{}" if each is odd else str(bundle) for each in needed}
            option = [] if odd in needed else [odd.opts[-1], "{}"]
            yield name, "\n".join([*(str(each) for each in values.values()), *option])


def test_each_parameter_that_is_a_path(bundle: Bundle) -> None:
    cases = list(commands(bundle.path))
    assert {name for name, _ in cases} == set(cli.commands) - {"doctor", "presets"}
    for name, arguments in cases:
        for odd in ODD.values():
            given = [each.format(odd) if each == "{}" else each for each in arguments.split("\n")]
            done = CliRunner().invoke(cli, [name, *given])
            assert isinstance(done.exception, TxportError), (name, given, done.exception)
            assert len(str(done.exception)) < 1000


@pytest.mark.parametrize(("what", "odd"), ODD.items())
def test_each_function(what: str, odd: str, tmp_path: Path, bundle: Bundle) -> None:
    for function, arguments in (
        (txport.load, [odd]),
        (api.load_checkpoint, [odd]),
        (txport.export, [odd, tmp_path / "out"]),
        (txport.export, ["g2p-en", tmp_path / odd]),
    ):
        with pytest.raises(TxportError, match=f"can't be a path: it .*{what}"):
            function(*arguments)  # type: ignore[operator]


def test_a_model_is_not_pickled(bundle: Bundle) -> None:
    model = txport.load(bundle.path)
    assert copy.copy(model).generate("bad") == model.generate("bad")
    for work in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UnsupportedError, match=r"pass the bundle's path, and call txport.load in each process"):
            work(model)  # type: ignore[operator]
