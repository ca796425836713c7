"""Every variant of the encoder-decoder Transformer exports, and computes what PyTorch computes, on both targets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import txport
from tests.tiny import tiny_config, tiny_model, unproven
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.errors import UnsupportedError
from txport.models.architectures.transformer import Transformer, TransformerConfig, facts
from txport.models.parts import sinusoids
from txport.proof.parity.check import check
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.targets.cpu import screens
from txport.targets.ports import DECODER

TOLERANCE = {"rtol": 0.0, "atol": 1e-10}  # in float64
VARIANTS: dict[str, dict[str, Any]] = {
    "sinusoids in halves": {"sinusoids": "halves"},
    "sinusoids of fairseq with an offset": {"sinusoids": "fairseq", "position_offset": 2},
    "learned positions with an offset": {"positions": "learned", "position_offset": 2},
    "a bias of the output": {"output_bias": True},
    "norms of embeddings": {"embedding_norm": True, "norm": "post"},
    "no biases": {"bias": False},
    "heads larger than their share": {"head_size": 16},
    "log-probs out": {"output": "log_probs"},
    "all at once": {
        "positions": "learned",
        "position_offset": 1,
        "output_bias": True,
        "embedding_norm": True,
        "bias": False,
        "head_size": 24,
        "output": "log_probs",
        "norm": "post",
        "tied": "none",
    },
}
SOURCES = [[5, 9, 7, 2], [6, 2], [4, 8, 8, 10, 12, 5, 2]]


def variant(name: str) -> TransformerConfig:
    return tiny_config(encoder_layers=1, decoder_layers=2, max_length=16, **VARIANTS[name])


def export(config: TransformerConfig, folder: Path, **options: Any) -> tuple[str, Bundle]:
    save_checkpoint(folder / "toy", tiny_model(config))
    return str(folder / "toy"), unproven(folder / "toy", folder / "out", **options)


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_passes_parity_and_finds_what_pytorch_finds(name: str, target: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(variant(name)))
    loaded = load_checkpoint(str(tmp_path / "toy"))
    assert loaded.config == variant(name)
    bundle = unproven(tmp_path / "toy", tmp_path / "out", target=target)
    name, provider = runtimes.home(target)
    report = check(bundle, loaded, {name: provider}, searches=False)
    assert report.passed, report.failures()
    both = [runtimes.load_torch(loaded), runtimes.load(name, bundle, provider=provider)]
    search = SearchOptions(max_new_tokens=12, beams=2)
    expected, actual = (generate(runtime, SOURCES, loaded.facts, search) for runtime in both)
    assert [[one.tokens for one in each] for each in actual] == [[one.tokens for one in each] for each in expected]


def embedded(model: Transformer, ids: Tensor) -> Tensor:
    """What goes into the encoder's first layer."""
    seen: list[Tensor] = []
    hook = model.source_embedding.register_forward_hook(lambda module, given, found: seen.append(found))
    with torch.no_grad(), hook:
        model.encode(ids, torch.tensor([ids.shape[1]]))
    return seen[0]


def test_sinusoids_in_halves_are_all_sines_then_all_cosines() -> None:
    table = sinusoids(9, 6, "halves")
    angles = np.arange(9)[:, None] / 10000.0 ** (np.arange(0, 6, 2) / 6)
    np.testing.assert_allclose(table.numpy(), np.concatenate([np.sin(angles), np.cos(angles)], 1), atol=1e-6)
    model = tiny_model(tiny_config(sinusoids="halves"))
    ids = torch.tensor([[5, 7, 9]])
    expected = F.embedding(ids, model.source_embedding.tokens.weight) * 4 + sinusoids(24, 16, "halves")[:3]
    torch.testing.assert_close(embedded(model, ids), expected)


def test_the_longest_wave_of_fairseq_s_sinusoids_is_10000_times_the_shortest() -> None:
    table = sinusoids(9, 6, "fairseq")
    angles = np.arange(9)[:, None] * np.array([1, 0.01, 0.0001])
    np.testing.assert_allclose(table.numpy(), np.concatenate([np.sin(angles), np.cos(angles)], 1), atol=1e-6)


@pytest.mark.parametrize("kind", [{"positions": "learned"}, {"sinusoids": "halves"}])
def test_the_first_token_s_position_is_the_offset(kind: dict[str, str]) -> None:
    model = tiny_model(tiny_config(**kind, position_offset=2, max_length=10))
    table = model.source_embedding.positions
    assert table is not None
    assert table.shape == (12, 16)  # each of the 10 positions has a row
    ids = torch.tensor([[5, 7, 9]])
    expected = F.embedding(ids, model.source_embedding.tokens.weight) * 4 + table[2:5]
    torch.testing.assert_close(embedded(model, ids), expected)


def test_embeddings_are_normalised_last() -> None:
    model = tiny_model(tiny_config(embedding_norm=True, positions="learned"))
    part = model.source_embedding
    ids = torch.tensor([[5, 7, 9]])
    assert isinstance(part.norm, torch.nn.LayerNorm)
    assert part.positions is not None
    plain = F.embedding(ids, part.tokens.weight) * math.sqrt(16) + part.positions[:3]
    torch.testing.assert_close(embedded(model, ids), F.layer_norm(plain, (16,), part.norm.weight, part.norm.bias))


def test_without_biases_there_is_none_but_that_of_the_output() -> None:
    names = {name for name, _ in tiny_model(tiny_config(bias=False, output_bias=True)).named_parameters()}
    assert {name for name in names if name.endswith("bias")} == {"projection.bias"}
    assert "encoder.0.attention_residual.norm.weight" in names


def test_log_probs_are_the_log_softmax_of_what_would_be_logits() -> None:
    plain, normal = (tiny_model(tiny_config(output=output)).double() for output in ("logits", "log_probs"))
    given = torch.tensor([[5, 7, 2]]), torch.tensor([3]), torch.tensor([[1, 6]])
    with torch.no_grad():
        torch.testing.assert_close(normal(*given), torch.log_softmax(plain(*given), -1), **TOLERANCE)


def test_only_plain_logits_are_screened() -> None:
    """Screening bounds products with a matrix; a bias or a normalisation would make its bounds wrong."""
    large = {"target_vocab_size": 5000, "tied": "none"}
    for changes, expected in (({}, True), ({"output_bias": True}, False), ({"output": "log_probs"}, False)):
        assert screens(facts(tiny_config(**large, **changes)), "fp32") is expected


@pytest.mark.parametrize("changes", [{"output_bias": True}, {"output": "log_probs"}], ids=str)
def test_a_large_vocabulary_that_is_not_screened_finds_the_same_tokens(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny_config(target_vocab_size=4100, tied="none", max_length=16, **changes)
    checkpoint, bundle = export(config, tmp_path, target="cpu")
    loaded = load_checkpoint(checkpoint)
    name, provider = runtimes.home(bundle.manifest.target)
    both = [runtimes.load_torch(loaded), runtimes.load(name, bundle, provider=provider)]
    search = SearchOptions(max_new_tokens=10, scores=False)
    expected, actual = (generate(runtime, SOURCES, loaded.facts, search) for runtime in both)
    assert [each[0].tokens for each in actual] == [each[0].tokens for each in expected]


def test_heads_of_another_size_have_ports_of_it(tmp_path: Path) -> None:
    _, bundle = export(variant("heads larger than their share"), tmp_path)
    graph = bundle.manifest.graphs[DECODER]
    assert {port.dims[1::2] for port in graph.inputs if port.state is not None} == {(2, 16)}
    assert bundle.manifest.facts.width == 16


def test_a_head_size_that_no_operator_takes_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(head_size=12)))
    with pytest.raises(UnsupportedError, match="a multiple of 8, this model's is 12; export it with target='portable'"):
        txport.export(tmp_path / "toy", tmp_path / "out", target="cpu")
    assert not (tmp_path / "out").exists()
