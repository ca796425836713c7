"""The examples in C and C++ say what `txport run` says, where a compiler and ONNX Runtime's headers are here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txport
from examples import run as examples
from examples.run import EXAMPLES, include
from txport.api.locate import find_bundle

ROOT = Path(__file__).parents[2]
WORDS = ("hello", "world", "attention", "transformer")
PROGRAMS = ("pronounce", "continue", "encode")
LANGUAGES = {"c": ("cc", "onnxruntime_c_api.h"), "cpp": ("c++", "onnxruntime_cxx_api.h")}


def build(language: str, folder: Path) -> Path:
    """Build the programs of a language anew, as their Makefile is told to, without a warning; -> where they are."""
    compiler, header = LANGUAGES[language]
    if not (include() / header).is_file():
        pytest.skip(f"there is no {header} here: `make test` installs it, or ORT_INCLUDE names its folder")
    if shutil.which(compiler) is None or shutil.which("make") is None:
        pytest.skip(f"there is no {compiler} or no make here")
    ignored = shutil.ignore_patterns(*PROGRAMS, "lib*")
    place = shutil.copytree(ROOT / "examples" / language, folder / language, ignore=ignored)
    options = (f"ORT_INCLUDE={include()}", f"PYTHON={sys.executable}", f"OUT={place}")
    made = subprocess.run(["make", "-s", "-C", str(place), *options], capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    return place


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_pronounces_words_as_txport_does(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(language, tmp_path)
    monkeypatch.setattr(examples, "HERE", tmp_path)
    example = next(each for each in EXAMPLES if each.name == language)
    bundle = find_bundle("g2p-en").path
    assert examples.run(example, bundle, tmp_path, WORDS) == [
        each.output for each in txport.load("g2p-en").generate(WORDS)
    ]
    wrong = subprocess.run([str(folder / "pronounce"), str(bundle), "h3llo"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "letter" in wrong.stderr


def test_what_is_built_is_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"examples/c*/{name}" for name in (*PROGRAMS, "libonnxruntime.so.1")} <= set(ignored)
