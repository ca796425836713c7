"""Every client gives a trained model's translations: those of Python, which are the right ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txport
from tests import transformers_js
from tests.javascript import on_node
from tests.tiny import unproven
from tests.trained import KINDS, sentences, trained
from txport import cli
from txport.errors import TextError

ROOT = Path(__file__).parents[2]
PAIRS = sentences()[:24]
TEXTS = [*(text for text, _ in PAIRS), "the  dog sees\na cat.", " a girl likes the book. "]
STRANGE = ["the zebra sees a cat.", "the 😀 hears a bird, yes."]  # with what is unknown to a vocabulary


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, trained(tmp_path_factory.mktemp("trained"), request.param)


@pytest.fixture(scope="module")
def made(checkpoint: tuple[str, Path]) -> tuple[str, dict[str, Path]]:
    """The kind, and a bundle for each target."""
    kind, folder = checkpoint
    bundles = {target: unproven(folder, folder.parent / target, target=target).path for target in ("portable", "cpu")}
    return kind, bundles


@pytest.fixture(scope="module")
def expected(made: tuple[str, dict[str, Path]]) -> list[str]:
    model = txport.load(made[1]["portable"], threads=1)
    return [each.output for each in model.generate([*TEXTS, *STRANGE], beams=1)]


def test_its_translations_are_right(expected: list[str]) -> None:
    right = [german == found for (_, german), found in zip(PAIRS, expected, strict=False)]
    assert sum(right) >= 0.9 * len(PAIRS)
    assert len(set(expected)) > 10


def test_the_command_line(
    made: tuple[str, dict[str, Path]], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for bundle in made[1].values():
        cli.main(["run", str(bundle), *(text for text, _ in PAIRS), "--beams", "1"])
        assert capsys.readouterr().out.splitlines() == expected[: len(PAIRS)]


def test_transformers_js(made: tuple[str, dict[str, Path]], expected: list[str]) -> None:
    kind, bundles = made
    task = "pair" if kind == "paired" else "translation"
    assert transformers_js.generate(bundles["portable"], task, TEXTS) == expected[: len(TEXTS)]


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("given", ["function", "pair", "both", "auto"])
def test_the_package_for_javascript(
    given: str, target: str, made: tuple[str, dict[str, Path]], expected: list[str]
) -> None:
    """By each way to give a tokenizer that its README names, unknown characters included."""
    library = transformers_js.tokenizers()
    if given == "auto" and target == "cpu":
        pytest.skip("transformers.js reads folders of portable bundles")
    requests = [("generate", text, {"beams": 1}) for text in (*TEXTS, *STRANGE)]
    found = on_node(made[1][target], requests, library=library, given=given, load={"threads": 1})
    assert [each.get("output", each) for each in found] == expected


def test_what_is_unknown_in_javascript(made: tuple[str, dict[str, Path]]) -> None:
    """A library's tokenizer takes the unknown token; here it is left out, or refused, as in Python."""
    library = transformers_js.tokenizers()
    bundle = made[1]["portable"]
    model = txport.load(bundle)
    modes: list[Any] = ["token", "skip", "error"]
    requests = [("encode", text, mode) for mode in modes for text in STRANGE]
    found = iter(on_node(bundle, requests, library=library, given="function"))
    for mode in modes:
        for text in STRANGE:
            answer = next(found)
            try:
                assert answer == model.encode(text, mode), (mode, text)
            except TextError:
                assert answer["error"] == "TextError", answer
                assert "has characters outside the vocabulary" in answer["message"]


def test_a_prefix_is_tokens_of_the_vocabulary(made: tuple[str, dict[str, Path]]) -> None:
    bundle = made[1]["portable"]
    model = txport.load(bundle)
    first, *_ = model.generate(TEXTS[0], beams=1)[0].hypotheses
    prefix = " ".join(model.tokenizer.tokens(first.tokens[:2]))
    other = model.generate(TEXTS[1], beams=1, prefixes=prefix)[0].output
    (found,) = on_node(
        bundle, [("generate", TEXTS[1], {"prefix": prefix})], library=transformers_js.tokenizers(), given="function"
    )
    assert found["output"] == other


def test_the_example_in_python(made: tuple[str, dict[str, Path]], expected: list[str]) -> None:
    kind, bundles = made
    if kind == "paired":
        pytest.skip("the example reads bundles of one vocabulary")
    command = [sys.executable, str(ROOT / "examples" / "python" / "pronounce.py"), str(bundles["portable"]), *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected[: len(TEXTS)]
