"""Prompts of causal models, run in parts or at once, and the first tokens of targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.runtimes.driven import ENGINES
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.parts import Attention, DotProduct, RelativeBias
from txport.proof import proven
from txport.runtimes import load
from txport.runtimes.base import Runtime
from txport.runtimes.inputs import PROMPT_PART, parts_of_prompt
from txport.runtimes.ort import fused
from txport.runtimes.ort import runtime as started
from txport.runtimes.ort.cuda import driver
from txport.runtimes.ort.fused import Binding, FusedRuntime
from txport.runtimes.ort.runtime import OrtEngine
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.targets.ports import DECODER, INPUT_IDS

PROMPTS = np.random.default_rng(0).integers(2, 60, (3, 30))
LENGTHS = np.array([30, 17, 2])


def written(
    folder: Path, preset: str, precision: str = "fp32", *, target: str = "cpu", is_biased: bool = False
) -> tuple[Bundle, TorchRuntime]:
    """A bundle, and PyTorch; where wanted, with numbers for distances on the scores."""
    checkpoint = load_checkpoint(f"preset:{preset}")
    if is_biased:
        bias = RelativeBias(4, 16, 32, 64, both_ways=False)
        torch.nn.init.normal_(bias.weight, generator=torch.Generator().manual_seed(0))
        for part in (each for each in checkpoint.model.modules() if isinstance(each, Attention)):
            part.core = DotProduct(4, 4, part.head_size**-0.5, bias=bias)
    folder.mkdir()
    return proven.write(checkpoint, folder, target=target, precision=precision), TorchRuntime(checkpoint.model)


def first_logits(runtime: Runtime, rows: list[int]) -> np.ndarray:
    """What follows the prompts of some rows, each cut to its length: (R, V)."""
    lengths = LENGTHS[rows]
    state = runtime.start(PROMPTS[rows, : lengths.max()], lengths, max_length=40)
    last = PROMPTS[rows, lengths - 1]
    scores, _ = runtime.step(last, state)
    return np.array(scores.values)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 130, 256, 257, 600])
def test_parts_of_a_prompt_cover_it_and_none_is_one_token(size: int) -> None:
    parts = parts_of_prompt(size, PROMPT_PART)
    assert np.array_equal(np.concatenate([np.arange(each.start, each.stop) for each in parts]), np.arange(size))
    sizes = [each.stop - each.start for each in parts]
    assert max(sizes) <= PROMPT_PART
    assert min(sizes) > 1 or size == 1


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_a_prompt_in_parts_is_the_prompt_at_once(
    preset: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = written(tmp_path / "bundle", preset, precision)
    runtime = load("ort", bundle)
    assert isinstance(runtime, FusedRuntime)
    whole = first_logits(runtime, [0, 1, 2])
    for part in (4, 7):
        monkeypatch.setattr(fused, "PROMPT_PART", part)
        found = first_logits(runtime, [0, 1, 2])
        assert np.abs(found - whole).max() < 1e-5
        for row in range(3):
            assert np.array_equal(first_logits(runtime, [row])[0], found[row])


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_every_part_of_a_prompt_names_a_place(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime up to 1.30 kills the process if the TopK of experts has no rows."""
    runtime = load("ort", written(tmp_path / "bundle", "llama-experts-tiny", precision)[0])
    whole = first_logits(runtime, [0])
    monkeypatch.setattr(fused, "PROMPT_PART", 7)
    with mock.patch.object(fused.ort, "OrtValue", wraps=fused.ort.OrtValue) as values:
        found = first_logits(runtime, [0])
    assert np.abs(found - whole).max() < 1e-5
    assert all(call.args[0].size for call in values.ortvalue_from_numpy.call_args_list)


def test_the_run_of_a_prompt_gives_the_scores_of_its_last_token(tmp_path: Path) -> None:
    runtime = load("ort", written(tmp_path / "bundle", "llama-tiny")[0])
    with mock.patch.object(Binding, "run", autospec=True, side_effect=Binding.run) as step:
        state = runtime.start(PROMPTS, LENGTHS, max_length=40)
        found, state = runtime.step(PROMPTS[np.arange(3), LENGTHS - 1], state, top=1)
        assert step.call_count == 0
        assert found.ids is not None
        runtime.step(found.ids[:, 0], state)
        assert step.call_count == 1


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_a_prompt_beside_a_longer_one_has_the_bits_that_it_has_alone(
    preset: str, precision: str, tmp_path: Path
) -> None:
    """Attention computes blocks of 16 tokens, whose last one may have a single token. Prompts may end at the limit."""
    runtime = load("ort", written(tmp_path / "bundle", preset, precision)[0])
    prompts = np.random.default_rng(1).integers(2, 60, (2, 62))
    for size in (1, 2, 3, 15, 16, 17, 18, 31, 32, 33, 34, 48, 49, 50, 59, 60, 61):
        alone = np.array(after(runtime, prompts[:1, :size], [size]))
        for more in (each for each in (1, 2, 3, 8) if size + each <= 62):
            beside = after(runtime, prompts[:, : size + more], [size, size + more])
            assert np.array_equal(alone[:, 0], np.array(beside)[:, 0]), (size, more)


def after(runtime: Runtime, prompts: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    """The logits after prompts, and after two tokens more."""
    state = runtime.start(prompts, np.array(lengths), max_length=64)
    found = []
    tokens = prompts[np.arange(len(lengths)), np.array(lengths) - 1]
    for more in (7, 9, 0):
        scores, state = runtime.step(tokens, state)
        found.append(np.array(scores.values))
        tokens = np.full(len(lengths), more)
    return found


def test_rows_may_rest_at_their_first_step(tmp_path: Path) -> None:
    """As the slot of a request that is cancelled."""
    runtime = load("ort", written(tmp_path / "bundle", "llama-tiny")[0])
    last = PROMPTS[np.arange(3), LENGTHS - 1]
    for rests in ([True, False, True], [True, True, True]):
        state = runtime.start(PROMPTS, LENGTHS, max_length=40)
        found, state = runtime.step(np.where(rests, -1, last), state)
        for row in np.flatnonzero(np.logical_not(rests)).tolist():
            assert np.array_equal(found.values[row], first_logits(runtime, [row])[0])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_prompt_of_a_portable_bundle_runs_in_parts(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a batch begin at places of their own: the first parts of short ones are padding alone."""
    bundle, _ = written(tmp_path / "bundle", "llama-tiny", precision, target="portable")
    whole = first_logits(load("ort", bundle), [0, 1, 2])
    for part in (4, 7):
        monkeypatch.setattr(started, "PROMPT_PART", part)
        runtime = load("ort", bundle)
        with mock.patch.object(OrtEngine, "run", autospec=True, side_effect=OrtEngine.run) as run:
            found = first_logits(runtime, [0, 1, 2])
        assert np.abs(found - whole).max() < (1e-5 if precision == "fp32" else 0.05)
        assert run.call_count == -(-30 // part), "30 tokens in parts, and no step for the last one"


@pytest.mark.parametrize(
    ("target", "module", "most", "tokens"),
    [("cpu", fused, "PROMPT_PART", 1), ("portable", started, "PROMPT_PART", 1), ("cuda", driver, "TOGETHER", 3)],
)
def test_in_parts_distances_are_those_of_the_whole_prompt(
    target: str, module: Any, most: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cpu and portable targets count the tokens of a part in each row, the cuda target those of three rows."""
    bundle, reference = written(tmp_path / "bundle", "gpt2-tiny", target=target, is_biased=True)
    for part in (128, 7):
        monkeypatch.setattr(module, most, tokens * part)
        runtime = load(ENGINES[target], bundle)
        expected = first_logits(reference, [0, 1, 2])
        assert np.abs(first_logits(runtime, [0, 1, 2]) - expected).max() < 1e-4


def test_gelu_by_tanh_is_one_operator(tmp_path: Path) -> None:
    from txport.bundles.graphs import read_model

    bundle, _ = written(tmp_path / "bundle", "gpt2-tiny")
    operators = [node.op_type for node in read_model(bundle.file("step"), weights=False).graph.node]
    assert (operators.count("FastGelu"), operators.count("Tanh")) == (2, 0)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_first_tokens_of_targets_run_together(beams: int, tmp_path: Path) -> None:
    """They are given, so only what follows the last of them needs scores."""
    bundle, own = written(tmp_path / "bundle", "tiny", target="portable")
    facts = bundle.manifest.facts
    sources = [[4, 5, 6, 7], [8, 9, 10]]
    options = SearchOptions(beams=beams, max_new_tokens=3, min_new_tokens=3)
    for prefixes, widths in (([[5, 6, 7], [8, 9, 7]], [4, 1, 1]), ([[5, 6, 7], [8]], [2, 1, 1, 1, 1])):
        with mock.patch.object(OrtEngine, "run", autospec=True, side_effect=OrtEngine.run) as run:
            found = generate(load("ort", bundle), sources, facts, options, prefixes)
        ran = [call.args[2][INPUT_IDS].shape() for call in run.call_args_list if call.args[1] == DECODER]
        assert [width for _, width in ran] == widths
        wanted = generate(own, sources, facts, options, prefixes)
        assert [each[0].tokens for each in found] == [each[0].tokens for each in wanted]
