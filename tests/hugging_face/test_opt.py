"""OPT against transformers' own: what tests/architectures/opt holds, which our graphs are held to, is what it says.

`python -m tests.hugging_face.test_opt` records it anew: small seeded models, their logits and the tokens they find.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, OPTConfig, OPTForCausalLM

from txport.models.architectures.opt import OPT, hugging_face
from txport.models.architectures.opt import OPTConfig as OwnConfig
from txport.models.checkpoint import load_checkpoint

FOLDER = Path(__file__).parents[1] / "architectures" / "opt"
SIZES = {"vocab_size": 24, "d_model": 32, "heads": 4, "decoder_layers": 2, "feed_forward": 40, "max_length": 32}
VARIANTS = {
    "pre": OwnConfig(**SIZES),
    "post": OwnConfig(**SIZES, norm="post"),
    "pre-narrow": OwnConfig(**SIZES, embedding_width=12),
    "post-narrow": OwnConfig(**SIZES, embedding_width=12, norm="post"),  # as the model of 350m
}
PROMPTS = [[2, 9, 5, 3, 7], [2], [2, 8, 11], [2, 6, 13, 22, 4, 17, 5, 9, 5]]
GIVEN, NEW = 6, 10  # tokens after each prompt


def model_of(config: OwnConfig) -> Any:
    """Weights so large that tokens differ clearly, in the order of their names: the same on every machine."""
    model = OPTForCausalLM(OPTConfig(**hugging_face(config), dropout=0.0)).eval()
    rng = np.random.default_rng(4)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = rng.standard_normal(parameter.shape)
            if parameter.dim() == 1:
                values = 0.2 * values + ("norm.weight" in name)
            elif "embed_" not in name:
                values *= 1.5 * parameter.shape[1] ** -0.5
            parameter.copy_(torch.from_numpy(values))
    return model


@torch.inference_mode()
def said(model: Any) -> dict[str, Any]:
    """Of each prompt by itself: logits (R, T, V) of the tokens given after it, and what greedy and beam search find."""
    given = np.random.default_rng(5).integers(3, 24, (len(PROMPTS), GIVEN))
    logits = []
    for prompt, more in zip(PROMPTS, given.tolist(), strict=True):
        logits.append(model(torch.tensor([prompt + more])).logits[0, len(prompt) - 1 : -1].numpy())
    greedy = [searched(model, prompt) for prompt in PROMPTS]
    beams = [searched(model, prompt, num_beams=4, num_return_sequences=2) for prompt in PROMPTS]
    return {"given": given, "logits": np.stack(logits), "greedy": np.array(greedy), "beams": np.array(beams)}


def searched(model: Any, prompt: list[int], **how: int) -> list[list[int]]:
    """The new tokens of each hypothesis, then padding."""
    model.generation_config = GenerationConfig()
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=1, eos_token_id=2, **how)
    mask = torch.ones(1, len(prompt)).long()
    rows = model.generate(torch.tensor([prompt]), attention_mask=mask, generation_config=config)[:, len(prompt) :]
    return [row + [1] * (NEW - len(row)) for row in rows.tolist()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_our_graphs_are_held_to_is_what_transformers_says(variant: str) -> None:
    assert load_checkpoint(str(FOLDER / variant)).model.config == VARIANTS[variant]
    found = said(model_of(VARIANTS[variant]))
    assert found["logits"].std() > 0.5  # a model that says nothing would agree with itself
    with np.load(FOLDER / variant / "expected.npz") as recorded:
        for name, expected in found.items():
            np.testing.assert_allclose(recorded[name], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_reads_our_config_json(variant: str) -> None:
    """And has as many numbers in a model of it."""
    config = VARIANTS[variant]
    theirs = OPTForCausalLM(OPTConfig(**hugging_face(config)))
    assert sum(each.numel() for each in theirs.parameters()) == sum(each.numel() for each in OPT(config).parameters())


def main() -> None:
    for variant, config in VARIANTS.items():
        model = model_of(config)
        folder = FOLDER / variant
        folder.mkdir(parents=True, exist_ok=True)
        values = {"architecture": "opt", **config.to_dict()}
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        save_file({name: each.detach().contiguous() for name, each in model.named_parameters()},
                  folder / "model.safetensors")  # fmt: skip
        np.savez_compressed(folder / "expected.npz", **said(model))


if __name__ == "__main__":
    main()
