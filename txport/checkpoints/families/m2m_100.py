"""M2M-100 and NLLB, as transformers' `M2M100ForConditionalGeneration` saves them.

The tokenizer adds the token of the source language before a source. The first generated token is that of the target
language, set by `generation_config.json` or by an option of the search.
"""

from __future__ import annotations

from txport.checkpoints.families.marian import ALIASES, CLASSES, COMMON, LAYERS, OFF, UNUSED, common
from txport.checkpoints.family import Family, Published
from txport.errors import ConfigError, quoted
from txport.models.rules import FAIRSEQ_SINUSOIDS, Rule

DEFAULTS = {
    **COMMON,
    "vocab_size": 128112,
    "activation_function": "relu",
    "scale_embedding": True,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `TransformerConfig`: fairseq's sinusoids; the first position is pad_id + 1."""
    found = common(values)
    if (start := values.start(found["eos_id"])) == found["pad_id"]:
        raise ConfigError(f"decoder_start_token_id {quoted(start)} can't be pad_token_id, which has no position")
    return found | {
        "norm": "pre",
        "positions": "sinusoidal",
        "sinusoids": "fairseq",
        "position_offset": found["pad_id"] + 1,
        "output_bias": False,
        "bos_id": values.get("bos_token_id"),
        "start_id": start,
    }


WEIGHTS: tuple[Rule, ...] = (
    *FAIRSEQ_SINUSOIDS,
    *LAYERS,
)
FAMILY = Family(
    defaults={"m2m_100": DEFAULTS},
    aliases=ALIASES,
    architecture="transformer",
    classes=rf"{CLASSES}|M2M100Model",
    config=config,
    weights=WEIGHTS,
    unused=UNUSED,
    off=OFF,
)
