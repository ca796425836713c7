"""Tokenizers that we make of others' files: they read and write what transformers' tokenizers do.

tests/hugging_face/record_tokenizers.py recorded what these say, over vocabularies that it trained on our own sentences.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorded import TOKENIZERS
from tests.text.corpus import lines
from txport.errors import TextError
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.text.chat import ChatReader, chat_line
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer
from txport.text.token_bytes import BYTE, UNFINISHED, without_last_bytes
from txport.text.usage import read_usage

NAMES = sorted(path.parent.name for path in TOKENIZERS.glob("*/expected.json"))
CHATTING = ("gemma", "llama", "llama-new", "qwen2")


def said(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((TOKENIZERS / name / "expected.json").read_text(encoding="utf-8"))
    return values


@cache
def tokenizers(name: str) -> tuple[FileTokenizer, FileTokenizer]:
    """For sources and for targets."""
    files = companions_of(TOKENIZERS / name)
    clean_up = TEXT in files and read_usage(TOKENIZERS / TEXT, files[TEXT]).clean_up
    found = [
        FileTokenizer(TOKENIZERS / name / file, content=str(files[file]), clean_up=clean_up)
        for file in (TOKENIZER, TARGET_TOKENIZER)
        if file in files
    ]
    return found[0], found[-1]


def test_every_class_is_here() -> None:
    assert len(NAMES) >= 18


@pytest.mark.parametrize("name", NAMES)
def test_lines_of_many_scripts_have_the_ids_that_they_have_in_transformers(name: str) -> None:
    source, target = tokenizers(name)
    recorded = said(name)
    texts = lines(len(recorded["ids"]), 2)
    for text, ids, written in zip(texts, recorded["ids"], recorded["texts"], strict=True):
        known = [each for each in ids if each != recorded["unknown"]]
        assert source.encode(text) == source.encode(text, "token") == ids, text
        if known != ids:
            with pytest.raises(TextError, match=r"outside the vocabulary|no character of the vocabulary"):
                source.encode(text, "error")
        if known != source.around:
            assert source.encode(text, "skip") == known, text
        if known == ids:
            assert target.decode(ids) == written


@pytest.mark.parametrize("name", [name for name in NAMES if "literal" in said(name)])
def test_special_tokens_are_written_as_they_are_in_transformers(name: str) -> None:
    _, target = tokenizers(name)
    recorded = said(name)
    for ids, text in zip(recorded["ids"], recorded["literal"], strict=False):
        assert target.decode(ids, special=True) == text
        begun = target.decode(ids[:1], special=True)
        if text.startswith(begun):  # it may end within a character
            assert target.continuation(ids[:1], ids[1:], special=True) == text.removeprefix(begun)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("special", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_last_tokens_before_others_settle_the_text_of_these(name: str, special: bool, data: st.DataObject) -> None:
    target = tokenizers(name)[1]
    token = st.integers(0, target.size - 1) | st.sampled_from(bytes_of(name)) | st.sampled_from(target.around or [0])
    known = data.draw(st.sampled_from(said(name)["ids"]))
    before = [*data.draw(st.lists(token, max_size=9)), *known, *data.draw(st.lists(token, max_size=70))]
    ids = data.draw(st.lists(token, max_size=6))
    text, whole = (target.decode(each, special) for each in (before, [*before, *ids]))
    wanted = whole[len(text) :] if whole.startswith(text) else target.decode(ids, special)
    assert target.continuation(before, ids, special) == wanted


@pytest.mark.parametrize("name", CHATTING)
def test_a_token_after_a_long_prompt_is_decoded_with_its_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tokenizers(name)[1]
    ids = target.encode("The weather is fine. " * 400)
    sizes = []
    decode = target.decode
    monkeypatch.setattr(target, "decode", lambda ids, special=False: (sizes.append(len(ids)), decode(ids, special))[1])
    assert target.continuation(ids[:-3], ids[-3:]) == decode(ids).removeprefix(decode(ids[:-3]))
    assert max(sizes) < 64 < len(ids)


@pytest.mark.parametrize("name", CHATTING)
def test_chats_have_the_prompts_that_they_have_in_transformers(name: str) -> None:
    reader = chat_reader(name)
    recorded = said(name)
    for messages, ids in zip(recorded["chats"], recorded["prompts"], strict=True):
        if ids is None:
            with pytest.raises(TextError, match="the chat template does not take these messages"):
                reader.encode(chat_line(messages))
        else:
            assert reader.encode(chat_line(messages)) == ids


def chat_reader(name: str) -> ChatReader:
    chat = read_usage(TOKENIZERS / TEXT, companions_of(TOKENIZERS / name)[TEXT]).chat
    assert chat is not None
    return ChatReader(tokenizers(name)[0], chat, continues=False)  # as recorded


@cache
def bytes_of(name: str) -> list[int]:
    """The tokens of single bytes."""
    target = tokenizers(name)[1]
    return [id_ for id_, token in enumerate(target.tokens(range(target.size))) if BYTE.fullmatch(token)] or [0]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)  # of each of 22 tokenizers
@given(data=st.data())
def test_tokens_that_follow_do_not_change_the_text_before_unfinished_characters(name: str, data: st.DataObject) -> None:
    """What is streamed is never taken back: byte tokens are decoded together, and a wrong one changes those before."""
    target = tokenizers(name)[1]
    ids = data.draw(st.lists(st.integers(0, target.size - 1) | st.sampled_from(bytes_of(name)), max_size=12))
    whole = target.decode(ids)
    for count in range(len(ids)):
        text = target.decode(without_last_bytes(ids[:count], target)).rstrip(UNFINISHED)
        assert whole.startswith(text), (count, ids)
