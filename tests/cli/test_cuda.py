"""What commands say of a cuda bundle that nobody said where to run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import txport
from tests.cli.processes import assert_one_line, run
from tests.fake_cuda.fixture import FakeCuda
from tests.seeded import bundle_of
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli import cli
from txport.errors import UnavailableError, UnsupportedError

REFUSED = "a bundle of the cuda target runs on provider cuda, got provider 'cpu'; give --provider cuda, or --runtime"
IN_ITS_PLACE = ("cuda-stand-in", "cpu")


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return txport.export(checkpoint, tmp_path_factory.mktemp("cuda") / "out", target="cuda")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "BUNDLE", "bad"],
        ["score", "BUNDLE", "bad", "B AE1 D"],
        ["verify", "BUNDLE"],
        ["parity", "BUNDLE", "--runtime", "ort"],
        ["parity", "BUNDLE", "--provider", "cpu"],
        ["bench", "BUNDLE", "--checkpoint", "CHECKPOINT"],
    ],
    ids=" ".join,
)
def test_nothing_takes_the_place_of_a_gpu_unasked(arguments: list[str], made: Bundle, checkpoint: Path) -> None:
    places = {"BUNDLE": str(made.path), "CHECKPOINT": str(checkpoint)}
    if arguments[0] == "parity":
        arguments = [*arguments, "--checkpoint", "CHECKPOINT"]
    found = CliRunner().invoke(cli, [places.get(each, each) for each in arguments])
    assert isinstance(found.exception, UnsupportedError)
    assert str(found.exception).startswith(REFUSED)
    assert found.exception.exit_code == 2
    assert found.stdout == ""


def test_parity_compares_where_export_proves(made: Bundle, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "home", lambda target: IN_ITS_PLACE)  # there may be a GPU
    found = CliRunner().invoke(cli, ["parity", str(made.path), "--checkpoint", str(checkpoint)])
    assert found.exit_code == 0, found.output
    assert "cuda-stand-in ran " in found.stdout
    assert runtimes.compared("cuda", None) == dict([IN_ITS_PLACE])
    monkeypatch.setattr(runtimes, "home", lambda target: ("ort", "cuda"))
    assert runtimes.compared("cuda", None) == {"ort": "cuda"}
    assert runtimes.compared("cuda", "tensorrt") == runtimes.compared("cpu", "tensorrt") == {"ort": "tensorrt"}


@pytest.mark.parametrize("command", ["run", "score", "verify", "parity", "bench"])
def test_a_gpu_that_is_not_here_is_told(command: str, made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txport.runtimes.ort.providers.missing", lambda name: "found no NVIDIA driver")
    found = CliRunner().invoke(cli, [command, str(made.path), "--provider", "cuda"])
    assert isinstance(found.exception, UnavailableError)
    assert found.exception.exit_code == 3


@pytest.mark.parametrize(
    ("precision", "machine", "line"),
    [
        (
            "bf16",
            {"FAKE_CUDA_CAPABILITY": "75"},
            "computes in bf16, which needs a GPU of compute capability 8.0 or newer",
        ),
        (
            "fp16",
            {"FAKE_CUDA_MEMORY": "200"},
            "of weights and 268 MB beside them, and a device that computes nothing has",
        ),
    ],
)
def test_a_gpu_that_is_too_small_runs_nothing(
    precision: str, machine: dict[str, str], line: str, fake_cuda: FakeCuda, checkpoint: Path, tmp_path: Path
) -> None:
    path = bundle_of(load_checkpoint(str(checkpoint)), tmp_path / "out", "cuda", precision).path
    for command in (["run", path, "bad"], ["score", path, "bad", "B CH"]):
        done = run(*command, "--provider", "cuda", env=fake_cuda.environment(**machine))
        assert_one_line(done, line, 1 if "of weights and" in line else 3)


def test_an_export_that_saw_no_gpu_says_so(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "home", lambda target: IN_ITS_PLACE)
    found = CliRunner().invoke(cli, ["export", str(checkpoint), str(tmp_path / "out"), "--target", "cuda"])
    said = "checked in fp32 on a stand-in; no GPU was seen"
    assert found.stdout.endswith(f", {said}\n")
    assert f"pass, {said}: " in (tmp_path / "out" / "README.md").read_text()
