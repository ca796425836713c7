"""What tokenizers that the newest transformers saves make of lines of many scripts, of every class that we convert.

The folders of tests/recorded/tokenizers are those of version 4.57.6; here they are read and saved again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.hugging_face.record_tokenizers import EXPECTED, ids_of, unknown_of, written
from tests.recorded import TOKENIZERS
from tests.text.corpus import lines
from txport.models.names import TEXT
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer
from txport.text.usage import read_usage

MANY = 300  # lines of each kind
NAMES = sorted(path.parent.name for path in TOKENIZERS.glob(f"*/{EXPECTED}"))


def saved_again(name: str, folder: Path) -> Any:
    """The tokenizer of a recorded folder, and its files as this version saves them."""
    old = shutil.copytree(TOKENIZERS / name, folder / "old")
    theirs = transformers.AutoTokenizer.from_pretrained(old)
    theirs.save_pretrained(folder / "new")
    shutil.copyfile(old / "config.json", folder / "new" / "config.json")
    return theirs


def ours(folder: Path) -> tuple[FileTokenizer, FileTokenizer]:
    """Ours for sources and for targets."""
    found = companions_of(folder)
    files = {key: each if isinstance(each, str) else each.read_text(encoding="utf-8") for key, each in found.items()}
    clean_up = "text.json" in files and json.loads(files["text.json"])["clean_up"]
    source = FileTokenizer(folder / "tokenizer.json", content=files["tokenizer.json"], clean_up=clean_up)
    if "target_tokenizer.json" not in files:
        return source, source
    return source, FileTokenizer(folder / "target_tokenizer.json", content=files["target_tokenizer.json"])


@pytest.mark.filterwarnings("ignore:Recommended")  # of a package that Marian's tokenizer does not need for this
@pytest.mark.parametrize("name", NAMES)
def test_ours_agree(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    theirs = saved_again(name, tmp_path)
    assert differences(theirs, *ours(tmp_path / "new"), lines(MANY, 1)) == []


@pytest.mark.parametrize("name", ["nllb", "mbart", "mbart50", "m2m100"])
def test_languages_are_those_of_the_older_folder(name: str, tmp_path: Path) -> None:
    saved_again(name, tmp_path)
    found, expected = (
        read_usage(folder / TEXT, companions_of(folder)[TEXT]).languages
        for folder in (tmp_path / "new", TOKENIZERS / name)
    )
    assert found == expected is not None


def differences(theirs: Any, source: FileTokenizer, target: FileTokenizer, texts: list[str]) -> list[Any]:
    """Lines whose ids, or the text of whose ids, differ."""
    found: list[Any] = []
    unknown = unknown_of(theirs)  # which takes as long as a line
    nothing = len(ids_of(theirs, ""))
    for text in texts:
        expected = ids_of(theirs, text)
        ids = [each for each in expected if each != unknown]
        try:
            got = source.encode(text)
        except ValueError:
            got = None
        if got != expected and not (got is None and len(expected) == nothing):
            found.append((text, got, expected))
        elif target.decode(ids) != (wanted := written(theirs, ids)):
            found.append((text, target.decode(ids), wanted))
    return found


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_in_texts_are_read_alike(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    theirs = saved_again(name, tmp_path)
    theirs.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|bot|>"]})
    theirs.add_tokens(["<plain>"])
    theirs.save_pretrained(tmp_path / "new")
    source, _ = ours(tmp_path / "new")
    for token in ("<|user|>", "<|bot|>", *theirs.all_special_tokens):
        for text in ("{}the cat", "the cat{}", "see {} the", "a{}b <plain> c", "  x {}  two  {}{} y"):
            line = text.replace("{}", token)
            assert source.encode(line, "token", special=True) == ids_of(theirs, line), line
