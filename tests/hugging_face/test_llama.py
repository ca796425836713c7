"""The logits of transformers for small models of the Llama family, which the exported graphs are held against.

`python -m tests.hugging_face.test_llama` writes them anew.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from tests.architectures.llamas import CASES, LOGITS, PROMPT, Case, model_of, renamed, stored, tokens

DIGITS = 6


@torch.no_grad()
def theirs(case: Case) -> np.ndarray:
    config = getattr(transformers, f"{case.name}Config")(**case.options, attn_implementation="eager")
    model = getattr(transformers, f"{case.name}ForCausalLM")(config).eval()
    model.load_state_dict(renamed(case), strict=True)
    logits: np.ndarray = model(torch.tensor([tokens()])).logits[0, PROMPT - 1 : -1].numpy()
    return logits


@pytest.mark.parametrize("name", CASES)
def test_stored_logits_are_hugging_faces(name: str) -> None:
    np.testing.assert_allclose(theirs(CASES[name]), stored(name), atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_our_reference_agrees(name: str) -> None:
    model, ids = model_of(CASES[name]), torch.tensor([tokens()])
    places = torch.arange(ids.shape[1])[None]
    found = model.extend(ids, torch.ones_like(ids).bool(), places, model.empty_state(1)).logits[0, PROMPT - 1 : -1]
    np.testing.assert_allclose(found.numpy(), theirs(CASES[name]), atol=2e-5)


if __name__ == "__main__":
    every = {name: np.round(theirs(case).astype(np.float64), DIGITS).tolist() for name, case in CASES.items()}
    LOGITS.write_text(json.dumps(every) + "\n", encoding="utf-8")
