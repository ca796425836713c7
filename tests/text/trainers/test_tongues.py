"""Languages of other trainers' checkpoints: only where the trainer puts them, with the ids of each side."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.sources import test_fairseq, test_opennmt
from tests.text.trainers.test_fit import word_level
from tests.text.trainers.test_text import (
    SPECIAL,
    codes_folder,
    fairseq_folder,
    laid,
    opennmt_folder,
    shuffled,
    tokenizer_for,
    xlm_roberta,
)
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.sources.ctranslate2.vocabulary import texts as ctranslate2_texts
from txport.errors import BundleError
from txport.models.names import TEXT, TOKENIZER
from txport.text.file import FileTokenizer
from txport.text.languages import LanguageReader
from txport.text.trainers.words import numbered
from txport.text.usage import Languages, read_usage

CUT = {"spm__model": "xlm-roberta/sentencepiece.bpe.model"}
OWN = xlm_roberta()[4:]


def test_a_target_begins_with_the_id_that_its_own_vocabulary_has(tmp_path: Path) -> None:
    names = ["de", "en"]
    tongues = ["__de__", "__en__"]
    options = {name: each for name, each in test_fairseq.PLAIN.items() if not name.endswith("_lang")}
    options |= {"task": test_fairseq.MULTI, "langs": names, "encoder_langtok": "src", "decoder_langtok": True}
    options |= {"source_lang": "de", "target_lang": "en"}
    rows = [*OWN, *tongues], [*tongues[::-1], *OWN]
    folder = laid(fairseq_folder(tmp_path / "m", rows, args=Namespace(**options)), **CUT)
    pair: Any = tokenizer_for(load_checkpoint(str(folder)))
    assert pair.source.between("de", "en").forced == 4
    assert pair.source.between("de", "de").forced == 5
    assert pair.source.encode("The weather")[0] == numbered([*SPECIAL, *rows[0]])["__en__"]


def test_a_bilingual_fairseq_has_no_languages(tmp_path: Path) -> None:
    rows = [*OWN, "en_XX", "de_DE"]
    folder = laid(fairseq_folder(tmp_path / "m", (rows, rows)), **CUT)
    checkpoint = load_checkpoint(str(folder))
    assert TEXT not in checkpoint.companions
    assert numbered([*SPECIAL, *rows])["en_XX"] not in tokenizer_for(checkpoint).encode("The weather")


def test_an_opennmt_has_no_languages(tmp_path: Path) -> None:
    folder = opennmt_folder(tmp_path / "m", [*test_opennmt.SPECIAL, *OWN, "__de__", "__en__"])
    assert TEXT not in load_checkpoint(str(laid(folder, **CUT))).companions


def languages_between(folder: Path, source: list[str], target: list[str], **said: Any) -> Languages | None:
    for name, tokens in (("source", source), ("target", target)):
        (folder / f"{name}_vocabulary.json").write_text(json.dumps(tokens), encoding="utf-8")
    values = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"} | said
    files = ctranslate2_texts(folder, values, (len(source), len(target)), "TransformerSpec", alike=True)
    if TEXT not in files:
        return None
    assert isinstance(files[TOKENIZER], str)
    found = read_usage(folder / TEXT, files[TEXT]).languages
    assert found is not None
    ids = FileTokenizer(folder / TOKENIZER, content=str(files[TOKENIZER])).around
    own = found.tokens[found.source or ""]
    assert ids == [source.index(own if each is None else each) for each in (*found.before, *found.after)]
    return found


def test_ctranslate2_has_those_that_both_sides_have_tokens_for(tmp_path: Path) -> None:
    laid(tmp_path, **CUT)
    both = [*SPECIAL, *shuffled(OWN), "__de__", "__en__"]
    other = [*SPECIAL, *OWN, "__en__", "__de__"]
    found = languages_between(tmp_path, both, other)
    assert found is not None
    assert (found.tokens, found.before) == ({"de": "__de__", "en": "__en__"}, (None,))
    found = languages_between(tmp_path, both, other, add_source_bos=True)
    assert found is not None
    assert found.before == ("<s>", None)
    assert languages_between(tmp_path, both, other[:-1]) is None


@pytest.mark.parametrize("kind", ["codes", "pieces"])
def test_what_tells_the_language_of_a_target_is_one_token(kind: str, tmp_path: Path) -> None:
    if kind == "codes":
        folder, tokens, _ = codes_folder(tmp_path / "m")
        rows = [*tokens[4:], ">>fra<<"]
        fairseq_folder(folder, (rows, rows))
    else:
        rows = [*OWN, ">>fra<<"]
        folder = laid(fairseq_folder(tmp_path / "m", (rows, rows)), **CUT)
    pair: Any = tokenizer_for(load_checkpoint(str(folder)))
    plain = pair.source.encode("The weather")
    own = len(SPECIAL) + len(rows) - 1
    assert own not in plain
    assert pair.source.encode(">>fra<< The weather") == pair.source.between(None, "fra").encode("The weather")
    assert pair.source.encode(">>fra<< The weather") == [own, *plain]


def test_a_target_without_a_token_of_a_language_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "source.json", tmp_path / "target.json"]
    source, target = (
        FileTokenizer(word_level(path, ["<unk>", "a", *more]))
        for path, more in zip(paths, (["x", "y"], ["x"]), strict=True)
    )
    with pytest.raises(BundleError, match="the target's tokenizer has no token 'y'"):
        LanguageReader(source, Languages(tokens={"x": "x", "y": "y"}), writer=target)
