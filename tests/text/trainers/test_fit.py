"""Files of text that do not belong to a vocabulary, and vocabularies that do not belong to a model, are refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.checkpoints.sources import marian
from tests.checkpoints.sources.plain import check_refused
from tests.text.trainers.test_text import TEXTS, fairseq_folder, marian_folder
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.sources.ctranslate2.vocabulary import texts as ctranslate2_texts
from txport.errors import CheckpointError
from txport.models.names import TOKENIZER
from txport.text.file import FOREIGN
from txport.text.trainers.texts import Files
from txport.text.trainers.words import numbered


def word_level(path: Path, tokens: Sequence[str]) -> Path:
    """A tokenizer of words with these ids."""
    model = {"type": "WordLevel", "vocab": numbered(tokens), "unk_token": "<unk>"}
    parts = {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model}), encoding="utf-8")
    return path


def taken_over(folder: Path, tokens: Sequence[str]) -> Files:
    """What a bundle has of the folder of a CTranslate2 with this vocabulary."""
    (folder / "shared_vocabulary.json").write_text(json.dumps(list(tokens)), encoding="utf-8")
    sizes = (len(tokens), len(tokens))
    return ctranslate2_texts(folder, {"unk_token": "<unk>"}, sizes, "TransformerSpec", alike=True)


OWN = ["</s>", "<unk>", "a", "b", "c", "d"]


def test_a_tokenizer_of_marian_must_have_the_ids_of_its_vocabulary(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "m", (len(OWN), len(OWN)), **{"tied-embeddings-all": True})
    word_level(folder / TOKENIZER, OWN)
    assert "nothing says which is of sources and which of targets" in check_refused(folder)
    (folder / "vocab.yml").write_text("".join(f"{token}: {id_}\n" for id_, token in enumerate(OWN)), encoding="utf-8")
    assert load_checkpoint(str(folder)).companions.keys() == {TOKENIZER}
    word_level(folder / TOKENIZER, [*OWN[:2], "b", "a", *OWN[4:]])
    assert re.search(r"tokenizer\.json gives '[ab]' the id [23], .*vocab\.yml [23]", check_refused(folder))


@pytest.mark.parametrize(
    ("vocabulary", "given", "message"),
    [
        ({"c": "x"}, {}, "has 'c' as the token 4, "),
        ({}, {"a": "x", "c": "y"}, "has 'x' as the token 2, "),
        ({"c": "madeupword0000"}, {}, ""),
        ({"c": "<extra_id_0>"}, {}, ""),
        ({"c": "<|nocaptions|>"}, {"c": "<|nospeech|>"}, ""),
        ({"c": "a"}, {}, ""),  # what is there twice has the first id
        ({}, {"c": f"{FOREIGN}c"}, ""),
    ],
)
def test_a_tokenizer_with_other_tokens_for_the_ids_of_a_vocabulary_is_refused(
    vocabulary: dict[str, str], given: dict[str, str], message: str, tmp_path: Path
) -> None:
    word_level(tmp_path / TOKENIZER, [given.get(token, token) for token in OWN])
    tokens = [vocabulary.get(token, token) for token in OWN]
    if message:
        with pytest.raises(CheckpointError, match=re.escape(message)):
            taken_over(tmp_path, tokens)
    else:
        assert taken_over(tmp_path, tokens) == {TOKENIZER: tmp_path / TOKENIZER}


def test_one_tokenizer_for_two_vocabularies_must_have_the_ids_of_both(tmp_path: Path) -> None:
    folder = fairseq_folder(tmp_path / "m", (["a", "b"], ["b", "a"]))
    word_level(folder / TOKENIZER, ["<s>", "<pad>", "</s>", "<unk>", "a", "b"])
    assert re.search(r"tokenizer\.json gives '[ab]' the id \d, .*dict\.en\.txt \d", check_refused(folder))
    word_level(folder / "target_tokenizer.json", ["<s>", "<pad>", "</s>", "<unk>", "b", "a"])
    assert len(load_checkpoint(str(folder)).companions) == 2


@pytest.mark.parametrize("more", [1, -1])
def test_the_dictionary_of_another_fairseq_is_refused(more: int, tmp_path: Path) -> None:
    folder = fairseq_folder(tmp_path / "m", (["a", "b", "c"], ["a", "b", "c"]))
    load_checkpoint(str(folder))
    (folder / "dict.de.txt").write_text("".join(f"{each} 1\n" for each in "abcd"[: 3 + more]), encoding="utf-8")
    assert f"dict.de.txt has {7 + more} tokens, the model 7: it belongs to another model" in check_refused(folder)


@pytest.mark.parametrize("more", [["<extra>"], ["</s>"], []])
def test_the_vocabulary_of_another_ctranslate2_is_refused(more: list[str], tmp_path: Path) -> None:
    """Without files of text too: the end token is that of a vocabulary."""
    folder = Path(shutil.copytree(TEXTS / "ctranslate2", tmp_path / "m"))
    path = folder / "source_vocabulary.json"
    tokens = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([*tokens, *more] if more else tokens[:-1]), encoding="utf-8")
    sizes = f"has {len(tokens) + (1 if more else -1)} tokens, the model {len(tokens)}: it belongs to another model"
    assert sizes in check_refused(folder)


def test_a_vocabulary_of_marian_may_be_smaller_than_its_model_and_not_larger(tmp_path: Path) -> None:
    folder = marian.save(tmp_path / "m", marian.PLAIN, marian.weights_of(marian.PLAIN))
    for name, size in (("src", 30), ("trg", 26)):
        rows = ["</s>", "<unk>", *(f"w{number}" for number in range(size - 4))]
        (folder / f"vocab.{name}.yml").write_text("".join(f"{each}: {at}\n" for at, each in enumerate(rows)))
    load_checkpoint(str(folder))
    with (folder / "vocab.trg.yml").open("a") as file:
        file.write("x: 26\n")
    assert "vocab.trg.yml has 27 tokens, the model 26: it belongs to another model" in check_refused(folder)
