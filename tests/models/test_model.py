"""The reference model against itself, cached and uncached, against the paper, and against torch.nn.Transformer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests import tiny
from tests.tiny import tiny_config
from txport.models.architectures.transformer import PRESETS, Transformer, TransformerConfig
from txport.models.facts import StateTensor
from txport.models.model import Memory
from txport.models.ops import PlainOps
from txport.models.parts import Attention, sinusoids

CHOICES = TransformerConfig.choices()
SMALL = {"d_model": 8, "feed_forward": 12, "max_length": 12}
VARIANTS = [
    dict(zip(("norm", "positions", "activation", "tied", "scale_embedding"), values, strict=True))
    for values in itertools.product(
        CHOICES["norm"], CHOICES["positions"], CHOICES["activation"], CHOICES["tied"], (True, False)
    )
]
TOLERANCE = {"rtol": 0.0, "atol": 1e-10}  # in float64, where the order of a sum does not matter


def tiny_model(config: TransformerConfig) -> Transformer:
    """In float64: what is the same by rights is the same on every processor."""
    return tiny.tiny_model(config).double()


def draw(config: TransformerConfig, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, config.target_vocab_size, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def decode_in_chunks(model: Transformer, memory: Memory, tokens: Tensor, lengths: list[int]) -> Tensor:
    state = model.empty_state(tokens.shape[0])
    parts = []
    for chunk in tokens.split(lengths, dim=1):
        logits, state, _ = model.decode(chunk, memory, state)
        parts.append(logits)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(str(value) for value in variant.values()))
@torch.no_grad()
def test_cached_equals_uncached(variant: dict[str, Any]) -> None:
    config = tiny_config(**SMALL, **variant)
    model = tiny_model(config)
    source = draw(config, 3, 6)
    tokens = draw(config, 3, 12, seed=1)
    lengths = torch.tensor([6, 1, 4])
    expected = model(source, lengths, tokens)
    actual = decode_in_chunks(model, model.encode(source, lengths), tokens, [1] * 12)
    assert expected.std() > 0.1  # a model that says nothing would agree with itself
    torch.testing.assert_close(actual, expected, **TOLERANCE)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1).filter(lambda lengths: sum(lengths) <= 12), seed=st.integers(0, 9)
)
def test_any_chunks_equal_one(lengths: list[int], seed: int) -> None:
    config = tiny_config(**SMALL)
    model = tiny_model(config)
    source = draw(config, 2, 5, seed=seed)
    tokens = draw(config, 2, sum(lengths), seed=seed + 10)
    with torch.no_grad():
        memory = model.encode(source, torch.tensor([5, 2]))
        whole = decode_in_chunks(model, memory, tokens, [sum(lengths)])
    torch.testing.assert_close(decode_in_chunks(model, memory, tokens, lengths), whole, **TOLERANCE)


@torch.no_grad()
def test_cache_grows_by_target_and_holds_source_once() -> None:
    config = tiny_config(encoder_layers=1)
    model = tiny_model(config)
    memory = model.encode(draw(config, 2, 5), torch.tensor([5, 3]))
    first = model.decode(draw(config, 2, 3), memory, model.empty_state(2)).state
    second = model.decode(draw(config, 2, 4), memory, first).state
    kinds = itertools.product(range(config.decoder_layers), ("row", "source"), ("key", "value"))
    dims = (config.heads, "length", config.head_size)
    assert list(second) == [StateTensor(layer, role, owner, dims) for layer, owner, role in kinds]
    for each, after in second.items():
        assert after.shape == each.shape(2, 7 if each.owner == "row" else 5)
        assert torch.equal(after[:, :, :3] if each.owner == "row" else after, first[each])


@pytest.mark.parametrize("norm", CHOICES["norm"])
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=4), seed=st.integers(0, 9))
@torch.no_grad()
def test_row_alone_equals_row_in_batch(norm: str, lengths: list[int], seed: int) -> None:
    config = tiny_config(**SMALL, norm=norm)
    model = tiny_model(config)
    # What stands in the padding must not matter, so it is not even the padding token.
    source = draw(config, len(lengths), 9, seed=seed)
    tokens = draw(config, len(lengths), 4, seed=seed + 10)
    together = model(source, torch.tensor(lengths), tokens)
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], torch.tensor([length]), tokens[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, **TOLERANCE)


def copy_attention(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(theirs: nn.Module, ours: nn.Module, norms: list[str]) -> None:
    copy_attention(theirs.self_attn, ours.attention)
    if ours.cross_attention is not None:
        copy_attention(theirs.multihead_attn, ours.cross_attention)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    for number, name in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(getattr(ours, name).norm.state_dict())


def torch_stacks(model: Transformer) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's own layers with our weights: an independent word on what the layers compute."""
    config = model.config
    pre = config.norm == "pre"
    kind = {"dropout": 0.0, "batch_first": True, "norm_first": pre, "activation": config.activation}
    kind |= {"layer_norm_eps": config.norm_epsilon}
    encoder_layer = nn.TransformerEncoderLayer(config.d_model, config.heads, config.feed_forward, **kind)
    decoder_layer = nn.TransformerDecoderLayer(config.d_model, config.heads, config.feed_forward, **kind)
    norms = [nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if pre else None for _ in range(2)]
    encoder = nn.TransformerEncoder(encoder_layer, config.encoder_layers, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, config.decoder_layers, norms[1])
    residuals = ["attention_residual", "cross_attention_residual", "feed_forward_residual"]
    for theirs, ours in zip(encoder.layers, model.encoder, strict=True):
        copy_layer(theirs, ours, residuals[::2])
    for theirs, ours in zip(decoder.layers, model.decoder, strict=True):
        copy_layer(theirs, ours, residuals)
    if pre:
        encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return encoder.eval(), decoder.eval()


def paper_positions(length: int, size: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos of the same; section 3.5."""
    table = torch.zeros(length, size)
    for place, i in itertools.product(range(length), range(size // 2)):
        angle = place / 10000 ** (2 * i / size)
        table[place, 2 * i] = math.sin(angle)
        table[place, 2 * i + 1] = math.cos(angle)
    return table


@pytest.mark.parametrize("norm", CHOICES["norm"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_agrees_with_torch(norm: str, activation: str) -> None:
    config = tiny_config(norm=norm, activation=activation, norm_epsilon=1e-3)
    model = tiny_model(config)
    encoder, decoder = (stack.double() for stack in torch_stacks(model))
    source = draw(config, 3, 7)
    tokens = draw(config, 3, 6, seed=1)
    lengths = torch.tensor([7, 2, 5])
    table = model.target_embedding.tokens.weight
    scale = math.sqrt(config.d_model)
    x, y = (table[ids] * scale + paper_positions(ids.shape[1], config.d_model) for ids in (source, tokens))
    padding = torch.arange(7)[None, :] >= lengths[:, None]
    future = torch.ones(6, 6).triu(1).bool()
    memory = encoder(x, src_key_padding_mask=padding)
    states = decoder(y, memory, tgt_mask=future, memory_key_padding_mask=padding)
    torch.testing.assert_close(model(source, lengths, tokens), states @ table.T, rtol=0, atol=1e-6)  # tables are fp32


@pytest.mark.parametrize(("length", "size"), [(1, 2), (7, 6), (512, 512)])
def test_sinusoids_are_the_paper_s(length: int, size: int) -> None:
    torch.testing.assert_close(sinusoids(length, size), paper_positions(length, size), rtol=0, atol=1e-6)


@torch.no_grad()
def test_embedding_is_scaled_only_if_the_config_says_so() -> None:
    for scale, factor in ((True, math.sqrt(16)), (False, 1.0)):
        embedding = tiny_model(tiny_config(scale_embedding=scale, positions="learned")).source_embedding
        ids = torch.tensor([[5, 7]])
        expected = F.embedding(ids, embedding.tokens.weight) * factor + embedding.positions[2:4]
        ops = PlainOps(torch.arange(2, 4), torch.zeros(1))
        torch.testing.assert_close(embedding(ids, ops), expected)


def test_initial_weights() -> None:
    """Glorot's bounds for matrices, deviation 1 / sqrt(D) for embeddings, so that a scaled one has deviation 1."""
    model = Transformer(tiny_config(d_model=64, heads=4, feed_forward=96, positions="learned", max_length=40))
    for name, parameter in model.named_parameters():
        if "embedding" in name:
            assert parameter.std().item() == pytest.approx(64**-0.5, rel=0.1)
        elif parameter.dim() == 2:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.97 * bound < parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in name)))


def test_dropout_works_in_training_only() -> None:
    config = tiny_config(dropout=0.3)
    model = tiny_model(config)
    arguments = draw(config, 1, 5), torch.tensor([5]), draw(config, 1, 5, seed=1)
    for other in (model, tiny_model(tiny_config(dropout=0.0))):
        torch.testing.assert_close(model(*arguments), other(*arguments), **TOLERANCE)
    model.train()
    assert not torch.allclose(model(*arguments), model(*arguments))
    assert sum(isinstance(module, nn.Dropout) and module.p == 0.3 for module in model.modules()) == 2 + 2 * 2 + 2 * 3


@pytest.mark.parametrize(("preset", "published"), [("base", 60_522_496), ("big", 209_125_376)])
def test_parameter_counts(preset: str, published: int) -> None:
    config = PRESETS[preset]
    d = config.d_model
    f = config.feed_forward
    attention = 4 * (d * d + d)
    feed_forward = d * f + f + f * d + d
    norm = 2 * d
    layers = 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == published
    assert published == 32000 * d + layers
