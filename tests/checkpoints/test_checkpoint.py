from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.tiny import VOCABULARY, tiny_config, tiny_model
from txport.api.locate import find_bundle
from txport.checkpoints import checkpoint
from txport.checkpoints.checkpoint import expected_tensors, load_checkpoint, save_checkpoint
from txport.checkpoints.folder import digest, label, shipped
from txport.errors import BundleError, CheckpointError, ConfigError, OutputError, UnsupportedError
from txport.models.architectures.transformer import PRESETS, TransformerConfig

CHOICES = TransformerConfig.choices()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    save_checkpoint(path, tiny_model(tiny_config()))
    return path


def alter(folder: Path, change: dict[str, Tensor | None]) -> None:
    """Replace, add or (None) take away tensors of a checkpoint."""
    file = folder / "model.safetensors"
    weights = {**load_file(file), **change}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, file)


@pytest.mark.parametrize("tied", CHOICES["tied"])
@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_round_trip(tied: str, positions: str, tmp_path: Path) -> None:
    model = tiny_model(tiny_config(tied=tied, positions=positions))
    save_checkpoint(tmp_path / "mine", model, spelling_tokenizer(VOCABULARY))
    loaded = load_checkpoint(str(tmp_path / "mine"))
    assert loaded.config == model.config
    assert loaded.name == "mine"
    assert list(loaded.companions) == ["tokenizer.json"]
    assert not loaded.model.training
    expected = model.state_dict()
    actual = loaded.model.state_dict()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    assert (loaded.model.projection.weight is loaded.model.target_embedding.tokens.weight) == (tied != "none")


def test_a_save_leaves_alone_what_else_lies_in_the_folder(folder: Path) -> None:
    others = {"log.txt": "loss 1", "model.pt": "a pickle", "samples.txt": "5 6\n", ".git/HEAD": "ref"}
    for name, text in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "config.json").chmod(0o600)
    model = tiny_model(tiny_config(norm="post"))
    save_checkpoint(str(folder), model)
    assert load_checkpoint(str(folder)).config == model.config
    assert {name: (folder / name).read_text() for name in others} == others
    assert (folder / "config.json").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        ".git",
        "log.txt",
        "model.pt",
        "samples.txt",
    }


def test_tokenizers_of_an_older_model_do_not_stay(tmp_path: Path) -> None:
    """They might fit the new one by chance, and would write other words."""
    folder = tmp_path / "mine"
    model = tiny_model(tiny_config())
    tokenizer = spelling_tokenizer(VOCABULARY)
    save_checkpoint(folder, model, tokenizer, tokenizer)
    save_checkpoint(folder, model, tokenizer)
    assert list(load_checkpoint(str(folder)).companions) == ["tokenizer.json"]
    save_checkpoint(folder, model)
    assert load_checkpoint(str(folder)).companions == {}


def test_a_save_replaces_links_not_what_they_lead_to(folder: Path, tmp_path: Path) -> None:
    """Caches share their files among checkpoints by links."""
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    before = (tmp_path / "blob").read_bytes()
    save_checkpoint(folder, tiny_model(tiny_config(), seed=1))
    assert (tmp_path / "blob").read_bytes() == before
    assert not (folder / "model.safetensors").is_symlink()


def test_a_save_that_fails_leaves_the_older_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    before = digest(str(folder))
    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(OutputError, match="mine can't be written: No space left on device; it is as it was"):
        save_checkpoint(folder, tiny_model(tiny_config(), seed=1))
    assert digest(str(folder)) == before
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_a_reader_completes_a_save_that_was_killed(folder: Path) -> None:
    expected = digest(str(folder))
    (folder / ".save.ready").mkdir()
    (folder / "config.json").rename(folder / ".save.ready" / "config.json")
    (folder / ".save.ready" / "tokenizer.json.gone").touch()
    (folder / "tokenizer.json").write_text("of an older model")
    assert load_checkpoint(str(folder)).sha256 == expected
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_a_save_that_can_t_be_completed_is_no_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, target: Path) -> None:
        raise OSError(30, "Read-only file system")

    (folder / ".save.ready").mkdir()
    (folder / "config.json").rename(folder / ".save.ready" / "config.json")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(CheckpointError, match="mine was being saved, which can't be completed: Read-only file system"):
        load_checkpoint(str(folder))


def test_each_weight_is_stored_once(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    names = ("projection.weight", "source_embedding.tokens.weight", "target_embedding.tokens.weight")
    assert sum(name in stored for name in names) == 1
    assert sum(tensor.numel() for tensor in stored.values()) == sum(
        parameter.numel() for parameter in load_checkpoint(str(folder)).model.parameters()
    )


def test_half_is_stored_in_16_bits_and_loaded_in_32(tmp_path: Path) -> None:
    model = tiny_model(tiny_config())
    save_checkpoint(tmp_path / "mine", model, half=True)
    stored = load_file(tmp_path / "mine" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    for name, tensor in expected_tensors(load_checkpoint(str(tmp_path / "mine")).model).items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected_tensors(model)[name].half().float())


def test_all_that_does_not_fit_at_once(folder: Path) -> None:
    nan = torch.ones(16)
    infinite = torch.ones(16)
    nan[3] = torch.nan
    infinite[5] = -torch.inf
    alter(
        folder,
        {
            "encoder.0.attention.query.weight": None,
            "decoder.1.cross_attention.key.bias": None,
            "lm_head.weight": torch.zeros(3, 4),
            "encoder.1.feed_forward.inner.weight": torch.zeros(16, 24),
            "decoder.0.attention.key.bias": nan,
            "decoder.0.attention.value.bias": infinite,
            "decoder_norm.bias": torch.zeros(16, dtype=torch.int64),
            "decoder_norm.weight": torch.zeros(16, dtype=torch.bool),
        },
    )
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(str(folder))
    listed = str(caught.value).partition("does not fit its config: ")[2].split("; ")
    assert sorted(listed) == sorted(
        [
            "missing encoder.0.attention.query.weight (16, 16)",
            "missing decoder.1.cross_attention.key.bias (16,)",
            "unexpected lm_head.weight (3, 4)",
            "encoder.1.feed_forward.inner.weight has shape (16, 24), expected (24, 16)",
            "decoder.0.attention.key.bias holds NaN or infinity",
            "decoder.0.attention.value.bias holds NaN or infinity",
            "decoder_norm.bias has type torch.int64, expected a floating-point type",
            "decoder_norm.weight has type torch.bool, expected a floating-point type",
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn])
def test_other_floating_types_are_read(dtype: torch.dtype, folder: Path) -> None:
    value = torch.full((16,), 0.5)
    alter(folder, {"decoder_norm.bias": value.to(dtype)})
    bias = load_checkpoint(str(folder)).model.decoder_norm.bias
    assert bias.dtype == torch.float32
    assert torch.equal(bias, value)


def test_another_config(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"encoder_layers": 2', '"encoder_layers": 1'))
    with pytest.raises(CheckpointError, match=r"unexpected encoder\.1\.attention\.key\.bias \(16,\)"):
        load_checkpoint(str(folder))
    file.write_text(file.read_text().replace('"heads": 2', '"heads": 0'))
    with pytest.raises(ConfigError, match=re.escape(str(file))):
        load_checkpoint(str(folder))


def test_weights_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing$"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize("kept", [0, 7, 300, -1])
def test_weights_truncated(kept: int, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (b"bad\nbuzz\n", r"samples\.txt must hold text that the model takes: 'buzz' has characters outside"),
        (b"bad\n\n", r"samples\.txt must hold text that the model takes: the text is empty"),
        (b"b\xffd\n", r"samples\.txt must hold text that the model takes: .*UTF-8"),
        (b"a" * 24 + b"\n", r"samples\.txt has a line of 25 tokens, the model takes at most 24"),
    ],
)
def test_samples_that_the_model_cannot_take(samples: bytes, message: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    (folder / "samples.txt").write_bytes(samples)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(str(folder))


def test_tokenizer_that_is_not_this_models(folder: Path) -> None:
    for text, message in ((spelling_tokenizer([*VOCABULARY, "ZH"]), "23 tokens"), ("{}", "is not a tokenizer")):
        (folder / "tokenizer.json").write_text(text)
        with pytest.raises(CheckpointError, match=rf"tokenizer\.json .*{message}"):
            load_checkpoint(str(folder))


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint g2p-xx; .* one of .*g2p-en, preset:NAME"):
        load_checkpoint("g2p-xx")
    with pytest.raises(CheckpointError, match=r"unknown preset 'huge'; there are .*tiny, base, big"):
        load_checkpoint("preset:huge")
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: config\.json is missing"):
        load_checkpoint(str(tmp_path))


def test_graphs_without_a_config_are_named(tmp_path: Path) -> None:
    for name in ("encoder.onnx", "decoder.onnx"):
        (tmp_path / name).write_bytes(b"")
    message = r"has ONNX graphs \(decoder\.onnx, encoder\.onnx\) and no config\.json, .*: export the checkpoint that"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(str(tmp_path))
    with pytest.raises(BundleError, match=message):
        find_bundle(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "name", "told"),
    [
        (("model.py",), "model.py", r"model\.py is a file of code; give .*model\.py:NAME, the adapter in it"),
        ((), "model.py", r"model\.py is a file of code; give .*model\.py:NAME, the adapter in it"),
        (("model.safetensors",), "model.safetensors", r"model\.safetensors is a file; give its folder, "),
        (("step.pt",), "step.pt", r"step\.pt is a file; give its folder, "),
        (("model-q4.gguf",), "model-q4.gguf", r"GGUF is not read; take the folder that it was made from"),
        (("model-q4.gguf",), "", r"has weights as GGUF, 'model-q4.gguf', which is not read; take the folder that it "),
        (("model-q4.gguf", "config.json"), "", r"has weights as GGUF"),
        (
            ("adapter_config.json", "adapter_model.safetensors"),
            "",
            r"is an adapter of PEFT of another model; merge it",
        ),
        (("adapter_config.json", "adapter_model.safetensors", "config.json"), "", r"is an adapter of PEFT"),
    ],
)
def test_what_is_no_checkpoint_says_what_to_give(files: tuple[str, ...], name: str, told: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    with pytest.raises((CheckpointError, UnsupportedError), match=told) as caught:
        load_checkpoint(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            '{"peft_type": "LORA", "base_model_name_or_path": "org/base"}',
            r"is a LoRA of 'org/base'; .* --lora .*` merges",
        ),
        (
            '{"peft_type": "IA3", "base_model_name_or_path": "org/base"}',
            r"an adapter of PEFT of 'org/base'.*MORE",
        ),
        ('{"peft_type": ["LORA"], "base_model_name_or_path": {}}', r"is an adapter of PEFT of another model.*MORE"),
        ('{"base_model_name_or_path": "%s"}' % ("x" * 1000), r"is an adapter of PEFT of 'x+\.\.\.;.*MORE"),
        ("[", r"is an adapter of PEFT of another model.*MORE"),
    ],
)
def test_an_adapter_of_peft_is_told_with_its_base(values: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(values)
    more = r"\(merge_and_unload\), and save the whole model \(save_pretrained\)"
    with pytest.raises(CheckpointError, match=told.replace("MORE", more)):
        load_checkpoint(str(tmp_path))


def test_weights_beside_an_adapter_of_peft_are_read(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    (folder / "model.gguf").write_text("GGUF")
    assert load_checkpoint(str(folder)).sha256


def test_what_ships_is_whole() -> None:
    for name in shipped():
        loaded = load_checkpoint(name)
        assert loaded.name == name
        assert loaded.companions


def test_presets_are_seeded() -> None:
    first = load_checkpoint("preset:tiny")
    second = load_checkpoint("preset:tiny")
    assert first.config == PRESETS["tiny"]
    assert (first.name, first.sha256) == (second.name, second.sha256)
    names = first.model.state_dict()
    assert all(torch.equal(names[name], tensor) for name, tensor in second.model.state_dict().items())


def test_loading_leaves_the_callers_seed_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    load_checkpoint(str(folder))
    load_checkpoint("preset:tiny")
    assert torch.equal(torch.get_rng_state(), before)


def test_digest_covers_all_that_makes_a_checkpoint(folder: Path) -> None:
    seen = [digest(str(folder))]
    (folder / "notes.txt").write_text("not part of it")
    assert digest(str(folder)) == seen[0]
    (folder / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    seen.append(digest(str(folder)))
    (folder / "target_tokenizer.json").write_text(spelling_tokenizer(VOCABULARY))
    seen.append(digest(str(folder)))
    (folder / "samples.txt").write_text("bad\n")
    seen.append(digest(str(folder)))
    alter(folder, {"decoder_norm.bias": torch.ones(16)})
    seen.append(digest(str(folder)))
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"norm": "pre"', '"norm": "post"'))
    seen.append(digest(str(folder)))
    assert len(set(seen)) == 6


def test_label_is_never_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert label(str(folder)) == label(".") == label("../mine/") == "mine"
    assert label("preset:tiny") == "preset:tiny"
