"""ModernBERT as transformers saves it: rotary positions, windows to both sides, norms before sublayers, gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txport.checkpoints.families import bert, llama
from txport.checkpoints.families.llama import GLOBAL, LOCAL
from txport.checkpoints.family import ACTIVATIONS, Family, Published
from txport.checkpoints.keys import MEMORY, NOTHING, STARTING, TRAINING
from txport.errors import ConfigError, quoted
from txport.models.rules import Rename, Rule, Spare, Split

DEFAULTS: dict[str, object] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "pad_token_id": 50283,
    "cls_token_id": 50281,
    "sep_token_id": 50282,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "classifier_pooling": "cls",
    "classifier_activation": "gelu",
    "embedding_dropout": 0.0,
}
THETAS = {GLOBAL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}
USUAL = {"cls": 50281, "sep": 50282, "mask": 50284}
NAMES = {**bert.NAMES, "activation": "hidden_activation", "dropout": "embedding_dropout"}
POOLINGS = {"cls": "first", "mean": "mean"}


def config(values: Published) -> dict[str, object]:
    """Return the values of `BertConfig`."""
    period = values.get("global_attn_every_n_layers")
    kinds = llama.layer_kinds(values, lambda number: number % period)
    found = bert.kin(values, names=NAMES, segment=False, usual=USUAL)
    pooling = values.word("classifier_pooling", POOLINGS) if found["head"] == "labels" else "first"
    if found["head"] != "hidden" and values.word("classifier_activation", ACTIVATIONS) != found["activation"]:
        both = f"{quoted(values.get('classifier_activation'))} beside hidden_activation"
        raise ConfigError(f"classifier_activation {both} {quoted(values.get('hidden_activation'))} is not supported")
    reach = values.get("local_attention") // 2  # tokens to each side
    biases = {"attention_bias": "attention_bias", "feed_forward_bias": "mlp_bias"}
    biases |= {"norm_bias": "norm_bias", "head_bias": "classifier_bias"}
    return found | {
        "norm_epsilon": values.get("norm_eps"),
        "norm_first": True,
        "first_norm": False,
        "gated": True,
        "head_norm": True,
        "pooling": pooling,
        **{ours: values.get(theirs, False) for ours, theirs in biases.items()},
        "positions": "rotary",
        "rotary_base": _theta(values, GLOBAL),
        "rotary_local_base": _theta(values, LOCAL),
        "windows": tuple(reach + 1 if kind == LOCAL else 0 for kind in kinds),
    }


def _theta(values: Published, kind: str) -> float:
    """Return the base of rotary positions of a kind of layers; older files have a key for each."""
    name, usual = THETAS[kind]
    found: Mapping[str, Any] = values.get("rope_parameters", {}).get(kind) or {}
    if (scaling := found.get("rope_type", "default")) != "default" or values.get("rope_scaling"):
        raise ConfigError(f"rope_parameters of {kind} with the rope_type {quoted(scaling)} are not supported")
    return float(found.get("rope_theta", values.get(name, usual)))


WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^model\.", ""),
    Rename(r"^embeddings\.tok_embeddings\.", "source_embedding.tokens."),
    Rename(r"^embeddings\.norm\.", "source_embedding.norm."),
    Rename(r"^final_norm\.", "encoder_norm."),
    Rename(r"^layers\.", "encoder."),
    Split(r"\.attn\.Wqkv\.", (".attention.query.", ".attention.key.", ".attention.value.")),
    Split(r"\.mlp\.Wi\.", (".feed_forward.gate.", ".feed_forward.inner.")),
    Rename(r"\.attn\.Wo\.", ".attention.output."),
    Rename(r"\.mlp\.Wo\.", ".feed_forward.outer."),
    Rename(r"\.attn_norm\.", ".attention_residual.norm."),
    Rename(r"\.mlp_norm\.", ".feed_forward_residual.norm."),
    Rename(r"^head\.dense\.", "transform."),
    Rename(r"^head\.norm\.", "transform_norm."),
    Rename(r"^decoder\.", "projection."),
    Spare(r"(transform|transform_norm|projection)\."),
)
UNUSED = {
    **bert.UNUSED,
    **dict.fromkeys(("mlp_dropout", "sparse_pred_ignore_index", "sparse_prediction"), TRAINING),
    **dict.fromkeys(("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"), MEMORY),
    "initializer_cutoff_factor": STARTING,
    **dict.fromkeys(("layer_norm_eps", "position_embedding_type"), NOTHING),
    **dict.fromkeys(
        ("classifier_pooling", "classifier_activation", "classifier_bias"), "only classes with a head use it"
    ),
}
FAMILY = Family(
    defaults={"modernbert": DEFAULTS},
    architecture="bert",
    classes="|".join(bert.HEADS),
    config=config,
    weights=WEIGHTS,
    unused=UNUSED,
    off={"decoder_bias": (True,)},
)
