"""What the proof of an export takes of memory: foretold, refused where there is none, and not taken twice."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import txport
from txport import runtimes
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.cli import main
from txport.errors import OutOfMemoryError
from txport.proof.memory import memory_for
from txport.proof.proven import write
from txport.runtimes.inputs import infer
from txport.runtimes.ort import sessions
from txport.search.scoring import logits
from txport.system import memory
from txport.targets import TARGETS

SOURCES = [[3, 4, 5], [5, 3]]
LAST_BITS = 16 * float(np.finfo(np.float32).eps)  # of the largest number
PLENTY = 23 * 10**9  # what is free on a machine of 24 GB


@functools.cache
def checkpoint_of(preset: str) -> Checkpoint:
    """Its outline takes seconds, and is only read."""
    return load_checkpoint(f"preset:{preset}")


def of(preset: str, target: str, precision: str) -> int:
    return memory_for(checkpoint_of(preset), target, precision)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_larger_models_need_more(target: str) -> None:
    for precision in TARGETS[target].precisions:
        sizes = [of(f"gpt2-{size}", target, precision) for size in ("tiny", "350m", "1.3b", "2.7b", "6.7b", "175b")]
        assert all(one < other for one, other in itertools.pairwise(sizes)), precision


@pytest.mark.parametrize(
    ("preset", "target", "precision"),
    [
        ("gpt2-1.3b", "portable", "fp32"),
        ("gpt2-1.3b", "cpu", "fp32"),
        ("gpt2-2.7b", "cpu", "int8"),
        ("gpt2-2.7b", "portable", "fp16"),
    ],
)
def test_what_was_measured_to_fit_is_not_refused(preset: str, target: str, precision: str) -> None:
    """See docs/sizes.md."""
    assert of(preset, target, precision) < PLENTY


def test_too_little_memory_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with both sizes and what fits; graphs without weights are written all the same."""
    wanted = of("gpt2-2.7b", "portable", "fp16")
    free = 12 * 10**9
    monkeypatch.setattr(memory, "available", lambda: free)
    out = tmp_path / "out"
    command = ["export", "preset:gpt2-2.7b", str(out), "--precision", "fp16"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == OutOfMemoryError.exit_code == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    sizes = f"needs {memory.readable(wanted)} of memory, and 12 GB are free here"
    assert f"comparing gpt2-2.7b (portable fp16) with PyTorch {sizes}; " in said.replace("preset:", "")
    fitting = re.findall(r"--target (\w+) and --precision (\w+)", said)
    assert ("cpu", "int4") in fitting
    assert all(of("gpt2-2.7b", *kind) <= free for kind in fitting)
    assert "or --weights none" in said
    assert not list(tmp_path.iterdir())
    main([*command, "--weights", "none"])
    assert (out / "txport.json").exists()


def test_a_model_that_is_held_whole_counts_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = load_checkpoint("preset:gpt2-tiny")
    parameters = sum(each.numel() for each in small.outline.parameters())
    assert small.read is None
    assert memory_for(small, "portable", "fp16") > memory_for(small, "portable", "fp32") > 8 * parameters
    monkeypatch.setattr(memory, "available", lambda: 8 * parameters)
    with pytest.raises(OutOfMemoryError, match="with PyTorch needs"):
        txport.export("preset:gpt2-tiny", tmp_path / "out")


def test_auto_asks_for_the_weights_in_fp32_and_the_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large vocabulary they are more than a proof of int8 needs."""
    monkeypatch.setattr("txport.proof.memory.memory_for", lambda *_: 0)
    monkeypatch.setattr(memory, "available", lambda: 800_000_000)
    message = r"auto, which holds the weights of preset:gpt2-125m in fp32, needs .*; free some, or leave auto out"
    with pytest.raises(OutOfMemoryError, match=message):
        txport.export("preset:gpt2-125m", tmp_path / "out", target="cpu", precision="int8", auto=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "t5-tiny", "bert-tiny"])
def test_what_is_not_folded_is_fused_and_the_results_are_the_same(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To their last bits, on a CPU, where a limit of one byte keeps every matrix as the file has it."""
    bundle = write(load_checkpoint(f"preset:{name}"), tmp_path, target="portable", precision=precision)
    found = []
    for most in (1 << 30, 1):
        monkeypatch.setattr(sessions, "MOST_FOLDED", most)
        runtime = runtimes.load("ort", bundle)
        facts = bundle.manifest.facts
        given = infer(runtime, SOURCES, facts) if facts.task == "encode" else logits(runtime, SOURCES, SOURCES, facts)
        placed = runtime.placement()
        found.append((placed, [each for one in given for each in (one.values() if isinstance(one, dict) else [one])]))
    (folded, usual), (unfolded, sparing) = found
    assert folded != unfolded  # the limit was heard
    for one, other in zip(usual, sparing, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=LAST_BITS * np.abs(one).max(), equal_nan=False)
