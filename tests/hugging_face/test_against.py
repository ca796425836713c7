"""`txport import --against transformers`: the models of tests/recorded/families beside transformers, layer by layer."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from tests.recorded import FAMILIES
from txport import cli
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import CheckpointError, ConfigError
from txport.models.names import CONFIG, RULES, WEIGHTS
from txport.proof.against.hold import hold_against

NAMES = [
    "gpt2",
    "opt",
    "opt-post-narrow",
    "llama",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen2-labels",
    "qwen3",
    "mistral-hidden",
    "sentences-last",
    "transformers-5/gemma3-both-ways",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "t5",
    "t5-hidden",
    "flan-t5",
    "marian",
    "pegasus",
    "bart",
    "bart-labels",
    "mbart",
    "mbart-labels",
    "m2m_100",
    "whisper",
    "bert",
    "bert-tokens",
    "roberta-labels",
    "distilbert",
    "smollm3-window",
    "mpnet",
    "electra",
    "albert",
    "bert-spans",
    "deberta",
    "deberta-v2-labels",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_what_transformers_does(name: str) -> None:
    found = hold_against(str(FAMILIES / name), "transformers")
    told = "\n".join(found.lines())
    assert found.passed, told
    for output in found.outputs:
        assert output.error < 1e-5 * output.largest, told
        assert output.alike in (None, output.places), told


def rules(base: str, config: dict[str, Any], *own: str) -> str:
    """A `txport.toml` beside a checkpoint of transformers'."""
    lines = [f'base = "hugging-face:{base}"']
    if config:
        lines += ["[config]", *(f"{key} = {json.dumps(value)}" for key, value in config.items())]
    return "\n".join([*lines, *(f"[[rule]]\n{each}" for each in own)])


def swap(one: str, other: str) -> list[str]:
    pairs = ((one, "held"), (other, one), ("held", other))
    return [f"rename = {{ pattern = '{re.escape(old)}', to = '{new}' }}" for old, new in pairs]


def edited(**changes: Any) -> Callable[[Path], None]:
    """A rule file whose config is that of the folder, but for some keys of ours."""

    def edit(folder: Path) -> None:
        from txport.checkpoints.sources.source import read_source

        kind = json.loads((folder / CONFIG).read_text())["model_type"]
        config = {**read_source(folder).config.to_dict(), **changes}
        config = {name: each for name, each in config.items() if each is not None}
        (folder / RULES).write_text(rules(kind, config), encoding="utf-8")

    return edit


def further(then: Callable[[Path], None], **changes: Any) -> Callable[[Path], None]:
    """As another edit, of a folder whose own config has other values."""

    def edit(folder: Path) -> None:
        values = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(values | changes), encoding="utf-8")
        then(folder)

    return edit


def by(base: str, *own: str) -> Callable[[Path], None]:
    return lambda folder: (folder / RULES).write_text(rules(base, {}, *own), encoding="utf-8") and None


FAULTS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "gpt2": (
        by("gpt2", "transpose = 'attn\\.c_proj\\.weight$'"),
        "decoder layer 0, self-attention, output projection",
        "transposed",
        "its weight is transposed",
    ),
    "llama": (
        by("llama", *swap("gate_proj", "up_proj")),
        "decoder layer 0, feed-forward",
        "gate",
        "the gate and the up projection are exchanged",
    ),
    "qwen3": (
        edited(norm_epsilon=1e-5),
        "decoder layer 0, norm of self-attention",
        "epsilon",
        "in the original, epsilon is 1e-06, the import's is 1e-05",
    ),
    "t5": (
        by("t5", *swap("SelfAttention.q", "SelfAttention.k")),
        "encoder layer 0, self-attention",
        "heads",
        "queries and keys are exchanged",
    ),
    "t5-beyond": (
        further(relative_attention_max_distance=128, then=edited(farthest=64)),
        "encoder layer 0, self-attention",
        "position",
        "in the original, the farthest bucket begins at 128, the import's at 64",
    ),
    "bert": (
        edited(activation="gelu_tanh"),
        "encoder layer 0, feed-forward",
        "activation",
        "in the original, gelu in place of gelu_tanh",
    ),
    "roberta": (
        edited(position_offset=1, max_length=41),
        "encoder, embedding",
        "position",
        "in the original, positions are off by +1",
    ),
    "marian": (edited(scale_embedding=False), "encoder, embedding", "scale", "the embedding of a token is scaled by"),
    "bart": (
        by("bart", *swap("encoder_attn.k_proj", "encoder_attn.v_proj")),
        "decoder layer 0, cross-attention",
        "heads",
        "keys and values are exchanged",
    ),
    "mistral-window": (edited(windows=[5, 5]), "decoder layer 0, self-attention", "window", "it sees the last"),
    "gemma": (edited(scale_embedding=False), "decoder, embedding", "scale", "the embedding of a token is scaled by"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_where_it_is(name: str, tmp_path: Path) -> None:
    edit, where, kind, words = FAULTS[name]
    folder = shutil.copytree(FAMILIES / name.removesuffix("-beyond"), tmp_path / name)
    edit(folder)
    found = hold_against(str(folder), "transformers")
    told = "\n".join(found.lines())
    assert found.parting is not None, told
    assert (found.parting.where, found.parting.kind, words in found.parting.what) == (where, kind, True), told


def foreign(name: str, folder: Path, *own: str) -> Path:
    """A checkpoint with other names for the tensors of a family, by rules of its own."""
    folder.mkdir()
    found = load_checkpoint(str(FAMILIES / name))
    save_file({f"net.{key}": each.clone() for key, each in found.tensors}, folder / WEIGHTS)
    text = rules("", {name: each for name, each in found.config.to_dict().items() if each is not None}, *own)
    (folder / RULES).write_text(text.replace('base = "hugging-face:"', f'architecture = "{name}"'), encoding="utf-8")
    return folder


PLAIN = "rename = { pattern = '^net\\.', to = '' }"


def test_an_import_may_be_held_against_a_folder_of_other_names(tmp_path: Path) -> None:
    folder = foreign("llama", tmp_path / "right", PLAIN)
    assert hold_against(str(folder), str(FAMILIES / "llama")).passed
    folder = foreign("llama", tmp_path / "wrong", PLAIN, "transpose = 'attention.query.weight'")
    found = hold_against(str(folder), str(FAMILIES / "llama"))
    assert found.parting is not None
    assert (found.parting.part, found.parting.kind) == ("decoder.0.attention.query", "transposed")
    assert found.parting.theirs == ("model.layers.0.self_attn.q_proj",)


def test_other_models_and_other_numbers_are_refused(tmp_path: Path) -> None:
    folder = foreign("llama", tmp_path / "own", PLAIN)
    with pytest.raises(ConfigError, match=r"is another model than the import of .* only one of them has"):
        hold_against(str(folder), str(FAMILIES / "qwen3"))
    other = shutil.copytree(FAMILIES / "llama", tmp_path / "other")
    weights = load_file(other / WEIGHTS)
    weights["model.norm.weight"] += 1
    save_file(weights, other / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"have other numbers for model\.norm\.weight$"):
        hold_against(str(FAMILIES / "llama"), str(other))


def test_what_transformers_can_not_load_is_one_line(tmp_path: Path) -> None:
    folder = shutil.copytree(FAMILIES / "gpt2", tmp_path / "gpt2")
    weights = {f"net.{name}": each for name, each in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS)
    (folder / RULES).write_text(rules("gpt2", {}, "rename = { pattern = '^net\\.', to = '' }"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"lacks .*, which transformers .*'s GPT2LMHeadModel has"):
        hold_against(str(folder), "transformers")


def test_the_command_runs_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["txport"])
    cli.main(["import", str(FAMILIES / "llama"), "--against", "transformers", "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    told = json.loads(out)["against"]
    assert (told["original"], told["equal"]) == (f"transformers {transformers.__version__}'s LlamaForCausalLM", True)
