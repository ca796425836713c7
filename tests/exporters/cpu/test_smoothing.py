"""Numbers that are much larger than others give a part of their size to the weights, and the model stays the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import txport
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.forms import blocks_of
from txport.checkpoints.checkpoint import Checkpoint, fill, load_checkpoint, save_checkpoint, smoothed
from txport.checkpoints.weights.smoothing import Smoothing
from txport.errors import BundleError, CheckpointError
from txport.exporters.cpu import exporter
from txport.exporters.cpu.smoothing import find_smoothing
from txport.models import architecture
from txport.models.architectures import gpt2, llama, opt
from txport.models.facts import Facts
from txport.models.names import MANIFEST
from txport.proof.bisect.culprit import bisect
from txport.proof.parity.check import check

LARGE = [5, 40, 77, 101]
DOWN = "decoder.1.feed_forward.outer.weight"


def model_of(config: Any, seed: int = 0) -> Any:
    model = architecture.of(config).build(config).eval()
    fill(model, seed)
    return model


def enlarged(model: Any) -> Any:
    """Make a few outputs of norms and of gated feed-forwards much larger than the others, as in trained models."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "feed_forward.inner.weight")):
                parameter[LARGE] *= 40
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    tiny = load_checkpoint("preset:llama-tiny").config
    config = dataclasses.replace(tiny, d_model=128, heads=4, head_size=32, feed_forward=256)  # type: ignore[call-arg]
    folder = tmp_path_factory.mktemp("checkpoint") / "large"
    save_checkpoint(folder, enlarged(model_of(config)))
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def bundle(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    assert checkpoint.folder is not None
    return txport.export(checkpoint.folder, tmp_path_factory.mktemp("out") / "out", target="cpu", precision="int8")


def in_eight_bits(facts: Facts, **changes: Any) -> Any:
    """Return what `find_smoothing` asks of a manifest."""
    asked = {"facts": facts, "rows": None, "weightless": False, "is_quantised": True, **changes}
    return type("Manifest", (), asked)()


@pytest.mark.parametrize("drawn", [llama, gpt2, opt])
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_a_smoothed_model_computes_the_same_to_the_last_bit(drawn: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = drawn.ARCHITECTURE.draw(rng)
    model = model_of(config, seed)
    facts = model.facts
    assume(facts.is_causal)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.from_numpy(rng.standard_normal(parameter.shape).astype(np.float32)) * 3
    whole = Checkpoint("drawn", model, "")
    smoothing = find_smoothing(whole, in_eight_bits(facts))
    other = smoothed(whole, smoothing)
    ids = torch.from_numpy(rng.integers(facts.reads.size, size=(2, min(4, facts.reads.longest))))
    with torch.inference_mode():
        places = torch.arange(ids.shape[1]).expand(ids.shape)
        mask = torch.ones(ids.shape, dtype=torch.bool)
        one, two = (
            each.extend(ids, mask, places, each.empty_state(len(ids)), wanted=places)[0]
            for each in (model, other.outline)
        )
    assert torch.equal(one, two)
    assert smoothed(other, smoothing) is other


def test_large_numbers_get_small_factors_and_cost_less(
    bundle: Bundle, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoothing = bundle.manifest.smoothing
    assert {name for each in smoothing for name in each.read_by} > {DOWN, "decoder.0.attention.query.weight"}
    for each in smoothing:
        exponents = np.frombuffer(each.exponents, np.int8)
        assert exponents[LARGE].min() > np.median(exponents)
    assert bundle.manifest.forms[DOWN] == blocks_of(8, 32)
    monkeypatch.setattr(exporter, "EXPORTER", dataclasses.replace(exporter.EXPORTER, smoothing_of=lambda *_: ()))
    assert checkpoint.folder is not None
    other = txport.export(checkpoint.folder, bundle.path.with_name("plain"), target="cpu", precision="int8")
    assert not other.manifest.smoothing
    assert other.manifest.forms[DOWN] == blocks_of(8, 16)
    assert bundle.manifest.loss["error"] < 0.8 * other.manifest.loss["error"]


def test_other_bundles_have_none(checkpoint: Checkpoint, tmp_path: Path) -> None:
    facts = checkpoint.facts
    for changes in ({"rows": 1}, {"weightless": True}, {"is_quantised": False}):
        assert not find_smoothing(checkpoint, in_eight_bits(facts, **changes))
    assert find_smoothing(checkpoint, in_eight_bits(facts))
    assert not find_smoothing(load_checkpoint("preset:tiny"), in_eight_bits(load_checkpoint("preset:tiny").facts))


def test_the_router_of_experts_reads_its_norm_as_before() -> None:
    experts = load_checkpoint("preset:llama-experts-tiny")
    found = find_smoothing(experts, in_eight_bits(experts.facts))
    assert {len(each.read_by) for each in found} == {3}  # queries, keys and values alone


def edited(bundle: Bundle, out: Path, edit: Callable[[list[dict[str, Any]]], None]) -> Path:
    """Write the manifest of a bundle with a changed smoothing beside its files."""
    out.mkdir()
    for path in bundle.path.iterdir():
        (out / path.name).symlink_to(path)
    (out / MANIFEST).unlink()
    values = json.loads((bundle.path / MANIFEST).read_text())
    edit(values["smoothing"])
    (out / MANIFEST).write_text(json.dumps(values))
    return out


def test_weights_without_their_factors_are_found(bundle: Bundle, checkpoint: Checkpoint, tmp_path: Path) -> None:
    def swap(smoothing: list[dict[str, Any]]) -> None:
        smoothing[0]["exponents"], smoothing[1]["exponents"] = smoothing[1]["exponents"], smoothing[0]["exponents"]

    wrong = load_bundle(edited(bundle, tmp_path / "out", swap))
    report = check(wrong, checkpoint, {"ort": "cpu"})
    assert not report.passed
    culprit = bisect(wrong, checkpoint)
    assert culprit is not None
    assert culprit.kind == "weight"


def test_factors_that_would_change_the_model_are_refused(bundle: Bundle, checkpoint: Checkpoint) -> None:
    """Else a bundle could name its own reference."""
    first = bundle.manifest.smoothing[0]
    for each in (
        dataclasses.replace(first, read_by=first.read_by[:2]),
        dataclasses.replace(first, made_by=()),
        dataclasses.replace(first, exponents=first.exponents[:-1]),
        Smoothing(("decoder.9.norm.weight",), (DOWN,), b"\0"),
        Smoothing((), (), b""),
    ):
        with pytest.raises(CheckpointError, match=r"would change what .* computes"):
            smoothed(checkpoint, (each,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exponents": "?"}, "must be in base64"),
        ({"exponents": 3}, "must be in base64"),
        ({"made_by": "a"}, "must be lists of names"),
        ({"made_by": [1]}, "must be lists of names"),
        ({"more": 1}, "must have made_by, read_by and exponents"),
    ],
)
def test_a_damaged_smoothing_is_refused(change: dict[str, Any], message: str, bundle: Bundle, tmp_path: Path) -> None:
    path = edited(bundle, tmp_path / "out", lambda smoothing: smoothing[0].update(change))
    with pytest.raises(BundleError, match=message):
        load_bundle(path)
