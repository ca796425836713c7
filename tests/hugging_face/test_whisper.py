"""What transformers writes down of audio by a small seeded Whisper, and the features that it hears.

tests/recorded/whisper holds the model as `save_pretrained` wrote it, and what it says, which our graphs are held to.
`python -m tests.hugging_face.test_whisper` records both anew.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from tests.audio.noise import PIECES, RATE, noise
from tests.recorded import WHISPER
from txport.search.timestamps import TimestampRules

EXPECTED = WHISPER / "expected.json"
HEARD = WHISPER / "heard.npz"
END, START, FIRST_LANGUAGE, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMES = 24, 25, 26, 29, 30, 32, 34
PLACES = 50
VOCABULARY = 35 + 51
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 10,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": PLACES,
    "max_target_positions": 40,
    "decoder_start_token_id": START,
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
GENERATION: dict[str, Any] = {
    "decoder_start_token_id": START,
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "max_length": 40,  # as many as there are positions; for fewer, each version counts the prompt in its own way
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": FIRST_LANGUAGE, "<|de|>": FIRST_LANGUAGE + 1, "<|fr|>": FIRST_LANGUAGE + 2},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": NO_TIMES,
    "prev_sot_token_id": PREVIOUS,
    "max_initial_timestamp_index": 20,
    "forced_decoder_ids": [[1, None], [2, TRANSCRIBE]],
    "suppress_tokens": [3, 7, 25, 26, 27, 28, 29, 30, 31, 32, 33],
    "begin_suppress_tokens": [5, END],
}
ASKED: dict[str, dict[str, Any]] = {
    "default": {},
    "german": {"language": "de"},
    "translate": {"task": "translate", "language": "french"},
    "times": {"return_timestamps": True},
    "times and beams": {"return_timestamps": True, "language": "en", "num_beams": 3},
    "beams": {"num_beams": 3},
}
FILTERS = {"80": 80, "128": 128}


def extractor(size: int = CONFIG["num_mel_bins"], seconds: int = 1) -> Any:
    return WhisperFeatureExtractor(feature_size=size, chunk_length=seconds, sampling_rate=RATE)


def features(name: str) -> np.ndarray:
    """Of audio longer than a window without an end, as long audio is given to `generate`."""
    samples = noise(name)
    how = {"truncation": False, "padding": "longest"} if len(samples) > RATE else {}
    found: np.ndarray = extractor()(samples, sampling_rate=RATE, return_tensors="np", **how).input_features[0]
    return found


@torch.inference_mode()
def written(model: Any, name: str, asked: dict[str, Any]) -> Any:
    """The tokens of each part, and when it begins and ends."""
    given = torch.from_numpy(features(name))[None]
    if given.shape[-1] > 2 * PLACES:
        asked = {"return_timestamps": True, **asked}
    model.generation_config = GenerationConfig(**GENERATION)
    found = model.generate(given, return_segments=True, do_sample=False, **asked)["segments"][0]
    return [[each["tokens"].tolist(), float(each["start"]), float(each["end"])] for each in found]


def said(model: Any) -> dict[str, Any]:
    return {name: {how: written(model, name, asked) for how, asked in ASKED.items()} for name in PIECES}


def heard() -> dict[str, np.ndarray]:
    """Features of all audio, those of models as published over two seconds of it, and mel filters."""
    found = {name: features(name) for name in PIECES}
    for key, size in FILTERS.items():
        full = extractor(size, seconds=2)
        found[f"filters {key}"] = full.mel_filters.T.astype(np.float32)
        given = full(noise("whole"), sampling_rate=RATE, return_tensors="np").input_features[0]
        found[f"features {key}"] = given
    return found


def test_what_our_graphs_are_held_to_is_what_transformers_says() -> None:
    model = WhisperForConditionalGeneration.from_pretrained(WHISPER).eval()
    stored = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name, each in said(model).items():
        for how, parts in each.items():
            assert [part[0] for part in parts] == [part[0] for part in stored[name][how]]
            np.testing.assert_allclose([part[1:] for part in parts], [part[1:] for part in stored[name][how]])


@pytest.mark.parametrize("key", [*PIECES, *(f"{kind} {size}" for kind in ("filters", "features") for size in FILTERS)])
def test_what_is_heard_is_what_transformers_hears(key: str) -> None:
    with np.load(HEARD) as stored:
        np.testing.assert_allclose(heard()[key], stored[key], rtol=0, atol=2e-5)


def test_times_are_allowed_where_transformers_allows_them() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        begin = int(rng.integers(1, 4))
        latest = [None, 0, 3, 5][rng.integers(4)]
        tokens = rng.integers(0, VOCABULARY, (3, begin + int(rng.integers(6))))
        is_time = rng.random(tokens.shape) < 0.5
        is_time[:, :begin] = False
        tokens = np.where(is_time, rng.integers(NO_TIMES + 1, VOCABULARY, tokens.shape), tokens)
        scores = (2 * rng.standard_normal((3, VOCABULARY))).astype(np.float32)
        scores[:, rng.integers(0, VOCABULARY, 9)] = -np.inf
        config = GenerationConfig(no_timestamps_token_id=NO_TIMES, eos_token_id=END, max_initial_timestamp_index=latest)
        theirs = WhisperTimeStampLogitsProcessor(config, begin_index=begin)
        expected = theirs(torch.from_numpy(tokens), torch.from_numpy(scores)).numpy()
        np.testing.assert_array_equal(TimestampRules(begin, NO_TIMES + 1, END, latest)(scores, tokens), expected)


def main() -> None:
    model = WhisperForConditionalGeneration.from_pretrained(WHISPER).eval()
    np.savez_compressed(HEARD, **heard())
    EXPECTED.write_text(json.dumps(said(model)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
