"""SentencePiece's maps and users' own pieces: our ids are SentencePiece's own, and those of readers in JavaScript."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hugging_face.record_tokenizers import train
from tests.text.odd import odd_lines
from tests.text.readers import BYTES, COUNT, READERS, Side, differences, in_javascript, sides_of
from txport.text.convert import companions_of

MAPS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
FEW = 30  # of a thousand
USERS = ("<sep>", "//", "7", "the", "\u2581and", "\u2026", "\uff21\uff22", "<CTRL>")  # the map changes the last three
KA, HA, VOICED, HALF_VOICED = "\uff76", "\uff8a", "\uff9e", "\uff9f"  # half-width
PAIRS = (KA + VOICED, HA + HALF_VOICED, KA + VOICED + HA + HALF_VOICED, HA + VOICED + HALF_VOICED, "\u30ac" + VOICED)
SARA_AM = "\u0e33"  # a vowel of Thai that Unicode counts as a letter


def t5_of(folder: Path, normalization: str, **how: Any) -> Path:
    """The files of a T5 whose SentencePiece model normalises texts so."""
    folder.mkdir()
    train(folder / "spiece.model", normalization=normalization, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **how)
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Side]:
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("models")
    folders = {name: t5_of(folder / name, name) for name in MAPS}
    out = tmp_path_factory.mktemp("sides")
    files = {name: companions_of(each) for name, each in folders.items()}
    return {side: each for name in files for side, each in sides_of(name, files[name], out).items()}


@pytest.mark.filterwarnings("ignore:Recommended")  # see test_tokenizers
def test_lines_have_the_same_ids_and_texts_in_javascript(sides: dict[str, Side]) -> None:
    for name, found in in_javascript(sides).items():
        side = sides[name]
        assert len(side.lines) == COUNT
        for reader in READERS:
            assert differences(side.in_python(), found[reader], side.lines) == [], (name, reader)


@pytest.mark.filterwarnings("ignore:Recommended")
def test_few_lines_are_left_out(sides: dict[str, Side]) -> None:
    for name, side in sides.items():
        why = Counter(filter(None, map(side.why_not, odd_lines(COUNT, 7))))
        assert sum(count for rule, count in why.items() if rule != BYTES) < FEW, (name, why)


def is_dropping(line: str) -> bool:
    """Whether a mark stands behind a blank or a compatibility character, where the library may drop it."""
    return any(
        (unicodedata.category(mark).startswith("M") or mark == SARA_AM)
        and (letter.isspace() or unicodedata.normalize("NFKC", letter) != letter)
        for letter, mark in itertools.pairwise(line)
    )


@pytest.mark.parametrize("name", MAPS)
def test_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = t5_of(tmp_path / name, name)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    (ours,) = sides_of(name, companions_of(folder), tmp_path / "sides").values()
    texts = [line for line in odd_lines(2 * COUNT, 3) if not is_dropping(line)]
    assert len(texts) > COUNT
    end = ours.tokenizer.encode("").ids
    for line in texts:
        assert ours.tokenizer.encode(line).ids == [*theirs.encode(line), *end], line


def llama_of(folder: Path) -> Path:
    """The files of a Llama whose SentencePiece model has a map, and whose texts, not sections, begin with a space."""
    folder.mkdir()
    how = {"normalization": "nmt_nfkc_cf", "byte_fallback": True, "remove_extra_whitespaces": False}
    train(folder / "tokenizer.model", model_type="bpe", **how)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": False}), encoding="utf-8")
    return folder


@pytest.mark.filterwarnings("ignore:Recommended")
def test_a_text_that_begins_with_two_letters_of_one_sound_has_a_space_before_it(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = llama_of(tmp_path / "folder")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    sides = sides_of("llama", companions_of(folder), tmp_path / "sides")
    side = sides["llama"]
    begun = map("".join, zip(itertools.cycle(PAIRS), side.lines, strict=False))
    side.lines = [*PAIRS, *(line for line in begun if not is_dropping(line))]
    assert len(side.lines) > COUNT // 2
    ours = side.in_python()
    for line, ids in zip(side.lines, ours.ids, strict=True):
        assert ids == [1, *theirs.encode(line)], line
    for reader in READERS:
        assert differences(ours, in_javascript(sides)["llama"][reader], side.lines) == []


def with_users(lines: Sequence[str]) -> list[str]:
    """These lines, in turn as they are, with pieces of a user among the words, and within words."""
    rng = random.Random(1)
    users = [text.replace("\u2581", " ") for text in USERS]
    found = []
    for number, line in enumerate(lines):
        words = line.split(" ")
        for _ in range(number % 3):
            at = rng.randrange(len(words))
            words[at : at + rng.randrange(2)] = [words[at] + rng.choice(users), rng.choice(users)]
        found.append(" ".join(words))
    return found


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_of_a_user_have_the_ids_of_sentencepiece(kind: str, trims: bool, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    how = {"model_type": kind, "user_defined_symbols": list(USERS), "remove_extra_whitespaces": trims}
    folder = t5_of(tmp_path / "folder", "nmt_nfkc_cf", **how)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    sides = sides_of(kind, companions_of(folder), tmp_path / "sides")
    (side,) = sides.values()
    side.lines = with_users([line for line in side.lines if not is_dropping(line)])
    ours = side.in_python()
    used = set()
    for line, ids in zip(side.lines, ours.ids, strict=True):
        assert ids == [*theirs.encode(line), 1], line
        used |= {theirs.id_to_piece(each) for each in ids[:-1]}
    assert used >= {*USERS}
    for reader in READERS:
        assert differences(ours, in_javascript(sides)[kind][reader], side.lines) == []
