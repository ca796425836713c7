from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.tiny import LETTERS, VOCABULARY, WORDS, tiny_facts
from txport.errors import BundleError, TextError, TokenError
from txport.text.file import FileTokenizer
from txport.text.library import unknown_id
from txport.text.load import load_tokenizer
from txport.text.numbers import NumberTokenizer

END = VOCABULARY.index("</s>")


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_text(spelling_tokenizer(VOCABULARY), encoding="utf-8")
    return FileTokenizer(file)


@given(text=st.text(LETTERS, min_size=1))
def test_spells_letter_by_letter(text: str, spelling: FileTokenizer) -> None:
    ids = spelling.encode(text)
    assert spelling.tokens(ids) == [*text, "</s>"]
    assert ids == [*(VOCABULARY.index(letter) for letter in text), END]


@given(words=st.lists(st.sampled_from(WORDS), min_size=1))
def test_writes_words_apart_and_no_special_tokens(words: list[str], spelling: FileTokenizer) -> None:
    ids = [VOCABULARY.index(word) for word in words]
    assert spelling.decode([1, *ids, END, 0, 0]) == " ".join(words)
    assert spelling.tokens(ids) == words


def test_decode_of_nothing(spelling: FileTokenizer) -> None:
    assert spelling.decode([]) == ""
    assert spelling.decode([1, END]) == ""


def test_case_is_folded(spelling: FileTokenizer) -> None:
    assert spelling.encode("ABBA") == spelling.encode("abba")
    assert spelling.encode("CH") == spelling.encode("ch")  # two letters, though CH is a word of the vocabulary


def test_composed_and_decomposed_are_the_same_unknown(spelling: FileTokenizer) -> None:
    for text in ("b\u00e9", "be\u0301"):
        with pytest.raises(TextError, match="outside the vocabulary"):
            spelling.encode(text)
        assert spelling.encode(text, "skip") == spelling.encode("b")


def test_unknown_characters_are_named_once(spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match=r"'a!xb!' has characters outside the vocabulary: '!', 'x'; unknown='skip'"):
        spelling.encode("a!xb!")
    assert spelling.encode("a!xb!", "skip") == spelling.encode("ab")


@pytest.mark.parametrize("text", ["a\nb", "a b", "a\tb", "a\u2028b"])
def test_white_space_is_no_letter(text: str, spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="outside the vocabulary"):
        spelling.encode(text)
    assert spelling.encode(text, "skip") == spelling.encode("ab")


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_empty_text(text: str, spelling: FileTokenizer) -> None:
    for tokenizer in (spelling, NumberTokenizer(tiny_facts())):
        with pytest.raises(TextError, match="the text is empty"):
            tokenizer.encode(text, "skip")


def test_nothing_left_after_skipping(spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="'!?' has no character of the vocabulary".replace("?", r"\?")):
        spelling.encode("!?", "skip")


@pytest.mark.parametrize("special", VOCABULARY[:4])
def test_special_tokens_in_text_are_characters(special: str, spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="outside the vocabulary: '<'"):
        spelling.encode(f"a{special}b")
    ids = spelling.encode(f"a{special}b", "skip")
    assert ids == [*(VOCABULARY.index(letter) for letter in f"a{special}b" if letter in LETTERS), END]
    assert ids.count(END) == 1


def test_long_text_is_shortened_in_errors(spelling: FileTokenizer) -> None:
    for tokenizer in (spelling, NumberTokenizer(tiny_facts())):
        with pytest.raises(TextError, match=r"'x{37}\.\.\.'") as caught:
            tokenizer.encode("x" * 1000)
        assert len(str(caught.value)) < 200


def test_bytes_that_are_no_text(spelling: FileTokenizer) -> None:
    """What Python makes of an argument that is not UTF-8."""
    with pytest.raises(TextError, match="is not UTF-8 text"):
        spelling.encode("b\udcffd", "skip")


def test_number_of_any_length(spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="got '9999"):
        NumberTokenizer(tiny_facts()).encode("9" * 5000)


@pytest.mark.parametrize(("side", "name"), [("source", "tokenizer.json"), ("target", "target_tokenizer.json")])
def test_tokenizer_of_another_model(side: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    (tmp_path / "target_tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    load_tokenizer(tmp_path, tiny_facts())
    size = len(VOCABULARY) - 1
    facts = tiny_facts(**{f"{side}_vocab_size": size}, tied="none")
    message = rf"{tmp_path}/{name} has {size + 1} tokens, the model's {side} vocabulary {size}: it belongs to another"
    with pytest.raises(BundleError, match=message):
        load_tokenizer(tmp_path, facts)


def test_one_tokenizer_serves_no_two_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    facts = tiny_facts(target_vocab_size=len(VOCABULARY) + 8, tied="none")
    with pytest.raises(BundleError, match=r"a source vocabulary of 22 and a target vocabulary of 30; add target_token"):
        load_tokenizer(tmp_path, facts)
    (tmp_path / "target_tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    load_tokenizer(tmp_path, facts)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        BundleError, match=r"target_tokenizer\.json is there, but not the source's .*; add tokenizer\.json"
    ):
        load_tokenizer(tmp_path, facts)


def test_ids_without_a_token(spelling: FileTokenizer) -> None:
    for ids in ([4, len(VOCABULARY)], [-1]):
        for name in (spelling.tokens, NumberTokenizer(tiny_facts()).tokens):
            with pytest.raises(TokenError, match=rf"\b{len(VOCABULARY) - 1}\b") as caught:
                name(ids)
            assert str(ids[-1]) in str(caught.value)


def test_special_tokens_of_the_model_are_no_text(tmp_path: Path) -> None:
    """Also where the file does not say that they are special."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<p>": 0, "<b>": 1, "<e>": 2, "a": 3}))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path, tiny_facts())
    assert loaded.decode([1, 3, 2, 0, 0]) == "a"
    assert loaded.tokens([1, 3, 2]) == ["<b>", "a", "<e>"]


def test_a_text_is_neither_cut_nor_padded(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(spelling_tokenizer(VOCABULARY))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(load_tokenizer(tmp_path, tiny_facts()).encode("abba")) == 5


def test_letters_that_are_unknown_are_refused_unless_their_token_is_asked_for(spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="outside the vocabulary"):
        spelling.encode("a!")
    ids = spelling.encode("a!b", "token")
    assert [*spelling.encode("a", "skip")[:1], spelling.unknown, *spelling.encode("b")] == ids


def test_unknown_id_of_each_kind_of_model() -> None:
    models = tokenizers.models
    assert unknown_id(tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 7}, unk_token="?")).to_str()) == 7  # noqa: S106
    assert unknown_id(tokenizers.Tokenizer(models.Unigram([("a", 0.0), ("?", 0.0)], unk_id=1)).to_str()) == 1
    assert unknown_id(tokenizers.Tokenizer(models.BPE({"a": 0}, [])).to_str()) is None


@given(ids=st.lists(st.integers(3, len(VOCABULARY) - 1), min_size=1))
def test_numbers_round_trip(ids: list[int]) -> None:
    tokenizer = NumberTokenizer(tiny_facts())
    text = " ".join(map(str, ids))
    assert tokenizer.encode(text) == [*ids, END]
    assert tokenizer.decode([1, *ids, END, 0]) == text
    assert tokenizer.tokens(ids) == text.split()


@pytest.mark.parametrize(("bos", "eos", "expected"), [(0, 0, [5, 6]), (1, 0, [1, 5, 6]), (1, 1, [1, 5, 6, END])])
def test_numbers_begin_and_end_as_the_config_says(bos: int, eos: int, expected: list[int]) -> None:
    facts = tiny_facts(add_source_bos=bool(bos), add_source_eos=bool(eos))
    assert NumberTokenizer(facts).encode("5 6") == expected


def test_numbers_outside_the_vocabulary() -> None:
    tokenizer = NumberTokenizer(tiny_facts())
    with pytest.raises(TextError, match=rf"numbers from 0 to {len(VOCABULARY) - 1}; got '-1 999 x \u0665'"):
        tokenizer.encode("5 -1 999 x \u0665")
    assert tokenizer.encode("5 -1 999 x 6", "skip") == [5, 6, END]


def test_numbers_all_skipped() -> None:
    with pytest.raises(TextError, match="'x y' has no number from 0 to"):
        NumberTokenizer(tiny_facts()).encode("x y", "skip")


def test_load_falls_back_to_numbers(tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(tmp_path, tiny_facts()), NumberTokenizer)
    (tmp_path / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    assert isinstance(load_tokenizer(tmp_path, tiny_facts()), FileTokenizer)
