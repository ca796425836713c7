"""Inputs as a user has them: one at a time, in batches, and how good the answers are. Runs in a candidate's process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from txport.bundles.bundle import Bundle
from txport.errors import TextError
from txport.runtimes.base import log_softmax
from txport.runtimes.inputs import infer
from txport.search.generate import generate
from txport.search.numbers import numbers_only
from txport.search.options import SearchOptions
from txport.search.scoring import teacher_forced_logits
from txport.text.base import encode_within
from txport.text.load import tokenizer_of

Item = object  # a text, token ids (S,), or features (M, F)
Part = tuple[float, float, float]  # seconds to tokenise, to answer and to detokenise


class Stream:
    """A runtime that answers inputs; each method answers a request of the parent.

    `limit` is the largest number of tokens of an answer; None: until the model ends it.
    """

    def __init__(self, bundle: Bundle, runtime: Any) -> None:
        self._bundle = bundle
        self.facts = bundle.manifest.facts
        self.runtime = runtime

    @cached_property
    def _tokenizer(self) -> Any:
        return tokenizer_of(self._bundle.texts, self._bundle.path, self.facts)

    def single(self, items: Sequence[Item], limit: int | None, seconds: float) -> dict[str, object]:
        """Answer one input at a time, for `seconds` at most; return the seconds of the parts of each."""
        parts: list[Part] = []
        end = time.perf_counter() + seconds
        for item in items:
            parts.append(self._part(item, limit))
            if time.perf_counter() > end:
                break
        return {"parts": parts}

    def offline(self, items: Sequence[Item], limit: int | None, batch: int, seconds: float) -> dict[str, object]:
        """Answer batches of inputs of similar length, for `seconds` at most; return counts and the seconds taken.

        Tokens are those of the answers; of an encoder, those that it reads.
        """
        begun = time.perf_counter()
        sources = [self.encode(item) for item in items]
        order = sorted(range(len(sources)), key=lambda at: len(sources[at]))
        groups = [order[start : start + batch] for start in range(0, len(order), batch)]
        counts = [0, 0]
        for at in np.random.default_rng(0).permutation(len(groups)):  # a part of them has inputs of all lengths
            group = [sources[each] for each in groups[at]]
            answers = self._answer(group, limit)
            for source, tokens in zip(group, answers, strict=True):
                self.decode(items[0], source, tokens)  # all are texts, or none is
            counts[0] += len(group)
            counts[1] += sum(map(len, answers if self.facts.generates else group))
            if time.perf_counter() - begun > seconds:
                break
        return {"inputs": counts[0], "tokens": counts[1], "seconds": time.perf_counter() - begun}

    def targets(self, items: Sequence[Item], limit: int | None) -> dict[str, object]:
        """Return the tokens that the runtime generates for each input."""
        return {"targets": [self._answer([self.encode(item)], limit)[0] for item in items]}

    def forced(self, items: Sequence[Item], targets: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the best token at each place of each target after the target's own tokens, and the mean loss in nats.

        Of an encoder, the position of the largest number of each vector; for embeddings, the vectors.
        """
        sources = [self.encode(item) for item in items]
        if not self.facts.generates:
            name = self.facts.outputs[-1].name
            rows = [np.atleast_2d(infer(self.runtime, [source], self.facts)[0][name]) for source in sources]
            is_vector = self.facts.ability == "embed"
            return {"best": [row.tolist() if is_vector else row.argmax(axis=-1).tolist() for row in rows]}
        best: list[list[int]] = []
        losses: list[float] = []
        for source, target in zip(sources, targets, strict=True):
            best.append([])
            for _, tokens, values in teacher_forced_logits(numbers_only(self.runtime), [source], [target], self.facts):
                best[-1].append(int(values[0].argmax()))
                losses.append(-float(log_softmax(values, values[:, tokens])[0, 0]))
        return {"best": best, "loss": float(np.mean(losses))}

    def answers(self, items: Sequence[Item]) -> dict[str, Any]:
        """Return the text that the runtime generates for each text."""
        sources = [self.encode(item) for item in items]
        found = [self._answer([source], None)[0] for source in sources]
        return {"answers": [self.decode("", *pair) for pair in zip(sources, found, strict=True)]}

    def _part(self, item: Item, limit: int | None) -> Part:
        begun = time.perf_counter()
        source = self.encode(item)
        encoded = time.perf_counter()
        (tokens,) = self._answer([source], limit)
        answered = time.perf_counter()
        self.decode(item, source, tokens)
        return encoded - begun, answered - encoded, time.perf_counter() - answered

    def encode(self, item: Item) -> Any:
        """Return the token ids of a text, or the ids or features that an input is."""
        if not isinstance(item, str):
            return item
        ids = encode_within(self._tokenizer, self.facts.vocabulary.longest, item)
        if not ids:
            raise TextError(f"the text {item!r} has no token; remove it from the inputs")
        return ids

    def _answer(self, sources: Sequence[Any], limit: int | None) -> list[Sequence[int]]:
        if not self.facts.generates:
            infer(self.runtime, sources, self.facts)
            return [[] for _ in sources]
        options = SearchOptions(max_new_tokens=limit, scores=False)
        return [results[0].tokens for results in generate(self.runtime, sources, self.facts, options)]

    def decode(self, item: Item, source: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text of an answer to a text; "" for other inputs."""
        if not (isinstance(item, str) and self.facts.generates):
            return ""
        text: str = self._tokenizer.continuation(source if self.facts.is_causal else [], tokens)
        return text
