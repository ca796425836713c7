"""Modules as users have them, and their adapters: what no architecture of txport's expresses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport import adapters

SIZE, HEADS, LONGEST, WORDS = 16, 2, 24, 30
TOKENS = adapters.Tokens(size=WORDS, longest=LONGEST, pad=0, ends=(2,))
SOURCE = adapters.Tokens(size=WORDS, longest=LONGEST, pad=0, after=(2,))
TARGET = adapters.Tokens(size=WORDS, longest=LONGEST, pad=0, start=1, ends=(2,))
CACHE = adapters.Cache(HEADS, SIZE // HEADS)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Alibi(nn.Module):
    """Decoder-only: attention with a linear bias on distances (Press et al. 2021), its projection tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.query, self.key, self.value, self.mix = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.out = nn.Linear(SIZE, WORDS, bias=False)
        self.out.weight = self.words.weight
        self.head_for_training = nn.Linear(SIZE, 2)  # which no graph reads


def alibi_step(model: Any, inputs: adapters.StepInputs) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    x = model.words(inputs.ids)
    y = model.norm(x)
    past_keys, past_values = inputs.past[0]
    keys = torch.cat([past_keys, split(model.key(y))], 2)
    values = torch.cat([past_values, split(model.value(y))], 2)
    slopes = torch.tensor([2.0 ** -(8 * (head + 1) / HEADS) for head in range(HEADS)], dtype=torch.float32)
    first = inputs.positions[:, :1] - past_keys.shape[2]  # the place of the first key
    distance = torch.arange(keys.shape[2])[None, None, :] + first[:, :, None] - inputs.positions[:, :, None]
    bias = slopes.to(x.dtype)[None, :, None, None] * distance[:, None].to(x.dtype)
    scores = split(model.query(y)) @ keys.transpose(2, 3) / math.sqrt(SIZE // HEADS) + bias
    weights = torch.softmax(scores.masked_fill(~inputs.seen, -1e4), -1)
    x = x + model.mix((weights @ values).transpose(1, 2).flatten(2))
    return model.out(x), [(keys, values)]


def seeded(kind: type[nn.Module]) -> nn.Module:
    """With random biases and norms, which else would be zeros and ones that a graph may drop unseen."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = kind()
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return module


def load_alibi() -> nn.Module:
    return seeded(Alibi)


ALIBI = adapters.causal(tokens=TOKENS, width=SIZE, caches=[CACHE], step=alibi_step, load=load_alibi)


class Classifier(nn.Module):
    """Encoder-only: PyTorch's own layers, and the mean over what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.places = nn.Embedding(LONGEST, SIZE)
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(SIZE, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.encoder(x, src_key_padding_mask=~mask)
        real = mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * real).sum(1) / real.sum(1))


def classify(model: Any, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {"logits": model(ids, mask)}


def load_classifier() -> nn.Module:
    return seeded(Classifier)


CLASSIFIER = adapters.encoder(
    tokens=TOKENS,
    width=SIZE,
    encode=classify,
    outputs={"logits": (3,)},
    labels=("good", "bad", "so-so"),
    load=load_classifier,
)


class Tutorial(nn.Module):
    """`nn.Transformer` as tutorials have it, without a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.places = nn.Embedding(LONGEST, SIZE)
        self.transformer = nn.Transformer(SIZE, HEADS, 1, 1, 24, batch_first=True)
        self.out = nn.Linear(SIZE, WORDS)

    def embed(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places(torch.arange(ids.shape[1]))


def tutorial_encode(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    return model.transformer.encoder(model.embed(ids), src_key_padding_mask=~mask)


def tutorial_step(model: Any, inputs: adapters.StepInputs) -> Tensor:
    assert inputs.source_seen is not None
    x = model.transformer.decoder(
        model.embed(inputs.ids),
        inputs.source,
        tgt_mask=~inputs.seen[0, 0],
        memory_key_padding_mask=~inputs.source_seen[:, 0, 0],
        tgt_is_causal=False,
    )
    return model.out(x)


def load_tutorial() -> nn.Module:
    return seeded(Tutorial)


TUTORIAL = adapters.seq2seq(
    source=SOURCE, target=TARGET, width=SIZE, encode=tutorial_encode, step=tutorial_step, load=load_tutorial
)


class Tagger(nn.Module):
    """The smallest thing that encodes, for mistakes that need no more."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.mix = nn.Linear(SIZE, SIZE)


def encoder_of(encode: Any) -> adapters.Adapter:
    return adapters.encoder(tokens=TOKENS, width=SIZE, encode=encode)


def attend(model: Any, x: Tensor, seen: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, model.mix(x), attn_mask=seen)
