"""Small models of the Llama family as both sides know them: our config, and the class and config of transformers.

The logits that transformers gives for them lie in `llamas.json`, and the tokens that it samples in
`llamas_samples.json`; tests/hugging_face writes both, and holds them to be so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txport.models.architectures.llama import Llama, LlamaConfig

LOGITS = Path(__file__).with_suffix(".json")
SAMPLES = Path(__file__).with_name("llamas_samples.json")
PROMPTS = [[1, 9, 5, 3, 7], [1], [1, 8, 8, 11, 20, 6, 13, 22, 17]]  # of what is sampled
VOCABULARY, PROMPT, LENGTH = 24, 7, 20
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 24, "heads": 4, "key_heads": 2, "head_size": 16}
SIZES |= {"decoder_layers": 2, "feed_forward": 40, "max_length": 40, "norm_epsilon": 1e-5}
SHORT = [1.0 + 0.2 * pair for pair in range(8)]
LONG = [2.0 + pair for pair in range(8)]
NAMES = {  # ours -> those of transformers
    "target_embedding.tokens": "model.embed_tokens",
    "decoder_norm": "model.norm",
    "projection": "lm_head",
    "decoder.": "model.layers.",
    "attention_residual.norm": "input_layernorm",
    "feed_forward_residual.norm": "post_attention_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.inner": "mlp.up_proj",
    "feed_forward.outer": "mlp.down_proj",
}


@dataclass(frozen=True)
class Case:
    """One model; `offset` is what transformers adds to the weights of norms."""

    name: str
    theirs: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    offset: float = 0.0

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(**{**SIZES, **self.ours})

    @property
    def options(self) -> dict[str, Any]:
        """Of the config of transformers."""
        config = self.config
        return {
            **IDS,
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.key_heads,
            "head_dim": config.head_size,
            "num_hidden_layers": config.decoder_layers,
            "intermediate_size": config.feed_forward,
            "max_position_embeddings": config.max_length,
            "rms_norm_eps": config.norm_epsilon,
            "tie_word_embeddings": config.tied,
            **self.theirs,
        }


def scaled(kind: str, factor: float, **more: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, "factor": factor, **more}}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
CASES = {
    "llama": Case("Llama"),
    "every head its own": Case("Llama", ours={"key_heads": 4, "tied": True}),
    "biases": Case(
        "Llama",
        {"attention_bias": True, "mlp_bias": True},
        {"attention_bias": True, "output_bias": True, "feed_forward_bias": True},
    ),
    "linear": Case("Llama", scaled("linear", 4.0), {"rotary_scaling": "linear", "rotary_factor": 4.0}),
    "dynamic": Case("Llama", scaled("dynamic", 4.0), {"rotary_scaling": "dynamic", "rotary_original_length": 40}),
    "llama3": Case(
        "Llama",
        {"rope_theta": 5e5, **scaled("llama3", 8.0, **LLAMA3)},
        {"rotary_base": 5e5, "rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_original_length": 16},
    ),
    "yarn": Case(
        "Llama",
        {**scaled("yarn", 4.0, original_max_position_embeddings=10, beta_fast=4.0, beta_slow=1.0)},
        {"rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_original_length": 10, "rotary_fast": 4.0},
    ),
    "longrope": Case(
        "Llama",
        {
            "max_position_embeddings": 80,
            "original_max_position_embeddings": 40,
            **scaled("longrope", 2.0, short_factor=SHORT, long_factor=LONG),
        },
        {
            "rotary_scaling": "longrope",
            "rotary_factor": 2.0,
            "rotary_original_length": 40,
            "rotary_divisors": tuple(SHORT),
        },
    ),
    "mistral": Case("Mistral", {"sliding_window": None}),
    "qwen2": Case("Qwen2", ours={"attention_bias": True, "d_model": 64, "tied": True}),
    "qwen3": Case("Qwen3", ours={"head_norm": True, "rotary_base": 1e6}, theirs={"rope_theta": 1e6}),
    "gemma": Case(
        "Gemma",
        {"hidden_activation": "gelu_pytorch_tanh"},
        {"activation": "gelu_tanh", "scale_embedding": True, "tied": True, "key_heads": 1},
        offset=1.0,
    ),
}


def weights(case: Case) -> dict[str, Tensor]:
    """Seeded ones under our names, each of which counts."""
    rng = np.random.default_rng(0)
    found = {}
    with torch.device("meta"):
        model = Llama(case.config)
    for name, parameter in model.named_parameters():
        drawn = rng.standard_normal(tuple(parameter.shape))
        values = drawn * (1.2 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3)
        found[name] = torch.from_numpy((values + ("norm" in name)).astype(np.float32))
    return found


def renamed(case: Case) -> dict[str, Tensor]:
    """The same under the names of transformers."""
    found = {}
    for name, tensor in weights(case).items():
        other = name
        for ours, theirs in NAMES.items():
            other = other.replace(ours, theirs)
        found[other] = tensor - case.offset * ("norm" in name)
    if case.config.tied:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found


def model_of(case: Case) -> Llama:
    model = Llama(case.config).eval()
    model.load_state_dict(weights(case), strict=False)
    return model


def tokens() -> list[int]:
    return [1, *np.random.default_rng(1).integers(3, VOCABULARY, LENGTH - 1).tolist()]


def stored(name: str) -> np.ndarray:
    """What transformers says after the prompt and each later token but the last: (LENGTH - PROMPT, V)."""
    return np.array(json.loads(LOGITS.read_text(encoding="utf-8"))[name])
