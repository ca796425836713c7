"""Nomic BERT, GTE and Jina Embeddings 3 as transformers saves them: BERT and XLM-R with rotary positions."""

from __future__ import annotations

from txport.checkpoints.families import bert, llama
from txport.checkpoints.family import Family, Published
from txport.errors import ConfigError, quoted
from txport.models.rules import Constant, Rename, Rule, Split

NOMIC = {
    **bert.BERT,
    "vocab_size": 30528,
    "intermediate_size": 3072,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 1000.0,
}
JINA = {
    **bert.ROBERTA,
    "vocab_size": 250002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 8194,
    "layer_norm_eps": 1e-5,
    "rope_theta": 20000.0,
}
GTE = {
    **bert.BERT,
    "vocab_size": 250048,
    "max_position_embeddings": 8192,
    "pad_token_id": 1,
    "rope_theta": 160000.0,
}
GTE_USUAL = {"cls": 0, "sep": 2, "mask": 250001}


def config(values: Published) -> dict[str, object]:
    """Return the values of `BertConfig`."""
    positions = llama.positions(values)
    if positions["kind"] != "default":
        raise ConfigError(f"rope_parameters with the rope_type {quoted(positions['kind'])} are not supported")
    rotary = {"positions": "rotary", "rotary_base": float(positions.get("rope_theta", values.get("rope_theta")))}
    if values.type == "jina_embeddings_v3":
        return bert.kin(values, ends=("bos", "eos"), has_gelu=True) | rotary
    if values.type == "gte":
        return bert.kin(values, usual=GTE_USUAL, has_gelu=True) | rotary | {"gated": True}
    values.require("head_dim", values.get("hidden_size") // values.get("num_attention_heads"))
    gated = {"gated": True, "attention_bias": False, "feed_forward_bias": False}
    return bert.kin(values, usual=bert.USUAL) | rotary | gated


WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(nomic_bert|gte)\.", ""),
    *bert.BEFORE,
    Rename(r"^emb_ln\.", "embeddings.LayerNorm."),
    Rename(r"^encoder\.layers?\.", "encoder."),
    Split(r"\.(attn|mixer)\.Wqkv\.", (".attention.query.", ".attention.key.", ".attention.value.")),
    Split(r"\.attention\.qkv_proj\.", (".attention.query.", ".attention.key.", ".attention.value.")),  # of GTE
    Rename(r"\.(attn\.out_proj|mixer\.out_proj|attention\.o_proj)\.", ".attention.output."),
    Rename(r"\.mlp\.fc12\.", ".feed_forward.gate."),
    Rename(r"\.mlp\.fc11?\.", ".feed_forward.inner."),
    Split(r"\.mlp\.up_gate_proj\.", (".feed_forward.inner.", ".feed_forward.gate.")),
    Rename(r"\.mlp\.(fc2|down_proj)\.", ".feed_forward.outer."),
    Constant(r"encoder\.\d+\.feed_forward\.(inner|gate)\.bias", 0.0),  # of GTE, whose gates have none
    Rename(r"\.(norm1|attn_ln)\.", ".attention_residual.norm."),
    Rename(r"\.(norm2|mlp_ln)\.", ".feed_forward_residual.norm."),
    Rename(r"^(cls\.predictions\.transform\.layer_norm|lm_head\.norm)\.", "transform_norm."),
    *bert.WEIGHTS,
)
FAMILY = Family(
    defaults={"nomic_bert": NOMIC, "gte": GTE, "jina_embeddings_v3": JINA},
    architecture="bert",
    classes="|".join(bert.HEADS),
    config=config,
    weights=WEIGHTS,
    unused=bert.UNUSED,
    off=bert.OFF,
)
