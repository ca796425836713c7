"""T5: every variant in every form, and what transformers says, token for token, through the exported graphs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.architectures.sampled import recorded, sampled
from tests.architectures.seeded import PLANS, bundle_of, drawn, proven, saved, seeded_model
from tests.runtimes.driven import ENGINES
from txport import runtimes
from txport.errors import CheckpointError, ConfigError
from txport.exporters.check import operators
from txport.models.architectures.t5 import PRESETS, T5Config, hugging_face
from txport.models.checkpoint import expected_tensors, load_checkpoint
from txport.models.parts import Attention
from txport.search.generate import generate
from txport.search.options import SearchOptions

FOLDER = Path(__file__).parent / "t5"
VARIANTS = sorted(path.name for path in FOLDER.iterdir())
TINY = PRESETS["t5-tiny"]
# as tests/hugging_face/t5.py recorded it
SOURCES = [[5, 9, 3, 17, 22, 8, 4, 11, 13, 2, 6, 7, 19, 20, 21, 10, 3, 1], [12, 3, 1], [1], [14, 15, 16, 23, 18, 5, 1]]
OPTIONS = {"max_new_tokens": 12, "no_repeat_ngram_size": 2}


@pytest.mark.parametrize("seed", range(len(PLANS)))
def test_every_variant_is_proven(seed: int, tmp_path: Path) -> None:
    target, precision = PLANS[seed % len(PLANS)]
    report = proven(drawn("t5", seed), tmp_path, target, precision, seed)
    assert report.passed, report.failures()


def test_the_drawn_variants_are_of_every_kind() -> None:
    configs = [drawn("t5", seed) for seed in range(len(PLANS))]
    assert {(each.gated, each.tied) for each in configs} == {(True, True), (True, False), (False, True), (False, False)}
    assert {each.activation for each in configs} == set(T5Config.choices()["activation"])


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_graphs_say_what_transformers_says(variant: str, target: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(FOLDER / variant))
    bundle = bundle_of(checkpoint, tmp_path / "bundle", target)
    runtime = runtimes.load(ENGINES[target], bundle)
    with np.load(FOLDER / variant / "expected.npz") as said:
        lengths = np.array([len(source) for source in SOURCES])
        ids = np.array([[*source, *[0] * (max(lengths) - len(source))] for source in SOURCES])
        given = said["given"]
        state = runtime.start(ids, lengths, max_length=given.shape[1])
        for place in range(given.shape[1]):
            scores, state = runtime.step(given[:, place], state)
            np.testing.assert_allclose(scores.values, said["logits"][:, place], rtol=0, atol=1e-4)
        greedy = generate(runtime, SOURCES, checkpoint.facts, SearchOptions(**OPTIONS))
        assert [each[0].tokens for each in greedy] == [cut(row) for row in said["greedy"].tolist()]
        options = SearchOptions(**OPTIONS, beams=4, nbest=2)
        beams = generate(runtime, SOURCES, checkpoint.facts, options)
        assert [each.tokens for found in beams for each in found] == [cut(row) for row in said["beam"].tolist()]
    assert sampled(runtime, SOURCES, checkpoint.facts) == recorded(FOLDER / variant / "samples.json")


def cut(tokens: list[int], end: int = 1) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end) + 1]) if end in tokens else tuple(tokens)


def test_each_part_becomes_one_operator(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, gated=True, activation="silu")
    bundle = bundle_of(saved(config, tmp_path / "model"), tmp_path / "bundle")
    encoder, step = (operators(bundle.file(role)) for role in ("encoder", "step"))
    assert (encoder["com.microsoft.MultiHeadAttention"], encoder["MatMul"], encoder["Softmax"]) == (2, 0, 0)
    assert (step["com.microsoft.GroupQueryAttention"], step["com.microsoft.MultiHeadAttention"]) == (2, 2)
    # packed query, key and value; output; query over the source and its output; gate and inner; outer
    assert step["Gemm"] == 2 * 6 + 1
    model = onnx.load(str(bundle.file("step")), load_external_data=False)
    tables = [each for each in model.graph.initializer if each.name.endswith("core.bias.weight")]
    assert len(tables) == 1  # for all layers


def test_a_table_of_distances_is_held_once_for_each_stack() -> None:
    names = [name for name in expected_tensors(seeded_model(TINY)) if "core.bias" in name]
    assert names == ["encoder.0.attention.core.bias.weight", "decoder.0.attention.core.bias.weight"]


def test_random_weights_look_at_more_than_one_key() -> None:
    """Scores are not scaled, so that queries begin as much smaller: their products with keys deviate by about 1."""
    model = load_checkpoint("preset:t5-small").model
    states = torch.randn(64, model.facts.width, generator=torch.Generator().manual_seed(0))
    for attention in (each for each in model.modules() if isinstance(each, Attention)):
        query, key = (part(states).unflatten(1, (-1, attention.head_size)) for part in (attention.query, attention.key))
        assert 0.5 < torch.einsum("tnh,snh->nts", query, key).std() * attention.core.scale < 2


def copy_of(variant: str, folder: Path) -> dict[str, torch.Tensor]:
    shutil.copytree(FOLDER / variant, folder)
    return load_file(folder / "model.safetensors")


def test_tied_tensors_may_stand_under_all_of_their_names(tmp_path: Path) -> None:
    weights = copy_of("tied-relu", tmp_path / "model")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights["shared.weight"].clone()
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(8, 2)
    save_file(weights, tmp_path / "model" / "model.safetensors")
    found, expected = (load_checkpoint(str(each)).model for each in (tmp_path / "model", FOLDER / "tied-relu"))
    for name, tensor in expected_tensors(expected).items():
        assert torch.equal(found.get_parameter(name), tensor)


def test_tied_tensors_that_differ_are_refused(tmp_path: Path) -> None:
    weights = copy_of("tied-relu", tmp_path / "model")
    weights["lm_head.weight"] = weights["shared.weight"] + 1
    save_file(weights, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' and 'shared.weight' must be one tensor, but differ"):
        load_checkpoint(str(tmp_path / "model"))


def test_what_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    weights = copy_of("gated-gelu", tmp_path / "model")
    del weights["encoder.block.1.layer.0.SelfAttention.k.weight"]
    weights["encoder.block.7.layer.9.strange"] = torch.zeros(3)
    save_file(weights, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(str(tmp_path / "model"))
    assert "missing encoder.1.attention.key.weight (16, 16)" in str(error.value)
    assert "unexpected encoder.block.7.layer.9.strange (3,)" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"buckets": 10}, "buckets must be a multiple of 4, got 10"),
        ({"farthest": 8}, "farthest must be above half of the 16 buckets, got 8"),
        ({"eos_id": 64}, "eos_id must lie in the shared vocabulary of 64, got 64"),
        ({"activation": "tanh"}, "activation must be one of relu, gelu_tanh, gelu, silu; got 'tanh'"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be above 0, got 0.0"),
    ],
)
def test_a_config_that_does_not_go_together_says_why(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(TINY, **changes)
    assert str(error.value) == problem


def test_the_config_of_others_says_what_the_model_is() -> None:
    values = json.loads(json.dumps(hugging_face(dataclasses.replace(TINY, gated=True, activation="gelu_tanh"))))
    assert (values["model_type"], values["feed_forward_proj"]) == ("t5", "gated-gelu")
