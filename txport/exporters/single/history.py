"""Score changes that depend on previous tokens: repetition penalty, forbidden sequences and n-grams.

Letters: R rows, L tokens so far (including prompt or start token), V vocabulary, W windows over the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from txport.exporters.single.block import Block
from txport.exporters.single.rules import Rules

LEAST = -np.inf


class History:
    """The tokens of each row (R, L): `front` (R, F), -1 for padding, then the tokens of the hypotheses."""

    def __init__(self, block: Block, front: ir.Value, ids: ir.Value) -> None:
        self._block = block
        self.ids = block.op("Concat", front, ids, axis=1)
        self._length = block.op("Shape", self.ids, start=1, end=2)  # -> (1,)

    def penalise(self, scores: ir.Value, penalty: float) -> ir.Value:
        """Divide the positive scores (R, V) of previous tokens by the penalty, and multiply the negative ones."""
        block = self._block
        newest = block.op("Slice", self.ids, [-1], self._length, [1])
        previous_ids = block.op("Where", block.op("Less", self.ids, 0), newest, self.ids)
        old = block.op("GatherElements", scores, previous_ids, axis=1)
        factor = block.known(penalty, np.float32)
        less = block.op("Where", block.op("Less", old, 0.0), block.op("Mul", old, factor), block.op("Div", old, factor))
        return block.op("ScatterElements", scores, previous_ids, less, axis=1)

    def forbid(self, scores: ir.Value, rules: Rules) -> ir.Value:
        """Mask the scores (R, V) of tokens that would complete a forbidden sequence or repeat an n-gram."""
        for words in rules.bad_words_ids:
            if len(words) > 1:
                scores = self._forbid_words(scores, words, rules.facts.writes.size)
        return self._forbid_repeated(scores, rules.no_repeat_ngram_size) if rules.no_repeat_ngram_size else scores

    def _place(self, back: int) -> ir.Value:
        """Return the token `back` positions before the end, or the first one: (R, 1)."""
        place = self._block.op("Max", self._block.op("Sub", self._length, back), 0)
        return self._block.op("Gather", self.ids, place, axis=1)

    def _forbid_words(self, scores: ir.Value, words: Sequence[int], size: int) -> ir.Value:
        block = self._block
        before = words[:-1]
        last = np.zeros(size, np.bool_)
        last[words[-1]] = True
        match = block.op("GreaterOrEqual", self._length, len(before))
        for at, word in enumerate(before):
            match = block.op("And", match, block.op("Equal", self._place(len(before) - at), word))
        return block.op("Where", block.op("And", match, block.known(last)), LEAST, scores)

    def _forbid_repeated(self, scores: ir.Value, size: int) -> ir.Value:
        """Mask tokens that would repeat an n-gram of `size` tokens."""
        block = self._block
        count = block.op("Max", block.op("Sub", self._length, size - 1), 0)  # number of windows

        def places(start: int) -> ir.Value:
            return block.op("Slice", self.ids, [start], block.op("Add", count, start), [1])  # -> (R, W)

        last = places(size - 1)
        match = block.op("GreaterOrEqual", last, 0)
        for at in range(size - 1):
            match = block.op("And", match, block.op("Equal", places(at), self._place(size - 1 - at)))
        values = block.op("Where", match, LEAST, np.inf)
        return block.op("ScatterElements", scores, block.op("Max", last, 0), values, axis=1, reduction="min")
