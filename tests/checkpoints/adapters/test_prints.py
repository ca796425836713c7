"""What code of the user's prints goes to standard error: standard output holds what the command was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from txport.cli.commands import cli

CODE = """
import torch
from torch import nn
from txport import adapters

print("noise of the file")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(30, 8), nn.Linear(8, 3)


def encode(model, ids, mask):
    print("noise of a run")
    return {"logits": model.out(model.words(ids))}


def load():
    print("noise of the weights")
    torch.manual_seed(0)
    return Tagger()


ADAPTER = adapters.encoder(
    tokens=adapters.Tokens(size=30, longest=16, pad=0),
    width=8,
    encode=encode,
    outputs={"logits": ("length", 3)},
    labels=("a", "b", "c"),
    load=load,
)
"""
TEXTS = ["5 7 9", "3", "11 12", "8 8 8 8"]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("noisy") / "model.py"
    path.write_text(CODE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def exported(noisy: Path) -> tuple[Path, Any]:
    """A bundle of it, and what the command wrote."""
    out = noisy.parent / "bundle"
    return out, invoke("export", f"{noisy}:ADAPTER", out, "--trust-code", "--json")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments], catch_exceptions=False)


def test_an_export_prints_its_manifest_alone(exported: tuple[Path, Any]) -> None:
    _, found = exported
    assert json.loads(found.stdout)["architecture"] == "adapter"
    assert {"noise of the file", "noise of the weights", "noise of a run"} <= set(found.stderr.splitlines())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_prints_its_results_alone(workers: int, noisy: Path, exported: tuple[Path, Any]) -> None:
    code = ("--runtime", "torch", "--checkpoint", f"{noisy}:ADAPTER", "--trust-code")
    how = ("--workers", workers, "--batch-size", 1, "--json", *TEXTS)
    found = invoke("run", exported[0], *code, *how)
    plain = invoke("run", exported[0], "--json", *TEXTS)
    tags = [
        [[tag["label"] for tag in json.loads(line)["tags"]] for line in each.stdout.splitlines()]
        for each in (found, plain)
    ]
    assert tags[0] == tags[1]
    assert [len(each) for each in tags[0]] == [3, 1, 2, 4]
    assert found.stderr.count("noise of a run") >= len(TEXTS)
    assert "noise" not in plain.output


def test_a_proof_prints_its_report_alone(noisy: Path, exported: tuple[Path, Any]) -> None:
    found = invoke("parity", exported[0], "--checkpoint", f"{noisy}:ADAPTER", "--trust-code")
    assert (found.exit_code, "noise" in found.stdout, "noise of a run" in found.stderr) == (0, False, True)
    assert "pass" in found.stdout


def test_a_process_of_a_benchmark_prints_nothing_among_its_figures(
    noisy: Path, exported: tuple[Path, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """What it prints itself goes past what the command writes, to the file descriptors it was started with."""
    arguments = ("bench", exported[0], "--checkpoint", f"{noisy}:ADAPTER", "--trust-code", "--runtime", "torch")
    how = ("--rounds", 3, "--source", 4, "--quick", "--starts", 1)
    found = invoke(*arguments, *how)
    assert found.exit_code == 0, found.stderr
    assert "torch" in found.stdout
    out, err = capfd.readouterr()
    assert ("noise" in found.stdout + out, "noise of a run" in err) == (False, True)
