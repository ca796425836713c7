"""Whisper from audio to text: what transformers hears and writes down, through the graphs of both targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.architectures.seeded import bundle_of
from tests.speech.audio import PIECES, RATE, noise
from txport.models.audio.facts import Features
from txport.models.audio.spectrogram import log_mel, mel_filters
from txport.models.checkpoint import load_checkpoint

FOLDER = Path(__file__).parent / "whisper"
ASKED: dict[str, dict[str, Any]] = {  # as tests/hugging_face/test_whisper.py asked
    "default": {},
    "german": {"language": "German"},
    "translate": {"task": "translate", "language": "fr"},
    "times": {"timestamps": True},
    "times and beams": {"timestamps": True, "language": "<|en|>", "beams": 3},
    "beams": {"beams": 3},
}


def said() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "said.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def heard() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "heard.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module", params=["portable", "cpu"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> txport.Model:
    folder = tmp_path_factory.mktemp("whisper") / "bundle"
    return txport.load(bundle_of(load_checkpoint(str(FOLDER)), folder, request.param).path)


@pytest.mark.parametrize("asked", ASKED)
def test_what_is_written_down_is_what_transformers_writes_down(model: txport.Model, asked: str) -> None:
    """All pieces of audio beside each other, which end after unequal numbers of windows."""
    expected = said()
    found = model.transcribe([noise(name) for name in PIECES], **ASKED[asked])
    for name, one in zip(PIECES, found, strict=True):
        wanted = expected[name][asked]
        assert [each.tokens for each in one.segments] == [tokens for tokens, _, _ in wanted]
        times = [(each.start, each.end) for each in one.segments]
        np.testing.assert_allclose(times, [each[1:] for each in wanted], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", PIECES)
def test_what_is_heard_is_what_transformers_hears(heard: dict[str, np.ndarray], name: str) -> None:
    reads = load_checkpoint(str(FOLDER)).facts.reads
    assert isinstance(reads, Features)
    np.testing.assert_allclose(log_mel(noise(name), reads), heard[name], rtol=0, atol=5e-5)


@pytest.mark.parametrize("size", [80, 128])
def test_features_of_published_sizes_are_those_of_transformers(heard: dict[str, np.ndarray], size: int) -> None:
    reads = Features(size=size, frames=200, longest=100, sampling_rate=RATE, hop_length=160, n_fft=400)
    np.testing.assert_allclose(mel_filters(reads), heard[f"filters {size}"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(log_mel(noise("whole"), reads), heard[f"features {size}"], rtol=0, atol=5e-5)
