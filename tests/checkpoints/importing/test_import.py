"""`txport import`: the whole table of any format, everything that does not fit at once, and a checkpoint of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.called import Cli
from tests.checkpoints.sources.test_own_checkpoint import describe, save, tensors_of
from tests.recorded import FAMILIES
from tests.tiny import tiny_config, tiny_model
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.models.names import CONFIG, GENERATION, RULES, WEIGHTS
from txport.models.rules import Drop, Rename, Split


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A checkpoint of the user's own, its queries, keys and values in one tensor, with one tensor too many."""
    model = tiny_model(tiny_config())
    weights = {f"net.{name}": tensor for name, tensor in tensors_of(model).items()}
    for name in [name for name in weights if ".query." in name]:
        parts = [weights.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        weights[name.replace("query", "qkv")] = torch.cat(parts)
    weights["net.step"] = torch.ones(1)
    rules = [Rename(r"^net\.", ""), Drop("step"), Split(r"\.qkv\.", (".query.", ".key.", ".value."))]
    return save(tmp_path / "own", weights, describe(model, rules))


def test_the_table_says_what_becomes_of_each_tensor(run: Cli, own: Path) -> None:
    code, out, err = run(own)
    assert (code, err) == (0, "")
    assert f"{own}: 66 tensors" in out
    assert "verdict: fits" in out.splitlines()
    fused = next(line for line in out.splitlines() if line.startswith("net.encoder.1.attention.qkv.bias"))
    assert "(48,)" in fused
    assert "encoder.1.attention.query.bias" in fused
    assert f"{RULES} line 33; {RULES} line 39" in fused
    made = next(line for line in out.splitlines() if line.startswith("encoder.1.attention.key.bias"))
    assert made.split(maxsplit=2)[-1].strip() == "net.encoder.1.attention.qkv.bias, part 2 of 3"
    assert any(line.split()[0] == "net.step" and "dropped" in line for line in out.splitlines() if line.strip())


def test_json_holds_the_same(run: Cli, own: Path) -> None:
    code, out, _ = run(own, "--json")
    told = json.loads(out)
    assert (code, told["fits"], told["problems"], told["architecture"]) == (0, True, [], "transformer")
    assert told["config"] == load_checkpoint(str(own)).config.to_dict()
    fates = {each["name"]: (each["fate"], each["to"]) for each in told["tensors"]}
    assert fates["net.step"] == ("dropped", [])
    assert fates["net.decoder_norm.bias"] == ("used", ["decoder_norm.bias"])
    assert {each["state"] for each in told["model"]} == {"made"}


@pytest.mark.parametrize("name", ["own", "gpt2", "bart", "g2p-en"])
def test_what_is_written_is_the_same_model(name: str, run: Cli, own: Path, tmp_path: Path) -> None:
    folder = {"own": str(own), "g2p-en": name}.get(name, str(FAMILIES / name))
    if name == "bart":
        folder = shutil.copytree(folder, tmp_path / "bart")
        (Path(folder) / GENERATION).write_text(json.dumps({"num_beams": 3, "length_penalty": 0.7}))
    code, out, err = run(folder, tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith(f"{tmp_path / 'out'}  ")
    before = load_checkpoint(str(folder))
    after = load_checkpoint(str(tmp_path / "out"))
    assert after.config == before.config
    assert after.generation == before.generation
    assert texts_of(after) == texts_of(before)
    theirs = before.model.state_dict()
    assert all(torch.equal(tensor, theirs[each]) for each, tensor in after.model.state_dict().items())
    code, _, err = run(folder, tmp_path / "out")
    assert (code, "exists; --force replaces it" in err) == (2, True)
    assert run(folder, tmp_path / "out", "--force")[0] == 0


def test_all_that_does_not_fit_is_shown_with_the_table(run: Cli, own: Path, tmp_path: Path) -> None:
    weights = load_file(own / WEIGHTS)
    weights["net.encoder_norm.weight"] *= torch.nan
    weights["net.odd"] = weights.pop("net.decoder_norm.bias")
    weights["net.decoder_norm.weight"] = torch.ones(17)
    weights["net.encoder.0.attention.qkv.bias"] = torch.ones(47)
    save_file(weights, own / WEIGHTS)
    code, out, err = run(own, tmp_path / "out")
    assert (code, err) == (2, "")
    assert not (tmp_path / "out").exists()
    problems = [line.removeprefix("problem: ") for line in out.splitlines() if line.startswith("problem: ")]
    assert problems == [
        "missing decoder_norm.bias (16,)",
        "unexpected net.odd (16,)",
        "decoder_norm.weight has shape (17,), expected (16,)",
        "'net.encoder.0.attention.qkv.bias' of shape (47,) must hold 16 + 16 + 16 rows",
        "encoder_norm.weight holds NaN or infinity",
    ]
    assert out.splitlines()[-1] == "verdict: does NOT fit, 5 problems"
    assert "MISSING" in out
    assert "MISSHAPEN net.decoder_norm.weight" in out
    told = json.loads(run(own, "--json")[1])
    assert (told["fits"], told["problems"]) == (False, problems)


@pytest.mark.parametrize("config", [None, {"model_type": "mine"}, {"n_head": 2}])
def test_a_folder_that_nothing_knows_is_told_what_it_is_nearest_to(
    config: dict[str, Any] | None, run: Cli, own: Path
) -> None:
    (own / RULES).unlink()
    if config is not None:
        (own / CONFIG).write_text(json.dumps(config))
    code, out, err = run(own)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the nearest architecture is transformer; only in the file: net.step" in err
    advice = f"; `txport import {own} --draft-map {own / RULES}` drafts a description of its weights"
    assert (err.count("--draft-map"), err.rstrip().endswith(advice)) == (1, True)


def test_a_type_that_nothing_expresses_is_near_to_none(run: Cli, own: Path) -> None:
    (own / RULES).unlink()
    (own / CONFIG).write_text(json.dumps({"model_type": "longformer"}))
    code, _, err = run(own)
    assert (code, "its encoder attends to windows" in err, "nearest" in err) == (2, True, False)


def test_of_two_tensors_that_become_one_only_the_rules_are_told(run: Cli, own: Path) -> None:
    """That they also differ follows from it."""
    text = (own / RULES).read_text(encoding="utf-8")
    moved = "\n[[rule]]\nrename = { pattern = '^encoder\\.0\\.', to = 'encoder.1.' }\n"
    (own / RULES).write_text(text + moved, encoding="utf-8")
    code, out, _ = run(own)
    assert (code, "must be one tensor" in out) == (2, False)
    line = (text + moved).count("\n")
    told = [each for each in out.splitlines() if " is made more than once: of " in each]
    assert told
    assert all(f"{RULES} line {line}" in each for each in told)


def test_a_draft_is_written_and_told(run: Cli, own: Path) -> None:
    (own / RULES).unlink()
    code, out, err = run(own, "--draft-map", own / RULES)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(f"{own / RULES}  transformer, ")
    code, _, err = run(own)
    assert (code, "answer its questions first: line " in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--architecture", "gpt2"], "--architecture needs --draft-map"),
        (["out", "--draft-map", "x.toml"], "--draft-map writes a draft, not a checkpoint"),
        (["{own}"], "{own} holds the checkpoint itself; choose another place"),
        (["--draft-map", "{own}/txport.toml"], "and --draft-map would replace it"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], message: str, run: Cli, own: Path) -> None:
    code, out, err = run(own, *(each.format(own=own) for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message.format(own=own) in err


def texts_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Tokenizers and samples, whether they lie in files or were made."""
    found = checkpoint.companions.items()
    return {name: each if isinstance(each, str) else each.read_text(encoding="utf-8") for name, each in found}
