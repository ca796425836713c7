"""Small seeded T5 models of transformers, and what they say: `python -m tests.hugging_face.t5` records it.

`tests/architectures/test_t5.py` holds the exported graphs against the record, where transformers need not be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from tests.architectures.sampled import Tokens
from tests.hugging_face.searches import Searched, record

FOLDER = Path(__file__).parents[1] / "architectures" / "t5"
VARIANTS: dict[str, dict[str, Any]] = {
    "tied-relu": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "gated-gelu": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated-silu": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": True, "num_decoder_layers": 1},
}
OURS: dict[str, dict[str, Any]] = {
    "tied-relu": {},
    "gated-gelu": {"gated": True, "activation": "gelu_tanh", "tied": False},
    "gated-silu": {"gated": True, "activation": "silu", "decoder_layers": 1},
}
SIZES = {"vocab_size": 24, "d_model": 16, "d_kv": 8, "d_ff": 20, "num_layers": 2, "num_heads": 2}
BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
OWN_SIZES = {"vocab_size": 24, "d_model": 16, "head_size": 8, "feed_forward": 20, "heads": 2}
OWN_LAYERS = {"encoder_layers": 2, "decoder_layers": 2, "max_length": 40, "buckets": 8, "farthest": 12}
SOURCES = [[5, 9, 3, 17, 22, 8, 4, 11, 13, 2, 6, 7, 19, 20, 21, 10, 3, 1], [12, 3, 1], [1], [14, 15, 16, 23, 18, 5, 1]]
SAMPLES = "samples.json"  # beside the weights
LENGTH, BEAMS, BEST = 30, 4, 2  # of the target; more tokens than there are buckets


def model_of(variant: str) -> Any:
    """Weights so large that tokens differ clearly, in the order of their names: the same on every machine."""
    model = T5ForConditionalGeneration(T5Config(**{**SIZES, **BUCKETS, **VARIANTS[variant]}, dropout_rate=0.0)).eval()
    is_tied = VARIANTS[variant]["tie_word_embeddings"]
    if not is_tied:  # as from a file with two matrices; a new model of transformers 5 always has one
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    rng = np.random.default_rng(len(variant))
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = rng.standard_normal(parameter.shape)
            if parameter.dim() == 1:
                values = 1 + 0.2 * values
            elif "relative" not in name:
                values *= 1.2 if name == "shared.weight" and is_tied else 1.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(torch.from_numpy(values))
    return model


def own_config(variant: str) -> dict[str, Any]:
    """The same as our config.json has it."""
    return {"architecture": "t5", **OWN_SIZES, **OWN_LAYERS, **OURS[variant]}


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    """The sources (B, S) and their mask."""
    longest = max(map(len, SOURCES))
    ids = torch.tensor([source + [0] * (longest - len(source)) for source in SOURCES])
    return ids, torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in SOURCES])


def targets() -> torch.Tensor:
    """What the decoder is given (B, T): the start token, then tokens at random."""
    drawn = np.random.default_rng(5).integers(2, 24, (len(SOURCES), LENGTH - 1))
    return torch.from_numpy(np.pad(drawn, ((0, 0), (1, 0))))


@torch.inference_mode()
def said(model: Any) -> dict[str, np.ndarray]:
    """Logits of whole targets, and the tokens that greedy and beam search find, without the start token."""
    ids, mask = padded()
    given = targets()
    logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=given).logits
    found = {"given": given.numpy(), "logits": logits.numpy()}
    common = {"max_new_tokens": 12, "no_repeat_ngram_size": 2, "do_sample": False, "pad_token_id": 0, "eos_token_id": 1}
    model.generation_config = GenerationConfig()
    for name, more in {"greedy": {}, "beam": {"num_beams": BEAMS, "num_return_sequences": BEST}}.items():
        config = GenerationConfig(**common, **more, decoder_start_token_id=0)
        found[name] = model.generate(ids, attention_mask=mask, generation_config=config)[:, 1:].numpy()
    return found


def samples(model: Any) -> Tokens:
    """The tokens of every way to sample, of each source by itself."""
    return Searched(model, pad=0, end=1, start=0).samples(SOURCES)


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """The weights as transformers saves them: a tied one once."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def main() -> None:
    for variant in VARIANTS:
        model = model_of(variant)
        folder = FOLDER / variant
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(own_config(variant), indent=2) + "\n", encoding="utf-8")
        save_file(tensors(model), folder / "model.safetensors")
        np.savez_compressed(folder / "expected.npz", **said(model))
        record(folder / SAMPLES, samples(model))


if __name__ == "__main__":
    main()
