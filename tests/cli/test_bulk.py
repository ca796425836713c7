"""Bulk runs: texts that the model can't take, their lines, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import txport
from tests.cli.processes import run
from txport.bundles.bundle import Bundle
from txport.errors import TextError

LONG = "bad" * 400
TEXTS = ["bad", LONG, "", "chief"]


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> txport.Model:
    return txport.load(bundle.path)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return file


def test_errors_are_returned_and_others_are_generated(model: txport.Model) -> None:
    found = model.generate(TEXTS, errors="return", batch_size=2)
    good = model.generate(["bad", "chief"])
    assert [found[0], found[3]] == good
    assert [bool(each.error) for each in found] == [False, True, True, False]
    assert [(each.output, each.hypotheses, each.finish) for each in found[1:3]] == [("", [], None)] * 2
    assert ("error" in found[1].to_dict(), "error" in found[0].to_dict()) == (True, False)
    with pytest.raises(TextError) as raised:
        model.generate(TEXTS)
    assert found[1].error == str(raised.value)


def test_a_truncated_text_is_the_longest_that_fits(model: txport.Model) -> None:
    cut = model.truncate(LONG)
    assert LONG.startswith(cut)
    model.check(cut)
    with pytest.raises(TextError):
        model.check(LONG[: len(cut) + 1])
    assert model.truncate("bad") == "bad"


def test_a_text_with_unknown_characters_is_not_cut_before_them(bundle: Bundle, model: txport.Model) -> None:
    assert model.truncate("b@d") == "b@d"
    done = run("run", bundle.path, "b@d", "--truncate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "characters outside the vocabulary: '@'" in done.stderr


@pytest.mark.parametrize("kind", ["skip", "column"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_errors_in_outputs_name_options(kind: str, form: list[str], bundle: Bundle) -> None:
    done = run("run", bundle.path, "b@d", "--errors", kind, *form)
    assert done.returncode == 0
    said = done.stdout if form or kind == "column" else done.stderr
    assert "outside the vocabulary: '@'; --unknown skip leaves them out" in said


def test_by_default_nothing_is_generated(lines: Path, bundle: Bundle, tmp_path: Path) -> None:
    lines.write_text(f"bad\n{LONG}\n", encoding="utf-8")
    output = tmp_path / "out"
    done = run("run", bundle.path, "--input", lines, "--input", lines, "--output", output)
    assert (done.returncode, done.stdout, output.exists()) == (2, "", False)
    assert done.stderr.startswith(f"txport: {lines}, line 2: ")
    assert "the model takes at most" in done.stderr
    done = run("run", bundle.path, input=lines.read_text(encoding="utf-8"))
    assert (done.returncode, done.stderr[:32]) == (2, "txport: standard input, line 2: ")


def test_lines_of_outputs_match_lines_of_texts(lines: Path, bundle: Bundle, model: txport.Model) -> None:
    good = [each.output for each in model.generate(["bad", "chief"])]
    done = run("run", bundle.path, "--input", lines, "--errors", "skip")
    assert (done.returncode, done.stdout.splitlines()) == (0, [good[0], "", "", good[1]])
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [
        f" {lines}, line {number} is skipped" for number in (2, 3)
    ]
    done = run("run", bundle.path, "--input", lines, "--errors", "column")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    errors = [each.error or "" for each in model.generate(TEXTS, errors="return")]
    assert (done.returncode, done.stderr) == (0, "")
    assert rows == [[output, error] for output, error in zip([good[0], "", "", good[1]], errors, strict=True)]
    done = run("run", bundle.path, "--input", lines, "--errors", "column", "--json")
    assert [json.loads(line).get("error", "") for line in done.stdout.splitlines()] == errors


def test_long_texts_are_cut(lines: Path, bundle: Bundle, model: txport.Model) -> None:
    lines.write_text(f"bad\n{LONG}\n", encoding="utf-8")
    expected = [each.output for each in model.generate(["bad", model.truncate(LONG)])]
    done = run("run", bundle.path, "--input", lines, "--truncate")
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)
    assert done.stderr == "txport: 1 text was cut to what the model takes\n"
