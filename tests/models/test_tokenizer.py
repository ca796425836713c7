from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import LETTERS, VOCABULARY, WORDS, tiny_config
from txport.models.errors import BundleError, TextError
from txport.models.tokenizer import FileTokenizer, NumberTokenizer, load_tokenizer, spelling_tokenizer, unknown_id

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
    with pytest.raises(TextError, match=r"'a!xb!' has characters outside the vocabulary: '!', 'x'; --unknown skip"):
        spelling.encode("a!xb!")
    assert spelling.encode("a!xb!", "skip") == spelling.encode("ab")


@pytest.mark.parametrize("text", ["a\nb", "a b", "a\tb", "a\u2028b"])
def test_white_space_is_no_letter(text: str, spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="outside the vocabulary"):
        spelling.encode(text)
    assert spelling.encode(text, "skip") == spelling.encode("ab")


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_empty_text(text: str, spelling: FileTokenizer) -> None:
    for tokenizer in (spelling, NumberTokenizer(tiny_config())):
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
    for tokenizer in (spelling, NumberTokenizer(tiny_config())):
        with pytest.raises(TextError, match=r"'x{37}\.\.\.'") as caught:
            tokenizer.encode("x" * 1000)
        assert len(str(caught.value)) < 200


def test_bytes_that_are_no_text(spelling: FileTokenizer) -> None:
    """What Python makes of an argument that is not UTF-8."""
    with pytest.raises(TextError, match="is not UTF-8 text"):
        spelling.encode("b\udcffd", "skip")


def test_number_of_any_length(spelling: FileTokenizer) -> None:
    with pytest.raises(TextError, match="got '9999"):
        NumberTokenizer(tiny_config()).encode("9" * 5000)


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(spelling_tokenizer(VOCABULARY))
    config = tiny_config(source_vocab_size=len(VOCABULARY) - 1, tied="none")
    with pytest.raises(BundleError, match=rf"has {len(VOCABULARY)} tokens, the model's .* vocabulary"):
        load_tokenizer(file, config)


def test_damaged_file(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json is not a tokenizer"):
        FileTokenizer(file)


def test_unknown_id_of_each_kind_of_model() -> None:
    models = tokenizers.models
    assert unknown_id(tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 7}, unk_token="?")).to_str()) == 7  # noqa: S106
    assert unknown_id(tokenizers.Tokenizer(models.Unigram([("a", 0.0), ("?", 0.0)], unk_id=1)).to_str()) == 1
    assert unknown_id(tokenizers.Tokenizer(models.BPE({"a": 0}, [])).to_str()) is None


@given(ids=st.lists(st.integers(3, len(VOCABULARY) - 1), min_size=1))
def test_numbers_round_trip(ids: list[int]) -> None:
    tokenizer = NumberTokenizer(tiny_config())
    text = " ".join(map(str, ids))
    assert tokenizer.encode(text) == [*ids, END]
    assert tokenizer.decode([1, *ids, END, 0]) == text
    assert tokenizer.tokens(ids) == text.split()


@pytest.mark.parametrize(("bos", "eos", "expected"), [(0, 0, [5, 6]), (1, 0, [1, 5, 6]), (1, 1, [1, 5, 6, END])])
def test_numbers_begin_and_end_as_the_config_says(bos: int, eos: int, expected: list[int]) -> None:
    config = tiny_config(add_source_bos=bool(bos), add_source_eos=bool(eos))
    assert NumberTokenizer(config).encode("5 6") == expected


def test_numbers_outside_the_vocabulary() -> None:
    tokenizer = NumberTokenizer(tiny_config())
    with pytest.raises(TextError, match=rf"numbers from 0 to {len(VOCABULARY) - 1}; got '-1 999 x \u0665'"):
        tokenizer.encode("5 -1 999 x \u0665")
    assert tokenizer.encode("5 -1 999 x 6", "skip") == [5, 6, END]


def test_numbers_all_skipped() -> None:
    with pytest.raises(TextError, match="'x y' has no number from 0 to"):
        NumberTokenizer(tiny_config()).encode("x y", "skip")


def test_load_falls_back_to_numbers(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    assert isinstance(load_tokenizer(file, tiny_config()), NumberTokenizer)
    file.write_text(spelling_tokenizer(VOCABULARY))
    assert isinstance(load_tokenizer(file, tiny_config()), FileTokenizer)
