"""Folders of CTranslate2: what is loaded computes what CTranslate2 itself recorded (`record_ctranslate2`)."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import txport
from tests.checkpoints.sources.ctranslate2_files import OLD_HEADS, older, variables_of, written
from tests.checkpoints.sources.plain import DAMAGES, check_refused, damage
from tests.checkpoints.sources.record_ctranslate2_inputs import HEARD, PROMPTS, SOURCES, features
from tests.recorded import CTRANSLATE2
from tests.seeded import bundle_of
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.model import Model

NAMES = sorted(path.name for path in CTRANSLATE2.iterdir())


def said(name: str, file: str = "expected") -> dict[str, Any]:
    with np.load(CTRANSLATE2 / name / f"{file}.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_what_is_loaded_computes_what_ctranslate2_does(name: str) -> None:
    model = load_checkpoint(str(CTRANSLATE2 / name)).model
    expected = said(name)
    if name == "whisper":
        check_whisper(model, expected)
        return
    {"seq2seq": check_seq2seq, "causal": check_causal, "encode": check_encoder}[model.facts.task](model, expected)


def check_seq2seq(model: Model, expected: dict[str, Any]) -> None:
    for number, source in enumerate(SOURCES):
        is_t5 = type(model.config).__name__ == "T5Config"  # whose end token CTranslate2 was not given
        ids = torch.tensor([source if is_t5 else model.facts.reads.with_special(source)])
        start = model.facts.writes.start
        tokens = expected[f"tokens.{number}"]
        wanted = expected[f"logits.{number}"]
        given = torch.tensor([[start, *tokens[: len(wanted) - 1]]])
        logits = model(ids, torch.tensor([ids.shape[1]]), given)[0].numpy()
        vocabulary = wanted.shape[1]
        np.testing.assert_allclose(logits[:, :vocabulary], wanted, rtol=0, atol=1e-4)
        assert (logits[:, vocabulary:] < wanted.min() - 10).all()
        assert logits.argmax(-1)[: len(tokens)].tolist() == tokens.tolist()


def check_whisper(model: Model, expected: dict[str, Any]) -> None:
    for number, prompt in enumerate(HEARD):
        given = torch.from_numpy(features(number))
        tokens = expected[f"tokens.{number}"].tolist()
        wanted = expected[f"logits.{number}"]
        places = torch.tensor([given.shape[2] // 2])
        logits = model(given, places, torch.tensor([[*prompt, *tokens]]))[0].numpy()[len(prompt) - 1 :]
        allowed = wanted > -1e30  # CTranslate2 leaves out what its rules of times forbid
        logits = logits[: len(wanted)]
        np.testing.assert_allclose(logits[allowed], wanted[allowed], rtol=0, atol=1e-4)
        assert np.where(allowed, logits, -np.inf).argmax(-1)[: len(tokens)].tolist() == tokens
        assert len(tokens) > 2
        assert allowed.all() == (29 in prompt)


def check_causal(model: Model, expected: dict[str, Any]) -> None:
    for number, prompt in enumerate(PROMPTS):
        tokens = [*prompt, *expected[f"tokens.{number}"]]
        ids = torch.tensor([tokens])
        places = torch.arange(len(tokens))[None]
        logits = (
            model.extend(ids, torch.ones_like(ids, dtype=torch.bool), places, model.empty_state(1)).logits[0].numpy()
        )
        np.testing.assert_allclose(logits[: len(prompt)], expected[f"logits.{number}"], rtol=0, atol=1e-4)
        assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == tokens[len(prompt) :]


def check_encoder(model: Model, expected: dict[str, Any]) -> None:
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        found = model.infer(ids, torch.ones_like(ids, dtype=torch.bool))
        for output, value in zip(model.facts.outputs, found, strict=True):
            np.testing.assert_allclose(value[0], expected[f"{output.name}.{number}"], rtol=0, atol=1e-4)
        assert len(found) == len([name for name in expected if name.endswith(f".{number}")])


@pytest.mark.parametrize("name", ["bart", "marian", "own", "llama"])
def test_a_bundle_finds_what_ctranslate2_finds(name: str, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(CTRANSLATE2 / name)), tmp_path / "bundle", "portable")
    model = txport.load(bundle.path)
    expected = said(name)
    inputs = PROMPTS if name == "llama" else [bundle.manifest.facts.reads.with_special(each) for each in SOURCES]
    for kind, beams in {"tokens": 1, "beams": 3}.items():
        if f"{kind}.0" in expected:
            found = model.search(inputs, beams=beams, max_new_tokens=8)
            assert [list(row[0].tokens) for row in found] == [expected[f"{kind}.{each}"].tolist() for each in range(3)]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CTRANSLATE2 / "bart-int8", tmp_path / "model"))


@pytest.mark.parametrize("name", ["bart-int8", "t5", "t5-gated", "opt-350m", "opt-narrow", "whisper"])
def test_what_is_written_again_is_the_same_file(name: str) -> None:
    path = CTRANSLATE2 / name / "model.bin"
    assert written(*variables_of(path)) == path.read_bytes()


@pytest.mark.parametrize(
    "name", ["bart-int8", "bert", "gpt2", "llama", "t5", "t5-gated", "opt-350m", "opt-narrow", "whisper"]
)
def test_each_kind_of_damage_is_refused(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CTRANSLATE2 / name, tmp_path / name))
    binary, whole = variables_of(folder / "model.bin")
    floats = {each: tensor for each, tensor in whole.items() if tensor.is_floating_point()}
    for seed, kind in enumerate(DAMAGES):
        what, changed = damage(floats, np.random.default_rng(seed), kind)
        kept = {each: tensor for each, tensor in whole.items() if each not in floats}
        (folder / "model.bin").write_bytes(written(binary, kept | changed))
        assert check_refused(folder), what


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.01, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_refused(share: float, copied: Path) -> None:
    path = copied / "model.bin"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "model.bin is not a whole model of CTranslate2: " in check_refused(copied)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bart", {"decoder/activation": torch.tensor(4, dtype=torch.int8)}, "decoder/activation 4 is not supported"),
        ("bart", {"encoder/pre_norm": torch.tensor(1, dtype=torch.int8)}, "norm must be alike, got pre and post"),
        ("bart", {"encoder/num_heads": torch.tensor(0, dtype=torch.int16)}, "encoder/num_heads must be at least 1"),
        ("bart", {"encoder/num_heads": torch.tensor(4, dtype=torch.int16)}, "heads must be alike, got 4 and 2"),
        ("bart", {"encoder/num_heads": torch.tensor(2.5)}, "num_heads must be a whole number, got 2.5"),
        ("bart", {"encoder/num_heads": torch.tensor(torch.nan)}, "it is not a model of CTranslate2: ValueError"),
        ("bart", {"decoder/scale_outputs": torch.tensor(0.5)}, "decoder/scale_outputs 0.5 is not supported"),
        ("bart", {"encoder/scale_embeddings": torch.tensor(3.0)}, "encoder/scale_embeddings 3.0 is not supported"),
        ("bart", {"encoder/new": torch.tensor(1.0)}, "encoder/new 1.0 is not supported"),
        (
            "bart",
            {"encoder/layer_0/self_attention/relative_position_keys": torch.zeros(3, 8)},
            "'encoder/layer_0/self_attention/relative_position_keys' is not supported",
        ),
        ("llama", {"decoder/layer_0/self_attention/rotary_dim": torch.tensor(4)}, "rotary_dim differs between layers"),
        ("llama", {"decoder/alibi": torch.tensor(1, dtype=torch.int8)}, "decoder/alibi 1 is not supported"),
        (
            "gpt2",
            {"decoder/pre_norm": torch.tensor(0, dtype=torch.int8)},
            "norm and final_norm of an OPT must be alike",
        ),
        (
            "opt-350m",
            {"decoder/projection/bias": torch.zeros(32)},
            "the output projection of an OPT must be its embedding",
        ),
        ("t5", {"encoder/num_heads": torch.tensor(5, dtype=torch.int16)}, "heads must be alike, got 5 and 2"),
        (
            "t5",
            {"decoder/layer_1/self_attention/relative_attention_bias": torch.zeros(8, 2)},
            "decoder/layer_1/self_attention/relative_attention_bias differs from that of layer 0",
        ),
        ("gpt2", {"decoder/projection/bias": torch.zeros(28)}, "'decoder/projection/bias' of a decoder-only model is"),
        ("bert", {"pooler_activation": torch.tensor(6, dtype=torch.int8)}, "pooler_activation 6 is not supported"),
    ],
)
def test_attributes_that_nothing_expresses_are_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(CTRANSLATE2 / name, tmp_path / name))
    binary, variables = variables_of(folder / "model.bin")
    changed = {
        each: tensor.to(torch.int32) if tensor.dtype == torch.int64 else tensor for each, tensor in change.items()
    }
    aliases = {alias: root for alias, root in binary.names.items() if alias != root and alias not in changed}
    (folder / "model.bin").write_bytes(written(binary, variables | changed, aliases))
    assert f"model.bin: {message}" in check_refused(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_start_token": None}, "decoder_start_token None must be a token of the vocabulary"),
        ({"decoder_start_token": "w99"}, "decoder_start_token 'w99' must be a token of the vocabulary"),
        ({"eos_token": 3}, "eos_token 3 must be a token of the vocabulary"),
        ({"quantization_type": 1}, "quantization_type 1 is not supported; it must be 0"),
        ({"layer_norm_epsilon": "x"}, "norm_epsilon must be float, got 'x'"),
        ({"add_source_eos": 1}, "add_source_eos must be bool, got 1"),
    ],
)
def test_a_config_that_nothing_expresses_is_refused(change: dict[str, Any], message: str, copied: Path) -> None:
    values = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(values | change))
    assert f"model.bin: {message}" in check_refused(copied)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["a"', "[" * 9999, "\udcff"])
def test_a_vocabulary_that_is_none_is_refused(text: str, copied: Path) -> None:
    (copied / "shared_vocabulary.json").write_text(text, errors="surrogateescape")
    assert "shared_vocabulary.json" in check_refused(copied)
    (copied / "shared_vocabulary.json").unlink()
    assert "there is no shared_vocabulary.json beside it" in check_refused(copied)


def test_a_model_alone_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "model.bin is not a whole model of CTranslate2" in check_refused(tmp_path)


def test_another_version_or_kind_is_refused(copied: Path) -> None:
    path = copied / "model.bin"
    whole = path.read_bytes()
    path.write_bytes(struct.pack("<I", 7) + whole[4:])
    assert "its version is 7, expected 1 to 6: convert the model again" in check_refused(copied)
    path.write_bytes(whole.replace(b"\x10\0TransformerSpec\0", b"\x0d\0Wav2Vec2Spec\0"))
    assert "its specification 'Wav2Vec2Spec' is not supported; supported: TransformerSpec" in check_refused(copied)
    path.write_bytes(b"PK\x03\x04 a pickle of PyTorch")
    assert "model.bin is not a whole model of CTranslate2" in check_refused(copied)


@pytest.mark.parametrize(("version", "revision"), [(5, 4), (4, 4), (3, 3), (2, 2), (1, 1)])
@torch.no_grad()
def test_older_versions_are_read_as_ctranslate2_reads_them(version: int, revision: int, tmp_path: Path) -> None:
    """CTranslate2 4.8 finds the same tokens in the files of versions 3 to 5 as in that of version 6.

    The files before do not store the number of heads, so CTranslate2 finds others there.
    """
    folder = Path(shutil.copytree(CTRANSLATE2 / "own", tmp_path / "own"))
    whole = load_checkpoint(str(folder))
    older(folder, version, revision)
    found = load_checkpoint(str(folder))
    heads = {} if revision >= 3 else {"heads": OLD_HEADS, "head_size": whole.config.d_model // OLD_HEADS}
    assert found.config == dataclasses.replace(whole.config, **heads)
    check_seq2seq(found.model, said("own", f"{OLD_HEADS}_heads" if heads else "expected"))
    assert all(torch.equal(tensor, whole.tensor(name)) for name, tensor in found.tensors)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_last_row_is_that_of_an_unknown_token_which_the_vocabulary_does_not_list(end: str, tmp_path: Path) -> None:
    """So in the models of OpenNMT-tf; a carriage return belongs to a token unless all lines have one."""
    folder = Path(shutil.copytree(CTRANSLATE2 / "own", tmp_path / "own"))
    ids = {}
    for side in ("source", "target"):
        path = folder / f"{side}_vocabulary.json"
        words = json.loads(path.read_text())
        words[words.index("<unk>")] = "carriage\r"
        path.with_suffix(".txt").write_text("".join(f"{token}{end}" for token in words[:-1]), newline="")
        path.unlink()
        ids[side] = len(words) - 1
    (folder / "bpe.codes").write_text("#version: 0.2\nw 5</w>\n")
    texts = load_checkpoint(str(folder)).companions
    for side, name in (("source", "tokenizer.json"), ("target", "target_tokenizer.json")):
        vocabulary = json.loads(str(texts[name]))["model"]["vocab"]
        assert (vocabulary["<unk>"], vocabulary["carriage\r</w>"]) == (ids[side], 3)


def test_an_older_weight_in_int16_without_a_scale_is_divided_by_1000(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CTRANSLATE2 / "own", tmp_path / "own"))
    binary, variables = variables_of(folder / "model.bin")
    name = "decoder/projection/weight"
    whole = (variables[name] * 1000).round().to(torch.int16)
    (folder / "model.bin").write_bytes(written(binary, {**variables, name: whole}))
    torch.testing.assert_close(load_checkpoint(str(folder)).tensor("projection.weight"), whole / 1000.0)


def test_numbers_beside_a_scaling_that_does_not_read_them_are_left_out(tmp_path: Path) -> None:
    """The converter of Phi-3 writes the original length of a model without a scaling too."""
    folder = Path(shutil.copytree(CTRANSLATE2 / "llama", tmp_path / "llama"))
    binary, variables = variables_of(folder / "model.bin")
    layers = load_checkpoint(str(folder)).config.decoder_layers
    lengths = {
        f"decoder/layer_{layer}/self_attention/original_max_position_embeddings": torch.tensor(4096, dtype=torch.int32)
        for layer in range(layers)
    }
    aliases = {alias: root for alias, root in binary.names.items() if alias != root}
    (folder / "model.bin").write_bytes(written(binary, variables | lengths, aliases))
    config = load_checkpoint(str(folder)).config
    assert (config.rotary_scaling, config.rotary_original_length) == ("none", 0)
