"""The `config.json` by which other programs run an adapter's graphs: that of a model with the same ports."""

from __future__ import annotations

from typing import Any

from txport.models.facts import Facts

HEADS = {
    "embed": "BertModel",
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "fill": "BertForMaskedLM",
}


def published(facts: Facts) -> dict[str, Any]:
    """Return the config of a Marian model, a GPT-2 or a BERT, with the cache sizes of the first layer."""
    if facts.task == "encode":
        return _encoder(facts)
    heads, _, size = facts.owned("row")[0].dims
    layers = len(facts.owned("row")) // 2
    width = int(heads) * int(size)
    if facts.task == "causal":
        sizes = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": facts.writes.longest}
        known = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
        return {**known, "vocab_size": facts.writes.size, **sizes}
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": facts.writes.size,
        "decoder_vocab_size": facts.writes.size,
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "num_hidden_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "max_position_embeddings": max(facts.reads.longest, facts.writes.longest),
    }


def _encoder(facts: Facts) -> dict[str, Any]:
    assert facts.ability is not None
    return {
        "model_type": "bert",
        "architectures": [HEADS[facts.ability]],
        "vocab_size": facts.reads.size,
        "hidden_size": facts.width,
        "max_position_embeddings": facts.reads.longest,
    }
