"""Small seeded encoders of Hugging Face's, and the same as a config and weights of ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

VOCABULARY = 40
LONGEST = 24
LABELS = ("no", "perhaps", "yes")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": len(LABELS),
    "pad_token_id": 0,
}
BERT = BertConfig(**SIZES, max_position_embeddings=LONGEST)
ROBERTA = RobertaConfig(**SIZES, max_position_embeddings=LONGEST + 1, type_vocab_size=1, layer_norm_eps=1e-5)
DISTIL = DistilBertConfig(
    vocab_size=VOCABULARY,
    dim=16,
    n_layers=2,
    n_heads=2,
    hidden_dim=24,
    max_position_embeddings=LONGEST,
    num_labels=len(LABELS),
)


@dataclass(frozen=True)
class Family:
    """How a model is made, and what our config has beside the sizes."""

    build: Callable[[], Any]
    ours: dict[str, Any]


FAMILIES = {
    "bert hidden": Family(lambda: BertModel(BERT, add_pooling_layer=False), {"head": "hidden"}),
    "bert pooled": Family(lambda: BertModel(BERT), {"head": "pooled"}),
    "bert tokens": Family(lambda: BertForMaskedLM(BERT), {"head": "tokens"}),
    "bert labels": Family(lambda: BertForSequenceClassification(BERT), {"head": "labels"}),
    "bert token labels": Family(lambda: BertForTokenClassification(BERT), {"head": "token_labels"}),
    "roberta tokens": Family(
        lambda: RobertaForMaskedLM(ROBERTA), {"head": "tokens", "position_offset": 1, "norm_epsilon": 1e-5}
    ),
    "roberta labels": Family(
        lambda: RobertaForSequenceClassification(ROBERTA),
        {"head": "labels", "position_offset": 1, "norm_epsilon": 1e-5},
    ),
    "distilbert labels": Family(
        lambda: DistilBertForSequenceClassification(DISTIL), {"head": "labels", "segment": False, "pooler": "relu"}
    ),
}
LAYER = r"(?:encoder|transformer)\.layer\.(\d+)\."
NAMES = {  # theirs, without the name of the family -> ours
    r"embeddings\.word_embeddings": r"source_embedding.tokens",
    r"embeddings\.position_embeddings\.weight": r"source_embedding.positions",
    r"embeddings\.token_type_embeddings\.weight": r"source_embedding.segment",
    r"embeddings\.LayerNorm": r"source_embedding.norm",
    LAYER + r"attention\.(?:self\.)?(query|key|value)": r"encoder.\1.attention.\2",
    LAYER + r"attention\.([qkv])_lin": r"encoder.\1.attention.\2",
    LAYER + r"attention\.(?:output\.dense|out_lin)": r"encoder.\1.attention.output",
    LAYER + r"(?:attention\.output\.LayerNorm|sa_layer_norm)": r"encoder.\1.attention_residual.norm",
    LAYER + r"(?:intermediate\.dense|ffn\.lin1)": r"encoder.\1.feed_forward.inner",
    LAYER + r"(?:output\.dense|ffn\.lin2)": r"encoder.\1.feed_forward.outer",
    LAYER + r"(?:output\.LayerNorm|output_layer_norm)": r"encoder.\1.feed_forward_residual.norm",
    r"pooler\.dense|pre_classifier|classifier\.dense": r"pooler",
    r"classifier(?:\.out_proj)?": r"classifier",
    r"cls\.predictions\.transform\.dense|lm_head\.dense": r"transform",
    r"cls\.predictions\.transform\.LayerNorm|lm_head\.layer_norm": r"transform_norm",
    r"(?:cls\.predictions|lm_head)(?=\.bias)": r"projection",
}
LETTERS = {"q": "query", "k": "key", "v": "value"}


def seeded(name: str, seed: int = 0) -> Any:
    """Random weights with biases and norms that count."""
    torch.manual_seed(seed)
    model = FAMILIES[name].build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def our_name(name: str) -> str:
    """One of our parameters by Hugging Face's name."""
    bare = re.sub(r"^(distil)?(ro)?(bert|berta)\.", "", name)
    for theirs, ours in NAMES.items():
        if found := re.match(f"(?:{theirs})(?=$|\\.(?:weight|bias)$)", bare):
            renamed = found.expand(ours) + bare[found.end() :]
            return re.sub(r"attention\.([qkv])(?=\.)", lambda letter: f"attention.{LETTERS[letter[1]]}", renamed)
    raise KeyError(name)


def our_weights(model: Any) -> dict[str, torch.Tensor]:
    """Parameters of ours; of the vectors of segments, the first one's."""
    weights = {our_name(name): parameter.detach() for name, parameter in model.named_parameters()}
    if "source_embedding.segment" in weights:
        weights["source_embedding.segment"] = weights["source_embedding.segment"][0]
    return {name: tensor.clone().contiguous() for name, tensor in weights.items()}


def our_config(name: str) -> dict[str, Any]:
    """As `config.json` has it."""
    ours = FAMILIES[name].ours
    labels = {"labels": list(LABELS)} if ours["head"].endswith("labels") else {}
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 2}
    ids = {"pad_id": 0, "cls_id": 1, "sep_id": 2, "mask_id": 3}
    return {"architecture": "bert", **sizes, **ids, "max_length": LONGEST, **labels, **ours}


def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, S), padded at the right, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (4, LONGEST), generator=generator)
    mask = torch.arange(LONGEST)[None] < torch.tensor([LONGEST, 1, 7, 12])[:, None]
    return ids * mask, mask


@torch.inference_mode()
def outputs(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """What Hugging Face's model gives, by name."""
    found = model(input_ids=ids, attention_mask=mask.long())
    names = ("last_hidden_state", "pooler_output", "logits")
    return {name: found[name] for name in names if found.get(name) is not None}
