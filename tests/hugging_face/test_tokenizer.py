"""`AutoTokenizer` encodes and decodes as we do, from nothing but the files that a portable bundle has."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoTokenizer

from recipes.g2p_en.g2p import LETTERS, VOCABULARY, read_dictionary
from recipes.g2p_en.tokenizer import spelling_tokenizer
from txport.bundles.hugging_face import write_tokenizers
from txport.checkpoints.checkpoint import config_of
from txport.checkpoints.folder import SHIPPED
from txport.models.architectures import transformer
from txport.models.facts import Facts
from txport.models.names import TARGET_TOKENIZER, TOKENIZER
from txport.text.file import FileTokenizer
from txport.text.load import load_tokenizer

EDGES = [
    "a",
    "'",
    "'tis",
    "ZZZ",
    "</s>",
    "a<pad>b",
    "<s>bad</s>",
    "<unk>",
    " a ",
    "a b",
    "e\u0301",
    "\u00c9",
    "\ufb01",
    "\u0130",
]
WORDS = 500


@pytest.fixture(scope="module")
def facts() -> Facts:
    return transformer.facts(config_of(SHIPPED / "g2p-en"))


def bundled(folder: Path, facts: Facts, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    write_tokenizers(folder, facts)
    return folder


def words() -> list[str]:
    """Of the dictionary's test split where it is there, else random letters."""
    rng = random.Random(0)
    folder = os.environ.get("TXPORT_G2P")
    if folder:
        return rng.sample(sorted(read_dictionary(Path(folder) / "g014b2b.test")), WORDS)
    return ["".join(rng.choices(LETTERS, k=rng.randint(1, 12))) for _ in range(WORDS)]


def test_the_shipped_models_tokenizer(facts: Facts, tmp_path: Path) -> None:
    shutil.copyfile(SHIPPED / "g2p-en" / TOKENIZER, tmp_path / TOKENIZER)
    assert_agree(bundled(tmp_path, facts), load_tokenizer(tmp_path, facts), words() + EDGES)


def assert_agree(folder: Path, ours: Any, texts: list[str]) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in texts:
        try:
            expected = ours.encode(text)
        except ValueError:  # we refuse what the vocabulary lacks, they take the unknown token for it
            expected = ours._tokenizer.encode(text).ids
        assert theirs(text).input_ids == expected, text
        assert theirs(text).keys() == {"input_ids", "attention_mask"}, "a model takes no more"
    rng = random.Random(0)
    size = ours.size
    for _ in range(WORDS):
        ids = [rng.randrange(size) for _ in range(rng.randint(0, 12))]
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids), ids
    assert theirs([texts[0], texts[1]], padding=True).input_ids  # it knows what to pad with


def test_special_tokens_that_the_file_does_not_tell(facts: Facts, tmp_path: Path) -> None:
    """Those of the model are left out of text by both; an unknown token that the file does not call special by none."""
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, "<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder = bundled(tmp_path, facts, tokenizer=plain.to_str())
    assert_agree(folder, load_tokenizer(folder, facts), ["a b", "hello </s> a", "AA don 't ."])


def test_each_vocabulary_has_a_folder(facts: Facts, tmp_path: Path) -> None:
    other = spelling_tokenizer((*VOCABULARY[:4], *reversed(VOCABULARY[4:])))
    bundled(tmp_path, facts, tokenizer=spelling_tokenizer(VOCABULARY), target_tokenizer=other)
    for file, name in {TOKENIZER: "source_tokenizer", TARGET_TOKENIZER: "target_tokenizer"}.items():
        assert_agree(tmp_path / name, FileTokenizer(tmp_path / file, (0, 1, 2)), ["hello", "bad"])
    assert AutoTokenizer.from_pretrained(tmp_path, subfolder="target_tokenizer").eos_token == "</s>"  # noqa: S105
