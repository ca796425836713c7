"""A tokenizer that raises, panics or takes for ever: one error of ours, at load and at use."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.cli.processes import assert_one_line, run
from tests.tiny import VOCABULARY, reseal, tiny_facts
from txport.bundles.bundle import Bundle
from txport.bundles.hugging_face import tokenizer_config
from txport.errors import BundleError, TextError
from txport.text.file import FEW, LETTERS_PER_TOKEN, FileTokenizer
from txport.text.load import load_tokenizer
from txport.text.numbers import NumberTokenizer

LETTERS = {"a": 0, "?": 1}
EXPLODES = pre_tokenizers.Split(Regex(r"(a+)+$"), "isolated")
PANICS_AT_LOAD = {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]}


def written(folder: Path, model: Any, changes: dict[str, Any] | None = None, splitter: Any = None) -> Path:
    tokenizer = Tokenizer(model)
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(tokenizer.to_str()), **(changes or {})}), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "changes",
    [
        {"model": PANICS_AT_LOAD},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": 7}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
    ],
    ids=["merges panic", "unknown id", "type", "charsmap panics", "pattern"],
)
def test_one_that_does_not_load(changes: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path, models.WordLevel(LETTERS, unk_token="?"), changes)  # noqa: S106
    for load in (FileTokenizer, lambda path: tokenizer_config(path, {}, tiny_facts())):
        with pytest.raises(BundleError, match=r"tokenizer\.json is not a tokenizer: ") as caught:
            load(file)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "splitter", "message"),
    [
        (models.WordLevel({"a": 0}), None, "Missing .UNK. token"),
        (models.WordLevel({"a": 0}, unk_token="?"), None, "Missing .UNK. token"),  # noqa: S106
        (models.WordPiece({"a": 0}, unk_token="?"), None, "Missing .UNK. token"),  # noqa: S106
        (models.BPE({"a": 0}, [], unk_token="?"), None, "not found in the vocabulary"),  # noqa: S106
        (models.Unigram([("a", 0.0)]), None, "unk_id"),
        (models.WordLevel(LETTERS, unk_token="?"), EXPLODES, "retry-limit-in-match over"),  # noqa: S106
    ],
)
@pytest.mark.parametrize("unknown", ["error", "skip"])
def test_one_that_can_not_split_a_text(model: Any, splitter: Any, message: str, unknown: Any, tmp_path: Path) -> None:
    tokenizer = FileTokenizer(written(tmp_path, model, splitter=splitter))
    with pytest.raises(TextError, match=f"can't split 'a{{37}}...'; fix it, or leave that text out: .*{message}"):
        tokenizer.encode("a" * 50 + "b", unknown)


def test_one_that_can_not_write_tokens(tmp_path: Path) -> None:
    strip = {"decoder": {"type": "Strip", "content": "a", "start": 5, "stop": 5}}
    tokenizer = FileTokenizer(written(tmp_path, models.WordLevel(LETTERS), strip))
    with pytest.raises(BundleError, match=r"tokenizer\.json can't write tokens as text: index out of bounds"):
        tokenizer.decode([0])


def test_interrupts_and_a_lack_of_memory_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = FileTokenizer(written(tmp_path, models.WordLevel(LETTERS)))
    for error in (KeyboardInterrupt, MemoryError, SystemExit):

        class Raising:
            def encode(self, *texts: str | None, error: type[BaseException] = error, **how: Any) -> None:
                raise error

        monkeypatch.setattr(tokenizer, "_reader", Raising())
        with pytest.raises(error):
            tokenizer.encode("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_tokenizer": json.loads(EXPLODES.__getstate__())}, "can't split 'aaaaa"),
        ({"model": PANICS_AT_LOAD}, "is not a tokenizer: range end index"),
    ],
)
def test_a_panic_is_one_line_of_a_command(changes: dict[str, Any], message: str, copied: Path) -> None:
    values = json.loads((copied / "tokenizer.json").read_text(encoding="utf-8"))
    (copied / "tokenizer.json").write_text(json.dumps({**values, **changes}), encoding="utf-8")
    reseal(copied)
    assert_one_line(run("run", copied, "a" * 40 + "b"), message, 2)


def test_a_long_text_is_refused_unread(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(bundle.path, tiny_facts())
    monkeypatch.setattr(tokenizer, "_reader", None)
    for unknown in ("error", "skip"):
        with pytest.raises(TextError, match=r"has 10000000 characters beside spaces, the model takes at most 24 token"):
            tokenizer.encode("b@" * 5_000_000, unknown)  # type: ignore[arg-type]


def test_spaces_are_not_counted_and_long_models_take_long_texts(tmp_path: Path) -> None:
    file = written(tmp_path, models.WordLevel(LETTERS, unk_token="?"), splitter=pre_tokenizers.Whitespace())  # noqa: S106
    assert FileTokenizer(file, longest=2).encode("a" + " " * 2 * FEW) == [0]
    long = "a " * FEW
    assert len(FileTokenizer(file, longest=FEW).encode(long)) == FEW
    with pytest.raises(TextError, match="split the text"):
        FileTokenizer(file, longest=FEW // LETTERS_PER_TOKEN).encode(long + "aa")
    assert FileTokenizer(file).encode(long) == [0] * FEW


def test_unknown_characters_are_named_by_the_first_of_them(tmp_path: Path) -> None:
    file = written(tmp_path, models.WordLevel(LETTERS, unk_token="?"), splitter=pre_tokenizers.Whitespace())  # noqa: S106
    text = " ".join(chr(0x4E00 + number) for number in range(500)) + " " + "x" * 1000
    with pytest.raises(TextError, match=r"outside the vocabulary: .* and 491 more; unknown='skip'") as caught:
        FileTokenizer(file).encode(text, "error")
    assert len(str(caught.value)) < 300


def test_many_wrong_numbers_take_no_longer_than_many_right_ones() -> None:
    """Ten times as many numbers would take 100 times as long if each wrong one were compared with all before it."""
    tokenizer = NumberTokenizer(tiny_facts())

    def seconds(count: int) -> float:
        started = time.process_time()
        assert len(tokenizer.encode(" ".join(f"{number} 5" for number in range(100, 100 + count)), "skip")) == count + 1
        return time.process_time() - started

    assert min(seconds(100_000) for _ in range(3)) < 40 * min(seconds(10_000) for _ in range(3))
    assert len(VOCABULARY) < 100


def growing(*steps: tuple[str, str]) -> dict[str, Any]:
    parts = [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in steps]
    return {"type": "Sequence", "normalizers": parts}


def test_a_tokenizer_that_lets_a_text_fill_the_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    values = json.loads(spelling_tokenizer(VOCABULARY))
    file.write_text(json.dumps({**values, "normalizer": growing(("a", "a" * 100), ("a", "a" * 100))}))
    with pytest.raises(BundleError, match=r"the normalizer of .* may let a text grow 10000 times, the most is 4096"):
        FileTokenizer(file)
    file.write_text(json.dumps({**values, "normalizer": growing(("a", "aa"), ("aa", "b"))}))
    assert FileTokenizer(file).encode("ab")


def test_stand_ins_each_become_one_piece(tmp_path: Path) -> None:
    """A converted SentencePiece model has some for pieces of its user: a text does not grow by all of them at once."""
    file = tmp_path / "tokenizer.json"
    values = json.loads(spelling_tokenizer(VOCABULARY))
    steps = [(chr(0xFDE0 + at), "a" * 64) for at in range(3)]
    file.write_text(json.dumps({**values, "normalizer": growing(*steps)}))
    assert FileTokenizer(file).encode("ab")
    for more in (("\ufde3", "\ufde4" * 65), ("a", "a" * 65)):
        file.write_text(json.dumps({**values, "normalizer": growing(*steps, more)}))
        with pytest.raises(BundleError, match=r"may let a text grow 4160 times, the most is 4096"):
            FileTokenizer(file)


def test_a_tokenizer_of_a_vast_size_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(BundleError, match="has 1099511627776 bytes, expected at most"):
        FileTokenizer(file)


def test_tokens_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    with pytest.raises(TextError, match="is not UTF-8 text"):
        FileTokenizer(tmp_path / "tokenizer.json").ids("AA \udcff")
