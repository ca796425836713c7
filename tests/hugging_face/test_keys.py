"""Settings of a folder that its `tokenizer.json` contradicts: ids are those of the version that saved the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.hugging_face.record_tokenizers import ids_of
from tests.recorded import TOKENIZERS
from tests.text.corpus import SENTENCES
from txport.models.names import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer

PLAIN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}
TEXTS = [*SENTENCES[:20], "The Cat sees <new> and <s> Café 東京.", " <new>  A\u0301 b"]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("bert", {"do_lower_case": False}),
    ("bert", {"do_lower_case": False, "strip_accents": True}),
    ("bert", {"tokenize_chinese_chars": False}),
    ("bert-cased", {"do_lower_case": True}),
    ("bert-cased", {"do_lower_case": None}),
    ("mpnet", {"do_lower_case": False, "strip_accents": False}),
    ("gpt2", {"add_prefix_space": True}),
    ("gpt2", {"add_bos_token": True}),
    ("roberta", {"add_prefix_space": True}),
    ("qwen2", {"add_prefix_space": False, "errors": "ignore"}),
    ("llama", {"add_bos_token": False}),
    ("llama", {"add_eos_token": True}),
    ("llama", {"add_bos_token": False, "add_eos_token": True}),
    ("gpt2", {"padding_side": "left", "truncation_side": "left", "model_max_length": 3, "max_length": 2}),
    ("gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}),
]


def saved(name: str, folder: Path, changes: dict[str, Any]) -> Path:
    """A recorded folder with a `tokenizer.json`, and changed settings; null takes a key away."""
    shutil.copytree(TOKENIZERS / name, folder, ignore=shutil.ignore_patterns("expected.json"))
    if name == "llama":
        (folder / TOKENIZER).write_text(str(companions_of(folder)[TOKENIZER]), encoding="utf-8")
        changes = {"add_prefix_space": None, **changes}  # with which version 4 reads tokenizer.model in its place
    else:
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    values = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8")) | changes
    values = {key: each for key, each in values.items() if each is not None}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(values), encoding="utf-8")
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    (folder / CONFIG).write_text(json.dumps(config | {"transformers_version": transformers.__version__}))
    return folder


def ours(folder: Path) -> FileTokenizer:
    file = companions_of(folder)[TOKENIZER]
    return FileTokenizer(folder / TOKENIZER, content=file if isinstance(file, str) else file.read_text("utf-8"))


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_ids_are_those_of_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(name, tmp_path / name, changes)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    found = ours(folder)
    for text in TEXTS if name != "llama" else SENTENCES[:20]:  # around special tokens, each version has its own spaces
        assert found.encode(text, "token", special=True) == ids_of(theirs, text), text


def test_a_token_that_only_the_settings_add_has_its_id(tmp_path: Path) -> None:
    folder = saved("gpt2", tmp_path / "x", {})
    values = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    size = ours(folder).size
    added = values.get("added_tokens_decoder", {}) | {str(size): {"content": "<new>", **PLAIN, "lstrip": True}}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(values | {"added_tokens_decoder": added}), encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert size in ids_of(theirs, TEXTS[-1])
    assert [ours(folder).encode(text, "token", special=True) for text in TEXTS] == [ids_of(theirs, t) for t in TEXTS]


@pytest.mark.parametrize("changes", [{"additional_special_tokens": ["The", "ample"]}, {"mask_token": "The"}])
def test_a_token_of_the_vocabulary_that_the_settings_call_special_is_special(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved("gpt2", tmp_path / "x", changes)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    found = ours(folder)
    text = "The sample example"
    ids = ids_of(theirs, text)
    assert found.encode(text, "token", special=True) == ids
    assert found.decode(ids) == theirs.decode(ids, skip_special_tokens=True) != text
