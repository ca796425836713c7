"""What is right is the same on every machine, and what a precision is off by is what kernels are off by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import txport
from tests.instruction_sets import SETS
from tests.tiny import tiny_config, tiny_model, unproven
from txport import runtimes
from txport.api import model as api
from txport.bundles.forms import INVARIANT
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.proof.parity.check import exact_of
from txport.proof.parity.exact import Exact, Rounding, largest_difference
from txport.search.scoring import logits
from txport.system.files import sha256

SOURCES = [[4, 5, 6, 7, 2], [8, 2]]
TARGETS = [[7, 9, 5, 11, 4, 6], [5, 2]]
KINDS: dict[str, dict[str, str]] = {"portable": {}, "cpu": {"target": "cpu", "precision": "int4"}}
EXPORT = f"""
import sys
import txport
for name, how in {KINDS}.items():
    txport.export("preset:tiny", f"{{sys.argv[1]}}/{{name}}", **how)
"""


def hashes(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_gives_the_same_bytes_under_every_instruction_set(tmp_path: Path) -> None:
    """In this process, and in one without most of them."""
    for name, how in KINDS.items():
        txport.export("preset:tiny", tmp_path / "here" / name, **how)
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "there")]
    subprocess.run(command, env={**os.environ, **SETS["SSE4"]}, check=True, capture_output=True)
    here = hashes(tmp_path / "here")
    there = hashes(tmp_path / "there")
    assert here == there
    assert {"portable/golden.npz", "cpu/golden.npz"} <= here.keys()


def test_float64_is_nearer_to_itself_than_fp32_can_tell() -> None:
    """In another order of rows and on padded sources: what fp32 stores of it is the same number, or the next."""
    exact = Exact.of(tiny_model(tiny_config()))
    together = exact.logits(SOURCES, TARGETS)
    alone = [exact.logits([source], [target])[0] for source, target in zip(SOURCES, TARGETS, strict=True)]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_max_ulp(one, other, 1)


@pytest.mark.parametrize(
    ("precision", "low", "high"), [("fp32", 1e-8, 1e-5), ("fp16", 1e-4, 1e-1), ("int8", 1e-3, 1.0)]
)
def test_a_precision_is_off_by_about_its_last_bit(precision: str, low: float, high: float) -> None:
    model = tiny_model(tiny_config())
    forms = dict.fromkeys((name for name, _ in model.named_parameters()), INVARIANT)
    exact = Exact.of(model, precision, forms)
    own = exact.own_error(SOURCES, TARGETS)
    least = max(exact.rounding_errors(SOURCES, TARGETS))
    assert low < least < high
    assert least / 20 < own < least * 64
    assert exact.own_error(SOURCES, TARGETS, draw=1) == exact.own_error(SOURCES, TARGETS, draw=1) != own


def test_rounding_rounds_what_each_function_gives() -> None:
    with Rounding(0, torch.float16):
        found = torch.tensor([1.0], dtype=torch.float64) / 3 + 1e-5
    assert found.dtype == torch.float64
    assert found.item() == float(np.float16(np.float16(1 / 3) + 1e-5))


@pytest.mark.parametrize("value", [1 / 3, -1e-7, 0.0, 1.5, 65_504.0, 1e6, 1.3, 1e39, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_other_draws_round_up_or_down_and_are_right_in_the_mean(value: float, dtype: str) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    draws = []
    for draw in range(1, 3):
        with Rounding(draw, kind):
            draws.append((torch.full((4000,), value, dtype=torch.float64) + 0).numpy())
    found = np.concatenate(draws)
    nearest = torch.tensor(value, dtype=torch.float64).to(kind).item()
    kinds = {float(each) for each in found if not np.isnan(each)}
    assert np.isnan(value) == np.isnan(found).any()
    if not np.isfinite(value) or nearest == value or not np.isfinite(nearest):
        np.testing.assert_array_equal(found, np.full_like(found, nearest))
        return
    assert len(kinds) == 2
    assert min(kinds) < value < max(kinds)
    low = torch.tensor(min(kinds)).to(kind)
    assert torch.nextafter(low, torch.tensor(torch.inf).to(kind)).item() == max(kinds)
    assert abs(found.mean() - value) < 0.03 * (max(kinds) - min(kinds))
    assert not np.array_equal(*draws)


def test_eight_bits_are_those_of_the_kernels(tmp_path: Path) -> None:
    """PyTorch in float64, its activations rounded to 8 bits, says what the int8 bundle says."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config()))
    checkpoint = load_checkpoint(str(tmp_path / "toy"))
    bundle = unproven(tmp_path / "toy", tmp_path / "out", target="cpu", precision="int8")
    exact = exact_of(bundle, checkpoint)
    found = logits(runtimes.load("ort", bundle), SOURCES, TARGETS, checkpoint.facts)
    gaps = [largest_difference(*pair) for pair in zip(exact.logits(SOURCES, TARGETS), found, strict=True)]
    assert max(gaps) < exact.own_error(SOURCES, TARGETS) / 1000


def test_a_checkpoint_whose_fp32_is_far_from_float64_is_exported_and_the_report_says_how_far(tmp_path: Path) -> None:
    """Attention so sharp that the last bit of a key decides where it looks."""
    model = tiny_model(tiny_config(norm="post"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                parameter.mul_(12)
    save_checkpoint(tmp_path / "sharp", model)
    bundle = txport.export(tmp_path / "sharp", tmp_path / "out")
    assert bundle.manifest.parity["verdict"] == "pass"
    assert bundle.measured["pytorch_logit_difference"] > 3e-5
    report = api.parity(bundle, tmp_path / "sharp", {"ort": "cpu"})
    assert report.passed
    assert report.about["pytorch"]["worst_logit_difference"] > 3e-5
