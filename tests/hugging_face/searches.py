"""One search of transformers by our options: samples are drawn by the random numbers that txport draws with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from tests.architectures.sampled import SAMPLES, Tokens

RENAMED = {"beams": "num_beams", "nbest": "num_return_sequences"}
MOST = 64  # tokens of a sample


@dataclass(frozen=True)
class Searched:
    """A model of transformers, and its special tokens; with a `start`, it is an encoder-decoder."""

    model: Any
    pad: int
    end: int
    start: int | None = None

    def search(self, text: list[int], how: dict[str, Any], patch: pytest.MonkeyPatch) -> list[list[int]]:
        """The new tokens of each hypothesis; of one text at a time, since padding would count as what was said."""
        named = {RENAMED.get(name, name): value for name, value in how.items() if name != "seed"}
        if "seed" in how:
            drawn = drawing(how["seed"], how.get("nbest", 1), best_first=bool(how.get("top_k")))
            patch.setattr(torch, "multinomial", drawn)
            named.setdefault("top_k", 0)
        if self.start is not None:
            named["decoder_start_token_id"] = self.start
        config = GenerationConfig(**named, pad_token_id=self.pad, eos_token_id=self.end)
        self.model.generation_config = GenerationConfig()
        rows = self.model.generate(torch.tensor([text]), attention_mask=torch.ones(1, len(text)).long(),
                                   generation_config=config).tolist()  # fmt: skip
        given = len(text) if self.start is None else 1
        return [self.cut(row[given:]) for row in rows]

    def cut(self, tokens: list[int]) -> list[int]:
        """Without the padding behind an end token."""
        return tokens[: tokens.index(self.end) + 1] if self.end in tokens else tokens

    def samples(self, texts: list[list[int]]) -> Tokens:
        """Those of every way to sample."""
        with pytest.MonkeyPatch.context() as patch:
            return {name: [self.search(text, how, patch) for text in texts] for name, how in SAMPLES.items()}


def drawing(seed: int, samples: int, *, best_first: bool) -> Any:
    """`torch.multinomial` by our random numbers: those of the seed and the sample, one a token.

    They are held against sums of the probabilities in the order of the vocabulary, or the likeliest first.
    """
    rows = np.array([np.random.default_rng([seed, sample]).random(MOST) for sample in range(samples)])
    numbers = iter(rows.T)

    def multinomial(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        assert num_samples == 1
        order = torch.arange(weights.shape[1]).expand(weights.shape)
        if best_first:
            order = weights.argsort(dim=1, descending=True, stable=True)
        reached = weights.double().gather(1, order).cumsum(1)
        goal = torch.from_numpy(next(numbers).copy())[:, None] * reached[:, -1:]
        return order.gather(1, (reached > goal).long().argmax(1, keepdim=True))

    return multinomial


def record(file: Path, tokens: Any) -> None:
    file.write_text(json.dumps(tokens, separators=(",", ":")) + "\n", encoding="utf-8")
