"""BART, mBART, PLBart, MVP and Blenderbot, as transformers saves them: models that write text, classify or answer."""

from __future__ import annotations

from txport.checkpoints.families.bert import labelled
from txport.checkpoints.families.marian import ALIASES, CLASSES, COMMON, LAYERS, OFF, UNUSED, common
from txport.checkpoints.family import Family, Published
from txport.checkpoints.keys import NOTHING
from txport.models.rules import Constant, Rename, Rule, Spare

HEADS = {"ForSequenceClassification": "labels", "ForQuestionAnswering": "spans"}
UNUSED_POSITIONS = 2  # rows at the start of the position tables that no token uses


BART = {**COMMON, "vocab_size": 50265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
PLBART = {
    **BART,
    "vocab_size": 50005,
    "d_model": 768,
    "encoder_layers": 6,
    "encoder_ffn_dim": 3072,
    "encoder_attention_heads": 12,
    "decoder_layers": 6,
    "decoder_ffn_dim": 3072,
    "decoder_attention_heads": 12,
    "scale_embedding": True,
}
BLENDERBOT = {
    **COMMON,
    "vocab_size": 8008,
    "max_position_embeddings": 128,
    "d_model": 2560,
    "encoder_layers": 2,
    "encoder_ffn_dim": 10240,
    "encoder_attention_heads": 32,
    "decoder_layers": 24,
    "decoder_ffn_dim": 10240,
    "decoder_attention_heads": 32,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEFAULTS = {
    "blenderbot": BLENDERBOT,
    "bart": {**BART, "decoder_start_token_id": 2},
    "mbart": BART,
    "plbart": PLBART,
    "mvp": {**BART, "vocab_size": 50267, "decoder_start_token_id": 2},
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `TransformerConfig`: learned positions, and a norm of the embeddings but in Blenderbot."""
    is_blenderbot = values.type == "blenderbot"
    values.require("normalize_embedding", not is_blenderbot)
    found = common(values)
    if head := values.head(HEADS, ""):
        del found["output_bias"]
        found |= {"head": head, "wraps_last": values.type in ("mbart", "plbart")}
        found |= labelled(values) if head == "labels" else {}
    return found | {
        "norm": "pre" if values.type in ("mbart", "blenderbot") else "post",
        "positions": "learned",
        "position_offset": 0 if is_blenderbot else UNUSED_POSITIONS,
        "embedding_norm": not is_blenderbot,
        "bos_id": values.get("bos_token_id"),
        "start_id": values.start(found["eos_id"]),
        "add_source_bos": values.type in ("bart", "mvp"),
    }


WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(model\.)?encoder\.embed_positions\.weight$", "source_embedding.positions"),
    Rename(r"^(model\.)?decoder\.embed_positions\.weight$", "target_embedding.positions"),
    *LAYERS,
    Rename(r"^classification_head\.dense\.", "pooler."),
    Rename(r"^(classification_head\.out_proj|qa_outputs)\.", "classifier."),
    Spare(r"projection\."),  # of a model that writes no text
    Constant(r"projection\.bias"),  # missing in a model saved without a head
)
KEYS = {
    **UNUSED,
    **dict.fromkeys(("prompt_length", "prompt_mid_dim"), "only prompts of MVP use it"),
    **dict.fromkeys(("do_blenderbot_90_layernorm", "extra_layer_norm", "layernorm_variant"), NOTHING),
}
FAMILY = Family(
    defaults=DEFAULTS,
    aliases=ALIASES,
    architecture="transformer",
    classes="|".join((CLASSES, "BartModel", "MvpModel", *HEADS)),
    config=config,
    weights=WEIGHTS,
    unused=KEYS,
    off={**OFF, "use_prompt": (False,)},
)
