"""Every example says what txport says (`test_c` has those that are compiled); what a machine lacks for one is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import txport
from examples import run as examples
from examples.browser.build import build
from examples.run import EXAMPLES, WORDS, Example, lacks, main, run
from tests.javascript import chromium, node
from txport.api.locate import find_bundle


@pytest.fixture(scope="module")
def model() -> txport.Model:
    return txport.load("g2p-en")


@pytest.mark.parametrize("example", [each for each in EXAMPLES if not each.header], ids=lambda each: each.name)
def test_an_example_says_what_txport_says(example: Example, model: txport.Model, tmp_path: Path) -> None:
    if missing := lacks(example):
        pytest.skip(f"this machine has no {' and no '.join(missing)}")
    if example.packages is not None and not (example.packages / "node_modules").is_dir():
        pytest.skip(f"needs the packages of {example.packages}: `make test` installs them by npm")
    found = run(example, find_bundle("g2p-en").path, tmp_path)
    assert found == [each.output for each in model.generate(WORDS, **(example.options or {}))]


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda _: None)
        assert main(["browser"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("browser          skipped: this machine has no ")
    assert "chromium" in out


def test_a_wrong_example_is_told_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fails = Example(name="fails", command=("{python}", "-c", "raise SystemExit('why')"))
    lies = Example(name="lies", command=("{python}", "-c", "print('HH AH')"))
    monkeypatch.setattr(examples, "EXAMPLES", (fails, lies))
    assert main([]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "fails            failed: why"
    assert second.startswith("lies             wrong: ['HH AH'], expected ['HH EH L OW', ")
    assert main(["other"]) == 2
    assert capsys.readouterr().err == "there is no example 'other'; there are fails, lies\n"


def test_the_page_as_a_visitor_uses_it(model: txport.Model, tmp_path: Path) -> None:
    """Typed words, choices by keyboard, errors, a narrow phone; no request leaves for another host."""
    build(tmp_path / "page", find_bundle("g2p-en").path)
    script = Path(__file__).with_name("page.mjs")
    command = [node(), str(script), chromium(), str(tmp_path / "page")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["faults"], seen["away"], seen["overflow"], seen["unlabelled"]) == ([], [], 0, 0)
    assert seen["notes"].startswith("a portable bundle in fp32, 22.5 MB, loaded in ")
    assert seen["sounds"] == model.generate("colonel", beams=5)[0].output.split()
    assert seen["best"].startswith("/k")
    assert len(seen["likely"]) == 5
    assert seen["first"].startswith("Each sound attended most to one letter: K at c, ")
    assert len(seen["chosen"]) == 1
    assert seen["chosen"][0].endswith(seen["likely"][1])
    assert seen["first"] != seen["second"]
    assert seen["refusal"] == "The model knows English words only: letters from a to z and apostrophes."
    assert seen["isHidden"]
    assert seen["hash"] == "#queue"
