"""BERT and its kin: RoBERTa, XLM-R, CamemBERT, DistilBERT, sentence encoders, as transformers saves them.

What comes out is that of the class that a checkpoint was saved from: hidden states, logits over the vocabulary, or
labels of texts or tokens.
"""

from __future__ import annotations

from typing import Any

from txport.models.family import ACTIVATIONS, Family, Published
from txport.models.weights import Drop, Rename, Rule, Spare, Take

ROBERTAS = ("roberta", "xlm-roberta", "camembert")
HEADS = {  # by the end of a class's name
    "ForMaskedLM": "tokens",
    "ForPreTraining": "tokens",
    "ForSequenceClassification": "labels",
    "ForTokenClassification": "token_labels",
    "Model": "hidden",
}


def config(values: Published) -> dict[str, Any]:
    """The keys of `BertConfig`."""
    kind = values.type
    values.require("position_embedding_type", "absolute")
    values.require("is_decoder", False)
    values.require("embedding_size", None, values.get("hidden_size"))
    values.require("sinusoidal_pos_embds", False, True)  # a table in either case
    pad = values.get("pad_token_id", 1 if kind in ROBERTAS else 0)
    offset = pad + 1 if kind in ROBERTAS else 0
    rows = values.get("max_position_embeddings", 512)
    head = head_of(values)
    ids = {"cls": ("bos", 0), "sep": ("eos", 2)} if kind in ROBERTAS else {"cls": ("cls", 101), "sep": ("sep", 102)}
    begin, end = (values.get(f"{name}_token_id", default) for name, default in ids.values())
    vocabulary = values.get("vocab_size", 30522)
    return {
        "vocab_size": vocabulary,
        "d_model": values.first("hidden_size", "dim", default=768),
        "heads": values.first("num_attention_heads", "n_heads", default=12),
        "feed_forward": values.first("intermediate_size", "hidden_dim", default=3072),
        "encoder_layers": values.first("num_hidden_layers", "n_layers", default=12),
        "max_length": rows - offset,
        "position_offset": offset,
        "segment": kind != "distilbert",
        "norm_epsilon": values.get("layer_norm_eps", 1e-12),
        "activation": values.word("activation" if kind == "distilbert" else "hidden_act", ACTIVATIONS, "gelu"),
        "head": head,
        "labels": labels_of(values) if head.endswith("labels") else (),
        "pooler": "relu" if kind == "distilbert" else "tanh",
        "dropout": values.first("hidden_dropout_prob", "dropout", default=0.1),
        "pad_id": pad,
        "cls_id": min(begin, vocabulary - 1),
        "sep_id": min(end, vocabulary - 1),
        "mask_id": min(values.get("mask_token_id", MASKS.get(kind, 103)), vocabulary - 1),
    }


MASKS = {"roberta": 50264, "xlm-roberta": 250001, "camembert": 32004}


def head_of(values: Published) -> str:
    """What the class that a checkpoint was saved from gives: hidden states, where none is named."""
    name = next(iter(values.classes), "Model")
    return next(head for end, head in HEADS.items() if name.endswith(end))


def labels_of(values: Published) -> tuple[str, ...]:
    """The names of the labels, in the order of their numbers."""
    named = values.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    return tuple(str(name) for _, name in sorted(named.items(), key=lambda pair: int(pair[0])))


LAYER = r"^(encoder\.\d+)\."
WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(bert|roberta|distilbert)\.", ""),
    Drop(r"embeddings\.position_ids$"),
    Drop(r"cls\.seq_relationship\."),  # whether one sentence follows another: nothing here asks
    Drop(r"(cls\.predictions|lm_head)\.decoder\.bias$"),  # a copy
    Drop(r"(cls\.predictions\.decoder|lm_head\.decoder|vocab_projector)\.weight$"),  # the embedding itself
    Rename(r"^embeddings\.word_embeddings\.", "source_embedding.tokens."),
    Rename(r"^embeddings\.position_embeddings\.weight$", "source_embedding.positions"),
    Take(r"^embeddings\.token_type_embeddings\.weight$"),
    Rename(r"^embeddings\.token_type_embeddings\.weight$", "source_embedding.segment"),
    Rename(r"^embeddings\.LayerNorm\.", "source_embedding.norm."),
    Rename(r"^(encoder|transformer)\.layer\.", "encoder."),
    Rename(LAYER + r"attention\.self\.", r"\1.attention."),
    Rename(LAYER + r"attention\.q_lin\.", r"\1.attention.query."),
    Rename(LAYER + r"attention\.k_lin\.", r"\1.attention.key."),
    Rename(LAYER + r"attention\.v_lin\.", r"\1.attention.value."),
    Rename(LAYER + r"attention\.(output\.dense|out_lin)\.", r"\1.attention.output."),
    Rename(LAYER + r"(attention\.output\.LayerNorm|sa_layer_norm)\.", r"\1.attention_residual.norm."),
    Rename(LAYER + r"(intermediate\.dense|ffn\.lin1)\.", r"\1.feed_forward.inner."),
    Rename(LAYER + r"(output\.dense|ffn\.lin2)\.", r"\1.feed_forward.outer."),
    Rename(LAYER + r"(output\.LayerNorm|output_layer_norm)\.", r"\1.feed_forward_residual.norm."),
    Rename(r"^(pooler\.dense|pre_classifier|classifier\.dense)\.", "pooler."),
    Rename(r"^classifier\.out_proj\.", "classifier."),
    Rename(r"^(cls\.predictions\.transform\.dense|lm_head\.dense|vocab_transform)\.", "transform."),
    Rename(r"^(cls\.predictions\.transform\.LayerNorm|lm_head\.layer_norm|vocab_layer_norm)\.", "transform_norm."),
    Rename(r"^(cls\.predictions|lm_head|vocab_projector)\.bias$", "projection.bias"),
    Rename(r"\.gamma$", ".weight"),  # in old files
    Rename(r"\.beta$", ".bias"),
    Spare(r"(pooler|transform|transform_norm|projection)\."),
)
TYPES = ("bert", *ROBERTAS, "distilbert")
FAMILY = Family(types=TYPES, architecture="bert", classes=tuple(HEADS), config=config, weights=WEIGHTS)
