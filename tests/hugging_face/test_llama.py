"""What transformers says and samples through small models of the Llama family, which our graphs are held against.

`python -m tests.hugging_face.test_llama` writes them anew.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.architectures.llamas import (
    CASES,
    IDS,
    LOGITS,
    PROMPT,
    PROMPTS,
    SAMPLES,
    Case,
    model_of,
    renamed,
    stored,
    tokens,
)
from tests.architectures.sampled import Tokens, recorded
from tests.hugging_face.searches import Searched, record

DIGITS = 6


def their_model(case: Case) -> Any:
    config = getattr(transformers, f"{case.name}Config")(**case.options, attn_implementation="eager")
    model = getattr(transformers, f"{case.name}ForCausalLM")(config).eval()
    model.load_state_dict(renamed(case), strict=True)
    return model


@torch.no_grad()
def theirs(case: Case) -> np.ndarray:
    logits: np.ndarray = their_model(case)(torch.tensor([tokens()])).logits[0, PROMPT - 1 : -1].numpy()
    return logits


def their_samples(case: Case) -> Tokens:
    return Searched(their_model(case), pad=IDS["pad_token_id"], end=IDS["eos_token_id"]).samples(PROMPTS)


@pytest.mark.parametrize("name", CASES)
def test_stored_logits_are_hugging_faces(name: str) -> None:
    np.testing.assert_allclose(theirs(CASES[name]), stored(name), atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_stored_samples_are_hugging_faces(name: str) -> None:
    assert their_samples(CASES[name]) == recorded(SAMPLES)[name]


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_our_reference_agrees(name: str) -> None:
    model = model_of(CASES[name])
    ids = torch.tensor([tokens()])
    places = torch.arange(ids.shape[1])[None]
    found = model.extend(ids, torch.ones_like(ids).bool(), places, model.empty_state(1)).logits[0, PROMPT - 1 : -1]
    np.testing.assert_allclose(found.numpy(), theirs(CASES[name]), atol=2e-5)


if __name__ == "__main__":
    every = {name: np.round(theirs(case).astype(np.float64), DIGITS).tolist() for name, case in CASES.items()}
    LOGITS.write_text(json.dumps(every) + "\n", encoding="utf-8")
    record(SAMPLES, {name: their_samples(case) for name, case in CASES.items()})
