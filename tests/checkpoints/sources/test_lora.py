"""`--lora` in every command that reads a checkpoint; tests/hugging_face/test_lora.py compares with PEFT itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.called import Cli
from tests.recorded import FAMILIES
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.sources.lora import _find
from txport.checkpoints.sources.source import held
from txport.errors import CheckpointError
from txport.models.names import ADAPTER, ADAPTER_WEIGHTS

BASE = str(FAMILIES / "llama")
MODULE = "model.layers.0.self_attn.q_proj"
RANK, ALPHA = 2, 3


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    folder = tmp_path / "support"
    folder.mkdir()
    (folder / ADAPTER).write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}))
    width = load_checkpoint(BASE).facts.width
    torch.manual_seed(0)
    factors = {"A": torch.randn(RANK, width), "B": torch.randn(width, RANK)}
    tensors = {f"base_model.model.{MODULE}.lora_{name}.weight": tensor for name, tensor in factors.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS[0])
    return folder


def test_commands_merge_it_by_its_weight(lora: Path, tmp_path: Path, call: Cli) -> None:
    out = tmp_path / "out"
    assert call("export", BASE, out, "--lora", f"{lora}=0.123456789").code == 0
    assert json.loads((out / "txport.json").read_text())["checkpoint"]["name"] == "llama + support=0.123456789"
    assert call("parity", out, "--runtime", "ort").code == 0  # where the checkpoint and the LoRA are is remembered
    assert call("parity", out, "--runtime", "ort", "--checkpoint", BASE, "--lora", f"{lora}=0.123456789").code == 0
    other = call("parity", out, "--checkpoint", BASE, "--lora", lora)
    assert (other.code, "their hashes differ" in other.err) == (2, True)
    assert call("import", BASE, tmp_path / "merged", "--lora", f"{lora}=0.123456789").code == 0
    merged, base = (load_checkpoint(str(name)) for name in (tmp_path / "merged", BASE))
    factors = load_file(lora / ADAPTER_WEIGHTS[0])
    first, second = (factors[f"base_model.model.{MODULE}.lora_{name}.weight"] for name in "AB")
    delta = 0.123456789 * ALPHA / RANK * second @ first
    changed = {
        name: tensor - base.tensor(name) for name, tensor in merged.tensors if not tensor.equal(base.tensor(name))
    }
    assert [*changed] == ["decoder.0.attention.query.weight"]
    # a rotary projection may have another order of rows
    torch.testing.assert_close(changed.popitem()[1].sum(0), delta.sum(0), atol=1e-5, rtol=0)


def test_advice_for_the_folder_of_one(lora: Path, tmp_path: Path, call: Cli) -> None:
    done = call("export", lora, tmp_path / "out")
    assert (done.code, f"--lora {lora}" in done.err) == (2, True)
    done = call("export", "preset:tiny", tmp_path / "out", "--lora", lora)
    assert (done.code, "preset:tiny has random ones" in done.err) == (2, True)
    done = call("export", "g2p-en", tmp_path / "out", "--lora", lora)
    assert (done.code, "a LoRA is for a folder" in done.err) == (2, True)
    done = call("export", BASE, tmp_path / "out", "--lora", BASE)
    assert (done.code, f"{ADAPTER} is missing" in done.err) == (2, True)


def test_an_import_does_not_replace_the_base_model(lora: Path, tmp_path: Path, call: Cli) -> None:
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    done = call("import", base, base, "--lora", lora, "--force")
    assert (done.code, "holds the checkpoint itself" in done.err) == (2, True)


def test_the_text_model_of_one_with_images_has_two_names() -> None:
    base = held({f"language_model.model.layers.{number}.q.weight": torch.zeros(1) for number in range(2)})
    new = "model.language_model.layers.1.q.weight"
    assert _find(new, base, Path("file")) == "language_model.model.layers.1.q.weight"
    old = held({new: torch.zeros(1)})
    assert _find("language_model.model.layers.1.q.weight", old, Path("file")) == new
    with pytest.raises(CheckpointError, match="of which the base model has 0"):
        _find("model.language_model.layers.2.q.weight", base, Path("file"))


def test_half_of_a_change_is_an_error(lora: Path) -> None:
    path = lora / ADAPTER_WEIGHTS[0]
    tensors = load_file(path)
    tensors.pop(next(name for name in tensors if "lora_B" in name))
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"no lora_B of '{MODULE}'"):
        load_checkpoint(f"{BASE} + {lora}")
