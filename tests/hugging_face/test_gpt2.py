"""What transformers makes of the small GPT-2: that tests/architectures/gpt2.json, which our graphs are held to, is so.

`python -m tests.hugging_face.test_gpt2` writes it anew.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.architectures.gpt2_weights import (
    END,
    EXPECTED,
    HEADS,
    LAYERS,
    LONGEST,
    PAD,
    PROMPTS,
    SEARCHES,
    VOCABULARY,
    WIDTH,
    expected,
    weights,
)
from tests.hugging_face.searches import Searched

KINDS = {"tied": True, "untied": False}


def model_of(*, tied: bool) -> Any:
    sizes = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": LONGEST}
    ids = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": END}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ids, tie_word_embeddings=tied)).eval()
    tensors = {name: torch.from_numpy(values) for name, values in weights(tied=tied).items()}
    found = model.load_state_dict(tensors, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@torch.inference_mode()
def logits_of(model: Any) -> list[Any]:
    return [model(torch.tensor([prompt])).logits[0].tolist() for prompt in PROMPTS]


def found_by(model: Any, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    searched = Searched(model, pad=PAD, end=END)
    return {
        name: [searched.search(prompt, {"max_new_tokens": LONGEST - len(prompt), **how}, patch) for prompt in PROMPTS]
        for name, how in SEARCHES.items()
    }


def everything(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = {}
    for kind, tied in KINDS.items():
        model = model_of(tied=tied)
        found[kind] = {"logits": logits_of(model), "tokens": found_by(model, patch)}
    return found


def test_what_our_graphs_are_held_to_is_what_transformers_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = everything(monkeypatch)
    stored = expected()
    for kind in KINDS:
        assert found[kind]["tokens"] == stored[kind]["tokens"]
        for one, other in zip(found[kind]["logits"], stored[kind]["logits"], strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        values = everything(patch)
    for kind in values.values():
        kind["logits"] = [np.round(each, 6).tolist() for each in kind["logits"]]
    EXPECTED.write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")
