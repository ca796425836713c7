"""A LoRA that PEFT saved is merged with its base model, and the import computes what PEFT does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from tests.recorded import FAMILIES
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.folder import with_loras
from txport.errors import CheckpointError, UnsupportedError
from txport.models.names import ADAPTER
from txport.proof.against.hold import hold_against

pytestmark = pytest.mark.filterwarnings("ignore")  # of PEFT, about transformers

CLASSES = {
    "llama": "AutoModelForCausalLM",
    "gpt2": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
    "bert-labels": "AutoModelForSequenceClassification",
    "whisper": "AutoModelForSpeechSeq2Seq",
    "qwen3": "AutoModelForCausalLM",
}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 7}),
    ("llama", {"target_modules": "all-linear", "use_rslora": True, "alpha_pattern": {"o_proj": 5}, "r": 2}),
    ("llama", {"target_modules": ["q_proj", "down_proj"], "rank_pattern": {"q_proj": 5}, "use_dora": True}),
    ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}),
    ("gpt2", {"target_modules": ["wte", "c_fc"], "fan_in_fan_out": True}),
    ("t5", {"target_modules": ["q", "wi_0", "wi"], "r": 4}),
    ("bert-labels", {"target_modules": ["query", "dense"], "modules_to_save": ["classifier"], "bias": "all"}),
    ("whisper", {"target_modules": ["k_proj", "fc1"], "lora_bias": False}),
    ("qwen3", {"target_modules": ["up_proj"], "modules_to_save": ["lm_head"]}),
]
Save = Callable[..., str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Make a LoRA with random numbers for a recorded family, and return its folder."""

    def made(family: str, seed: int = 0, **config: Any) -> str:
        base = getattr(transformers, CLASSES[family]).from_pretrained(FAMILIES / family)
        model = get_peft_model(base, LoraConfig(**config))
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter) * (0.2 if "magnitude" in name else 1))
        folder = tmp_path / f"lora{seed}"
        model.save_pretrained(folder)
        return str(folder)

    return made


@pytest.mark.parametrize(("family", "config"), KINDS)
def test_it_computes_what_peft_does(save: Save, family: str, config: dict[str, Any]) -> None:
    name = with_loras(str(FAMILIES / family), [save(family, **config)])
    found = hold_against(name, "transformers")
    assert found.passed, "\n".join(found.lines())
    assert "with PEFT" in found.original
    same = [torch.equal(one, other) for one, other in zip(*map(weights, (name, str(FAMILIES / family))), strict=True)]
    assert not all(same)


def weights(name: str) -> list[torch.Tensor]:
    return [tensor for _, tensor in load_checkpoint(name).tensors]


def test_several_have_weights(save: Save) -> None:
    config = {"target_modules": ["q_proj", "o_proj"]}
    loras = [f"{save('llama', 1, **config)}=0.5", save("llama", 2, **config)]
    name = with_loras(str(FAMILIES / "llama"), loras)
    found = hold_against(name, "transformers")
    assert found.passed, "\n".join(found.lines())
    assert load_checkpoint(name).name == "llama + lora1=0.5 + lora2"
    hashes = {load_checkpoint(with_loras(str(FAMILIES / "llama"), some)).sha256 for some in ([], loras[:1], loras)}
    assert len(hashes) == 3


def test_what_is_no_sum_of_factors_is_refused(save: Save) -> None:
    lora = Path(save("llama", target_modules=["q_proj"]))
    base = str(FAMILIES / "llama")
    saved = json.loads((lora / ADAPTER).read_text())
    for key, value in {
        "peft_type": "IA3",
        "init_lora_weights": "pissa",
        "layer_replication": [[0, 2]],
        "alora_invocation_tokens": [1],
        "something_new": 3,
    }.items():
        (lora / ADAPTER).write_text(json.dumps({**saved, key: value}))
        with pytest.raises(UnsupportedError, match=r"LoRA|started by"):
            load_checkpoint(with_loras(base, [str(lora)]))
    (lora / ADAPTER).write_text(json.dumps(saved))
    with pytest.raises(CheckpointError, match="of which the base model has 0"):
        load_checkpoint(with_loras(str(FAMILIES / "gpt2"), [str(lora)]))
    with pytest.raises(CheckpointError, match=r"a LoRA of .*--lora"):
        load_checkpoint(str(lora))
    dora = save("llama", 3, target_modules=["q_proj"], use_dora=True)
    with pytest.raises(UnsupportedError, match="its weight must be 1"):
        load_checkpoint(with_loras(base, [f"{dora}=0.5"]))
    with pytest.raises(UnsupportedError, match="another LoRA"):
        load_checkpoint(with_loras(base, [dora, str(lora)]))
