"""A prompt and its continuation are one text for scores, cut where the prompt alone ends."""

from __future__ import annotations

import pytest

from tests.text.test_agreement import chat_reader, tokenizers
from txport.api.pairs import PairEncoder
from txport.models.facts import Facts, Tokens
from txport.text.base import TokenizerPair
from txport.text.chat import chat_line

START, END = 7, 9


def facts(*before: int) -> Facts:
    target = Tokens(size=1000, longest=100, pad=0, before=before, ends=(END,))
    return Facts(task="causal", width=8, target=target)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-new"])
@pytest.mark.parametrize(
    ("text", "target"), [("The weather", " is fine"), ("The weather ", "is fine"), ("The wea", "ther")]
)
def test_a_prompt_and_its_target_are_one_text(name: str, text: str, target: str) -> None:
    reader = tokenizers(name)[0]
    prompt, wanted = PairEncoder(reader, facts()).encode(text, target)
    assert prompt + wanted == reader.encode(text + target)
    assert prompt == reader.encode(text + target)[: len(reader.encode(text.rstrip()))]


def test_an_empty_prompt_is_the_start_token() -> None:
    gpt2, llama = (tokenizers(name)[0] for name in ("gpt2", "llama"))
    whole = gpt2.encode("The weather")
    assert PairEncoder(gpt2, facts(START)).encode("", "The weather") == ([START], whole)
    assert PairEncoder(gpt2, facts()).encode("", "The weather") == ([END], whole)
    own = llama.encode("The weather")
    assert PairEncoder(llama, facts(START)).encode("", "The weather") == (own[:1], own[1:])


@pytest.mark.parametrize("text", ["Hi", " ", chat_line([{"role": "user", "content": "Hi "}])])
@pytest.mark.parametrize("target", ["Hello", "Hello\n"])
def test_the_target_of_a_chat_follows_its_prompt(text: str, target: str) -> None:
    chat, own = chat_reader("qwen2"), tokenizers("qwen2")[0]
    encoder = PairEncoder(TokenizerPair(chat, own), facts())
    assert encoder.encode(text, target) == (chat.encode(text), own.encode(target))
