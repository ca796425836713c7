"""The line that a record of the comparison with the original is shown as, and records that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from txport.bundles.comparisons import NOT_COMPARED, TEXTS, describe_original, require_original

MODEL = {
    "name": "transformers 5.24.0's GPT2LMHeadModel",
    "outputs": ["logits"],
    "within": 1e-9,
    "dtype": "float64",
    "tokens": 137,
    "not_reached": [],
    "not_compared": [],
}
LINE = f"equal to {MODEL['name']}: logits within 1e-09 of the largest value, in float64, up to 137 tokens"
WORDS = {"name": "GPT2Tokenizer", "lines": 16, "differing": []}
LINES = {
    LINE: MODEL,
    f"{LINE}; the tokens of its GPT2Tokenizer in 16 lines": MODEL | {TEXTS: WORDS},
    f"{LINE}; OTHER TOKENS than its GPT2Tokenizer in 1 of 16 lines, such as 'a\\x1bb'": MODEL
    | {TEXTS: WORDS | {"differing": ["a\x1bb"]}},
    "not compared with the original: too large; tokens not compared: no sentencepiece": {
        NOT_COMPARED: "too large",
        TEXTS: {NOT_COMPARED: "no sentencepiece"},
    },
    "": {},
}


@pytest.mark.parametrize("line", LINES)
def test_a_record_is_one_line(line: str) -> None:
    record: dict[str, Any] = LINES[line]
    if record:
        require_original(record)
    assert describe_original(record) == line


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "original must be dict, got a list"),
        ({NOT_COMPARED: 3}, f"{NOT_COMPARED} of original must be"),
        (MODEL | {"outputs": [3]}, "outputs of original must be a list of texts"),
        (MODEL | {TEXTS: []}, "original must be dict, got a list"),
        (MODEL | {TEXTS: WORDS | {"lines": True}}, "lines of original must be"),
        (MODEL | {TEXTS: WORDS | {"differing": [3]}}, "differing of original must be a list of texts"),
    ],
)
def test_a_record_of_other_types_is_refused(record: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        require_original(record)
