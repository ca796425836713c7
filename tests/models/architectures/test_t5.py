"""T5: its parts as operators, its tables of distances and its tied tensors."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import onnx
import torch
from safetensors.torch import load_file, save_file

from tests.recorded import FAMILIES
from tests.seeded import bundle_of, saved, seeded_model
from txport.checkpoints.checkpoint import expected_tensors, load_checkpoint
from txport.exporters.check import operators
from txport.models.architectures.t5 import PRESETS, hugging_face
from txport.models.names import WEIGHTS
from txport.models.parts import Attention

TINY = PRESETS["t5-tiny"]


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


def test_tied_tensors_may_stand_under_all_of_their_names(tmp_path: Path) -> None:
    folder = shutil.copytree(FAMILIES / "t5", tmp_path / "model")
    weights = load_file(folder / WEIGHTS)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights["shared.weight"].clone()
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(8, 4)
    save_file(weights, folder / WEIGHTS)
    found, expected = (load_checkpoint(str(each)).model for each in (folder, FAMILIES / "t5"))
    for name, tensor in expected_tensors(expected).items():
        assert torch.equal(found.get_parameter(name), tensor)


def test_the_config_of_others_says_what_the_model_is() -> None:
    values = json.loads(json.dumps(hugging_face(dataclasses.replace(TINY, gated=True, activation="gelu_tanh"))))
    assert (values["model_type"], values["feed_forward_proj"]) == ("t5", "gated-gelu")
