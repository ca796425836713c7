"""`--unknown skip` on a pipe of lines: one answer a line, also for a line of which nothing is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import txport
from tests.cli.processes import run
from txport.bundles.bundle import Bundle
from txport.errors import TextError

TEXTS = ["bad", "€€€", "", "  ", "ch€ief"]
PIPE = "\n".join(TEXTS) + "\n"
NOTE = "txport: 3 of 5 texts have no character of the vocabulary; their output is empty\n"


@pytest.fixture(scope="module")
def known(bundle: Bundle) -> list[str]:
    model = txport.load(bundle.path)
    return [each.output for each in model.generate(["bad", "chief"])]


def test_every_line_has_an_answer(bundle: Bundle, known: list[str], tmp_path: Path) -> None:
    done = run("run", bundle.path, "--unknown", "skip", input=PIPE)
    assert (done.returncode, done.stderr) == (0, NOTE)
    assert done.stdout.splitlines() == [known[0], "", "", "", known[1]]
    file = tmp_path / "lines"
    file.write_text(PIPE, encoding="utf-8")
    for arguments in (["--input", file], TEXTS, ["--input", file, "--batch-size", 2, "--workers", 2]):
        again = run("run", bundle.path, "--unknown", "skip", *arguments)
        assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, NOTE)
    streamed = run("run", bundle.path, "--unknown", "skip", "--stream", input=PIPE)
    assert (streamed.returncode, streamed.stdout) == (0, done.stdout)


def test_json_and_nbest_keep_their_form(bundle: Bundle) -> None:
    done = run("run", bundle.path, "--unknown", "skip", "--json", input=PIPE)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["input"] for line in lines] == TEXTS
    assert [len(line["hypotheses"]) for line in lines] == [1, 0, 0, 0, 1]
    assert lines[1] == {"input": "€€€", "output": "", "score": 0.0, "hypotheses": []}
    done = run("run", bundle.path, "--unknown", "skip", "--beams", 3, "--nbest", 3, input=PIPE)
    assert len(done.stdout.splitlines()) == 3 * len(TEXTS)
    assert done.stdout.splitlines()[3:12] == ["\t"] * 9


def test_without_skip_the_first_such_line_ends_it(bundle: Bundle, known: list[str]) -> None:
    for line, message in (("€", "outside the vocabulary"), ("", "line 2: the text is empty")):
        done = run("run", bundle.path, input=f"bad\n{line}\nchief\n")
        assert (done.returncode, done.stdout) == (2, f"{known[0]}\n")
        assert message in done.stderr


def test_the_api_says_that_there_is_no_hypothesis(bundle: Bundle, known: list[str]) -> None:
    model = txport.load(bundle.path)
    found = model.generate(TEXTS, unknown="skip", beams=2, nbest=2)
    assert [len(each.hypotheses) for each in found] == [2, 0, 0, 0, 2]
    assert list(model.stream("€", unknown="skip")) == [""]
    with pytest.raises(TextError, match="has no character of the vocabulary"):
        model.encode("€", "skip")
    with pytest.raises(TextError, match="outside the vocabulary"):
        model.generate("€")
