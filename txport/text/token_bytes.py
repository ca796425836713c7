"""The bytes that a token adds to a text: a token may be a part of a character."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from txport.text.base import Tokenizer

if TYPE_CHECKING:
    import tokenizers

BYTE = re.compile("<0x[0-9a-fA-F]{2}>")  # the token of one byte
# The letters that byte-level tokens are written with: printable ones of Latin-1 are their own byte, and the others
# follow 255 in order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
UNFINISHED = "\ufffd"  # shown by decoders for an incomplete character
CONTEXT = "abcdef"  # before a token, so that it is not decoded as the first of a text


class TokenBytes:
    """The bytes of each token of a tokenizer of the `tokenizers` library, as `Tokenizer.spelling` defines them."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._steps = set(_types(json.loads(tokenizer.to_str())["decoder"]))
        self._before = [""]
        with contextlib.suppress(Exception):  # a vocabulary may lack these letters, and an unknown token
            self._before = tokenizer.encode(CONTEXT, add_special_tokens=False).tokens or [""]
        self._text = self._joined(self._before)

    def __call__(self, id_: int) -> bytes | None:
        """Return the bytes of a token; None for an id without one."""
        token = self._tokenizer.id_to_token(id_) if id_ >= 0 else None
        if token is None:
            return None
        if "ByteFallback" in self._steps and BYTE.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        if self._steps & {"ByteFallback", "ByteLevel"} == {"ByteLevel"} and BYTES.keys() >= set(token):
            return bytes(BYTES[letter] for letter in token)
        return self._joined([*self._before, token]).removeprefix(self._text).encode()

    def _joined(self, tokens: list[str]) -> str:
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))


def without_last_bytes(ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """Return target ids without the byte tokens at their end, and without tokens that have no text there.

    Decoders show consecutive byte tokens as UTF-8, or each as an unknown character if one byte of them is wrong.
    """
    end = len(ids)
    while end and (not tokenizer.decode(last := ids[end - 1 : end]) or BYTE.fullmatch(tokenizer.tokens(last)[0])):
        end -= 1
    return ids[:end]


def _types(part: Any) -> Iterator[str]:
    """Yield the type of a decoder and of its steps, which may have steps too."""
    if part is not None:
        yield part["type"]
        for each in part.get("decoders", ()):
            yield from _types(each)
