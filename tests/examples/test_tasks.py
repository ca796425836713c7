"""The examples for causal models and encoders, in JavaScript and C++, give what txport gives."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.run import HERE
from tests.bundles import drivers
from tests.examples.test_c import build
from tests.javascript import node
from txport.bundles.bundle import Bundle


@pytest.fixture(scope="module", params=[case for case in drivers.CASES if case not in ("seq2seq", "rules", "speech")])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return drivers.made(request.param, "portable", "fp32", tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("cpp", tmp_path_factory.mktemp("built"))


def printed(program: list[str | Path], bundle: Bundle) -> str:
    """What a program prints that is given the bundle and ids; one that continues a prompt is told how far."""
    most = [] if bundle.manifest.facts.task == "encode" else [bundle.manifest.generation["max_new_tokens"]]
    command = [*program, bundle.path, *most, *drivers.source_of(bundle)]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def program_for(bundle: Bundle) -> str:
    return "encode" if bundle.manifest.facts.task == "encode" else "continue"


def test_in_javascript(made: Bundle) -> None:
    if not (HERE / "node" / "node_modules").is_dir():
        pytest.skip("needs the packages of examples/node: `make test` installs them by npm")
    text = printed([node(), HERE / "node" / f"{program_for(made)}.mjs"], made)
    found = json.loads(text) if program_for(made) == "encode" else list(map(int, text.split()))
    assert drivers.same(found, drivers.right(made), made), text


def test_in_cpp(made: Bundle, built: Path) -> None:
    found: Any = [float(number) for number in printed([built / program_for(made)], made).split()]
    if made.manifest.facts.ability == "classify" and made.manifest.facts.function_to_apply == "softmax":
        found = found[0]  # the number of a label
    assert drivers.same(found, drivers.right(made), made), found
