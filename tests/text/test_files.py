"""Files of tokenizers that nobody wrote in good faith, or that no tokenizer.json can say: one line, and what it is."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.text.grown import TOKENIZERS, grown
from tests.text.test_agreement import NAMES, tokenizers
from tests.tiny import tiny_facts
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.folder import digest
from txport.errors import BundleError, CheckpointError, TextError, TxportError
from txport.models.names import SPELLINGS, TARGET_TOKENIZER, TEXT, TOKENIZER, TOKENIZER_CONFIG
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer, clean_up
from txport.text.load import tokenizer_of
from txport.text.sentencepiece import read_pieces
from txport.text.usage import read_usage


def copied_of(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(TOKENIZERS / name, folder / name))


def change(folder: Path, **values: Any) -> None:
    path = folder / TOKENIZER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def read(folder: Path) -> None:
    files = companions_of(folder)
    for name in (TOKENIZER, TARGET_TOKENIZER):
        if name in files:
            FileTokenizer(folder / name, content=str(files[name])).encode("The weather", "skip")


def told_by(call: Callable[[], Any]) -> str:
    """The error of ours that a call ends with, if it does."""
    try:
        call()
    except TxportError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_one_line(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    files = [file for file in SPELLINGS if (TOKENIZERS / name / file).is_file()]
    for number in range(12):
        folder = copied_of(name, tmp_path / str(number))
        path = folder / rng.choice(files)
        content = bytearray(path.read_bytes())
        if number % 3 == 0:
            del content[rng.randrange(len(content)) :]
        elif number % 3 == 1:
            for _ in range(5):
                content[rng.randrange(len(content))] = rng.randrange(256)
        else:
            content = bytearray(rng.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"3", b'{"a": 1}', b"\0" * 99]))
        path.write_bytes(content)
        assert "\n" not in told_by(lambda folder=folder: read(folder))


@pytest.mark.parametrize("name", ["t5", "mbart50", "m2m100", "bert", "qwen2", "llama"])
@pytest.mark.parametrize("value", [3, [], "", [3], {"1": {"content": 3}}, {"9999999": "x"}, {"x": "y"}])
def test_settings_of_any_type_are_one_line(name: str, value: Any, tmp_path: Path) -> None:
    folder = copied_of(name, tmp_path)
    for key in json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8")):
        original = (folder / TOKENIZER_CONFIG).read_text(encoding="utf-8")
        change(folder, **{key: value})
        assert "\n" not in told_by(lambda: companions_of(folder))
        (folder / TOKENIZER_CONFIG).write_text(original, encoding="utf-8")


def field(number: int, value: bytes | int) -> bytes:
    """One field of protobuf, whose numbers and sizes are small here."""
    if isinstance(value, int):
        return bytes([number << 3 & 127 | 128, number >> 4, value]) if number > 15 else bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value) & 127 | 128, len(value) >> 7]) + value


def piece(text: str, kind: int = 1, score: float = -1.0) -> bytes:
    return field(1, field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + field(3, kind))


SOUND = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("\u2581a") + piece("b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 pieces for what is unknown, expected 1"),
        (piece("<unk>", 2) + piece("a") + piece("a"), "one piece twice"),
        (SOUND + field(2, field(3, 3)), "cuts words or characters, which no tokenizer.json can say"),
        (SOUND + field(2, field(24, 1)), "writes spaces as suffixes"),
        (SOUND + field(3, field(5, 0)), "keeps spaces as they are"),
        (SOUND + field(5, field(2, b"map")), "changes decoded text"),
        (SOUND + piece("c", 5), "has pieces that are not to be used"),
        (SOUND + field(3, field(2, b"\xff\0\0\0")), "a map of characters that can't be read"),
        (SOUND + piece("c", 9), "is of the kind 9"),
        (SOUND + piece("c", score=float("nan")), "a piece has the score nan"),
        (SOUND + piece("c" * 513), "a piece has 513 characters, the most is 512"),
        (SOUND[:-3], "it is cut off"),
        (b"\x0b", "there is no field of kind 3"),
        (b"IQ== 0\nIg== 1\n", "is not a model of SentencePiece"),
    ],
)
def test_models_that_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        companions_of(tmp_path)


def test_merges_without_end_are_refused(tmp_path: Path) -> None:
    folder = copied_of("gpt2", tmp_path)
    (folder / "merges.txt").write_text("a b\n" * ((1 << 20) + 1), encoding="utf-8")
    with pytest.raises(CheckpointError, match="has 1048577 lines, the most is 1048576"):
        companions_of(folder)


def test_a_file_without_settings_has_those_of_its_class(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(SOUND)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert len(read_pieces(tmp_path / "tokenizer.model").pieces) == 5
    tokenizer = FileTokenizer(tmp_path, content=str(companions_of(tmp_path)[TOKENIZER]))
    assert tokenizer.tokens(tokenizer.encode("a")) == ["<s>", "\u2581a"]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "gpt2",
            {"tokenizer_class": "FooTokenizer"},
            r"has a FooTokenizer, which is not known here; save it as a token",
        ),
        ("gpt2", {"add_prefix_space": "yes"}, "add_prefix_space must be true or false, got 'yes'"),
        ("gpt2", {"errors": "strict"}, "errors 'strict' is not supported"),
        ("bert", {"do_basic_tokenize": False}, "do_basic_tokenize False is not supported"),
        ("bert", {"never_split": ["a"]}, r"never_split \['a'\] is not supported"),
        ("t5", {"extra_ids": -3}, "extra_ids must be a whole number"),
        ("marian", {"separate_vocabs": True}, "separate_vocabs is not supported"),
        ("pegasus", {"offset": 5}, "offset 5 is not supported; it must be 103"),
        ("nllb", {"src_lang": "xx"}, "must name src_lang and all languages"),
        ("m2m100", {"src_lang": "xx"}, "__xx__ among them"),
        ("llama", {"added_tokens_decoder": {"5": "x"}}, "the token 5 is 'x', its vocabulary"),
        ("llama", {"chat_template": 3}, "chat_template must be a text, got 3"),
    ],
)
def test_settings_that_are_refused(name: str, values: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = copied_of(name, tmp_path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change(folder, **values)
    with pytest.raises(CheckpointError, match=message):
        companions_of(folder)


def test_chat_templates_of_which_none_is_the_default_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = copied_of("llama", tmp_path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change(folder, chat_template=[{"name": "rag", "template": "{{ messages }}"}])
    companions_of(folder)
    said = [each.message for each in caplog.records if "chat template" in each.message]
    assert said == [f"{folder}: no chat template has the name default, so none is used; there are rag"]


def test_the_chat_template_of_tools_is_kept_and_others_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied_of("llama", tmp_path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    names = ("default", "tool_use", "rag")
    change(folder, chat_template=[{"name": name, "template": f"{{{{ messages }}}} {name}"} for name in names])
    content = companions_of(folder)[TEXT]
    chat = read_usage(folder / TEXT, content).chat
    assert chat is not None
    assert (chat.template, chat.tool_use) == ("{{ messages }} default", "{{ messages }} tool_use")
    said = [each.message for each in caplog.records if "chat templates" in each.message]
    assert said == [f"{folder}: of the chat templates, default and tool_use are used, so these are not: rag"]


def test_chat_templates_in_a_folder_are_in_place_of_those_of_the_settings(tmp_path: Path) -> None:
    """Newer versions of transformers save them so."""
    folder = copied_of("llama", tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    change(folder, chat_template=[{"name": "tool_use", "template": "{{ messages }} of the settings"}])
    chat = read_usage(folder / TEXT, companions_of(folder)[TEXT]).chat
    assert chat is not None
    assert (chat.template, chat.tool_use) == ("{{ messages }}", "{{ tools }}")


def test_a_type_that_nothing_is_known_of_is_told_of_ids(tmp_path: Path) -> None:
    folder = copied_of("gpt2", tmp_path)
    (folder / TOKENIZER_CONFIG).unlink()
    (folder / "config.json").write_text('{"model_type": "xyz"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"does not say what its tokenizer is; save it .* \(`txport run --ids`\)"):
        companions_of(folder)


def test_files_that_make_a_tokenizer_make_the_checkpoint(tmp_path: Path) -> None:
    size = tokenizers("gpt2")[0].size
    folder = grown(tmp_path / "model", "gpt2", "gpt2", size)
    checkpoint = load_checkpoint(str(folder))
    assert isinstance(checkpoint.companions[TOKENIZER], str)
    before = digest(str(folder))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    (folder / "merges.txt").write_text("\n".join(merges[:-1]) + "\n", encoding="utf-8")
    assert digest(str(folder)) != before


def test_special_tokens_of_a_unigram_model_are_letters_of_a_text() -> None:
    source, _ = tokenizers("t5")
    for token in ("</s>", "<pad>", "<extra_id_3>"):
        ids = source.encode(f"and {token} the", "skip")
        assert source.id_of(token) not in ids[:-1]


def written(folder: Path, tokens: int, added: int, special: bool) -> dict[str, Path | str]:
    """A vocabulary of words, of which the last few are added ones."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(tokens)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    extra = [AddedToken(f"x{number}", special=special) for number in range(added)]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(extra)
    return {TOKENIZER: tokenizer.to_str()}


@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_that_the_model_lacks_are_refused_where_a_text_has_them(special: bool, tmp_path: Path) -> None:
    facts = tiny_facts()
    size = facts.reads.size
    tokenizer = tokenizer_of(written(tmp_path, size, 2, special), tmp_path, facts)
    assert tokenizer.encode("w5 w6") == [5, 6]
    with pytest.raises(TextError, match="has characters outside the vocabulary: 'x1'"):
        tokenizer.encode("w5 x1", "error" if special else "token")  # what is special is letters in a text
    assert tokenizer.encode("w5 x1 w6", "skip") == [5, 6]
    with pytest.raises(TextError, match="'x1' is not a token of the vocabulary"):
        tokenizer.ids("x1")
    with pytest.raises(BundleError, match="it belongs to another model"):
        tokenizer_of(written(tmp_path, size + 1, 1, special), tmp_path, facts)


def test_spaces_before_punctuation_go_where_a_checkpoint_says_so() -> None:
    assert clean_up("Do n't go , he 's in ! ' x ?") == "Don't go, he's in!'x?"


@pytest.mark.parametrize("cleans", [True, False])
def test_word_pieces_are_joined_as_in_transformers(cleans: bool, tmp_path: Path) -> None:
    """The decoder removes spaces piece by piece, and `clean_up_tokenization_spaces` in the whole text."""
    folder = copied_of("bert", tmp_path)
    change(folder, clean_up_tokenization_spaces=cleans)
    files = companions_of(folder)
    reader = FileTokenizer(folder / TOKENIZER, content=str(files[TOKENIZER]), clean_up=TEXT in files)
    found = reader.decode(reader.encode("He did n't go , he 's in ! x ?"))
    assert found == ("he didn't go, he's in! x?" if cleans else "he did n ' t go, he ' s in! x?")


def test_a_pad_that_is_a_piece_is_written(tmp_path: Path) -> None:
    """As `pad_token_id: 0` beside a vocabulary that begins with "!"; transformers skips what the tokenizer marks."""
    files = companions_of(copied_of("qwen2", tmp_path))
    reader = FileTokenizer(tmp_path / TOKENIZER, special=(0, 500), content=str(files[TOKENIZER]))
    assert (reader.tokens([0]), reader.decode([0, 1, 0, 500])) == (["!"], '!"!')


@pytest.mark.parametrize("name", ["mbart50", "nllb"])
def test_a_special_token_that_the_settings_call_normalized_is_left_out(name: str, tmp_path: Path) -> None:
    folder = copied_of(name, tmp_path)
    settings = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    masks = [each for each in settings["added_tokens_decoder"].values() if each["content"] == "<mask>"]
    assert [each["normalized"] for each in masks] == [True]
    reader = FileTokenizer(folder / TOKENIZER, content=str(companions_of(folder)[TOKENIZER]))
    hello = reader.bare("hello")
    assert reader.decode([*hello, reader.id_of("<mask>"), *hello]) == "hello hello"


@pytest.mark.parametrize("kind", ["ElectraTokenizer", None])
def test_electra_has_the_tokenizer_of_bert(kind: str | None, tmp_path: Path) -> None:
    folder = copied_of("bert", tmp_path)
    (folder / "config.json").write_text('{"model_type": "electra"}', encoding="utf-8")
    change(folder, tokenizer_class=kind)
    assert companions_of(folder) == companions_of(TOKENIZERS / "bert")


def test_spaces_before_punctuation_stay_in_bpe(tmp_path: Path) -> None:
    """As in transformers 5; in other tokenizers they go."""
    folder = copied_of("gpt2", tmp_path)
    change(folder, clean_up_tokenization_spaces=True)
    assert TEXT not in companions_of(folder)
    change(folder, clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True)
    assert json.loads(str(companions_of(folder)[TEXT]))["clean_up"] is True
    folder = copied_of("bert", tmp_path)
    assert json.loads(str(companions_of(folder)[TEXT]))["clean_up"] is True
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    del settings["clean_up_tokenization_spaces"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert TEXT not in companions_of(folder)  # no fast tokenizer of transformers does it by itself


@pytest.mark.parametrize("is_said", [False, True])
def test_an_end_of_turn_that_ends_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_said: bool
) -> None:
    reader = tokenizers("qwen2")[0]
    end, other = (reader.id_of(token) for token in ("<|im_end|>", "<|endoftext|>"))
    folder = grown(tmp_path / "model", "llama", "qwen2", reader.size, eos_token_id=other if is_said else end)
    change(folder, eos_token="<|im_end|>")  # noqa: S106 - no password
    load_checkpoint(str(folder))
    said = [each.message for each in caplog.records if "end token" in each.message]
    assert [f"<|im_end|> (id {end}), the tokenizer's end token" in each for each in said] == [True] * is_said
