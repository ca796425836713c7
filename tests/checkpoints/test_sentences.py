"""Folders of sentence-transformers with layers after the pooling, and graphs that pool: the vectors are theirs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

import txport
from tests.recorded import EXPECTED, SENTENCES
from tests.recorded.sentences import CUT, TEXTS
from tests.seeded import bundle_of
from tests.tiny import edit_graph
from txport.checkpoints.checkpoint import load_checkpoint, pooled, with_steps
from txport.checkpoints.folder import digest
from txport.cli.commands import cli
from txport.errors import CheckpointError, ConfigError, UnsupportedError
from txport.models.architectures.bert import BertConfig
from txport.models.facts import Facts
from txport.proof.bisect.culprit import bisect
from txport.proof.verify.check import verify
from txport.targets import TARGETS

NAMES = ("tanh", "several", "gemma", "t5", "qwen")
NEAR = 1e-5


def said(name: str) -> dict[str, Any]:
    with np.load(SENTENCES / name / EXPECTED) as stored:
        return dict(stored)


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(SENTENCES / name, folder / "x"))


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_sentence_transformers(name: str, target: str, tmp_path: Path) -> None:
    """By the modules of the folder, which "qwen" has in its graph only if asked."""
    checkpoint = pooled(load_checkpoint(str(SENTENCES / name)), "modules")
    model = txport.load(bundle_of(checkpoint, tmp_path / "bundle", target).path)
    expected = said(name)
    np.testing.assert_allclose(model.embed(TEXTS, prompt=""), expected["vectors"], rtol=0, atol=NEAR)
    cut = model.embed(TEXTS, prompt="", dimensions=CUT, normalize=True)
    np.testing.assert_allclose(cut, expected["cut"], rtol=0, atol=NEAR)
    for prompt in ("query", "document"):
        if f"prompt.{prompt}" in expected:
            found = model.embed(TEXTS, prompt=prompt, truncate=True)
            np.testing.assert_allclose(found, expected[f"prompt.{prompt}"], rtol=0, atol=NEAR)


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max", "weighted-mean"])
def test_a_graph_pools_as_embed_does(pooling: str, tmp_path: Path) -> None:
    checkpoint = with_steps(load_checkpoint(str(SENTENCES / "qwen")), ())
    model = txport.load(bundle_of(checkpoint, tmp_path / "plain", "portable").path)
    for target in ("portable", "cpu"):
        bundle = bundle_of(pooled(checkpoint, pooling), tmp_path / target, target)
        assert bundle.manifest.generation["pooling"] == pooling
        found = txport.load(bundle.path).embed(TEXTS)
        np.testing.assert_allclose(found, model.embed(TEXTS, pooling=pooling), rtol=0, atol=NEAR)


def test_other_programs_get_vectors_in_one_call_whichever_side_is_padded(tmp_path: Path) -> None:
    import onnxruntime

    bundle = bundle_of(pooled(load_checkpoint(str(SENTENCES / "qwen")), "modules"), tmp_path / "b", "portable")
    session = onnxruntime.InferenceSession(str(bundle.file("model")))
    assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert [each.name for each in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    ids = np.array([[5, 9, 7, 0]])
    whole = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    for before, after in ((0, 3), (3, 0)):
        given = {
            "input_ids": np.pad(ids, ((0, 0), (before, after))),
            "attention_mask": np.pad(ids * 0 + 1, ((0, 0), (before, after))),
        }
        np.testing.assert_allclose(session.run(["sentence_embedding"], given)[0], whole, rtol=0, atol=NEAR)


@pytest.mark.parametrize(
    ("target", "precision"), [(name, each) for name, one in TARGETS.items() for each in one.precisions]
)
def test_export_proves_the_vector_in_each_precision(target: str, precision: str, tmp_path: Path) -> None:
    """Export compares the output with PyTorch, and so do verify and parity with the same checkpoint."""
    options: dict[str, Any] = {"target": target, "precision": precision, "against": "none"}
    bundle = txport.export(SENTENCES / "several", tmp_path / "bundle", **options)
    assert bundle.manifest.facts.pools
    assert [each.name for each in bundle.manifest.graphs["model"].outputs][-1] == "sentence_embedding"


def test_an_altered_layer_after_the_pooling_is_found(tmp_path: Path) -> None:
    """A planted fault in the file: parity fails, verify fails, and bisect names the layer."""

    def alter(model: onnx.ModelProto) -> None:
        (bias,) = (each for each in model.graph.initializer if each.name.endswith("sentence.layers.0.bias"))
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.5), bias.name))

    bundle = txport.export(SENTENCES / "several", tmp_path / "bundle", against="none")
    name = str(SENTENCES / "several")
    assert txport.api.model.parity(bundle, name, {"ort": "cpu"}).passed
    altered = edit_graph(bundle.path, "model", alter)
    assert not txport.api.model.parity(altered, name, {"ort": "cpu"}).passed
    assert not verify(altered.path).passed
    culprit = bisect(altered, load_checkpoint(name))
    assert culprit is not None
    assert "sentence.layers.0" in culprit.where + str(culprit), culprit


def test_the_digest_counts_the_layers(tmp_path: Path) -> None:
    folder = copied("several", tmp_path)
    before = digest(str(folder))
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    weights["linear.bias"][3] += 0.5
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    assert digest(str(folder)) != before


def test_the_options_of_export_and_embed(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    made = CliRunner().invoke(
        cli, ["export", str(SENTENCES / "qwen"), str(out), "--pooling", "max", "--against", "none"]
    )
    assert made.exit_code == 0, made.output
    model = txport.load(out)
    assert model.defaults["pooling"] == "max"
    assert model.defaults["normalize"] is True  # what follows the pooling stays
    assert "sentence_embedding" in (out / "README.md").read_text()
    tokens = model.embed(TEXTS[:2], pooling="none", prompt="")
    assert [each.shape[1] for each in tokens] == [32, 32]
    for options, message in (
        ({"pooling": "mean"}, "the graph of this bundle has the pooling 'max' or 'none', got 'mean'"),
        ({"normalize": False}, "the graph of this bundle normalises its vectors: normalize must be true"),
        ({"dimensions": 33}, "dimensions must not exceed 32, got 33"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            model.embed(TEXTS, **options)  # type: ignore[call-overload]
    parity = CliRunner().invoke(
        cli, ["parity", str(out), "--checkpoint", str(SENTENCES / "qwen")]
    )  # pools as the bundle does
    assert parity.exit_code == 0, parity.output


@pytest.mark.parametrize(
    ("name", "pooling", "message"),
    [
        ("several", "mean", "the layers of several are for the pooling 'first', got 'mean'"),
        ("tanh", "sum", "pooling must be one of mean, first, last, max, weighted-mean, modules, got 'sum'"),
    ],
)
def test_a_pooling_that_a_folder_can_t_have(name: str, pooling: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        txport.export(SENTENCES / name, tmp_path / "bundle", pooling=pooling, against="none")


def test_models_without_vectors_do_not_pool(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"g2p-en is no encoder whose graph can pool; leave out pooling"):
        txport.export("g2p-en", tmp_path / "bundle", pooling="mean")
    with pytest.raises(
        UnsupportedError, match=r"preset:bert-tiny has no modules\.json with a pooling; give mean, first"
    ):
        txport.export("preset:bert-tiny", tmp_path / "bundle", pooling="modules")


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("2_Dense/config.json", {"in_features": 31}, "in_features 31 is not the size 32 of the vectors before it"),
        (
            "2_Dense/config.json",
            {"activation_function": "torch.nn.Softmax"},
            "activation_function 'torch.nn.Softmax' is",
        ),
        ("2_Dense/config.json", {"activation_function": "own.Tanh"}, "activation_function 'own.Tanh' is not supported"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual true is not supported"),
        (
            "2_Dense/config.json",
            {"module_input_name": "token_embeddings"},
            "module_input_name 'token_embeddings' is not",
        ),
        ("2_Dense/config.json", {"out_features": 0}, "out_features must be a whole number from 1 to"),
        ("2_Dense/config.json", {"bias": "no"}, "bias must be true or false, got 'no'"),
        ("2_Dense/config.json", {"scale": 2}, "the key 'scale', here 2, is not supported: vectors may depend on it"),
        ("3_LayerNorm/config.json", {"dimension": 23}, "dimension 23 is not the size 24 of the vectors before it"),
    ],
)
def test_layers_that_nothing_expresses_are_refused(
    file: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = copied("several", tmp_path)
    rewrite(folder / file, **values)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(str(folder))


def test_a_prompt_that_is_not_pooled_needs_pooling_outside_the_graph(tmp_path: Path) -> None:
    folder = copied("gemma", tmp_path)
    rewrite(folder / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(ConfigError, match="pools the tokens of a prompt too; include_prompt is false"):
        txport.export(folder, tmp_path / "bundle", against="none")


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    folder = copied("several", tmp_path)
    (folder / "4_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="4_Dense"):
        load_checkpoint(str(folder))


def test_a_pickled_layer_is_read_without_its_code(tmp_path: Path) -> None:
    folder = copied("tanh", tmp_path)
    file = folder / "2_Dense" / "model.safetensors"
    torch.save(load_file(file), folder / "2_Dense" / "pytorch_model.bin")
    file.unlink()
    found, expected = (dict(load_checkpoint(str(each)).tensors) for each in (folder, SENTENCES / "tanh"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("sum",), "sentence must begin with one of mean, first, last, max, weighted-mean, got 'sum'"),
        (("mean", "dense 0 tanh"), "a step of sentence after the pooling must be dense SIZE ACTIVATION"),
        (("mean", "dense 8 softmax"), "got 'dense 8 softmax'"),
        (("mean", "mean"), "got 'mean'"),
        (("mean", *["normalize"] * 16), "sentence must have at most 16 steps, got 17"),
    ],
)
def test_steps_that_are_none(steps: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BertConfig(sentence=steps)
    with pytest.raises(ConfigError, match="sentence is for the heads hidden, pooled, got 'tokens'"):
        BertConfig(head="tokens", sentence=("mean",))


@pytest.mark.parametrize("dims", [["length", 8], [2, 8]])
def test_a_manifest_s_vector_has_one_dim(dims: list[Any]) -> None:
    facts = load_checkpoint(str(SENTENCES / "tanh")).facts.to_dict()
    assert Facts.from_dict(facts).vector_size == 16
    facts["outputs"][1]["dims"] = dims
    with pytest.raises(ValueError, match="sentence_embedding is one vector for each text"):
        Facts.from_dict(facts)
