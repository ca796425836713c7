"""The comparison with transformers that `export` makes before it writes: its record, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.recorded import FAMILIES, NEWEST, TOKENIZERS, whole
from txport.bundles.comparisons import NOT_COMPARED, TEXTS, describe_original, require_original
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import CheckpointError, ParityError
from txport.models.names import CONFIG, WEIGHTS
from txport.proof.against import hold
from txport.proof.against.batches import BEYOND
from txport.proof.against.hold import compare_original
from txport.proof.against.hugging_face import LINES
from txport.system import memory

CLASSES = {
    f"{NEWEST}/t5": "T5ForConditionalGeneration",
    "sentences-mean": "BertModel",
    "roberta-labels": "RobertaForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
}


def record_of(folder: Path, against: str | None = None) -> dict[str, Any]:
    found = compare_original(load_checkpoint(str(folder)), against)
    require_original(json.loads(json.dumps(found)))
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_the_record_names_the_original_and_how_close_it_is(name: str, tmp_path: Path) -> None:
    told = describe_original(record_of(whole(name, tmp_path)))
    assert told.startswith(f"equal to transformers {transformers.__version__}'s {CLASSES[name]}: "), told
    assert re.search(r" within 1e-0\d of the largest value, in float64, up to \d+ tokens", told), told


@pytest.mark.parametrize("prefix", ["_orig_mod.module.", "base_model.model."])
def test_a_prefix_that_is_removed_is_removed_for_the_original_too(prefix: str, tmp_path: Path) -> None:
    """transformers alone finds none of these tensors; before version 5, it can't be told their names."""
    folder = whole("llama", tmp_path)
    weights = {prefix + name: tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    if int(transformers.__version__.split(".")[0]) >= 5:
        assert describe_original(record_of(folder)).startswith("equal to transformers")
    else:
        assert "can't load" in record_of(folder)[NOT_COMPARED]


def test_rows_are_shorter_than_of_code_whose_lengths_no_config_names(tmp_path: Path) -> None:
    assert record_of(whole(f"{NEWEST}/t5", tmp_path))["tokens"] == hold.CONFIGURED + BEYOND


def test_a_wrong_scale_is_said_the_right_way_round(tmp_path: Path) -> None:
    folder = whole(f"{NEWEST}/t5", tmp_path)
    values = json.loads((folder / CONFIG).read_text())
    checkpoint = load_checkpoint(str(folder))
    scaled = values["scale_decoder_outputs"]
    factor = values["d_model"] ** (-0.5 if scaled else 0.5)
    (folder / CONFIG).write_text(json.dumps(values | {"scale_decoder_outputs": not scaled}))
    with pytest.raises(ParityError) as caught:
        compare_original(checkpoint, None)
    told = str(caught.value)
    assert f"does not compute what transformers {transformers.__version__}'s T5ForConditionalGeneration does" in told
    found = re.search(r"in the original, all of it is ([\d.]+) times the import's", told)
    assert found is not None, told
    assert float(found[1]) == pytest.approx(1 / factor, rel=1e-4)
    assert "against='none' exports it" in told


def test_the_version_that_saved_the_folder_is_the_way_out(tmp_path: Path) -> None:
    folder = whole("llama", tmp_path)
    checkpoint = load_checkpoint(str(folder))
    values = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(values | {"rms_norm_eps": 0.1, "transformers_version": "9.8.7"}))
    with pytest.raises(ParityError, match=r"epsilon is 0\.1, the import's is 1e-06.*install transformers 9\.8\.7"):
        compare_original(checkpoint, None)


def test_what_can_not_be_compared_is_recorded_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = whole("llama", tmp_path)
    assert record_of(folder, "none") == {NOT_COMPARED: "that was not wanted"}
    with monkeypatch.context() as patch:
        needed = hold.memory_for(load_checkpoint(str(folder)).outline)
        patch.setattr(memory, "available", lambda: needed - 1)
        assert "the comparison needs" in record_of(folder)[NOT_COMPARED]
        patch.setattr(memory, "available", lambda: needed)
        assert record_of(folder)["dtype"] == "float64"


def test_what_transformers_can_not_load_is_an_error_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such layer")

    folder = FAMILIES / "llama"
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fail)
    saved, here = json.loads((folder / CONFIG).read_text())["transformers_version"], transformers.__version__
    reason = f"transformers {here} can't load llama: RuntimeError: no such layer"
    way = f"transformers {saved} saved the folder and {here} is installed: install transformers {saved}"
    assert record_of(folder) == {NOT_COMPARED: f"{reason}; {way}"}
    with pytest.raises(CheckpointError, match="no such layer"):
        compare_original(load_checkpoint(str(folder)), "transformers")


def test_a_folder_of_other_names_can_not_be_run(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = whole("gpt2", tmp_path)
    weights = {f"net.{name}": each for name, each in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    lines = ['base = "hugging-face:gpt2"', "[[rule]]", "rename = { pattern = '^net\\.', to = '' }"]
    (folder / "txport.toml").write_text("\n".join(lines), encoding="utf-8")
    reason = record_of(folder)[NOT_COMPARED]
    assert reason.startswith(f"{folder.name} lacks ")
    assert str(FAMILIES) not in reason


def with_tokenizer(name: str, kind: str, folder: Path) -> Path:
    """Save a small seeded model of a type, with a recorded tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / name)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 32}
    sizes |= {"num_key_value_heads": 1, "intermediate_size": 16} if kind == "qwen2" else {}
    sizes |= {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_the_tokens_of_a_folder_are_those_of_its_tokenizer(kind: str, tmp_path: Path) -> None:
    record = record_of(with_tokenizer(kind, kind, tmp_path))
    assert (record[TEXTS]["lines"], record[TEXTS]["differing"]) == (len(LINES), [])
    assert describe_original(record).endswith(f"; the tokens of its {record[TEXTS]['name']} in {len(LINES)} lines")


def test_other_tokens_are_said_with_the_way_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = with_tokenizer("gpt2", "qwen2", tmp_path)  # of which transformers 5 replaces the pre-tokenizer
    record = record_of(folder)
    assert "OTHER TOKENS than its Qwen2Tokenizer in " in describe_original(record)
    assert f"from_pretrained('{folder}').save_pretrained('{folder}')" in caplog.text
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    assert record_of(folder)[TEXTS]["differing"] == []


def test_a_tokenizer_that_transformers_can_not_load_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no such tokenizer")

    folder = with_tokenizer("gpt2", "gpt2", tmp_path)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    assert describe_original(record_of(folder)).endswith("; tokens not compared: ValueError: no such tokenizer")


@pytest.fixture
def sharp(tmp_path: Path) -> Path:
    """A Llama whose attention makes much of small errors, as trained ones do: its scores are in the hundreds."""
    folder = whole("llama", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            for each in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                each.weight.mul_(12)
    model.save_pretrained(folder)
    return folder


def test_what_roundings_of_angles_can_cause_is_no_difference(sharp: Path) -> None:
    assert describe_original(record_of(sharp)).startswith("equal to ")


def test_a_wrong_angle_is_found_beside_them(sharp: Path) -> None:
    checkpoint = load_checkpoint(str(sharp))
    values = json.loads((sharp / CONFIG).read_text())
    theta = values["rope_parameters"]["rope_theta"]
    values["rope_parameters"]["rope_theta"] = 1.0001 * theta
    (sharp / CONFIG).write_text(json.dumps(values))
    with pytest.raises(ParityError, match="does not compute"):
        compare_original(checkpoint, None)
