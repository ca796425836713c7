"""One small GPT-2 by the names of transformers: drawn here, so that it is the same wherever the tests run.

`gpt2.json` holds what transformers makes of it; `python -m tests.hugging_face.test_gpt2` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST, PAD, END = 24, 32, 4, 2, 32, 0, 2
EXPECTED = Path(__file__).with_name("gpt2.json")
SEED = 3
PROMPTS = [[5, 9, 5, 3, 7], [4], [8, 8, 11], [20, 6, 13, 22, 1, 17, 5, 9, 5]]
# By our names; sampling draws by `seed`, in the order of the vocabulary.
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "short": {"max_new_tokens": 5},
    "penalty": {"repetition_penalty": 1.7, "max_new_tokens": 12},
    "no trigram twice": {"no_repeat_ngram_size": 3, "max_new_tokens": 14},
    "no token twice": {"no_repeat_ngram_size": 1, "max_new_tokens": 10},
    "bad words": {"bad_words_ids": [[7, 21], [5, 9], [8, 11, 18], [16]], "max_new_tokens": 10},
    "least": {"min_new_tokens": 8, "max_new_tokens": 10},
    "forced end": {"forced_eos_token_id": END, "max_new_tokens": 6},
    "beams": {"beams": 4, "nbest": 3, "max_new_tokens": 10},
    "long beams": {"beams": 3, "nbest": 3, "length_penalty": 2.0, "early_stopping": "never"},
    "beams, no bigram twice": {"beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "max_new_tokens": 9},
    "samples": {"do_sample": True, "nbest": 3, "seed": 7, "max_new_tokens": 12},
    "warm samples": {"do_sample": True, "seed": 1, "temperature": 1.8, "top_p": 0.8, "max_new_tokens": 12},
    "samples, penalty": {"do_sample": True, "seed": 2, "min_p": 0.05, "repetition_penalty": 1.5, "max_new_tokens": 12},
}


def weights(*, tied: bool) -> dict[str, NDArray[np.float32]]:
    """Biases and norms that count, too."""
    rng = np.random.default_rng(SEED)
    found: dict[str, NDArray[np.float32]] = {}

    def draw(name: str, *shape: int, around: float = 0.0, scale: float = 0.2) -> None:
        found[name] = (around + scale * rng.standard_normal(shape)).astype(np.float32)

    draw("transformer.wte.weight", VOCABULARY, WIDTH, scale=0.6)
    draw("transformer.wpe.weight", LONGEST, WIDTH, scale=1.5)
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}."
        linear = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
        linear |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
        for name, (inputs, outputs) in linear.items():
            draw(f"{prefix}{name}.weight", inputs, outputs, scale=2.5 * inputs**-0.5)
            draw(f"{prefix}{name}.bias", outputs)
        for name in ("ln_1", "ln_2"):
            draw(f"{prefix}{name}.weight", WIDTH, around=1.0)
            draw(f"{prefix}{name}.bias", WIDTH)
    draw("transformer.ln_f.weight", WIDTH, around=1.0)
    draw("transformer.ln_f.bias", WIDTH)
    if not tied:
        draw("lm_head.weight", VOCABULARY, WIDTH, scale=WIDTH**-0.5)
    return found


PARTS = {
    "ln_1": "attention_residual.norm",
    "attn.c_proj": "attention.output",
    "ln_2": "feed_forward_residual.norm",
    "mlp.c_fc": "feed_forward.inner",
    "mlp.c_proj": "feed_forward.outer",
}
NAMES = {
    "transformer.wte.weight": "target_embedding.tokens.weight",
    "transformer.wpe.weight": "target_embedding.positions",
    "transformer.ln_f.weight": "decoder_norm.weight",
    "transformer.ln_f.bias": "decoder_norm.bias",
    "lm_head.weight": "projection.weight",
}


def renamed(name: str, values: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """One tensor of transformers by our names: its matrices are (in, out), query, key and value are one."""
    if name in NAMES:
        yield NAMES[name], values
        return
    layer, part = name.removeprefix("transformer.h.").split(".", 1)
    part, _, kind = part.rpartition(".")
    if part == "attn.c_attn":
        for each, own in zip(("query", "key", "value"), np.split(values, 3, axis=-1), strict=True):
            yield f"decoder.{layer}.attention.{each}.{kind}", np.ascontiguousarray(own.T)
    else:
        yield f"decoder.{layer}.{PARTS[part]}.{kind}", np.ascontiguousarray(values.T)


def expected() -> Any:
    """What transformers found."""
    return json.loads(EXPECTED.read_text(encoding="utf-8"))
