"""Translation models whose tensors have the names and shapes of two well-known tutorials, written here anew.

`tutorial` is the layout of Ben Trevett's notebooks: learned positions, post-norm, and masks that the model makes of the
token ids. `book` is the layout of "Dive into Deep Learning": sinusoids, post-norm, lengths for the source.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.proof.against.originals import INNER, LAYERS, LONGEST, SIZE, WORDS, heads_of, seeded, sinusoids

PAD = 1


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """Mix values by the scores of the positions that are seen, (B, 1, T or 1, S)."""
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~seen, -1e10)
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(SIZE, SIZE) for _ in range(4))

    def forward(self, query: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        parts = (self.fc_q(query), self.fc_k(memory), self.fc_v(memory))
        mixed: Tensor = self.fc_o(attend(*(heads_of(each) for each in parts), seen))
        return mixed


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_1, self.fc_2 = nn.Linear(SIZE, INNER), nn.Linear(INNER, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc_2(self.fc_1(x).relu())
        return found


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn_layer_norm, self.ff_layer_norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.self_attention = Attention()
        self.positionwise_feedforward = FeedForward()

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, seen))
        found: Tensor = self.ff_layer_norm(x + self.positionwise_feedforward(x))
        return found


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn_layer_norm, self.enc_attn_layer_norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.ff_layer_norm = nn.LayerNorm(SIZE)
        self.self_attention, self.encoder_attention = Attention(), Attention()
        self.positionwise_feedforward = FeedForward()

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor, source_seen: Tensor) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, seen))
        x = self.enc_attn_layer_norm(x + self.encoder_attention(x, memory, source_seen))
        found: Tensor = self.ff_layer_norm(x + self.positionwise_feedforward(x))
        return found


class Side(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.tok_embedding, self.pos_embedding = nn.Embedding(WORDS, SIZE), nn.Embedding(LONGEST, SIZE)
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))

    def forward(self, ids: Tensor, *given: Tensor) -> Tensor:
        x: Tensor = self.tok_embedding(ids) * math.sqrt(SIZE) + self.pos_embedding(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, *given)
        return x


class Decoder(Side):
    def __init__(self) -> None:
        super().__init__(DecoderLayer)
        self.fc_out = nn.Linear(SIZE, WORDS)

    def forward(self, ids: Tensor, *given: Tensor) -> Tensor:
        found: Tensor = self.fc_out(super().forward(ids, *given))
        return found


class Tutorial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Side(EncoderLayer), Decoder()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source_seen = (source != PAD)[:, None, None]
        past = torch.ones(target.shape[1], target.shape[1]).tril().bool()
        seen = (target != PAD)[:, None, None] & past
        found: Tensor = self.decoder(target, self.encoder(source, source_seen), seen, source_seen)
        return found


def tutorial() -> nn.Module:
    torch.manual_seed(1)
    return seeded(Tutorial())


class BookAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))

    def forward(self, query: Tensor, memory: Tensor, *, causal: bool = False) -> Tensor:
        parts = (heads_of(each) for each in (self.W_q(query), self.W_k(memory), self.W_v(memory)))
        mixed = F.scaled_dot_product_attention(*parts, is_causal=causal)
        found: Tensor = self.W_o(mixed.transpose(1, 2).flatten(2))
        return found


class AddNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        found: Tensor = self.ln(x + more)
        return found


class Ffn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense1, self.dense2 = nn.Linear(SIZE, INNER), nn.Linear(INNER, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.dense2(self.dense1(x).relu())
        return found


class BookEncoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.addnorm1, self.ffn, self.addnorm2 = BookAttention(), AddNorm(), Ffn(), AddNorm()

    def forward(self, x: Tensor) -> Tensor:
        x = self.addnorm1(x, self.attention(x, x))
        found: Tensor = self.addnorm2(x, self.ffn(x))
        return found


class BookDecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention1, self.addnorm1 = BookAttention(), AddNorm()
        self.attention2, self.addnorm2 = BookAttention(), AddNorm()
        self.ffn, self.addnorm3 = Ffn(), AddNorm()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.addnorm1(x, self.attention1(x, x, causal=True))
        x = self.addnorm2(x, self.attention2(x, memory))
        found: Tensor = self.addnorm3(x, self.ffn(x))
        return found


class BookSide(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.blks = nn.Sequential()
        for at in range(LAYERS):
            self.blks.add_module(f"block{at}", block())

    def forward(self, ids: Tensor, *given: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids) * math.sqrt(SIZE)
        x = x + sinusoids(LONGEST).to(x.dtype)[: ids.shape[1]]
        for block in self.blks:
            x = block(x, *given)
        return x


class BookDecoder(BookSide):
    def __init__(self) -> None:
        super().__init__(BookDecoderBlock)
        self.dense = nn.Linear(SIZE, WORDS)

    def forward(self, ids: Tensor, *given: Tensor) -> Tensor:
        found: Tensor = self.dense(super().forward(ids, *given))
        return found


class Book(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = BookSide(BookEncoderBlock), BookDecoder()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        found: Tensor = self.decoder(target, self.encoder(source))
        return found


def book() -> nn.Module:
    torch.manual_seed(2)
    return seeded(Book())
