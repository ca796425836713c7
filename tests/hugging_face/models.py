"""Small seeded models of three families, and each of them as a runtime for our search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from txport.models.architectures import transformer
from txport.models.architectures.transformer import TransformerConfig
from txport.models.facts import Facts
from txport.runtimes.base import Ints, Scores, scores

VOCABULARY, PAD, EOS, START = 24, 0, 1, 2
LONGEST = 32
SIZES: dict[str, Any] = {"d_model": 16, "vocab_size": VOCABULARY}
IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": START, "decoder_start_token_id": START}
LAYERS = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()
}


def marian() -> Any:
    return MarianMTModel(
        MarianConfig(**SIZES, **LAYERS, **IDS, max_position_embeddings=LONGEST, forced_eos_token_id=None)
    )


def bart() -> Any:
    config = BartConfig(**SIZES, **LAYERS, **IDS, max_position_embeddings=LONGEST, forced_eos_token_id=None)
    return BartForConditionalGeneration(config)


def t5() -> Any:
    return T5ForConditionalGeneration(T5Config(**SIZES, **IDS, d_kv=8, d_ff=16, num_layers=1, num_heads=2))


FAMILIES: dict[str, Callable[[], Any]] = {"marian": marian, "bart": bart, "t5": t5}


def seeded(family: str, seed: int) -> Any:
    """With weights so large that tokens differ clearly, and an end that comes now and then."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5 / parameter.std() / parameter.shape[-1] ** 0.5)
    return model


@dataclass(frozen=True)
class HuggingFaceState:
    """The encoder's output, the mask, and the tokens so far of every row."""

    memory: torch.Tensor
    mask: torch.Tensor
    tokens: torch.Tensor


class HuggingFaceRuntime:
    """`Runtime` over a model of transformers, without a cache: every step computes the whole target anew."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> HuggingFaceState:
        mask = torch.arange(source.shape[1])[None] < torch.from_numpy(source_lengths)[:, None]
        memory = self._model.get_encoder()(torch.from_numpy(source), attention_mask=mask.long()).last_hidden_state
        return HuggingFaceState(memory, mask.long(), torch.zeros((len(source), 0), dtype=torch.long))

    @torch.inference_mode()
    def step(
        self,
        tokens: Ints,
        state: HuggingFaceState,
        *,
        top: int | None = None,
        normalise: bool = True,
        align: bool = False,
    ) -> tuple[Scores, HuggingFaceState]:
        said = torch.cat([state.tokens, torch.from_numpy(np.ascontiguousarray(tokens))[:, None]], 1)
        logits = self._model(
            encoder_outputs=(state.memory,), attention_mask=state.mask, decoder_input_ids=said, use_cache=False
        ).logits[:, -1]
        return scores(logits.clone().numpy(), top, normalise), replace(state, tokens=said)

    def select(self, state: HuggingFaceState, rows: Ints) -> HuggingFaceState:
        return HuggingFaceState(state.memory[rows], state.mask[rows], state.tokens[rows])


def facts_of() -> Facts:
    """What our search has to know of these models."""
    ids = {"pad_id": PAD, "bos_id": START, "eos_id": EOS}
    sizes = {"d_model": 16, "heads": 2, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig(
        source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, max_length=LONGEST, **sizes, **ids
    )
    return transformer.facts(config)
