"""A prompt and its continuation are one text for scores, cut where the prompt alone ends."""

from __future__ import annotations

import pytest

from tests.text.test_agreement import tokenizers
from txport.api.pairs import PairEncoder
from txport.models.facts import Facts, Tokens

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
