"""Token ids of a text and a given target, whose score is computed."""

from __future__ import annotations

from dataclasses import dataclass

from txport.errors import TextError, quoted
from txport.models.facts import Facts
from txport.text.base import Tokenizer, TokenizerPair, Unknown, encode_within

Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class PairEncoder:
    """Encodes a text and its target. `unknown` and `special` are those of `Tokenizer.encode`.

    With `pieces`, a target is vocabulary tokens separated by spaces. The target of a seq2seq model begins with `first`,
    the token that generation forces, unless it is given as `pieces`; it ends with the end token if `add_end` is true.
    In chat mode, a target is what follows the prompt of a text.
    """

    tokenizer: Tokenizer
    facts: Facts
    first: int | None = None
    pieces: bool = False
    unknown: Unknown = "auto"
    special: bool = False
    add_end: bool = True

    def encode(self, text: str, target: str) -> Pair:
        """Return the ids of a text and its target; raise `TextError` if the model can't process them."""
        for what, each in (("a text", text), ("a target", target)):
            if not isinstance(each, str):
                raise TextError(f"{what} must be a string, got {quoted(each)}")
        if self.facts.is_causal and isinstance(self.tokenizer, TokenizerPair):
            return self._source(text), self._target(target)
        if self.facts.is_causal:
            return self._apart(text, target) if self._by_token else self._together(text, target)
        ids = self._target(target)
        first = [] if self._by_token or self.first is None else [self.first]
        return self._source(text), [*first, *ids, *([self.facts.writes.end] if self.add_end else [])]

    @property
    def _by_token(self) -> bool:
        return self.pieces or not self.tokenizer.joins

    def _apart(self, text: str, target: str) -> Pair:
        return self._source(text) if text.strip() else [self._start], self._target(target)

    def _together(self, text: str, target: str) -> Pair:
        """Encode a prompt and its continuation as one text, as lm-evaluation-harness does.

        Spaces between them belong to the continuation, because most vocabularies have pieces that begin with a space.
        """
        whole = text + target
        ids = self._source(whole)
        inner = self.tokenizer.encode_target(whole, self.unknown, self.special)
        start = next(at for at in range(len(ids)) if ids[at : at + len(inner)] == inner)  # after tokens around the text
        cut = start + len(self.tokenizer.encode_target(text.rstrip(), self.unknown, self.special))
        return ids[:cut] or [self._start], ids[cut : start + len(inner)]

    @property
    def _start(self) -> int:
        """The token that precedes a continuation of nothing."""
        tokens = self.facts.writes
        return tokens.before[0] if tokens.before else tokens.end

    def _source(self, text: str) -> list[int]:
        return encode_within(self.tokenizer, self.facts.vocabulary.longest, text, self.unknown, self.special)

    def _target(self, target: str) -> list[int]:
        if self.pieces:
            return self.tokenizer.ids(target)
        return self.tokenizer.encode_target(target, self.unknown, self.special)
